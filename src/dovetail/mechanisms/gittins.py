"""The Gittins index: how soon a job that has had so much is likely to be done, for the work it would take.

For a job with s behind it and total S the index is the largest over x of

    P(S - s <= x | S > s) / E[min(S - s, x) | S > s],

the chance that it ends within x more, over the work that this is expected to cost. Serving the largest index
first has the least mean waiting on one server when sizes are drawn from one distribution (Gittins 1979).
Tiresias (NSDI 2019) counts GPU-time, so that the number of GPUs enters as a second dimension.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from dovetail.model.units import WHOLE
from dovetail.model.view import View

STEPS = 100  # places at which the index is worked out


@dataclass(frozen=True, slots=True)
class Indices:
    """The index as a step function of what a job has had; nothing once it has had more than any sample."""

    steps: tuple[int, ...] = ()  # ascending sizes
    values: tuple[float, ...] = ()  # from 0 or the step before, up to each

    @classmethod
    def of(cls, samples: Iterable[int], horizon: int | None = None) -> Indices:
        """Worked out once for all; `horizon` fixes x.

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
        """The index of a job that has had so much."""
        i = bisect_right(self.steps, attained)
        return self.values[i] if i < len(self.values) else 0.0

    def next_step(self, attained: int) -> int | None:
        """What it will have had when its index changes."""
        i = bisect_right(self.steps, attained)
        return self.steps[i] if i < len(self.steps) else None


def _index(left: np.ndarray[tuple[int], np.dtype[np.float64]], horizon: int | None) -> float:
    """`left` is what each of the samples that are longer had still to go, ascending."""
    count = len(left)
    if horizon is not None:
        return float((left <= horizon).sum() / np.minimum(left, horizon).sum())
    done = np.arange(1, count + 1)
    spent = np.cumsum(left) + (count - done) * left
    return float((done / spent).max())


@dataclass(frozen=True, slots=True)
class Learned:
    """GPU-times of the jobs that ended, and what is needed to learn those of the next."""

    sizes: tuple[int, ...] = ()  # the latest last
    fresh: int = 0  # of these, since the indices were worked out
    running: Mapping[str, tuple[int, int, int]] = field(
        default_factory=dict
    )  # service, milli-GPUs, as of when
    indices: Indices = Indices()


def learn(known: Learned, view: View, window: int, horizon: int | None) -> Learned:
    """Jobs that ran at the last decision and are gone have ended: their GPU-time is one sample more.

    The indices are worked out again when a tenth of the samples is new.
    """
    back = {job.id for job in view.arrived}  # lost their node: they wait again
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
        return Learned(sizes, fresh, known.running, known.indices)
    return Learned(sizes, 0, known.running, Indices.of(sizes, horizon))


def observed(known: Learned, view: View) -> Learned:
    """The same, with those who run as the plan has it."""
    now = view.now
    running = {job.id: (job.service_at(now), job.held, now) for job in view.running.values()}
    return Learned(known.sizes, known.fresh, running, known.indices)
