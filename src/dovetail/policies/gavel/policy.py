"""Gavel: shares of time on each GPU type, by optimisation (Narayanan et al., OSDI 2020).

A V100 is eight times as fast as a K80 for one model and 1.4 times for another, so where a job runs matters as
much as for how long. An objective sets the shares: of its time, how much each job spends on each GPU type.
Rounds make the shares true (`mechanisms.rounds`). The objective is any function of the jobs' throughputs
under the shares; each objective also exists blind to GPU types (`aware=False`), as its baseline.

`pop` is Gavel with the problem split at random into sub-problems (Narayanan et al., SOSP 2021).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from dovetail.mechanisms.estimate.measured_speeds import MeasuredSpeeds
from dovetail.mechanisms.estimate.speeds import estimated
from dovetail.mechanisms.objective import share_objectives as objectives
from dovetail.mechanisms.order.keys import arrival
from dovetail.mechanisms.place.gpu_types import load_by_type, type_of
from dovetail.mechanisms.rounds.active_jobs import start_cpu_jobs, start_on_mixed_types
from dovetail.mechanisms.rounds.owed_time import CARRIED_OVER
from dovetail.mechanisms.rounds.time_share_rounds import (
    Candidates,
    Pick,
    RoundState,
    Row,
    Runner,
    plan_round,
    round_begun,
    round_over,
    with_ways,
)
from dovetail.mechanisms.rounds.time_since_shares import FORGETFUL
from dovetail.model.errors import BadOption
from dovetail.model.units import SECOND, WHOLE, micros
from dovetail.model.view import JobView, Order, Plan, Policy, View
from dovetail.policies.gavel.fifo_compat import GivenTypes, given_types
from dovetail.policies.gavel.pair_speeds import pairs_of, speed_beside
from dovetail.policies.gavel.speed_table import SpeedTable, SpeedTables, pace
from dovetail.policies.gavel.tenant_tree import tenant_tree
from dovetail.policies.gavel.type_order import drawn_order
from dovetail.solve.extra import require
from dovetail.solve.partitioned import solved
from dovetail.solve.space_sharing import NONE, Pairs, Shared
from dovetail.solve.time_shares import IntVector, Matrix, Shares, Solution, Vector

Objective = Literal[
    "max-min", "max-sum", "makespan", "finish-time", "fifo", "sjf", "cost", "isolated", "allox"
]

_FIRST_ROUND = RoundState()
_NOT_MEASURED = MeasuredSpeeds()
_NONE_GIVEN = GivenTypes()


def gavel(
    *,
    objective: Objective = "max-min",
    aware: bool = True,
    packed: bool = False,
    water_filling: bool = False,
    hierarchy: Literal["none", "fair", "fifo"] = "none",
    placement: bool = False,
    round: float = 360.0,
    reset: float = 0.0,
    speeds: Literal["declared", "measured"] = "declared",
    solver: Literal["centre", "vertex"] = "centre",
    whole_steps: bool = False,
    fifo_compat: bool = False,
    carry_over: bool = True,
) -> Policy:
    """Shares of time by optimisation, in rounds of `round` seconds.

    `objective`: the lowest throughput of a job relative to an equal share of all types (max-min, by weight:
    priority plus one), the sum of throughputs (max-sum), the end of the last job (makespan), the worst finish
    time relative to a private share of the cluster (finish-time), order of arrival or of remaining time, each
    job on the fastest type with room (fifo, sjf), throughput per cost with deadlines met (cost), an equal
    part of every type for every job (isolated), or the first jobs in line by AlloX's matching, until they end
    (allox). Without `aware` all types count alike. `water_filling` also raises jobs that are not worst off;
    `hierarchy` does so down the tree of tenants, by their weights, and sets the rule between jobs of one
    tenant. With `placement` a job's speed when split over more nodes counts. With `packed` two jobs of as
    many GPUs may share them, if their speeds beside each other were measured (`--throughputs`): pairs have
    shares too. It exists for max-min, max-sum, makespan and finish-time, and for fifo, where a job without
    room joins the running job that it slows least.

    Shares are set again when the jobs or nodes have changed, but not within `reset` seconds. Speeds are those
    `declared` with the job, or `measured` on running jobs. The solver `vertex` is quicker than `centre`, for
    thousands of jobs, and needs nothing but what is always installed; `centre` needs `dovetail[solvers]`.

    A job that missed a part of its share gets it in later rounds, also after new shares. Without `carry_over`
    new shares forget what was missed, as in the authors' program. To compare with their simulator:
    reset=1920, carry_over=false, `whole_steps` (a round ends when the last job has made its whole steps), and
    `fifo_compat` (its FIFO baseline, without aware).
    """
    if (water_filling or hierarchy != "none") and objective != "max-min":
        raise BadOption(f"policy gavel: water_filling and hierarchy need objective=max-min, not {objective}")
    if packed:
        _packable(objective, aware, water_filling or hierarchy != "none", speeds, solver)
    _require_solver(objective, water_filling or hierarchy != "none", solver)
    return Gavel(
        objective=objective,
        aware=aware,
        filling=water_filling or hierarchy != "none",
        hierarchy=hierarchy,
        placement=placement,
        length=_positive("gavel", "round", round),
        reset=micros(reset),
        measured=speeds == "measured",
        centred=solver == "centre",
        whole_steps=whole_steps,
        fifo_compat=fifo_compat and objective == "fifo" and (packed or not aware),
        carry_over=carry_over,
        packed=packed,
    )


def _packable(objective: str, aware: bool, filled: bool, speeds: str, solver: str) -> None:
    """Refuse the combinations of options in which jobs cannot share devices."""
    why = ""
    if objective in ("sjf", "cost", "isolated", "allox"):
        why = f"objective=max-min, max-sum, makespan, finish-time or fifo, not {objective}"
    elif not aware:
        why = "aware=true"
    elif filled:
        why = "water_filling=false and hierarchy=none"
    elif speeds != "declared":
        why = "speeds=declared: the speeds of pairs are not measured as they run"
    elif objective == "finish-time" and solver != "centre":
        why = "solver=centre for objective=finish-time"
    if why:
        raise BadOption(f"policy gavel: packed=true needs {why}")


def _require_solver(objective: str, filled: bool, solver: str) -> None:
    """Refuse what needs a solver that is not installed."""
    if objective == "allox":
        require("scipy", "policy gavel: objective=allox")
    elif solver == "centre" and objective in ("max-min", "max-sum", "makespan", "finish-time") and not filled:
        require("clarabel", "policy gavel: solver=centre (the other is solver=vertex)")


def pop(
    *,
    subproblems: int = 8,
    least_jobs: int = 30,
    objective: Literal["max-min", "max-sum"] = "max-min",
    aware: bool = True,
    round: float = 360.0,
    reset: float = 0.0,
    speeds: Literal["declared", "measured"] = "declared",
    carry_over: bool = True,
) -> Policy:
    """Gavel, its problem split at random into `subproblems`, each with an equal share of every type.

    A job too large for one sub-problem is divided over several. With few jobs in a sub-problem the shares
    tend to the equal share, and nothing is gained: there are fewer sub-problems, or one, if they would have
    less than `least_jobs`.
    """
    for name, value in (("subproblems", subproblems), ("least_jobs", least_jobs)):
        if value < 1:
            raise BadOption(f"policy pop: {name}={value} is wrong: 1 or more")
    return Gavel(
        objective=objective,
        aware=aware,
        length=_positive("pop", "round", round),
        reset=micros(reset),
        measured=speeds == "measured",
        centred=False,
        carry_over=carry_over,
        subproblems=subproblems,
        least_jobs=least_jobs,
    )


def _positive(policy: str, name: str, seconds: float) -> int:
    if seconds <= 0:
        raise BadOption(f"policy {policy}: {name}={seconds:g} is wrong: more than 0 seconds")
    return micros(seconds)


@dataclass(frozen=True, slots=True)
class Isolated:
    """The progress of a job on a private share of the cluster, up to when shares were last set."""

    time: float  # seconds that its work so far would have taken there
    work: float  # left then
    speed: float  # of the private share then


@dataclass(frozen=True, slots=True)
class GavelState:
    """What is kept between decisions."""

    rounds: RoundState = _FIRST_ROUND
    measured: MeasuredSpeeds = _NOT_MEASURED
    isolated: Mapping[str, Isolated] = field(default_factory=dict)
    given: GivenTypes = _NONE_GIVEN


@dataclass(frozen=True, slots=True, kw_only=True)
class Gavel:
    """Rounds over the shares that an objective sets."""

    objective: Objective
    aware: bool
    length: int
    reset: int
    measured: bool
    centred: bool
    filling: bool = False
    hierarchy: Literal["none", "fair", "fifo"] = "none"
    placement: bool = False
    whole_steps: bool = False
    fifo_compat: bool = False
    carry_over: bool = True
    packed: bool = False
    subproblems: int = 1
    least_jobs: int = 1
    tables: SpeedTables = field(default_factory=SpeedTables, compare=False, repr=False)
    order: Order = arrival
    group: Callable[[JobView], Hashable] | None = None
    quantum: int | None = None

    def decide(self, view: View) -> Plan:
        state = view.memory if isinstance(view.memory, GavelState) else GavelState()
        if self.measured:
            state = replace(state, measured=state.measured.observed(view))
        if not round_over(state.rounds, view):
            plan = view.draft()
            start_cpu_jobs(view, plan)
            plan.review_at, plan.memory = state.rounds.ends_at, state
            return plan
        rule = CARRIED_OVER if self.carry_over else FORGETFUL
        seen = estimated(view, state.measured) if self.measured else view
        held = load_by_type(view.cluster, view.room)
        table = self.tables.table(seen, held, placement=self.placement)
        rounds = with_ways(rule.counted(state.rounds, view, table.jobs, self.length), table.ways)
        state, rounds = self._with_shares(view, state, rounds, table, held)
        among = Candidates(
            table.jobs,
            self._worth(view, table),
            self._ways_in_order(view, rounds.number, table),
            held,
        )
        picks = rule.picked(rounds, view, among, self.length, self._lends)
        plan = plan_round(view, picks, regroup=self.carry_over)
        start_cpu_jobs(view, plan)
        start_on_mixed_types(plan, table.on_no_type)
        rounds = round_begun(rounds, view, picks, self._length(view, picks, table))
        plan.memory = GavelState(rounds, state.measured, state.isolated, state.given)
        plan.review_at = rounds.ends_at if table.jobs else None
        return plan

    def _worth(self, view: View, table: SpeedTable) -> Matrix:
        """By job and way: speed, or speed for its price; blind to types, all are alike."""
        speed: Matrix = table.speed if self.aware else (table.speed > 0.0).astype(np.float64)
        return speed / _prices(view, table.ways) if self.objective == "cost" else speed

    @property
    def _lends(self) -> bool:
        """Whether idle devices go to jobs without a share of them; they may cost too much for that."""
        return self.objective not in ("fifo", "sjf") and not (self.objective == "cost" and self.carry_over)

    def _with_shares(
        self, view: View, state: GavelState, rounds: RoundState, table: SpeedTable, held: Mapping[str, int]
    ) -> tuple[GavelState, RoundState]:
        """With new shares, if jobs, nodes or measured speeds changed and the last shares are old enough."""
        basis = table.basis.union(self._rounded(table)) if self.measured else table.basis
        set_at = rounds.shares_set_at
        waited = not set_at or not view.running or view.now - set_at >= self.reset
        if not table.jobs or basis == rounds.basis or not waited:
            return state, rounds
        shares: Mapping[Runner, Row]
        if self.fifo_compat and not self.packed:
            state = replace(state, given=given_types(view, state.given, table))
            shares = {
                id: tuple([float(way == kind) for way in table.ways]) for _, id, kind in state.given.kinds
            }
        else:
            shares, isolated = self._shares(view, state, rounds, table, held)
            state = replace(state, isolated=isolated) if isolated or state.isolated else state
        rule = CARRIED_OVER if self.carry_over else FORGETFUL
        return state, rule.with_new_shares(rounds, view, shares, basis)

    def _rounded(self, table: SpeedTable) -> list[tuple[str, int]]:
        """Measured speeds in steps of a tenth: a smaller change is no reason to set new shares."""
        tenths = np.round(10 * np.log(np.maximum(table.speed, 1e-9))).astype(int)
        return [
            (f"{job.id} on {way}", int(tenth))
            for job, row in zip(table.jobs, tenths, strict=True)
            for way, tenth in zip(table.ways, row, strict=True)
        ]

    def _ways_in_order(self, view: View, number: int, table: SpeedTable) -> Sequence[str]:
        """The fastest way first; blind to types, in an order drawn for each round."""
        return table.fastest if self.aware else drawn_order(view.seed, tuple(table.fastest), number)

    def _length(self, view: View, picks: Sequence[Pick], table: SpeedTable) -> int:
        """The length of a round; with `whole_steps`, until the last job has made its whole steps."""
        if not self.whole_steps:
            return self.length
        now, rows, ways = view.now, table.rows, table.ways
        last = 0.0
        for job, way, other in picks:
            speed = rows[job.id][ways.index(way)] if other is None else speed_beside(job, other, way)
            paced = speed * pace(job)
            steps = int(paced * self.length / SECOND)
            last = max(last, min(steps / paced, job.remaining_at(now) / SECOND / speed))
        return micros(last) + 2 if last else self.length  # more than rounding takes away

    # -- objectives

    def _shares(
        self, view: View, state: GavelState, rounds: RoundState, table: SpeedTable, held: Mapping[str, int]
    ) -> tuple[Mapping[Runner, Row], Mapping[str, Isolated]]:
        """The shares, and the progress of each job on a private share of the cluster."""
        jobs, speed, paces = table.jobs, table.speed, table.pace
        if table.on_no_type:
            rows = np.flatnonzero(speed.any(axis=1))
            jobs, speed, paces = [jobs[i] for i in rows.tolist()], speed[rows], paces[rows]
        if not jobs:
            return {}, {}
        if not self.aware:
            speed = (speed > 0).astype(float)
            paces = np.ones(len(jobs)) if self.objective == "max-min" else paces
        speed = speed * paces[:, None]
        kinds = sorted(held)
        problem = Shares(
            speed,
            np.array([job.shape.load / WHOLE for job in jobs]),
            np.array([held[kind] / WHOLE for kind in kinds]),
            pool=np.array([kinds.index(type_of(way)) for way in table.ways]),
        )
        pairs = pairs_of(view.room, jobs, table, paces) if self.packed else NONE
        work = np.empty(0)
        if self.objective not in ("max-min", "max-sum"):
            work = paces * [max(job.remaining_at(view.now), 1) / SECOND for job in jobs]
        if self.packed:
            found, isolated = self._packed(view, state, problem, pairs, jobs, work)
            x, y = found.x, found.y
        else:
            x, isolated = self._alone(view, state, rounds, table, problem, jobs, work)
            y = np.empty(0)
        shares: dict[Runner, Row] = {
            job.id: tuple(row) for job, row in zip(jobs, np.maximum(x, 0.0).tolist(), strict=True)
        }
        of_pairs: dict[Runner, list[float]] = {}
        for q in np.flatnonzero(y > 0).tolist():
            two = jobs[pairs.first[q]].id, jobs[pairs.second[q]].id
            of_pairs.setdefault(two, [0.0] * len(table.ways))[pairs.way[q]] = float(y[q])
        shares |= {two: tuple(row) for two, row in of_pairs.items()}
        return shares, isolated

    def _alone(
        self,
        view: View,
        state: GavelState,
        rounds: RoundState,
        table: SpeedTable,
        shares: Shares,
        jobs: Sequence[JobView],
        work: Vector,
    ) -> tuple[Matrix, Mapping[str, Isolated]]:
        """Shares of jobs that do not share their devices."""
        isolated: Mapping[str, Isolated] = {}
        if self.objective == "max-min":
            x = self._max_min(view, shares, jobs)
        elif self.objective == "max-sum":
            x = self._solve(view, shares, lambda part, _: objectives.max_sum(part, centred=self.centred), sum)
        elif self.objective == "makespan":
            x = objectives.makespan(shares, work, centred=self.centred)
        elif self.objective == "finish-time":
            isolated = _isolated(state.isolated, shares, jobs, work)
            x = objectives.finish_time(shares, *_ages(view, jobs, isolated, work), centred=self.centred)
        elif self.objective == "cost":
            due = np.array([(job.deadline - view.now) / SECOND if job.deadline else 0.0 for job in jobs])
            floor = np.divide(work, due, out=np.zeros(len(jobs)), where=due > 0)
            x = objectives.cheapest(shares, _prices(view, table.ways), floor)
        elif self.objective == "isolated":
            x = objectives.equal_parts(shares)
        elif self.objective == "allox":
            none = (0.0,) * len(table.ways)
            before = np.array([rounds.shares.get(job.id, none) for job in jobs])
            x = objectives.in_machine_queues(shares, work, before)
        else:
            x = objectives.in_order(shares, self._order_of(shares, jobs, work))
        return x, isolated

    def _packed(
        self,
        view: View,
        state: GavelState,
        shares: Shares,
        pairs: Pairs,
        jobs: Sequence[JobView],
        work: Vector,
    ) -> tuple[Shared, Mapping[str, Isolated]]:
        """Shares of jobs and of pairs."""
        isolated: Mapping[str, Isolated] = {}
        if self.objective == "max-min":
            found = objectives.max_min_packed(shares, pairs, _weight(jobs), centred=self.centred)
        elif self.objective == "max-sum":
            found = objectives.max_sum_packed(shares, pairs, centred=self.centred)
        elif self.objective == "makespan":
            found = objectives.makespan_packed(shares, pairs, work, centred=self.centred)
        elif self.objective == "finish-time":
            isolated = _isolated(state.isolated, shares, jobs, work)
            found = objectives.finish_time_packed(shares, pairs, *_ages(view, jobs, isolated, work))
        else:
            order = self._order_of(shares, jobs, work)
            found = objectives.in_order_packed(shares, pairs, order, fifo_compat=self.fifo_compat)
        return found, isolated

    def _order_of(self, shares: Shares, jobs: Sequence[JobView], work: Vector) -> list[int]:
        """By arrival, or by remaining time on the fastest type."""
        first = [job.seq for job in jobs] if self.objective == "fifo" else work / shares.speed.max(axis=1)
        return sorted(range(len(jobs)), key=lambda i: (first[i], jobs[i].seq))

    def _max_min(self, view: View, shares: Shares, jobs: Sequence[JobView]) -> Matrix:
        weight = _weight(jobs)
        if self.hierarchy != "none":
            group = tenant_tree(view.cluster, jobs, self.hierarchy)
            return objectives.filled(shares, np.ones(len(jobs)), group)
        if self.filling:
            return objectives.filled(shares, weight)
        return self._solve(
            view, shares, lambda part, rows: objectives.max_min(part, weight[rows], centred=self.centred), min
        )

    def _solve(
        self,
        view: View,
        shares: Shares,
        solve: Callable[[Shares, IntVector], Solution],
        join: Callable[[Sequence[float]], float],
    ) -> Matrix:
        """Solve the problem, whole or as sub-problems."""
        parts = min(self.subproblems, len(shares.size) // self.least_jobs)
        if parts <= 1:
            return solve(shares, np.arange(len(shares.size))).x
        return solved(shares, parts, solve, view.seed, join=join).x


def _isolated(
    last: Mapping[str, Isolated], shares: Shares, jobs: Sequence[JobView], work: Vector
) -> dict[str, Isolated]:
    """How long the work of each job so far would have taken on a private share of the cluster."""
    kept: dict[str, Isolated] = {}
    for job, left, speed in zip(jobs, work, objectives.private(shares), strict=True):
        before = last.get(job.id)
        time = before.time + max(before.work - left, 0.0) / before.speed if before else 0.0
        kept[job.id] = Isolated(time, float(left), float(speed))
    return kept


def _ages(
    view: View, jobs: Sequence[JobView], isolated: Mapping[str, Isolated], work: Vector
) -> tuple[Vector, Vector, Vector]:
    """For finish-time fairness: each job's age, its remaining work, and its time on a private share."""
    age = np.array([(view.now - job.arrived_at) / SECOND for job in jobs])
    alone = np.array([kept.time + kept.work / kept.speed for kept in isolated.values()])
    return age, work, alone


def _weight(jobs: Sequence[JobView]) -> Vector:
    return np.array([1.0 + max(job.priority, 0) for job in jobs])


def _prices(view: View, ways: Sequence[str]) -> Vector:
    """The price of a GPU by way to run; 1 where it is unknown."""
    price = np.ones(len(ways))
    for k, way in enumerate(ways):
        nodes = [(i, n) for i, n in enumerate(view.cluster.nodes) if n.type.name == type_of(way) and n.gpus]
        paid = sum(view.prices[i] for i, _ in nodes)
        price[k] = paid / sum(n.gpus for _, n in nodes) if paid else 1.0
    return price
