"""Dominant shares: how much of the cluster a tenant or user holds when there are several resources.

A dominant share is the largest part held of any one resource. Dominant resource fairness gives the next task
to the tenant with the smallest (Ghodsi et al., "Dominant Resource Fairness", NSDI 2011).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from dovetail.model.cluster import Cluster
from dovetail.model.grant import Spots, load_of
from dovetail.model.job import Shape
from dovetail.model.units import BOUNDLESS, WHOLE
from dovetail.model.view import JobView, View

Vector = tuple[int, int, int]  # milli-GPUs, milli-cores, bytes
NOTHING: Vector = (0, 0, 0)


def cluster_total(cluster: Cluster) -> Vector:
    """The whole cluster's amount of each resource; 0, which counts in no share, if unbounded or absent."""
    nodes = cluster.nodes
    return (
        cluster.gpus * WHOLE,
        _bounded(node.cpus for node in nodes),
        _bounded(node.memory for node in nodes),
    )


def _bounded(amounts: Iterable[int]) -> int:
    total = sum(amounts)
    return total if total < BOUNDLESS else 0


def requested(shape: Shape) -> Vector:
    """What the tasks and helpers of a job take."""
    cpus = shape.tasks * shape.cpus + sum(role.count * role.cpus for role in shape.roles)
    memory = shape.tasks * shape.memory + sum(role.count * role.memory for role in shape.roles)
    return shape.load, cpus, memory


def held(spots: Spots) -> Vector:
    """What spots take."""
    return load_of(spots), sum(spot[3] for spot in spots), sum(spot[4] for spot in spots)


def plus(a: Vector, b: Vector) -> Vector:
    return a[0] + b[0], a[1] + b[1], a[2] + b[2]


def dominant(amount: Vector, total: Vector) -> float:
    """The largest part of any resource.

    >>> dominant((0, 3, 12), (0, 9, 18)) == 2 / 3
    True
    """
    return max((part / whole for part, whole in zip(amount, total, strict=True) if whole), default=0.0)


def tenant_of(job: JobView) -> str:
    return job.tenant


def user_of(job: JobView) -> str:
    return job.user


class Holdings:
    """What each tenant or user holds, counted once for a decision and kept up to date with its plan."""

    __slots__ = ("_held", "_weights", "total")

    def __init__(self, view: View, owner: Callable[[JobView], str] = tenant_of) -> None:
        cluster = view.cluster
        self.total = cluster_total(cluster)
        self._weights = {t.name: t.weight for t in cluster.tenants.values()} if owner is tenant_of else {}
        if owner is tenant_of and self.total[1:] == (0, 0):  # GPUs alone: the core counts them already
            self._held: dict[str, Vector] = {name: (gpus, 0, 0) for name, gpus in view.used.items()}
            return
        self._held = {}
        for job in view.running.values():
            self.add(owner(job), held(job.spots or ()))

    def add(self, name: str, amount: Vector) -> None:
        self._held[name] = plus(self._held.get(name, NOTHING), amount)

    def of(self, name: str) -> Vector:
        return self._held.get(name, NOTHING)

    def dominant(self, name: str) -> float:
        """The dominant share of a tenant or user over its weight."""
        share = dominant(self._held.get(name, NOTHING), self.total)
        weight = self._weights.get(name, 1.0)
        return share / weight if weight > 0 else float("inf")
