"""Kueue: whole workloads are admitted against quotas, before any of their pods exists."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, NamedTuple, cast

from dovetail.mechanisms.order.keys import by_priority_class
from dovetail.mechanisms.place.gpu_types import held_type, of_type
from dovetail.mechanisms.place.placement import Placement
from dovetail.mechanisms.place.pods import (
    by_type,
    joined,
    least_tasks,
    pod_spots,
    spread,
    stacked,
    suits,
    tasks_in,
)
from dovetail.mechanisms.preempt.reclaim import latest_first, reclaim
from dovetail.mechanisms.queue.reviews import review_by
from dovetail.mechanisms.quota.tenant_quota import THE_CLUSTER, nominal, over_quota
from dovetail.model.grant import Spots
from dovetail.model.job import Shape
from dovetail.model.units import MINUTE, micros
from dovetail.model.view import JobView, Key, Order, Plan, Policy, Room, View

LONGEST_BACKOFF = 60 * MINUTE


class Requeued(NamedTuple):
    """A workload that was evicted because its pods did not all start in time."""

    times: int
    until: int


class AdmittedWorkloads(NamedTuple):
    """What is kept between decisions: admitted workloads with pods missing, and requeued workloads."""

    unready: Mapping[str, int]  # and since when
    requeued: Mapping[str, Requeued]


def _queue(job: JobView) -> tuple[str, str]:
    """By queue; a job that ran before has a group of its own: it may have to back off while others go on."""
    return job.tenant, job.id if job.epoch else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """Admit by quota, borrow inside the cohort, evict borrowers when the owner needs its quota."""

    strict: bool
    reclaims: bool
    preempts: bool
    ready_timeout: int
    backoff: int
    emptiest: bool
    whole: bool
    order: Order = by_priority_class
    group: Callable[[JobView], Hashable] = _queue
    quantum: int | None = None
    waives: ClassVar[frozenset[str]] = frozenset({"whole gangs"})  # until their ready timeout

    def decide(self, view: View) -> Plan:
        plan = view.draft()
        _Cycle(self, view, plan).run()
        return plan


class _Cycle:
    """One decision."""

    def __init__(self, policy: Admission, view: View, plan: Plan) -> None:
        self.policy, self.view, self.plan = policy, view, plan
        self.place: Placement = spread if policy.emptiest else stacked
        self.quota = nominal(view.cluster)
        kept = cast("AdmittedWorkloads", view.memory or AdmittedWorkloads({}, {}))
        self.unready = {name: at for name, at in kept.unready.items() if name in view.running}
        self.requeued = dict(kept.requeued)
        if self.requeued:  # some may have been cancelled since
            waiting = {job.id for job in view.queue}
            self.requeued = {
                name: at for name, at in self.requeued.items() if name in waiting or name in view.running
            }

    def run(self) -> None:
        self._complete()
        while self._admit():
            pass
        for since in self.unready.values():
            review_by(self.plan, since + self.policy.ready_timeout)
        keep = self.unready or self.requeued
        self.plan.memory = AdmittedWorkloads(self.unready, self.requeued) if keep else None

    def _complete(self) -> None:
        """Bind missing pods of admitted workloads; requeue those that took too long."""
        plan, now = self.plan, self.view.now
        for name, since in sorted(self.unready.items(), key=lambda item: (item[1], item[0])):
            job = self.view.running[name]
            spots = job.spots or ()
            missing = job.shape.tasks - tasks_in(spots, job.shape)
            pods = replace(job.shape, roles=())
            if pods.each:
                pods = of_type(pods, held_type(self.view.cluster, job))
            more = pod_spots(plan.room, pods, missing, emptiest=self.policy.emptiest)
            if more and plan.shift(job, joined(spots, more)):
                missing -= tasks_in(more, job.shape)
            if missing <= job.shape.tasks - least_tasks(job):
                del self.unready[name]
            elif now - since >= self.policy.ready_timeout:
                plan.stop(job)
                del self.unready[name]
                times = self.requeued[name].times + 1 if name in self.requeued else 1
                wait = min(self.policy.backoff << min(times - 1, 20), LONGEST_BACKOFF)
                self.requeued[name] = Requeued(times, now + wait)

    def _admit(self) -> bool:
        """One walk over the heads of the queues; whether a job was evicted, so that another walk may help."""
        plan = self.plan
        closed: set[str] = set()
        short: list[JobView] = []
        for job in self.view.queue.walk(rank=self._rank):
            if job.tenant in closed or self._backs_off(job):
                continue
            over = self._over(job)
            if over is not None:
                short.append(job)
                if over == THE_CLUSTER:
                    plan.deny(job, "Resources")
                else:
                    plan.deny(job, "AssocGrpGRES", f"too little is left of the quota of {over}")
            elif self._start(job):
                continue
            elif self.policy.whole:
                short.append(job)
            if self.policy.strict:
                closed.add(job.tenant)
        return any(self._evict_for(job) for job in short)

    def _backs_off(self, job: JobView) -> bool:
        """Whether a job was requeued and its back-off is not over."""
        back = self.requeued.get(job.id)
        if back is None or back.until <= self.view.now:
            return False
        if self.place.find(self.plan.room, job) is not None:
            review_by(self.plan, back.until)
        return not self.plan.deny(job, "BeginTime", "its pods did not all start in time")

    def _start(self, job: JobView) -> bool:
        """Start all pods if there is room, else those that fit: the others may start until the timeout."""
        plan = self.plan
        spots = self.place.find(plan.room, job)
        if spots is None:
            if self.policy.whole or job.id in self.requeued:  # which waits until it fits
                return plan.deny(job, "Resources")
            spots = self._some_pods(job)
            if not spots:
                return plan.deny(job, "Resources")
        if not plan.start(job, spots):
            return False
        if tasks_in(spots, job.shape) < least_tasks(job):
            self.unready[job.id] = self.view.now
        else:
            self.requeued.pop(job.id, None)
        return True

    def _some_pods(self, job: JobView) -> Spots:
        """Spots for the pods that fit, on one GPU type that has enough free devices for all of them."""
        room = self.plan.room
        for flavour in by_type(room.cluster, job.shape):
            if _free(room, flavour) >= job.gpus:  # a flavour has no more quota than devices
                spots = pod_spots(room, flavour, job.shape.tasks, emptiest=self.policy.emptiest)
                if spots:
                    return spots
        return ()

    def _evict_for(self, job: JobView) -> bool:
        """Evict jobs of the cohort that borrow this job's quota, or jobs of lower priority."""
        plan, mine, line = self.plan, job.tenant, self.view.cluster.line
        used = self._used()
        reclaims = self.policy.reclaims and used.get(mine, 0) + job.shape.load <= self.quota.get(mine, 0)
        if not reclaims and not self.policy.preempts:
            return False
        cohort = line(mine)[1:]

        def may_leave(other: JobView) -> bool:
            if other.tenant == mine:
                return self.policy.preempts and other.priority < job.priority
            if not reclaims or not self._borrows(other.tenant):
                return False
            return any(name in cohort for name in line(other.tenant)[1:])

        def fits() -> bool:
            return self._over(job) is None and self.place.find(plan.room, job) is not None

        # A tenant that borrows nothing now borrows nothing after evictions, so only these are sorted.
        others = [other for other in self.view.running.values() if may_leave(other)]
        others.sort(key=lambda o: (o.tenant == mine, *latest_first(o)))
        gone = reclaim(plan, job, others, may_leave, fits)
        for other in gone:
            self.unready.pop(other.id, None)
        return bool(gone) and self._start(job)

    def _borrows(self, queue: str) -> bool:
        return self._used().get(queue, 0) > self.quota.get(queue, 0)

    def _rank(self, job: JobView) -> Key:
        """Queues within their quota go first; inside a queue the order does not change."""
        return self.plan.used.get(job.tenant, 0) >= self.quota.get(job.tenant, 0)

    def _over(self, job: JobView) -> str | None:
        return over_quota(self.view.cluster, self.quota, self._used(), job.tenant, job.shape.load)

    def _used(self) -> Mapping[str, int]:
        """The quota in use: devices held, and those that pods of admitted workloads have yet to get."""
        if not self.unready:
            return self.plan.used
        used = dict(self.plan.used)
        for name in self.unready:
            job = self.view.running.get(name)
            for tenant in self.view.cluster.line(job.tenant) if job is not None else ():
                used[tenant] = used.get(tenant, 0) + (job.shape.load - job.held if job is not None else 0)
        return used


def _free(room: Room, shape: Shape) -> int:
    """Devices free for a shape, on any nodes."""
    return sum(
        room.free_on(node).bit_count()
        for node in range(len(room.cluster.nodes))
        if suits(room.cluster, shape, node)
    )


def kueue(
    *,
    strategy: Literal["best-effort", "strict"] = "best-effort",
    reclaim: bool = True,
    preempt: bool = True,
    ready_timeout: float = 300.0,
    requeue_backoff: float = 60.0,
    score: Literal["spread", "pack"] = "spread",
    whole: bool = False,
) -> Policy:
    """A workload is admitted whole against its queue's quota, and may borrow inside its cohort.

    A queue is a tenant (`quota`, `borrow`), its cohort the parent. `reclaim` evicts borrowers, the latest
    first, when the owner needs its quota; `preempt` evicts lower priority inside a queue. If the pods of a
    workload do not all start within `ready_timeout` seconds, it is requeued for `requeue_backoff` seconds,
    twice as long each time. With `whole`, as under topology-aware scheduling, a workload is admitted only
    when all its pods have a place, and jobs are evicted to make this place. All pods of a workload are of one
    flavour: the GPU types that it accepts are tried in their order. Deviations: quotas count GPUs of all
    types together, and each type has no more quota than devices; a workload of which not one pod fits is
    not admitted; a requeued workload is admitted only when it fits whole.
    """
    return Admission(
        strict=strategy == "strict",
        reclaims=reclaim,
        preempts=preempt,
        ready_timeout=micros(ready_timeout),
        backoff=micros(requeue_backoff),
        emptiest=score == "spread",
        whole=whole,
    )
