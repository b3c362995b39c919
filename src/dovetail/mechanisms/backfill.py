"""Letting later jobs pass without delaying who is first.

EASY (Lifka 1995): the first job that does not fit gets a reservation, on the nodes that fall free for it
first; a later job may start if it ends by then, or keeps off what is reserved. Nodes are reserved, not a
number of GPUs: a count can be there at the time and yet not on one node.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from dovetail.mechanisms.place import Place, packed
from dovetail.model.grant import Spots
from dovetail.model.job import Shape
from dovetail.model.view import JobView, Key, Plan, Reservation, View


def duration_class(job: JobView) -> int:
    """Two classes an octave: a whole class is either short enough or not, but for one at the boundary."""
    bits = job.estimate.bit_length()
    return 2 * bits + (job.estimate >> (bits - 2) & 1 if bits > 1 else 0)


def class_bounds(number: int) -> tuple[int, int]:
    """The estimates that a class holds: from, and up to but without.

    >>> [class_bounds(duration_class_of(n)) for n in (4, 6)]
    [(4, 6), (6, 8)]
    """
    bits, half = divmod(number, 2)
    low = 1 << bits - 1 if bits else 0
    step = low >> 1
    return (low + step, 2 * low) if half else (low, low + step if step else 2 * low)


def duration_class_of(estimate: int) -> int:
    """`duration_class` of a bare number."""
    bits = estimate.bit_length()
    return 2 * bits + (estimate >> (bits - 2) & 1 if bits > 1 else 0)


def easy(view: View, place: Place = packed) -> Plan:
    """Start in order; reserve for the first that does not fit; fill in behind it."""
    plan = view.draft()
    room, now = plan.room, view.now
    while (head := view.queue.head()) is not None:
        spots = place(room, head)
        if spots is None:
            break
        if not plan.start(head, spots):
            return plan
    if head is None:
        return plan
    plan.deny(head, "Resources")
    relief = view.exits.relief(head.shape)
    if relief is None:
        return plan
    shadow = max(relief.key[0] if relief.key else now, now)
    for other in view.calendar:
        if other != head.id:
            plan.forget(other)
    plan.reserve(head, Reservation(shadow, None, tuple(relief.nodes)))
    spare = {node: view.exits.free_by(node, relief.key) - want for node, want in relief.nodes}
    if not view.moved:
        candidates = [job for job in view.arrived if job is not head and job.spots is None]
        for job in candidates:
            _fill_in(view, plan, job, shadow - now, spare)
        return plan
    _scan(view, plan, head, shadow - now, spare)
    return plan


def _fill_in(view: View, plan: Plan, job: JobView, time: int, spare: dict[int, int]) -> bool:
    spots = place_behind(view, plan, job.shape, spare)
    if spots is None and job.remaining_at(view.now) <= time:
        spots = plan.room.best(job.shape)
    if spots is None:
        return plan.deny(job, "Priority", "starting it now would delay the first in the queue")
    if not plan.start(job, spots):
        return False
    if job.ends_at(view.now) > view.now + time:
        for node, devices, _, _, _ in spots:
            if node in spare:
                spare[node] -= devices.bit_count()
    return True


def place_behind(view: View, plan: Plan, shape: Shape, spare: dict[int, int]) -> Spots | None:
    """A place where a job may stay as long as it likes: off the reserved nodes, or in what they have to spare."""
    avoid = 0
    for node in spare:
        avoid |= 1 << node
    spots = plan.room.best(shape, avoid)
    if spots is None and shape.plain:
        for node, left in spare.items():
            if left >= shape.gpus and plan.room.free_on(node).bit_count() >= shape.gpus:
                return plan.room.on(shape, [node])
    return spots


def _scan(view: View, plan: Plan, head: JobView, time: int, spare: dict[int, int]) -> None:
    """Take, again and again, the first job that may start, until none may."""
    room, queue = plan.room, view.queue
    open_shapes = [shape for shape in queue.shapes() if room.best(shape) is not None]
    while open_shapes:
        first: tuple[Key, int, JobView] | None = None
        still_open = []
        for shape in open_shapes:
            if room.best(shape) is None:
                continue
            long_too = place_behind(view, plan, shape, spare) is not None
            entry = _first_of(queue.groups(shape), head, None if long_too else time)
            if entry is None:
                continue
            still_open.append(shape)
            if first is None or entry < first:
                first = entry
        if first is None or not _fill_in(view, plan, first[2], time, spare):
            return
        open_shapes = still_open


def _first_of(
    groups: Mapping[Hashable, Sequence[tuple[Key, int, JobView]]], head: JobView, within: int | None
) -> tuple[Key, int, JobView] | None:
    """The first waiting job of a shape that ends in time."""
    best: tuple[Key, int, JobView] | None = None
    for number, heap in groups.items():
        low, high = class_bounds(number) if isinstance(number, int) else (0, 1 << 62)
        if within is not None and low > within:
            continue
        if (within is None or high <= within + 1) and heap[0][2] is not head:
            entry = heap[0]
            if best is None or entry < best:
                best = entry
            continue
        for entry in heap:  # the class at the boundary
            job = entry[2]
            if (
                (best is None or entry < best)
                and job is not head
                and (within is None or job.estimate <= within)
                and getattr(job, "filed", None) is entry
            ):
                best = entry
    return best
