"""Rounds by the time that is owed: received time follows the shares, whatever arrives or ends meanwhile.

Every job has an account for each way to run. In each round its share of the round is added, and the time that
it ran is taken off. New shares change what is added from then on; the accounts stay. A job's next round is
due when it is owed a whole one: with a share of 1/25, after 25 rounds. The job whose round is due first goes
first, in the way in which it is owed most ("earliest deadline first"). All devices are picked anew in each
round, so a wide job whose round is due is in front of the small ones, and finds room.

Jobs that are owed nothing come last: devices that no other job can use are not left idle. Time in a way in
which a job has no share is not counted.

Two limits keep one job from paying for another. Gangs may not fit together as well as their shares say (gangs
of 12 and 8 GPUs never fill 16), and a tenant's limit may keep a job from running. A job is owed `MOST` rounds
at most: what could not be had is forgotten beyond that. And a job that took idle devices is ahead by `MOST`
rounds at most.

A job that cannot be stopped at the end of a round may hold what a wider job waits for. While a job whose
round is due finds no room beside such jobs, no further such job takes its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dovetail.mechanisms.place.gpu_types import held_type, type_of
from dovetail.mechanisms.quota.tenant_quota import under_limits
from dovetail.mechanisms.rounds.time_share_rounds import (
    Candidates,
    Pick,
    RoundState,
    Row,
    Rule,
    Runner,
    Shares,
    active_runners,
    kept_running,
    rows_of,
)
from dovetail.model.view import JobView, View
from dovetail.solve.portable import rounded
from dovetail.solve.time_shares import Matrix, Vector

MOST = 4  # rounds that a job may be owed, or be ahead
LITTLE = 1e-6  # of a round: rounding
DIGITS = 20  # binary digits of a share that count


def _counted(state: RoundState, view: View, jobs: Sequence[JobView], length: int) -> RoundState:
    """The state with the last round in the accounts; jobs that have ended are dropped."""
    spent, ways = view.now - state.began_at, len(state.ways)
    runners = list(active_runners(state, jobs))
    share, owed = rows_of((state.shares, state.owed), runners, ways)
    ran = np.zeros(share.shape)
    place = {runner: i for i, runner in enumerate(runners)}
    for runner, way in state.runs.items():
        if (i := place.get(runner)) is not None and way in state.ways:  # its node may be drained
            end = view.now
            for each in (runner,) if isinstance(runner, str) else runner:
                if (job := jobs[place[each]]).spots is None:  # it was stopped before the end of the round
                    end = min(end, job.waiting_since)
            ran[i, state.ways.index(way)] = max(end - state.began_at, 0)
    ran[(share <= 0.0) & (owed <= 0.0)] = 0.0
    owed = np.minimum(np.maximum(owed + share * spent - ran, -MOST * length), MOST * length)
    kept = dict(zip(runners, map(tuple, owed.tolist()), strict=True))
    shares = {runner: row for runner, row in state.shares.items() if runner in place}
    return replace(state, owed=kept, runs={}, shares=shares)


def _with_new_shares(
    state: RoundState, view: View, shares: Shares, basis: frozenset[tuple[str, int]]
) -> RoundState:
    """The state with new shares; what is owed stays. Shares that differ by rounding become equal."""
    rows = rounded(np.array(list(shares.values())), DIGITS).tolist()
    even: dict[Runner, Row] = dict(zip(shares, map(tuple, rows), strict=True))
    return replace(state, shares=even, shares_set_at=view.now, basis=basis)


def _picked(state: RoundState, view: View, among: Candidates, length: int, idle: bool) -> list[Pick]:
    """The jobs of the next round: those whose round is due first, and then, if `idle`, any that find room."""
    jobs, ways = among.jobs, state.ways
    line: list[tuple[JobView, JobView | None]] = [(job, None) for job in jobs]
    runners: list[Runner] = [job.id for job in jobs]
    if len(state.shares) > len(jobs):
        by_id = {job.id: job for job in jobs}
        pairs = [pair for pair in state.shares if not isinstance(pair, str)]
        line += [(by_id[late], by_id[early]) for early, late in pairs]
        runners += pairs
    share, owed = rows_of((state.shares, state.owed), runners, len(ways))
    due = _due(share, owed, line, len(jobs), length)
    want = owed + share * length
    row, way = np.nonzero((want > LITTLE * length) & (idle | (share > 0.0)))
    keys = [-want[row, way], due[row]]
    if len(line) > len(jobs):  # a pair with its later job; jobs are in this order as they are
        seq = np.array([job.seq for job, _ in line])
        keys = [way, seq[row], *keys]
    order = np.lexsort(keys)
    filled, usable = _Filled(view, among, length), (among.worth > 0.0).tolist()
    late = (due <= 0.0).tolist()
    for i, k in zip(row[order].tolist(), way[order].tolist(), strict=True):
        if filled.full:
            break
        job, other = line[i]
        if job.id not in filled.chosen and (other is not None or usable[i][k]):
            filled.take(job, other, ways[k], late=late[i])
    _leave_in_place(filled, view, among, ways)
    if idle and not filled.full:
        places = [ways.index(name) for name in among.ways]
        for i in due[: len(jobs)].argsort(kind="stable").tolist():
            if filled.full:
                break
            if jobs[i].id not in filled.chosen:
                any(usable[i][k] and filled.take(jobs[i], None, ways[k]) for k in places)
    return list(filled.chosen.values())


def _due(
    share: Matrix, owed: Matrix, line: Sequence[tuple[JobView, JobView | None]], jobs: int, length: int
) -> Vector:
    """When the next round of each runner is due, in microseconds from now; of a pair, that of either job."""
    counts = np.where((share > 0.0) | (owed > 0.0), owed, 0.0)
    total = np.add.reduce(np.stack([share, counts]), axis=2)
    if len(line) > jobs:
        at = {job.id: i for i, (job, _) in enumerate(line[:jobs])}
        first = np.array([at[other.id] for _, other in line if other is not None])
        second = np.array([at[job.id] for job, other in line if other is not None])
        of_pairs = total[:, jobs:].copy()
        for side in (first, second):
            np.add.at(total.T, side, of_pairs.T)
    due: Vector = (length - total[1]) / np.maximum(total[0], 1e-9)
    if len(line) > jobs:
        due[jobs:] = np.minimum(due[first], due[second])
    return due


def _leave_in_place(filled: _Filled, view: View, among: Candidates, ways: Sequence[str]) -> None:
    """A job picked for another type stays on its own if that is no worse and no other job wants the room."""
    row: dict[str, int] = {}
    for job, way, other in list(filled.chosen.values()):
        if job.spots is not None and other is None:
            held = held_type(view.cluster, job)
            if held != type_of(way) and held in ways:
                row = row or {job.id: i for i, job in enumerate(among.jobs)}
                worth = among.worth[row[job.id]]
                if worth[ways.index(held)] >= worth[ways.index(way)]:
                    filled.move(job, held)


class _Filled:
    """A round as it fills up: devices left by type, and what each tenant holds."""

    def __init__(self, view: View, among: Candidates, length: int) -> None:
        self._cluster, self._length = view.cluster, length
        self._size, self._left = among.left, dict(among.left)
        self.chosen = kept_running(view, self._left)
        self._fixed = {kind: self._size.get(kind, 0) - left for kind, left in self._left.items()}
        self._awaited: dict[str, int] = {}  # by type: what the first job needs that found no room
        self._limited = any(tenant.limit is not None for tenant in view.cluster.tenants.values())
        self._used: dict[str, int] = {}
        for job, _, _ in self.chosen.values():
            self._hold(job, job.held)
        self.full = all(left <= 0 for left in self._left.values())

    def take(self, job: JobView, other: JobView | None, way: str, *, late: bool = False) -> bool:
        """Let a job, or a pair, run in a way, if there is room for it and its tenant's limit allows it."""
        kind, load = type_of(way), job.shape.load
        if load > self._left.get(kind, 0):
            if late and load <= self._size.get(kind, 0):
                self._awaited.setdefault(kind, load)
            return False
        if other is not None and other.id in self.chosen:
            return False
        stays = self._stays(job) or (other is not None and self._stays(other))
        if stays and self._fixed[kind] + load + self._awaited.get(kind, 0) > self._size[kind]:
            return False
        if self._limited and not self._within_limits(job, other, load):
            return False
        self._left[kind] -= load
        self._fixed[kind] += load if stays else 0
        self.chosen[job.id] = Pick(job, way, other)
        if other is not None:
            self.chosen[other.id] = Pick(other, way, job)
        if self._left[kind] <= 0:
            self.full = all(left <= 0 for left in self._left.values())
        return True

    def move(self, job: JobView, way: str) -> None:
        """Let a picked job run on another type, if there is room."""
        load, before = job.shape.load, type_of(self.chosen[job.id].way)
        if load <= self._left.get(way, 0) and not self._stays(job):
            self._left[way] -= load
            self._left[before] += load
            self.chosen[job.id] = Pick(job, way)
            self.full = False

    def _stays(self, job: JobView) -> bool:
        """Whether it cannot be stopped at the end of the round."""
        traits = job.traits
        if not traits.preemptible:
            return True
        saves = traits.checkpoint
        return not saves.on_stop and (saves.every is None or saves.every > self._length)

    def _within_limits(self, job: JobView, other: JobView | None, load: int) -> bool:
        """Whether the tenants' limits allow it; what is allowed is counted."""
        each = load if other is None else load // 2
        if not under_limits(self._cluster, self._used, job.tenant, each):
            return False
        self._hold(job, each)
        if other is None:
            return True
        if not under_limits(self._cluster, self._used, other.tenant, each):
            self._hold(job, -each)
            return False
        self._hold(other, each)
        return True

    def _hold(self, job: JobView, load: int) -> None:
        for name in self._cluster.line(job.tenant) if self._limited else ():
            self._used[name] = self._used.get(name, 0) + load


CARRIED_OVER = Rule(_counted, _with_new_shares, _picked)
