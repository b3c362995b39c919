"""Water-filling: lexicographic, and by groups of groups."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.solve import oracles
from tests.solve.oracles import check_feasible, instances

from dovetail.solve.equal_rows import classes
from dovetail.solve.time_share_lp import level
from dovetail.solve.time_shares import Shares, Vector
from dovetail.solve.water_filling import Group, fill, rates


def test_no_row_can_rise_without_taking_from_a_lower_row() -> None:
    """500 random problems; this property defines the lexicographic optimum."""
    for shares, dice in instances(500, seed=31, most=5):
        n = len(shares.speed)
        scale = dice.lognormal(0.0, 1.0, n)
        found = fill(shares, scale)
        check_feasible(shares, found.x)
        assert found.level == pytest.approx(shares.reach(found.x) / scale)
        assert found.level.min() == pytest.approx(level(shares, scale).value, rel=1e-6)
        for i in range(n):
            no_higher = found.level <= found.level[i] * (1 + 1e-6)
            need = np.where(no_higher, found.level * scale * (1 - 1e-9), 0.0)
            # A row with few devices gains visibly when those with many give up 1e-9: hence 1e-7 of its time.
            most = found.level[i] * scale[i] * (1 + 1e-6) + 1e-7 * shares.speed[i].max()
            assert oracles.highest_reach(shares, i, need) <= most


def slow_fill(shares: Shares, scale: Vector, group: Group) -> Vector:
    """The same without prices: after every step each row is tried, whether it can rise."""
    n = len(scale)
    reached, live = np.zeros(n), np.ones(n, dtype=bool)
    while live.any():
        rise = rates(group, live, shares.count) * scale
        step = oracles.best_level(shares, rise, reached * (1 - 1e-9))
        assert step is not None
        reached = reached + step * rise
        for i in np.flatnonzero(rise):
            best = oracles.highest_reach(shares, int(i), reached * (1 - 1e-9))
            live[i] = best > reached[i] * (1 + 1e-7) + 1e-7 * shares.speed[i].max()
    return reached / scale


def random_group(dice: Any, rows: list[int], depth: int = 2) -> Group:
    parts = np.split(np.array(rows), np.sort(dice.integers(0, len(rows) + 1, 2)))
    members: list[Group | int] = []
    for part in parts:
        if depth and len(part) > 1:
            members.append(random_group(dice, part.tolist(), depth - 1))
        else:
            members += part.tolist()
    weights = tuple(dice.uniform(0.5, 3.0, len(members)))
    return Group(tuple(members), weights, "fair" if dice.random() < 0.6 else "fifo")


def test_groups_fill_as_their_rules_say() -> None:
    for shares, dice in instances(500, seed=32, most=4):
        scale = dice.lognormal(0.0, 1.0, len(shares.speed))
        group = random_group(dice, list(range(len(scale))))
        found = fill(shares, scale, group)
        check_feasible(shares, found.x)
        expected = slow_fill(shares, scale, group)
        close = 1e-6 * expected + 1e-7 * shares.speed.max(axis=1) / scale  # or 1e-7 of a row's time
        assert (np.abs(found.level - expected) <= close).all()


# --- small ones, by hand -----------------------------------------------------------------------------


def one_pool(rows: int, capacity: float) -> Shares:
    return Shares(np.ones((rows, 1)), np.ones(rows), np.array([capacity]))


def test_a_company_with_two_divisions() -> None:
    # Weights 1 and 2; the first division has one job, the second three. 1.5 devices, a job uses at most 1.
    company = Group((Group((0,)), Group((1, 2, 3))), weights=(1.0, 2.0))
    found = fill(one_pool(4, 1.5), 1.0, company)
    assert found.level == pytest.approx([0.5, 1 / 3, 1 / 3, 1 / 3], rel=1e-7)


def test_what_a_full_member_leaves_goes_to_its_siblings() -> None:
    # Each division's half of 4 is 2. The first can use 1 only, so the second gets 3 in the end.
    company = Group((Group((0,)), Group((1, 2, 3))))
    assert fill(one_pool(4, 4.0), 1.0, company).level == pytest.approx([1.0, 1.0, 1.0, 1.0], rel=1e-7)
    # Teams inside: when row 1 is full (rate 1/2 against 1/4 each), rows 2 and 3 rise faster, row 0 does not.
    teams = Group((Group((0, 4, 5, 6)), Group((Group((1,)), Group((2, 3))))))
    found = fill(one_pool(7, 4.5), 1.0, teams)
    assert found.level[[1, 2, 3]] == pytest.approx([1.0, 0.625, 0.625], rel=1e-7)
    assert found.level[[0, 4, 5, 6]] == pytest.approx(np.full(4, 2.25 / 4), rel=1e-7)


def test_first_come_first_served_inside_a_fair_company() -> None:
    company = Group((Group((2, 0, 1), rule="fifo"), Group((3, 4))))
    found = fill(one_pool(5, 3.0), 1.0, company)
    assert found.level == pytest.approx([0.5, 0.0, 1.0, 0.75, 0.75], rel=1e-7, abs=1e-7)


def test_weights_are_levels() -> None:
    found = fill(one_pool(2, 1.0), [1.0, 3.0])
    assert found.x[:, 0] == pytest.approx([0.25, 0.75], rel=1e-7)
    same = fill(one_pool(2, 1.0), 1.0, Group((0, 1), weights=(1.0, 3.0)))
    assert same.x[:, 0] == pytest.approx([0.25, 0.75], rel=1e-7)


def test_classes_fill_like_their_members() -> None:
    dice = np.random.default_rng(33)
    kind = dice.integers(0, 6, 40)
    speed = (dice.lognormal(1.0, 1.0, (6, 3)) * (dice.random((6, 3)) < 0.6) + np.array([0.1, 0.0, 0.0]))[kind]
    shares = Shares(speed, np.ones(40), np.array([6.0, 5.0, 4.0]))
    few = classes(shares)
    assert few.spread(fill(few.shares, 1.0).level) == pytest.approx(fill(shares, 1.0).level, rel=1e-6)
    fair = Group(tuple(range(len(few.first))))
    assert few.spread(fill(few.shares, 1.0, fair).level) == pytest.approx(fill(shares, 1.0).level, rel=1e-6)


def test_rows_that_can_run_nowhere_stay_at_0_and_do_not_limit_others() -> None:
    shares = Shares(np.array([[0.0], [1.0]]), np.ones(2), np.ones(1))
    assert fill(shares, 1.0).level == pytest.approx([0.0, 1.0])
    assert fill(one_pool(2, 1.0), 0.0).steps == 0


def test_trees_that_are_no_trees_are_refused() -> None:
    with pytest.raises(ValueError, match="exactly one group"):
        fill(one_pool(2, 1.0), 1.0, Group((0,)))
    with pytest.raises(ValueError, match="exactly one group"):
        fill(one_pool(2, 1.0), 1.0, Group((0, 1, Group((1,)))))
    with pytest.raises(ValueError, match="2 members and 1 weights"):
        Group((0, 1), weights=(1.0,))
    with pytest.raises(ValueError, match="fair or fifo"):
        Group((0,), rule="best")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="weights must be more than 0"):
        Group((0,), weights=(0.0,))
