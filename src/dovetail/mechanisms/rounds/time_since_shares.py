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
    rows_of,
)
from dovetail.model.view import JobView, View


def _counted(state: RoundState, view: View, jobs: Sequence[JobView], length: int) -> RoundState:
    """The state with the time of the last round added; jobs that have ended are dropped."""
    spent, none = view.now - state.began_at, (0.0,) * len(state.ways)
    had: dict[Runner, Row] = {runner: state.had.get(runner, none) for runner in active_runners(state, jobs)}
    for runner, way in state.runs.items():
        if runner in had and way in state.ways:  # its node may be drained
            at, times = state.ways.index(way), had[runner]
            had[runner] = (*times[:at], times[at] + spent, *times[at + 1 :])
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
    line: list[tuple[JobView, JobView | None]] = [(job, None) for job in jobs]
    runners: list[Runner] = [job.id for job in jobs]
    pairs = [pair for pair in state.shares if not isinstance(pair, str)]
    if pairs:
        by_id = {job.id: job for job in jobs}
        line += [(by_id[late], by_id[early]) for early, late in pairs]
        runners += pairs
    share, had, owed = rows_of((state.shares, state.had, state.owed), runners, len(state.ways))
    keys = [-share, -owed, -share / (had + length / 2)]
    if pairs:  # earlier jobs first, as they are, and a job before its pairs
        late = np.array([job.seq for job, _ in line])
        early = np.array([-1 if other is None else other.seq for _, other in line])
        keys = [np.broadcast_to(each[:, None], share.shape) for each in (early, late)] + keys
    orders = np.lexsort(keys, axis=0).T.tolist()
    usable, wanted = (among.worth > 0.0).tolist(), (share != 0.0).tolist()
    for way in among.ways:
        kind, k = type_of(way), state.ways.index(way)
        for i in orders[k]:
            if left.get(kind, 0) <= 0:
                break
            job, other = line[i]
            if job.id in chosen or (other is not None and other.id in chosen):
                continue
            if not (usable if other is None else wanted)[i][k] or job.shape.load > left[kind]:
                continue
            if idle or wanted[i][k]:
                left[kind] -= job.shape.load
                chosen[job.id] = Pick(job, way, other)
                if other is not None:
                    chosen[other.id] = Pick(other, way, job)
    return [
        pick
        for pick in chosen.values()
        if pick.job.id in state.shares or pick.beside is not None or pick.job.spots is not None
    ]


FORGETFUL = Rule(_counted, _with_new_shares, _picked)
