"""Letting later jobs pass without delaying who is first.

EASY (Lifka 1995): the first job that does not fit gets a reservation, on the nodes that fall free for it
first; a later job may start if it ends by then, or keeps off what is reserved. Conservative (Mu'alem and
Feitelson 2001): every waiting job has a reservation, and nobody may start who would push one back. Nodes are
reserved, not a number of GPUs: a count can be there at the time and yet not on one node.

There are two ways to the same answer. `easy` asks the core's index of expected ends and costs shapes, not
jobs. `around` lays out all that is known of the time to come (`Outlook`), serves any order and any number of
reservations, and costs a look at each node for each job; `easy` turns to it for what the index cannot say.

Deviation: the outlook counts devices. CPU, memory and parts of a device are looked at when a job is to start,
not in what is promised for later; a device in part use counts as taken until the last has left it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import lru_cache
from heapq import nsmallest
from itertools import chain

from dovetail.mechanisms.discipline import Discipline
from dovetail.mechanisms.order import arrival
from dovetail.mechanisms.place import Place, packed
from dovetail.model.grant import Spots
from dovetail.model.job import Shape
from dovetail.model.view import Entry, JobView, Key, Order, Plan, Queue, Reservation, Room, View

Nodes = tuple[tuple[int, int], ...]  # (node, devices)
FOREVER = 1 << 62


def duration_class(job: JobView) -> int:
    """Two classes an octave: a whole class is either short enough or not, but for one at the boundary."""
    return class_of(job.estimate)


def class_of(estimate: int) -> int:
    """The number of a duration's class: the octave, and which half of it."""
    bits = estimate.bit_length()
    return 2 * bits + (estimate >> (bits - 2) & 1 if bits > 1 else 0)


@lru_cache(maxsize=256)
def class_bounds(number: int) -> tuple[int, int]:
    """The estimates that a class holds: from, and up to but without.

    >>> [class_bounds(class_of(n)) for n in (4, 6)]
    [(4, 6), (6, 8)]
    """
    bits, half = divmod(number, 2)
    low = 1 << bits - 1 if bits else 0
    step = low >> 1
    return (low + step, 2 * low) if half else (low, low + step if step else 2 * low)


def in_order(order: Order, depth: int | None = None) -> Callable[[View], Sequence[JobView]]:
    """The waiting jobs, first to last, or the first `depth` of them."""

    def ranked(view: View) -> Sequence[JobView]:
        def key(job: JobView) -> tuple[Key, int]:
            return (order.key(job, view.now), job.seq)

        return sorted(view.queue, key=key) if depth is None else nsmallest(depth, view.queue, key=key)

    return ranked


def easy(order: Order = arrival, depth: int | None = None) -> Discipline:
    """Start in order; reserve for the first that does not fit; fill in behind it.

    With `depth` only so many of the waiting jobs are looked at, the first of them included.
    """
    ranked = in_order(order, depth)

    def serve(view: View, place: Place = packed) -> Plan:
        plan = view.draft()
        if depth is not None:
            return around(view, plan, ranked(view), reservations=1)
        room, now = plan.room, view.now
        if place is packed:
            plan.rest()
            plan.welcome(past=False)
        while (head := view.queue.head()) is not None:
            spots = place(room, head)
            if spots is None:
                break
            if not plan.start(head, spots):  # its tenant is at a limit, which shall not hold up the others
                return around(view, plan, ranked(view), reservations=1)
        if head is None:
            return plan
        relief = view.exits.relief(head.shape) if head.shape.plain else None
        if relief is None:  # no whole GPUs, or its nodes are not there
            return around(view, plan, ranked(view), reservations=1)
        plan.deny(head, "Resources")
        shadow = now if relief.key is None else max(relief.key, now)
        promised = view.calendar.get(head.id)
        if promised is None or (promised.start, promised.nodes) != (shadow, relief.nodes):
            for other in view.calendar:
                plan.forget(other)
            plan.reserve(head, Reservation(shadow, None, tuple(relief.nodes)))
        spare = {node: view.exits.free_by(node, relief.key) - want for node, want in relief.nodes}
        # A reservation that stands lets nobody in whom it kept out before: only newcomers need be asked.
        if not view.moved and head not in view.arrived:
            for job in view.arrived:
                if job.spots is None:
                    _fill_in(view, plan, job, shadow - now, spare)
            return plan
        if not _scan(view, plan, head, shadow - now, spare):
            return around(view, plan, ranked(view), reservations=1)
        return plan

    return serve


def needed(job: JobView, now: int) -> int:
    """How long a waiting job is said to hold its devices; coming back takes its time too."""
    left = job.remaining_at(now)
    return left + job.traits.checkpoint.restore if job.epoch else left


def _fill_in(view: View, plan: Plan, job: JobView, time: int, spare: dict[int, int]) -> bool:
    """Start a job if it ends within this time, or stays off what is reserved."""
    spots = place_behind(view, plan, job.shape, spare)
    if spots is None and needed(job, view.now) <= time:
        spots = plan.room.best(job.shape)
    if spots is None:
        return plan.deny(job, "Priority", "starting it now would delay the first in the queue")
    return _put(view, plan, job, spots, time, spare)


def _put(view: View, plan: Plan, job: JobView, spots: Spots, time: int, spare: dict[int, int]) -> bool:
    """Start it there; if it stays for longer, it takes of what the reserved nodes have to spare."""
    if not plan.start(job, spots):
        return False
    for spot in spots:
        if spot[0] in spare and needed(job, view.now) > time:
            spare[spot[0]] -= spot[1].bit_count()
    return True


def place_behind(view: View, plan: Plan, shape: Shape, spare: dict[int, int]) -> Spots | None:
    """A place to stay as long as one likes: off the reserved nodes, or in what they have to spare."""
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
    """Take, again and again, the first job that may start, until none may; False if it was refused."""
    room, queue = plan.room, view.queue
    waiting = queue.shapes() if view.hopeful is None else view.hopeful
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
        if short_only and needed(first[2], view.now) > time:  # it has to be restored first
            return plan.deny(first[2], "Priority", "starting it now would delay the first in the queue")
        if not _put(view, plan, first[2], place, time, spare):
            return False
        open_shapes = still_open
    return True


def _first_of(queue: Queue, shape: Shape, head: JobView, within: int | None) -> Entry | None:
    """The first waiting job of a shape that ends in time."""
    best: Entry | None = None
    edge = -1 if within is None else class_of(within)
    for number, heap in queue.groups(shape).items():
        if within is not None and number.__class__ is int and number > edge:
            continue
        entry = heap[0]
        if best is not None and not entry < best:
            continue  # nor does anybody behind it come before
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


# -- the long way: all that is known of the time to come


class Outlook:
    """How many devices of each node are free from when on, as far as is known. A scratch value."""

    __slots__ = ("_now", "_pools", "_room", "_steps")

    def __init__(self, view: View, plan: Plan) -> None:
        self._now = now = view.now
        self._room = room = plan.room
        last: list[dict[int, int]] = [{} for _ in room.cluster.nodes]  # device -> when the last leaves it
        for job in view.running.values():
            end = max(job.ends_at(now), now + 1)  # who overran its time still holds its devices now
            for node, devices, _, _, _ in job.spots or ():
                _note(last[node], devices, end)
        for spots, until in view.holds.values():
            for node, devices, _, _, _ in spots:
                _note(last[node], devices, max(until, now + 1))
        self._steps: list[
            list[tuple[int, int]]
        ] = []  # for each node (from when, devices free), in time order
        for node, ends in enumerate(last):
            free = room.free_on(node).bit_count()
            steps = [(now, free)]
            if ends and room.is_open(node):
                for end in sorted(ends.values()):
                    free += 1
                    if steps[-1][0] == end:
                        steps[-1] = (end, free)
                    else:
                        steps.append((end, free))
            self._steps.append(steps)
        self._pools: dict[Shape, list[tuple[list[int], list[int]]]] = {}

    def earliest(self, shape: Shape, time: int, by: int = FOREVER) -> tuple[int, Nodes] | None:
        """The first moment from which a gang could stay for so long, and where; None if not `by` then."""
        best: tuple[int, Nodes] | None = None
        for pool, wants in self._pool(shape):
            limit = by if best is None else best[0] - 1
            found = (
                self._on_one(pool, wants[0], time, limit)
                if len(wants) == 1
                else self._on_many(pool, wants, time, limit)
            )
            if found is not None:
                best = found
        return best

    def fits(self, kept: Reservation) -> bool:
        """Whether what was promised is still to be had."""
        assert kept.end is not None
        return all(
            self._gap(node, want, kept.end - kept.start, kept.start, kept.start) is not None
            for node, want in kept.nodes
        )

    def take(self, nodes: Nodes, start: int, end: int) -> None:
        """Somebody is to hold these from one time to the other."""
        for node, devices in nodes:
            self._change(node, start, end, -devices)

    def give(self, nodes: Nodes, start: int, end: int) -> None:
        """It is not to be, after all."""
        for node, devices in nodes:
            self._change(node, start, end, devices)

    def _pool(self, shape: Shape) -> list[tuple[list[int], list[int]]]:
        """The nodes it may be on, one type at a time, and how it would be dealt over them."""
        known = self._pools.get(shape)
        if known is None:
            known = self._pools[shape] = []
            nodes = self._room.cluster.nodes
            for name in shape.types or tuple(kind.name for kind in self._room.cluster.types):
                pool = [
                    n
                    for n, node in enumerate(nodes)
                    if node.type.name == name and (not shape.partition or shape.partition in node.partitions)
                ]
                if wants := _cuts([nodes[n].gpus for n in pool], shape):
                    known.append((pool, wants))
        return known

    def _gap(self, node: int, want: int, time: int, since: int, by: int) -> int | None:
        """The first moment in a stretch of time from which so many devices stay free for so long."""
        begin = -1
        steps = self._steps[node]
        for i, (at, free) in enumerate(steps):
            if free < want:
                begin = -1
                if at > by:
                    return None
                continue
            end = steps[i + 1][0] if i + 1 < len(steps) else FOREVER
            if end <= since:
                continue
            if begin < 0:
                begin = max(at, since)
                if begin > by:
                    return None
            if end - begin >= time:
                return begin
        return None

    def _on_one(self, pool: list[int], want: int, time: int, by: int) -> tuple[int, Nodes] | None:
        best: tuple[int, int, int] | None = None
        for node in pool:
            start = self._gap(node, want, time, self._now, by)
            if start is None:
                continue
            by = start
            mine = (start, self._free_at(node, start), node)
            if best is None or mine < best:
                best = mine
        return None if best is None else (best[0], ((best[2], want),))

    def _on_many(self, pool: list[int], wants: list[int], time: int, by: int) -> tuple[int, Nodes] | None:
        windows = {want: self._windows(pool, want, time) for want in dict.fromkeys(wants)}
        most = windows[wants[0]]
        opened = sorted(start for start, _, _ in most)
        closed = sorted(end for _, end, _ in most)
        full = wants.count(wants[0])
        for start in sorted({start for found in windows.values() for start, _, _ in found}):
            if start > by:
                return None
            if bisect_right(opened, start) - bisect_left(closed, start) < full:
                continue
            chosen: dict[int, int] = {}
            for want in wants:
                able = (
                    (self._free_at(node, start), node)
                    for begin, end, node in windows[want]
                    if begin <= start <= end and node not in chosen
                )
                first = min(able, default=None)
                if first is None:
                    break
                chosen[first[1]] = want
            else:
                return start, tuple(chosen.items())
        return None

    def _windows(self, pool: list[int], want: int, time: int) -> list[tuple[int, int, int]]:
        """When one could start: (first moment, last moment, node)."""
        found = []
        for node in pool:
            steps, begin = self._steps[node], -1
            for at, free in steps:
                if free >= want:
                    begin = at if begin < 0 else begin
                elif begin >= 0:
                    if at - begin >= time:
                        found.append((begin, at - time, node))
                    begin = -1
            if begin >= 0:
                found.append((begin, FOREVER, node))
        return found

    def _free_at(self, node: int, time: int) -> int:
        steps = self._steps[node]
        return steps[bisect_right(steps, (time, FOREVER)) - 1][1]

    def _change(self, node: int, start: int, end: int, devices: int) -> None:
        steps = self._steps[node]
        for moment in (start, end):
            i = bisect_left(steps, (moment, -FOREVER))
            if i == len(steps) or steps[i][0] != moment:
                steps.insert(i, (moment, steps[i - 1][1]))
        for i in range(bisect_left(steps, (start, -FOREVER)), bisect_left(steps, (end, -FOREVER))):
            steps[i] = (steps[i][0], steps[i][1] + devices)


def _note(last: dict[int, int], devices: int, end: int) -> None:
    while devices:
        low = devices & -devices
        device = low.bit_length() - 1
        last[device] = max(last.get(device, 0), end)
        devices ^= low


def _cuts(sizes: list[int], shape: Shape) -> list[int]:
    """Devices on each of the fewest nodes that hold this gang, most first; none if they never do."""
    left = shape.tasks
    cuts: list[int] = []
    for size in sorted(sizes, reverse=True):
        here = min(size // shape.each, left)
        if not here:
            break
        cuts.append(here * shape.each)
        left -= here
        if not left:
            return cuts
    return []


def around(
    view: View,
    plan: Plan,
    jobs: Iterable[JobView],
    *,
    reservations: int | None = None,
    window: int | None = None,
    keep: bool = False,
) -> Plan:
    """Start, of these jobs in this order, who delays none of those before that must wait.

    The first `reservations` of those who must wait (all of them, for None) get one each, unless it lies
    further ahead than `window`. With `keep` nobody gets a later one than before, unless it cannot be kept.
    """
    now, room = view.now, plan.room
    waiting = iter(jobs)
    if not (keep and view.calendar):  # nobody to delay yet: whoever fits may start
        for job in waiting:
            spots = room.best(job.shape)
            if spots is None:
                waiting = chain((job,), waiting)
                break
            plan.start(job, spots)
        else:
            return _forget(view, plan, ())
    outlook = Outlook(view, plan)
    promised = _kept(view, outlook) if keep else {}
    reserved = set(promised)
    refused: dict[Shape, int] = {}
    for job in waiting:
        shape, time = job.shape, max(1, needed(job, now))
        if not shape.each:  # no devices, nothing to reserve
            spots = room.best(shape)
            if spots is None or not plan.start(job, spots):
                plan.deny(job, "Resources")
            continue
        mine = promised.get(job.id)
        if mine is not None:
            outlook.give(mine.nodes, mine.start, mine.end or FOREVER)
            reserved.discard(job.id)
        may_wait = reservations is None or len(reserved) < reservations
        if not may_wait and time >= refused.get(shape, FOREVER):  # room only shrinks: ask no more
            plan.deny(job, "Priority")
            continue
        found = outlook.earliest(shape, time, FOREVER if may_wait else now)
        if found is not None and found[0] == now:
            spots = spots_on(room, shape, found[1])
            if spots is not None:
                if plan.start(job, spots):
                    outlook.take(found[1], now, now + time)
                continue  # a tenant at its limit is promised nothing
        if not may_wait:
            refused[shape] = time
            plan.deny(job, "Priority", "starting it now would delay somebody before it")
        elif found is None:
            plan.deny(job, "ReqNodeNotAvail", "the nodes it needs are not there")
        else:
            plan.deny(job, "Priority" if reserved else "Resources")
            start, nodes = found
            if window is None or start <= now + window:
                outlook.take(nodes, start, start + time)
                plan.reserve(job, Reservation(start, start + time, nodes))
                reserved.add(job.id)
    return _forget(view, plan, reserved)


def _kept(view: View, outlook: Outlook) -> dict[str, Reservation]:
    """What was promised before and can still be had; taken from the outlook."""
    promised: dict[str, Reservation] = {}
    for job_id, old in sorted(view.calendar.items(), key=lambda item: (item[1].start, item[0])):
        late = max(0, view.now - old.start)  # somebody overran: all of it moves
        kept = Reservation(old.start + late, (old.end or FOREVER) + late, old.nodes)
        if outlook.fits(kept):
            outlook.take(kept.nodes, kept.start, kept.end or FOREVER)
            promised[job_id] = kept
    return promised


def _forget(view: View, plan: Plan, reserved: Collection[str]) -> Plan:
    for job_id in view.calendar:
        if job_id not in reserved:
            plan.forget(job_id)
    return plan


def spots_on(room: Room, shape: Shape, nodes: Nodes) -> Spots | None:
    """A gang on just these nodes and so many devices of each; None if CPU or memory is short there."""
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


def conservative(order: Order = arrival, depth: int | None = None) -> Discipline:
    """Every waiting job (or the first `depth`) has a reservation, which only ever moves forward."""
    ranked = in_order(order, depth)

    def serve(view: View, place: Place = packed) -> Plan:
        # Who came later is promised what the others leave: without a change they need not be asked again.
        jobs = ranked(view) if view.moved or depth is not None else view.arrived
        return around(view, view.draft(), jobs, keep=True)

    return serve
