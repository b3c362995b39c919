"""Tenants as groups for hierarchical water filling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from dovetail.model.cluster import Cluster
from dovetail.model.view import JobView
from dovetail.solve.water_filling import Group


def tenant_tree(cluster: Cluster, jobs: Sequence[JobView], within: Literal["fair", "fifo"]) -> Group:
    """Each tenant is a group of its children and its own jobs; jobs without a tenant are at the root."""
    children: dict[str, list[str]] = {}
    jobs_of: dict[str, list[int]] = {}
    for i, job in enumerate(jobs):
        line = cluster.line(job.tenant)  # the tenant and its ancestors
        jobs_of.setdefault(line[0] if line else "", []).append(i)
        for below, above in zip(line, [*line[1:], ""], strict=True):
            if below not in children.setdefault(above, []):
                children[above].append(below)

    def group(name: str) -> Group:
        teams = [child for child in children.get(name, []) if child != name]
        mine = jobs_of.get(name, [])
        members: list[Group | int] = [group(child) for child in teams]
        weights = [cluster.tenants[child].weight if child in cluster.tenants else 1.0 for child in teams]
        if mine and not teams:
            weighed = tuple(1.0 + max(jobs[i].priority, 0) for i in mine)
            return Group(tuple(mine), weighed if within == "fair" else (), within)
        if mine:  # a tenant with children and jobs of its own: these jobs are one more child
            members.append(Group(tuple(mine), rule=within))
            weights.append(1.0)
        return Group(tuple(members), tuple(weights))

    return group("")
