"""Running jobs in the order in which they leave their devices, node by node.

One index answers two questions. Preemption: which jobs must stop so that this shape fits, if jobs are
preempted in order? Backfill: when are enough devices free for it, if jobs end in order? Both ask for each
node how many jobs in that order must leave until `want` devices are free, and then for the best of the nodes.
The answer for a node changes only when a job starts or stops on it. So the answers are kept in a heap for
each size that was asked for. When a question comes, they are computed again for the nodes that were touched
since, for all sizes at once.

Most jobs start and end between two questions. So the core only lists the jobs that moved (`moved`), and their
places are looked up when a question comes. A job that started and ended in between costs nothing.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable, Sequence
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, cast

from dovetail.model.grant import Spots
from dovetail.model.job import Shape
from dovetail.model.units import WHOLE
from dovetail.model.view import Key

if TYPE_CHECKING:
    from dovetail.core.active import ActiveJob
    from dovetail.core.room import Room


Rungs = list[tuple[int, list[Key | None], list[tuple[Key, int]]]]  # want, valid keys and heap; sorted by want

MOST_MOVED = 10_000  # `moved` pins finished jobs; settle at this length

Row = tuple[Key, int, int, "ActiveJob"]  # the job's key, minus its submission number, devices, the job
Rows = tuple[tuple[int, Row | None], ...]  # of a job, by node; None where it frees nothing
Place = tuple[Key | None, Spots | None, Rows]  # a running job's key, where it runs, and its rows there


class Vacancy:
    """Where a shape would fit if some jobs left. The list of these jobs is computed on demand."""

    __slots__ = ("_departures", "key", "nodes")

    def __init__(self, departures: Departures, key: Key | None, nodes: tuple[tuple[int, int], ...]) -> None:
        self._departures = departures
        self.key = key  # of the last job to leave; None: no job needs to
        self.nodes = nodes

    @property
    def jobs(self) -> tuple[ActiveJob, ...]:
        leaving = (job for node, want in self.nodes for job in self._departures.leavers(node, want))
        return tuple(dict.fromkeys(leaving))


class _Ladder:
    """For one number of devices wanted on a node: the nodes by how soon they could have that many free.

    Nodes that have as many free now are not on the ladder: `Room` finds those.
    """

    __slots__ = ("asked", "heap", "valid", "want")

    def __init__(self, want: int, nodes: int) -> None:
        self.want = want
        self.heap: list[tuple[Key, int]] = []
        self.valid: list[Key | None] = [None] * nodes  # the valid key of each node; None: not on the ladder
        self.asked = True

    def top(self) -> tuple[Key, int] | None:
        """The soonest node; entries that are no longer valid are dropped on the way."""
        self.asked = True
        heap, valid = self.heap, self.valid
        while heap:
            key, node = top = heap[0]
            if valid[node] == key:
                return top
            heappop(heap)
        return None

    def tidy(self) -> None:
        """Keep only the valid entries."""
        self.heap[:] = [(key, node) for node, key in enumerate(self.valid) if key is not None]
        heapify(self.heap)


class Departures:
    """Running jobs in the order in which they leave. `vacancy` finds where a shape fits first."""

    __slots__ = (
        "_at",
        "_cuts",
        "_key_of",
        "_ladders",
        "_looked",
        "_room",
        "_rungs",
        "_touched",
        "moved",
    )

    def __init__(
        self,
        room: Room,
        key_of: Callable[[ActiveJob], Key | None] = lambda job: None,
    ) -> None:
        self._room = room
        self._key_of = key_of  # of a running job; None: it is never preempted
        self.moved: list[ActiveJob] = []  # started, stopped or changed since the last question
        self._at: list[list[Row]] = [[] for _ in room.cluster.nodes]  # the first to leave first
        self._touched: set[int] = set()  # nodes that the ladders do not know yet
        self._looked = 0  # how many nodes were looked at since ladders were last dropped
        self._ladders: list[dict[int, _Ladder]] = [{} for _ in room.cluster.types]  # by devices wanted
        self._rungs: list[Rungs] = [[] for _ in room.cluster.types]  # the same, sorted by devices wanted
        self._cuts: dict[Shape, list[tuple[int, Sequence[int]]]] = {}  # (type, how it is split over nodes)

    def settle(self) -> None:
        """Bring the index up to date for the jobs in `moved`."""
        key_of, at, touched = self._key_of, self._at, self._touched
        for job in self.moved:
            old = job.exit
            if job.start_number:
                key, spots = key_of(job), job.spots
                assert spots is not None
                if old is not None:
                    if old[1] is spots and old[0] == key:
                        continue
                    self._remove(old[2])
                if len(spots) == 1 and spots[0][2] == WHOLE and key is not None:  # `add`, inlined
                    node, devices, _, _, _ = spots[0]
                    row = (key, -job.seq, devices.bit_count(), job)
                    insort(at[node], row)
                    touched.add(node)
                    job.exit = (key, spots, ((node, row),))
                else:
                    job.exit = (key, spots, self.add(job, key))
            elif old is not None:
                self._remove(old[2])
                job.exit = None
        self.moved.clear()

    def add(self, job: ActiveJob, key: Key | None) -> Rows:
        """Add a job that runs now. A key of None says that it is never preempted."""
        rows: list[tuple[int, Row | None]] = []
        for node, count in _counts(job.spots):
            self._touched.add(node)
            row = None
            if key is not None and count:
                row = (key, -job.seq, count, job)
                insort(self._at[node], row)
            rows.append((node, row))
        return tuple(rows)

    def _remove(self, rows: Rows) -> None:
        """Remove the rows of a job that no longer runs there."""
        at, touched = self._at, self._touched
        for node, row in rows:
            touched.add(node)
            if row is not None:
                at[node].remove(row)

    def touch(self, node: int) -> None:
        """The node's capacity changed."""
        self._touched.add(node)

    def touched(self, spots: Spots) -> None:
        """Something other than a job took or released these."""
        for spot in spots:
            self.touch(spot[0])

    def vacancy(self, shape: Shape, below: Key | None = None) -> Vacancy | None:
        """The nodes where this gang of whole GPUs would fit first; the key is that of the last job to leave.

        With `below`, all jobs that leave must have smaller keys than that; None if this is not possible.
        """
        if self.moved:
            self.settle()
        if self._touched:
            self._refresh_touched()
        best: Vacancy | None = None
        for kind, cuts in self._cuts.get(shape) or self._dealt(shape):
            found = self._on_one(kind, cuts[0], below) if len(cuts) == 1 else self._on_many(kind, cuts, below)
            if found is None:
                continue
            if found.key is None:
                return found
            if best is None or cast("Key", found.key) < best.key:
                best = found
        return best

    def _dealt(self, shape: Shape) -> list[tuple[int, Sequence[int]]]:
        """The types that could hold the shape, and how it would be split over their nodes."""
        room = self._room
        dealt = ((kind, room.cuts(kind, shape.tasks)) for kind in room.kinds(shape.types))
        found = self._cuts[shape] = [(kind, cuts) for kind, cuts in dealt if cuts]
        return found

    def free_by(self, node: int, key: Key | None) -> int:
        """Devices free on a node once all jobs up to this key have left it; None: now."""
        if self.moved:
            self.settle()
        free = self._room.free_on(node).bit_count()
        if key is not None:
            for left, _, count, _ in self._at[node]:
                if left > key:
                    break
                free += count
        return free

    def picture(self) -> list[dict[int, tuple[Key, int]]]:
        if self.moved:
            self.settle()
        return [{-seq: (key, count) for key, seq, count, _ in rows} for rows in self._at]

    def _on_one(self, kind: int, want: int, below: Key | None) -> Vacancy | None:
        free = self._room.having(kind, want)
        if free:
            return Vacancy(self, None, (((free & -free).bit_length() - 1, want),))
        ladder = self._ladders[kind].get(want) or self._new_ladder(kind, want)
        top = ladder.top()
        if top is None or (below is not None and not top[0] < below):
            return None
        return Vacancy(self, top[0], ((top[1], want),))

    def _on_many(self, kind: int, cuts: Sequence[int], below: Key | None) -> Vacancy | None:
        taken: list[tuple[_Ladder, tuple[Key, int]]] = []
        chosen: dict[int, int] = {}
        last: Key | None = None
        free = want = 0
        try:
            for cut in cuts:
                if cut != want:
                    want = cut
                    free = self._room.having(kind, want)
                    for node in chosen:
                        free &= ~(1 << node)
                    ladder = self._ladders[kind].get(want) or self._new_ladder(kind, want)
                if free:
                    chosen[(free & -free).bit_length() - 1] = want
                    free &= free - 1
                    continue
                while (top := ladder.top()) is not None and top[1] in chosen:
                    taken.append((ladder, heappop(ladder.heap)))
                if top is None or (below is not None and not top[0] < below):
                    return None
                taken.append((ladder, heappop(ladder.heap)))
                chosen[top[1]] = want
                if last is None or last < top[0]:
                    last = top[0]
        finally:
            for ladder, entry in taken:
                heappush(ladder.heap, entry)
        return Vacancy(self, last, tuple(chosen.items()))

    def leavers(self, node: int, want: int) -> tuple[ActiveJob, ...]:
        """The jobs that must leave a node to free `want` devices: in order, without those that can stay."""
        if self.moved:
            self.settle()
        short = want - self._room.free_on(node).bit_count()
        leaving: list[tuple[int, ActiveJob]] = []
        for _, _, count, job in self._at[node]:
            if short <= 0:
                break
            leaving.append((count, job))
            short -= count
        spare = -short
        needed = []
        for count, job in reversed(leaving):
            if count <= spare:
                spare -= count
            else:
                needed.append(job)
        return tuple(reversed(needed))

    def _new_ladder(self, kind: int, want: int) -> _Ladder:
        """A ladder for `want` devices, as the nodes are now."""
        ladder = self._ladders[kind][want] = _Ladder(want, len(self._at))
        self._update(kind, [(want, ladder.valid, ladder.heap)], range(len(self._at)))
        self._sort_rungs()
        return ladder

    def _refresh_touched(self) -> None:
        """Bring the ladders up to date for the nodes that were touched."""
        touched = self._touched
        self._looked += len(touched)
        if self._looked > 8 * len(self._at):
            self._drop_unused_ladders()
        for kind, rungs in enumerate(self._rungs):
            if rungs:
                self._update(kind, rungs, touched)
        touched.clear()

    def _drop_unused_ladders(self) -> None:
        """Drop the ladders that were not asked for in a long while: building them again costs less."""
        self._looked = 0
        for ladders in self._ladders:
            for ladder in tuple(ladders.values()):
                if not ladder.asked:
                    del ladders[ladder.want]
                elif len(ladder.heap) > 8 * len(self._at) + 64:
                    ladder.tidy()
                ladder.asked = False
        self._sort_rungs()

    def _sort_rungs(self) -> None:
        self._rungs = [
            [(want, ladder.valid, ladder.heap) for want, ladder in sorted(ladders.items())]
            for ladders in self._ladders
        ]

    def _update(self, kind: int, rungs: Rungs, nodes: Iterable[int]) -> None:
        """For each of these nodes and each number of devices: the key of the last job that must leave."""
        room, at = self._room, self._at
        mixed, free_count = not room.uniform, room.free_count
        for node in nodes:
            if mixed and room.kind_of(node) != kind:
                continue
            have = free_count(node)
            rows = iter(at[node] if have >= 0 else ())
            key = None  # jobs up to this key must leave; None: none needs to, or it would not help
            for want, known, heap in rungs:
                if have < want:
                    for row in rows:
                        have += row[2]
                        if have >= want:
                            key = row[0]
                            break
                    else:
                        key = None
                if known[node] != key:
                    known[node] = key
                    if key is not None:
                        heappush(heap, (key, node))


def _counts(spots: Spots | None) -> Iterable[tuple[int, int]]:
    """The whole devices on each node. A shared device does not count: it is not free when one job leaves."""
    assert spots is not None
    if len(spots) == 1:
        node, devices, share, _, _ = spots[0]
        return ((node, devices.bit_count() if share == WHOLE else 0),)
    counts: dict[int, int] = {}
    for node, devices, share, _, _ in spots:
        counts[node] = counts.get(node, 0) + (devices.bit_count() if share == WHOLE else 0)
    return counts.items()
