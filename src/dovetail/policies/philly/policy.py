"""Philly: virtual clusters that share idle GPUs, and gangs that wait for locality for a limited time.

Jeon et al., "Analysis of Large-Scale Multi-Tenant GPU Clusters for DNN Training Workloads", ATC 2019.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from dovetail.mechanisms.order.keys import arrival
from dovetail.mechanisms.order.round_robin import round_robin
from dovetail.mechanisms.place.locality import LocalityWaits, start_with_locality
from dovetail.mechanisms.preempt.reclaim import reclaim
from dovetail.mechanisms.quota.tenant_quota import ceilings, guarantees
from dovetail.model.units import WHOLE, micros, spoken
from dovetail.model.view import JobView, Order, Plan, Policy, View

NO_END = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualClusters:
    """The virtual cluster furthest below its quota goes first; inside one, arrival."""

    delays: tuple[int, int]  # waiting for one node, then for one rack
    preempt_above: float  # fraction of the cluster in use
    fast_failure: int  # a job that failed sooner is refused: its user has to fix it
    order: Order = arrival
    group: None = None
    quantum: int | None = None

    def decide(self, view: View) -> Plan:
        plan = view.draft()
        quota = guarantees(view.cluster)
        most = ceilings(view.cluster, quota)
        waits = view.memory if isinstance(view.memory, LocalityWaits) else LocalityWaits()
        refused = self._refused(view, plan)

        def admits(job: JobView) -> bool:
            held, most_here = plan.used.get(job.tenant, 0) + job.shape.load, most.get(job.tenant, NO_END)
            return held <= most_here or plan.deny(job, "AssocGrpGRES", f"{job.tenant} may borrow no more")

        newest = sorted(view.running.values(), key=lambda job: (-job.started_at, -job.seq))
        whole = view.cluster.gpus * WHOLE
        stopped: list[JobView] = []

        def make_room(job: JobView, fits: Callable[[], bool]) -> bool:
            gone = self._take_back(plan, quota, newest, job, fits)
            stopped.extend(gone)
            return bool(gone)

        def line() -> Iterator[JobView]:
            def part(job: JobView) -> float:
                return plan.used.get(job.tenant, 0) / max(quota.get(job.tenant, whole), 1)

            return round_robin(view, part, without=refused)

        memory = start_with_locality(
            view, plan, line(), waits, self.delays, admits=admits, make_room=make_room, count_all=True
        )
        if stopped:  # devices that preemption freed beyond need are free for all
            plan.review_at = None
            memory = start_with_locality(
                view, plan, line(), waits, self.delays, admits=admits, count_all=True
            )
        plan.memory = memory
        return plan

    def _refused(self, view: View, plan: Plan) -> set[str]:
        """Jobs that failed soon after they started: another try would fail too."""
        refused = set()
        for job in view.arrived:
            failures = job.epoch - job.stops  # each start that did not end in a stop
            if job.spots is None and failures and job.executed_at(view.now) < self.fast_failure:
                plan.refuse(
                    job, f"failed within {spoken(job.executed_at(view.now))}: fix it and submit it again"
                )
                refused.add(job.id)
        return refused

    def _take_back(
        self,
        plan: Plan,
        quota: Mapping[str, float],
        newest: Sequence[JobView],
        job: JobView,
        fits: Callable[[], bool],
    ) -> Sequence[JobView]:
        """For a job within its quota, in a busy cluster, stop the newest jobs of tenants above quota."""
        used, gpus = plan.used, plan.room.cluster.gpus
        if used.get(job.tenant, 0) + job.shape.load > quota.get(job.tenant, NO_END):
            return []
        if gpus - plan.room.free_gpus <= self.preempt_above * gpus:
            return []

        def over(other: JobView) -> bool:
            return used.get(other.tenant, 0) > quota.get(other.tenant, NO_END)

        if not any(over(other) for other in newest if other.spots is not None):
            return []
        return reclaim(plan, job, newest, over, fits)


def philly(
    *,
    back_off: float = 120.0,
    relax_after: int = 3,
    preempt_above: float = 0.9,
    fast_failure: float = 60.0,
) -> Policy:
    """Quotas by virtual cluster (tenant), idle GPUs for all, and locality relaxed after some retries.

    A job tries again at every event and every `back_off` seconds; after `relax_after` such retries it accepts
    the next level of locality. Timers and counts are from memory. Reconstructed: `fast_failure` (a job that
    fails within this many seconds of running is not tried again; 0 tries all again).
    Deviation: retries that could change nothing are not made: they are counted by time.
    """
    delay = micros(back_off) * relax_after
    return VirtualClusters(
        delays=(delay, delay), preempt_above=preempt_above, fast_failure=micros(fast_failure)
    )
