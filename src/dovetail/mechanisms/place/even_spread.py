"""A job on the fewest nodes that hold it, with the same number of tasks on each.

Peng et al., "Optimus", EuroSys 2018, section 4.2: with u workers and p parameter servers on k nodes, u/k and
p/k on each, no node's network is busier than the others'.
"""

from __future__ import annotations

from collections.abc import Iterator

from dovetail.mechanisms.place.placement import Placement
from dovetail.model.grant import Spot, Spots
from dovetail.model.view import JobView, Room


def _even(room: Room, job: JobView) -> Spots | None:
    shape = job.shape
    if not shape.plain:
        return room.anywhere(shape)
    if not room.may_fit(shape) and room.free_gpus < shape.tasks:
        return None
    groups = list(_groups(room, job))
    for count in range(1, shape.tasks + 1):
        found = False
        for free, nodes in groups:
            if len(nodes) < count:
                continue
            found = True
            parts = [shape.tasks // count + (i < shape.tasks % count) for i in range(count)]
            if all(free[node] >= part for node, part in zip(nodes, parts, strict=False)):
                return _spots(room, job, nodes[:count], parts)
        if not found:
            break
    return room.anywhere(shape)


def _groups(room: Room, job: JobView) -> Iterator[tuple[dict[int, int], list[int]]]:
    """The nodes of each type that the job accepts, the emptiest first, and their free GPUs."""
    by_type = dict[str, dict[int, int]]()
    for number, node in enumerate(room.cluster.nodes):
        kind = node.type.name
        accepted = room.is_open(number) and (not job.shape.types or kind in job.shape.types)
        if accepted and (free := room.free_on(number).bit_count()) > 0:
            by_type.setdefault(kind, {})[number] = free
    for free_on in by_type.values():
        yield free_on, sorted(free_on, key=lambda node: (-free_on[node], node))


def _spots(room: Room, job: JobView, nodes: list[int], parts: list[int]) -> Spots | None:
    found: list[Spot] = []
    for node, part in zip(nodes, parts, strict=True):
        spots = room.on(job.shape.of(part), [node])
        if spots is None:
            return room.anywhere(job.shape)
        found += spots
    return tuple(sorted(found))


even = Placement(_even)
