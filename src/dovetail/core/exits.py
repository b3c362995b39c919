"""Running jobs by the order in which they leave, node by node.

One index for two questions. Preemption: whom must I stop so that this shape fits, taking those who yield
first? Backfill: when do enough devices fall free for it, taking those who end first? Both ask, for each node,
how far down an order one must go until `want` devices are free there, and then for the best of the nodes.
The answer for a node changes only when a job comes or goes on it, so it is kept in a heap for each size asked
for, and worked out again, when that size is asked for, for the nodes that were touched since.

Most jobs come and go while nobody asks. So the core only says who moved (`moved`), and their places are
looked up when a question comes; who came and went in between costs nothing.
"""

from __future__ import annotations

from bisect import bisect_left, insort
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


LONGEST_LOG = 100_000
LONGEST_WAIT = 10_000  # who moved is kept alive by that: so many are enough

Place = tuple[Key | None, Spots]  # a running job's key (None: it never leaves for others), and where it runs


class Relief:
    """Where a shape would fit if some jobs left; who they are is worked out when it is asked."""

    __slots__ = ("_exits", "key", "nodes")

    def __init__(self, exits: Exits, key: Key | None, nodes: tuple[tuple[int, int], ...]) -> None:
        self._exits = exits
        self.key = key  # None: nobody need leave
        self.nodes = nodes

    @property
    def jobs(self) -> tuple[ActiveJob, ...]:
        leaving = (job for node, want in self.nodes for job in self._exits.leavers(node, want))
        return tuple(dict.fromkeys(leaving))


class _Ladder:
    """For one number of devices wanted on a node: the nodes by how soon they could have them free.

    Those that have them free now are not on it: the room knows them.
    """

    __slots__ = ("heap", "now", "seen")

    def __init__(self) -> None:
        self.heap: list[tuple[Key, int]] = []
        self.now: dict[int, Key] = {}  # the valid key of each node
        self.seen = -1  # how much of the log it knows; -1: it must look at every node


class Exits:
    """Keeps who leaves when; asked with `relief`."""

    __slots__ = ("_at", "_freed", "_ladders", "_log", "_place", "_room", "moved")

    def __init__(self, room: Room, place: Callable[[ActiveJob], Place | None] | None = None) -> None:
        self._room = room
        self._place = place  # where a job stands now; None: it does not run
        self.moved: list[ActiveJob] = []  # who came, went or changed its place since the last question
        # (key, minus its number, devices, job), the first to leave first
        self._at: list[list[tuple[Key, int, int, ActiveJob]]] = [[] for _ in room.cluster.nodes]
        # For each node, device by device, the key up to which all must leave until so many are free; those
        # that are free already first, with None. No list: to be worked out.
        self._freed: list[list[Key | None] | None] = [None] * len(room.cluster.nodes)
        self._log: list[int] = []  # nodes in the order in which they were touched
        self._ladders: dict[int, dict[int, _Ladder]] = {}  # type -> devices wanted -> ladder

    def settle(self) -> None:
        """Look up where those who moved stand now."""
        moved, place = self.moved, self._place
        assert place is not None
        for job in moved:
            new, old = place(job), job.exit
            if new != old:
                if old is not None:
                    self._remove(job, old)
                if new is not None:
                    self.add(job, new[0])
                job.exit = new
        moved.clear()

    def add(self, job: ActiveJob, key: Key | None) -> None:
        """A job runs now; a key of None says that it never leaves for others."""
        spots: Spots = job.spots  # type: ignore[assignment]  # it runs
        if len(spots) == 1:
            node, devices, share, _, _ = spots[0]
            self._log.append(node)
            self._freed[node] = None
            if key is not None and devices and share == WHOLE:
                insort(self._at[node], (key, -job.seq, devices.bit_count(), job))
            return
        counts: dict[int, int] = {}
        for node, devices, share, _, _ in spots:
            self._log.append(node)
            self._freed[node] = None
            if key is not None and devices and share == WHOLE:  # a shared device is not free when one leaves
                counts[node] = counts.get(node, 0) + devices.bit_count()
        for node, count in counts.items():
            insort(self._at[node], (key, -job.seq, count, job))

    def _remove(self, job: ActiveJob, place: Place) -> None:
        """It does not run there any more."""
        key, spots = place
        for spot in spots:
            node = spot[0]
            self._log.append(node)
            self._freed[node] = None
            if key is not None:
                rows = self._at[node]
                i = bisect_left(rows, (key, -job.seq))
                if i < len(rows) and rows[i][3] is job:
                    del rows[i]

    def touch(self, node: int) -> None:
        """The node's capacity changed."""
        self._log.append(node)
        self._freed[node] = None

    def touched(self, spots: Spots) -> None:
        """Something else than a job took or gave these."""
        for spot in spots:
            self.touch(spot[0])

    def relief(self, shape: Shape, below: Key | None = None) -> Relief | None:
        """The nodes where this gang of whole GPUs would fit first; the key is that of the last to leave.

        With `below`, only if all who leave have smaller keys than that.
        """
        if self.moved:
            self.settle()
        best: Relief | None = None
        for kind in self._room.kinds(shape.types):
            cuts = self._room.cuts(kind, shape.tasks)
            if not cuts:
                continue
            found = self._on_one(kind, cuts[0], below) if len(cuts) == 1 else self._on_many(kind, cuts, below)
            if found is None:
                continue
            if found.key is None:
                return found
            if best is None or cast("Key", found.key) < best.key:
                best = found
        return best

    def free_by(self, node: int, key: Key | None) -> int:
        """Devices free on a node once all up to this key have left it; None: once nobody has."""
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

    def _on_one(self, kind: int, want: int, below: Key | None) -> Relief | None:
        free = self._room.having(kind, want)
        if free:
            return Relief(self, None, (((free & -free).bit_length() - 1, want),))
        top = self._top(self._refreshed(kind, want))
        if top is None or (below is not None and not top[0] < below):
            return None
        return Relief(self, top[0], ((top[1], want),))

    def _on_many(self, kind: int, cuts: Sequence[int], below: Key | None) -> Relief | None:
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
                    ladder = self._refreshed(kind, want)
                if free:
                    chosen[(free & -free).bit_length() - 1] = want
                    free &= free - 1
                    continue
                while (top := self._top(ladder)) is not None and top[1] in chosen:
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
        return Relief(self, last, tuple(chosen.items()))

    def leavers(self, node: int, want: int) -> tuple[ActiveJob, ...]:
        """Those who must leave a node; whoever turns out not to be needed stays."""
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

    def _top(self, ladder: _Ladder) -> tuple[Key, int] | None:
        heap, valid = ladder.heap, ladder.now
        while heap:
            key, node = heap[0]
            if node in valid and valid[node] == key:
                return heap[0]
            heappop(heap)
        return None

    def _refreshed(self, kind: int, want: int) -> _Ladder:
        """The ladder for so many devices, with the nodes looked at again that were touched since."""
        ladder = self._ladders.setdefault(kind, {}).get(want)
        if ladder is None:
            ladder = self._ladders[kind][want] = _Ladder()
        log = self._log
        if len(log) > LONGEST_LOG:
            log.clear()
            for ladders in self._ladders.values():
                for other in ladders.values():
                    other.seen = -1
        if ladder.seen != len(log):
            nodes: Iterable[int] = range(len(self._at)) if ladder.seen < 0 else set(log[ladder.seen :])
            ladder.seen = len(log)
            self._climb(ladder, kind, want, nodes)
        return ladder

    def _climb(self, ladder: _Ladder, kind: int, want: int, nodes: Iterable[int]) -> None:
        """How far down the order one must go on each of these nodes."""
        room, freed, known, heap = self._room, self._freed, ladder.now, ladder.heap
        mixed = not room.uniform
        for node in nodes:
            if mixed and room.kind_of(node) != kind:
                continue
            keys = freed[node]
            if keys is None:
                keys = freed[node] = self._laid_out(node)
            key = keys[want - 1] if want <= len(keys) else None
            if key is None:  # never, or now
                known.pop(node, None)
            elif known.get(node) != key:
                known[node] = key
                heappush(heap, (key, node))
        if len(heap) > 8 * len(known) + 64:
            ladder.heap = [(k, n) for n, k in known.items()]
            heapify(ladder.heap)

    def _laid_out(self, node: int) -> list[Key | None]:
        """The keys by which one device after the other falls free on a node; none if it takes no work."""
        if not self._room.is_open(node):
            return []
        keys: list[Key | None] = [None] * self._room.free_on(node).bit_count()
        for key, _, count, _ in self._at[node]:
            keys += (key,) * count
        return keys
