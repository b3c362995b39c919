"""Pollux: GPUs go where they make the most goodput, and jobs set their batch to it (Qiao et al., OSDI 2021).

Goodput is throughput times the worth of a sample (model.goodput). The agent of a job sets the batch that
makes the most of its GPUs; the policy takes that for granted and decides about GPUs alone, each minute: it
looks for the allocation whose power mean of speed-ups over all jobs is largest (solve.allocation_search).

Reconstructed: a job that waits loses nothing by a start, so the factor for reallocation counts for running
jobs only. The published rule for jobs that have never run was not available; they start with their least.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from dovetail.mechanisms.order.keys import arrival
from dovetail.mechanisms.resize.reallocations import Past, remembered, restart_factor
from dovetail.model.chance import chance
from dovetail.model.estimate import alike, task_range
from dovetail.model.grant import Spots, lowest
from dovetail.model.job import Shape
from dovetail.model.units import WHOLE, micros
from dovetail.model.view import JobView, Order, Plan, View
from dovetail.solve.allocation_search import Floats, Ints, Mask, Problem, found

QUIET = 5  # rounds until the next search, if the last one changed nothing and nothing happens
NO_GPUS = "the search found no GPUs for it"


@dataclass(frozen=True, slots=True)
class Memory:
    """What the last round leaves to the next."""

    at: int
    review_at: int | None
    past: Past


def pollux(
    *,
    power: float = -1.0,
    delta: float = 30.0,
    quantum: float = 60.0,
    population: int = 100,
    generations: int = 100,
) -> Pollux:
    """GPUs and nodes of all jobs are searched anew each minute, for the largest power mean of speed-ups.

    `power`: -1 is the harmonic mean; smaller is fairer, 1 is the most goodput. `delta`: seconds that a
    reallocation is taken to cost. `population` and `generations`: of the genetic search.
    """
    return Pollux(
        power=power,
        delta=micros(delta),
        quantum=micros(quantum),
        population=population,
        generations=generations,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pollux:
    """Jobs that ask for whole GPUs and nothing else are reallocated; the others get theirs first."""

    power: float
    delta: int
    quantum: int
    population: int
    generations: int
    order: Order = arrival
    group: None = None

    def decide(self, view: View) -> Plan:
        plan = view.draft()
        last = view.memory if isinstance(view.memory, Memory) else Memory(-1, None, {})
        if last.at == view.now:  # its own starts and resizes are reported: they are no reason to search again
            plan.review_at, plan.memory = last.review_at, last
            for job in view.queue:
                plan.deny(job, "Priority", NO_GPUS)
            return plan
        mine = [job for job in (*view.queue, *view.running.values()) if _reallocated(view, job)]
        mine.sort(key=lambda job: job.seq)
        held = {job.id: job.spots or () for job in mine}
        stopped = _start_others(view, plan, [job for job in mine if job.spots])
        problem = self._problem(view, plan, mine, held, stopped, last.past)
        seed = chance(view).getrandbits(63)
        matrix = found(
            problem, seed, power=self.power, population=self.population, generations=self.generations
        )
        rows = [i for i, job in enumerate(mine) if stopped or (matrix[i] != problem.now[i]).any()]
        changed = _enact(plan, [mine[i] for i in rows], matrix[rows], held)
        if mine:
            plan.review_at = (view.now // self.quantum + (1 if changed else QUIET)) * self.quantum
        plan.memory = Memory(view.now, plan.review_at, remembered(mine, held, last.past))
        return plan

    def _problem(
        self,
        view: View,
        plan: Plan,
        jobs: Sequence[JobView],
        held: dict[str, Spots],
        stopped: bool,
        past: Past,
    ) -> Problem:
        nodes = view.cluster.nodes
        now = np.zeros((len(jobs), len(nodes)), dtype=np.int64)
        for row, job in zip(now, jobs, strict=True):
            for node, devices, *_ in held[job.id]:
                row[node] += devices.bit_count()
        room = plan.room
        free = [room.free_on(n).bit_count() if room.is_open(n) else 0 for n in range(len(nodes))]
        capacity = np.array(free, dtype=np.int64) + (0 if stopped else now.sum(axis=0))
        kinds = list(view.cluster.type_speeds)
        kind = np.array([kinds.index(node.type.name) for node in nodes])
        gpus = int(capacity.sum())
        holds = now.sum(axis=1).tolist()
        bounds = [self.bounds(job, past, has, gpus) for job, has in zip(jobs, holds, strict=True)]
        return Problem(
            now,
            capacity,
            kind,
            _allowed(jobs, kinds)[:, kind],
            np.array([least for least, _ in bounds], dtype=np.int64),
            np.array([most for _, most in bounds], dtype=np.int64),
            _speedups(view, jobs, bounds, kinds, gpus),
            np.array([restart_factor(job, view.now, past, self.delta) for job in jobs]),
        )

    def bounds(self, job: JobView, past: Past, has: int, gpus: int) -> tuple[int, int]:
        """The fewest and the most GPUs of a job now."""
        least, most = task_range(job.shape, job.traits)
        had, _ = past.get(job.id, (0, 0))
        return least, max(least, has, min(most, _twice(max(had, has), gpus)))


def _twice(had: int, gpus: int) -> int:
    """Twice the most that a job has had, so that its scaling is known nearby; at most all GPUs."""
    return min(2 * had, gpus)


def _reallocated(view: View, job: JobView) -> bool:
    """Whether the search may change what the job holds."""
    if not job.shape.plain or (job.spots is not None and not job.traits.preemptible):
        return False
    return all(view.room.is_open(spot[0]) for spot in job.spots or ())


def _accepts(shape: Shape, kind: str) -> bool:
    return not shape.types or kind in shape.types


def _allowed(jobs: Sequence[JobView], kinds: Sequence[str]) -> Mask:
    """By job and type."""
    return np.array([[_accepts(job.shape, kind) for kind in kinds] for job in jobs], dtype=bool).reshape(
        -1, len(kinds)
    )


def _start_others(view: View, plan: Plan, running: Sequence[JobView]) -> bool:
    """Start the jobs that are not reallocated; whether these running jobs were stopped to make room."""
    others = sorted((job for job in view.queue if not job.shape.plain), key=lambda job: job.seq)
    blocked = [job for job in others if not plan.start(job)]
    if not blocked or not running:
        return False
    for job in running:
        plan.stop(job)
    for job in blocked:
        plan.start(job)
    return True


def _speedups(
    view: View, jobs: Sequence[JobView], bounds: Sequence[tuple[int, int]], kinds: Sequence[str], gpus: int
) -> Floats:
    """Speed by type, across nodes or not, and GPUs, over that with a fair share of the GPUs."""
    widest = max((most for _, most in bounds), default=0)
    table = np.zeros((len(kinds), 2, len(jobs), widest + 1))
    same: dict[tuple[Hashable, tuple[int, int]], Floats] = {}  # jobs of equal estimates and bounds
    for i, (job, bound) in enumerate(zip(jobs, bounds, strict=True)):
        key = alike(view.estimator, job), bound
        if key not in same:
            same[key] = _speedups_of(view, job, bound, kinds, fair_share(job, gpus, len(jobs)))
        table[:, :, i, : bound[1] + 1] = same[key]
    return table


def _speedups_of(view: View, job: JobView, bound: tuple[int, int], kinds: Sequence[str], fair: int) -> Floats:
    least, most = bound
    table = np.zeros((len(kinds), 2, most + 1))
    accepted = [kind for kind in kinds if _accepts(job.shape, kind)]
    base = max((view.speed(job, tasks=fair, type=kind).speed for kind in accepted), default=0.0)
    if base <= 0:
        base = 1.0
    for t, kind in enumerate(kinds):
        if kind not in accepted:
            continue
        for nodes in (1, 2):
            for tasks in range(max(least, nodes), most + 1):
                speed = view.speed(job, tasks=tasks, type=kind, nodes=nodes).speed
                table[t, nodes - 1, tasks] = speed / base
    return table


def fair_share(job: JobView, gpus: int, jobs: int) -> int:
    """An equal part of the cluster, within the bounds of the job."""
    least, most = task_range(job.shape, job.traits)
    return max(least, min(most, gpus // jobs))


def _enact(plan: Plan, jobs: Sequence[JobView], matrix: Ints, held: dict[str, Spots]) -> bool:
    """Give each job its row, on devices that it holds as far as it keeps some; whether any changed."""
    for job in jobs:
        if job.spots is not None:
            plan.stop(job)
    room = plan.room
    free = {node: room.free_on(node) for node in range(matrix.shape[1])}
    kept: list[dict[int, int]] = []
    for job, row in zip(jobs, matrix.tolist(), strict=True):
        mine: dict[int, int] = {}
        for node, devices, *_ in held[job.id]:
            mine[node] = mine.get(node, 0) | lowest(devices & free[node], row[node])
        kept.append(mine)
        for node, devices in mine.items():
            free[node] &= ~devices
    changed = False
    for job, row, mine in zip(jobs, matrix.tolist(), kept, strict=True):
        for node, count in enumerate(row):
            more = lowest(free[node], count - mine.get(node, 0).bit_count())
            free[node] &= ~more
            mine[node] = mine.get(node, 0) | more
        spots = tuple((node, devices, WHOLE, 0, 0) for node, devices in sorted(mine.items()) if devices)
        changed |= spots != held[job.id]
        if not spots:
            plan.deny(job, "Priority", NO_GPUS)
        else:
            plan.start(job, spots)
    return changed
