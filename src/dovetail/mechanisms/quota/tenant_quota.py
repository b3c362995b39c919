"""How many GPUs a tenant is guaranteed, and how many more it may borrow.

Amounts are milli-GPUs. Tenants form a tree (`model.cluster.Tenant.parent`); a tenant's usage includes that
of all tenants below it, as in `plan.used`.
"""

from __future__ import annotations

from collections.abc import Mapping

from dovetail.model.cluster import Cluster, Tenant
from dovetail.model.units import WHOLE

NO_LIMIT = 1 << 60
THE_CLUSTER = "the cluster"  # the common quota of tenants that have none of their own


def children_of(cluster: Cluster) -> dict[str, list[Tenant]]:
    """Tenants by parent; "" is the root."""
    children: dict[str, list[Tenant]] = {}
    for tenant in cluster.tenants.values():
        above = tenant.parent if tenant.parent in cluster.tenants else ""
        children.setdefault(above, []).append(tenant)
    return children


def guarantees(cluster: Cluster) -> dict[str, float]:
    """The guarantee of each tenant: its quota, or its part by weight of what its siblings' quotas leave."""
    children = children_of(cluster)
    given: dict[str, float] = {}

    def share_out(parent: str, amount: float) -> None:
        mine = children.get(parent, [])
        for tenant in mine:
            if tenant.quota is not None:
                given[tenant.name] = tenant.quota * WHOLE
        left = max(0.0, amount - sum(given[t.name] for t in mine if t.quota is not None))
        open_ended = [tenant for tenant in mine if tenant.quota is None]
        heavy = sum(tenant.weight for tenant in open_ended)
        for tenant in open_ended:
            given[tenant.name] = left * tenant.weight / heavy if heavy else 0.0
        for tenant in mine:
            share_out(tenant.name, given[tenant.name])

    share_out("", cluster.gpus * WHOLE)
    return given


def ceilings(cluster: Cluster, given: Mapping[str, float]) -> dict[str, float]:
    """The most that each tenant may hold: its guarantee and what it may borrow, up to its limit."""
    most = {}
    for tenant in cluster.tenants.values():
        borrowed = given[tenant.name] + tenant.borrow * WHOLE if tenant.borrow is not None else NO_LIMIT
        most[tenant.name] = min(borrowed, tenant.limit * WHOLE if tenant.limit is not None else NO_LIMIT)
    return most


def nominal(cluster: Cluster) -> dict[str, int]:
    """The quota of a tenant and of all below it; the whole cluster if it has none and no parent."""
    children = children_of(cluster)
    sums: dict[str, int] = {}

    def add_up(tenant: Tenant) -> int:
        below = [add_up(child) for child in children.get(tenant.name, [])]
        if tenant.quota is None and not below and not tenant.parent:
            total = cluster.gpus * WHOLE
        else:
            total = (tenant.quota or 0) * WHOLE + sum(below)
        sums[tenant.name] = total
        return total

    for tenant in children.get("", []):
        add_up(tenant)
    return sums


def over_quota(
    cluster: Cluster, quota: Mapping[str, int], used: Mapping[str, int], tenant: str, load: int
) -> str | None:
    """The tenant at which `load` more exceeds the quota: this one with what it may borrow, or an ancestor.

    A tenant borrows from those under the same parent, up to the quota of the parent's whole subtree. Tenants
    that are not declared share the cluster as a common quota.
    """
    if tenant not in cluster.tenants:
        others = sum(amount for name, amount in used.items() if name not in cluster.tenants)
        return THE_CLUSTER if others + load > cluster.gpus * WHOLE else None
    for name in cluster.line(tenant):
        mine = cluster.tenants.get(name)
        if mine is None:
            break  # a parent that is only a name
        most = quota[name]
        if mine.parent in cluster.tenants:
            most = NO_LIMIT if mine.borrow is None else most + mine.borrow * WHOLE
        if used.get(name, 0) + load > most:
            return name
    return None


def under_limits(cluster: Cluster, used: Mapping[str, int], tenant: str, load: int) -> bool:
    """Whether the limits of a tenant and of its ancestors allow `load` more."""
    for name in cluster.line(tenant):
        mine = cluster.tenants.get(name)
        if mine is not None and mine.limit is not None and used.get(name, 0) + load > mine.limit * WHOLE:
            return False
    return True
