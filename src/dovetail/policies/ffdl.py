"""FfDL: a platform's scheduler that places a gang whole or not at all, and packs.

Jayaram et al., "FfDL: A Flexible Multi-tenant Deep Learning Platform", Middleware 2019.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dovetail.mechanisms.order import arrival
from dovetail.mechanisms.quota import guarantees, reclaim
from dovetail.mechanisms.sampled import sampled
from dovetail.mechanisms.turns import turns
from dovetail.model.chance import chance
from dovetail.model.view import JobView, Order, Plan, Policy, View

NO_END = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gangs:
    """Tenants within their quota first, by arrival; who is above it runs on what is left, and gives way."""

    samples: int
    order: Order = arrival
    group: None = None
    quantum: int | None = None

    def decide(self, view: View) -> Plan:
        plan = view.draft()
        if not len(view.queue):
            return plan
        quota, source = guarantees(view.cluster), chance(view)
        newest = sorted(view.running.values(), key=lambda job: (-job.started_at, -job.seq))

        def over(job: JobView, more: int = 0) -> bool:
            return plan.used.get(job.tenant, 0) + more > quota.get(job.tenant, NO_END)

        def line() -> Iterator[JobView]:
            return turns(view, lambda job: over(job, job.shape.load), strict=True)

        stopped = False
        for job in line():
            shape = job.shape
            spots = sampled(plan.room, shape, source, self.samples)
            if spots is None and not over(job, shape.load):
                stopped |= bool(reclaim(plan, newest, over, lambda: plan.room.anywhere(shape) is not None))  # noqa: B023
                spots = sampled(plan.room, shape, source, self.samples)
            if spots is None:
                plan.deny(job, "Resources", "no place for the whole gang")
            else:
                plan.start(job, spots)
        for job in line() if stopped else ():  # what the stopped left beside is there for all
            spots = sampled(plan.room, job.shape, source, self.samples)
            if spots is not None:
                plan.start(job, spots)
        return plan


def ffdl(*, samples: int = 100) -> Policy:
    """First come, first served in each tenant; gangs placed in one go by biased sampling.

    Who is over its quota runs too while there is room, and is stopped, newest first, for who is within.
    Failed learners start again from their job's last checkpoint (`Checkpoint.every`), which is the platform's
    doing. Rules and K = 100 are from memory. Reconstructed: the sampling weights; that tenants within quota
    go before those above it; that the newest give way.
    """
    return Gangs(samples=samples)
