"""Quota, use and fair share of each tenant."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dovetail.control.ledger import Ledger
from dovetail.control.states import State
from dovetail.core.core import Core
from dovetail.mechanisms.fair.water_filling import water_filled
from dovetail.model.cluster import Cluster
from dovetail.model.units import WHOLE


@dataclass(frozen=True, slots=True)
class ShareState:
    """What a tenant may have and has."""

    tenant: str
    parent: str
    weight: float
    quota: int | None
    borrow: int | None
    limit: int | None
    account: str
    used: float
    running: int
    pending: int
    fair: float  # GPUs it would have by weight


def tenant_shares(ledger: Ledger, accounts: Mapping[str, str]) -> list[ShareState]:
    """What each tenant may have and has."""
    core = ledger.core
    running: dict[str, int] = {}
    pending: dict[str, int] = {}
    for record in ledger.index:
        count = running if record.state in (State.RUNNING, State.STOPPING) else pending
        count[record.tenant] = count.get(record.tenant, 0) + 1
    known = core.cluster.tenants
    names = sorted({*known, *running, *pending, *(name for name, used in core.used.items() if used)})
    fair = fair_shares(core)
    found = []
    for name in names:
        tenant = known.get(name)
        found.append(
            ShareState(
                name,
                tenant.parent if tenant else "",
                tenant.weight if tenant else 1.0,
                tenant.quota if tenant else None,
                tenant.borrow if tenant else None,
                tenant.limit if tenant else None,
                accounts.get(name, ""),
                core.used.get(name, 0) / WHOLE,
                running.get(name, 0),
                pending.get(name, 0),
                fair.get(name, 0.0),
            )
        )
    return found


def beyond_cluster(cluster: Cluster, name: str) -> list[str]:
    """Warnings if the quota or limit of a tenant is more than there is: allowed, since a cluster may grow."""
    there = f"the cluster has {cluster.gpus}"
    tenant, notes = cluster.tenants[name], []
    for word in ("quota", "limit"):
        amount = getattr(tenant, word)
        if amount is not None and amount > cluster.gpus:
            notes.append(f"the {word} of tenant {name} is {amount} GPUs, and {there}")
    quotas = {one.name: one.quota for one in cluster.tenants.values() if one.quota is not None}
    # The quota of a parent may be meant to cover those below it.
    total = sum(quota for one, quota in quotas.items() if not quotas.keys() & set(cluster.line(one)[1:]))
    if name in quotas and not notes and total > cluster.gpus:
        notes.append(f"all quotas together are {total} GPUs, and {there}: not all can be used at once")
    return notes


def fair_shares(core: Core) -> dict[str, float]:
    """GPUs that each tenant with work would have if they were divided by weight, in fractions.

    Each tenant gets its own quota first, as far as it has work for it. The rest is divided by weight. No
    tenant gets more than it has work for or its limit allows. Every tenant counts by its own weight, whatever
    its parent; a parent has the sum of its children, as it uses what they use.
    """
    wants: dict[str, float] = {}
    for job in core.jobs.values():
        load = job.held if job.spots is not None else job.shape.load
        wants[job.tenant] = wants.get(job.tenant, 0.0) + load / WHOLE
    own = dict.fromkeys(wants, 0.0)
    for name, tenant in core.cluster.tenants.items():
        if name in wants:
            bounds = [wants[name]] + ([] if tenant.limit is None else [float(tenant.limit)])
            if tenant.quota is not None and tenant.borrow is not None:
                bounds.append(float(tenant.quota + tenant.borrow))
            wants[name] = min(bounds)
            own[name] = min(wants[name], float(tenant.quota or 0))
    closed = core.closed
    gpus = float(sum(node.gpus for number, node in enumerate(core.cluster.nodes) if number not in closed))
    much = min(1.0, gpus / sum(own.values())) if any(own.values()) else 1.0
    own = {name: amount * much for name, amount in own.items()}
    weights = {name: tenant.weight for name, tenant in core.cluster.tenants.items()}
    rest = {name: max(0.0, wants[name] - amount) for name, amount in own.items()}
    more = water_filled(max(0.0, gpus - sum(own.values())), rest, weights)
    found: dict[str, float] = {}
    for name in wants:
        for above in core.cluster.line(name):
            found[above] = found.get(above, 0.0) + own[name] + more[name]
    return found
