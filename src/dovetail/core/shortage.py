"""Which resource a waiting job is short of, and which jobs hold it.

A gang needs GPUs, CPUs and memory on the same nodes, and all its tasks on nodes of one GPU type. So each
resource is looked at by itself first, node by node. If none is short by itself, they are free, but apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dovetail.core.active import ActiveJob
from dovetail.core.core import Core
from dovetail.core.room import Room
from dovetail.model.cluster import MOST_DEVICES
from dovetail.model.grant import Spot
from dovetail.model.job import Shape
from dovetail.model.units import GIB, WHOLE

GPUS, CPUS, MEMORY = "gpus", "cpus", "memory"


class Shortage(NamedTuple):
    """A resource of which a job needs more than is free on the nodes that it could use."""

    resource: str
    each: int  # what a task needs: devices, milli-cores or bytes
    free: int  # on all these nodes
    most: int  # on one of them
    node: str  # that one


class Missing(NamedTuple):
    """What keeps a shape from fitting now."""

    shortages: tuple[Shortage, ...]
    apart: bool  # no resource is short by itself, but they are not free on the same nodes

    @property
    def resources(self) -> tuple[str, ...]:
        return tuple(shortage.resource for shortage in self.shortages)


def missing(room: Room, shape: Shape) -> Missing | None:
    """What is short for a shape; None if it fits packed, on as few nodes as it needs."""
    if room.best(shape) is not None:
        return None
    nodes = suiting(room, shape)
    parts = _parts(shape)
    short = [name for name, part in parts.items() if not _fits(room, part, nodes)]
    if not short and room.anywhere(shape) is not None:
        short = [GPUS] if shape.each else list(parts)  # on more nodes than the gang would need
    wanted = short or list(parts)
    return Missing(tuple(_shortage(room, shape, name, nodes) for name in wanted), not short)


def suiting(room: Room, shape: Shape) -> Sequence[int]:
    """The open nodes that a shape could use, by type and partition."""
    types = shape.types if shape.each else ()
    return [
        number
        for number, node in enumerate(room.cluster.nodes)
        if room.is_open(number)
        and (not types or node.type.name in types)
        and (not shape.partition or shape.partition in node.partitions)
    ]


def holders(core: Core, shape: Shape, resources: Sequence[str]) -> list[ActiveJob]:
    """The running jobs with these resources on nodes that the shape could use, the first to end first."""
    nodes = set(suiting(core.room, shape))
    found = [
        job
        for job in core.running.values()
        if any(spot[0] in nodes and held(spot, resources) for spot in job.spots or ())
    ]
    return sorted(found, key=lambda job: (job.ends_at(core.now), job.seq))


def held(spot: Spot, resources: Sequence[str]) -> bool:
    """Whether a spot holds one of these resources."""
    _, devices, _, cpus, memory = spot
    return bool(
        (devices and GPUS in resources) or (cpus and CPUS in resources) or (memory and MEMORY in resources)
    )


def _parts(shape: Shape) -> dict[str, Shape]:
    """The shape with one resource at a time."""
    found = {}
    if shape.each:
        found[GPUS] = Shape(shape.tasks, shape.each, shape.milli, shape.slice, shape.types)
    if shape.cpus:
        found[CPUS] = Shape(shape.tasks, 0, cpus=shape.cpus)
    if shape.memory:
        found[MEMORY] = Shape(shape.tasks, 0, memory=shape.memory)
    return found


def _fits(room: Room, part: Shape, nodes: Sequence[int]) -> bool:
    tasks: dict[int, int] = {}
    for node in nodes:
        kind = room.kind_of(node)
        tasks[kind] = tasks.get(kind, 0) + room.tasks_on(part, node)
    return max(tasks.values(), default=0) >= part.tasks


def _shortage(room: Room, shape: Shape, resource: str, nodes: Sequence[int]) -> Shortage:
    one = Shape(MOST_DEVICES, 1, shape.milli, shape.slice, shape.types) if shape.each else shape

    def free(node: int) -> int:
        if resource == GPUS:
            return room.tasks_on(one, node)
        return room.free_cpus(node) if resource == CPUS else room.free_memory(node)

    each = {GPUS: shape.each, CPUS: shape.cpus, MEMORY: shape.memory}[resource]
    amounts = {node: free(node) for node in nodes}
    best = max(amounts, key=lambda node: (amounts[node], -node), default=None)
    if best is None:
        return Shortage(resource, each, 0, 0, "")
    return Shortage(resource, each, sum(amounts.values()), amounts[best], room.cluster.nodes[best].name)


# -- in words


def sentence(shape: Shape, found: Missing) -> str:
    """What the job asks for and what is free, without the full stop."""
    asked = _wants(shape, found.resources)
    if found.apart:
        return f"It asks for {asked}; these are free, but not on the same node"
    parts = [_free(shape, shortage) for shortage in found.shortages]
    return f"It asks for {asked}; {' and '.join(parts)}"


def amount(resource: str, value: float) -> str:
    """`4 CPUs`, `1 GPU`, `64 GiB of memory`."""
    if resource == MEMORY:
        return f"{value / GIB:.4g} GiB of memory"
    number, word = (value, "GPU") if resource == GPUS else (value / 1_000, "CPU")
    return f"{number:g} {word}{'s' * (number != 1)}"


def _free(shape: Shape, short: Shortage) -> str:
    if short.resource == GPUS:
        there = "none is" if not short.free else f"{short.free} {'is' if short.free == 1 else 'are'}"
        if short.most < shape.each <= short.free or (shape.tasks > 1 and short.free >= shape.gpus):
            return f"{there} free, but no more than {short.most} on one node ({short.node})"
        return f"{there} free"
    if not short.node:
        return f"no node with {'CPUs' if short.resource == CPUS else 'memory'} is open to it"
    return f"{short.node} has the most free, {amount(short.resource, short.most)}"


def _wants(shape: Shape, resources: Sequence[str]) -> str:
    parts = []
    times = f"{shape.tasks} x " if shape.tasks > 1 else ""
    if GPUS in resources or not resources:
        parts.append(wanted_gpus(shape))
        times = ""
    if CPUS in resources:
        parts.append(times + amount(CPUS, shape.cpus))
    if MEMORY in resources:
        parts.append(times + amount(MEMORY, shape.memory))
    on_one = " on one node" if CPUS in resources or MEMORY in resources else ""
    return " and ".join(parts) + on_one


def wanted_gpus(shape: Shape) -> str:
    kind = f" of type {'|'.join(shape.types)}" if shape.types else ""
    number = f"{shape.tasks} x {shape.each}" if shape.tasks > 1 < shape.each else f"{shape.gpus}"
    many = "s" * (shape.gpus != 1)
    if shape.slice:
        return f"{number} slice{many} {shape.slice}{kind}"
    part = "" if shape.milli == WHOLE else f"{100 * shape.milli / WHOLE:g} % of "
    return f"{part}{number} GPU{many}{kind}"
