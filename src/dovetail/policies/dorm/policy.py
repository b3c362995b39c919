"""Dorm: every application has a partition of the cluster, resized as others arrive and end.

Sun et al., "Towards Distributed Machine Learning in Shared Clusters: A Dynamically-Partitioned Approach",
SMARTCOMP 2017. An application runs in equal containers, and may have more or fewer of them. At every arrival
and end a mixed-integer program (`solve.containers`) sets how many containers each application has and where:
it maximises the use of all resources, while shares stay near those of dominant resource fairness and few
applications are resized.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np

from dovetail.mechanisms.fair.dominant_share import cluster_total
from dovetail.mechanisms.order.keys import submission
from dovetail.mechanisms.place.pods import suits
from dovetail.model.cluster import Cluster
from dovetail.model.grant import Spots
from dovetail.model.job import Shape
from dovetail.model.units import WHOLE
from dovetail.model.view import JobView, Order, Plan, Policy, View
from dovetail.policies.dorm.containers import (
    Server,
    bounds,
    dominant_shares,
    fewer,
    held_on,
    more,
    plain_enough,
    servers,
)
from dovetail.solve.containers import IntMatrix, Partition, divided


def dorm(*, theta1: float = 0.1, theta2: float = 0.1) -> Policy:
    """Containers by a mixed-integer program: the largest use of resources within two bounds.

    The dominant shares of all applications together differ from the fair ones by at most `theta1` x 2 x the
    number of applications, where that is possible. Of the running applications at most the fraction `theta2`,
    rounded up, is resized at one decision; with 0 none is ever resized. (Both bounds are from memory of the
    paper.)

    An application has as many containers as its job may have tasks; a job that is not elastic has as many as
    it asked for.
    """
    if theta1 < 0 or theta2 < 0:
        raise ValueError(f"theta1 and theta2 are fractions of 0 and more, not {theta1} and {theta2}")
    return Dorm(theta1=theta1, theta2=theta2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dorm:
    """Solves the program whenever the applications or the open nodes have changed."""

    theta1: float
    theta2: float
    order: Order = submission
    group: Callable[[JobView], Hashable] | None = None
    quantum: int | None = None

    def decide(self, view: View) -> Plan:
        plan = view.draft()
        if view.memory != _present(view):
            present = _by_arrival(view)
            whole = _Whole(view.cluster)
            apps = [job for job in present if _resizable(view, job, whole)]
            if apps:
                self._divide(view, plan, apps)
            for job in present:
                if job.spots is None and not plain_enough(job.shape):
                    plan.start(job)  # parts of devices, helpers, CPU only: on what is left
                elif job.spots is None and not whole.somewhere(job):
                    spots = plan.room.anywhere(job.shape)
                    if spots is not None:
                        plan.start(job, spots)
        plan.memory = _present(view)
        return plan

    def _divide(self, view: View, plan: Plan, apps: Sequence[JobView]) -> None:
        groups = servers(view.cluster, plan.room, apps)
        kept = list(groups.values())
        asked = self._asked(view, apps, groups)
        after = divided(asked)
        going = [
            (job, (after[i] - asked.now[i]).tolist())
            for i, job in enumerate(apps)
            if job.spots is not None and (after[i] != asked.now[i]).any()
        ]
        rest: dict[str, Spots] = {}
        for job, change in going:  # first the applications that lose containers
            spots = job.spots or ()
            for g, count in enumerate(change):
                spots = fewer(spots, job.shape, kept[g], -count) if count < 0 else spots
            rest[job.id] = spots
            if spots and spots != job.spots:
                plan.shift(job, spots)
            elif not spots:
                plan.stop(job)
        for job, change in going:  # then those that gain some
            self._place(plan, job, rest[job.id], kept, change)
        for i, job in enumerate(apps):
            if job.spots is None and after[i].any() and asked.now[i].sum() == 0:
                self._place(plan, job, (), kept, after[i].tolist())

    def _place(
        self, plan: Plan, job: JobView, spots: Spots, kept: Sequence[Sequence[int]], change: Sequence[int]
    ) -> None:
        """Add containers, as many as have a place; with fewer than its least the application does not run."""
        for g, count in enumerate(change):
            if count > 0:
                nodes = [node for node in kept[g] if plan.room.is_open(node)]
                spots, _ = more(plan.room, spots, job.shape, nodes, count)
        tasks = sum(held_on(spots, job.shape).values())
        if tasks < bounds(job)[0]:
            if job.spots is not None:
                plan.stop(job)
            plan.deny(job, "Resources", "there is no place for all its containers")
        elif job.spots is None:
            plan.start(job, spots)
        elif spots != job.spots:
            plan.shift(job, spots)

    def _asked(self, view: View, apps: Sequence[JobView], groups: dict[Server, list[int]]) -> Partition:
        demand = np.array(
            [(job.shape.each, job.shape.cpus, job.shape.memory) for job in apps], dtype=np.float64
        )
        gpus, cpus, memory = cluster_total(view.cluster)
        total = np.array([gpus / WHOLE, cpus, memory], dtype=np.float64)
        part = np.divide(demand, total, out=np.zeros_like(demand), where=total > 0)
        kept = list(groups.values())
        room = np.array(
            [[np.inf if has < 0 else has * len(groups[server]) for has in server[2:]] for server in groups]
        )
        kinds = sorted({server[0] for server in groups})
        limits = [bounds(job) for job in apps]
        most = np.array([top for _, top in limits])
        runs = sum(1 for job in apps if job.spots is not None)
        fits = {
            shape: [_fitting(view.cluster, shape, server, nodes) for server, nodes in groups.items()]
            for shape in {job.shape for job in apps}
        }
        return Partition(
            demand=demand,
            total=total,
            room=room.reshape(len(kept), 3),
            fits=np.array([fits[job.shape] for job in apps]),
            kind=np.array([kinds.index(server[0]) for server in groups]),
            least=np.array([least for least, _ in limits]),
            most=most,
            now=_held(apps, kept),
            fair=dominant_shares(part, most.astype(np.float64)),
            loss=self.theta1 * 2 * len(apps),
            resizes=ceil(self.theta2 * runs - 1e-9),
        )


def _by_arrival(view: View) -> list[JobView]:
    return sorted((*view.running.values(), *view.queue), key=lambda job: job.seq)


def _present(view: View) -> tuple[tuple[str, ...], tuple[str, ...], tuple[int, ...]]:
    """The running jobs, the waiting jobs and the open nodes: while these are the same nothing is decided."""
    opened = tuple(node for node in range(len(view.cluster.nodes)) if view.room.is_open(node))
    return tuple(sorted(view.running)), tuple(sorted(job.id for job in view.queue)), opened


def _resizable(view: View, job: JobView, whole: _Whole) -> bool:
    """Whether the program places the containers of a job; a job that must not be stopped stays in place."""
    if not plain_enough(job.shape):
        return False
    if job.spots is None:
        return whole.somewhere(job)
    kinds = {view.cluster.nodes[spot[0]].type.name for spot in job.spots}
    return (
        job.traits.preemptible and len(kinds) == 1 and all(view.room.is_open(spot[0]) for spot in job.spots)
    )


class _Whole:
    """Whether one type of servers could hold the least containers of a job if they were empty.

    Worked out once for jobs of the same shape: many ask for the same.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._most: dict[Shape, int] = {}

    def somewhere(self, job: JobView) -> bool:
        most = self._most.get(job.shape)
        if most is None:
            most = self._most[job.shape] = self._of_one_type(job.shape)
        return most >= bounds(job)[0]

    def _of_one_type(self, shape: Shape) -> int:
        count: dict[str, int] = {}
        for number, node in enumerate(self._cluster.nodes):
            if suits(self._cluster, shape, number):
                kind = node.type.name
                count[kind] = count.get(kind, 0) + _alone(shape, node.gpus, node.cpus, node.memory)
        return max(count.values(), default=0)


def _fitting(cluster: Cluster, shape: Shape, server: Server, nodes: Sequence[int]) -> int:
    if not suits(cluster, shape, nodes[0]):
        return 0
    gpus, cpus, memory = server[2:]
    return len(nodes) * _alone(shape, gpus, cpus, memory)


def _alone(shape: Shape, gpus: int, cpus: int, memory: int) -> int:
    """How many containers of this shape one server holds; -1 is no bound."""
    count = gpus // shape.each
    if shape.cpus and cpus >= 0:
        count = min(count, cpus // shape.cpus)
    if shape.memory and memory >= 0:
        count = min(count, memory // shape.memory)
    return count


def _held(apps: Sequence[JobView], kept: Sequence[Sequence[int]]) -> IntMatrix:
    group = {node: g for g, nodes in enumerate(kept) for node in nodes}
    found = np.zeros((len(apps), len(kept)), dtype=np.int64)
    for i, job in enumerate(apps):
        for node, count in held_on(job.spots, job.shape).items():
            found[i, group[node]] += count
    return found
