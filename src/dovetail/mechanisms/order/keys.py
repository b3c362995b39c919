"""Orders of the queue: keys by which waiting jobs are sorted, and by which running jobs are preempted.

Keys are constant while a job waits. For running jobs `yields` sorts the first to be preempted to the front,
and a waiting job may preempt the running jobs that are below its `limit`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import nsmallest
from typing import Literal

from dovetail.model.units import HOUR
from dovetail.model.view import JobView, Key, Order, View


def _arrival(job: JobView, now: int) -> int:
    return job.arrived_at


arrival = Order(_arrival, fifo=True)


def _submission(job: JobView, now: int) -> int:
    return job.seq


submission = Order(_submission, fifo=True)


def _declared(job: JobView, now: int) -> int:
    return job.remaining_at(now)


shortest = Order(_declared)


def smallest(by: Literal["duration", "service", "gpus"]) -> Order:
    """By the size that a job declares: its duration, its GPUs, or their product; then by arrival."""

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
    """Least remaining time first; a job that ran before also pays to resume.

    That is `resume_cost`, or the job's own time to restore a checkpoint. Among running jobs the least
    remaining time is the earliest end, which does not change while they run.
    """

    def key(job: JobView, now: int) -> tuple[int, int]:
        return (job.remaining_at(now) + (_to_resume(job, resume_cost) if job.epoch else 0), job.arrived_at)

    def yields(job: JobView, now: int) -> int:
        return -job.ends_at(now)

    def limit(job: JobView, now: int) -> int:
        return -(now + key(job, now)[0])

    return Order(key, yields, limit)


def expected_end(order: Order) -> Order:
    """The same order of waiting jobs; running jobs are indexed by their expected end, for reservations."""

    def yields(job: JobView, now: int) -> int:
        return job.ends_at(now)

    return Order(order.key, yields)


def _to_resume(job: JobView, cost: int | None) -> int:
    return job.traits.checkpoint.restore if cost is None else cost


def least_remaining_service(resume_cost: int | None = None) -> Order:
    """Least remaining time x GPUs first.

    The remaining service of jobs of different size shrinks at different speeds, so the order among running
    jobs changes as they run: it is computed when needed, and not indexed (`drifts`).
    """

    def key(job: JobView, now: int) -> int:
        return job.gpus * (job.remaining_at(now) + (_to_resume(job, resume_cost) if job.epoch else 0))

    def yields(job: JobView, now: int) -> int:
        return -job.gpus * job.remaining_at(now)

    def limit(job: JobView, now: int) -> int:
        return -key(job, now)

    return Order(key, yields, limit, drifts=True)


def by_priority(*, larger_first: bool, aging: float = 0.0) -> Order:
    """By priority, then by arrival. All jobs age alike, so the order of two jobs never changes by itself.

    A step of priority is worth `HOUR / aging` of waiting: the key is the arrival moved back by that per step.
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


def _priority_then_arrival(job: JobView, now: int) -> tuple[int, int]:
    return -job.priority, job.arrived_at


by_priority_class = Order(_priority_then_arrival)  # the queue of Kubernetes; rank alone preempts no job


def waiting_in_order(order: Order, depth: int | None = None) -> Callable[[View], Sequence[JobView]]:
    """The waiting jobs, sorted, or the first `depth` of them."""

    def ranked(view: View) -> Sequence[JobView]:
        def key(job: JobView) -> tuple[Key, int]:
            return (order.key(job, view.now), job.seq)

        return sorted(view.queue, key=key) if depth is None else nsmallest(depth, view.queue, key=key)

    return ranked
