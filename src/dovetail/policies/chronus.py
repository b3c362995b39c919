"""Chronus: deadlines are promised against a table of leases; other jobs use the rest (Gao et al., SoCC 2021).

A job with a deadline (an SLO job) is accepted on arrival if all accepted jobs still have enough leases before
their deadlines. Its leases are as late as possible, so that best-effort jobs run first where both can wait.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Literal

import numpy as np

from dovetail.mechanisms.order.keys import arrival
from dovetail.mechanisms.place.gpu_types import load_by_type
from dovetail.mechanisms.preempt.stopping import may_be_stopped, must_keep_running
from dovetail.mechanisms.rounds.active_jobs import gpu_jobs, start_cpu_jobs
from dovetail.mechanisms.rounds.leases import speeds_of
from dovetail.model.grant import Spots, nodes_of
from dovetail.model.topology import fewest_nodes
from dovetail.model.units import WHOLE, micros
from dovetail.model.view import JobView, Order, Plan, Policy, View
from dovetail.solve.lease_tables import Demand, IntVector, Table, backwards, exact

HORIZON = 4_096  # leases that are planned beyond what all accepted jobs need together

Check = Callable[[Sequence[Demand], IntVector], Table | None]


def chronus(*, lease: float = 300.0, margin: float = 0.0, check: Literal["fast", "exact"] = "fast") -> Policy:
    """Accept a deadline only if all accepted ones can be met, in leases of `lease` seconds.

    Run times are taken to be longer by the fraction `margin`, against estimates that are too short. The check
    is `fast` (greedy: it may refuse what is feasible, and never accepts what is not) or `exact` (by MILP).
    Lease [from memory]: a few minutes.
    """
    if lease <= 0 or margin < 0:
        raise ValueError(f"a lease is longer than 0, and margin is not negative: {lease}, {margin}")
    return Chronus(lease=micros(lease), margin=margin, exact=check == "exact")


@dataclass(frozen=True, slots=True)
class LeaseTable:
    """What is kept between decisions. Leases are counted from time 0."""

    leases: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # of each accepted job
    unaccepted: frozenset[str] = frozenset()  # jobs with a deadline that run as best effort


@dataclass(frozen=True, slots=True, kw_only=True)
class Chronus:
    """Accepted jobs in their leases; then best-effort jobs, least remaining service first."""

    lease: int
    margin: float
    exact: bool
    order: Order = arrival
    group: Callable[[JobView], Hashable] | None = None
    quantum: int | None = None

    def decide(self, view: View) -> Plan:
        plan = view.draft()
        start_cpu_jobs(view, plan)
        jobs = gpu_jobs(view)
        now, begins = view.now, view.now % self.lease == 0
        first = now // self.lease + (not begins)
        memory = view.memory if isinstance(view.memory, LeaseTable) else LeaseTable()
        accepted = [job for job in jobs if job.id in memory.leases]
        speeds = {id: min(of_job.values()) for id, of_job in speeds_of(view, jobs).items()}
        book = Book(self, view, jobs, speeds, first)
        table = book.renewed(accepted, memory.leases)
        unaccepted = memory.unaccepted & {job.id for job in jobs}
        for job in jobs:
            if job.deadline is None or job.id in table or job.id in unaccepted:
                continue
            found = book.table([*accepted, job]) if may_be_stopped(job) else None
            if found is None:
                plan.demote(job, job.priority - 1, "its deadline cannot be met with those that are promised")
                unaccepted |= {job.id}
            else:
                plan.accept(job, job.deadline)
                accepted.append(job)
                table = found
        self._grant(view, plan, book, jobs, table, begins=begins)
        plan.memory = LeaseTable(table, unaccepted)
        if view.running and (len(view.queue) or any(is_split(view, job) for job in accepted)):
            plan.review_at = (now // self.lease + 1) * self.lease
        return plan

    def _grant(
        self,
        view: View,
        plan: Plan,
        book: Book,
        jobs: Sequence[JobView],
        table: Mapping[str, tuple[int, ...]],
        *,
        begins: bool,
    ) -> None:
        """The jobs of this lease go on or start; when it begins, running jobs behind them are stopped."""
        planned = [job for job in jobs if begins and book.first in table.get(job.id, ())]
        best_effort = ranked([job for job in jobs if job.id not in table], view.now)
        others = [job for job in jobs if job.id in table and job not in planned]
        rest = [
            job for job in best_effort if may_be_stopped(job) or job.spots or book.leaves_room(job, table)
        ]
        line = [*planned, *rest, *moved_earlier(others)]
        before: dict[str, Spots] = {}
        if begins:
            before = _stopped(view, plan, jobs, line, book.capacity)
        movable = jobs if begins else ()
        for job in planned:
            if is_split(view, job) and not must_keep_running(job, view.now):
                _consolidate(view, plan, job, movable)
        for job in [*sorted(planned, key=lambda job: -job.shape.load), *line]:
            if job.spots is None:
                _place(view, plan, job, before, movable)
        for job in jobs:
            if job.spots is None:
                plan.deny(job, "Resources", "other jobs hold this lease")


class Book:
    """The leases from `first` on: what they hold, and what jobs need of them."""

    def __init__(
        self, policy: Chronus, view: View, jobs: Iterable[JobView], speeds: Mapping[str, float], first: int
    ) -> None:
        self.first = first
        self._policy, self._view, self._speeds = policy, view, speeds
        self._largest = max((node.gpus for node in view.cluster.nodes), default=0)
        self.capacity = sum(load_by_type(view.cluster, view.room).values())
        self._kept = [  # running jobs that no lease's end stops: their devices, and for how many leases
            (job.held, max(self.demand(job).need, 1))
            for job in jobs
            if job.spots is not None and not may_be_stopped(job)
        ]

    def demand(self, job: JobView) -> Demand:
        """The leases that a job still needs, if it runs to the end of this one or waits until then."""
        view, lease, speed = self._view, self._policy.lease, self._speeds[job.id]
        saves = job.traits.checkpoint
        left = job.remaining_at(view.now) + self._policy.margin * job.estimate
        if job.spots is not None:
            runs = view.speed(job, nodes=len(nodes_of(job.spots))).speed
            left -= max(self.first * lease - max(view.now, job.live_at), 0) * runs
        if job.spots is None or left > 0:
            left += (saves.save + saves.restore) * speed
        overdue = job.remaining_at(view.now) <= 0  # it runs longer than declared
        need = max(ceil(left / speed / lease), int(overdue))
        last = -1 if job.deadline is None else job.deadline // lease - self.first
        return Demand(need, rounded(job, self._largest), last)

    def table(self, jobs: Sequence[JobView]) -> dict[str, tuple[int, ...]] | None:
        """Leases for all of these jobs before their deadlines, if the check finds some."""
        demands = [self.demand(job) for job in jobs]
        room = self._room(demands)
        limited = [demand._replace(last=min(demand.last, len(room))) for demand in demands]
        found = (exact if self._policy.exact else fast_check)(limited, room)
        return None if found is None else self._counted_from_zero(jobs, found)

    def renewed(
        self, jobs: Sequence[JobView], old: Mapping[str, tuple[int, ...]]
    ) -> dict[str, tuple[int, ...]]:
        """The table of the accepted jobs as of now; if the check finds none, the old one, made to fit.

        Old leases keep their promise although the greedy check might not find them again. A job that is
        behind gets further leases, the last before its deadline first; then some after it.
        """
        found = self.table(jobs)
        if found is not None:
            return found
        demands = [self.demand(job) for job in jobs]
        room, table = self._room(demands), Table()
        for job, demand in zip(jobs, demands, strict=True):
            kept = [t - self.first for t in old[job.id] if self.first <= t < self.first + len(room)]
            table.append(tuple(kept[max(len(kept) - demand.need, 0) :]))
            room[list(table[-1])] -= demand.width
        for i, (need, width, last) in enumerate(demands):
            free = [t for t in np.flatnonzero(room >= width).tolist() if t not in table[i]]
            in_time = sum(t < last for t in free)
            more = [*reversed(free[:in_time]), *free[in_time:]][: need - len(table[i])]
            room[more] -= width
            table[i] = tuple(sorted((*table[i], *more)))
        return self._counted_from_zero(jobs, table)

    def leaves_room(self, job: JobView, table: Mapping[str, tuple[int, ...]]) -> bool:
        """Whether a job that cannot be stopped again would take no lease of an accepted job."""
        jobs = [self._view_of(id) for id in table]
        room = self._room([self.demand(each) for each in jobs])
        for each in jobs:
            room[[t - self.first for t in table[each.id] if t - self.first < len(room)]] -= rounded(
                each, self._largest
            )
        return bool((room[: self.demand(job).need] >= job.shape.load).all())

    def _view_of(self, id: str) -> JobView:
        running = self._view.running.get(id)
        return running if running is not None else next(job for job in self._view.queue if job.id == id)

    def _room(self, demands: Sequence[Demand]) -> IntVector:
        """Milli-GPUs of each lease that is looked at."""
        kept = max((leases for _, leases in self._kept), default=0)
        length = sum(demand.need for demand in demands) + min(kept, HORIZON)
        latest = max((demand.last for demand in demands), default=0)
        room = np.full(max(min(latest, length + HORIZON), length), self.capacity, np.int64)
        for held, leases in self._kept:
            room[:leases] -= held
        return room

    def _counted_from_zero(self, jobs: Sequence[JobView], table: Table) -> dict[str, tuple[int, ...]]:
        return {
            job.id: tuple(self.first + t for t in leases) for job, leases in zip(jobs, table, strict=True)
        }


fast_check: Check = backwards


def rounded(job: JobView, node: int) -> int:
    """Milli-GPUs for which a job counts: a power of two inside a node, else whole nodes, so that it packs."""
    gpus = job.shape.gpus
    if not job.shape.exclusive or not node:
        return job.shape.load
    return WHOLE * (min(1 << (gpus - 1).bit_length(), node) if gpus <= node else -(-gpus // node) * node)


def ranked(jobs: Iterable[JobView], now: int) -> list[JobView]:
    """Best-effort jobs: least remaining service first."""
    return sorted(jobs, key=lambda job: (job.shape.load * job.remaining_at(now), job.seq))


def moved_earlier(jobs: Sequence[JobView]) -> Sequence[JobView]:
    """Accepted jobs that may use what this lease has left: those with later leases."""
    return jobs


def sensitive(job: JobView) -> bool:
    """Whether a job is slower on more nodes than it needs."""
    profile = job.traits.profile
    if profile is None:
        return False
    splits = profile.split.values() if isinstance(profile.split, Mapping) else (profile.split,)
    return profile.skewed or bool(profile.gradient) or max(splits, default=1.0) > 1


def _stopped(
    view: View, plan: Plan, jobs: Sequence[JobView], line: Sequence[JobView], capacity: int
) -> dict[str, Spots]:
    """Stop the running jobs that the devices do not reach, going down the line; where they were."""
    kept = {job.id for job in jobs if must_keep_running(job, view.now)}
    budget = capacity - sum(job.held for job in jobs if job.id in kept)
    chosen = set(kept)
    for job in line:
        if job.id not in chosen and job.shape.load <= budget:
            budget -= job.shape.load
            chosen.add(job.id)
    before = {}
    for job in jobs:
        if job.spots is not None and job.id not in chosen:
            before[job.id] = job.spots
            plan.stop(job)
    return before


def _place(
    view: View, plan: Plan, job: JobView, before: Mapping[str, Spots], among: Sequence[JobView]
) -> None:
    """Start a job where it was, else packed; a job that is slower when split may move others for that."""
    room = plan.room
    was = before.get(job.id)
    if was is not None and all(room.is_open(s[0]) and room.free_on(s[0]) & s[1] == s[1] for s in was):
        plan.start(job, was)
        return
    spots = room.best(job.shape)
    if spots is None and sensitive(job) and consolidated(view, plan, job, among):
        return
    spots = spots or room.anywhere(job.shape)
    if spots is not None:
        plan.start(job, spots)


def consolidated(view: View, plan: Plan, job: JobView, among: Sequence[JobView]) -> bool:
    """Local search: move the smallest jobs off one node, so that this job fits on it; whether that worked."""
    for node in range(len(view.cluster.nodes)):
        there = [each for each in among if each.spots is not None and nodes_of(each.spots) == {node}]
        moved: list[tuple[JobView, Spots]] = []
        for other in sorted(there, key=lambda each: (each.shape.load, each.seq)):
            if plan.room.best(job.shape) is not None:
                break
            if other.spots is not None and not must_keep_running(other, view.now):
                moved.append((other, other.spots))
                plan.stop(other)
        tried = [job, *(other for other, _ in reversed(moved))]
        if all(_started_packed(plan, each) for each in tried):
            return True
        for each in tried:
            if each.spots is not None:
                plan.stop(each)
        for other, was in moved:
            plan.start(other, was)
    return False


def is_split(view: View, job: JobView) -> bool:
    """Whether a job runs slower than it could, on more nodes than it needs."""
    spots = job.spots
    return (
        spots is not None and sensitive(job) and len(nodes_of(spots)) > fewest_nodes(view.cluster, job.shape)
    )


def _consolidate(view: View, plan: Plan, job: JobView, among: Sequence[JobView]) -> None:
    """Move a running job to fewer nodes, if that works."""
    was = job.spots
    assert was is not None
    plan.stop(job)
    others = [other for other in among if other is not job]
    if not _started_packed(plan, job) and not consolidated(view, plan, job, others):
        plan.start(job, was)


def _started_packed(plan: Plan, job: JobView) -> bool:
    spots = plan.room.best(job.shape) if sensitive(job) else plan.room.anywhere(job.shape)
    return spots is not None and plan.start(job, spots)
