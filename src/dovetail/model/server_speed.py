"""The speed of a job that exchanges its gradients over parameter servers, by workers u and servers p.

Peng et al., "Optimus", EuroSys 2018, section 3.2. Steps a second:

    synchronous     1 / (t0 M / u + t1 + t2 u / p + t3 u + t4 p)     M: the batch of all workers together
    asynchronous    u / (t0 + t1 u / p + t2 u + t3 p)

A job with such a speed declares its figures t (`Profile.server_speed`). The simulator's truth and the
declared estimate call the same function (`profile_arithmetic.scaled`). A policy that fits the figures to
measured speeds (`mechanisms.estimate.server_speeds`) uses the same terms.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServerSpeed:
    """The figures of one job; it has `per_worker` servers for each worker, at least one."""

    figures: tuple[float, ...]  # t0 to t4, asynchronous t0 to t3, in seconds
    synchronous: bool = True
    per_worker: float = 1.0

    def __post_init__(self) -> None:
        figures = tuple(float(figure) for figure in self.figures)
        if (
            len(figures) != (5 if self.synchronous else 4)
            or min(figures) < 0
            or not 0 < sum(figures) < math.inf
        ):
            raise ValueError(
                f"server_speed has 5 figures if synchronous, else 4, none below 0, not {self.figures}"
            )
        if not 0 < self.per_worker < math.inf:
            raise ValueError(f"per_worker is a number of servers above 0, not {self.per_worker}")
        object.__setattr__(self, "figures", figures)  # a tuple, where a file gave a list

    def at(self, workers: int) -> float:
        """Steps a second, in the batches of a synchronous step or of one worker."""
        found = terms(workers, servers(workers, self.per_worker), synchronous=self.synchronous)
        return 1.0 / sum(t * term for t, term in zip(self.figures, found, strict=True))


def servers(workers: int, per_worker: float) -> int:
    """The servers of a job with this number of workers."""
    return max(1, math.ceil(workers * per_worker))


def terms(workers: int, servers: int, *, synchronous: bool) -> tuple[float, ...]:
    """What the figures are multiplied by; the sum is the inverse of the speed. The batch is part of t0.

    >>> terms(4, 2, synchronous=True)
    (0.25, 1.0, 2.0, 4.0, 2.0)
    """
    u, p = float(workers), float(servers)
    if synchronous:
        return 1.0 / u, 1.0, u / p, u, p
    return 1.0 / u, 1.0 / p, 1.0, p / u
