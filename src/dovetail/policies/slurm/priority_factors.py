"""Priority as a sum of weighted factors, one of them the recent usage of an account.

The multi-factor priority of batch schedulers: each factor lies between 0 and 1 and is multiplied by a weight.
Age grows while a job waits, up to a limit. The fair-share factor is 2^(-usage/share): 1 for an account that
used nothing, 1/2 for one that used exactly its share. Usage decays: usage of a half-life ago counts half.
Both usage and share are fractions of the total.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import log

from dovetail.mechanisms.quota.tenant_quota import children_of
from dovetail.model.cluster import Cluster, Tenant
from dovetail.model.job import Shape
from dovetail.model.units import WHOLE
from dovetail.model.view import JobView, View


@dataclass(frozen=True, slots=True)
class Usage:
    """Decayed GPU-microseconds by tenant; a value, kept in `plan.memory`."""

    at: int = 0
    past: tuple[tuple[str, float], ...] = ()  # up to `at`
    pace: tuple[tuple[str, int], ...] = ()  # milli-GPUs held from then on


def used_by(usage: Usage, now: int, half_life: int) -> dict[str, float]:
    """The usage of each tenant up to now; with a half-life of 0 it does not decay.

    Holdings change only at decisions, so between two of them the integral of a decaying constant is exact.

    >>> used_by(Usage(0, (("a", 8.0),)), now=10, half_life=5)
    {'a': 2.0}
    """
    elapsed = now - usage.at
    decay = 0.5 ** (elapsed / half_life) if half_life else 1.0
    weight = (1.0 - decay) * half_life / log(2) if half_life else float(elapsed)
    amounts = {name: amount * decay for name, amount in usage.past}
    for name, milli in usage.pace:
        amounts[name] = amounts.get(name, 0.0) + weight * milli / WHOLE
    return amounts


def usage_now(now: int, amounts: Mapping[str, float], used: Mapping[str, int]) -> Usage:
    """These amounts as a value, with what tenants hold from now on."""
    pace = tuple(sorted((name, milli) for name, milli in used.items() if milli))
    return Usage(now, tuple(sorted(amounts.items())), pace)


def fair_share(cluster: Cluster, amounts: Mapping[str, float], tenants: Iterable[str]) -> dict[str, float]:
    """2^(-usage/share) for each tenant; a tenant that is not declared has weight 1 at the top level.

    Below the top a tenant is also charged, by its weight, for the usage of its siblings (the effective usage
    of Slurm's classic formula), so that an idle member of a busy account does not rank like a new account.
    """
    children = children_of(cluster)
    top = {tenant.name: tenant for tenant in children.get("", [])}
    for name in sorted({*tenants, *amounts} - set(cluster.tenants)):
        top[name] = Tenant(name)
    total = sum(amounts.get(name, 0.0) for name in top) or 1.0
    factors: dict[str, float] = {}

    def descend(members: Iterable[Tenant], share: float, charged: float | None) -> None:
        mine = list(members)
        heavy = sum(tenant.weight for tenant in mine)
        for tenant in mine:
            part = tenant.weight / heavy if heavy else 0.0
            actual = amounts.get(tenant.name, 0.0) / total
            effective = actual if charged is None else actual + (charged - actual) * part
            factors[tenant.name] = 0.5 ** (effective / (share * part)) if share * part else 0.0
            descend(children.get(tenant.name, []), share * part, effective)

    descend(top.values(), 1.0, None)
    return factors


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """The weight of each factor."""

    age: float
    fair_share: float
    size: float
    partition: float
    qos: float


def multi_factor(
    view: View,
    fair: Mapping[str, float],
    weights: Weights,
    *,
    max_age: int,
    partitions: Mapping[str, float],
    qos_most: int,
) -> Callable[[JobView], float]:
    """The priority of a waiting job now, larger first. Jobs that differ only in arrival rank by arrival."""
    now, gpus = view.now, max(view.cluster.gpus, 1)
    by_age = weights.age
    others: dict[tuple[str, Shape, int], tuple[float, float, float, float]] = {}  # few jobs differ in these

    def score(job: JobView) -> float:
        kind = (job.tenant, job.shape, job.priority)
        terms = others.get(kind)
        if terms is None:
            terms = others[kind] = (
                weights.fair_share * fair.get(job.tenant, 1.0),
                weights.size * min(1.0, job.gpus / gpus),
                weights.partition * partitions.get(job.shape.partition, 0.0),
                weights.qos * min(1.0, max(0, job.priority) / max(qos_most, 1)),
            )
        share, size, partition, qos = terms
        age = (now - job.arrived_at) / max_age if max_age else 1.0
        return by_age * (age if age < 1.0 else 1.0) + share + size + partition + qos

    return score
