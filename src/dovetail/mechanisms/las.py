"""Least attained service, in coarse steps: a job goes down a queue each time it has had so much.

Steps rather than the sum itself, so that near-equals keep their turn instead of trading places. The moment
of each step is known while a job runs, so nothing is sorted again: the order says `until` when.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence

from dovetail.model.view import JobView, Order

Measure = Callable[[JobView, int], int]  # what has been attained by a job


def attained_service(levels: Sequence[int], promote: float | None = None) -> Order:
    """Jobs that have had less GPU-time go first; inside a level, who entered it first.

    `levels` are GPU-microseconds. With `promote`, a job that waited that many times as long as it ever ran
    starts again at the top, its service forgiven.

    Gu et al., "Tiresias", NSDI 2019. Deviation: the paper orders a queue by first start; a job that has not
    started would then be overtaken by nobody and displace everybody, so we take the entry into the queue, as
    the authors' simulator does.
    """
    thresholds = tuple(levels)

    def key(job: JobView, now: int) -> tuple[int, int]:
        return (job.stage, job.turned_at)

    def yields(job: JobView, now: int) -> tuple[int, ...]:
        return (-job.stage, -job.turned_at, -job.seq)

    def until(job: JobView, now: int) -> int | None:
        if job.spots is None:
            if promote is None or not job.stage:
                return None
            return max(now + 1, job.waiting_since + round(promote * job.executed_at(now)))
        if job.stage >= len(thresholds) or not job.held:
            return None
        left = thresholds[job.stage] - (job.service_at(now) - job.forgiven)
        return max(now + 1, now + -(-left * 1000 // job.held))

    def stage(job: JobView, now: int) -> int:
        if job.spots is None:
            return 0
        return max(job.stage, bisect_right(thresholds, job.service_at(now) - job.forgiven))

    return Order(key, yields, yields, until, stage)
