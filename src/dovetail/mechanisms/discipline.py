"""How far down the queue one looks when the first does not fit."""

from __future__ import annotations

from collections.abc import Callable

from dovetail.mechanisms.place import Place, packed
from dovetail.model.job import Shape
from dovetail.model.view import Plan, View

Discipline = Callable[[View, Place], Plan]


def strict(view: View, place: Place = packed) -> Plan:
    """Stop at the first that does not fit: nobody overtakes."""
    plan = view.draft()
    room = plan.room
    while (job := view.queue.head()) is not None:
        spots = place(room, job)
        if spots is None:
            plan.deny(job, "Resources")
            if place is packed:
                plan.stuck(job)
            break
        if not plan.start(job, spots):
            break
    return plan


def skip(view: View, place: Place = packed) -> Plan:
    """Pass over what does not fit.

    If nothing but arrivals happened, only their shapes can have become startable.
    """
    plan = view.draft()
    room = plan.room
    shapes = None if view.moved else {job.shape for job in view.arrived}
    full = set[Shape]()
    for job in view.queue.walk(shapes=shapes, fits=room.may_fit if place is packed else None):
        if job.shape in full:
            continue
        spots = place(room, job)
        if spots is None:
            plan.deny(job, "Resources")
            full.add(job.shape)
        else:
            plan.start(job, spots)
    return plan
