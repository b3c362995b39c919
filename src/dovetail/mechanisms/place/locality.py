"""Locality: a job waits for a good place, and accepts a worse one after a delay.

A job is fastest on one node, then in one rack, then anywhere. If the best level of a job is not free, the job
is skipped for a while, so that other jobs use the free devices meanwhile. After the delay of a level it
accepts the next level. With too short a delay it runs slowly until its end; with too long a delay it waits
for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from dovetail.mechanisms.queue.reviews import review_by
from dovetail.model.grant import Spots
from dovetail.model.job import Shape
from dovetail.model.units import WHOLE, spoken
from dovetail.model.view import JobView, Plan, Room, View

NODE, RACK, ANYWHERE = range(3)
NAMES = ("on one node", "in one rack", "anywhere")


class Localities:
    """Places for a job by how close its devices are, in the room as it is at the call."""

    __slots__ = ("_best", "_racks", "_room")

    def __init__(self, room: Room) -> None:
        self._room = room
        members: dict[str, list[int]] = {}
        for number, node in enumerate(room.cluster.nodes):
            members.setdefault(node.rack, []).append(number)
        self._racks = list(members.values())
        self._best: dict[Shape, int] = {}

    def best(self, shape: Shape) -> int:
        """The best level of locality that a shape could have in an empty cluster."""
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
        """The best free place, if its level of locality is no worse than `level`."""
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
        """A place inside one rack, on few nodes if possible, in the fullest rack that holds the job."""
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
    """How many tasks of a shape an empty node would hold."""
    machine = room.cluster.nodes[node]
    if shape.types and machine.type.name not in shape.types:
        return 0
    if shape.partition and shape.partition not in machine.partitions:
        return 0
    return machine.gpus * (WHOLE // shape.milli) // shape.each if shape.each else shape.tasks


@dataclass(frozen=True, slots=True)
class LocalityWaits:
    """How long jobs have been skipped for lack of a good place; a value, kept in `plan.memory`."""

    at: int = 0
    waits: tuple[tuple[str, int, bool], ...] = ()  # job, how long up to `at`, and whether it goes on


def accepted_level(waited: int, best: int, delays: Sequence[int]) -> tuple[int, int | None]:
    """The level that a job accepts after waiting this long, and how much longer until the next level.

    >>> accepted_level(7, NODE, (6, 4)), accepted_level(7, RACK, (6, 4)), accepted_level(10, NODE, (6, 4))
    ((1, 3), (2, None), (2, None))
    """
    level = best
    for delay in delays[best:]:
        if waited < delay:
            return level, delay - waited
        waited -= delay
        level += 1
    return level, None


def start_with_locality(
    view: View,
    plan: Plan,
    jobs: Iterable[JobView],
    before: LocalityWaits,
    delays: Sequence[int],
    *,
    admits: Callable[[JobView], bool] = lambda job: True,
    make_room: Callable[[JobView, Callable[[], bool]], bool] = lambda job, fits: False,
    count_all: bool = False,
) -> LocalityWaits:
    """Start, of these jobs in this order, each that gets a place of a level that it accepts by now.

    The wait of a job counts while it is skipped though a worse place is free, or with `count_all` whenever it
    finds no place. `make_room` may preempt running jobs for a job that finds none.
    """
    now, elapsed = view.now, view.now - before.at
    localities = Localities(plan.room)
    waited_before = {job: waited + (elapsed if goes_on else 0) for job, waited, goes_on in before.waits}
    full: dict[Shape, int] = {}  # the worst level at which a shape found no place: free room only shrinks
    waits: list[tuple[str, int, bool]] = []
    for job in jobs:
        shape, waited = job.shape, waited_before.get(job.id, 0)
        if not admits(job):
            if waited:
                waits.append((job.id, waited, False))
            continue
        level, more = accepted_level(waited, localities.best(shape), delays)
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
            review_by(plan, now + more)
        plan.deny(job, "Resources", detail if worse else "")
    return LocalityWaits(now, tuple(waits))
