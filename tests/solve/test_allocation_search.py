"""The genetic search: valid matrices, the best of all where all can be tried, and the same again."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.solve.allocation_search import FLOOR, Ints, Problem, Search, fitness, found, highest
from dovetail.testing.suite import searched


def problem(
    capacity: list[int],
    power: list[float],
    *,
    now: list[list[int]] | None = None,
    least: list[int] | None = None,
    factor: float = 1.0,
    across: float = 1.0,
) -> Problem:
    """Jobs whose speed-up with n GPUs is n to a power, times `across` on several nodes."""
    gpus = sum(capacity)
    table = np.zeros((1, 2, len(power), gpus + 1))
    for job, exponent in enumerate(power):
        for count in range(1, gpus + 1):
            table[0, :, job, count] = count**exponent * np.array([1.0, across])
    return Problem(
        np.array(now or [[0] * len(capacity)] * len(power)),
        np.array(capacity),
        np.zeros(len(capacity), dtype=np.int64),
        np.ones((len(power), len(capacity)), dtype=bool),
        np.array(least or [1] * len(power)),
        np.full(len(power), gpus),
        table,
        np.full(len(power), factor),
    )


def broken(given: Problem, matrix: Ints) -> list[str]:
    """Rules that a matrix breaks, said in other words than the search's."""
    wrong = []
    for node, room in enumerate(given.capacity.tolist()):
        if matrix[:, node].sum() > room:
            wrong.append(f"node {node} is overfull")
        if sum(1 for row in matrix if row[node] and np.count_nonzero(row) > 1) > 1:
            wrong.append(f"node {node} has two jobs that span nodes")
    for job, row in enumerate(matrix):
        if row.sum() and not given.least[job] <= row.sum() <= given.most[job]:
            wrong.append(f"job {job} has {row.sum()}")
        if (row[~given.allowed[job]] > 0).any():
            wrong.append(f"job {job} is where it may not be")
        if len(set(given.kind[row > 0].tolist())) > 1:
            wrong.append(f"job {job} is on two types")
    return wrong


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Up to 6 jobs on up to 4 nodes of up to 2 types, some of them running."""
    capacity = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    power = draw(st.lists(st.sampled_from((0.3, 0.7, 1.0)), min_size=1, max_size=6))
    least = draw(st.lists(st.integers(1, 3), min_size=len(power), max_size=len(power)))
    made = problem(capacity, power, least=least, across=draw(st.sampled_from((0.5, 1.0))))
    made.allowed[0, 0] = draw(st.booleans())
    made.kind[:] = [draw(st.integers(0, 1)) for _ in capacity]
    wide = np.zeros((2, 2, len(power), 1 + max(sum(capacity), *least)))
    wide[0, ..., : made.speedups.shape[-1]] = made.speedups[0]
    wide[1] = wide[0] / 2
    made = replace(made, most=np.maximum(made.least, made.most), speedups=wide)
    if draw(st.booleans()):
        held = found(made, draw(st.integers(0, 9)), generations=2)
        made = replace(made, now=held, factor=np.full(len(power), draw(st.sampled_from((0.5, 0.9)))))
    return made


@given(made=problems(), seed=st.integers(0, 9))
@searched(60)
def test_every_rule_holds(made: Problem, seed: int) -> None:
    assert broken(made, found(made, seed, generations=10)) == []


@given(made=problems(), seed=st.integers(0, 9), power=st.sampled_from((-1.0, -2.0, 1.0)))
@searched(40)
def test_fitness_is_kept_up_to_date_and_never_above_its_limit(made: Problem, seed: int, power: float) -> None:
    search = Search(made, power, np.random.default_rng(seed))
    pool, limit = search.first(), highest(made, power) * (1 + 1e-9)
    for _ in range(4):
        pool = pool.joined(search.children(pool, 20)).best(20)
        assert [broken(made, matrix) for matrix in pool.cells] == [[]] * len(pool.cells)
        assert pool.values.tolist() == fitness(made, pool.cells, power).tolist()
        assert (pool.spans == ((pool.cells > 0).sum(axis=2) > 1)).all()
        assert pool.values[0] <= limit


@pytest.mark.parametrize("across", [0.6, 1.0])
def test_it_finds_the_best_of_all(across: float) -> None:
    made = problem([2, 2, 2], [1.0, 0.5], across=across)
    every = [np.array(cells).reshape(2, 3) for cells in product(range(3), repeat=6)]
    valid = np.array([matrix for matrix in every if not broken(made, matrix)], dtype=np.int16)
    best = fitness(made, valid, -1.0).max()
    matrix = found(made, 1)
    assert fitness(made, matrix[None].astype(np.int16), -1.0)[0] == best


def test_fitness_is_the_harmonic_mean_by_default() -> None:
    made = problem([4], [1.0, 1.0])
    pool = np.array([[[3], [1]], [[2], [2]], [[4], [0]]], dtype=np.int16)
    assert fitness(made, pool, -1.0) == pytest.approx([1.5, 2.0, 2 / (1 / 4 + 1 / FLOOR)])
    assert fitness(made, pool, 1.0) == pytest.approx([2.0, 2.0, 2.0], abs=1e-3)


def test_what_is_as_good_stays() -> None:
    held = [[2, 0], [0, 2]]
    made = problem([2, 2], [1.0, 1.0], now=held, factor=1.0)
    assert found(made, 3).tolist() == held


def test_a_factor_keeps_jobs_where_they_are() -> None:
    held = [[1, 0], [0, 1]]
    assert found(problem([2, 2], [0.5, 0.5], now=held, factor=0.5), 3).tolist() == held
    assert found(problem([2, 2], [0.5, 0.5], now=held, factor=0.8), 3).sum() == 4


def test_many_small_jobs_go_before_a_large_one() -> None:
    """A job that holds both nodes gives way to four: at once, as no search could do better."""
    made = problem([2, 2], [1.0] * 5, now=[[2, 2]] + [[0, 0]] * 4, least=[4, 1, 1, 1, 1])
    assert found(made, 1, generations=0).sum(axis=1).tolist() == [0, 1, 1, 1, 1]


def test_a_running_job_shrinks_to_let_others_start_and_keeps_the_rest() -> None:
    made = problem([4], [0.9] * 2, now=[[4], [0]])
    assert found(made, 1, generations=0).tolist() == [[3], [1]]


def test_the_same_seed_finds_the_same() -> None:
    made = problem([4] * 4, [0.9, 0.8, 0.7, 0.6, 0.5])
    assert (found(made, 5) == found(made, 5)).all()
