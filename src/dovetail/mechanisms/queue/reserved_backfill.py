"""Backfill around reservations: a later job may start if it delays no job that holds a reservation.

Conservative backfill gives every waiting job a reservation (Mu'alem and Feitelson 2001). Nodes are reserved,
not a number of GPUs: as many GPUs may be free at that time and yet not on one node. This costs a look at each
node for each job, and serves any order and any number of reservations; `easy_backfill` is quicker for one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import chain

from dovetail.mechanisms.order.keys import arrival, waiting_in_order
from dovetail.mechanisms.place.placement import Placement, packed
from dovetail.mechanisms.queue.discipline import Discipline
from dovetail.mechanisms.queue.future_capacity import FOREVER, FutureCapacity, Nodes
from dovetail.model.grant import Spots
from dovetail.model.job import Shape
from dovetail.model.view import JobView, Order, Plan, Reservation, Room, View

_NOT_AVAILABLE = ("ReqNodeNotAvail", "the nodes it needs are not available")


def conservative(order: Order = arrival, depth: int | None = None) -> Discipline:
    """Every waiting job (or the first `depth`) has a reservation, which only ever becomes earlier."""
    ranked = waiting_in_order(order, depth)

    def serve(view: View, place: Placement = packed) -> Plan:
        # A new job is reserved what the others leave: without another change they need not be asked again.
        jobs = ranked(view) if view.changed or depth is not None else view.arrived
        return backfilled(view, view.draft(), jobs, keep=True)

    return serve


def backfilled(
    view: View,
    plan: Plan,
    jobs: Iterable[JobView],
    *,
    reservations: int | None = None,
    window: int | None = None,
    keep: bool = False,
) -> Plan:
    """Start, of these jobs in this order, each job that delays no reserved job before it.

    The first `reservations` jobs that must wait (None: all of them) get a reservation each, unless it lies
    further ahead than `window`. With `keep` no job gets a later one than before, unless it cannot be kept.
    Without `keep`, reservations last until the next decision, so none is made once no job of the rest could
    start now: there is no job that it would keep out.
    """
    now, room = view.now, plan.room
    waiting = iter(jobs)
    if not (keep and view.calendar):  # no reservation to delay yet: every job that fits may start
        for job in waiting:
            spots = room.best(job.shape)
            if spots is None:
                waiting = chain((job,), waiting)
                break
            plan.start(job, spots)
        else:
            return _forget(view, plan, ())
    future = FutureCapacity(view, plan)
    promised = _kept(view, future) if keep else {}
    reserved = set(promised)
    refused: dict[Shape, int] = {}
    listed = list(waiting)
    startable = None if keep else _Startable(future, listed, now)
    first_seen = False  # the first job that asks for devices is told what it lacks
    for number, job in enumerate(listed):
        shape = job.shape
        if startable is not None and startable.none_from(number) and first_seen:
            _leave_waiting(plan, future, listed[number:])
            break
        if not shape.each:
            _start_without_devices(plan, job)
            continue
        first_seen = True
        time = max(1, needed(job, now))
        mine = promised.get(job.id)
        if mine is not None:
            future.give(mine.nodes, mine.start, mine.end or FOREVER)
            reserved.discard(job.id)
        may_wait = reservations is None or len(reserved) < reservations
        if not may_wait and time >= refused.get(
            shape, FOREVER
        ):  # free room only shrinks: do not search again
            plan.deny(job, "Priority")
            continue
        found = future.earliest(shape, time, FOREVER if may_wait else now)
        if found is not None and found[0] == now:
            spots = spots_on(room, shape, found[1])
            if spots is not None:
                if plan.start(job, spots):
                    future.take(found[1], now, now + time)
                continue  # a job of a tenant at its limit gets no reservation
        if not may_wait:
            refused[shape] = time
            plan.deny(job, "Priority", "starting it now would delay a job before it")
        elif found is None:
            plan.deny(job, *_NOT_AVAILABLE)
        else:
            plan.deny(job, "Priority" if reserved else "Resources")
            start, nodes = found
            if window is None or start <= now + window:
                future.take(nodes, start, start + time)
                plan.reserve(job, Reservation(start, start + time, nodes))
                reserved.add(job.id)
    return _forget(view, plan, reserved)


class _Startable:
    """Whether one of the listed jobs could still start now. Free room only shrinks, so a no is final."""

    __slots__ = ("_behind", "_future", "_listed", "_now", "_shapes")

    def __init__(self, future: FutureCapacity, listed: Sequence[JobView], now: int) -> None:
        self._future, self._listed, self._now = future, listed, now
        shapes = {job.shape for job in listed}
        shortest = {s: FOREVER for s in shapes if s.each and future.earliest(s, 1, now) is not None}
        self._behind: list[int] = []  # for each job from the last: the shortest job of its shape behind it
        for job in reversed(listed) if shortest else ():
            behind = shortest.get(job.shape, 0)
            self._behind.append(behind)
            if behind > 1:
                shortest[job.shape] = min(behind, max(1, needed(job, now)))
        self._shapes = {s for s, time in shortest.items() if future.earliest(s, time, now) is not None}

    def none_from(self, number: int) -> bool:
        """Whether no job from this one on could start. It is asked for each job in turn."""
        if number and (shape := self._listed[number - 1].shape) in self._shapes:
            behind = self._behind[-number]
            if behind == FOREVER or self._future.earliest(shape, behind, self._now) is None:
                self._shapes.remove(shape)
        return not self._shapes


def _start_without_devices(plan: Plan, job: JobView) -> None:
    """Start a job that asks for no devices, if there is room; nothing is reserved for it."""
    spots = plan.room.best(job.shape)
    if spots is None or not plan.start(job, spots):
        plan.deny(job, "Resources")


def _leave_waiting(plan: Plan, future: FutureCapacity, jobs: Iterable[JobView]) -> None:
    """Say why these jobs wait, of which none with devices can start now."""
    for job in jobs:
        if not job.shape.each:
            _start_without_devices(plan, job)
        elif future.ever(job.shape):
            plan.deny(job, "Priority")
        else:
            plan.deny(job, *_NOT_AVAILABLE)


def _kept(view: View, future: FutureCapacity) -> dict[str, Reservation]:
    """Earlier reservations that can be kept; their devices are taken from the future capacity."""
    promised: dict[str, Reservation] = {}
    for job_id, old in sorted(view.calendar.items(), key=lambda item: (item[1].start, item[0])):
        late = max(0, view.now - old.start)  # a job overran its estimate: the reservation moves
        kept = Reservation(old.start + late, (old.end or FOREVER) + late, old.nodes)
        if future.fits(kept):
            future.take(kept.nodes, kept.start, kept.end or FOREVER)
            promised[job_id] = kept
    return promised


def _forget(view: View, plan: Plan, reserved: Collection[str]) -> Plan:
    for job_id in view.calendar:
        if job_id not in reserved:
            plan.forget(job_id)
    return plan


def spots_on(room: Room, shape: Shape, nodes: Nodes) -> Spots | None:
    """Spots on these nodes with this many devices of each; None if CPU or memory is short there."""
    if shape.roles:
        others = (1 << len(room.cluster.nodes)) - 1
        for node, _ in nodes:
            others &= ~(1 << node)
        return room.best(shape, others)
    spots: Spots = ()
    for node, devices in nodes:
        here = room.on(shape.of(devices // shape.each), (node,))
        if here is None:
            return None
        spots += here
    return spots


def needed(job: JobView, now: int) -> int:
    """How long a waiting job will hold its devices by its estimate, time to restore a checkpoint included."""
    left = job.remaining_at(now)
    return left + job.traits.checkpoint.restore if job.epoch else left
