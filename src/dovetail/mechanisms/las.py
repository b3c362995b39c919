"""Least attained service, in coarse steps: a job goes down a queue each time it has had so much.

Steps rather than the sum itself, so that near-equals keep their turn instead of trading places. The moment
of each step is known while a job runs, so nothing is sorted again: the order says `until` when.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Literal

from dovetail.model.units import WHOLE
from dovetail.model.view import JobView, Order, View

Standing = tuple[tuple[str, int], ...]  # jobs with the queue each stands in, the first first


def attained_service(
    levels: Sequence[int],
    promote: float | None = None,
    *,
    service: Literal["gpu-time", "time"] = "gpu-time",
    within: Literal["entry", "submit"] = "entry",
) -> Order:
    """Jobs that have had less go first; inside a level, who entered it first, or who was submitted first.

    `levels` are microseconds of GPU-time, or of time whatever the number of GPUs. With `promote`, a job that
    waited that many times as long as it ever ran starts again at the top, its service forgiven.

    Gu et al., "Tiresias", NSDI 2019. Deviation: the paper orders a queue by first start; a job that has not
    started would then be overtaken by nobody and displace everybody, so we take the entry into the queue, as
    the authors' simulator does.
    """
    thresholds = tuple(levels)
    deepest = len(thresholds)
    by_time = service == "time"

    # A stage, a moment and a number in one integer: these are compared many times a job, and integers
    # compare several times as fast as tuples of them.

    def key(job: JobView, now: int) -> int:
        return (job.stage << 64) + job.turned_at

    def yields(job: JobView, now: int) -> int:
        return -((((job.stage << 64) + job.turned_at) << 32) + job.seq)

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


def standing(view: View, before: Standing) -> list[JobView]:
    """All active jobs as they stand in the queues: as they were left, then who entered a queue since."""
    active = {job.id: job for job in (*view.running.values(), *view.queue)}
    kept = [active.pop(id) for id, stage in before if id in active and active[id].stage == stage]
    new = sorted(active.values(), key=lambda job: (job.turned_at, job.seq))
    return sorted(kept + new, key=lambda job: job.stage)


def left_standing(jobs: Iterable[JobView]) -> Standing:
    """How the queues are left after a decision: in each those who run first, and otherwise as they stood."""
    return tuple((job.id, job.stage) for job in sorted(jobs, key=lambda job: (job.stage, job.spots is None)))
