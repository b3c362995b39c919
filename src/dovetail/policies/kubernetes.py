"""Kubernetes' own scheduler: one pod at a time, without gangs.

The pods of a job are bound one by one, each to the best node for it alone, and hold their GPUs while they
wait for the other pods. Two jobs that each hold half of what both need wait for ever: the real scheduler has
this deadlock too, and gang schedulers (`volcano`, `kueue`) avoid it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from typing import Literal, NamedTuple, cast

from dovetail.mechanisms.order.keys import by_priority_class
from dovetail.mechanisms.place.pods import cheapest_eviction, joined, pod_spots, tasks_in, without_one
from dovetail.mechanisms.quota.tenant_quota import under_limits
from dovetail.model.grant import Spots
from dovetail.model.job import Shape
from dovetail.model.units import micros
from dovetail.model.view import JobView, Order, Plan, Policy, View


class Pending(NamedTuple):
    """The unbound pods of a job in the scheduling queue."""

    queued_at: int
    tries: int = 0
    ready_at: int = 0  # the end of their back-off
    active: bool = True  # room was freed for them since the last failed try


Entry = tuple[int, int, int, int, JobView]  # a job with unbound pods, and before it what sorts it


@dataclass(frozen=True, slots=True, kw_only=True)
class PodByPod:
    """Pods in order of priority and time, each to a node that fits; a pod that fits no node backs off."""

    emptiest: bool
    backoff: int
    backoff_most: int
    preempt: bool
    order: Order = by_priority_class
    group: Callable[[JobView], Hashable] | None = None
    quantum: int | None = None

    def decide(self, view: View) -> Plan:
        plan = view.draft()
        _Cycles(self, view, plan).run()
        return plan


class _Cycles:
    """The scheduling cycles of one instant."""

    def __init__(self, policy: PodByPod, view: View, plan: Plan) -> None:
        self.policy, self.view, self.plan = policy, view, plan
        self.state = cast("Mapping[str, Pending]", view.memory or {})
        self.kept: dict[str, Pending] = {}
        self.active: list[Entry] = []
        self.full: set[Shape] = set()

    def run(self) -> None:
        view, now = self.view, self.view.now
        fits: dict[Shape, bool] = {}
        ready_at: list[int] = []
        partial = [view.running[name] for name in self.state if name in view.running]
        for job in (*view.queue, *(job for job in partial if _unbound(job))):
            pending = self.state.get(job.id) or Pending(job.waiting_since)
            if job.spots is None and job.waiting_since > pending.queued_at:
                pending = Pending(job.waiting_since)  # it has lost all its pods
            pod = _pod(job)
            if pod not in fits:
                fits[pod] = bool(pod_spots(self.plan.room, pod, 1))
            if not pending.active and fits[pod] and self._allowed(job):
                pending = pending._replace(active=True)
            if pending.active and pending.ready_at <= now:
                self.active.append(_entry(job, pending.queued_at))
            elif pending.active:
                ready_at.append(pending.ready_at)
            self.kept[job.id] = pending
        heapify(self.active)
        while self.active:
            self._cycle(heappop(self.active))
        self.plan.review_at = min(ready_at, default=None)
        self.plan.memory = self.kept

    def _cycle(self, entry: Entry) -> None:
        _, queued_at, _, _, job = entry
        pod = _pod(job)
        spots = () if pod in self.full else pod_spots(self.plan.room, pod, 1, emptiest=self.policy.emptiest)
        if not spots:
            self.full.add(pod)
            if self.policy.preempt and self._evict(job, pod):
                spots = pod_spots(self.plan.room, pod, 1, emptiest=self.policy.emptiest)
        if spots and self._bind(job, spots):
            if _unbound(job):
                heappush(self.active, _entry(job, queued_at))
            else:
                self.kept.pop(job.id, None)
            return
        if not spots:
            self.plan.deny(job, "Resources", f"{_unbound(job)} of {job.shape.tasks} pods fit no node")
        self._back_off(job)

    def _bind(self, job: JobView, spots: Spots) -> bool:
        if job.spots is None:
            return self.plan.start(job, spots)
        return self.plan.shift(job, joined(job.spots, spots))

    def _evict(self, job: JobView, pod: Shape) -> bool:
        """Evict pods of lower priority from the node where that costs least; they are queued again."""
        if not self._allowed(job):
            return False
        eviction = cheapest_eviction(self.plan.room, pod, job.priority, self.view.running.values())
        if eviction is None:
            return False
        self.full.clear()
        for victim in eviction.pods:
            rest = without_one(victim.spots or (), victim.shape, eviction.node)
            if rest:
                self.plan.shift(victim, rest)
            else:
                self.plan.stop(victim, by=job)
            self.kept[victim.id] = Pending(self.view.now)
            others = [entry for entry in self.active if entry[4] is not victim]
            self.active = [*others, _entry(victim, self.view.now)]
        heapify(self.active)
        return True

    def _back_off(self, job: JobView) -> None:
        policy, tries = self.policy, self.kept[job.id].tries
        wait = min(policy.backoff << min(tries, 30), policy.backoff_most)
        self.kept[job.id] = Pending(self.view.now, tries + 1, self.view.now + wait, active=False)

    def _allowed(self, job: JobView) -> bool:
        pod = job.shape.each * job.shape.milli
        return under_limits(self.view.cluster, self.plan.used, job.tenant, pod)


def _entry(job: JobView, queued_at: int) -> Entry:
    """By priority, then time in the queue; pods of equal jobs alternate, as their controllers create them."""
    return -job.priority, queued_at, _bound(job), job.seq, job


def _bound(job: JobView) -> int:
    return tasks_in(job.spots, job.shape) if job.spots is not None else 0


def _unbound(job: JobView) -> int:
    return job.shape.tasks - _bound(job)


def _pod(job: JobView) -> Shape:
    """The shape of one pod; helpers come with the first."""
    pod = job.shape.of(1)
    return replace(pod, roles=()) if job.spots is not None and pod.roles else pod


def k8s_default(
    *,
    score: Literal["spread", "pack"] = "spread",
    backoff: float = 1.0,
    backoff_most: float = 10.0,
    preempt: bool = True,
) -> Policy:
    """One pod at a time to the emptiest (or fullest) node that fits; no gangs.

    Pods that fit no node wait `backoff` seconds, twice as long each time up to `backoff_most`, and are then
    tried again if room was freed. Deviations: pods of jobs submitted at one instant alternate; an evicted pod
    leaves the other pods of its job in place and loses no work; a pod with a part of a GPU evicts no pod.
    """
    return PodByPod(
        emptiest=score == "spread",
        backoff=micros(backoff),
        backoff_most=micros(backoff_most),
        preempt=preempt,
    )
