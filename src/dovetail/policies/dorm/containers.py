"""The containers of applications: fair numbers of them, and spots with more or fewer.

A container is one task of a job, with its devices, CPU and memory. Equal servers are one group: which of them
holds a container is decided when it is placed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from dovetail.model.cluster import Cluster
from dovetail.model.grant import Spot, Spots
from dovetail.model.job import Shape
from dovetail.model.units import BOUNDLESS, WHOLE
from dovetail.model.view import JobView, Room
from dovetail.solve.portable import times

Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]
Server = tuple[
    str, frozenset[str], int, int, int
]  # type, partitions, devices, milli-cores, bytes; -1: no bound


def dominant_shares(part: Matrix, most: Vector) -> Vector:
    """The dominant share of each application under dominant resource fairness, with divisible containers.

    `part[i, r]` is the fraction of resource r that one container takes; `most` is the largest number of
    containers. All shares grow at the same speed; one stops at its most, or when a resource is used up.

    >>> dominant_shares(np.array([[1 / 9, 4 / 18], [3 / 9, 1 / 18]]), np.full(2, 99.0)).round(3).tolist()
    [0.667, 0.667]
    """
    dominant = part.max(axis=1, initial=0.0)
    share = np.zeros(len(part))
    grows = dominant > 0
    takes = np.divide(
        part, dominant[:, None], out=np.zeros_like(part), where=grows[:, None]
    )  # for all of its share
    while grows.any():
        left = 1.0 - times(takes[~grows].T, share[~grows])
        pull = takes[grows].sum(axis=0)
        ends = np.divide(left, pull, out=np.full(len(pull), np.inf), where=pull > 1e-12)
        level = max(0.0, min(float((most * dominant)[grows].min()), float(ends.min(initial=np.inf))))
        share[grows] = level
        gone = ends <= level * (1 + 1e-9) + 1e-12
        stops = (most * dominant <= level * (1 + 1e-9)) | (takes[:, gone] > 1e-12).any(axis=1)
        grows &= ~stops
    return share


def bounds(job: JobView) -> tuple[int, int]:
    """The least and the most containers with which a job runs."""
    tasks, traits = job.shape.tasks, job.traits
    return (tasks if traits.least is None else traits.least), max(tasks, traits.most or 0)


def held_on(spots: Spots | None, shape: Shape) -> dict[int, int]:
    """Containers by node."""
    found: dict[int, int] = {}
    for node, devices, *_ in spots or ():
        found[node] = found.get(node, 0) + devices.bit_count() // shape.each
    return found


def fewer(spots: Spots, shape: Shape, nodes: Iterable[int], count: int) -> Spots:
    """The spots without `count` containers on these nodes; nodes with the fewest lose theirs first."""
    holds = held_on(spots, shape)
    drop: dict[int, int] = {}
    for node in sorted(nodes, key=lambda node: (holds.get(node, 0), node)):
        drop[node] = min(count, holds.get(node, 0))
        count -= drop[node]
    left: list[Spot] = []
    for node, devices, share, cpus, memory in spots:
        gone = drop.get(node, 0)
        kept = devices
        for _ in range(gone * shape.each):
            kept ^= 1 << (kept.bit_length() - 1)
        if kept:
            left.append((node, kept, share, cpus - gone * shape.cpus, memory - gone * shape.memory))
    return tuple(left)


def more(room: Room, spots: Spots, shape: Shape, nodes: Sequence[int], count: int) -> tuple[Spots, int]:
    """The spots with up to `count` more containers on these nodes, and how many these are.

    Nodes that hold some already come first, then nodes with the fewest free devices.
    """
    here = {spot[0] for spot in spots}
    order = sorted(nodes, key=lambda node: (node not in here, room.free_on(node).bit_count(), node))
    for extra in range(count, 0, -1):
        found = room.on(shape.of(extra), order)
        if found is not None:
            return joined(spots, found), extra
    return spots, 0


def joined(spots: Spots, others: Spots) -> Spots:
    """Both together, one spot per node."""
    found: dict[int, Spot] = {}
    for node, devices, share, cpus, memory in (*spots, *others):
        _, had, _, cores, size = found.get(node, (node, 0, share, 0, 0))
        found[node] = (node, devices | had, share, cpus + cores, memory + size)
    return tuple(found[node] for node in sorted(found))


def servers(cluster: Cluster, room: Room, apps: Sequence[JobView]) -> dict[Server, list[int]]:
    """Open nodes, grouped by what they offer to these applications: what is free and what the apps hold.

    The room is that of the draft; `apps` are the applications that may be resized.
    """
    has = {
        n: [room.free_on(n).bit_count(), room.free_cpus(n), room.free_memory(n)]
        for n in range(len(cluster.nodes))
    }
    for job in apps:
        for node, devices, _, cpus, memory in job.spots or ():
            for r, amount in enumerate((devices.bit_count(), cpus, memory)):
                has[node][r] += amount
    found: dict[Server, list[int]] = {}
    for number, machine in enumerate(cluster.nodes):
        if room.is_open(number):
            gpus, cpus, memory = has[number]
            key = machine.type.name, machine.partitions, gpus, _bounded(cpus), _bounded(memory)
            found.setdefault(key, []).append(number)
    return found


def _bounded(amount: int) -> int:
    return amount if amount < BOUNDLESS // 2 else -1


def plain_enough(shape: Shape) -> bool:
    """Whether a job is made of containers: whole devices, and no helpers."""
    return bool(shape.each) and shape.milli == WHOLE and not shape.slice and not shape.roles
