"""Waiting jobs: one heap for each shape and group of the policy's.

Whether a job fits depends on its shape alone, so a shape that is refused need not be asked again, and a pass
over the queue costs shapes and groups, not jobs. A policy that only ever asks for the first of all is served
from one heap; the others come into being when somebody asks for them. Entries are deleted lazily: one is
valid while `job.filed is entry`.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from typing import TYPE_CHECKING, Any, cast

from dovetail.core.room import FAR
from dovetail.model.job import Shape
from dovetail.model.view import JobView, Key

if TYPE_CHECKING:
    from dovetail.core.active import ActiveJob

Entry = tuple[Key, int, "ActiveJob"]
Heap = list[Entry]


class Queue:
    """The jobs that wait, ready to be asked for in order."""

    __slots__ = (
        "_first",
        "_flat",
        "_group",
        "_joined",
        "_key",
        "_lanes",
        "_least",
        "_next",
        "_one",
        "_ranks",
        "_stale",
        "need",
        "size",
    )

    def __init__(
        self, key: Callable[[JobView, int], Key], group: Callable[[JobView], Hashable] | None = None
    ) -> None:
        self._key = key
        self._group = group
        self._lanes: dict[Shape, dict[Hashable, Heap]] = {}
        self._flat: list[tuple[Shape, Hashable, Heap, int]] = []  # the same heaps in one row, with needs
        # The lanes once more, those that need least first.
        self._ranks: list[tuple[int, int, Shape, dict[Hashable, Heap]]] = []
        self._one: Heap | None = []  # all of them, until somebody asks for shapes
        self.size = 0
        self._stale = 0
        # Nobody who waits fits a room below this level (Room.level). It may be too low: whoever goes takes
        # along only what it alone needed, and `fitting` finds the true one.
        self.need = FAR
        self._least: Entry | None = None  # who needs least, while that is known, and
        self._next = FAR  # what the others need at least
        self._first: Entry | None = None  # the head of all, while it is known
        self._joined: list[list[Entry]] = []  # for each walk that goes on, who came since it last looked

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[ActiveJob]:
        for entry in self._one or ():
            if entry[2].filed is entry:
                yield entry[2]
        for lane in self._lanes.values():
            for heap in lane.values():
                for entry in heap:
                    if entry[2].filed is entry:
                        yield entry[2]

    def push(self, job: ActiveJob, now: int) -> None:
        job.filed = entry = (self._key(job, now), job.seq, job)
        self.size += 1
        need = job.need
        if need < self._next:
            if need < self.need:
                self._next, self.need, self._least = self.need, need, entry
            else:
                self._next = need
        for joined in self._joined:
            joined.append(entry)
        one = self._one
        if one is not None:
            heappush(one, entry)
            return
        first = self._first
        if first is not None and entry < first:
            self._first = entry
        self._file(entry)

    def _file(self, entry: Entry) -> None:
        job = entry[2]
        lane = self._lanes.get(job.shape)
        if lane is None:
            lane = self._lanes[job.shape] = {}
            insort(self._ranks, (job.need, job.seq, job.shape, lane))
        group = None if self._group is None else self._group(job)
        heap = lane.get(group)
        if heap is None:
            heap = lane[group] = []
            self._flat.append((job.shape, group, heap, job.need))
        heappush(heap, entry)

    def remove(self, job: ActiveJob) -> None:
        entry = job.filed
        job.filed = None
        if entry is self._first:
            self._first = None
        if entry is self._least:
            self.need = self._next
            self._least = None
        self.size = size = self.size - 1
        if not size:
            self.need = self._next = FAR
            if self._one is None:
                self._one, self._stale = [], 0  # back to one heap
                self._lanes, self._flat, self._ranks = {}, [], []
                return
        self._stale += 1
        if self._stale > 10_000 and self._stale > 4 * self.size:
            self._sweep()

    def head(self, skip: Collection[Shape] = ()) -> ActiveJob | None:
        """The first of all whose shape is not to be skipped."""
        if not self.size:
            return None
        one = self._one
        if one is not None:
            if not skip:
                while one[0][2].filed is not one[0]:
                    heappop(one)
                    self._stale -= 1
                return one[0][2]
            self._part()
        if not skip and self._first is not None:
            return self._first[2]
        best: Entry | None = None
        empty = 0
        for shape, _, heap, _ in self._flat:
            if skip and shape in skip:
                continue
            while heap:
                entry = heap[0]
                if entry[2].filed is entry:
                    if best is None or entry < best:
                        best = entry
                    break
                heappop(heap)
                self._stale -= 1
            else:
                empty += 1
        if empty > 16:
            self._tidy()
        if best is None:
            return None
        if not skip:
            self._first = best
        return best[2]

    def fitting(self, level: int, fits: Callable[[Shape], bool] | None) -> list[Shape]:
        """The shapes somebody waits for that need no more than this level, and fit."""
        if self._one is not None:
            self._part()
        found: list[Shape] = []
        least = FAR
        empty = 0
        for need, _, shape, lane in self._ranks:
            if need > level and least != FAR:
                break
            for heap in lane.values():
                while heap and heap[0][2].filed is not heap[0]:
                    heappop(heap)
                    self._stale -= 1
                if heap:
                    break
                empty += 1
            else:
                continue
            if least == FAR:
                least = need
            if need <= level and (fits is None or fits(shape)):
                found.append(shape)
        self.need = self._next = least
        self._least = None
        if empty > 16:
            self._tidy()
        return found

    def _part(self) -> None:
        """From one heap to one for each shape and group."""
        entries, self._one = self._one or [], None
        for entry in entries:
            if entry[2].filed is entry:
                self._file(entry)
        self._stale = 0

    def shapes(self) -> Sequence[Shape]:
        """The shapes that somebody waits for."""
        if self._one is not None:
            self._part()
        return tuple(shape for shape in tuple(self._lanes) if self.groups(shape))

    def groups(self, shape: Shape) -> Mapping[Hashable, Heap]:
        """A shape's heaps by group, each with a waiting job in front; other entries may be stale."""
        if self._one is not None:
            self._part()
        lane = self._lanes.get(shape)
        if lane is None:
            return {}
        whole = True
        for heap in lane.values():
            if not heap or heap[0][2].filed is not heap[0]:
                self._peel(heap)
                whole = whole and bool(heap)
        if whole:
            return lane
        self._tidy()
        return self._lanes.get(shape, {})

    def waiting(self, entry: tuple[Key, int, Any]) -> bool:
        """Whether an entry of a group's heap is valid."""
        return entry[2].filed is entry

    def walk(
        self,
        rank: Callable[[JobView], Key] | None = None,
        shapes: Collection[Shape] | None = None,
    ) -> Iterator[ActiveJob]:
        """Jobs in order, for starting: one that is not started shuts its shape's group.

        Who joins the queue meanwhile comes up in turn, or next if its turn is past. `rank` puts a few numbers
        that change before the many keys that do not; they are asked for again when a head comes up, so they
        may only grow while the walk goes on. `shapes` restricts the walk; with one of these two nobody joins.
        """
        if self._one is not None:
            self._part()
        lanes = self._lanes
        rows = (
            [row[2] for row in self._flat]
            if shapes is None
            else [heap for shape in shapes if shape in lanes for heap in lanes[shape].values()]
        )
        if len(rows) == 1 and shapes is not None:  # one behind the other: nothing to rank
            heap = rows[0]
            last = None
            while True:
                while heap and heap[0][2].filed is not heap[0]:
                    heappop(heap)
                    self._stale -= 1
                if not heap or heap[0][2] is last:
                    return
                last = heap[0][2]
                yield last
        heads: list[Entry] = []
        for heap in rows:
            while heap:
                entry = heap[0]
                if entry[2].filed is entry:
                    heads.append(entry)
                    break
                heappop(heap)
                self._stale -= 1
        if rank is not None:
            yield from self._by_rank(heads, rank)
            return
        heads.sort()
        joined: list[Entry] = []
        self._joined.append(joined)
        try:
            for place, entry in enumerate(heads, 1):  # it grows as one goes
                yield entry[2]
                if entry[2].filed is not entry and (behind := self._behind(entry[2])) is not None:
                    insort(heads, behind, place)
                if joined:
                    if shapes is None:
                        self._line_up(heads, place, joined)
                    joined.clear()
        finally:
            self._joined = [others for others in self._joined if others is not joined]

    def _line_up(self, heads: list[Entry], place: int, joined: list[Entry]) -> None:
        """Those who joined and are the first of their heaps take the place of who was, from here on."""
        if self._one is not None:
            self._part()
        for new in joined:
            lane = self._lane(new[2])
            heap = self._lanes.get(lane[0], {}).get(lane[1], [])
            self._peel(heap)
            if not heap or heap[0] is not new:
                continue
            same = (
                at for at, head in enumerate(heads) if head[2].filed is head and self._lane(head[2]) == lane
            )
            at = next(same, len(heads))
            if at >= place:  # else one of them was not started
                del heads[at : at + 1]
                insort(heads, new, place)

    def _by_rank(self, entries: list[Entry], rank: Callable[[JobView], Key]) -> Iterator[ActiveJob]:
        heads = [(rank(entry[2]), entry) for entry in entries]
        heapify(heads)
        while heads:
            before, entry = heads[0]
            job = entry[2]
            if (now := rank(job)) != before:
                heapreplace(heads, (now, entry))
                continue
            yield job
            behind = None if job.filed is entry else self._behind(job)
            if behind is None:
                heappop(heads)
            else:
                heapreplace(heads, (rank(behind[2]), behind))

    def _lane(self, job: ActiveJob) -> tuple[Shape, Hashable]:
        return job.shape, None if self._group is None else self._group(job)

    def _behind(self, job: ActiveJob) -> Entry | None:
        """Who is the first of its heap now that this one is not, if it is another."""
        shape, group = self._lane(job)
        heap = self._lanes.get(shape, {}).get(group, [])
        self._peel(heap)
        return heap[0] if heap and heap[0][2] is not job else None

    def picture(self) -> dict[str, tuple[Key, int]]:
        """Who waits and with which key, for comparing."""
        return {job.id: (cast("Entry", job.filed)[0], job.seq) for job in self}

    def _peel(self, heap: Heap) -> None:
        while heap and heap[0][2].filed is not heap[0]:
            heappop(heap)
            self._stale -= 1

    def _tidy(self) -> None:
        """Forget heaps that are empty."""
        for shape, group, heap, _ in self._flat:
            if not heap:
                lane = self._lanes[shape]
                del lane[group]
                if not lane:
                    del self._lanes[shape]
        self._flat = [row for row in self._flat if row[2]]
        self._ranks = [rank for rank in self._ranks if rank[3]]

    def _sweep(self) -> None:
        if self._one is not None:
            self._one = [entry for entry in self._one if entry[2].filed is entry]
            heapify(self._one)
        for _, _, heap, _ in self._flat:
            heap[:] = [entry for entry in heap if entry[2].filed is entry]
            heapify(heap)
        self._stale = 0
        self._tidy()
