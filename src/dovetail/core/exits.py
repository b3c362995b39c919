"""Running jobs by the order in which they leave, node by node.

One index for two questions. Preemption: whom must I stop so that this shape fits, taking those who yield
first? Backfill: when do enough devices fall free for it, taking those who end first? Both ask, for each node,
how far down an order one must go until `want` devices are free there, and then for the best of the nodes.
The answer for a node changes only when a job comes or goes on it, so it is kept in a heap for each size asked
for, and worked out again, for all sizes at once, for the nodes that were touched since.

Most jobs come and go while nobody asks. So the core only says who moved (`moved`), and their places are
looked up when a question comes; who came and went in between costs nothing.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from types import MappingProxyType
from typing import TYPE_CHECKING, cast

from dovetail.model.grant import Spots
from dovetail.model.job import Shape
from dovetail.model.units import WHOLE
from dovetail.model.view import Key

if TYPE_CHECKING:
    from dovetail.core.active import ActiveJob
    from dovetail.core.room import Room


LONGEST_WAIT = 10_000  # who moved is kept alive by that: so many are enough

Place = tuple[Key | None, Spots | None]  # a running job's key, and where it runs


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

    __slots__ = ("asked", "heap", "now", "want")

    def __init__(self, want: int, nodes: int) -> None:
        self.want = want
        self.heap: list[tuple[Key, int]] = []
        self.now: list[Key | None] = [None] * nodes  # the valid key of each node; None: it is not on it
        self.asked = True


class Exits:
    """Keeps who leaves when; asked with `relief`."""

    __slots__ = ("_at", "_ladders", "_looked", "_place", "_room", "_running", "_touched", "moved")

    def __init__(
        self,
        room: Room,
        running: Mapping[str, ActiveJob] = MappingProxyType({}),
        place: Callable[[ActiveJob], Key | None] = lambda job: None,
    ) -> None:
        self._room = room
        self._running = running
        self._place = place  # the key of a running job; None: it never leaves for others
        self.moved: list[ActiveJob] = []  # who came, went or changed its place since the last question
        # (key, minus its number, devices, job), the first to leave first
        self._at: list[list[tuple[Key, int, int, ActiveJob]]] = [[] for _ in room.cluster.nodes]
        self._touched: set[int] = set()  # nodes that the ladders do not know yet
        self._looked = 0  # at so many, since ladders were last taken down
        self._ladders: list[dict[int, _Ladder]] = [{} for _ in room.cluster.types]  # by devices wanted

    def settle(self) -> None:
        """Look up where those who moved stand now."""
        moved, place, running = self.moved, self._place, self._running
        for job in moved:
            old = job.exit
            new = (place(job), job.spots) if running.get(job.id) is job else None
            if new != old:
                if old is not None:
                    self._remove(job, old)
                if new is not None:
                    self.add(job, new[0])
                job.exit = new
        moved.clear()

    def add(self, job: ActiveJob, key: Key | None) -> None:
        """A job runs now; a key of None says that it never leaves for others."""
        for node, count in _counts(job.spots):
            self._touched.add(node)
            if key is not None and count:
                insort(self._at[node], (key, -job.seq, count, job))

    def _remove(self, job: ActiveJob, place: Place) -> None:
        """It does not run there any more."""
        key, spots = place
        for node, count in _counts(spots):
            self._touched.add(node)
            if key is not None and count:
                self._at[node].remove((key, -job.seq, count, job))

    def touch(self, node: int) -> None:
        """The node's capacity changed."""
        self._touched.add(node)

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
            key, node = top = heap[0]
            if valid[node] == key:
                return top
            heappop(heap)
        return None

    def _refreshed(self, kind: int, want: int) -> _Ladder:
        """The ladder for so many devices, with the nodes looked at again that were touched since."""
        touched = self._touched
        if touched:
            self._looked += len(touched)
            if self._looked > 8 * len(self._at):
                self._take_down()
            for other, ladders in enumerate(self._ladders):
                if ladders:
                    self._climb(other, ladders.values(), touched)
            touched.clear()
        found = self._ladders[kind].get(want)
        if found is None:
            found = self._ladders[kind][want] = _Ladder(want, len(self._at))
            self._climb(kind, [found], range(len(self._at)))
        found.asked = True
        return found

    def _take_down(self) -> None:
        """Forget the ladders that nobody asked for in a long while: to begin anew costs less."""
        self._looked = 0
        for ladders in self._ladders:
            for ladder in tuple(ladders.values()):
                if not ladder.asked:
                    del ladders[ladder.want]
                ladder.asked = False

    def _climb(self, kind: int, ladders: Collection[_Ladder], nodes: Iterable[int]) -> None:
        """How far down the order one must go on each of these nodes, for each number of devices."""
        room, at = self._room, self._at
        mixed, free_on = not room.uniform, room.free_on
        rungs = [(ladder.want, ladder.now, ladder.heap) for ladder in ladders]
        most = max(ladder.want for ladder in ladders)
        for node in nodes:
            if mixed and room.kind_of(node) != kind:
                continue
            # Up to which key all must leave until 0, 1, 2... devices are free; None: they are, or never will.
            keys: list[Key | None] = [None] * (free_on(node).bit_count() + 1)
            if room.is_open(node):
                for key, _, count, _ in at[node]:
                    keys += (key,) * count
            if len(keys) <= most:
                keys += (None,) * (most + 1 - len(keys))
            for want, known, heap in rungs:
                key = keys[want]
                if known[node] != key:
                    known[node] = key
                    if key is not None:
                        heappush(heap, (key, node))
        for ladder in ladders:
            if len(ladder.heap) > 8 * len(at) + 64:
                ladder.heap = [(key, node) for node, key in enumerate(ladder.now) if key is not None]
                heapify(ladder.heap)


def _counts(spots: Spots | None) -> Iterable[tuple[int, int]]:
    """Whole devices on each node; a shared one is not free when one of its holders leaves."""
    assert spots is not None
    if len(spots) == 1:
        node, devices, share, _, _ = spots[0]
        return ((node, devices.bit_count() if share == WHOLE else 0),)
    counts: dict[int, int] = {}
    for node, devices, share, _, _ in spots:
        counts[node] = counts.get(node, 0) + (devices.bit_count() if share == WHOLE else 0)
    return counts.items()
