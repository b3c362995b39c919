"""A cluster: nodes with their devices, the links between them, and the tenants that share them.

A cluster is a constant value. What changes at run time (a node lost, drained, powered off) is state of the
core.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from dovetail.model.errors import ClusterError
from dovetail.model.units import BOUNDLESS, GIB

MOST_DEVICES = 64

# NVIDIA's MIG on A100 and H100: how many of the device's eight memory slots a slice covers, and the slots at
# which it may begin. The driver accepts no others.
SLICES: Mapping[str, tuple[int, tuple[int, ...]]] = {
    "1g": (1, (0, 1, 2, 3, 4, 5, 6)),
    "2g": (2, (0, 2, 4)),
    "3g": (4, (0, 4)),
    "4g": (4, (0,)),
    "7g": (8, (0,)),
}


@dataclass(frozen=True, slots=True)
class GpuType:
    """A kind of device."""

    name: str = "gpu"
    memory: int = 16 * GIB
    speed: float = 1.0  # relative to the reference, for a job without a profile for this type
    sliceable: bool = False


KNOWN_TYPES: Mapping[str, GpuType] = {
    t.name: t
    for t in (
        GpuType("gpu"),
        GpuType("K80", 12 * GIB),
        GpuType("P100", 16 * GIB),
        GpuType("V100", 16 * GIB),
        GpuType("V100M32", 32 * GIB),
        GpuType("T4", 16 * GIB),
        GpuType("A100", 40 * GIB, sliceable=True),
        GpuType("A100-80GB", 80 * GIB, sliceable=True),
        GpuType("H100", 80 * GIB, sliceable=True),
    )
}


@dataclass(frozen=True, slots=True)
class Links:
    """Bytes a second between two devices, by the nearest level of the topology that they share."""

    nvlink: float = 600e9
    socket: float = 32e9
    node: float = 16e9
    rack: float = 25e9 / 2
    cluster: float = 10e9


@dataclass(frozen=True, slots=True)
class Node:
    """One machine: its devices are numbered from 0 and are all of one type."""

    name: str
    gpus: int
    type: GpuType = KNOWN_TYPES["gpu"]
    cpus: int = BOUNDLESS  # milli-cores
    memory: int = BOUNDLESS
    sockets: int = 1
    nvlink: int = 0  # devices in each NVLink group; 0: none
    rack: str = ""
    price: float = 0.0  # an hour
    spot: bool = False
    idle_watts: float = 0.0
    gpu_watts: float = 0.0  # in addition, for each device in use
    partitions: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if not 0 <= self.gpus <= MOST_DEVICES:
            raise ClusterError(f"node {self.name}: {self.gpus} GPUs; a node has 0 to {MOST_DEVICES}")

    def socket_of(self, device: int) -> int:
        return device * self.sockets // max(self.gpus, 1)

    def nvlink_of(self, device: int) -> int:
        """The device's NVLink group, or a number of its own."""
        return device // self.nvlink if self.nvlink else -1 - device


@dataclass(frozen=True, slots=True)
class Tenant:
    """A team, a virtual cluster or a queue with a share of the cluster. Tenants may form a tree."""

    name: str
    parent: str = ""
    weight: float = 1.0
    quota: int | None = None  # GPUs that are guaranteed to it
    borrow: int | None = None  # how far beyond its quota; None: as far as there is room
    limit: int | None = None  # the most GPUs that it may hold, whatever the policy


@dataclass(frozen=True)
class Cluster:
    """Nodes, links and tenants."""

    nodes: tuple[Node, ...]
    links: Links = Links()
    tenants: Mapping[str, Tenant] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.nodes:
            raise ClusterError("a cluster needs at least one node")
        names = [node.name for node in self.nodes]
        if len(set(names)) != len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ClusterError(f"two nodes are named {twice!r}; give each a name of its own")
        for tenant in self.tenants.values():
            self.line(tenant.name)

    @cached_property
    def gpus(self) -> int:
        return sum(node.gpus for node in self.nodes)

    @cached_property
    def types(self) -> tuple[GpuType, ...]:
        """The types of device, in the order of the first node of each."""
        return tuple(dict.fromkeys(node.type for node in self.nodes))

    @cached_property
    def type_speeds(self) -> Mapping[str, float]:
        """The default speed of each type of device, by name."""
        return {type_.name: type_.speed for type_ in self.types}

    @cached_property
    def number(self) -> Mapping[str, int]:
        """A node's place in `nodes`, by name."""
        return {node.name: i for i, node in enumerate(self.nodes)}

    @cached_property
    def fewest_nodes(self) -> dict[Any, int]:
        """By shape: answers of `topology.fewest_nodes`, which every start of a gang asks for."""
        return {}

    def line(self, tenant: str) -> tuple[str, ...]:
        """A tenant and its ancestors, nearest first."""
        line = [tenant]
        while (above := self.tenants.get(line[-1])) and above.parent:
            if above.parent in line:
                raise ClusterError(
                    f"tenant {tenant!r} is its own ancestor; change the parent of {above.name!r}"
                )
            line.append(above.parent)
        return tuple(line)


_PART = re.compile(r"(\d+)x(\d+)(?::([\w.+-]+))?")


def parse_cluster(text: str) -> Cluster:
    """`8x8` or `4x8:A100,16x4:V100`: nodes x GPUs, and their type.

    >>> parse_cluster("4x8:A100,16x4:V100").gpus
    96
    """
    nodes: list[Node] = []
    for part in text.split(","):
        match = _PART.fullmatch(part.strip())
        if match is None or not int(match[1]):
            raise ClusterError(f"{text!r} describes no cluster; write 8x8, 4x8:A100,16x4:V100 or a YAML file")
        count, gpus, kind = int(match[1]), int(match[2]), match[3] or "gpu"
        type_ = KNOWN_TYPES.get(kind, GpuType(kind))
        nodes += [Node(f"n{len(nodes) + i}", gpus, type_) for i in range(count)]
    return Cluster(tuple(nodes))


def with_tenants(cluster: Cluster, tenants: Iterable[Tenant]) -> Cluster:
    """The same nodes, shared by these tenants."""
    return Cluster(cluster.nodes, cluster.links, {tenant.name: tenant for tenant in tenants})
