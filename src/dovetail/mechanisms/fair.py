"""Fair shares over several resources.

Somebody's dominant share is the largest part it holds of any one resource; dominant resource fairness gives
the next task to who has the smallest (Ghodsi et al., "Dominant Resource Fairness", NSDI 2011). A share of a
single resource is water poured over tenants until nobody wants more or nothing is left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from dovetail.model.cluster import Cluster
from dovetail.model.grant import Spots, load_of
from dovetail.model.job import Shape
from dovetail.model.units import BOUNDLESS, WHOLE
from dovetail.model.view import JobView, View

Vector = tuple[int, int, int]  # milli-GPUs, milli-cores, bytes
NOTHING: Vector = (0, 0, 0)


def capacity(cluster: Cluster) -> Vector:
    """All there is of each resource; 0, which counts in no share, for what has no bound or is not there."""
    nodes = cluster.nodes
    return (
        cluster.gpus * WHOLE,
        _bounded(node.cpus for node in nodes),
        _bounded(node.memory for node in nodes),
    )


def _bounded(amounts: Iterable[int]) -> int:
    total = sum(amounts)
    return total if total < BOUNDLESS else 0


def asked(shape: Shape) -> Vector:
    """What a gang and its helpers take."""
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


class Shares:
    """Who holds how much of everything, counted once for a decision and kept up while its plan is made."""

    __slots__ = ("_held", "_weights", "total")

    def __init__(self, view: View, owner: Callable[[JobView], str] = tenant_of) -> None:
        cluster = view.cluster
        self.total = capacity(cluster)
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
        """Its dominant share over its weight."""
        share = dominant(self._held.get(name, NOTHING), self.total)
        weight = self._weights.get(name, 1.0)
        return share / weight if weight > 0 else float("inf")


def water_filled(amount: float, wants: Mapping[str, float], weights: Mapping[str, float]) -> dict[str, float]:
    """Each gets its weight's part, or all it wants if that is less; what it leaves goes to the others.

    >>> water_filled(8, {"a": 1, "b": 9, "c": 9}, {"b": 2.0})
    {'a': 1, 'b': 4.666666666666667, 'c': 2.333333333333333}
    """
    weight = {name: max(weights.get(name, 1.0), 1e-9) for name in wants}
    left, heavy = amount, sum(weight.values())
    given = {}
    for name in sorted(wants, key=lambda n: (wants[n] / weight[n], n)):
        given[name] = min(wants[name], left * weight[name] / heavy)
        left -= given[name]
        heavy -= weight[name]
    return given
