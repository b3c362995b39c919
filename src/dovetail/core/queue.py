"""Waiting jobs: one heap for each shape and each group of the policy.

Whether a job fits depends on its shape alone. So a shape that does not fit is tried once in a pass over the
queue, and a pass costs time by shapes and groups, not by jobs. A policy that only ever asks for the head of
the queue is served from a single heap; the queue is split by shape at the first question about shapes.
Entries are deleted lazily: an entry is valid while `job.filed is entry`.
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
FEW_STALE = 200  # entries of jobs that no longer wait; policies that look at all waiting jobs pass over them


class Queue:
    """The waiting jobs, in the policy's order."""

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
        self._lanes: dict[Shape, dict[Hashable, Heap]] = {}  # heaps by shape, then by group
        self._flat: list[tuple[Shape, Hashable, Heap, int]] = []  # the same heaps as a list, with needs
        # The lanes once more, sorted by need.
        self._ranks: list[tuple[int, int, Shape, dict[Hashable, Heap]]] = []
        self._one: Heap | None = []  # all entries, until the queue is split by shape
        self.size = 0
        self._stale = 0
        # No waiting job fits while Room.level is below this. The bound may be lower than necessary: a removal
        # raises it only if the job with the least need leaves. `fitting` makes it exact.
        self.need = FAR
        self._least: Entry | None = None  # the job with the least need, while that is known
        self._next = FAR  # a lower bound on the need of the other jobs
        self._first: Entry | None = None  # the head of the queue, while it is known
        self._joined: list[list[Entry]] = []  # for each walk under way: jobs that joined since its last step

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
        if self._joined:
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
        if self._stale > FEW_STALE and self._stale > 4 * self.size:
            self._sweep()

    def head(self, skip: Collection[Shape] = ()) -> ActiveJob | None:
        """The first waiting job, leaving out the shapes in `skip`."""
        if not self.size:
            return None
        one = self._one
        if one is not None:
            if not skip:
                while one[0][2].filed is not one[0]:
                    heappop(one)
                    self._stale -= 1
                return one[0][2]
            self._split()
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
        """The shapes of waiting jobs that need no more than this level, and fit."""
        if self._one is not None:
            self._split()
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

    def _split(self) -> None:
        """Split the single heap into one heap for each shape and group."""
        entries, self._one = self._one or [], None
        for entry in entries:
            if entry[2].filed is entry:
                self._file(entry)
        self._stale = 0

    def shapes(self) -> Sequence[Shape]:
        """The shapes of the waiting jobs."""
        if self._one is not None:
            self._split()
        whole = True
        for _, _, heap, _ in self._flat:
            if not heap or heap[0][2].filed is not heap[0]:
                self._drop_stale(heap)
                whole = whole and bool(heap)
        if not whole:
            self._tidy()
        return tuple(self._lanes)

    def groups(self, shape: Shape) -> Mapping[Hashable, Heap]:
        """The heaps of a shape by group. The first entry of each is valid; others may be stale."""
        if self._one is not None:
            self._split()
        lane = self._lanes.get(shape)
        if lane is None:
            return {}
        whole = True
        for heap in lane.values():
            if not heap or heap[0][2].filed is not heap[0]:
                self._drop_stale(heap)
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
        """Jobs in order, for starting. A job that is not started ends the walk over its shape and group.

        A job that joins the queue during the walk comes at its place in the order, or next if that place is
        past. `rank` sorts before the keys, by numbers that change during the walk. It is called again when a
        job comes to the front, so a job's rank may only grow. `shapes` restricts the walk. With `rank` or
        `shapes` the walk does not look for jobs that join.
        """
        if self._one is not None:
            self._split()
        lanes = self._lanes
        rows = (
            [row[2] for row in self._flat]
            if shapes is None
            else [heap for shape in shapes if shape in lanes for heap in lanes[shape].values()]
        )
        if len(rows) == 1 and shapes is not None:  # a single heap: no merging needed
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
            for place, entry in enumerate(heads, 1):  # the loop inserts into it
                yield entry[2]
                if entry[2].filed is not entry and (behind := self._behind(entry[2])) is not None:
                    insort(heads, behind, place)
                if joined:
                    if shapes is None:
                        self._insert_joined(heads, place, joined)
                    joined.clear()
        finally:
            self._joined = [others for others in self._joined if others is not joined]

    def _insert_joined(self, heads: list[Entry], place: int, joined: list[Entry]) -> None:
        """Replace heads still to come by jobs that joined and are now the first of the same heaps."""
        if self._one is not None:
            self._split()
        for new in joined:
            shape, group = self._lane(new[2])
            heap = self._lanes.get(shape, {}).get(group, [])
            self._drop_stale(heap)
            if not heap or heap[0] is not new:
                continue
            same = (
                at
                for at, head in enumerate(heads)
                if head[2].shape is shape and head[2].filed is head and self._lane(head[2])[1] == group
            )
            at = next(same, len(heads))
            if at >= place:  # else a job of this lane was not started, which ends the walk over it
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
        """The job that is now the first of this job's heap; None if there is none, or if it is this job."""
        lane = self._lanes.get(job.shape)
        heap = None if lane is None else lane.get(None if self._group is None else self._group(job))
        if not heap:
            return None
        self._drop_stale(heap)
        return heap[0] if heap and heap[0][2] is not job else None

    def picture(self) -> dict[str, tuple[Key, int]]:
        """The waiting jobs and their keys, for comparing."""
        return {job.id: (cast("Entry", job.filed)[0], job.seq) for job in self}

    def _drop_stale(self, heap: Heap) -> None:
        while heap and heap[0][2].filed is not heap[0]:
            heappop(heap)
            self._stale -= 1

    def _tidy(self) -> None:
        """Drop empty heaps."""
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
