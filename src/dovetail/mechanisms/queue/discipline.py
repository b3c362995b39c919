"""How far down the queue a decision looks when the first job does not fit."""

from __future__ import annotations

from collections.abc import Callable

from dovetail.mechanisms.place.placement import Placement, packed
from dovetail.model.view import JobView, Plan, View

Discipline = Callable[[View, Placement], Plan]


def strict(view: View, place: Placement = packed) -> Plan:
    """Stop at the first job that does not fit: no job overtakes another."""
    plan = view.draft()
    job = start_in_order(view, plan, place)
    if place.always_packs:
        plan.rest(job)
        plan.start_arrivals(past_waiting=False)
    return plan


def skip(view: View, place: Placement = packed) -> Plan:
    """Pass over jobs that do not fit.

    If only arrivals happened since the last decision, only their shapes can have become startable.
    """
    plan = view.draft()
    if place.always_packs:
        plan.rest()
        plan.start_arrivals(past_waiting=True)
        if view.startable is not None or start_in_order(view, plan, place) is not None:
            for job in view.queue.walk(shapes=view.startable):
                plan.start(job)
        return plan
    room, find = plan.room, place.find
    shapes = None if view.changed else {job.shape for job in view.arrived}
    for job in view.queue.walk(shapes=shapes):
        spots = find(room, job)
        if spots is None:
            plan.deny(job, "Resources")
        else:
            plan.start(job, spots)
    return plan


def start_in_order(view: View, plan: Plan, place: Placement) -> JobView | None:
    """Start jobs from the front of the queue while they fit; the first that does not, if there is one."""
    queue, room, find = view.queue, plan.room, place.find
    if place.always_packs:
        while (job := queue.head()) is not None and plan.start(job):
            pass
        return job
    while (job := queue.head()) is not None:
        spots = find(room, job)
        if spots is None:
            plan.deny(job, "Resources")
            return job
        if not plan.start(job, spots):
            return job
    return None
