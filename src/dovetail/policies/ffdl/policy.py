"""FfDL: the scheduler of a platform that places a gang whole or not at all, and packs.

Jayaram et al., "FfDL: A Flexible Multi-tenant Deep Learning Platform", Middleware 2019.
"""

from __future__ import annotations

from collections.abc import Iterator

from dovetail.mechanisms.order.keys import arrival
from dovetail.mechanisms.order.round_robin import round_robin
from dovetail.mechanisms.place.placement import Placement
from dovetail.mechanisms.preempt.reclaim import reclaim
from dovetail.mechanisms.queue.discipline import Discipline
from dovetail.mechanisms.quota.tenant_quota import guarantees
from dovetail.model.chance import chance
from dovetail.model.view import JobView, Plan, Policy, View
from dovetail.policies.composed import Composed
from dovetail.policies.ffdl.biased_sampling import sampled_spots

NO_END = float("inf")


def within_quota_first(samples: int) -> Discipline:
    """Tenants within their quota first, by arrival; jobs above quota run on the rest, and are preempted."""

    def serve(view: View, place: Placement) -> Plan:
        plan = view.draft()
        if not len(view.queue):
            return plan
        quota, source = guarantees(view.cluster), chance(view)
        newest = sorted(view.running.values(), key=lambda job: (-job.started_at, -job.seq))

        def over(job: JobView, more: int = 0) -> bool:
            return plan.used.get(job.tenant, 0) + more > quota.get(job.tenant, NO_END)

        def line() -> Iterator[JobView]:
            return round_robin(view, lambda job: over(job, job.shape.load), strict=True)

        stopped = False
        for job in line():
            shape = job.shape
            spots = sampled_spots(plan.room, shape, source, samples)
            if spots is None and not over(job, shape.load):
                gone = reclaim(plan, job, newest, over, lambda: plan.room.anywhere(shape) is not None)  # noqa: B023
                stopped |= bool(gone)
                spots = sampled_spots(plan.room, shape, source, samples)
            if spots is None:
                plan.deny(job, "Resources", "no place for the whole gang")
            else:
                plan.start(job, spots)
        for job in line() if stopped else ():  # devices that preemption freed beyond need are free for all
            spots = sampled_spots(plan.room, job.shape, source, samples)
            if spots is not None:
                plan.start(job, spots)
        return plan

    return serve


def ffdl(*, samples: int = 100) -> Policy:
    """First come, first served in each tenant; gangs placed in one go by biased sampling.

    Jobs of a tenant over its quota run while there is room, and are preempted, newest first, for jobs within
    quota. The platform restarts failed learners from their job's last checkpoint (`Checkpoint.every`). Rules
    and K = 100 are from memory. Reconstructed: the sampling weights; that tenants within quota go before
    those above it; that the newest jobs are preempted.
    """
    return Composed(order=arrival, serve=within_quota_first(samples))
