"""Metrics for Prometheus, read when they are scraped. No label names a job: there are too many jobs.

What jobs have used is read from the store, so it survives restarts. Jobs that are over do not change any
more: all below the oldest active one are counted once and remembered, so a scrape costs what is active.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import sqlalchemy as sa
from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector
from sqlalchemy.engine import Connection

from dovetail.control import questions, tables
from dovetail.control.states import ACTIVE_WORDS
from dovetail.control.time_held import GPU_SECOND, HELD, attempt_end, attempt_gpu_seconds
from dovetail.model.units import SECOND

if TYPE_CHECKING:
    from dovetail.control.plane import Plane

WAITS = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3_600.0, 14_400.0, 43_200.0, 86_400.0, 604_800.0)

K = TypeVar("K")
_J, _A = tables.jobs.c, tables.attempts.c


@dataclass(slots=True)
class Totals:
    """Sums over some jobs."""

    jobs: Counter[tuple[str, str, str]] = field(default_factory=Counter)  # state, tenant, kind
    held: dict[tuple[str, str, str], float] = field(default_factory=dict)  # tenant, user, GPU type
    lost: dict[str, float] = field(default_factory=dict)  # how the last attempt ended
    waits: Counter[int] = field(default_factory=Counter)  # by bucket
    waited: float = 0.0

    def add(self, other: Totals) -> Totals:
        return Totals(
            self.jobs + other.jobs,
            _sum(self.held, other.held),
            _sum(self.lost, other.lost),
            self.waits + other.waits,
            self.waited + other.waited,
        )


def _sum(one: dict[K, float], other: dict[K, float]) -> dict[K, float]:
    return one | {key: one.get(key, 0.0) + amount for key, amount in other.items()}


class Metrics(Collector):
    """The metrics of a plane."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self._turn = threading.Lock()
        self._floor = 0  # all jobs below it are over, and in `_settled`
        self._settled = Totals()
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def exposition(self) -> tuple[bytes, str]:
        """What Prometheus reads, and its media type."""
        with self._turn:
            return generate_latest(self._registry), CONTENT_TYPE_LATEST

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        with self._plane.store.reading() as connection:
            totals = self._totals(connection)
            reasons = _reasons(connection)
        yield from _about_jobs(totals, reasons)
        yield from _about_gpus(questions.nodes(self._plane))
        yield from self._about_the_plane()

    def _totals(self, connection: Connection) -> Totals:
        oldest = connection.execute(sa.select(sa.func.min(_J.seq)).where(_J.state.in_(ACTIVE_WORDS))).scalar()
        if oldest is None:
            oldest = (connection.execute(sa.select(sa.func.max(_J.seq))).scalar() or 0) + 1
        now = self._plane.clock.now()
        if oldest < self._floor:  # does not happen; but then what was remembered is wrong
            self._floor, self._settled = 0, Totals()
        self._settled = self._settled.add(_read(connection, self._floor, oldest, now))
        self._floor = oldest
        return self._settled.add(_read(connection, oldest, None, now))

    def _about_the_plane(self) -> Iterator[Metric]:
        stats = self._plane.statistics
        policy, _ = self._plane.policy
        cycles = SummaryMetricFamily(
            "dovetail_scheduler_cycle_seconds",
            "Time of a scheduling cycle, from polling the engine to the orders to it.",
            labels=["policy"],
        )
        cycles.add_metric([policy], count_value=stats.ticks, sum_value=stats.cycle_seconds)
        yield cycles
        preempted = CounterMetricFamily(
            "dovetail_preemptions", "Attempts that were stopped by the scheduler.", labels=["reason"]
        )
        for reason, count in sorted(dict(stats.preemptions).items()):
            preempted.add_metric([reason], count)
        yield preempted
        failures = CounterMetricFamily(
            "dovetail_policy_failures", "Decisions in which a policy failed.", labels=["policy"]
        )
        for name, count in sorted(dict(stats.policy_failures).items()):
            failures.add_metric([name], count)
        yield failures
        yield GaugeMetricFamily(
            "dovetail_stand_in_policy_decides",
            "1 while another policy decides because the chosen one fails.",
            value=float(self._plane.policy_failure is not None),
        )
        yield CounterMetricFamily("dovetail_decisions", "Decisions of the policy.", value=stats.decisions)
        yield CounterMetricFamily("dovetail_commits", "Commits to the store.", value=stats.commits)
        errors = sorted(abs(error) for error in list(stats.eta_errors))
        off = GaugeMetricFamily(
            "dovetail_eta_error_seconds",
            "Error of recent start forecasts, by quantile.",
            labels=["quantile"],
        )
        for quantile in (0.5, 0.9):
            if errors:
                off.add_metric([str(quantile)], errors[min(len(errors) - 1, int(quantile * len(errors)))])
        yield off


def _read(connection: Connection, low: int, high: int | None, now: int) -> Totals:
    """Sums over the jobs of these numbers."""
    found = Totals()
    if high is not None and high <= low:
        return found
    these = [_J.seq >= low] if high is None else [_J.seq >= low, _J.seq < high]
    states = sa.select(_J.state, _J.tenant, _J.kind, sa.func.count()).where(*these)
    for state, tenant, kind, count in connection.execute(states.group_by(_J.state, _J.tenant, _J.kind)):
        found.jobs[state, tenant, kind] += count
    held = sa.func.sum(attempt_gpu_seconds(HELD.c.started_at, attempt_end(now)))
    usage = (
        sa.select(_J.tenant, _J.user, HELD.c.types, held)
        .join(HELD, HELD.c.job == _J.id)
        .where(*these)
        .group_by(_J.tenant, _J.user, HELD.c.types)
    )
    for tenant, user, types, amount in connection.execute(usage):
        found.held[tenant, user, types] = amount or 0.0
    losses = sa.select(_J.cause, sa.func.sum(_J.lost_time * (1.0 / GPU_SECOND))).where(
        *these, _J.lost_time > 0
    )
    for cause, amount in connection.execute(losses.group_by(_J.cause)):
        found.lost[cause or "running"] = amount or 0.0
    waits = sa.select(_A.waited).join(tables.jobs, _A.job == _J.id).where(*these)
    for (wait,) in connection.execute(waits):
        found.waits[bisect_left(WAITS, wait / SECOND)] += 1
        found.waited += wait / SECOND
    return found


def _reasons(connection: Connection) -> dict[str, int]:
    """Why jobs wait, as far as it is written down; the queue itself has no word for it."""
    query = sa.select(_J.reason, sa.func.count()).where(_J.state.in_(("pending", "held"))).group_by(_J.reason)
    return {reason or "Queued": count for reason, count in connection.execute(query)}


def _about_jobs(totals: Totals, reasons: dict[str, int]) -> Iterator[Metric]:
    jobs = GaugeMetricFamily("dovetail_jobs", "Jobs.", labels=["state", "queue", "kind"])
    for labels, count in sorted(totals.jobs.items()):
        jobs.add_metric(labels, count)
    yield jobs
    why = GaugeMetricFamily("dovetail_pending_reason_jobs", "Waiting jobs by reason.", labels=["reason"])
    for reason, count in sorted(reasons.items()):
        why.add_metric([reason], count)
    yield why
    held = CounterMetricFamily("dovetail_gpu_seconds", "GPU-seconds held.", labels=["queue", "user", "type"])
    for labels, amount in sorted(totals.held.items()):
        held.add_metric(labels, amount)
    yield held
    lost = CounterMetricFamily(
        "dovetail_lost_gpu_seconds", "GPU-seconds of work that was lost.", labels=["cause"]
    )
    for cause, amount in sorted(totals.lost.items()):
        lost.add_metric([cause], amount)
    yield lost
    waits = HistogramMetricFamily(
        "dovetail_queue_wait_seconds", "Time that a job was eligible and not running before a start."
    )
    buckets, count = [], 0
    for at, bound in enumerate(WAITS):
        count += totals.waits[at]
        buckets.append((str(bound), float(count)))
    count += totals.waits[len(WAITS)]
    waits.add_metric([], [*buckets, ("+Inf", float(count))], totals.waited)
    yield waits


def _about_gpus(nodes: Iterable[Any]) -> Iterator[Metric]:
    gpus = GaugeMetricFamily("dovetail_gpus", "Devices.", labels=["state", "type", "node"])
    free = scattered = 0
    for node in nodes:
        taken = sum(1 for _, held in node.devices if held)
        idle = node.gpus - taken
        gpus.add_metric(["allocated", node.type, node.name], taken)
        gpus.add_metric(["idle" if node.state == "up" else "unhealthy", node.type, node.name], idle)
        if node.state == "up":
            free += idle
            scattered += idle if taken else 0
    yield gpus
    yield GaugeMetricFamily(
        "dovetail_fragmentation_ratio",
        "Share of the idle devices that are on partly used nodes.",
        value=scattered / free if free else 0.0,
    )
