"""A genetic search for the GPUs of each job on each node, by the power mean of the jobs' speed-ups.

Qiao et al., "Pollux", OSDI 2021, section 4.2. An individual is a matrix of jobs and nodes: GPUs of a job on a
node. A child takes each row from one of two parents; then some rows are drawn anew, and the others give way
to them until the matrix is valid again: no node over its capacity, no job below its least, and at most one
job that spans nodes on each node, because such jobs slow each other down. The best of parents and children
go on. Equal numbers give equal results on every CPU: sums and quotients only, and a seeded generator.
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
    population: int = 40,
    generations: int = 50,
    patience: int = 10,
) -> Ints:
    """The best matrix of a search, which ends after `patience` generations without a better one.

    Of matrices that are as good as what the jobs hold, it is what they hold.
    """
    if not problem.now.size:
        return problem.now
    rng = np.random.default_rng(seed)
    pool = np.stack([problem.now.astype(np.int16), _served(problem)])
    pool = _valid(problem, pool, rng)
    values = fitness(problem, pool, power)
    pool, values = _best(pool, values, population)
    idle = 0
    for _ in range(generations):
        children = _children(problem, pool, population, rng)
        every = np.concatenate([pool, children])
        before = values[0]
        pool, values = _best(every, np.concatenate([values, fitness(problem, children, power)]), population)
        idle = 0 if values[0] > before else idle + 1
        if idle >= patience:
            break
    best: Ints = pool[0].astype(np.int64)
    return best


def fitness(problem: Problem, pool: Counts, power: float) -> Floats:
    """The power mean of the speed-ups of all jobs, for each matrix."""
    held = pool > 0
    gpus, across = pool.sum(axis=2, dtype=np.int64), held.sum(axis=2) > 1
    kinds = problem.kind[held.argmax(axis=2)]
    jobs = np.arange(pool.shape[1])
    speedups = problem.speedups[kinds, across.astype(np.int64), jobs, gpus]
    changed = (pool != problem.now).any(axis=2)
    speedups = np.maximum(np.where(changed, speedups * problem.factor, speedups), FLOOR)
    if power == -1.0:
        return np.asarray(1.0 / (1.0 / speedups).mean(axis=1))
    powers = rounded(speedups**power)
    return rounded(powers.mean(axis=1) ** (1.0 / power))


def _best(pool: Counts, values: Floats, size: int) -> tuple[Counts, Floats]:
    order = np.argsort(-values, kind="stable")[:size]
    return pool[order], values[order]


def _served(problem: Problem) -> Counts:
    """What the jobs hold, and the least for each job without GPUs as far as there is room, in order."""
    made = problem.now.astype(np.int16)
    free = problem.capacity - made.sum(axis=0)
    for job in np.flatnonzero(~made.any(axis=1)):
        wanted = int(problem.least[job])
        room = np.where(problem.allowed[job], np.maximum(free, 0), 0)
        fits = np.flatnonzero(room >= wanted)
        if len(fits):
            made[job, fits[np.argmin(room[fits])]] = wanted
        else:
            for kind in range(len(problem.speedups)):
                there = np.where(problem.kind == kind, room, 0)
                if there.sum() >= wanted:
                    order = np.argsort(-there, kind="stable")
                    before = np.cumsum(there[order]) - there[order]
                    made[job, order] = np.clip(wanted - before, 0, there[order])
                    break
        free -= made[job]
    return made


def _children(problem: Problem, pool: Counts, size: int, rng: np.random.Generator) -> Counts:
    jobs = pool.shape[1]
    draws = rng.integers(0, len(pool), (2, 2, size)).min(axis=0)  # of two, the better parent
    crossed = (rng.random((size, jobs)) < 0.5) & (rng.random((size, 1)) < 0.5)
    children = np.where(crossed[:, :, None], pool[draws[1]], pool[draws[0]])
    each = np.arange(size)
    rows = rng.integers(0, jobs, (REDRAWN, size))
    used = np.zeros((size, len(problem.capacity)), dtype=np.int64)
    spans = np.zeros(used.shape, dtype=bool)  # nodes with a redrawn job that spans nodes
    drawn = []
    fresh = _drawn(problem, rows.ravel(), children[np.tile(each, REDRAWN), rows.ravel()], rng)
    for number, (row, wanted) in enumerate(zip(rows, fresh.reshape(REDRAWN, *used.shape), strict=True)):
        new = np.minimum(wanted, problem.capacity - used)
        new[(rows[:number] == row).any(axis=0)] = 0  # drawn twice: the first counts
        spanning = ((new > 0).sum(axis=1) > 1)[:, None] & (new > 0)
        new[~alone_on_its_nodes(spanning, spans.astype(np.int16) + spanning)] = 0
        new[new.sum(axis=1) < problem.least[row]] = 0
        used += new
        spans |= spanning
        children[each, row] = 0
        drawn.append(new)
    children = _valid(problem, children, rng, used, spans)
    for row, new in zip(rows, drawn, strict=True):
        children[each, row] += new.astype(np.int16)
    return children


def _drawn(problem: Problem, row: Ints, now: Counts, rng: np.random.Generator) -> Ints:
    """A new row for one job of each child: a number of GPUs, on the nodes from a first one on."""
    size, nodes = now.shape
    least, most, has = problem.least[row], problem.most[row], now.sum(axis=1, dtype=np.int64)
    any_number = rng.integers(least, most + 1)
    near = np.clip(np.choose(rng.integers(0, 4, size), [has - 1, has + 1, 2 * has, has // 2]), least, most)
    gpus = np.where(rng.random(size) < 0.5, near, any_number)
    gpus[rng.random(size) < 0.1] = 0
    first = np.where((has > 0) & (rng.random(size) < 0.5), now.argmax(axis=1), rng.integers(0, nodes, size))
    # Nodes in turn from the first one on, of its type only: a gang runs on one type.
    order = (np.arange(nodes) + first[:, None]) % nodes
    fits = problem.allowed[row] & (problem.kind == problem.kind[first][:, None])
    room = np.take_along_axis(np.where(fits, problem.capacity, 0), order, axis=1)
    taken = np.clip(gpus[:, None] - (np.cumsum(room, axis=1) - room), 0, room)
    made = np.zeros((size, nodes), dtype=np.int64)
    np.put_along_axis(made, order, taken, axis=1)
    return made


def _valid(
    problem: Problem,
    pool: Counts,
    rng: np.random.Generator,
    used: Ints | None = None,
    spans: Mask | None = None,
) -> Counts:
    """The matrices without what is too much beside the redrawn jobs. Chance says which jobs give way."""
    line = rng.permutation(pool.shape[1])
    pool = pool[:, line]
    held = pool > 0
    spanning = held & (held.sum(axis=2) > 1)[:, :, None]
    place = np.cumsum(spanning, axis=1, dtype=np.int16)
    if spans is not None:
        place += spans[:, None, :]
    pool = np.where(alone_on_its_nodes(spanning, place), pool, 0).astype(np.int16)
    room = problem.capacity if used is None else problem.capacity - used
    room = np.broadcast_to(room, (len(pool), len(problem.capacity))).astype(np.int16)
    before = np.cumsum(pool, axis=1, dtype=np.int16) - pool
    pool = np.clip(room[:, None, :] - before, 0, pool)
    whole = pool.sum(axis=2, dtype=np.int64) >= problem.least[line]
    pool = np.where(whole[:, :, None], pool, 0).astype(np.int16)
    back = np.empty_like(line)
    back[line] = np.arange(len(line))
    return pool[:, back]


def alone_on_its_nodes(spanning: Mask, place: Counts) -> Mask:
    """Cells that may stay: of the jobs that span nodes, the first on each node; all cells of the others."""
    return ~spanning | (place <= 1)
