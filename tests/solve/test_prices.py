"""The price method: inside its certified gap, and the gap is true."""

from __future__ import annotations

import numpy as np
import pytest
from tests.solve import oracles
from tests.solve.oracles import check_feasible, instances

from dovetail.solve import time_share_lp
from dovetail.solve.prices import Market, finish, level
from dovetail.solve.time_shares import Shares


def distinct(
    n: int, m: int, seed: int, load: float = 2.5
) -> tuple[Shares, np.ndarray[tuple[int, ...], np.dtype[np.float64]]]:
    dice = np.random.default_rng(seed)
    speed = dice.lognormal(2.0, 0.5, (n, 1)) * dice.uniform(0.2, 1.0, (n, m)) * np.linspace(1.0, 5.0, m)
    size = dice.choice([1.0, 2.0, 4.0, 8.0], n)
    capacity = np.round(dice.uniform(0.5, 1.5, m) * size.sum() / m / load)
    return Shares(speed, size, capacity), (speed * capacity / capacity.sum()).sum(axis=1)


@pytest.mark.parametrize(
    ("tol", "many"), [(1e-2, 100), (1e-4, 100), pytest.param(1e-4, 500, marks=pytest.mark.long), (1e-6, 100)]
)
def test_the_optimum_lies_within_the_certified_gap(tol: float, many: int) -> None:
    """Random problems, solved with next to no rows left to the linear program at first."""
    for shares, dice in instances(many, seed=21, most=14):
        n = len(shares.speed)
        scale = dice.lognormal(0.0, 1.0, n) * (dice.random(n) < 0.9)
        scale[0] = max(scale[0], 0.1)
        expected = oracles.best_level(shares, scale, np.zeros(n))
        assert expected is not None
        found = level(shares, scale, tol=tol, undecided=1)
        check_feasible(shares, found.x)
        assert (shares.reach(found.x) >= found.value * scale * (1 - 1e-12)).all()
        assert found.gap <= tol
        assert found.value <= expected * (1 + 1e-9)
        assert expected <= found.value * (1 + found.gap) * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("load", [0.3, 1.0, 4.0])
def test_hundreds_of_different_rows(seed: int, load: float) -> None:
    shares, scale = distinct(300, 2 + seed % 4, seed, load)
    expected = time_share_lp.level(shares, scale).value
    for tol in (1e-3, 1e-6, 1e-8):
        found = level(shares, scale, tol=tol, undecided=8)
        check_feasible(shares, found.x)
        assert found.gap <= tol
        assert found.value <= expected * (1 + 1e-9)
        assert expected <= found.value * (1 + found.gap) * (1 + 1e-9)


@pytest.mark.parametrize("many", [100, pytest.param(500, marks=pytest.mark.long)])
def test_finish_time_fairness_within_its_gap(many: int) -> None:
    for i, (shares, dice) in enumerate(instances(many, seed=22, most=14)):
        n = len(shares.speed)
        age, work = dice.exponential(20.0, n), dice.lognormal(5.0, 1.0, n) * (dice.random(n) < 0.9)
        work[0] = max(work[0], 1.0)
        isolated = dice.uniform(0.5, 2.0, n) * (age + work)
        tol = (1e-3, 1e-4, 1e-6)[i % 3]
        found = finish(shares, age, work, isolated, tol=tol, undecided=1)
        check_feasible(shares, found.x)
        busy = work > 0.0
        rho = (age + work / np.where(busy, shares.reach(found.x), 1.0)) / isolated
        assert found.value == pytest.approx(rho[busy].max(), rel=1e-12)
        assert found.gap <= tol
        best = time_share_lp.finish(shares, age, work, isolated).value
        assert best * (1 - 1e-8) <= found.value <= best / (1 - found.gap) * (1 + 1e-8)


def test_any_prices_bound_the_level() -> None:
    shares, scale = distinct(50, 3, seed=1)
    best = time_share_lp.level(shares, scale).value
    market = Market(shares, scale, np.arange(50))
    for seed in range(50):
        assert market.buy(np.random.default_rng(seed).exponential(1.0, 3)).level >= best * (1 - 1e-12)


def test_what_rows_buy_reaches_the_level_and_costs_all_there_is() -> None:
    shares, scale = distinct(80, 4, seed=2)
    bought = Market(shares, scale, np.arange(80)).buy(np.array([1.0, 2.0, 3.0, 4.0]))
    assert bought.prices @ shares.capacity == pytest.approx(1.0)
    assert bought.prices @ bought.demand == pytest.approx(1.0)


def test_the_answer_is_the_same_bit_for_bit() -> None:
    shares, scale = distinct(400, 3, seed=3)
    first, again = level(shares, scale), level(shares, scale)
    assert first.x.tobytes() == again.x.tobytes()
    assert (first.value, first.gap) == (again.value, again.gap)


def test_a_row_that_can_run_nowhere_sets_the_level_to_0() -> None:
    shares, scale = distinct(200, 2, seed=4)
    speed = shares.speed.copy()
    speed[7] = 0.0
    assert level(Shares(speed, shares.size, shares.capacity), scale).value == 0.0


def test_a_tolerance_that_is_too_small_is_refused() -> None:
    shares, scale = distinct(10, 2, seed=5)
    with pytest.raises(ValueError, match="tol must be at least 1e-08"):
        level(shares, scale, tol=0.0)
