"""Devices by GPU type: how many there are, which a job holds, and where a job fits on one type.

A *way to run* is a GPU type, or a GPU type with `SPLIT` behind it: on more nodes of that type than the job
needs.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from dovetail.model.cluster import Cluster
from dovetail.model.grant import Spots
from dovetail.model.job import Shape
from dovetail.model.units import WHOLE
from dovetail.model.view import JobView, Room

SPLIT = " split"  # "V100 split" is V100s on more nodes than the job needs


def type_of(way: str) -> str:
    """The GPU type of a way to run."""
    return way.removesuffix(SPLIT)


@lru_cache(maxsize=4096)
def of_types(shape: Shape, types: tuple[str, ...]) -> Shape:
    """The shape, restricted to these GPU types."""
    return shape if shape.types == types else replace(shape, types=types)


def of_type(shape: Shape, kind: str) -> Shape:
    """The shape, restricted to one GPU type."""
    return of_types(shape, (kind,))


def place_on(room: Room, shape: Shape, way: str) -> Spots | None:
    """Devices of one GPU type: packed if that is free, over any nodes if not."""
    return room.anywhere(of_type(shape, type_of(way)))


def load_by_type(cluster: Cluster, room: Room) -> dict[str, int]:
    """Milli-GPUs of each type on the open nodes."""
    found: dict[str, int] = {}
    is_open = room.is_open
    for number, node in enumerate(cluster.nodes):
        if node.gpus and is_open(number):
            found[node.type.name] = found.get(node.type.name, 0) + node.gpus * WHOLE
    return found


def held_type(cluster: Cluster, job: JobView) -> str:
    """The GPU type that a running job holds; the slowest if it holds several."""
    assert job.spots is not None
    if len(job.spots) == 1:
        return cluster.nodes[job.spots[0][0]].type.name
    types = [cluster.nodes[spot[0]].type for spot in job.spots if spot[1]]
    if types.count(types[0]) == len(types):
        return types[0].name
    return min(types, key=lambda kind: (kind.speed, kind.name)).name
