"""The Gittins index: how likely a job is to end soon, given the service that it has received.

For a job with service s and total size S the index is the largest over x of

    P(S - s <= x | S > s) / E[min(S - s, x) | S > s],

the probability that it ends within x more, over the expected work for that. The order of largest index has
the least mean waiting time on one server when sizes follow one distribution (Gittins 1979). Tiresias (NSDI
2019) counts GPU-time, so that the number of GPUs is a second dimension.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from dovetail.model.units import WHOLE
from dovetail.model.view import View

STEPS = 100  # amounts of service at which the index is computed


@dataclass(frozen=True, slots=True)
class Indices:
    """The index as a step function of the service received; 0 beyond the largest sample."""

    steps: tuple[int, ...] = ()  # ascending sizes
    values: tuple[float, ...] = ()  # of the interval up to each step

    @classmethod
    def of(cls, samples: Iterable[int], horizon: int | None = None) -> Indices:
        """The indices for this sample of job sizes; `horizon` fixes x.

        >>> Indices.of([1, 1, 1, 9]).values  # three of four end after 1, at 1 each; then one needs 8 more
        (0.75, 0.125)
        """
        sizes = np.sort(np.fromiter(samples, dtype=np.float64))
        steps = np.unique(sizes)
        if len(steps) > STEPS:
            steps = np.unique(np.quantile(sizes, np.linspace(0.0, 1.0, STEPS), method="lower"))
        starts = [0.0, *steps[:-1].tolist()]
        values = (_index(sizes[sizes > start] - start, horizon) for start in starts[: len(steps)])
        return cls(tuple(int(step) for step in steps), tuple(values))

    def at(self, attained: int) -> float:
        """The index of a job with this service."""
        i = bisect_right(self.steps, attained)
        return self.values[i] if i < len(self.values) else 0.0

    def next_step(self, attained: int) -> int | None:
        """The service at which its index changes next."""
        i = bisect_right(self.steps, attained)
        return self.steps[i] if i < len(self.steps) else None


def _index(left: np.ndarray[tuple[int], np.dtype[np.float64]], horizon: int | None) -> float:
    """`left` is the remaining size of each longer sample, ascending."""
    count = len(left)
    if horizon is not None:
        return float((left <= horizon).sum() / np.minimum(left, horizon).sum())
    done = np.arange(1, count + 1)
    spent = np.cumsum(left) + (count - done) * left
    return float((done / spent).max())


@dataclass(frozen=True, slots=True)
class LearnedSizes:
    """GPU-times of the jobs that ended, and of the running jobs at the last decision."""

    sizes: tuple[int, ...] = ()  # the latest last
    fresh: int = 0  # of these, since the indices were computed
    running: Mapping[str, tuple[int, int, int]] = field(default_factory=dict)  # service, milli-GPUs, when
    indices: Indices = Indices()


def with_ended(known: LearnedSizes, view: View, window: int, horizon: int | None) -> LearnedSizes:
    """With the GPU-time of each job that ran at the last decision and has ended since.

    The indices are computed again when a tenth of the samples is new.
    """
    back = {job.id for job in view.arrived}  # they lost their node and wait again
    ended = [
        service + held * (view.now - since) // WHOLE
        for job_id, (service, held, since) in sorted(known.running.items())
        if job_id not in view.running and job_id not in back
    ]
    if not ended:
        return known
    sizes = (*known.sizes, *ended)[-window:]
    fresh = known.fresh + len(ended)
    if fresh * 10 < len(sizes):
        return LearnedSizes(sizes, fresh, known.running, known.indices)
    return LearnedSizes(sizes, 0, known.running, Indices.of(sizes, horizon))


def with_running(known: LearnedSizes, view: View) -> LearnedSizes:
    """With the jobs that run according to the plan."""
    now = view.now
    running = {job.id: (job.service_at(now), job.held, now) for job in view.running.values()}
    return LearnedSizes(known.sizes, known.fresh, running, known.indices)
