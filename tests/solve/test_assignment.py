"""Assignments against trying all of them, and AlloX's example."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from dovetail.solve.assignment import assign
from dovetail.solve.errors import Infeasible
from dovetail.solve.time_shares import Matrix


def cheapest(cost: Matrix) -> float:
    if len(cost) > cost.shape[1]:
        cost = cost.T
    rows = np.arange(len(cost))
    ways = itertools.permutations(range(cost.shape[1]), len(cost))
    return min(float(cost[rows, list(way)].sum()) for way in ways)


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


def test_allox_takes_the_last_place_for_the_long_job() -> None:
    """1 GPU and 1 CPU; J1 takes (1, 10), J2 (4, 4.5); columns: GPU last, GPU last but one, CPU likewise."""
    times = np.array([[1.0, 10.0], [4.0, 4.5]])
    places = np.concatenate([k * times[:, [m]] for m in range(2) for k in (1, 2)], axis=1)
    found = assign(places)
    assert found.cost == pytest.approx(5.5)
    assert found.column.tolist() == [0, 2]


def test_empty_problems_have_empty_solutions() -> None:
    assert assign(np.zeros((3, 0))).column.tolist() == [-1, -1, -1]
    assert assign([[2.0], [1.0]]).column.tolist() == [-1, 0]


@pytest.mark.parametrize("cost", [[[np.nan]], [[-np.inf]], [1.0, 2.0]])
def test_wrong_costs_are_refused(cost: Any) -> None:
    with pytest.raises(ValueError):
        assign(cost)
