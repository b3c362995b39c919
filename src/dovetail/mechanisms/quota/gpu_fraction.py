"""The GPU-time fraction of jobs: what a job received in a period, of what it asked for while it was there.

Shukla et al., "Singularity", 2022: the service level of a tier is such a fraction. With 0.7 over a day,
a job can do with less for a while, and needs more before the day is over.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from dovetail.model.units import WHOLE
from dovetail.model.view import JobView


@dataclass(frozen=True, slots=True)
class Period:
    """The period that goes on, and the service that jobs had received when it began."""

    start: int = 0
    before: Mapping[str, int] = field(default_factory=dict)  # jobs of earlier periods, in GPU-microseconds

    def at(self, now: int, length: int, jobs: Iterable[JobView]) -> Period:
        """This period, or the one that has begun since, for these jobs."""
        start = now - now % length
        if start == self.start:
            return self
        return Period(start, {job.id: job.service_at(now) for job in jobs if job.arrived_at < start})


def ahead(period: Period, job: JobView, fraction: float, now: int) -> float:
    """The GPU-microseconds that a job received beyond this fraction of what it asked for."""
    since = max(job.arrived_at, period.start)
    received = job.service_at(now) - period.before.get(job.id, 0)
    return received - fraction * job.shape.load * (now - since) / WHOLE


def lasts(period: Period, job: JobView, fraction: float, held: int, now: int) -> float:
    """How long it keeps this fraction while it holds so many milli-GPUs; infinite if it holds enough."""
    short = (fraction * job.shape.load - held) / WHOLE
    return ahead(period, job, fraction, now) / short if short > 0 else float("inf")
