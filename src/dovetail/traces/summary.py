"""The summary of a trace: enough to see whether it suits a cluster before replaying it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from dovetail.model.units import HOUR, WHOLE
from dovetail.traces.trace import Trace

QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)


@dataclass(frozen=True, slots=True)
class Summary:
    """Counts, span and distributions of a trace; times in microseconds."""

    name: str
    format: str
    began: str
    jobs: int
    tenants: int
    users: int
    models: int
    span: int  # from the first submission to the last
    gpu_hours: float
    sizes: Mapping[int, int]  # jobs by requested devices, in rising order
    shared: int  # jobs that ask for a share of a device
    mean_duration: float
    durations: Mapping[float, int]  # by quantile
    load: float | None  # requested GPU time over available GPU time, within the span
    notes: tuple[str, ...]


def describe(trace: Trace, gpus: int | None = None) -> Summary:
    """Summarise a trace; with `gpus`, also its offered load."""
    jobs = trace.jobs
    works = sorted(job.work for job in jobs)
    sizes = Counter(job.shape.gpus for job in jobs)
    span = jobs[-1].arrived_at - jobs[0].arrived_at if jobs else 0
    service = sum(job.work * job.shape.load for job in jobs) / WHOLE
    return Summary(
        name=trace.name,
        format=trace.format,
        began=trace.began,
        jobs=len(jobs),
        tenants=len({job.tenant for job in jobs if job.tenant}),
        users=len({job.user for job in jobs if job.user}),
        models=len({job.model for job in jobs if job.model}),
        span=span,
        gpu_hours=service / HOUR,
        sizes=dict(sorted(sizes.items())),
        shared=sum(1 for job in jobs if job.shape.milli < WHOLE and job.shape.each),
        mean_duration=sum(works) / len(works) if works else 0.0,
        durations={q: works[min(int(q * len(works)), len(works) - 1)] for q in QUANTILES} if works else {},
        load=service / (gpus * span) if gpus and span else None,
        notes=trace.notes,
    )
