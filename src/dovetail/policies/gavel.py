"""Gavel: shares of time on each type of GPU, by optimisation (Narayanan et al., OSDI 2020).

A V100 is eight times a K80 for one model and 1.4 times for another, so where a job runs matters as much as
for how long. Gavel asks an objective for shares: of its time, how much each job should spend on each type.
Rounds make them true (`mechanisms.rounds`). The objective is any function of the jobs' throughputs under the
shares; each of them is also there blind to types (`aware=False`), which is what it is compared with.

`pop` is the same with the problem cut at random into parts (Narayanan et al., SOSP 2021).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Literal

import numpy as np

from dovetail.mechanisms import objectives
from dovetail.mechanisms.order import arrival
from dovetail.mechanisms.rounds import (
    SPLIT,
    Book,
    Deal,
    Pick,
    Who,
    accounted,
    active,
    begun,
    capacity,
    enact,
    of_kind,
    over,
    paired,
    picked,
    redealt,
    type_of,
)
from dovetail.mechanisms.slips import Given, Waiting, dealt
from dovetail.mechanisms.throughput import Seen, declared
from dovetail.model.chance import Random, seeded
from dovetail.model.cluster import Cluster
from dovetail.model.errors import BadOption
from dovetail.model.job import Shape
from dovetail.model.units import SECOND, WHOLE, micros
from dovetail.model.view import JobView, Order, Plan, Policy, Room, View
from dovetail.solve.columns import NONE, Pairs, Shared
from dovetail.solve.filling import Group
from dovetail.solve.parts import solved
from dovetail.solve.shares import IntVector, Matrix, Shares, Solution, Vector

Objective = Literal[
    "max-min", "max-sum", "makespan", "finish-time", "fifo", "sjf", "cost", "isolated", "allox"
]

_BLANK = Book()
_NOTHING = Seen()
_NOBODY = Given()


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
    slips: bool = False,
) -> Policy:
    """Shares of time by optimisation, in rounds of `round` seconds.

    `objective`: the worst-off job's throughput against an equal share of all types (max-min, by weight:
    priority plus one), the sum of throughputs (max-sum), the end of the last job (makespan), the worst finish
    time against a private share of the cluster (finish-time), in order of arrival or of remaining time on
    the fastest type with room (fifo, sjf), throughput for money with deadlines kept (cost), or nothing: an
    equal part of every type for everybody (isolated), or who is first in line by AlloX's matching, for good
    (allox). Without
    `aware` all types count as alike. `water_filling` goes on after the worst-off cannot be helped;
    `hierarchy` does so tenant by tenant, down their tree and by their weights, and says how the jobs of one
    tenant stand to each other. With `placement` a gang's speed when split is another than together. With
    `packed` two jobs that ask for as many GPUs may run on the same ones, if it was measured how fast each is
    beside the other (`--throughputs`): pairs have shares too. It is there for max-min, max-sum, makespan and
    finish-time, and for fifo, where those for whom there is no room join the one they get on with best.

    Shares are dealt again once somebody came or went, but not within `reset` seconds. Speeds are those
    `declared` with the job, or `measured` as jobs run. A `vertex` is quicker than the `centre` of the best
    shares, for thousands of jobs. To compare with the authors' simulator: reset=1920, and `whole_steps` (a
    round ends once the last has made its whole steps) and `slips` (of its FIFO without aware, see the page).
    """
    if (water_filling or hierarchy != "none") and objective != "max-min":
        raise BadOption(f"policy gavel: only max-min can be filled or have a hierarchy, not {objective}")
    if packed:
        _packable(objective, aware, water_filling or hierarchy != "none", speeds, solver)
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
        slips=slips and objective == "fifo" and (packed or not aware),
        packed=packed,
    )


def _packable(objective: str, aware: bool, filled: bool, speeds: str, solver: str) -> None:
    """A line for each combination in which there are no pairs."""
    why = ""
    if objective in ("sjf", "cost", "isolated", "allox"):
        why = f"for max-min, max-sum, makespan, finish-time and fifo, not {objective}"
    elif not aware:
        why = "for those who look at speeds: it needs aware=true"
    elif filled:
        why = "not for water_filling or a hierarchy"
    elif speeds != "declared":
        why = "for declared speeds: nobody measures pairs as they run"
    elif objective == "finish-time" and solver != "centre":
        why = "for finish-time by solver=centre alone"
    if why:
        raise BadOption(f"policy gavel: packed=true is {why}")


def pop(
    *,
    parts: int = 8,
    objective: Literal["max-min", "max-sum"] = "max-min",
    aware: bool = True,
    round: float = 360.0,
    reset: float = 0.0,
    speeds: Literal["declared", "measured"] = "declared",
) -> Policy:
    """Gavel, its problem cut at random into `parts` with an equal share of each type, solved one by one.

    Jobs too large for a part are divided over several. Meant for thousands of jobs: with few in a part the
    shares tend to the equal share.
    """
    if parts < 1:
        raise BadOption(f"policy pop: parts={parts} is wrong: 1 or more")
    return Gavel(
        objective=objective,
        aware=aware,
        length=_positive("pop", "round", round),
        reset=micros(reset),
        measured=speeds == "measured",
        centred=False,
        parts=parts,
    )


def _positive(policy: str, name: str, seconds: float) -> int:
    if seconds <= 0:
        raise BadOption(f"policy {policy}: {name}={seconds:g} is wrong: more than 0 seconds")
    return micros(seconds)


@dataclass(frozen=True, slots=True)
class Isolated:
    """How a job would have fared on a private share of the cluster, up to the last deal."""

    time: float  # seconds that what it has done would have taken there
    work: float  # left then
    speed: float  # of the private share then


@dataclass(frozen=True, slots=True)
class Memory:
    """What is kept between decisions."""

    book: Book = _BLANK
    seen: Seen = _NOTHING
    isolated: Mapping[str, Isolated] = field(default_factory=dict)
    given: Given = _NOBODY


@dataclass(frozen=True, slots=True)
class Table:
    """Who is active, the ways to run, and how fast each would be: against its reference run, 0 for never."""

    jobs: Sequence[JobView]
    ways: Sequence[str]
    speed: Matrix


@dataclass(frozen=True, slots=True, kw_only=True)
class Gavel:
    """Rounds over shares that an objective deals."""

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
    slips: bool = False
    packed: bool = False
    parts: int = 1
    order: Order = arrival
    group: Callable[[JobView], Hashable] | None = None
    quantum: int | None = None

    def decide(self, view: View) -> Plan:
        memory = view.memory if isinstance(view.memory, Memory) else Memory()
        if self.measured:
            memory = replace(memory, seen=memory.seen.with_(view))
        if not over(memory.book, view):
            plan = view.draft()
            start_helpers(view, plan)
            plan.review_at, plan.memory = memory.book.ends_at, memory
            return plan
        table = self._table(view, memory.seen)
        memory = self._dealt(view, replace(memory, book=accounted(memory.book, view)), table)
        speeds = {
            job.id: dict(zip(table.ways, row, strict=True))
            for job, row in zip(table.jobs, table.speed, strict=True)
        }
        picks = picked(
            memory.book,
            view,
            self._turns(view, memory.book.number, table),
            lambda job, way: speeds[job.id][way] > 0,
            self.length,
            idle=self.objective not in ("fifo", "sjf"),
        )
        plan = enact(view, picks)
        start_helpers(view, plan)
        start_misfits(plan, [job for job in table.jobs if not any(speeds[job.id].values())])
        book = begun(memory.book, view, picks, self._length(view, picks, speeds))
        plan.memory = replace(memory, book=book)
        plan.review_at = book.ends_at if table.jobs else None
        return plan

    def _dealt(self, view: View, memory: Memory, table: Table) -> Memory:
        """With a new deal, if somebody or a node came, went or was measured, and the last is old enough."""
        book, held = memory.book, capacity(view.cluster, view.room)
        whom = frozenset([*((job.id, 0) for job in table.jobs), *held.items(), *self._known(table)])
        waited = not book.dealt_at or not view.running or view.now - book.dealt_at >= self.reset
        if not table.jobs or whom == book.dealt_to or not waited:
            return memory
        if self.slips and not self.packed:
            memory = replace(memory, given=_with_slips(view, memory.given, table))
            deal: Deal = {id: {kind: 1.0} for _, id, kind in memory.given.kinds}
        else:
            deal, isolated = self._deal(view, memory, table)
            memory = replace(memory, isolated=isolated)
        return replace(memory, book=redealt(book, view, deal, whom))

    def _known(self, table: Table) -> list[tuple[str, int]]:
        """What was measured, to a tenth: less is no reason to deal again."""
        if not self.measured:
            return []
        tenths = np.round(10 * np.log(np.maximum(table.speed, 1e-9))).astype(int)
        return [
            (f"{job.id} on {way}", int(tenth))
            for job, row in zip(table.jobs, tenths, strict=True)
            for way, tenth in zip(table.ways, row, strict=True)
        ]

    def _turns(self, view: View, number: int, table: Table) -> Sequence[str]:
        """The fastest way first; blind to types, in an order drawn for each round."""
        mean = table.speed.mean(axis=0) if len(table.jobs) else np.zeros(len(table.ways))
        fastest = [way for _, way in sorted(zip(-mean, table.ways, strict=True))]
        return fastest if self.aware else drawn(view.seed, tuple(fastest), number)

    def _length(self, view: View, picks: Sequence[Pick], speeds: Mapping[str, Mapping[str, float]]) -> int:
        """Of the round; with `whole_steps` until the last has made as many steps as go into it."""
        if not self.whole_steps:
            return self.length
        ends = [0.0]
        for job, way, other in picks:
            speed = speeds[job.id][way] if other is None else beside(job, other, way)
            steps = int(speed * pace(job) * self.length / SECOND)
            ends.append(min(steps / (speed * pace(job)), job.remaining_at(view.now) / SECOND / speed))
        return micros(max(ends)) + 2 if max(ends) else self.length  # past what was rounded

    def _table(self, view: View, seen: Seen) -> Table:
        jobs, held = active(view), capacity(view.cluster, view.room)
        kinds = sorted(held)
        speed = np.zeros((len(jobs), len(kinds)))
        fits: dict[tuple[object, str], bool] = {}
        for i, job in enumerate(jobs):
            known = seen.speeds(job, kinds) if self.measured else declared(view.cluster, job, kinds)
            for k, kind in enumerate(kinds):
                key = (job.shape, kind)
                if key not in fits:
                    allowed = job.shape.load <= held[kind] and kind in (job.shape.types or kinds)
                    fits[key] = allowed and view.room.ever(of_kind(job.shape, kind))
                speed[i, k] = max(known[k], 0.0) if fits[key] else 0.0
        if not self.placement:
            return Table(jobs, kinds, speed)
        slower = np.ones(speed.shape)
        for i, job in enumerate(jobs):
            if job.traits.profile:
                slower[i] = [job.traits.profile.split_on(kind) for kind in kinds]
        gangs = np.array([job.shape.tasks > 1 for job in jobs])
        split = np.where(gangs[:, None], speed / slower, 0.0)
        return Table(jobs, [*kinds, *(kind + SPLIT for kind in kinds)], np.hstack([speed, split]))

    # -- objectives

    def _deal(self, view: View, memory: Memory, table: Table) -> tuple[Deal, Mapping[str, Isolated]]:
        """The shares, and how everybody would have fared alone."""
        rows = [i for i, row in enumerate(table.speed) if row.any()]
        jobs = [table.jobs[i] for i in rows]
        if not jobs:
            return {}, {}
        blind = self.objective == "max-min" and not self.aware
        paces = np.array([1.0 if blind else pace(job) for job in jobs])
        speed = (table.speed[rows] if self.aware else (table.speed[rows] > 0).astype(float)) * paces[:, None]
        held = capacity(view.cluster, view.room)
        kinds = sorted(held)
        shares = Shares(
            speed,
            np.array([job.shape.load / WHOLE for job in jobs]),
            np.array([held[kind] / WHOLE for kind in kinds]),
            pool=np.array([kinds.index(type_of(way)) for way in table.ways]),
        )
        pairs = _pairs(view.room, jobs, table, paces) if self.packed else NONE
        work = paces * [max(job.remaining_at(view.now), 1) / SECOND for job in jobs]
        if self.packed:
            found, isolated = self._packed(view, memory, shares, pairs, jobs, work)
            x, y = found.x, found.y
        else:
            x, isolated = self._alone(view, memory, table, shares, jobs, work)
            y = np.empty(0)
        deal: dict[Who, dict[str, float]] = {
            job.id: {way: float(share) for way, share in zip(table.ways, row, strict=True) if share > 0}
            for job, row in zip(jobs, x, strict=True)
        }
        for q in np.flatnonzero(y > 0).tolist():
            two = jobs[pairs.first[q]].id, jobs[pairs.second[q]].id
            deal.setdefault(two, {})[table.ways[pairs.way[q]]] = float(y[q])
        return deal, isolated

    def _alone(
        self,
        view: View,
        memory: Memory,
        table: Table,
        shares: Shares,
        jobs: Sequence[JobView],
        work: Vector,
    ) -> tuple[Matrix, Mapping[str, Isolated]]:
        """Shares of jobs that have their devices for themselves."""
        isolated: Mapping[str, Isolated] = {}
        if self.objective == "max-min":
            x = self._max_min(view, shares, jobs)
        elif self.objective == "max-sum":
            x = self._cut(view, shares, lambda part, _: objectives.max_sum(part, centred=self.centred), sum)
        elif self.objective == "makespan":
            x = objectives.makespan(shares, work, centred=self.centred)
        elif self.objective == "finish-time":
            isolated = _isolated(memory.isolated, shares, jobs, work)
            x = objectives.finish_time(shares, *_ages(view, jobs, isolated, work), centred=self.centred)
        elif self.objective == "cost":
            due = np.array([(job.deadline - view.now) / SECOND if job.deadline else 0.0 for job in jobs])
            floor = np.divide(work, due, out=np.zeros(len(jobs)), where=due > 0)
            x = objectives.cheapest(shares, _prices(view, table.ways), floor)
        elif self.objective == "isolated":
            x = objectives.equal_parts(shares)
        elif self.objective == "allox":
            before = [memory.book.deal.get(job.id, {}) for job in jobs]
            x = objectives.in_lines(
                shares, work, np.array([[had.get(way, 0.0) for way in table.ways] for had in before])
            )
        else:
            x = objectives.in_turn(shares, self._order_of(shares, jobs, work))
        return x, isolated

    def _packed(
        self,
        view: View,
        memory: Memory,
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
            isolated = _isolated(memory.isolated, shares, jobs, work)
            found = objectives.finish_time_packed(shares, pairs, *_ages(view, jobs, isolated, work))
        else:
            order = self._order_of(shares, jobs, work)
            found = objectives.in_turn_packed(shares, pairs, order, slip=self.slips)
        return found, isolated

    def _order_of(self, shares: Shares, jobs: Sequence[JobView], work: Vector) -> list[int]:
        """By arrival, or by what is left on the fastest type."""
        first = [job.seq for job in jobs] if self.objective == "fifo" else work / shares.speed.max(axis=1)
        return sorted(range(len(jobs)), key=lambda i: (first[i], jobs[i].seq))

    def _max_min(self, view: View, shares: Shares, jobs: Sequence[JobView]) -> Matrix:
        weight = _weight(jobs)
        if self.hierarchy != "none":
            return objectives.filled(shares, np.ones(len(jobs)), tree(view.cluster, jobs, self.hierarchy))
        if self.filling:
            return objectives.filled(shares, weight)
        return self._cut(
            view, shares, lambda part, rows: objectives.max_min(part, weight[rows], centred=self.centred), min
        )

    def _cut(
        self,
        view: View,
        shares: Shares,
        solve: Callable[[Shares, IntVector], Solution],
        join: Callable[[Sequence[float]], float],
    ) -> Matrix:
        """Solve it, in parts if so asked."""
        if self.parts == 1:
            return solve(shares, np.arange(len(shares.size))).x
        return solved(shares, min(self.parts, len(shares.size)), solve, view.seed, join=join).x


def _isolated(
    last: Mapping[str, Isolated], shares: Shares, jobs: Sequence[JobView], work: Vector
) -> dict[str, Isolated]:
    """How long each would have taken alone for what it has done, at the private share of each deal."""
    kept: dict[str, Isolated] = {}
    for job, left, speed in zip(jobs, work, objectives.private(shares), strict=True):
        before = last.get(job.id)
        time = before.time + max(before.work - left, 0.0) / before.speed if before else 0.0
        kept[job.id] = Isolated(time, float(left), float(speed))
    return kept


def _ages(
    view: View, jobs: Sequence[JobView], isolated: Mapping[str, Isolated], work: Vector
) -> tuple[Vector, Vector, Vector]:
    """What finish-time fairness weighs: how long each is here, what it has left, and its time alone."""
    age = np.array([(view.now - job.arrived_at) / SECOND for job in jobs])
    alone = np.array([kept.time + kept.work / kept.speed for kept in isolated.values()])
    return age, work, alone


def _weight(jobs: Sequence[JobView]) -> Vector:
    return np.array([1.0 + max(job.priority, 0) for job in jobs])


def _pairs(room: Room, jobs: Sequence[JobView], table: Table, paces: Vector) -> Pairs:
    """All two that may run on the same devices, by class: jobs of a model and shape are alike."""
    row = {job.id: speeds for job, speeds in zip(table.jobs, table.speed, strict=True)}
    members: dict[tuple[str, Shape, int], list[int]] = {}
    for i, job in enumerate(jobs):
        if job.model and job.traits.profile is not None and job.traits.profile.beside:
            members.setdefault((job.model, job.shape, id(job.traits.profile)), []).append(i)
    classes = [np.array(rows) for rows in members.values()]
    found: list[tuple[IntVector, IntVector, int, float, float]] = []
    for a, mine in enumerate(classes):
        for theirs in classes[a:]:
            one, other = jobs[mine[0]], jobs[theirs[0]]
            both = paired(one.shape, other.shape)
            if both is None:
                continue
            first, second = (side.ravel() for side in np.meshgrid(mine, theirs, indexing="ij"))
            if mine is theirs:
                first, second = first[first < second], second[first < second]
            for k, way in enumerate(table.ways):
                speeds = beside(one, other, way), beside(other, one, way)
                fit = min(*speeds, row[one.id][k], row[other.id][k]) > 0
                if fit and (both == one.shape or room.ever(of_kind(both, way))):
                    found.append((first, second, k, *speeds))
    if not found:
        return NONE
    first = np.concatenate([row[0] for row in found])
    second = np.concatenate([row[1] for row in found])
    sizes = [len(row[0]) for row in found]
    way_of, of_first, of_second = (np.repeat([row[c] for row in found], sizes) for c in (2, 3, 4))
    of_first, of_second = of_first * paces[first], of_second * paces[second]
    turned = first > second
    early, late = np.where(turned, second, first), np.where(turned, first, second)
    order = np.lexsort((way_of, late, early))
    return Pairs(
        early[order],
        late[order],
        way_of[order],
        np.where(turned, of_second, of_first)[order],
        np.where(turned, of_first, of_second)[order],
    )


def beside(job: JobView, other: JobView, way: str) -> float:
    """How fast it is with the other on its devices, against its reference; 0 if nobody measured it."""
    profile = job.traits.profile
    return profile.beside.get(way, {}).get(other.model, 0.0) if profile is not None else 0.0


def _prices(view: View, ways: Sequence[str]) -> Vector:
    """Of a GPU by way; 1 where nothing is known."""
    price = np.ones(len(ways))
    for k, way in enumerate(ways):
        nodes = [(i, n) for i, n in enumerate(view.cluster.nodes) if n.type.name == type_of(way) and n.gpus]
        paid = sum(view.prices[i] for i, _ in nodes)
        price[k] = paid / sum(n.gpus for _, n in nodes) if paid else 1.0
    return price


def pace(job: JobView) -> float:
    """Steps a second on its reference: throughputs of different models are added up as they are."""
    return (job.traits.profile.pace if job.traits.profile else 0.0) or 1.0


def tree(cluster: Cluster, jobs: Sequence[JobView], within: Literal["fair", "fifo"]) -> Group:
    """Tenants as groups, each with those below it and its own jobs; jobs of nobody stand at the root."""
    children: dict[str, list[str]] = {}
    own: dict[str, list[int]] = {}
    for i, job in enumerate(jobs):
        line = cluster.line(job.tenant)  # itself, and all above
        own.setdefault(line[0] if line else "", []).append(i)
        for below, above in zip(line, [*line[1:], ""], strict=True):
            if below not in children.setdefault(above, []):
                children[above].append(below)

    def grown(name: str) -> Group:
        teams = [child for child in children.get(name, []) if child != name]
        mine = own.get(name, [])
        members: list[Group | int] = [grown(child) for child in teams]
        weights = [cluster.tenants[child].weight if child in cluster.tenants else 1.0 for child in teams]
        if mine and not teams:
            weighed = tuple(1.0 + max(jobs[i].priority, 0) for i in mine)
            return Group(tuple(mine), weighed if within == "fair" else (), within)
        if mine:  # a tenant with teams and jobs of its own: those are one more team
            members.append(Group(tuple(mine), rule=within))
            weights.append(1.0)
        return Group(tuple(members), tuple(weights))

    return grown("")


def start_helpers(view: View, plan: Plan) -> None:
    """Work without GPUs is in nobody's way."""
    for job in list(view.queue):
        if not job.shape.each:
            plan.start(job)


def start_misfits(plan: Plan, jobs: Sequence[JobView]) -> None:
    """A gang that no single type can hold runs on mixed ones, when they happen to be free."""
    for job in jobs:
        if job.spots is None:
            spots = plan.room.anywhere(job.shape)
            if spots is None:
                plan.deny(job, "Resources", "no type has so many GPUs: it waits until enough are idle")
            else:
                plan.start(job, spots)


def _with_slips(view: View, last: Given, table: Table) -> Given:
    waiting = {
        job.seq: Waiting(
            job.id, job.shape.load, frozenset(w for w, v in zip(table.ways, row, strict=True) if v > 0)
        )
        for job, row in zip(table.jobs, table.speed, strict=True)
    }
    return dealt(last, waiting, capacity(view.cluster, view.room), view.seed)


def drawn(seed: int, kinds: tuple[str, ...], number: int) -> tuple[str, ...]:
    """The order of types in a round, drawn as the authors' simulator does, to compare runs."""
    source, orders = _draws(seed, kinds)
    while len(orders) <= number:
        order = list(kinds)
        source.shuffle(order)
        orders.append(tuple(order))
    return orders[number]


@lru_cache(maxsize=64)
def _draws(seed: int, kinds: tuple[str, ...]) -> tuple[Random, list[tuple[str, ...]]]:
    return seeded(seed + 5), []
