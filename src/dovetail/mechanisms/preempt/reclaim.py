"""Taking back GPUs that were lent: stop jobs of the borrower until the owner's job fits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from dovetail.mechanisms.quota.tenant_quota import under_limits
from dovetail.model.grant import Spots
from dovetail.model.view import JobView, Plan


def latest_first(job: JobView) -> tuple[int, int, int]:
    """Sorts the first job to stop to the front: low priority, then the latest start."""
    return job.priority, -job.started_at, -job.seq


def reclaim(
    plan: Plan,
    job: JobView,
    candidates: Iterable[JobView],
    may_leave: Callable[[JobView], bool],
    fits: Callable[[], bool],
) -> Sequence[JobView]:
    """Stop candidates in this order until `job` can start; stop none if it never can.

    `job` can start if it `fits` and its tenant's limits allow it. `may_leave` is called for a candidate after
    those before it were stopped. Jobs that turn out not to have been in the way are restarted.
    """

    def enough() -> bool:
        return under_limits(plan.room.cluster, plan.used, job.tenant, job.shape.load) and fits()

    stopped: list[tuple[JobView, Spots]] = []
    for other in candidates:
        if other.spots is None or not other.traits.preemptible or not may_leave(other):
            continue
        stopped.append((other, other.spots))
        plan.stop(other, by=job)
        if enough():
            break
    else:
        for other, before in reversed(stopped):
            plan.start(other, before)
        return ()
    gone = stopped[-1:]
    for other, before in reversed(stopped[:-1]):
        plan.start(other, before)
        if not enough():
            plan.stop(other, by=job)
            gone.append((other, before))
    return [other for other, _ in gone]
