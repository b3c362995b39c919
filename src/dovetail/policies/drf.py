"""Dominant resource fairness (Ghodsi et al., NSDI 2011)."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Literal

from dovetail.mechanisms.fair import Shares, held, tenant_of, user_of
from dovetail.mechanisms.order import arrival
from dovetail.mechanisms.place import Place, packed, scattered
from dovetail.model.view import JobView, Order, Plan, Policy, View


@dataclass(frozen=True, slots=True, kw_only=True)
class Filling:
    """Progressive filling: the next job is of who has the smallest dominant share, again and again."""

    owner: Callable[[JobView], str]
    place: Place
    strict: bool
    order: Order = arrival
    quantum: int | None = None

    def group(self, job: JobView) -> Hashable:
        return self.owner(job), job.tenant  # a tenant's limit may stop one and not the other

    def decide(self, view: View) -> Plan:
        plan = view.draft()
        if not len(view.queue):
            return plan
        owner, shares = self.owner, Shares(view, self.owner)
        shut: set[str] = set()
        # What did not fit before fits no better for an arrival; only the new shapes can.
        only = None if view.moved or self.strict else dict.fromkeys(job.shape for job in view.arrived)
        for job in view.queue.walk(rank=lambda job: shares.dominant(owner(job)), shapes=only):
            name = owner(job)
            if name in shut:
                continue
            spots = self.place(plan.room, job)
            if spots is None:
                plan.deny(job, "Resources")
            elif plan.start(job, spots):
                shares.add(name, held(spots))
                continue
            if self.strict:
                shut.add(name)
        return plan


def drf(
    *,
    by: Literal["tenant", "user"] = "tenant",
    discipline: Literal["strict", "skip"] = "skip",
    placement: Literal["packed", "scattered"] = "packed",
) -> Policy:
    """Equal (weighted) dominant shares of GPUs, CPU and memory, without preemption.

    `strict` holds a tenant at its first job that does not fit, `skip` passes it over. Weights are the
    tenants'. Deviation: the unit that is given out is a job, which may be a gang of tasks.
    """
    return Filling(
        owner=tenant_of if by == "tenant" else user_of,
        place=packed if placement == "packed" else scattered,
        strict=discipline == "strict",
    )
