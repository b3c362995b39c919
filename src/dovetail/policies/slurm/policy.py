"""Batch schedulers: Slurm and OpenPBS (Yoo, Jette and Grondona, "SLURM", JSSPP 2003).

A sum of factors ranks the jobs (`priority_factors`), and backfill starts them (`reserved_backfill`). Slurm
has two passes: a quick one at every event, which starts jobs in order and stops at the first that does not
fit, and a backfill pass, at most every 30 s and only if something happened since the last.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from heapq import nsmallest
from typing import Literal

from dovetail.mechanisms.order.keys import arrival
from dovetail.mechanisms.queue.reserved_backfill import backfilled
from dovetail.model.units import micros
from dovetail.model.view import JobView, Order, Plan, Policy, View
from dovetail.policies.slurm.fair_tree import fair_tree
from dovetail.policies.slurm.priority_factors import (
    Usage,
    Weights,
    fair_share,
    multi_factor,
    usage_now,
    used_by,
)

NOTHING_USED = Usage()
WEEK = 604_800.0
DAY = 86_400.0


@dataclass(frozen=True, slots=True)
class UsageAndPass:
    """What is kept between decisions: the usage of each account, and the time of the last backfill pass."""

    usage: Usage = NOTHING_USED
    passed_at: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Multi-factor priority and backfill. Inside a group only arrival counts, so its head ranks first."""

    weights: Weights
    half_life: int
    max_age: int
    partitions: Mapping[str, float]
    qos_most: int
    interval: int  # between two backfill passes; 0: at every event
    window: int | None  # how far ahead a reservation may lie
    depth: int | None  # waiting jobs looked at in a pass
    reservations: int | None  # how many of them get a reservation
    overtaking: bool = True
    ranked: bool = False  # the fair-share factor is the rank in the tree of accounts
    order: Order = arrival
    quantum: int | None = None

    @property
    def group(self) -> Callable[[JobView], tuple[str, int]]:
        return _account

    def decide(self, view: View) -> Plan:
        now, plan = view.now, view.draft()
        kept = view.memory if isinstance(view.memory, UsageAndPass) else UsageAndPass()
        past = used_by(kept.usage, now, self.half_life)
        passed_at = kept.passed_at
        if len(view.queue):
            score = self._score(view, past)
            if self.overtaking and (passed_at is None or now - passed_at >= self.interval):
                self._backfill(view, plan, score)
                passed_at = now
            else:
                _in_order(view, plan, score)
                if self.overtaking and passed_at is not None and len(view.queue):
                    plan.review_at = passed_at + self.interval
        plan.memory = UsageAndPass(usage_now(now, past, plan.used), passed_at)
        return plan

    def _score(self, view: View, past: Mapping[str, float]) -> Callable[[JobView], float]:
        queue = view.queue
        waiting = {heap[0][2].tenant for shape in queue.shapes() for heap in queue.groups(shape).values()}
        factors = fair_tree if self.ranked else fair_share
        return multi_factor(
            view,
            factors(view.cluster, past, waiting),
            self.weights,
            max_age=self.max_age,
            partitions=self.partitions,
            qos_most=self.qos_most,
        )

    def _backfill(self, view: View, plan: Plan, score: Callable[[JobView], float]) -> None:
        def key(job: JobView) -> tuple[float, int, int]:
            return (-score(job), job.arrived_at, job.seq)

        queue, depth = view.queue, self.depth
        jobs = sorted(queue, key=key) if depth is None else nsmallest(depth, queue, key=key)
        backfilled(view, plan, jobs, reservations=self.reservations, window=self.window)


def _account(job: JobView) -> tuple[str, int]:
    return job.tenant, job.priority


def _in_order(view: View, plan: Plan, score: Callable[[JobView], float]) -> None:
    """Start by priority; a job that does not fit closes its partition to the jobs behind it."""
    shut: set[str] = set()
    partitioned = any(node.partitions for node in view.cluster.nodes)
    for job in view.queue.walk(rank=lambda job: -score(job)):
        partition = job.shape.partition
        if partition in shut:
            plan.deny(job, "Priority")
            continue
        spots = plan.room.best(job.shape)
        if spots is not None:
            plan.start(job, spots)
            continue
        plan.deny(job, "Resources")
        shut.add(partition)
        if not partitioned:
            return


def slurm(
    *,
    half_life: float = WEEK,
    max_age: float = WEEK,
    interval: float = 30.0,
    window: float | None = DAY,
    depth: int | None = 500,
    weight_age: float = 1000.0,
    weight_fair_share: float = 10_000.0,
    weight_size: float = 1000.0,
    weight_partition: float = 1000.0,
    weight_qos: float = 0.0,
    partitions: Mapping[str, float] | None = None,
    qos_most: int = 10,
    algorithm: Literal["classic", "fair_tree"] = "classic",
) -> Policy:
    """Fair-share priority, and backfill with a reservation for every waiting job (Yoo et al., JSSPP 2003).

    Accounts are tenants, a QOS is a job's priority (as part of `qos_most`), and `partitions` gives partitions
    their factors from 0 to 1. With `half_life=0` usage does not decay. The weights are those of the manual's
    example. With `algorithm=fair_tree`, Slurm's default since 19.05, the fair-share factor is the rank in the
    tree of accounts: all below an account that used less of its share go before all below its sibling.
    Deviations: no preemption by partition or QOS; times are not rounded to a resolution; a job that outlives
    its declared length is not killed.
    """
    return Batch(
        weights=Weights(
            age=weight_age,
            fair_share=weight_fair_share,
            size=weight_size,
            partition=weight_partition,
            qos=weight_qos,
        ),
        half_life=micros(half_life),
        max_age=micros(max_age),
        partitions=partitions or {},
        qos_most=qos_most,
        interval=micros(interval),
        window=None if window is None else micros(window),
        depth=depth,
        reservations=None,
        ranked=algorithm == "fair_tree",
    )


def openpbs(
    *,
    half_life: float = WEEK,
    max_age: float = WEEK,
    backfill_depth: int = 1,
    strict_ordering: bool = True,
    weight_age: float = 1000.0,
    weight_fair_share: float = 10_000.0,
    weight_size: float = 1000.0,
    weight_qos: float = 0.0,
    qos_most: int = 10,
) -> Policy:
    """The same priority, at every event, and backfill around the first `backfill_depth` waiting jobs.

    With `strict_ordering` these jobs have reservations, and a job behind them starts if it delays none;
    with a depth of 0 no job overtakes another. Without it a job that does not fit is skipped, and nothing is
    reserved for it.
    Deviations: OpenPBS ships with strict ordering off and helps jobs that starve, which is not modelled here.
    """
    if backfill_depth < 0:
        raise ValueError(f"backfill_depth is a number of jobs, 0 or more, not {backfill_depth}")
    return Batch(
        weights=Weights(
            age=weight_age, fair_share=weight_fair_share, size=weight_size, partition=0.0, qos=weight_qos
        ),
        half_life=micros(half_life),
        max_age=micros(max_age),
        partitions={},
        qos_most=qos_most,
        interval=0,
        window=None,
        depth=None,
        reservations=backfill_depth if strict_ordering else 0,
        overtaking=backfill_depth > 0 or not strict_ordering,
    )
