"""Rank all active jobs at each decision, and give the devices to the first of them.

For orders that change while jobs run (an index, a measured progress), and for schedulers that select jobs by
number of GPUs and only then look for nodes. The cost is all active jobs at each decision, where
`displacement.preemptive` looks only at the few that change. So use it where the rank cannot be foretold.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dovetail.mechanisms.place.placement import Placement, packed
from dovetail.mechanisms.preempt.displacement import displace_among
from dovetail.model.job import Shape
from dovetail.model.units import WHOLE
from dovetail.model.view import JobView, Key, Order, Plan, View

Selection = Callable[[View, Placement, Sequence[JobView]], Plan]


def ranked(view: View, rank: Callable[[JobView], Key]) -> list[JobView]:
    """All active jobs by rank, the smallest first."""
    active = [*view.running.values(), *view.queue]
    return sorted(active, key=lambda job: (rank(job), job.seq))


def by_order(view: View, order: Order) -> list[JobView]:
    """All active jobs as an order ranks them; a running job goes before a waiting job of equal rank."""
    assert order.yields is not None
    assert order.limit is not None
    yields, limit, now = order.yields, order.limit, view.now

    def standing(job: JobView) -> tuple[bool, Key, bool, int]:
        runs = job.spots is not None
        place = yields(job, now) if runs else limit(job, now)
        return (place is None, () if place is None else place, runs, -job.seq)

    return sorted([*view.running.values(), *view.queue], key=standing, reverse=True)


def by_fit(view: View, place: Placement, jobs: Sequence[JobView]) -> Plan:
    """Down the list: a job that fits starts, and one that does not preempts those behind, the last first."""
    plan = view.draft()
    room, find = plan.room, place.find
    full: set[Shape] = set()
    behind = sum(job.held for job in jobs if job.traits.preemptible)
    for i, job in enumerate(jobs):
        if job.spots is not None:
            behind -= job.held if job.traits.preemptible else 0
            continue
        shape = job.shape
        if shape in full:
            continue
        spots = find(room, job)
        if spots is None and room.free_gpus * WHOLE + behind >= shape.load:
            leaving = [other for other in reversed(jobs[i + 1 :]) if other.spots and other.traits.preemptible]
            displaced = displace_among(plan, leaving, job, find)
            if displaced:
                full.clear()
                behind = sum(j.held for j in jobs[i + 1 :] if j.traits.preemptible)
                spots = find(room, job)
        if spots is None:
            plan.deny(job, "Resources")
            full.add(shape)
        else:
            plan.start(job, spots)
    return plan


def by_count(view: View, place: Placement, jobs: Sequence[JobView]) -> Plan:
    """Select down the list by number of GPUs alone, stop the others, then place the newly selected.

    A selected job for which there is no place waits, and its GPUs stay idle: simple, and wasteful when
    placement is narrow. Several simulators do so. All GPUs count alike: it is for clusters of one type.
    """
    plan = view.draft()
    left = plan.room.free_gpus * WHOLE + sum(job.held for job in jobs if job.traits.preemptible)
    selected = []
    for job in jobs:
        runs = job.spots is not None
        if runs and not job.traits.preemptible:
            continue
        load = job.held if runs else job.shape.load
        if load <= left:
            left -= load
            if not runs:
                selected.append(job)
        elif runs:
            plan.stop(job)
        else:
            plan.deny(job, "Resources")
    for job in selected:
        spots = place.find(plan.room, job)
        if spots is None:
            plan.deny(job, "Resources", "its GPUs are free, but not on few enough nodes")
        else:
            plan.start(job, spots)
    return plan


SELECTIONS: dict[str, Selection] = {"fit": by_fit, "count": by_count}


def selected_by_count(order: Order) -> Callable[[View, Placement], Plan]:
    """`by_count` over the ranking of an order."""

    def serve(view: View, place: Placement = packed) -> Plan:
        return by_count(view, place, by_order(view, order))

    return serve
