"""Rounds that give each job its share of time on each GPU type.

A policy sets what share of its time each job should spend on each GPU type. A job runs whole or not at all,
so the shares come true over rounds: in each round the jobs that are furthest behind their shares run, on the
type on which they are furthest behind. A job that is picked again for the type it holds is not disturbed.

How far behind a job is: its share of a type over the time that it ran there since the shares were last set.
Every job starts with half a round of such time, so that new jobs run in order of their shares. A job without
a share of a type is picked last: devices that no other job wants are not left idle.

Two jobs may have a share as a *pair*: time that they spend together on the same devices. A pair is picked
like a job, and takes both jobs; each then holds half of every device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from dovetail.mechanisms.place.gpu_types import (
    SPLIT,
    held_type,
    load_by_type,
    of_type,
    place_on,
    type_of,
)
from dovetail.mechanisms.preempt.stopping import must_keep_running
from dovetail.mechanisms.rounds.active_jobs import gpu_jobs
from dovetail.mechanisms.share.device_pairs import (
    HALF,
    devices_held,
    is_alone,
    partner_of,
    place_beside,
    shares_devices,
    spots_of,
)
from dovetail.model.cluster import Cluster
from dovetail.model.grant import devices_of, nodes_of
from dovetail.model.topology import fewest_nodes
from dovetail.model.units import WHOLE
from dovetail.model.view import JobView, Plan, View

Pair = tuple[str, str]  # two jobs, the earlier first
Runner = str | Pair  # a job, or two on the same devices
TimeShares = Mapping[Runner, Mapping[str, float]]  # job or pair -> way to run -> share of its time


class Pick(NamedTuple):
    """A job that runs in the next round, and in which way: on a type, packed or split."""

    job: JobView
    way: str
    beside: JobView | None = None  # the job on the same devices; it has a pick of its own


@dataclass(frozen=True, slots=True)
class RoundState:
    """What is kept from one round to the next. All times in microseconds."""

    number: int = 0  # rounds so far
    began_at: int = 0
    ends_at: int = 0
    shares_set_at: int | None = None
    basis: frozenset[tuple[str, int]] = frozenset()  # the jobs and the devices that the shares were set for
    shares: TimeShares = field(default_factory=dict)
    runs: Mapping[Runner, str] = field(default_factory=dict)  # in this round: job or pair -> way to run
    had: Mapping[Runner, Mapping[str, int]] = field(default_factory=dict)  # time since the shares were set
    owed: Mapping[Runner, Mapping[str, float]] = field(default_factory=dict)  # time missed of earlier shares


def round_over(state: RoundState, view: View) -> bool:
    """Whether the next round is due: this one has ended, or no job runs any more."""
    return view.now >= state.ends_at or not view.running


def with_round_counted(state: RoundState, view: View) -> RoundState:
    """The state with the time of the last round added; jobs that have ended are dropped."""
    spent = view.now - state.began_at
    here: dict[Runner, None] = {job.id: None for job in gpu_jobs(view)}
    for runner in (*state.shares, *state.had):
        if not isinstance(runner, str) and runner[0] in here and runner[1] in here:
            here[runner] = None
    had: dict[Runner, dict[str, int]] = {}
    for runner in here:
        times = dict(state.had.get(runner, {}))
        if (way := state.runs.get(runner)) is not None:
            times[way] = times.get(way, 0) + spent
        had[runner] = times
    owed = {runner: state.owed[runner] for runner in had if runner in state.owed}
    shares = {runner: share for runner, share in state.shares.items() if runner in had}
    return replace(state, had=had, owed=owed, runs={}, shares=shares)


def with_new_shares(
    state: RoundState, view: View, shares: TimeShares, basis: frozenset[tuple[str, int]]
) -> RoundState:
    """The state with new shares: time missed of the last ones is kept, and breaks ties from now on."""
    passed = view.now - (state.shares_set_at or 0)
    owed: dict[Runner, dict[str, float]] = {}
    for runner, times in state.had.items():
        before, share = state.owed.get(runner, {}), state.shares.get(runner, {})
        ways = {*times, *share, *before}
        owed[runner] = {
            way: before.get(way, 0.0) + share.get(way, 0.0) * passed - times.get(way, 0) for way in ways
        }
    had: dict[Runner, dict[str, int]] = {runner: {} for runner in state.had}
    return replace(state, shares=shares, shares_set_at=view.now, basis=basis, had=had, owed=owed)


def picked(
    state: RoundState,
    view: View,
    ways: Sequence[str],
    usable: Callable[[JobView, str], bool],
    length: int,
    *,
    idle: bool = True,
) -> list[Pick]:
    """The jobs of the next round: way by way, those furthest behind first, while there are devices.

    A job that arrived after the shares were set waits for the next shares, but devices that no other job has
    a share of are kept for it. Without `idle` no job runs in a way that it has no share of.
    """
    left = load_by_type(view.cluster, view.room)
    chosen: dict[str, Pick] = {}
    for job in view.running.values():
        if job.shape.each and must_keep_running(job, view.now):
            kind = held_type(view.cluster, job)
            partner = partner_of(view, job)
            partner = partner if partner is not None and must_keep_running(partner, view.now) else None
            chosen[job.id] = Pick(job, kind, partner)
            # The half that its partner gives up is no device for other jobs.
            alone = shares_devices(job) and partner is None
            left[kind] = left.get(kind, 0) - (devices_of(job.spots or ()) * WHOLE if alone else job.held)
    jobs = gpu_jobs(view)
    by_id = {job.id: job for job in jobs}
    pairs = [(by_id[runner[1]], by_id[runner[0]]) for runner in state.shares if not isinstance(runner, str)]
    for way in ways:
        kind = type_of(way)
        line: list[tuple[JobView, JobView | None]] = [(job, None) for job in jobs]
        line += [(late, early) for late, early in pairs if state.shares[early.id, late.id].get(way)]
        line.sort(key=lambda two: (_behind(state, two, way, length), _seniority(two)), reverse=True)
        for job, other in line:
            if left.get(kind, 0) <= 0:
                break
            if job.id in chosen or (other is not None and other.id in chosen):
                continue
            if job.shape.load > left[kind] or (other is None and not usable(job, way)):
                continue
            if idle or state.shares.get(_runner(job, other), {}).get(way):
                left[kind] -= job.shape.load
                chosen[job.id] = Pick(job, way, other)
                if other is not None:
                    chosen[other.id] = Pick(other, way, job)
    return [
        pick
        for pick in chosen.values()
        if pick.job.id in state.shares or pick.beside is not None or pick.job.spots is not None
    ]


def _runner(job: JobView, other: JobView | None) -> Runner:
    if other is None:
        return job.id
    return (job.id, other.id) if job.seq < other.seq else (other.id, job.id)


def _behind(
    state: RoundState, two: tuple[JobView, JobView | None], way: str, length: int
) -> tuple[float, float, float]:
    runner = _runner(*two)
    share = state.shares.get(runner, {}).get(way, 0.0)
    had = state.had.get(runner, {}).get(way, 0) + length / 2
    return share / had, state.owed.get(runner, {}).get(way, 0.0), share


def _seniority(two: tuple[JobView, JobView | None]) -> tuple[int, int]:
    """Earlier jobs first, a job before its pairs."""
    late, early = two
    return -late.seq, 1 if early is None else -early.seq


def round_begun(state: RoundState, view: View, picks: Iterable[Pick], length: int) -> RoundState:
    """The state at the start of a round."""
    runs = {
        _runner(job, other if other is not None and other.spots is not None else None): way
        for job, way, other in picks
        if job.spots is not None
    }
    return replace(state, number=state.number + 1, began_at=view.now, ends_at=view.now + length, runs=runs)


def plan_round(view: View, picks: Sequence[Pick]) -> Plan:
    """Run the picked jobs and no others; a job that already runs in its way stays where it is.

    The largest jobs are placed first, so that small ones do not break up the room that they need. Of a pair,
    one job stays if it can and the other joins it.
    """
    plan = view.draft()
    stay = _staying(view, picks)
    alone = {pick.job.id for pick in picks if shares_devices(pick.job) and is_alone(view, pick.job)}
    for job in list(view.running.values()):
        if job.shape.each and job.id not in stay:
            plan.stop(job)
    for job, _, other in picks:
        if job.id in stay and other is not None and not shares_devices(job):
            plan.shift(job, spots_of(job.shape, job.spots or (), HALF))
        elif job.id in stay and other is None and job.id in alone:
            plan.shift(job, spots_of(job.shape, job.spots or (), WHOLE))
    for job, way, other in sorted(picks, key=lambda pick: -pick.job.shape.load):
        if job.spots is None:
            spots = (
                place_on(plan.room, job.shape, way) if other is None else place_beside(plan, job, way, other)
            )
            if spots is None:
                plan.deny(job, "Resources", f"it is picked for {way}, but its devices are not free together")
            else:
                plan.start(job, spots)
    return plan


def _staying(view: View, picks: Sequence[Pick]) -> set[str]:
    """Jobs that go on where they are; of two that shared devices, only one can keep them for itself."""
    stay = {job.id for job in view.running.values() if must_keep_running(job, view.now)}
    taken = {devices_held(view.running[id]) for id in stay if view.running[id].shape.exclusive}
    for job, way, other in picks:
        if job.id in stay or not _runs_so(view.cluster, job, way):
            continue
        devices = devices_held(job)
        if job.shape.exclusive and devices in taken:
            together = other is not None and other.id in stay and devices_held(other) == devices
            if not together:
                continue
        elif other is not None and other.id in stay:
            continue  # it joins the other
        taken.add(devices)
        stay.add(job.id)
    return stay


def _runs_so(cluster: Cluster, job: JobView, way: str) -> bool:
    """Whether a job already runs on the type of a way; a packed job is not moved to be split."""
    if job.spots is None or type_of(way) != held_type(cluster, job):
        return False
    split = len(nodes_of(job.spots)) > fewest_nodes(cluster, of_type(job.shape, type_of(way)))
    return way.endswith(SPLIT) or not split
