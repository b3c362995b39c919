"""How far down the queue one looks when the first does not fit."""

from __future__ import annotations

from collections.abc import Callable

from dovetail.mechanisms.place import Place, packed
from dovetail.model.view import JobView, Plan, View

Discipline = Callable[[View, Place], Plan]


def strict(view: View, place: Place = packed) -> Plan:
    """Stop at the first that does not fit: nobody overtakes."""
    plan = view.draft()
    job = start_in_order(view, plan, place)
    if place is packed:
        plan.rest(job)
        plan.welcome(past=False)
    return plan


def skip(view: View, place: Place = packed) -> Plan:
    """Pass over what does not fit.

    If nothing but arrivals happened, only their shapes can have become startable.
    """
    plan = view.draft()
    if place is packed:
        plan.rest()
        plan.welcome(past=True)
        if view.hopeful is not None or start_in_order(view, plan, place) is not None:
            for job in view.queue.walk(shapes=view.hopeful):
                plan.start(job)
        return plan
    room = plan.room
    shapes = None if view.moved else {job.shape for job in view.arrived}
    for job in view.queue.walk(shapes=shapes):
        spots = place(room, job)
        if spots is None:
            plan.deny(job, "Resources")
        else:
            plan.start(job, spots)
    return plan


def start_in_order(view: View, plan: Plan, place: Place) -> JobView | None:
    """Start from the front of the queue while it fits; the first that does not, if any."""
    queue, room = view.queue, plan.room
    if place is packed:
        while (job := queue.head()) is not None and plan.start(job):
            pass
        return job
    while (job := queue.head()) is not None:
        spots = place(room, job)
        if spots is None:
            plan.deny(job, "Resources")
            return job
        if not plan.start(job, spots):
            return job
    return None
