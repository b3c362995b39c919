"""EASY backfill: only the first job that does not fit holds a reservation (Lifka 1995).

It is reserved the nodes that fall free for it first. A later job may start if it ends by then, or if it keeps
off the reserved devices. Conservative backfill (`reserved_backfill`) reserves for every waiting job.

The core's index of expected ends answers this at the cost of the waiting shapes, not jobs. For what the index
cannot say, such as a shape with parts of devices, `reserved_backfill.backfilled` takes over.
"""

from __future__ import annotations

from functools import lru_cache

from dovetail.mechanisms.order.keys import arrival, waiting_in_order
from dovetail.mechanisms.place.placement import Placement, packed
from dovetail.mechanisms.queue.discipline import Discipline
from dovetail.mechanisms.queue.reserved_backfill import backfilled, needed
from dovetail.model.grant import Spots
from dovetail.model.job import Shape
from dovetail.model.view import Entry, JobView, Order, Plan, Queue, Reservation, View


def easy(order: Order = arrival, depth: int | None = None) -> Discipline:
    """Start in order; reserve for the first job that does not fit; backfill behind it.

    With `depth` only the first `depth` waiting jobs are looked at.
    """
    ranked = waiting_in_order(order, depth)

    def serve(view: View, place: Placement = packed) -> Plan:
        plan = view.draft()
        if depth is not None:
            return backfilled(view, plan, ranked(view), reservations=1)
        room, now = plan.room, view.now
        if place.always_packs:
            plan.rest()
            plan.start_arrivals(past_waiting=False)
        while (head := view.queue.head()) is not None:
            spots = place.find(room, head)
            if spots is None:
                break
            if not plan.start(head, spots):  # its tenant is at a limit, which must not delay other tenants
                return backfilled(view, plan, ranked(view), reservations=1)
        if head is None:
            return plan
        vacancy = view.departures.vacancy(head.shape) if head.shape.plain else None
        if vacancy is None:  # not whole GPUs, or its nodes are not available
            return backfilled(view, plan, ranked(view), reservations=1)
        plan.deny(head, "Resources")
        shadow = now if vacancy.key is None else max(vacancy.key, now)
        promised = view.calendar.get(head.id)
        if promised is None or (promised.start, promised.nodes) != (shadow, vacancy.nodes):
            for other in view.calendar:
                plan.forget(other)
            plan.reserve(head, Reservation(shadow, None, tuple(vacancy.nodes)))
        spare = {node: view.departures.free_by(node, vacancy.key) - want for node, want in vacancy.nodes}
        # Jobs that an unchanged reservation kept out before are still kept out: only new jobs are tried.
        if not view.changed and head not in view.arrived:
            for job in view.arrived:
                if job.spots is None:
                    _fill_in(view, plan, job, shadow - now, spare)
            return plan
        if not _scan(view, plan, head, shadow - now, spare):
            return backfilled(view, plan, ranked(view), reservations=1)
        return plan

    return serve


def _fill_in(view: View, plan: Plan, job: JobView, time: int, spare: dict[int, int]) -> bool:
    """Start a job if it ends within this time, or keeps off the reserved devices."""
    spots = place_behind(view, plan, job.shape, spare)
    if spots is None and needed(job, view.now) <= time:
        spots = plan.room.best(job.shape)
    if spots is None:
        return plan.deny(job, "Priority", "starting it now would delay the first in the queue")
    return _put(view, plan, job, spots, time, spare)


def _put(view: View, plan: Plan, job: JobView, spots: Spots, time: int, spare: dict[int, int]) -> bool:
    """Start a job on these spots; if it runs for longer, it uses up spare devices of the reserved nodes."""
    if not plan.start(job, spots):
        return False
    for spot in spots:
        if spot[0] in spare and needed(job, view.now) > time:
            spare[spot[0]] -= spot[1].bit_count()
    return True


def place_behind(view: View, plan: Plan, shape: Shape, spare: dict[int, int]) -> Spots | None:
    """A place with no time limit: off the reserved nodes, or on their spare devices."""
    avoid = 0
    for node in spare:
        avoid |= 1 << node
    spots = plan.room.best(shape, avoid)
    if spots is None and shape.plain:
        for node, left in spare.items():
            if left < shape.gpus or plan.room.free_on(node).bit_count() < shape.gpus:
                continue
            if not shape.types or view.cluster.nodes[node].type.name in shape.types:
                return plan.room.on(shape, [node])
    return spots


def _scan(view: View, plan: Plan, head: JobView, time: int, spare: dict[int, int]) -> bool:
    """Start, again and again, the first job that may start, until none may; False if a start is refused."""
    room, queue = plan.room, view.queue
    waiting = queue.shapes() if view.startable is None else view.startable
    open_shapes = [shape for shape in waiting if room.may_fit(shape)]
    while open_shapes:
        first: Entry | None = None
        place: Spots = ()
        still_open = []
        for shape in open_shapes:
            anywhere = room.best(shape)
            if anywhere is None:
                continue
            behind = place_behind(view, plan, shape, spare)
            entry = _first_of(queue, shape, head, time if behind is None else None)
            if entry is None:
                continue
            still_open.append(shape)
            if first is None or entry < first:
                first, place = entry, anywhere if behind is None else behind
                short_only = behind is None
        if first is None:
            return True
        if short_only and needed(first[2], view.now) > time:  # restoring its checkpoint takes time too
            return plan.deny(first[2], "Priority", "starting it now would delay the first in the queue")
        if not _put(view, plan, first[2], place, time, spare):
            return False
        open_shapes = still_open
    return True


def _first_of(queue: Queue, shape: Shape, head: JobView, within: int | None) -> Entry | None:
    """The first waiting job of a shape that ends within this time."""
    best: Entry | None = None
    edge = -1 if within is None else class_of(within)
    for number, heap in queue.groups(shape).items():
        if within is not None and number.__class__ is int and number > edge:
            continue
        entry = heap[0]
        if best is not None and not entry < best:
            continue  # the jobs behind it come later still
        whole = within is None or (
            isinstance(number, int) and (number < edge or class_bounds(number)[1] <= within + 1)
        )
        if whole and entry[2] is not head:
            best = entry
            continue
        for entry in heap:  # the class at the boundary
            job = entry[2]
            if (
                (best is None or entry < best)
                and job is not head
                and (within is None or job.estimate <= within)
                and queue.waiting(entry)
            ):
                best = entry
    return best


def duration_class(job: JobView) -> int:
    """Two classes an octave: all jobs of a class are short enough or none, except in one class."""
    return class_of(job.estimate)


def class_of(estimate: int) -> int:
    """The number of a duration's class: the octave, and which half of it."""
    bits = estimate.bit_length()
    return 2 * bits + (estimate >> (bits - 2) & 1 if bits > 1 else 0)


@lru_cache(maxsize=256)
def class_bounds(number: int) -> tuple[int, int]:
    """The estimates that a class holds: the first, and the end, which is not included.

    >>> [class_bounds(class_of(n)) for n in (4, 6)]
    [(4, 6), (6, 8)]
    """
    bits, half = divmod(number, 2)
    low = 1 << bits - 1 if bits else 0
    step = low >> 1
    return (low + step, 2 * low) if half else (low, low + step if step else 2 * low)
