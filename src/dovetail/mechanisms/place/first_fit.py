"""First fit: the nodes with the lowest numbers that hold a job, as many simulators place jobs.

Best fit (`placement.packed`) takes the fullest node that still holds the job, which keeps large holes whole;
first fit does not look for it. The choice changes mean completion times by one or two per cent, so a
comparison with results of another simulator has to place jobs as that simulator does.
"""

from __future__ import annotations

from collections.abc import Iterator

from dovetail.mechanisms.place.placement import Placement
from dovetail.model.grant import Spots
from dovetail.model.view import JobView, Room


def _first_fit(room: Room, job: JobView) -> Spots | None:
    """The first node that holds the job; a larger job gets whole empty nodes, then the first for the rest."""
    shape = job.shape
    if room.best(shape) is None:  # no packed place at all
        return None
    largest = max(node.gpus for node in room.cluster.nodes)
    if not shape.plain or shape.gpus <= largest:
        return _on_one_node(room, job, shape.gpus if shape.plain else 0)
    whole, rest = divmod(shape.gpus, largest)
    empty = _nodes_with(room, largest, shape.types)
    nodes = [node for node, _ in zip(empty, range(whole), strict=False)]
    if rest:
        nodes += [node for node in _nodes_with(room, rest, shape.types) if node not in nodes][:1]
    return room.on(shape, nodes)


def _on_one_node(room: Room, job: JobView, free: int) -> Spots | None:
    for node in _nodes_with(room, free, job.shape.types):
        if (spots := room.on(job.shape, [node])) is not None:
            return spots
    return room.best(job.shape)  # its CPU or memory needs several nodes


def _nodes_with(room: Room, free: int, types: tuple[str, ...]) -> Iterator[int]:
    """Nodes with this many devices free, by number."""
    return iter(sorted(room.nodes_with(free, types)))


first_fit = Placement(_first_fit)
