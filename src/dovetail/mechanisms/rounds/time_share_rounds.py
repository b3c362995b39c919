"""Rounds that give each job its share of time in each way to run.

A policy sets what share of its time each job should spend on each GPU type. A job runs whole or not at all,
so the shares come true over rounds: a rule picks the jobs of each round and the type of each
(`owed_time`, or `time_since_shares` as in Gavel's own program). This module keeps what both rules need from
one round to the next, and makes the plan of a round. A job that is picked again for the type it holds is not
disturbed.

Two jobs may have a share as a *pair*: time that they spend together on the same devices. A pair is picked
like a job, and takes both jobs; each then holds half of every device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from math import prod
from typing import NamedTuple

import numpy as np

from dovetail.mechanisms.place.gpu_types import (
    SPLIT,
    held_type,
    of_type,
    place_on,
    type_of,
)
from dovetail.mechanisms.preempt.stopping import must_keep_running
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
from dovetail.solve.time_shares import Matrix

Pair = tuple[str, str]  # two jobs, the earlier first
Runner = str | Pair  # a job, or two on the same devices
Row = tuple[float, ...]  # a number for each way to run
Shares = Mapping[Runner, Row]  # job or pair -> share of its time, by way to run


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
    ways: tuple[str, ...] = ()  # to which the numbers of each row belong
    shares: Shares = field(default_factory=dict)
    runs: Mapping[Runner, str] = field(default_factory=dict)  # in this round: job or pair -> way to run
    had: Mapping[Runner, Row] = field(default_factory=dict)  # time since the shares were set
    owed: Mapping[Runner, Row] = field(default_factory=dict)  # time missed


class Candidates(NamedTuple):
    """What a rule picks from."""

    jobs: Sequence[JobView]  # that need GPUs, by submission
    worth: Matrix  # by job and way of the state: how fast it is so, or how cheap; 0: it cannot run so
    ways: Sequence[str]  # in the order in which a rule that goes by way tries them
    left: Mapping[str, int]  # milli-GPUs of each type


@dataclass(frozen=True, slots=True)
class Rule:
    """How time is counted, and how the jobs of a round are picked."""

    counted: Callable[[RoundState, View, Sequence[JobView], int], RoundState]
    with_new_shares: Callable[[RoundState, View, Shares, frozenset[tuple[str, int]]], RoundState]
    picked: Callable[[RoundState, View, Candidates, int, bool], list[Pick]]


def round_over(state: RoundState, view: View) -> bool:
    """Whether the next round is due: this one has ended, or no job runs any more."""
    return view.now >= state.ends_at or not view.running


def with_ways(state: RoundState, ways: tuple[str, ...]) -> RoundState:
    """The state with rows for these ways to run: a GPU type may have come or gone."""
    if ways == state.ways:
        return state
    places = [state.ways.index(way) if way in state.ways else -1 for way in ways]

    def moved(rows: Mapping[Runner, Row]) -> dict[Runner, Row]:
        return {runner: tuple([row[at] if at >= 0 else 0.0 for at in places]) for runner, row in rows.items()}

    return replace(state, ways=ways, shares=moved(state.shares), had=moved(state.had), owed=moved(state.owed))


def active_runners(state: RoundState, jobs: Sequence[JobView]) -> dict[Runner, None]:
    """The jobs, then the pairs of which both jobs are still there."""
    here: dict[Runner, None] = {job.id: None for job in jobs}
    for rows in (state.shares, state.had, state.owed):
        if rows.keys() <= here.keys():
            continue
        for runner in rows:
            if not isinstance(runner, str) and runner[0] in here and runner[1] in here:
                here[runner] = None
    return here


def rows_of(tables: Sequence[Mapping[Runner, Row]], runners: Sequence[Runner], ways: int) -> Matrix:
    """The rows of these runners in each table, as tables x runners x ways; 0 where a table has no row."""
    none = (0.0,) * ways
    rows = chain.from_iterable([table.get(runner, none) for table in tables for runner in runners])
    shape = len(tables), len(runners), ways
    return np.fromiter(rows, np.float64, count=prod(shape)).reshape(shape)


def kept_running(view: View, left: dict[str, int]) -> dict[str, Pick]:
    """The jobs that must not be stopped now; their devices are taken off what is left."""
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
    return chosen


def runner_of(job: JobView, other: JobView | None) -> Runner:
    """The job, or the pair of both."""
    if other is None:
        return job.id
    return (job.id, other.id) if job.seq < other.seq else (other.id, job.id)


def round_begun(state: RoundState, view: View, picks: Iterable[Pick], length: int) -> RoundState:
    """The state at the start of a round."""
    runs = {
        runner_of(job, other if other is not None and other.spots is not None else None): way
        for job, way, other in picks
        if job.spots is not None
    }
    return replace(state, number=state.number + 1, began_at=view.now, ends_at=view.now + length, runs=runs)


def plan_round(view: View, picks: Sequence[Pick], *, regroup: bool = False) -> Plan:
    """Run the picked jobs and no others; a job that already runs in its way stays where it is.

    The largest jobs are placed first, so that small ones do not break up the room that they need. Of a pair,
    one job stays if it can and the other joins it. With `regroup`, jobs that stay make room for a job of
    tasks of several GPUs that finds no node free: else it might wait for ever beside them.
    """
    plan = view.draft()
    kept = {job.id for job in view.running.values() if must_keep_running(job, view.now)}
    if any(other is not None or (job.spots and shares_devices(job)) for job, _, other in picks):
        stay = _staying(view, picks, kept)
        alone = {pick.job.id for pick in picks if shares_devices(pick.job) and is_alone(view, pick.job)}
    else:
        stay = kept | {job.id for job, way, _ in picks if _runs_so(view.cluster, job, way)}
        alone = set()
    for job in list(view.running.values()):
        if job.shape.each and job.id not in stay:
            plan.stop(job)
    for job, _, other in picks:
        if job.id in stay and other is not None and not shares_devices(job):
            plan.shift(job, spots_of(job.shape, job.spots or (), HALF))
        elif job.id in alone and job.id in stay and other is None:
            plan.shift(job, spots_of(job.shape, job.spots or (), WHOLE))
    without = _placed(plan, sorted(picks, key=lambda pick: -pick.job.shape.load))
    if without and regroup:
        kinds = {type_of(pick.way) for pick in without}
        free = [
            pick
            for pick in picks
            if pick.beside is None and type_of(pick.way) in kinds and pick.job.id not in kept
        ]
        for job, _, _ in free:
            if job.spots is not None:
                plan.stop(job)
        without = _placed(plan, sorted(free, key=lambda pick: (-pick.job.shape.each, -pick.job.shape.load)))
    for job, way, _ in without:
        plan.deny(job, "Resources", f"it is picked for {way}, but its devices are not free together")
    return plan


def _placed(plan: Plan, picks: Sequence[Pick]) -> list[Pick]:
    """Start the picked jobs in this order; those without a place are returned."""
    without = []
    for pick in picks:
        job, way, other = pick
        if job.spots is None:
            spots = (
                place_on(plan.room, job.shape, way) if other is None else place_beside(plan, job, way, other)
            )
            if spots is None:
                without.append(pick)
            else:
                plan.start(job, spots)
    return without


def _staying(view: View, picks: Sequence[Pick], kept: set[str]) -> set[str]:
    """Jobs that go on where they are; of two that shared devices, only one can keep them for itself."""
    stay = set(kept)
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
    if way.endswith(SPLIT):
        return True
    if len(job.spots) == 1:
        return True
    nodes = len(nodes_of(job.spots))
    return nodes == 1 or nodes <= fewest_nodes(cluster, of_type(job.shape, type_of(way)))
