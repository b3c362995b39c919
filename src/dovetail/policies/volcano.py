"""Volcano: gangs, weighted queues and dominant shares on Kubernetes."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heapreplace
from typing import Literal

from dovetail.mechanisms.fair.dominant_share import (
    Holdings,
    Vector,
    dominant,
    held,
    plus,
    requested,
    tenant_of,
)
from dovetail.mechanisms.fair.water_filling import water_filled
from dovetail.mechanisms.order.keys import by_priority_class
from dovetail.mechanisms.place.gpu_types import held_type, of_type
from dovetail.mechanisms.place.pods import by_type, joined, least_tasks, pod_spots, tasks_in, without_one
from dovetail.mechanisms.preempt.reclaim import latest_first
from dovetail.mechanisms.quota.tenant_quota import under_limits
from dovetail.model.grant import Spots, load_of
from dovetail.model.job import Shape
from dovetail.model.units import WHOLE, micros
from dovetail.model.view import JobView, Order, Plan, Policy, View


@dataclass(frozen=True, slots=True, kw_only=True)
class Sessions:
    """Each session: set shares, start gangs, evict pods beyond a gang, and let elastic jobs grow."""

    quantum: int
    emptiest: bool
    preempt: bool
    reclaim: bool
    mixed_types: bool
    order: Order = by_priority_class
    group: Callable[[JobView], Hashable] = field(default=tenant_of)

    def decide(self, view: View) -> Plan:
        plan = view.draft()
        session = _Session(self, view, plan)
        starved = session.allocate()
        if starved and (self.preempt or self.reclaim):
            session.evict(starved)
        session.grow()
        return plan


class _Session:
    """One session: the holdings of the queues, kept up to date with the plan."""

    def __init__(self, policy: Sessions, view: View, plan: Plan) -> None:
        self.policy, self.view, self.plan = policy, view, plan
        self.holdings = Holdings(view)
        self.deserved = self._deserved()
        self.capped: set[JobView] = set()  # jobs that were not started because their queue has its share

    def _deserved(self) -> dict[str, tuple[float, float, float]]:
        """The share of each queue in each resource, by weight, up to its request (Volcano's proportion)."""
        wants: dict[str, Vector] = {}
        for job in (*self.view.running.values(), *self.view.queue):
            most = requested(job.shape.of(_most(job)))
            wants[job.tenant] = plus(wants.get(job.tenant, (0, 0, 0)), most)
        weights = {t.name: t.weight for t in self.view.cluster.tenants.values()}
        parts = [
            water_filled(total, {name: want[i] for name, want in wants.items()}, weights)
            for i, total in enumerate(self.holdings.total)
        ]
        return {name: (parts[0][name], parts[1][name], parts[2][name]) for name in wants}

    def allocate(self) -> list[JobView]:
        """Start gangs of queues below their share, the lowest first; the gangs that were not started."""
        plan = self.plan
        starved: list[JobView] = []
        for job in self.view.queue.walk(rank=self._rank):
            if self._overused(job.tenant):
                starved.append(job)
                self.capped.add(job)
                plan.deny(job, "AssocGrpGRES", f"queue {job.tenant} holds its deserved share")
                continue
            spots = self._gang(job)
            if spots is None:
                starved.append(job)
                plan.deny(job, "Resources")
            elif plan.start(job, spots):
                self.holdings.add(job.tenant, held(spots))
        return starved

    def evict(self, starved: list[JobView]) -> None:
        """Evict pods beyond their gang: of lower priority in the same queue, or of a queue over its share."""
        for job in starved:
            if self._make_room(job):
                spots = self._gang(job)
                if spots is not None and self.plan.start(job, spots):
                    self.holdings.add(job.tenant, held(spots))

    def _make_room(self, job: JobView) -> bool:
        before: dict[JobView, Spots] = {}
        queues = self._queues_to_take_from(job)
        victims = [
            other
            for other in self.view.running.values()
            if other.tenant in queues
            and other.traits.preemptible
            and self._may_take(job, other)
            and self._spare(other)
        ]
        if not self._worth_while(job, victims):
            return False
        for victim in sorted(victims, key=latest_first):
            while victim.spots and self._spare(victim) and self._may_take(job, victim):
                before.setdefault(victim, victim.spots)
                self._drop_pod(victim, job)
                if self._may_start(job):
                    return True
        for victim, spots in reversed(before.items()):
            self._count(victim, spots)
            if victim.spots is None:
                self.plan.start(victim, spots)
            else:
                self.plan.shift(victim, spots)
        return False

    def _may_start(self, job: JobView) -> bool:
        """Whether its queue is below its share, its gang has a place, and its tenant's limits allow it."""
        spots = None if self._overused(job.tenant) else self._gang(job)
        return spots is not None and under_limits(
            self.view.cluster, self.plan.used, job.tenant, load_of(spots)
        )

    def _worth_while(self, job: JobView, victims: list[JobView]) -> bool:
        """Whether there would be enough GPUs if the victims gave up all they hold: a quick check first."""
        wanted = least_tasks(job) * job.shape.each * job.shape.milli
        return wanted <= self.plan.room.free_gpus * WHOLE + sum(victim.held for victim in victims)

    def _queues_to_take_from(self, job: JobView) -> set[str]:
        """Its own queue and, if that was below its share, the queues over theirs."""
        if job in self.capped or self._overused(job.tenant):
            return {job.tenant}
        return {job.tenant, *(queue for queue in self.deserved if self._filled(queue) > 1.0)}

    def _may_take(self, job: JobView, victim: JobView) -> bool:
        if victim.tenant == job.tenant:
            return self.policy.preempt and victim.priority < job.priority
        return self.policy.reclaim and self._filled(victim.tenant) > 1.0

    def _spare(self, job: JobView) -> bool:
        """Whether a job can lose a pod; a job of single pods has no gang to break."""
        return least_tasks(job) == 1 or tasks_in(job.spots or (), job.shape) > least_tasks(job)

    def _drop_pod(self, job: JobView, by: JobView) -> None:
        spots = job.spots or ()
        rest = without_one(spots, job.shape, max(spot[0] for spot in spots if spot[1] or not job.shape.each))
        self._count(job, rest)
        if rest:
            self.plan.shift(job, rest)
        else:
            self.plan.stop(job, by=by)

    def _count(self, job: JobView, spots: Spots) -> None:
        """Change the holdings as if the job held these spots."""
        old, new = held(job.spots or ()), held(spots)
        self.holdings.add(job.tenant, (new[0] - old[0], new[1] - old[1], new[2] - old[2]))

    def grow(self) -> None:
        """Add one pod at a time to the elastic job that ranks first: queue, priority, then smallest share."""
        growing = [
            job
            for job in self.view.running.values()
            if job.traits.elastic and tasks_in(job.spots or (), job.shape) < _most(job)
        ]
        heads = [(self._place_of(job), job.seq, job) for job in growing]
        heapify(heads)
        while heads:
            rank, seq, job = heads[0]
            now = self._place_of(job)
            if now != rank:
                heapreplace(heads, (now, seq, job))
            elif not self._add_pod(job):
                heappop(heads)

    def _add_pod(self, job: JobView) -> bool:
        spots = job.spots or ()
        if self._overused(job.tenant) or tasks_in(spots, job.shape) >= _most(job):
            return False
        pod = _pod(job.shape)
        if pod.each and not self.policy.mixed_types:
            pod = of_type(pod, held_type(self.view.cluster, job))
        more = pod_spots(self.plan.room, pod, 1, emptiest=self.policy.emptiest)
        if not more:
            return False
        if not self.plan.shift(job, joined(spots, more)):
            return False
        self.holdings.add(job.tenant, held(more))
        return True

    def _place_of(self, job: JobView) -> tuple[float, int, float, int]:
        share = dominant(held(job.spots or ()), self.holdings.total)
        return self._filled(job.tenant), -job.priority, share, job.arrived_at

    def _gang(self, job: JobView) -> Spots | None:
        least = least_tasks(job)
        shape = job.shape.of(least)
        room = self.plan.room
        if shape.roles:
            return room.anywhere(shape)
        one_pod = least == 1  # which is on one GPU type wherever it is
        for each in (shape,) if one_pod or self.policy.mixed_types else by_type(room.cluster, shape):
            spots = pod_spots(room, each, least, emptiest=self.policy.emptiest)
            if tasks_in(spots, shape) == least:
                return spots
        return None

    def _rank(self, job: JobView) -> float:
        """The queue with the smallest fraction of its deserved share goes first."""
        return self._filled(job.tenant)

    def _filled(self, queue: str) -> float:
        """The largest fraction of its deserved share that a queue holds of any resource."""
        parts = zip(self.holdings.of(queue), self.deserved.get(queue, (0.0, 0.0, 0.0)), strict=True)
        return max((part / due for part, due in parts if due > 0), default=0.0)

    def _overused(self, queue: str) -> bool:
        """Whether a queue holds all it deserves; below that it may start a gang that goes beyond."""
        due = self.deserved.get(queue, (0.0, 0.0, 0.0))
        return any(due) and all(
            part + 1e-6 >= share for part, share in zip(self.holdings.of(queue), due, strict=True)
        )


def _most(job: JobView) -> int:
    return max(job.traits.most or job.shape.tasks, job.shape.tasks)


def _pod(shape: Shape) -> Shape:
    return Shape(
        1, shape.each, shape.milli, shape.slice, shape.types, shape.cpus, shape.memory, (), shape.partition
    )


def volcano(
    *,
    period: float = 1.0,
    score: Literal["pack", "spread"] = "pack",
    preempt: bool = True,
    reclaim: bool = True,
    mixed_types: bool = False,
) -> Policy:
    """A gang starts when its least number of pods can be placed together; elastic jobs grow pod by pod.

    Queues are tenants and share every resource by weight; the queue with the smallest fraction of its
    deserved share goes first. Every `period` seconds a session starts gangs, evicts pods beyond a gang for
    gangs without room (of lower priority in the same queue: `preempt`; of queues over their share:
    `reclaim`), and lets jobs grow. The pods of a job are on one GPU type, the types tried in the order of its
    request; with `mixed_types` pods go to any nodes that suit them. Deviations: the actions enqueue and
    backfill have nothing to do here (all pods exist, and all ask for resources); growth comes after both
    kinds of eviction.
    """
    return Sessions(
        quantum=micros(period),
        emptiest=score == "spread",
        preempt=preempt,
        reclaim=reclaim,
        mixed_types=mixed_types,
    )
