"""Dominant resource fairness (Ghodsi et al., NSDI 2011)."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Literal

from dovetail.mechanisms.fair.dominant_share import Holdings, held, tenant_of, user_of
from dovetail.mechanisms.order.keys import arrival
from dovetail.mechanisms.place.placement import Placement, packed, scattered
from dovetail.mechanisms.queue.discipline import Discipline
from dovetail.model.view import JobView, Plan, Policy, View
from dovetail.policies.composed import Composed


def progressive_filling(owner: Callable[[JobView], str], *, strict: bool) -> Discipline:
    """Again and again the owner with the smallest dominant share starts a job."""

    def serve(view: View, place: Placement) -> Plan:
        plan = view.draft()
        if not len(view.queue):
            return plan
        holdings = Holdings(view, owner)
        closed: set[str] = set()
        # An arrival makes no room for shapes that did not fit before: only the new shapes can start.
        only = None if view.changed or strict else dict.fromkeys(job.shape for job in view.arrived)
        for job in view.queue.walk(rank=lambda job: holdings.dominant(owner(job)), shapes=only):
            name = owner(job)
            if name in closed:
                continue
            spots = place.find(plan.room, job)
            if spots is None:
                plan.deny(job, "Resources")
            elif plan.start(job, spots):
                holdings.add(name, held(spots))
                continue
            if strict:
                closed.add(name)
        return plan

    return serve


def drf(
    *,
    by: Literal["tenant", "user"] = "tenant",
    discipline: Literal["strict", "skip"] = "skip",
    placement: Literal["packed", "scattered"] = "packed",
) -> Policy:
    """Equal (weighted) dominant shares of GPUs, CPU and memory, without preemption.

    With `strict` a tenant waits at its first job that does not fit, with `skip` it passes over this job.
    Weights are those of the tenants. Deviation: the unit of allocation is a job, which may be a gang.
    """
    owner = tenant_of if by == "tenant" else user_of

    def group(job: JobView) -> Hashable:
        return owner(job), job.tenant  # a tenant's limit may stop one and not the other

    return Composed(
        order=arrival,
        serve=progressive_filling(owner, strict=discipline == "strict"),
        place=packed if placement == "packed" else scattered,
        group=group,
    )
