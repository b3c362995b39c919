"""The first nodes by number that hold a gang, as many simulators place jobs.

Best fit (`place.packed`) keeps large holes whole; first fit does not look for the fullest node. The choice
moves mean completion times by a per cent or two, so results of others are compared with theirs.
"""

from __future__ import annotations

from collections.abc import Iterator

from dovetail.model.grant import Spots
from dovetail.model.view import JobView, Room


def first_fit(room: Room, job: JobView) -> Spots | None:
    """The first node that holds the gang; for a larger one whole empty nodes, then the first for the rest."""
    shape = job.shape
    if room.best(shape) is None:  # no packed place at all
        return None
    largest = max(node.gpus for node in room.cluster.nodes)
    if not shape.plain or shape.gpus <= largest:
        return _first(room, job, shape.gpus if shape.plain else 0)
    whole, rest = divmod(shape.gpus, largest)
    empty = _with(room, largest, shape.types)
    nodes = [node for node, _ in zip(empty, range(whole), strict=False)]
    if rest:
        nodes += [node for node in _with(room, rest, shape.types) if node not in nodes][:1]
    return room.on(shape, nodes)


def _first(room: Room, job: JobView, free: int) -> Spots | None:
    for node in _with(room, free, job.shape.types):
        if (spots := room.on(job.shape, [node])) is not None:
            return spots
    return room.best(job.shape)  # it needs several nodes for its CPU or memory


def _with(room: Room, free: int, types: tuple[str, ...]) -> Iterator[int]:
    """Nodes with so many devices free, by number."""
    return iter(sorted(room.nodes_with(free, types)))
