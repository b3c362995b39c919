"""When devices fall free: all that is known of the time to come, node by node.

Deviation: devices are counted. CPU, memory and parts of a device are checked when a job starts, not in what
is reserved for later; a device in part use counts as taken until its last job has left.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from dovetail.model.job import Shape
from dovetail.model.view import Plan, Reservation, View

Nodes = tuple[tuple[int, int], ...]  # (node, devices)
FOREVER = 1 << 62


class FutureCapacity:
    """For each node, how many devices are free from which time on, as far as is known. A scratch value."""

    __slots__ = ("_ever", "_now", "_pools", "_room", "_steps")

    def __init__(self, view: View, plan: Plan) -> None:
        self._now = now = view.now
        self._room = room = plan.room
        last: list[dict[int, int]] = [{} for _ in room.cluster.nodes]  # device -> when its last job ends
        for job in view.running.values():
            end = max(
                job.ends_at(now), now + 1
            )  # a job that overran its estimate still holds its devices now
            for node, devices, _, _, _ in job.spots or ():
                _note(last[node], devices, end)
        for spots, until in view.holds.values():
            for node, devices, _, _, _ in spots:
                _note(last[node], devices, max(until, now + 1))
        # For each node (from when, devices free), in time order.
        self._steps: list[list[tuple[int, int]]] = []
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
        self._ever: dict[Shape, bool] = {}

    def earliest(self, shape: Shape, time: int, by: int = FOREVER) -> tuple[int, Nodes] | None:
        """The first time from which a shape has devices for this long, and the nodes; None if after `by`."""
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

    def ever(self, shape: Shape) -> bool:
        """Whether a shape will have devices at some time."""
        known = self._ever.get(shape)
        if known is None:
            known = self._ever[shape] = self.earliest(shape, 1) is not None
        return known

    def fits(self, kept: Reservation) -> bool:
        """Whether the devices of a reservation will still be free then."""
        assert kept.end is not None
        return all(
            self._gap(node, want, kept.end - kept.start, kept.start, kept.start) is not None
            for node, want in kept.nodes
        )

    def take(self, nodes: Nodes, start: int, end: int) -> None:
        """A job will hold these devices from `start` to `end`."""
        for node, devices in nodes:
            self._change(node, start, end, -devices)

    def give(self, nodes: Nodes, start: int, end: int) -> None:
        """The reverse of `take`."""
        for node, devices in nodes:
            self._change(node, start, end, devices)

    def _pool(self, shape: Shape) -> list[tuple[list[int], list[int]]]:
        """The nodes that a shape may be on, one GPU type at a time, and the devices it takes on each."""
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
        """The first moment from `since` to `by` from which `want` devices of a node are free for `time`."""
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
            if by == self._now and self._steps[node][0][1] < want:
                continue
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
        """When a job could start on a node: (first moment, last moment, node)."""
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
    """Devices on each of the fewest nodes that hold this shape, most first; none if no nodes ever do."""
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
