"""A genetic search for the GPUs of each job on each node, by the power mean of the jobs' speed-ups.

Qiao et al., "Pollux", OSDI 2021, section 4.2. An individual is a matrix of jobs and nodes: GPUs of a job on a
node. A child takes each row from one of two parents; then some rows are drawn anew, and the others give way
to them until the matrix is valid again: no node over its capacity, no job below its least, and at most one
job that spans nodes on each node, because such jobs slow each other down. The best of parents and children
go on. Equal numbers give equal results on every CPU: sums and quotients only, and a seeded generator.

A child differs from its parents in few cells, so what gives way and what counts for the fitness is worked
out for the rows and nodes that change. The search ends early once no matrix can be better.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dovetail.solve.portable import rounded

Ints = NDArray[np.int64]
Counts = NDArray[np.int16]
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

FLOOR = 1e-3  # the speed-up of a job without GPUs, so that its reciprocal is finite
EQUAL = 1e-9  # a difference in fitness that is the arithmetic's
REDRAWN = 2  # rows of a child that are drawn anew


@dataclass(frozen=True)
class Problem:
    """J jobs on N nodes, of T types of GPU. Numbers of GPUs, but for what is said."""

    now: Ints  # [J, N]: what the jobs hold
    capacity: Ints  # [N]
    kind: Ints  # [N]: the type of the node
    allowed: Mask  # [J, N]: the job accepts the node
    least: Ints  # [J]
    most: Ints  # [J]
    speedups: Floats  # [T, 2, J, K + 1]: by type, across nodes or not, job, and GPUs
    factor: Floats  # [J]: what is left of the speed-up of a job whose row changes


def found(
    problem: Problem,
    seed: int,
    *,
    power: float = -1.0,
    population: int = 100,
    generations: int = 100,
    patience: int = 10,
) -> Ints:
    """The best matrix of a search, which ends after `patience` generations without a better one.

    Of matrices that are as good as what the jobs hold, it is what they hold.
    """
    if not problem.now.size:
        return problem.now
    search = Search(problem, power, np.random.default_rng(seed))
    pool = search.first().best(population)
    limit, idle = (1 - EQUAL) * highest(problem, power), 0
    for _ in range(generations):
        if pool.values[0] >= limit:
            break
        before = pool.values[0]
        pool = pool.joined(search.children(pool, population)).best(population)
        idle = 0 if pool.values[0] > before else idle + 1
        if idle >= patience:
            break
    best: Ints = pool.cells[0].astype(np.int64)
    return best


def fitness(problem: Problem, pool: Counts, power: float) -> Floats:
    """The power mean of the speed-ups of all jobs, for each matrix."""
    speedups = _speedups(problem, np.arange(pool.shape[1]), pool, pool.sum(axis=2, dtype=np.int64))
    return _mean(_powers(speedups, power), power)


def highest(problem: Problem, power: float) -> float:
    """No matrix has a larger fitness: as many jobs as there is room for, each as fast as it gets anywhere."""
    gpus = np.arange(problem.speedups.shape[3])
    within = (gpus >= problem.least[:, None]) & (gpus <= problem.most[:, None])
    fastest = np.where(within, problem.speedups, 0.0).max(axis=(0, 1, 3)) * problem.factor
    as_now = _speedups(problem, np.arange(len(problem.now)), problem.now, problem.now.sum(axis=1))
    with_most = _powers(np.maximum(np.maximum(fastest, as_now), FLOOR), power)
    without = _powers(np.full(len(with_most), FLOOR), power)
    running = np.searchsorted(np.cumsum(np.sort(problem.least)), problem.capacity.sum(), side="right")
    those = np.argsort(-np.abs(with_most - without), kind="stable")[:running]
    without[those] = with_most[those]
    return float(_mean(without[None], power)[0])


def _speedups(problem: Problem, jobs: Ints, rows: Counts | Ints, gpus: Ints) -> Floats:
    """The speed-up of each of these jobs with its row, which has so many GPUs."""
    held = rows > 0
    across = held.sum(axis=-1) > 1
    kinds = problem.kind[held.argmax(axis=-1)]
    speedups = problem.speedups[kinds, across.astype(np.int64), jobs, gpus]
    changed = (rows != problem.now[jobs]).any(axis=-1)
    return np.asarray(np.maximum(np.where(changed, speedups * problem.factor[jobs], speedups), FLOOR))


def _powers(speedups: Floats, power: float) -> Floats:
    return np.asarray(1.0 / speedups) if power == -1.0 else rounded(speedups**power)


def _mean(powers: Floats, power: float) -> Floats:
    """The power mean over the last axis, of what is raised to the power already."""
    mean = powers.sum(axis=-1) / powers.shape[-1]
    return np.asarray(1.0 / mean) if power == -1.0 else rounded(mean ** (1.0 / power))


@dataclass(frozen=True, slots=True)
class Pool:
    """P matrices, and what follows from each row and each matrix."""

    cells: Counts  # [P, J, N]
    spans: Mask  # [P, J]: the job has GPUs on several nodes
    powers: Floats  # [P, J]: its speed-up, raised to the power of the mean
    values: Floats  # [P]: the fitness

    def best(self, size: int) -> Pool:
        order = np.argsort(-self.values, kind="stable")[:size]
        return Pool(self.cells[order], self.spans[order], self.powers[order], self.values[order])

    def joined(self, other: Pool) -> Pool:
        return Pool(
            np.concatenate([self.cells, other.cells]),
            np.concatenate([self.spans, other.spans]),
            np.concatenate([self.powers, other.powers]),
            np.concatenate([self.values, other.values]),
        )


class Search:
    """What all generations share, and how one leads to the next."""

    def __init__(self, problem: Problem, power: float, rng: np.random.Generator) -> None:
        self._problem, self._power, self._rng = problem, power, rng
        # By the type on which a job runs: the room on each node, and all room on the nodes before it.
        types = np.arange(len(problem.speedups))[:, None, None]
        self._room = np.where(problem.allowed & (problem.kind == types), problem.capacity, 0)
        self._before = np.cumsum(self._room, axis=2) - self._room
        self._all_room = self._room.sum(axis=2)

    def first(self) -> Pool:
        """What the jobs hold; that and the least for others as far as there is room; the least for most."""
        problem = self._problem
        now = problem.now.astype(np.int16)
        served = _served(problem, now, np.arange(len(now)))
        cells = np.stack(
            [now, served] if served.any(axis=1).all() else [now, served, _least_for_most(problem)]
        )
        spans, powers = np.zeros(cells.shape[:2], dtype=bool), np.zeros(cells.shape[:2])
        changed = np.ones(cells.shape[:2], dtype=bool)
        self._weigh(cells, spans, powers, changed)
        nothing = np.zeros((len(cells), cells.shape[2]), dtype=np.int64)
        self._give_way(cells, spans, changed, nothing, nothing > 0)
        return self._weigh(cells, spans, powers, changed)

    def children(self, pool: Pool, size: int) -> Pool:
        """Children with rows of two parents, of which some rows are drawn anew."""
        problem, rng = self._problem, self._rng
        jobs, nodes = problem.now.shape
        draws = rng.integers(0, len(pool.cells), (2, 2, size)).min(axis=0)  # of two, the better parent
        crossed = (rng.random((size, jobs)) < 0.5) & (rng.random((size, 1)) < 0.5)
        parent = np.where(crossed, draws[1][:, None], draws[0][:, None]) * jobs + np.arange(jobs)
        cells = pool.cells.reshape(-1, nodes).take(parent, axis=0)
        spans, powers = pool.spans.ravel().take(parent), pool.powers.ravel().take(parent)
        changed = np.zeros((size, jobs), dtype=bool)
        flat, each = cells.reshape(-1, nodes), np.arange(size)
        rows = rng.integers(0, jobs, (REDRAWN, size))
        used = np.zeros((size, nodes), dtype=np.int64)
        redrawn_spans = np.zeros(used.shape, dtype=bool)  # nodes with a redrawn job that spans nodes
        drawn = []
        places = each * jobs + rows  # in `flat`
        fresh = self._drawn(rows.ravel(), flat[places.ravel()])
        for number, (row, wanted) in enumerate(zip(rows, fresh.reshape(REDRAWN, size, nodes), strict=True)):
            new = np.minimum(wanted, problem.capacity - used)
            if number:
                new[(rows[:number] == row).any(axis=0)] = 0  # drawn twice: the first counts
            held = new > 0
            spanning = (held.sum(axis=1) > 1)[:, None] & held
            new[~alone_on_its_nodes(spanning, redrawn_spans.astype(np.int16) + spanning)] = 0
            new[new.sum(axis=1) < problem.least[row]] = 0
            used += new
            redrawn_spans |= spanning
            drawn.append(new)
        flat[places] = 0
        spans.ravel()[places] = False
        changed.ravel()[places] = True
        self._give_way(cells, spans, changed, used, redrawn_spans)
        for place, new in zip(places, drawn, strict=True):
            flat[place] += new.astype(np.int16)
        return self._weigh(cells, spans, powers, changed)

    def _drawn(self, row: Ints, now: Counts) -> Ints:
        """A new row for one job of each child: a number of GPUs, on the nodes from a first one on."""
        problem, rng = self._problem, self._rng
        nodes = now.shape[1]
        least, most, has = problem.least[row], problem.most[row], now.sum(axis=1, dtype=np.int64)
        luck = rng.random((4, len(row)))
        any_number = least + (luck[0] * (most - least + 1)).astype(np.int64)
        near = np.choose(rng.integers(0, 4, len(row)), [has - 1, has + 1, 2 * has, has // 2])
        gpus = np.where(luck[1] < 0.5, np.minimum(np.maximum(near, least), most), any_number)
        gpus[luck[2] < 0.1] = 0
        first = rng.integers(0, nodes, len(row))
        first = np.where((has > 0) & (luck[3] < 0.5), now.argmax(axis=1), first)
        # Nodes in turn from the first one on, of its type only: a gang runs on one type.
        kind, each = problem.kind[first], np.arange(len(row))
        before = self._before[kind, row]
        before -= before[each, first][:, None]
        before += (before < 0) * self._all_room[kind, row][:, None]  # nodes that are before the first one
        taken: Ints = np.minimum(np.maximum(gpus[:, None] - before, 0), self._room[kind, row])
        return taken

    def _give_way(self, cells: Counts, spans: Mask, changed: Mask, used: Ints, redrawn_spans: Mask) -> None:
        """Take what is too much beside the redrawn jobs. Chance says which jobs give way."""
        problem = self._problem
        line = self._rng.permutation(cells.shape[1])
        child, place = np.nonzero(spans[:, line])
        if len(child):
            job = line[place]
            held = cells[child, job] > 0
            count = np.cumsum(held, axis=0, dtype=np.int16)  # it may wrap: differences count
            begin = np.searchsorted(child, child)  # the first row of the same child
            count -= count[begin] - held[begin]
            stay = alone_on_its_nodes(held, count + redrawn_spans[child])
            lost = np.flatnonzero(~stay.all(axis=1))
            cells[child[lost], job[lost]] *= stay[lost]
            changed[child[lost], job[lost]] = True
        room = problem.capacity - used
        child, node = np.nonzero(cells.sum(axis=1, dtype=np.int16) > room)
        if len(child):
            there = cells[child, :, node][:, line]
            before = np.cumsum(there, axis=1, dtype=np.int16) - there
            left = np.minimum(there, np.maximum(room[child, node][:, None] - before, 0))
            at, place = np.nonzero(left != there)
            cells[child[at], line[place], node[at]] = left[at, place]
            changed[child[at], line[place]] = True

    def _weigh(self, cells: Counts, spans: Mask, powers: Floats, changed: Mask) -> Pool:
        """The matrices with no job below its least, and their fitness, by the rows that changed alone."""
        jobs, nodes = self._problem.now.shape
        places, flat = np.flatnonzero(changed), cells.reshape(-1, nodes)
        rows, job = flat[places], places % jobs
        gpus = rows.sum(axis=1, dtype=np.int64)
        few = np.flatnonzero((gpus < self._problem.least[job]) & (gpus > 0))
        if len(few):
            rows[few], gpus[few], flat[places[few]] = 0, 0, 0
        spans.ravel()[places] = (rows > 0).sum(axis=1) > 1
        powers.ravel()[places] = _powers(_speedups(self._problem, job, rows, gpus), self._power)
        return Pool(cells, spans, powers, _mean(powers, self._power))


def _served(problem: Problem, made: Counts, order: Ints) -> Counts:
    """The least for each job without GPUs beside what is made, as far as there is room, in this order."""
    made = made.copy()
    free = np.maximum(problem.capacity - made.sum(axis=0), 0)
    left = int(free.sum())
    for job in order[made[order].sum(axis=1) == 0]:
        wanted = int(problem.least[job])
        if wanted > left:
            continue
        room = np.where(problem.allowed[job], free, 0)
        fits = np.flatnonzero(room >= wanted)
        if len(fits):
            made[job, fits[np.argmin(room[fits])]] = wanted
        else:
            for kind in range(len(problem.speedups)):
                there = np.where(problem.kind == kind, room, 0)
                if there.sum() >= wanted:
                    fullest = np.argsort(-there, kind="stable")
                    before = np.cumsum(there[fullest]) - there[fullest]
                    made[job, fullest] = np.clip(wanted - before, 0, there[fullest])
                    break
            else:
                continue
        free -= made[job]
        left -= wanted
    return made


def _least_for_most(problem: Problem) -> Counts:
    """The least for as many jobs as there is room for; what is left goes to those that held more."""
    now, least = problem.now.astype(np.int16), problem.least
    runs = now.any(axis=1)
    order = np.lexsort((~runs, least))
    served = np.zeros(len(now), dtype=bool)
    served[order] = np.cumsum(least[order]) <= problem.capacity.sum()
    kept = np.where(served[:, None], now, 0)
    before = np.cumsum(kept, axis=1) - kept
    made = _served(problem, np.clip(least[:, None] - before, 0, kept).astype(np.int16), order)
    more = np.maximum(kept - made, 0)
    before = np.cumsum(more, axis=0) - more
    free = np.maximum(problem.capacity - made.sum(axis=0), 0)
    made += np.clip(free - before, 0, more).astype(np.int16)
    return made


def alone_on_its_nodes(spanning: Mask, place: Counts) -> Mask:
    """Cells that may stay: of the jobs that span nodes, the first on each node; all cells of the others."""
    return ~spanning | (place <= 1)
