"""Space sharing by column generation against the whole LP, and what a pair can and cannot do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dovetail.solve import interior_point
from dovetail.solve.space_sharing import Pairs, Shared, level, total
from dovetail.solve.time_shares import Matrix, Shares, Vector

NOWHERE = np.empty(0, dtype=np.intp)
NOBODY = Pairs(NOWHERE, NOWHERE, NOWHERE, np.empty(0), np.empty(0))


def whole_lp(
    shares: Shares, pairs: Pairs, *, scale: Vector | None = None, gain: Vector | None = None
) -> float:
    """The optimum over all columns at once, dense, in the units of the question; x, then y, then t."""
    from scipy.optimize import linprog

    n, m = shares.speed.shape
    p, many = len(shares.capacity), len(pairs)
    columns = n * m + many + 1
    time, pool, reach = np.zeros((n, columns)), np.zeros((p, columns)), np.zeros((n, columns))
    most = np.full(columns, np.inf)
    for i in range(n):
        for k in range(m):
            at = i * m + k
            time[i, at] = shares.count[i]
            pool[shares.pool[k], at] = shares.count[i] * shares.size[i]
            reach[i, at] = shares.speed[i, k]
            if shares.speed[i, k] <= 0:
                most[at] = 0.0
    for q in range(many):
        at = n * m + q
        for i, speed in ((pairs.first[q], pairs.speed_first[q]), (pairs.second[q], pairs.speed_second[q])):
            time[i, at] += 1.0
            reach[i, at] += speed / shares.count[i] if shares.count[i] else 0.0
        pool[shares.pool[pairs.way[q]], at] = shares.size[pairs.first[q]]
        if min(pairs.speed_first[q], pairs.speed_second[q]) <= 0:
            most[at] = 0.0
        if pairs.first[q] == pairs.second[q] and shares.count[pairs.first[q]] < 2:
            most[at] = 0.0
    rows, limits = [time, pool], [shares.count, shares.capacity]
    cost = np.zeros(columns)
    if scale is not None:
        rated = (scale > 0) & (shares.count > 0)
        cost[-1] = -1.0
        reach[:, -1] = -scale
        rows.append(-reach[rated])
        limits.append(np.zeros(rated.sum()))
    else:
        assert gain is not None
        cost = -((shares.count * gain) @ reach)
    bounds = np.column_stack([np.zeros(columns), most])
    found = linprog(cost, A_ub=np.vstack(rows), b_ub=np.concatenate(limits), bounds=bounds, method="highs")
    assert found.status == 0
    return float(-found.fun)


def check(found: Shared, shares: Shares, pairs: Pairs, best: float) -> None:
    """Within all limits, nothing where nothing can run, and the value of the whole LP."""
    n, p = len(shares.speed), len(shares.capacity)
    x, y = found.x, found.y
    assert (x >= 0).all()
    assert (y >= 0).all()
    assert not x[shares.speed <= 0].any()
    assert not y[(pairs.speed_first <= 0) | (pairs.speed_second <= 0)].any()
    both = np.bincount(pairs.first, weights=y, minlength=n) + np.bincount(
        pairs.second, weights=y, minlength=n
    )
    assert (shares.count * x.sum(axis=1) + both <= shares.count * (1 + 1e-9) + 1e-9).all()
    in_pairs = np.bincount(shares.pool[pairs.way], weights=shares.size[pairs.first] * y, minlength=p)
    assert (shares.used(x) + in_pairs <= shares.capacity * (1 + 1e-9) + 1e-9).all()
    assert found.value == pytest.approx(best, rel=1e-6, abs=1e-9)
    assert found.gap <= 1e-6
    assert best <= found.value * (1 + found.gap) * (1 + 1e-6) + 1e-9


def problem(dice: Any) -> tuple[Shares, Pairs]:
    """Gangs, classes, shared and empty pools, ways that some cannot run, twins of one class."""
    n, m = int(dice.integers(1, 7)), int(dice.integers(1, 4))
    p = int(dice.integers(1, m + 1))
    speed = dice.lognormal(1, 1, (n, m)) * (dice.random((n, m)) < 0.85)
    if dice.random() < 0.3:
        speed = np.round(speed)  # ties
    size = dice.choice([1.0, 2.0, 4.0], n)
    count = np.ones(n) if dice.random() < 0.5 else dice.integers(0, 6, n).astype(float)
    pool = np.append(np.arange(p), dice.integers(0, p, m - p))
    capacity = np.round(dice.uniform(0, 1.3) * (count @ size) * dice.dirichlet(np.ones(p)))
    shares = Shares(speed, size, capacity, count, pool)
    rows = [(i, j, k) for i in range(n) for j in range(i, n) for k in range(m) if size[i] == size[j]]
    some = [(j, i, k) if dice.random() < 0.3 else (i, j, k) for i, j, k in rows if dice.random() < 0.8]
    first, second, way = np.array(some, dtype=np.intp).reshape(-1, 3).T
    slower = dice.uniform(0.3, 1.0, (2, len(first)))
    return shares, Pairs(first, second, way, *(slower * np.stack([speed[first, way], speed[second, way]])))


def test_600_levels_against_the_whole_lp() -> None:
    paired = 0  # only where that helps: the level is raised by single columns as far as they go
    for i in range(600):
        dice = np.random.default_rng([1, i])
        shares, pairs = problem(dice)
        scale = dice.uniform(0.1, 5.0, len(shares.speed)) * (dice.random(len(shares.speed)) < 0.9)
        if not ((scale > 0) & (shares.count > 0)).any():
            with pytest.raises(ValueError, match="infinite"):
                level(shares, pairs, scale)
            continue
        found = level(shares, pairs, scale)
        check(found, shares, pairs, whole_lp(shares, pairs, scale=scale))
        paired += bool(found.y.any())
    assert paired > 100


def test_500_totals_against_the_whole_lp() -> None:
    for i in range(500):
        dice = np.random.default_rng([2, i])
        shares, pairs = problem(dice)
        gain = dice.uniform(0.0, 3.0, len(shares.speed))
        found = total(shares, pairs, gain)
        check(found, shares, pairs, whole_lp(shares, pairs, gain=gain))


def crowd(n: int, seed: int) -> tuple[Shares, Pairs, Vector]:
    """All pairs of n rows in three ways; two thirds of what is asked is there."""
    dice = np.random.default_rng(seed)
    speed: Matrix = np.sort(dice.uniform(1, 4, (n, 3)), axis=1)
    shares = Shares(speed, np.ones(n), n * np.array([0.3, 0.2, 0.1]))
    first, second = (np.repeat(rows, 3) for rows in np.triu_indices(n, 1))
    way = np.tile(np.arange(3), len(first) // 3)
    busy = dice.uniform(0.2, 1.0, n)
    slower = dice.uniform(0.85, 1.0, (2, len(first))) / np.maximum(1.0, busy[first] + busy[second])
    pairs = Pairs(first, second, way, slower[0] * speed[first, way], slower[1] * speed[second, way])
    return shares, pairs, speed @ (shares.capacity / shares.capacity.sum())


def test_a_crowd_against_the_whole_lp() -> None:
    shares, pairs, scale = crowd(30, 0)
    check(level(shares, pairs, scale), shares, pairs, whole_lp(shares, pairs, scale=scale))
    check(total(shares, pairs), shares, pairs, whole_lp(shares, pairs, gain=np.ones(30)))


def test_sharing_serves_more_than_taking_turns() -> None:
    """Two rows, one device: turns give half of the speed each, together they run at 0.8."""
    shares = Shares(np.ones((2, 1)), np.ones(2), np.ones(1))
    one = Pairs(np.array([0]), np.array([1]), np.array([0]), np.array([0.8]), np.array([0.8]))
    assert level(shares, NOBODY, 1.0).value == pytest.approx(0.5)
    found = level(shares, one, 1.0)
    assert found.value == pytest.approx(0.8)
    assert found.y == pytest.approx([1.0])
    assert found.reach(shares, one) == pytest.approx([0.8, 0.8])
    assert total(shares, one).value == pytest.approx(1.6)


def test_a_class_of_twins_is_the_same_as_its_members() -> None:
    """Six equal rows on two devices, in pairs at 0.7: as a class of six, and one by one."""
    class_of = Shares(np.ones((1, 1)), np.ones(1), np.array([2.0]), np.array([6.0]))
    twins = Pairs(np.array([0]), np.array([0]), np.array([0]), np.array([0.7]), np.array([0.7]))
    each = Shares(np.ones((6, 1)), np.ones(6), np.array([2.0]))
    i, j = np.triu_indices(6, 1)
    pairs = Pairs(i, j, np.zeros(15, dtype=np.intp), np.full(15, 0.7), np.full(15, 0.7))
    assert level(class_of, twins, 1.0).value == pytest.approx(level(each, pairs, 1.0).value)
    assert level(class_of, twins, 1.0).value == pytest.approx(2 * 2 * 0.7 / 6)


def test_a_row_that_can_run_nowhere_sets_the_level_to_0() -> None:
    shares = Shares(np.array([[1.0], [0.0]]), np.ones(2), np.ones(1))
    assert level(shares, NOBODY, 1.0).value == 0.0
    assert level(shares, NOBODY, [1.0, 0.0]).value == pytest.approx(1.0)


def test_the_same_again_is_the_same_bit_for_bit() -> None:
    shares, pairs, scale = crowd(25, 1)
    first, again = level(shares, pairs, scale), level(shares, pairs, scale)
    assert np.array_equal(first.x, again.x)
    assert np.array_equal(first.y, again.y)
    assert first.value == again.value


@pytest.mark.parametrize(
    ("first", "second", "way", "why"),
    [(0, 2, 0, "rows from 0 to 1"), (0, 1, 3, "ways from 0 to 0"), (-1, 1, 0, "rows from 0 to 1")],
)
def test_pairs_of_others_are_refused(first: int, second: int, way: int, why: str) -> None:
    shares = Shares(np.ones((2, 1)), np.ones(2), np.ones(1))
    pairs = Pairs(np.array([first]), np.array([second]), np.array([way]), np.ones(1), np.ones(1))
    with pytest.raises(ValueError, match=why):
        total(shares, pairs)


def test_unequal_gangs_and_broken_arrays_are_refused() -> None:
    at = np.array([0])
    pairs = Pairs(at, np.array([1]), at, np.ones(1), np.ones(1))
    with pytest.raises(ValueError, match="same size"):
        total(Shares(np.ones((2, 1)), np.array([1.0, 2.0]), np.ones(1)), pairs)
    with pytest.raises(ValueError, match="whole numbers"):
        Pairs(np.array([0.5]), at, at, np.ones(1), np.ones(1))
    with pytest.raises(ValueError, match="finite"):
        Pairs(at, at, at, np.array([np.nan]), np.ones(1))
    with pytest.raises(ValueError, match="length"):
        Pairs(at, np.array([0, 1]), at, np.ones(1), np.ones(1))


@pytest.mark.parametrize("seed", range(20))
def test_the_centre_is_as_good_as_the_columns(seed: int) -> None:
    dice = np.random.default_rng(seed)
    n, m = int(dice.integers(2, 9)), int(dice.integers(1, 4))
    speed = dice.uniform(0.5, 4.0, (n, m))
    shares = Shares(speed, np.ones(n), dice.integers(1, 3, m).astype(float))
    first, second, way = np.array(
        [(i, j, k) for i in range(n) for j in range(i + 1, n) for k in range(m)], dtype=np.intp
    ).T
    kept = dice.uniform(0.3, 1.0, (2, len(first)))
    pairs = Pairs(first, second, way, kept[0] * speed[first, way], kept[1] * speed[second, way])
    scale, gain = dice.uniform(0.5, 2.0, n), dice.uniform(0.5, 2.0, n)
    for found, best in (
        (interior_point.level_with(shares, pairs, scale), level(shares, pairs, scale)),
        (interior_point.total_with(shares, pairs, gain), total(shares, pairs, gain)),
    ):
        assert found.value == pytest.approx(best.value, rel=1e-5)
        time = found.x.sum(axis=1) + np.bincount(first, found.y, n) + np.bincount(second, found.y, n)
        used = shares.used(found.x) + np.bincount(way, found.y, m)
        assert (time <= 1 + 1e-9).all()
        assert (used <= shares.capacity + 1e-9).all()
    need = scale * level(shares, pairs, scale).value * 0.99
    reached = interior_point.reaching_with(shares, pairs, need)
    assert reached is not None
    assert (reached.reach(shares, pairs) >= need * (1 - 1e-6)).all()
