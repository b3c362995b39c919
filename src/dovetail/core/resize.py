"""The spots of a running job with more or fewer tasks, near what it holds.

A job that shrinks keeps its devices where it has most of them, so that it ends on few nodes. A job that grows
keeps all that it holds, and takes first from its own nodes, then from their racks, then from any node of the
same type of GPU, as few as possible. Nothing is taken or given here: the answer is spots, or None.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from dovetail.core.room import Room
from dovetail.model.grant import Spot, Spots, lowest
from dovetail.model.job import Shape
from dovetail.model.units import WHOLE


def resized(room: Room, shape: Shape, held: Spots, tasks: int) -> Spots | None:
    """What the job would hold with this number of tasks; None if there is no room for more.

    Only a job of whole GPUs that shares none of them can be resized.
    """
    if not shape.each or any(share != WHOLE for _, devices, share, *_ in held if devices):
        return None
    nodes = _tasks_by_node(shape, held)
    more = tasks - sum(nodes.values())
    return _shrunk(shape, held, nodes, -more) if more <= 0 else _grown(room, shape, held, nodes, more)


def _tasks_by_node(shape: Shape, held: Spots) -> dict[int, int]:
    """Tasks on each node, in the order in which the nodes are held."""
    nodes: dict[int, int] = {}
    for node, devices, *_ in held:
        if devices:
            nodes[node] = nodes.get(node, 0) + devices.bit_count() // shape.each
    return nodes


def _shrunk(shape: Shape, held: Spots, nodes: dict[int, int], fewer: int) -> Spots:
    """Leave the nodes with the fewest tasks first."""
    for node in sorted(nodes, key=lambda node: (nodes[node], -node)):
        gone = min(nodes[node], fewer)
        nodes[node] -= gone
        fewer -= gone
    kept: list[Spot] = []
    for spot in held:
        node, devices, share, _, _ = spot
        if not devices:
            kept.append(spot)  # a helper
        elif tasks := min(nodes[node], devices.bit_count() // shape.each):
            nodes[node] -= tasks
            devices = lowest(devices, tasks * shape.each)
            kept.append((node, devices, share, tasks * shape.cpus, tasks * shape.memory))
    return tuple(kept)


def _grown(room: Room, shape: Shape, held: Spots, nodes: dict[int, int], more: int) -> Spots | None:
    """All that it holds, and as many tasks more."""
    added: list[Spot] = []
    for node in sorted(nodes, key=lambda node: -nodes[node]):
        here = _most_on(room, shape, node, more)
        added += here
        more -= sum(spot[1].bit_count() for spot in here) // shape.each
    if more:
        far = _elsewhere(room, shape, nodes, more)
        if far is None:
            return None
        added += far
    return _joined((*held, *added))


def _most_on(room: Room, shape: Shape, node: int, most: int) -> Spots:
    """Up to this number of tasks on one node."""
    for tasks in range(min(most, room.cluster.nodes[node].gpus // shape.each), 0, -1):
        found = room.on(_tasks_alone(shape, tasks, shape.types), (node,))
        if found is not None:
            return found
    return ()


def _elsewhere(room: Room, shape: Shape, nodes: dict[int, int], more: int) -> Spots | None:
    """Tasks on other nodes of the types that the job holds: near first, then on as few nodes as possible."""
    machines = room.cluster.nodes
    if not all(room.is_open(node) for node in nodes):
        return None  # it sits on a drained node: it may stay there, but not spread from there
    types = tuple(dict.fromkeys(machines[node].type.name for node in nodes))
    wanted = _tasks_alone(shape, more, types)
    own = sum(1 << node for node in nodes)
    racks = {machines[node].rack for node in nodes}
    far = sum(1 << node for node, machine in enumerate(machines) if machine.rack not in racks)
    near = room.best(wanted, own | far) if far else None
    return near or room.best(wanted, own) or room.anywhere(wanted, own)


@lru_cache(maxsize=4096)
def _tasks_alone(shape: Shape, tasks: int, types: tuple[str, ...]) -> Shape:
    """This number of tasks on these types, without the helpers that the job has already."""
    return replace(shape, tasks=tasks, types=types, roles=())


def _joined(spots: Spots) -> Spots:
    """One spot for the devices on each node; helpers stay apart."""
    found: dict[tuple[int, int], Spot] = {}
    for number, (node, devices, share, cpus, memory) in enumerate(spots):
        key = (node, -1) if devices else (node, number)
        _, before, _, more_cpus, more_memory = found.get(key, (node, 0, share, 0, 0))
        found[key] = (node, before | devices, share, cpus + more_cpus, memory + more_memory)
    return tuple(found.values())
