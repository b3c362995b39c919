"""Who goes first: keys by which waiting jobs are ranked, and by which running ones give way.

Keys are constant while a job waits. For a running job `yields` sorts those who leave first to the front, and
a waiting job displaces those who yield below its `limit`.
"""

from __future__ import annotations

from typing import Literal

from dovetail.model.units import HOUR
from dovetail.model.view import JobView, Order


def _arrival(job: JobView, now: int) -> int:
    return job.arrived_at


arrival = Order(_arrival, fifo=True)


def _declared(job: JobView, now: int) -> int:
    return job.remaining_at(now)


shortest = Order(_declared)


def smallest(by: Literal["duration", "service", "gpus"]) -> Order:
    """By what a job asked for when it came: its time, its GPUs, or both multiplied; then by arrival."""

    def size(job: JobView) -> int:
        if by == "gpus":
            return job.gpus
        return job.estimate * (job.gpus if by == "service" else 1)

    def key(job: JobView, now: int) -> tuple[int, int]:
        return (size(job), job.arrived_at)

    def yields(job: JobView, now: int) -> tuple[int, ...]:
        return (-size(job), -job.arrived_at, -job.seq)

    return Order(key, yields, yields)


def shortest_remaining(resume_cost: int | None = None) -> Order:
    """Least work left first; a job that has run before must also pay to come back.

    That is `resume_cost`, or the time that it says it takes to restore. Among running jobs the least work
    left is the earliest end, which does not change while they run.
    """

    def key(job: JobView, now: int) -> tuple[int, int]:
        return (job.remaining_at(now) + (_to_resume(job, resume_cost) if job.epoch else 0), job.arrived_at)

    def yields(job: JobView, now: int) -> int:
        return -job.ends_at(now)

    def limit(job: JobView, now: int) -> int:
        return -(now + key(job, now)[0])

    return Order(key, yields, limit)


def expected_end(order: Order) -> Order:
    """The same order for waiting jobs; running ones leave when they are said to end (for reservations)."""

    def yields(job: JobView, now: int) -> int:
        return job.ends_at(now)

    return Order(order.key, yields)


def _to_resume(job: JobView, cost: int | None) -> int:
    return job.traits.checkpoint.restore if cost is None else cost


def least_remaining_service(resume_cost: int | None = None) -> Order:
    """Least work left times GPUs first.

    Jobs of different size lose remaining service at different speeds, so the order among running jobs
    changes as they run: it is asked for when it is needed, and nothing is indexed by it (`drifts`).
    """

    def key(job: JobView, now: int) -> int:
        return job.gpus * (job.remaining_at(now) + (_to_resume(job, resume_cost) if job.epoch else 0))

    def yields(job: JobView, now: int) -> int:
        return -job.gpus * job.remaining_at(now)

    def limit(job: JobView, now: int) -> int:
        return -key(job, now)

    return Order(key, yields, limit, drifts=True)


def by_priority(*, larger_first: bool, aging: float = 0.0) -> Order:
    """By class, then by arrival. Everybody ages alike, so the order of two jobs never changes by itself.

    A class is worth `HOUR / aging` of waiting: the key is the arrival moved back by that for each step.
    """
    sign = -1 if larger_first else 1

    def key(job: JobView, now: int) -> tuple[float, int]:
        if aging <= 0.0:
            return (sign * job.priority, job.arrived_at)
        return (round(sign * job.priority * HOUR / aging) + job.arrived_at, 0)

    def yields(job: JobView, now: int) -> tuple[int, ...]:
        first, second = key(job, now)
        return (-int(first), -second, -job.seq)

    return Order(key, yields, yields)
