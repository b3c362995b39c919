"""Philly: virtual clusters that share what is idle, and gangs that wait for locality up to a point.

Jeon et al., "Analysis of Large-Scale Multi-Tenant GPU Clusters for DNN Training Workloads", ATC 2019.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from dovetail.mechanisms.order import arrival
from dovetail.mechanisms.quota import ceilings, guarantees, reclaim
from dovetail.mechanisms.relax import Patience, patiently
from dovetail.mechanisms.turns import turns
from dovetail.model.units import WHOLE, micros, spoken
from dovetail.model.view import JobView, Order, Plan, Policy, View

NO_END = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualClusters:
    """The virtual cluster furthest below its quota goes first; inside one, arrival."""

    delays: tuple[int, int]  # of patience: for a node, then for a rack
    preempt_above: float  # of the cluster in use
    fast_failure: int  # a job that failed sooner is its user's to mend
    order: Order = arrival
    group: None = None
    quantum: int | None = None

    def decide(self, view: View) -> Plan:
        plan = view.draft()
        quota = guarantees(view.cluster)
        most = ceilings(view.cluster, quota)
        patience = view.memory if isinstance(view.memory, Patience) else Patience()
        mistaken = self._refused(view, plan)

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

            return turns(view, part, without=mistaken)

        memory = patiently(
            view, plan, line(), patience, self.delays, admits=admits, make_room=make_room, count_all=True
        )
        if stopped:  # what they left beside is there for all
            plan.review_at = None
            memory = patiently(view, plan, line(), patience, self.delays, admits=admits, count_all=True)
        plan.memory = memory
        return plan

    def _refused(self, view: View, plan: Plan) -> set[str]:
        """Jobs that failed as soon as they ran: another try would fail alike."""
        mistaken = set()
        for job in view.arrived:
            failures = job.epoch - job.stops  # each start that did not end in a stop
            if job.spots is None and failures and job.executed_at(view.now) < self.fast_failure:
                plan.refuse(
                    job, f"failed within {spoken(job.executed_at(view.now))}: mend it and submit anew"
                )
                mistaken.add(job.id)
        return mistaken

    def _take_back(
        self,
        plan: Plan,
        quota: Mapping[str, float],
        newest: Sequence[JobView],
        job: JobView,
        fits: Callable[[], bool],
    ) -> Sequence[JobView]:
        """For a job within its quota, in a busy cluster, stop the newest jobs of those above theirs."""
        used, gpus = plan.used, plan.room.cluster.gpus
        if used.get(job.tenant, 0) + job.shape.load > quota.get(job.tenant, NO_END):
            return []
        if gpus - plan.room.free_gpus <= self.preempt_above * gpus:
            return []

        def over(other: JobView) -> bool:
            return used.get(other.tenant, 0) > quota.get(other.tenant, NO_END)

        if not any(over(other) for other in newest if other.spots is not None):
            return []
        return reclaim(plan, newest, over, fits)


def philly(
    *,
    back_off: float = 120.0,
    relax_after: int = 3,
    preempt_above: float = 0.9,
    fast_failure: float = 60.0,
) -> Policy:
    """Quotas by virtual cluster (tenant), idle GPUs for whoever asks, locality relaxed after some retries.

    A job tries again at every event and every `back_off` seconds; after `relax_after` such retries it settles
    for the next level of locality. Timers and counts are from memory. Reconstructed: `fast_failure` (a job
    that fails within so many seconds of running is not tried again; 0 tries all again).
    Deviation: retries that could change nothing are not made: they are counted by time.
    """
    patience = micros(back_off) * relax_after
    return VirtualClusters(
        delays=(patience, patience), preempt_above=preempt_above, fast_failure=micros(fast_failure)
    )
