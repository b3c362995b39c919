"""Taking devices back for somebody who comes first.

Every waiting job, in order, starts if it fits, and otherwise displaces running jobs that rank behind it,
last first, if that makes room. With all running jobs ranked too this is the greedy prefix of all active jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dovetail.mechanisms.place import Place, packed
from dovetail.mechanisms.skew import packs
from dovetail.model.grant import Spots
from dovetail.model.job import Shape
from dovetail.model.view import JobView, Order, Plan, View


def preemptive(order: Order, *, nobody_overtakes: bool = False) -> Callable[[View, Place], Plan]:
    """Start in order, displacing those who rank behind."""

    def serve(view: View, place: Place = packed) -> Plan:
        plan = view.draft()
        room = plan.room
        blocked: set[Shape] = set()
        # A shape that could not be helped before cannot be now, unless something moved or a better job came.
        tried = None if view.moved else {job.shape for job in view.arrived}
        while (job := view.queue.head(blocked)) is not None:
            shape = job.shape
            spots = place(room, job)
            if spots is None and (tried is None or shape in tried):
                displaced = displace(view, plan, order, job, place)
                if displaced:
                    blocked.difference_update(other.shape for other in displaced)
                    spots = place(room, job)
            if spots is None:
                plan.deny(job, "Resources")
            if spots is None or not plan.start(job, spots):
                blocked.add(shape)
                if nobody_overtakes:
                    break
        return plan

    return serve


def displace(view: View, plan: Plan, order: Order, job: JobView, place: Place) -> Sequence[JobView]:
    """Stop those who yield first to this job until it fits; nobody if that cannot be."""
    assert order.limit is not None
    limit = order.limit(job, view.now)
    if job.shape.plain and not order.drifts and packs(place, job):
        relief = view.exits.relief(job.shape, limit)
        if relief is None:
            return ()
        displaced = relief.jobs
        for runner in displaced:
            plan.stop(runner)
        return displaced
    assert order.yields is not None
    now, yields = view.now, order.yields
    leaving = sorted(
        (key, -other.seq, other)
        for other in view.running.values()
        if other.traits.preemptible and (key := yields(other, now)) is not None and key < limit
    )
    return displace_among(plan, [other for _, _, other in leaving], job, place)


def displace_among(plan: Plan, leaving: Sequence[JobView], job: JobView, place: Place) -> Sequence[JobView]:
    """For shapes and placements without an index: stop, look, and put back who was not in the way.

    Of those who were stopped too many, the last to leave is the first to be put back.
    """
    stopped: list[tuple[JobView, Spots | None]] = []
    for other in leaving:
        stopped.append((other, other.spots))
        plan.stop(other)
        if place(plan.room, job) is not None:
            break
    else:
        for other, before in reversed(stopped):
            plan.start(other, before)
        return ()
    needed = []
    for other, before in reversed(stopped):
        plan.start(other, before)
        if place(plan.room, job) is None:
            plan.stop(other)
            needed.append(other)
    return needed
