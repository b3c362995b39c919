"""Placing a job pod by pod, as Kubernetes does.

A pod scheduler does not know gangs: it finds a node for one task (a pod) at a time. The functions here say
where the next pods go, add pods to a grant or remove one, and find the pods to evict for a higher priority.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heapreplace
from typing import NamedTuple

from dovetail.mechanisms.place.gpu_types import of_type
from dovetail.mechanisms.place.placement import Placement
from dovetail.model.cluster import Cluster
from dovetail.model.grant import Spot, Spots
from dovetail.model.job import Shape
from dovetail.model.units import WHOLE
from dovetail.model.view import JobView, Room


def suits(cluster: Cluster, shape: Shape, node: int) -> bool:
    """Whether a node is of a type and in a partition that the shape accepts."""
    machine = cluster.nodes[node]
    return (not shape.each or not shape.types or machine.type.name in shape.types) and (
        not shape.partition or shape.partition in machine.partitions
    )


def by_type(cluster: Cluster, shape: Shape) -> Sequence[Shape]:
    """The shape on each GPU type that it accepts, in the order of the request; itself if it needs no GPU."""
    if not shape.each:
        return (shape,)
    names = shape.types or dict.fromkeys(kind.name for kind in cluster.types)
    return [of_type(shape, name) for name in names]


def tasks_free(room: Room, shape: Shape, node: int, most: int) -> int:
    """How many tasks of a shape a node can take now, up to `most`."""
    if not room.is_open(node) or not suits(room.cluster, shape, node):
        return 0
    if shape.slice or shape.milli < WHOLE:
        count = 0
        while count < most and room.on(shape.of(count + 1), [node]) is not None:
            count += 1
        return count
    if shape.each:
        most = min(most, room.free_on(node).bit_count() // shape.each)
    if shape.cpus:
        most = min(most, room.free_cpus(node) // shape.cpus)
    if shape.memory:
        most = min(most, room.free_memory(node) // shape.memory)
    return most


def pod_spots(room: Room, shape: Shape, tasks: int, *, emptiest: bool = True) -> Spots:
    """Spots for up to this many tasks, each on the node that is emptiest (or fullest) at that point.

    As many as fit, which may be none. Helpers, if the shape has any, come with the first task.
    """
    if shape.roles:
        return room.anywhere(shape.of(tasks)) or room.anywhere(shape.of(1)) or ()
    sign = -1 if emptiest else 1
    heads: list[tuple[float, float, int]] = []
    left: dict[int, int] = {}
    for node in range(len(room.cluster.nodes)):
        if fits := tasks_free(room, shape, node, tasks):
            left[node] = fits
            heads.append(_emptiness(room, shape, node, 0, sign))
    heapify(heads)
    counts: dict[int, int] = {}
    for _ in range(tasks):
        if not heads:
            break
        node = heads[0][2]
        counts[node] = counts.get(node, 0) + 1
        if counts[node] == left[node]:
            heappop(heads)
        else:
            heapreplace(heads, _emptiness(room, shape, node, counts[node], sign))
    spots: list[Spot] = []
    for node, count in sorted(counts.items()):
        spots += room.on(shape.of(count), [node]) or ()
    return tuple(spots)


def _emptiness(room: Room, shape: Shape, node: int, placed: int, sign: int) -> tuple[float, float, int]:
    machine = room.cluster.nodes[node]
    gpus = (room.free_on(node).bit_count() - placed * shape.each * shape.milli / WHOLE) / max(machine.gpus, 1)
    cpus = (room.free_cpus(node) - placed * shape.cpus) / max(machine.cpus, 1)
    return sign * gpus, sign * cpus, node


def _spread(room: Room, job: JobView) -> Spots | None:
    return _all_tasks(room, job.shape, emptiest=True)


def _stacked(room: Room, job: JobView) -> Spots | None:
    return _all_tasks(room, job.shape, emptiest=False)


def _all_tasks(room: Room, shape: Shape, *, emptiest: bool) -> Spots | None:
    """All tasks on one GPU type, the types tried in the order of the request."""
    if shape.roles:
        return room.anywhere(shape)
    for one_type in by_type(room.cluster, shape):
        spots = pod_spots(room, one_type, shape.tasks, emptiest=emptiest)
        if tasks_in(spots, shape) == shape.tasks:
            return spots
    return None


spread = Placement(_spread)  # task by task, each on the emptiest node
stacked = Placement(_stacked)  # task by task, each on the fullest node that can take it


def least_tasks(job: JobView) -> int:
    """The fewest tasks with which a job runs."""
    return min(job.traits.least or job.shape.tasks, job.shape.tasks)


def tasks_on(spot: Spot, shape: Shape) -> int:
    """How many of the shape's tasks a spot holds."""
    _, devices, _, cpus, memory = spot
    if shape.each:
        return devices.bit_count() // shape.each
    if shape.cpus:
        return cpus // shape.cpus
    return memory // shape.memory if shape.memory else 1


def tasks_in(spots: Spots, shape: Shape) -> int:
    """How many of the shape's tasks these spots hold; each slice is a spot of its own."""
    if shape.slice:
        return sum(1 for spot in spots if spot[1]) // max(shape.each, 1)
    return sum(tasks_on(spot, shape) for spot in spots)


def joined(spots: Spots, more: Spots) -> Spots:
    """Both together, one spot per node where devices are held in the same way."""
    result = list(spots)
    for spot in more:
        node, devices, share, cpus, memory = spot
        for i, (at, held, how, cores, bytes_) in enumerate(result):
            if at == node and how == share > 0 and devices and held and not held & devices:
                result[i] = (node, held | devices, share, cores + cpus, bytes_ + memory)
                break
        else:
            result.append(spot)
    return tuple(result)


def without_one(spots: Spots, shape: Shape, node: int) -> Spots:
    """The grant without one task on that node; () if nothing is left of it. Slices leave together."""
    if shape.slice:
        return ()
    result = list(spots)
    for i, (at, devices, share, cpus, memory) in enumerate(spots):
        if at != node or bool(devices) != bool(shape.each) or not tasks_on(spots[i], shape):
            continue
        left = devices
        for _ in range(shape.each):
            left ^= 1 << left.bit_length() - 1
        if tasks_on(spots[i], shape) > 1:
            result[i] = (at, left, share, cpus - shape.cpus, memory - shape.memory)
        else:
            del result[i]
        break
    return tuple(result) if any(tasks_on(spot, shape) for spot in result) else ()


class Eviction(NamedTuple):
    """Pods to evict from one node; evictions are compared by their first three fields, smallest first."""

    highest: int  # priority among the evicted pods
    size: int
    node: int
    pods: tuple[JobView, ...]  # the job of each evicted pod


def cheapest_eviction(room: Room, shape: Shape, priority: int, running: Iterable[JobView]) -> Eviction | None:
    """The node where one task would fit if its pods of the lowest priority were evicted.

    Only for tasks of whole GPUs or CPU: a task with a part of a GPU evicts no pod.
    """
    if shape.slice or shape.milli < WHOLE:
        return None
    lower = sorted(
        (
            job
            for job in running
            if job.priority < priority and job.traits.preemptible and not job.shape.slice and job.spots
        ),
        key=lambda job: (job.priority, -job.started_at, -job.seq),
    )
    pods: dict[int, list[JobView]] = {}
    for job in lower:
        for spot in job.spots or ():
            if spot[2] in (0, WHOLE):
                pods.setdefault(spot[0], []).extend([job] * tasks_on(spot, job.shape))
    found = [
        eviction
        for node, there in pods.items()
        if room.is_open(node)
        and suits(room.cluster, shape, node)
        and (eviction := _eviction(room, shape, node, there))
    ]
    return min(found, key=lambda e: e[:3], default=None)


def _eviction(room: Room, shape: Shape, node: int, there: Sequence[JobView]) -> Eviction | None:
    gpus = room.free_on(node).bit_count()
    cpus, memory = room.free_cpus(node), room.free_memory(node)
    leaving: list[JobView] = []
    for job in there:
        leaving.append(job)
        gpus += job.shape.each
        cpus += job.shape.cpus
        memory += job.shape.memory
        if gpus >= shape.each and cpus >= shape.cpus and memory >= shape.memory:
            return Eviction(max(j.priority for j in leaving), len(leaving), node, tuple(leaving))
    return None
