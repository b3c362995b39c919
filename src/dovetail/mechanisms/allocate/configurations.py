"""Configurations: a number of GPUs of one type, inside a node or on whole nodes.

Sia (Jayaram Subramanya et al., SOSP 2023, section 3.3): powers of two inside a node, then whole multiples of
nodes. So few configurations make a small integer program, and every choice of them that fits by the number of
GPUs can also be placed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from dovetail.model.cluster import Cluster
from dovetail.model.estimate import task_range
from dovetail.model.view import JobView, Room


class Pool(NamedTuple):
    """Equal nodes: of one type, with as many GPUs, CPUs and memory each."""

    type: str
    each: int
    nodes: tuple[int, ...]
    cpus: int  # of each node
    memory: int

    @property
    def gpus(self) -> int:
        return self.each * len(self.nodes)


class Configuration(NamedTuple):
    """GPUs of one pool."""

    pool: int
    nodes: int
    gpus: int


def pools(cluster: Cluster, room: Room) -> tuple[Pool, ...]:
    """The open nodes with GPUs, the equal ones together, in the order in which the cluster names them."""
    found: dict[tuple[str, int, int, int], list[int]] = {}
    for number, node in enumerate(cluster.nodes):
        if node.gpus and room.is_open(number):
            found.setdefault((node.type.name, node.gpus, node.cpus, node.memory), []).append(number)
    return tuple(
        Pool(kind, each, tuple(nodes), cpus, memory) for (kind, each, cpus, memory), nodes in found.items()
    )


def configurations(of: tuple[Pool, ...], more: Iterable[int]) -> tuple[Configuration, ...]:
    """The sizes of the rule for each pool, and as far as there is room for them these `more`."""
    extra = set(more)
    found = []
    for number, pool in enumerate(of):
        sizes = sorted({*regular(pool), *(size for size in extra if size <= pool.gpus)})
        found += [Configuration(number, -(-size // pool.each), size) for size in sizes]
    return tuple(found)


def regular(pool: Pool) -> list[int]:
    """Powers of two inside a node, then whole multiples of nodes."""
    inside = [1 << power for power in range((pool.each - 1).bit_length())]
    return inside + [pool.each * nodes for nodes in range(1, len(pool.nodes) + 1)]


def own_size(job: JobView) -> int:
    """GPUs that a job may have whatever the rule says: all of a rigid job, the fewest of another one."""
    least, _ = task_range(job.shape, job.traits)
    return least * job.shape.each


def own_sizes(jobs: Iterable[JobView]) -> set[int]:
    """Those of all these jobs."""
    return {own_size(job) for job in jobs}


def suits(job: JobView, pool: Pool, configuration: Configuration) -> bool:
    """Whether a job runs in a configuration: by its type, and by its number of tasks.

    A size that is there for the sake of a rigid job is for jobs with just that size. A job that needs more
    than a fair share of CPUs or memory with its GPUs has no configurations: others would not fit beside it.
    """
    shape, gpus = job.shape, configuration.gpus
    if shape.types and pool.type not in shape.types:
        return False
    if shape.cpus * pool.each > pool.cpus * shape.each or shape.memory * pool.each > pool.memory * shape.each:
        return False
    if gpus > pool.each and pool.each % shape.each:  # tasks do not fill a node
        return False
    if gpus == own_size(job):
        return True
    least, most = task_range(shape, job.traits)
    inside = gpus < pool.each and not gpus & (gpus - 1)
    return (inside or not gpus % pool.each) and not gpus % shape.each and least <= gpus // shape.each <= most
