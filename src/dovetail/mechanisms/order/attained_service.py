"""Least attained service, in queues: a job moves down a queue at each threshold of service.

With thresholds rather than the service itself, jobs of nearly equal service keep their order instead of
preempting each other. The moment at which a running job reaches a threshold is known (`until`), so nothing is
sorted again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Literal

from dovetail.model.units import WHOLE
from dovetail.model.view import JobView, Order


def attained_service(
    levels: Sequence[int],
    promote: float | None = None,
    *,
    service: Literal["gpu-time", "time"] = "gpu-time",
    within: Literal["entry", "submit"] = "entry",
) -> Order:
    """Jobs with less service go first; inside a queue, by entry into it or by submission.

    `levels` are microseconds of GPU-time, or of time whatever the number of GPUs. With `promote`, a job that
    waited that many times as long as it ever ran starts again in the first queue, with its service reset.

    Gu et al., "Tiresias", NSDI 2019. Deviation: the paper orders a queue by first start; a job that has not
    started would then preempt every other, so we take the entry into the queue, as the authors' simulator
    does.
    """
    thresholds = tuple(levels)
    deepest = len(thresholds)
    by_time = service == "time"

    # A stage, a time and a number in one integer: keys are compared many times per job, and integers compare
    # several times as fast as tuples.

    def key(job: JobView, now: int) -> int:
        return (job.stage << 64) + job.stage_since

    def yields(job: JobView, now: int) -> int:
        return -((((job.stage << 64) + job.stage_since) << 32) + job.seq)

    def submitted(job: JobView, now: int) -> int:
        return (job.stage << 64) + job.arrived_at

    def submitted_yields(job: JobView, now: int) -> int:
        return -((((job.stage << 64) + job.arrived_at) << 32) + job.seq)

    def until(job: JobView, now: int) -> int | None:
        if job.spots is None:
            if promote is None or not job.stage:
                return None
            return max(now + 1, job.waiting_since + round(promote * job.executed_at(now)))
        level, held = job.stage, job.held
        if level >= deepest or not held:
            return None
        threshold = thresholds[level]
        if by_time:
            threshold = threshold * job.shape.load // WHOLE
        left = threshold + job.forgiven - job.service_at(now)
        return now + -(-left * WHOLE // held) if left > 0 else now + 1

    def stage(job: JobView, now: int) -> int:
        if job.spots is None:
            return 0
        attained = job.service_at(now) - job.forgiven
        if by_time:
            attained = attained * WHOLE // job.shape.load
        return max(job.stage, bisect_right(thresholds, attained))

    if within == "submit":
        return Order(submitted, submitted_yields, submitted_yields, until, stage)
    return Order(key, yields, yields, until, stage)
