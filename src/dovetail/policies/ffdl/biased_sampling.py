"""Placing a gang by biased sampling: draw whole placements, good ones more often, and keep the best.

A search over all placements of a gang takes too long, and one greedy placement is easily a bad one. So nodes
are drawn one after the other, with a probability that grows with how full the node would be (pack, do not
spread) and how near it is to the nodes already drawn. This is repeated, and the placement on the fewest nodes
and racks that leaves the fewest devices free beside it is taken. Either all tasks get a place or none does.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import Protocol

from dovetail.model.grant import Spots
from dovetail.model.job import Shape
from dovetail.model.view import Room

FAR = 0.25  # how likely a node in another rack is, against one in the racks drawn already


class Source(Protocol):
    """A source of random numbers from 0 to 1: `model.chance`."""

    def random(self) -> float: ...


def sampled_spots(room: Room, shape: Shape, source: Source, samples: int = 100) -> Spots | None:
    """The best of `samples` drawn placements; None if there is no room for all tasks.

    A gang with helpers is placed in one go, packed: helpers belong to the job, not to one of its nodes.
    """
    if shape.roles:
        return room.anywhere(shape)
    holds = _holds(room, shape)
    if not holds:
        return None
    first = list(
        accumulate(_weight(room, n, holds[n] * shape.each, holds[n] / shape.tasks, set()) for n in holds)
    )
    best: tuple[tuple[int, int, int], dict[int, int]] | None = None
    numbers = list(holds)
    for _ in range(samples):
        drawn = _draw(room, shape, holds, numbers[_pick(first, source)], source)
        if drawn is not None:
            cost = _cost(room, shape, drawn)
            if best is None or cost < best[0]:
                best = cost, drawn
    if best is None:
        return room.anywhere(shape)
    spots: Spots = ()
    for node, tasks in best[1].items():
        spots += room.on(shape.of(tasks), (node,)) or ()
    return spots


def _holds(room: Room, shape: Shape) -> dict[int, int]:
    """How many tasks each node can take now, on GPU types with room for all tasks."""
    by_type: dict[str, dict[int, int]] = {}
    for number, node in enumerate(room.cluster.nodes):
        name = node.type.name
        if (shape.types and name not in shape.types) or not room.is_open(number):
            continue
        if shape.partition and shape.partition not in node.partitions:
            continue
        if shape.plain:
            tasks = min(shape.tasks, room.free_on(number).bit_count())
        else:
            counts = range(shape.tasks, 0, -1)  # a device may hold several slices of one gang
            tasks = next((n for n in counts if room.on(shape.of(n), (number,)) is not None), 0)
        if tasks:
            by_type.setdefault(name, {})[number] = tasks
    return {
        node: tasks
        for members in by_type.values()
        if sum(members.values()) >= shape.tasks
        for node, tasks in members.items()
    }


def _draw(
    room: Room, shape: Shape, holds: dict[int, int], first: int, source: Source
) -> dict[int, int] | None:
    """One placement: node after node until all tasks have a place."""
    nodes = room.cluster.nodes
    drawn = {first: holds[first]}
    left = shape.tasks - holds[first]
    others = (
        [node for node in holds if node != first and nodes[node].type == nodes[first].type] if left else []
    )
    racks = {nodes[first].rack}
    while left:
        if not others:
            return None
        takes = [min(left, holds[n]) for n in others]
        weights = [
            _weight(room, n, tasks * shape.each, tasks / left, racks)
            for n, tasks in zip(others, takes, strict=True)
        ]
        node = others.pop(_pick(list(accumulate(weights)), source))
        drawn[node] = min(left, holds[node])
        left -= drawn[node]
        racks.add(nodes[node].rack)
    return drawn


def _pick(sums: list[float], source: Source) -> int:
    return min(bisect_right(sums, source.random() * sums[-1]), len(sums) - 1)


def _weight(room: Room, node: int, taken: int, part: float, racks: set[str]) -> float:
    """Packing times nearness: how full the node would be, and which fraction of the gang it would take."""
    machine = room.cluster.nodes[node]
    free = room.free_on(node).bit_count()
    full = 1.0 - max(0, free - taken) / machine.gpus if machine.gpus else 1.0
    near = 1.0 if not racks or machine.rack in racks else FAR
    return (0.01 + full * full) * part * part * near


def _cost(room: Room, shape: Shape, drawn: dict[int, int]) -> tuple[int, int, int]:
    """Nodes, racks, and devices left free beside the gang."""
    nodes = room.cluster.nodes
    stranded = sum(room.free_on(node).bit_count() - tasks * shape.each for node, tasks in drawn.items())
    return len(drawn), len({nodes[node].rack for node in drawn}), stranded
