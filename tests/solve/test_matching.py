"""Assignments against trying all, matchings against a recursion over all; Muri's and AlloX' examples."""

from __future__ import annotations

import itertools
from functools import cache
from typing import Any

import numpy as np
import pytest

from dovetail.solve import matching
from dovetail.solve.errors import Infeasible
from dovetail.solve.matching import Matching, assign, pairs
from dovetail.solve.shares import Matrix


def cheapest(cost: Matrix) -> float:
    if len(cost) > cost.shape[1]:
        cost = cost.T
    rows = np.arange(len(cost))
    ways = itertools.permutations(range(cost.shape[1]), len(cost))
    return min(float(cost[rows, list(way)].sum()) for way in ways)


def heaviest(weight: Matrix) -> float:
    @cache
    def best(left: int) -> float:
        if not left:
            return 0.0
        row = left.bit_length() - 1
        left ^= 1 << row
        paired = (weight[row, other] + best(left ^ (1 << other)) for other in range(row) if left >> other & 1)
        return max(best(left), *paired, 0.0) if left else 0.0

    return best((1 << len(weight)) - 1)


def graph(dice: Any, n: int) -> Matrix:
    """Full or sparse, with ties or without, with pairs that nobody wants."""
    weight = dice.random((n, n))
    style = dice.integers(0, 5)
    if style == 0:
        weight = np.round(3 * weight)
    elif style == 1:
        weight -= 0.4
    elif style == 2:
        weight[dice.random((n, n)) < 0.6] = -np.inf
    elif style == 3:
        at = dice.random((n, 2))
        weight = 1.5 - np.hypot(*(at[:, None] - at).transpose(2, 0, 1))
    weight = np.triu(weight, 1)
    return np.asarray(weight + weight.T)


def check(found: Matching, weight: Matrix) -> None:
    used = found.pair.ravel()
    assert len(set(used.tolist())) == len(used)
    assert (found.pair[:, 0] < found.pair[:, 1]).all()
    assert found.pair.tolist() == sorted(found.pair.tolist())
    assert found.weight == pytest.approx(weight[found.pair[:, 0], found.pair[:, 1]].sum())


def test_500_assignments_against_trying_all() -> None:
    refused = 0
    for i in range(500):
        dice = np.random.default_rng([3, i])
        shape = dice.integers(1, 6, 2)
        cost = dice.normal(size=shape) if i % 2 else dice.integers(-3, 4, shape).astype(float)
        if i % 3 == 0:
            cost[dice.random(shape) < 0.35] = np.inf
        best = cheapest(cost)
        if best == np.inf:
            refused += 1
            with pytest.raises(Infeasible, match=f"an assignment of {shape[0]} rows to {shape[1]} columns"):
                assign(cost)
            continue
        found = assign(cost)
        assert found.cost == pytest.approx(best)
        taken = found.column[found.column >= 0]
        assert len(taken) == min(shape) == len(set(taken.tolist()))
    assert 10 < refused < 100


def test_500_matchings_against_all_there_are() -> None:
    for i in range(500):
        dice = np.random.default_rng([4, i])
        weight = graph(dice, int(dice.integers(0, 9)))
        found = pairs(weight)
        check(found, weight)
        assert found.weight == pytest.approx(heaviest(weight), abs=1e-6)


def test_edges_join_and_branching_decides_where_few_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """From one edge a row to begin with; then without odd sets, so that the MIP has to do it."""
    monkeypatch.setattr(matching, "NEAR", 1)
    for sets, few in ((10, 4), (0, 1)):
        monkeypatch.setattr(matching, "SETS", sets)
        monkeypatch.setattr(matching, "FEW", few)
        for i in range(100):
            dice = np.random.default_rng([6, i])
            weight = graph(dice, int(dice.integers(6, 12)))
            found = pairs(weight)
            check(found, weight)
            assert found.weight == pytest.approx(heaviest(weight), abs=1e-6)


def test_larger_matchings_against_the_recursion() -> None:
    for i in range(20):
        dice = np.random.default_rng([5, i])
        weight = graph(dice, int(dice.integers(13, 16)))
        found = pairs(weight)
        check(found, weight)
        assert found.weight == pytest.approx(heaviest(weight), abs=1e-6)


@pytest.mark.parametrize("n", [41, 60, 200])
def test_many_rows_against_the_mip(n: int) -> None:
    from scipy.optimize import LinearConstraint, milp

    weight = graph(np.random.default_rng(5), n)
    found = pairs(weight)
    check(found, weight)
    # The oracle sees the 12 heaviest edges of each row, which is enough here: it can only find less.
    rank = np.argsort(np.argsort(-weight, axis=1), axis=1)
    first, second = np.nonzero(np.triu((rank < 12) | (rank.T < 12), 1) & (weight > 0))
    ends = np.zeros((n, len(first)))
    ends[first, np.arange(len(first))] = ends[second, np.arange(len(first))] = 1
    best = milp(
        -weight[first, second],
        constraints=LinearConstraint(ends, ub=np.ones(n)),
        integrality=np.ones(len(first)),
        options={"mip_rel_gap": 0.0},
    )
    assert found.weight >= -best.fun - 1e-6


def test_two_triangles_joined_by_a_light_edge() -> None:
    """The LP would give halves along both triangles, 3 in all; whole pairs weigh 2 and the bridge."""
    weight = np.zeros((6, 6))
    for a, b in [(0, 1), (1, 2), (0, 2), (3, 4), (4, 5), (3, 5)]:
        weight[a, b] = weight[b, a] = 1.0
    weight[2, 3] = weight[3, 2] = 0.1
    found = pairs(weight)
    assert found.pair.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert found.weight == pytest.approx(2.1)


def test_muri_pairs_jobs_that_need_different_things() -> None:
    """A = (GPU 3, net 1), B = (GPU 1, net 3): together 4 a cycle, A with A 6 (speed-ups 2 and 1.33)."""
    stages = np.array([[3, 1], [3, 1], [1, 3], [1, 3]])
    phases = stages[:, None, :] + stages[None, :, :]
    cycle = np.maximum(phases.max(axis=2), stages.sum(axis=1)[:, None])
    found = pairs(2 * stages.sum(axis=1)[:, None] / cycle)
    assert found.weight == pytest.approx(4.0)
    assert all((stages[a] != stages[b]).any() for a, b in found.pair)


def test_allox_takes_the_last_place_for_the_long_job() -> None:
    """1 GPU and 1 CPU; J1 takes (1, 10), J2 (4, 4.5); columns: GPU last, GPU last but one, CPU likewise."""
    times = np.array([[1.0, 10.0], [4.0, 4.5]])
    places = np.concatenate([k * times[:, [m]] for m in range(2) for k in (1, 2)], axis=1)
    found = assign(places)
    assert found.cost == pytest.approx(5.5)
    assert found.column.tolist() == [0, 2]


def test_nobody_to_pair_and_nothing_to_assign() -> None:
    assert pairs(np.zeros((0, 0))).pair.shape == (0, 2)
    assert pairs(-np.ones((4, 4))).weight == 0.0
    assert assign(np.zeros((3, 0))).column.tolist() == [-1, -1, -1]
    assert assign([[2.0], [1.0]]).column.tolist() == [-1, 0]


@pytest.mark.parametrize("cost", [[[np.nan]], [[-np.inf]], [1.0, 2.0]])
def test_wrong_costs_are_refused(cost: Any) -> None:
    with pytest.raises(ValueError):
        assign(cost)


@pytest.mark.parametrize(
    "weight",
    [[[0.0, np.nan], [np.nan, 0.0]], [[0.0, 1.0], [2.0, 0.0]], [[0.0, np.inf], [np.inf, 0.0]], [[1.0, 2.0]]],
)
def test_wrong_weights_are_refused(weight: Any) -> None:
    with pytest.raises(ValueError):
        pairs(weight)
