"""Fair Tree: accounts are ranked level by level, and the rank is the fair-share factor.

Siblings rank by share over usage, both as fractions of those of all siblings. All below an account that ranks
before its sibling rank before all below the sibling. The first of n has the factor 1, the last 1/n. (Slurm's
default since 19.05; the classic formula is `priority_factors.fair_share`.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from math import inf
from typing import NamedTuple

from dovetail.mechanisms.quota.tenant_quota import children_of
from dovetail.model.cluster import Cluster, Tenant


class Ranked(NamedTuple):
    """An account or, as a leaf, the jobs of an account itself."""

    name: str
    level: float  # share over usage among its siblings
    leaf: bool


def fair_tree(cluster: Cluster, amounts: Mapping[str, float], tenants: Iterable[str]) -> dict[str, float]:
    """The factor of each tenant, from the usage of each, that of tenants below included.

    A tenant that is not declared has weight 1 at the top level. Jobs of a tenant with others below are a leaf
    of weight 1 beside these. Tied accounts rank as one, with all below them together; tied leaves have the
    same rank, and a leaf that is tied with an account ranks as the first below it.
    """
    active = set(tenants)
    children = children_of(cluster)
    unknown = sorted({*active, *amounts} - set(cluster.tenants))
    ranks: dict[str, int] = {}

    def visit(members: Sequence[Ranked], first: int) -> None:
        ordered = sorted(members, key=lambda member: (-member.level, member.name))
        for number, (_, tied) in enumerate(groupby(ordered, key=lambda member: member.level)):
            rank = len(ranks) + 1 if number else first
            accounts: list[str] = []
            for member in tied:
                if member.leaf:
                    ranks[member.name] = rank
                else:
                    accounts.append(member.name)
            visit([one for name in accounts for one in below(name)], rank)

    def below(name: str) -> list[Ranked]:
        mine = children.get(name, [])
        own = amounts.get(name, 0.0) - sum(amounts.get(tenant.name, 0.0) for tenant in mine)
        leaf = [(Tenant(name), max(0.0, own), True)] if name in active else []
        return levels([*((t, amounts.get(t.name, 0.0), t.name not in children) for t in mine), *leaf])

    top = [*children.get("", []), *map(Tenant, unknown)]
    visit(levels([(t, amounts.get(t.name, 0.0), t.name not in children) for t in top]), 1)
    return {name: (len(ranks) - rank + 1) / len(ranks) for name, rank in ranks.items()}


def levels(siblings: Sequence[tuple[Tenant, float, bool]]) -> list[Ranked]:
    """Siblings, each with its usage and whether it is a leaf, and what they rank by."""
    heavy = sum(tenant.weight for tenant, _, _ in siblings)
    used = sum(amount for _, amount, _ in siblings)

    def level(weight: float, amount: float) -> float:
        if not weight:
            return 0.0
        return (weight / heavy) / (amount / used) if amount else inf

    return [Ranked(tenant.name, level(tenant.weight, amount), leaf) for tenant, amount, leaf in siblings]
