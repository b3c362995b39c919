"""What a tenant may count on, how far beyond it may go, and how what was lent is taken back.

Amounts are milli-GPUs. Tenants stand in a tree (`model.cluster.Tenant.parent`); what is used below a tenant
counts as used by it, as in `plan.used`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from dovetail.model.cluster import Cluster, Tenant
from dovetail.model.grant import Spots
from dovetail.model.units import WHOLE
from dovetail.model.view import JobView, Plan

NO_LIMIT = 1 << 60
THE_CLUSTER = "the cluster"  # whose quota tenants without one share


def children_of(cluster: Cluster) -> dict[str, list[Tenant]]:
    """Tenants by parent; "" is above all."""
    children: dict[str, list[Tenant]] = {}
    for tenant in cluster.tenants.values():
        above = tenant.parent if tenant.parent in cluster.tenants else ""
        children.setdefault(above, []).append(tenant)
    return children


def guarantees(cluster: Cluster) -> dict[str, float]:
    """What each tenant may count on: its quota, or by weight of what its parent's other children leave."""
    children = children_of(cluster)
    given: dict[str, float] = {}

    def deal(parent: str, amount: float) -> None:
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
            deal(tenant.name, given[tenant.name])

    deal("", cluster.gpus * WHOLE)
    return given


def ceilings(cluster: Cluster, given: Mapping[str, float]) -> dict[str, float]:
    """The most each may hold: its limit, and what it may borrow on top of its guarantee."""
    most = {}
    for tenant in cluster.tenants.values():
        borrowed = given[tenant.name] + tenant.borrow * WHOLE if tenant.borrow is not None else NO_LIMIT
        most[tenant.name] = min(borrowed, tenant.limit * WHOLE if tenant.limit is not None else NO_LIMIT)
    return most


def nominal(cluster: Cluster) -> dict[str, int]:
    """A tenant's own quota and those of all below it; without any, and without parent: the cluster."""
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
    """Whose quota does not hold so much more: the tenant's with what it may borrow, or that of one above.

    Borrowing is from those under the same parent: what the parent's subtree has in all is the end of it.
    Tenants without an entry have the cluster for a common quota.
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
    """Whether the limits of a tenant and of all above it leave so much."""
    for name in cluster.line(tenant):
        mine = cluster.tenants.get(name)
        if mine is not None and mine.limit is not None and used.get(name, 0) + load > mine.limit * WHOLE:
            return False
    return True


def latest_first(job: JobView) -> tuple[int, int, int]:
    """Who leaves first when something is taken back: low priority, then who came last."""
    return job.priority, -job.started_at, -job.seq


def reclaim(
    plan: Plan,
    candidates: Iterable[JobView],
    may_leave: Callable[[JobView], bool],
    enough: Callable[[], bool],
) -> Sequence[JobView]:
    """Stop candidates in this order until it is enough; nobody if it never is.

    `may_leave` is asked when a candidate's turn comes, with those before it gone. Who turns out not to have
    been in the way is put back.
    """
    stopped: list[tuple[JobView, Spots]] = []
    for job in candidates:
        if job.spots is None or not job.traits.preemptible or not may_leave(job):
            continue
        stopped.append((job, job.spots))
        plan.stop(job)
        if enough():
            break
    else:
        for job, before in reversed(stopped):
            plan.start(job, before)
        return ()
    gone = stopped[-1:]
    for job, before in reversed(stopped[:-1]):
        plan.start(job, before)
        if not enough():
            plan.stop(job)
            gone.append((job, before))
    return [job for job, _ in gone]
