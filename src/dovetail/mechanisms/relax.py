"""Waiting for a good place, and being content with a worse one in time.

A gang is fastest on one node, then in one rack, then anywhere. A job that cannot have the best place it could
ever have is passed over for a while, so that others use what is free meanwhile; each time its patience for a
level runs out it settles for the next. Too little patience and it runs slowly for ever after, too much and it
waits for nothing: the delay itself is the trade-off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from dovetail.model.grant import Spots
from dovetail.model.job import Shape
from dovetail.model.units import WHOLE, spoken
from dovetail.model.view import JobView, Plan, Room, View

NODE, RACK, ANYWHERE = range(3)
NAMES = ("on one node", "in one rack", "anywhere")


class Localities:
    """Places for a gang by how close its devices are, in the room as it is when asked."""

    __slots__ = ("_best", "_racks", "_room")

    def __init__(self, room: Room) -> None:
        self._room = room
        members: dict[str, list[int]] = {}
        for number, node in enumerate(room.cluster.nodes):
            members.setdefault(node.rack, []).append(number)
        self._racks = list(members.values())
        self._best: dict[Shape, int] = {}

    def best(self, shape: Shape) -> int:
        """The closest this gang could ever be, were the cluster empty."""
        level = self._best.get(shape)
        if level is None:
            holds = [_tasks(shape, self._room, n) for n in range(len(self._room.cluster.nodes))]
            if max(holds) >= shape.tasks:
                level = NODE
            elif any(sum(holds[n] for n in rack) >= shape.tasks for rack in self._racks):
                level = RACK
            else:
                level = ANYWHERE
            self._best[shape] = level
        return level

    def place(self, shape: Shape, level: int) -> Spots | None:
        """The closest place that is free, if it is no worse than this."""
        room, best = self._room, self.best(shape)
        if best == NODE:
            spots = room.best(shape)
            if spots is not None or level == NODE:
                return spots
        if best <= RACK:
            spots = self._in_rack(shape)
            if spots is not None or level <= RACK:
                return spots
        return room.anywhere(shape)

    def _in_rack(self, shape: Shape) -> Spots | None:
        """Inside one rack, on few nodes if that can be, in the fullest rack that holds it."""
        room = self._room
        if len(self._racks) == 1:
            return room.anywhere(shape)
        everywhere = (1 << len(room.cluster.nodes)) - 1
        fullest = sorted(self._racks, key=lambda rack: (sum(room.free_on(n).bit_count() for n in rack), rack))
        for find in (room.best, room.anywhere):
            for rack in fullest:
                spots = find(shape, everywhere & ~sum(1 << n for n in rack))
                if spots is not None:
                    return spots
        return None


def _tasks(shape: Shape, room: Room, node: int) -> int:
    """How many of its tasks an empty node would hold."""
    machine = room.cluster.nodes[node]
    if shape.types and machine.type.name not in shape.types:
        return 0
    if shape.partition and shape.partition not in machine.partitions:
        return 0
    return machine.gpus * (WHOLE // shape.milli) // shape.each if shape.each else shape.tasks


@dataclass(frozen=True, slots=True)
class Patience:
    """How long jobs have been passed over for want of a good place; a value to be kept in `plan.memory`."""

    at: int = 0
    waits: tuple[tuple[str, int, bool], ...] = ()  # job, how long up to `at`, and whether it goes on


def settled(waited: int, best: int, delays: Sequence[int]) -> tuple[int, int | None]:
    """The level a job is content with after so much waiting, and how much more until the next.

    >>> settled(7, NODE, (6, 4)), settled(7, RACK, (6, 4)), settled(10, NODE, (6, 4))
    ((1, 3), (2, None), (2, None))
    """
    level = best
    for delay in delays[best:]:
        if waited < delay:
            return level, delay - waited
        waited -= delay
        level += 1
    return level, None


def patiently(
    view: View,
    plan: Plan,
    jobs: Iterable[JobView],
    patience: Patience,
    delays: Sequence[int],
    *,
    admits: Callable[[JobView], bool] = lambda job: True,
    make_room: Callable[[JobView, Callable[[], bool]], bool] = lambda job, fits: False,
    count_all: bool = False,
) -> Patience:
    """Start, of these jobs in this order, who gets a place that it is content with by now.

    Patience runs while a job is passed over though a worse place is free, or with `count_all` whenever it
    finds no place. `make_room` may take devices back for a job that finds none.
    """
    now, elapsed = view.now, view.now - patience.at
    localities = Localities(plan.room)
    before = {job: waited + (elapsed if goes_on else 0) for job, waited, goes_on in patience.waits}
    full: dict[Shape, int] = {}  # the worst level at which a shape found nothing: room only shrinks
    waits: list[tuple[str, int, bool]] = []
    for job in jobs:
        shape, waited = job.shape, before.get(job.id, 0)
        if not admits(job):
            if waited:
                waits.append((job.id, waited, False))
            continue
        level, more = settled(waited, localities.best(shape), delays)
        spots = localities.place(shape, level) if full.get(shape, -1) < level else None
        if spots is None and make_room(job, lambda: localities.place(shape, level) is not None):  # noqa: B023
            full.clear()
            spots = localities.place(shape, level)
        if spots is not None:
            plan.start(job, spots)
            continue
        full[shape] = max(level, full.get(shape, -1))
        worse = level < ANYWHERE and full[shape] < ANYWHERE and localities.place(shape, ANYWHERE) is not None
        if not worse:
            full[shape] = ANYWHERE
        goes_on = worse or count_all
        if goes_on or waited:
            waits.append((job.id, waited, goes_on))
        detail = f"waits for a place {NAMES[level]}"
        if goes_on and more is not None:
            detail += f", for {spoken(more)} at most"
            plan.review_at = now + more if plan.review_at is None else min(plan.review_at, now + more)
        plan.deny(job, "Resources", detail if worse else "")
    return Patience(now, tuple(waits))


@dataclass(slots=True)
class Delays:
    """Splits the time before each job's first start by its cause; call `watch` after every step of a run.

    Fair-share delay: its tenant would be over its quota. Fragmentation delay: it would not, and yet no place
    was good enough. (The two causes of Jeon et al., ATC 2019, section 3.1.)
    """

    quota: Mapping[str, float]  # milli-GPUs by tenant; who is not in it has no end
    fair_share: dict[str, int] = field(default_factory=dict)
    fragmentation: dict[str, int] = field(default_factory=dict)
    _at: int = 0
    _waiting: list[tuple[str, bool]] = field(default_factory=list)

    def watch(self, view: View) -> None:
        for job, over in self._waiting:
            causes = self.fair_share if over else self.fragmentation
            causes[job] = causes.get(job, 0) + view.now - self._at
        self._at = view.now
        self._waiting = [
            (job.id, view.used.get(job.tenant, 0) + job.shape.load > self.quota.get(job.tenant, float("inf")))
            for job in view.queue
            if job.first_start is None
        ]
