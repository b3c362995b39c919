"""Sia: GPU type and number of GPUs of all jobs, elastic or not, by one integer program (SOSP 2023).

Jayaram Subramanya, Arfeen, Lin, Qiao, Jia and Ganger, "Sia: Heterogeneity-aware, goodput-optimized
ML-cluster scheduling". Each minute every job gets one configuration, a number of GPUs of one type, or none
(mechanisms.allocate.configurations). The goodputs of a job are divided by the smallest of them, so that jobs
can be compared, and

    sum over jobs of (r * goodput) ** power, or `penalty` for a job without GPUs,

is made as small as possible (`power` < 0) within the GPUs of each type (solve.multiple_choice). r is the
factor for restarts, for configurations other than the one that the job has. Goodputs come from a profile on
one GPU of each type and from what jobs have run on (mechanisms.estimate.bootstrapped_speeds).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dovetail.mechanisms.allocate.configurations import (
    Configuration,
    Pool,
    configurations,
    own_size,
    own_sizes,
    pools,
    suits,
)
from dovetail.mechanisms.allocate.sizes import milli_each, whole_cluster
from dovetail.mechanisms.estimate.bootstrapped_speeds import BootstrappedSpeeds
from dovetail.mechanisms.order.keys import arrival
from dovetail.mechanisms.place.whole_nodes import Masks, Wish, arranged
from dovetail.mechanisms.resize.reallocations import Past, most_gpus, remembered, restart_factor
from dovetail.mechanisms.rounds.active_jobs import start_cpu_jobs
from dovetail.model.estimate import DECLARED, Estimator, alike
from dovetail.model.grant import Spots, devices_of, nodes_of
from dovetail.model.units import WHOLE, micros
from dovetail.model.view import JobView, Order, Plan, View
from dovetail.solve.multiple_choice import best_choice
from dovetail.solve.portable import rounded

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

QUIET = 5  # rounds until the next decision, if the last one changed nothing and nothing happens
BEAM = 60  # of the integer program: half the time, and seldom another choice
NO_GPUS = "the jobs that run make more of the GPUs"
NO_PLACE = "no node has so many GPUs free at once: it is placed in a later round"


def sia(
    *,
    power: float = -0.5,
    penalty: float = 1.1,
    delta: float = 30.0,
    quantum: float = 60.0,
    speeds: Literal["bootstrapped", "declared"] = "bootstrapped",
) -> Sia:
    """Each job gets a configuration or none, so that the sum of powers of normalised goodputs is best.

    `power`: smaller is fairer; 1 is the most goodput. `penalty`: of a job without GPUs, in the same sum.
    `delta`: seconds that a restart is taken to cost. `speeds`: on several GPUs known once a job has had
    several, or as declared from the beginning.
    """
    if not power:
        raise ValueError("the power of a goodput is above or below 0")
    if speeds not in ("bootstrapped", "declared"):
        raise ValueError(f"speeds are bootstrapped or declared, not {speeds}")
    return Sia(
        power=power,
        penalty=penalty,
        delta=micros(delta),
        quantum=micros(quantum),
        bootstraps=speeds == "bootstrapped",
    )


@dataclass(slots=True)
class SpeedTable:
    """The speed of jobs in each configuration, by what it depends on: worked out again if it is lost."""

    kinds: tuple[Pool, ...] = ()
    columns: tuple[Configuration, ...] = ()
    rows: dict[Hashable, tuple[object, Floats]] = field(default_factory=dict)  # and traits, by their id

    def __reduce__(self) -> tuple[type[SpeedTable], tuple[()]]:
        return SpeedTable, ()

    def of(self, view: View, jobs: Sequence[JobView], estimator: Estimator, last: SpeedTable) -> Floats:
        """A row for each job, as the last table had it if nothing has changed; 0 where it does not run."""
        known = last.rows if (last.kinds, last.columns) == (self.kinds, self.columns) else {}
        found = []
        for job in jobs:
            key = _depends_on(job, estimator)
            row = self.rows.get(key) or known.get(key) or (job.traits, self._row(view, job, estimator))
            self.rows[key] = row
            found.append(row[1])
        return np.stack(found) if found else np.zeros((0, len(self.columns)))

    def _row(self, view: View, job: JobView, estimator: Estimator) -> Floats:
        row = np.zeros(len(self.columns))
        for number, (pool, nodes, gpus) in enumerate(self.columns):
            if suits(job, self.kinds[pool], self.columns[number]):
                tasks, kind = gpus // job.shape.each, self.kinds[pool].type
                row[number] = estimator.estimate(view.cluster, job, tasks, kind, nodes, None).speed
        return row


def _depends_on(job: JobView, estimator: Estimator) -> Hashable:
    """Jobs for which this is equal have equal speeds."""
    if isinstance(estimator, BootstrappedSpeeds):
        return alike(DECLARED, job), estimator.ran.get(job.id, ())
    return alike(estimator, job), job.noise_scale


@dataclass(frozen=True, slots=True)
class Memory:
    """What the last round leaves to the next."""

    at: int = -1
    review_at: int | None = None
    past: Past = field(default_factory=dict)
    speeds: BootstrappedSpeeds = field(default_factory=BootstrappedSpeeds)
    table: SpeedTable = field(default_factory=SpeedTable, init=False, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sia:
    """Jobs that ask for whole GPUs are given configurations; the others get what they ask for, first."""

    power: float
    penalty: float
    delta: int
    quantum: int
    bootstraps: bool
    order: Order = arrival
    group: None = None

    def decide(self, view: View) -> Plan:
        plan = view.draft()
        last = view.memory if isinstance(view.memory, Memory) else Memory()
        if last.at == view.now:  # its own starts are reported: they are no reason to decide again
            plan.review_at, plan.memory = last.review_at, last
            for job in view.queue:
                plan.deny(job, "Priority", NO_GPUS)
            return plan
        start_cpu_jobs(view, plan)
        kinds = pools(view.cluster, view.room)
        jobs = [job for job in (*view.queue, *view.running.values()) if _reallocated(view, job, kinds)]
        jobs.sort(key=lambda job: job.seq)
        held = {job.id: job.spots or () for job in jobs}
        _start_others(view, plan, jobs)
        table = SpeedTable(kinds, configurations(kinds, own_sizes(jobs)))
        seen = last.speeds.observed(view)
        speeds = table.of(view, jobs, seen if self.bootstraps else view.estimator, last.table)
        most = np.array(_most(view, jobs, held, last.past), dtype=np.int64)
        speeds = np.where(np.array([gpus for *_, gpus in table.columns]) <= most[:, None], speeds, 0.0)
        now = _columns(view, table, jobs, held)
        factors = [restart_factor(job, view.now, last.past, self.delta) for job in jobs]
        factors = [factor if held[job.id] else 1.0 for job, factor in zip(jobs, factors, strict=True)]
        free = _free(plan, table, jobs)
        pick = self.chosen(speeds, jobs, now, np.array(factors), _limits(table, free))
        _enact(plan, jobs, held, table, now, pick, free)
        changed = any((job.spots or ()) != held[job.id] for job in jobs)
        if jobs:
            plan.review_at = (view.now // self.quantum + (1 if changed else QUIET)) * self.quantum
        memory = Memory(view.now, plan.review_at, remembered(jobs, held, last.past), seen)
        object.__setattr__(memory, "table", table)
        plan.memory = memory
        return plan

    def chosen(
        self,
        speeds: Floats,
        jobs: Sequence[JobView],
        now: Ints,
        factors: Floats,
        limits: tuple[Floats, Floats],
    ) -> Ints:
        """The configuration of each job, or -1."""
        if not speeds.size:
            return np.full(len(jobs), -1)
        least = np.array([own_size(job) for job in jobs], dtype=np.float64)
        changed = np.arange(speeds.shape[1]) != now[:, None]
        factor = np.where(changed, factors[:, None], 1.0)
        value, none = worth(speeds, least, factor, self.power, self.penalty)
        some = np.append(np.flatnonzero((value > none).any(axis=0)), -1)  # the others cost time only
        use, capacity = limits
        return some[best_choice(value[:, some[:-1]], use[some[:-1]], capacity, none=none, beam=BEAM).pick]


def worth(
    speeds: Floats, least: Floats, factor: Floats, power: float, penalty: float
) -> tuple[Floats, float]:
    """What each configuration adds to a sum that is to be as large as possible, and none of them.

    Speeds are divided by the smallest of their job and multiplied by the fewest GPUs with which it runs.
    """
    possible = (speeds > 0) & (factor > 0)
    smallest = np.where(speeds > 0, speeds, np.inf).min(axis=1, keepdims=True)
    goodput = np.where(possible, speeds / smallest * least[:, None] * factor, 1.0)
    sign = 1.0 if power > 0 else -1.0
    return np.where(possible, sign * rounded(goodput**power), -np.inf), -penalty


def _limits(table: SpeedTable, free: Mapping[int, int]) -> tuple[Floats, Floats]:
    """What each configuration uses, and how much there is: GPUs of each pool.

    Where jobs are in the way that cannot be moved, also the nodes of the pool that are empty without them.
    """
    use: list[list[int]] = []
    capacity: list[int] = []
    for number, pool in enumerate(table.kinds):
        counts = [free[node].bit_count() for node in pool.nodes]
        gpus = [config.gpus if config.pool == number else 0 for config in table.columns]
        use.append(gpus)
        capacity.append(sum(counts))
        if counts.count(pool.each) < len(counts):
            use.append([each // pool.each for each in gpus])
            capacity.append(counts.count(pool.each))
    return np.array(use, dtype=np.float64).T, np.array(capacity, dtype=np.float64)


def _reallocated(view: View, job: JobView, kinds: Sequence[Pool]) -> bool:
    """Whether a job may get any configuration."""
    shape = job.shape
    if not (shape.each and shape.exclusive) or shape.roles or shape.partition:
        return False
    if job.spots is not None and not (
        job.traits.preemptible and all(view.room.is_open(spot[0]) for spot in job.spots)
    ):
        return False
    size = own_size(job)
    return any(
        size <= pool.gpus and suits(job, pool, Configuration(number, -(-size // pool.each), size))
        for number, pool in enumerate(kinds)
    )


def _start_others(view: View, plan: Plan, jobs: Sequence[JobView]) -> None:
    """Start the jobs without configurations; if one is blocked, when the jobs that have one make room."""
    mine = {job.id for job in jobs}
    others = sorted((job for job in view.queue if job.id not in mine and job.shape.each), key=lambda j: j.seq)
    blocked = [job for job in others if job.spots is None and not _start(plan, job)]
    if blocked:
        for job in jobs:
            if job.spots is not None:
                plan.stop(job)
        for job in blocked:
            _start(plan, job)


def _start(plan: Plan, job: JobView) -> bool:
    spots = plan.room.best(job.shape) or plan.room.anywhere(job.shape)
    return plan.start(job, spots) if spots is not None else plan.deny(job, "Resources")


def _most(view: View, jobs: Sequence[JobView], held: Mapping[str, Spots], past: Past) -> list[int]:
    """The most GPUs of each job now: by growth, and by the limits of its tenant, running jobs first."""
    most = [most_gpus(job, past) for job in jobs]
    if all(tenant.limit is None for tenant in view.cluster.tenants.values()):
        return most
    left = whole_cluster(view)
    for job in view.running.values():
        if job.id not in held:
            left.take(job, job.held // max(1, milli_each(job)))
    order = sorted(range(len(jobs)), key=lambda row: (not held[jobs[row].id], jobs[row].seq))
    granted = [0] * len(jobs)
    for wanted in (list(map(own_size, jobs)), [devices_of(held[job.id]) for job in jobs], most):
        for row in order:
            job, has = jobs[row], granted[row]
            more = min(wanted[row], most[row]) - has
            tasks = more // job.shape.each
            if tasks > 0 and left.allows(job, tasks) and (has or wanted[row] == own_size(job)):
                left.take(job, tasks)
                granted[row] = has + more
    return granted


def _columns(view: View, table: SpeedTable, jobs: Sequence[JobView], held: Mapping[str, Spots]) -> Ints:
    """The configuration that each job has; -1 if none, or one that the rule does not give."""
    number = {column: number for number, column in enumerate(table.columns)}
    pool_of = {node: number for number, pool in enumerate(table.kinds) for node in pool.nodes}
    found = []
    for job in jobs:
        spots = held[job.id]
        inside = {pool_of[node] for node in nodes_of(spots)}
        now = Configuration(inside.pop(), len(spots), devices_of(spots)) if len(inside) == 1 else None
        found.append(-1 if now is None else number.get(now, -1))
    return np.array(found, dtype=np.int64)


def _free(plan: Plan, table: SpeedTable, jobs: Sequence[JobView]) -> dict[int, int]:
    """The devices of each node that are free, or held by these jobs."""
    free = {node: plan.room.free_on(node) for pool in table.kinds for node in pool.nodes}
    for job in jobs:
        for node, devices, *_ in job.spots or ():
            free[node] |= devices
    return free


def _enact(
    plan: Plan,
    jobs: Sequence[JobView],
    held: Mapping[str, Spots],
    table: SpeedTable,
    now: Ints,
    pick: Ints,
    free: Mapping[int, int],
) -> None:
    """Give each job its configuration, where it is as far as that is possible."""
    wishes = []
    for job, choice, had in zip(jobs, pick.tolist(), now.tolist(), strict=True):
        if choice >= 0:
            wanted = table.columns[choice]
            devices = {spot[0]: spot[1] for spot in held[job.id]}
            pool = table.kinds[wanted.pool]
            wishes.append(Wish(job.id, wanted.gpus, pool.each, pool.nodes, devices, choice == had))
    found = arranged(free, wishes)
    made = {job.id: _spots(job, found[job.id]) for job in jobs if job.id in found}
    for job in jobs:
        if job.spots is not None and made.get(job.id) != job.spots:
            plan.stop(job)
    chosen = {wish.name for wish in wishes}
    for job in jobs:
        spots = made.get(job.id)
        if job.spots is not None:
            continue
        if spots is None:
            plan.deny(job, "Priority", NO_PLACE if job.id in chosen else NO_GPUS)
        elif _fits(plan, spots):
            plan.start(job, spots)
        else:
            plan.deny(job, "Resources", "the nodes with GPUs for it lack CPUs or memory")


def _fits(plan: Plan, spots: Spots) -> bool:
    room = plan.room
    return all(
        room.free_cpus(node) >= cpus and room.free_memory(node) >= memory
        for node, _, _, cpus, memory in spots
    )


def _spots(job: JobView, devices: Masks) -> Spots:
    shape, found = job.shape, []
    for node, mask in sorted(devices.items()):
        tasks = mask.bit_count() // shape.each
        found.append((node, mask, WHOLE, tasks * shape.cpus, tasks * shape.memory))
    return tuple(found)
