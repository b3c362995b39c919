"""Gavel's own rule for the jobs of a round: a job's share over the time that it had since the last shares.

Way by way, the jobs that are furthest behind run. Every job starts with half a round of time, so that new
jobs run in order of their shares. A job without a share of a type is picked last: devices that no other job
wants are not left idle. When shares are set again, the time that jobs had is forgotten; what they missed of
the last shares only breaks ties.

That is what the authors' program does, and runs are compared with it by this rule. Its shares do not come
true if jobs arrive in every round: all start anew each time, and a job with a small share is never the
furthest behind. It knows no limits of tenants either: the devices of a job that its tenant's limit keeps
from starting are idle for a round. `owed_time` does better.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dovetail.mechanisms.place.gpu_types import type_of
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
    runner_of,
)
from dovetail.model.view import JobView, View
from dovetail.solve.time_shares import Matrix


def _counted(state: RoundState, view: View, jobs: Sequence[JobView], length: int) -> RoundState:
    """The state with the time of the last round added; jobs that have ended are dropped."""
    spent, none = view.now - state.began_at, (0.0,) * len(state.ways)
    had: dict[Runner, Row] = {}
    for runner in active_runners(state, jobs):
        times = state.had.get(runner, none)
        if (way := state.runs.get(runner)) in state.ways:  # its node may be drained
            at = state.ways.index(way)
            times = (*times[:at], times[at] + spent, *times[at + 1 :])
        had[runner] = times
    owed = {runner: state.owed[runner] for runner in had if runner in state.owed}
    shares = {runner: share for runner, share in state.shares.items() if runner in had}
    return replace(state, had=had, owed=owed, runs={}, shares=shares)


def _with_new_shares(
    state: RoundState, view: View, shares: Shares, basis: frozenset[tuple[str, int]]
) -> RoundState:
    """The state with new shares: time missed of the last ones is kept, and breaks ties from now on."""
    passed, none = view.now - (state.shares_set_at or 0), (0.0,) * len(state.ways)
    owed: dict[Runner, Row] = {}
    for runner, times in state.had.items():
        before, share = state.owed.get(runner, none), state.shares.get(runner, none)
        owed[runner] = tuple([b + s * passed - t for b, s, t in zip(before, share, times, strict=True)])
    had: dict[Runner, Row] = dict.fromkeys(state.had, none)
    return replace(state, shares=shares, shares_set_at=view.now, basis=basis, had=had, owed=owed)


def _picked(state: RoundState, view: View, among: Candidates, length: int, idle: bool) -> list[Pick]:
    """The jobs of the next round: way by way, those furthest behind first, while there are devices.

    A job that arrived after the shares were set waits for the next shares, but devices that no other job has
    a share of are kept for it. Without `idle` no job runs in a way that it has no share of.
    """
    left = dict(among.left)
    chosen = kept_running(view, left)
    jobs = among.jobs
    by_id = {job.id: job for job in jobs}
    pairs = [(by_id[runner[1]], by_id[runner[0]]) for runner in state.shares if not isinstance(runner, str)]
    line: list[tuple[JobView, JobView | None]] = [(job, None) for job in jobs]
    line += pairs
    runners = [runner_of(*two) for two in line]
    share, had, owed = (
        _rows(rows, runners, len(state.ways)) for rows in (state.shares, state.had, state.owed)
    )
    behind = share / (had + length / 2)
    usable = (among.worth > 0.0).tolist()
    # Earlier jobs first, a job before its pairs.
    late = np.array([job.seq for job, _ in line])
    early = np.array([-1 if other is None else other.seq for _, other in line])
    for way in among.ways:
        kind, k = type_of(way), state.ways.index(way)
        order = np.lexsort((early, late, -share[:, k], -owed[:, k], -behind[:, k]))
        for i in order.tolist():
            if left.get(kind, 0) <= 0:
                break
            job, other = line[i]
            if job.id in chosen or (other is not None and other.id in chosen):
                continue
            if other is None:
                if not usable[i][k]:
                    continue
            elif not share[i, k]:
                continue
            if job.shape.load > left[kind]:
                continue
            if idle or share[i, k]:
                left[kind] -= job.shape.load
                chosen[job.id] = Pick(job, way, other)
                if other is not None:
                    chosen[other.id] = Pick(other, way, job)
    return [
        pick
        for pick in chosen.values()
        if pick.job.id in state.shares or pick.beside is not None or pick.job.spots is not None
    ]


def _rows(rows: Shares, runners: Sequence[Runner], ways: int) -> Matrix:
    none = (0.0,) * ways
    return np.array([rows.get(runner, none) for runner in runners], dtype=np.float64).reshape(
        len(runners), ways
    )


FORGETFUL = Rule(_counted, _with_new_shares, _picked)
