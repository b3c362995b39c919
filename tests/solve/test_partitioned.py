"""POP: feasible whatever the cut, near the whole for few parts, the equal share for as many parts as rows."""

from __future__ import annotations

import time

import numpy as np
import pytest

from dovetail.solve.partitioned import solved, split
from dovetail.solve.time_share_lp import level as whole_level
from dovetail.solve.time_share_lp import total as whole_total
from dovetail.solve.time_shares import IntVector, Shares, Solution, Vector, whole


def crowd(n: int, seed: int, types: int = 3) -> tuple[Shares, Vector]:
    """Single-GPU rows that differ in all speeds, a third as many devices; the speeds of the equal share."""
    dice = np.random.default_rng(seed)
    speed = dice.uniform(1, 4, (n, types)) * np.arange(1, types + 1)
    capacity = n / 3 * np.arange(types, 0, -1) / np.arange(1, types + 1).sum()
    shares = Shares(speed, np.ones(n), capacity)
    return shares, speed @ (capacity / capacity.sum())


def check_feasible(shares: Shares, found: Solution) -> None:
    assert (found.x >= 0).all()
    assert not found.x[shares.speed <= 0].any()
    assert (found.x.sum(axis=1) <= 1 + 1e-9).all()
    assert (shares.used(found.x) <= shares.capacity * (1 + 1e-9)).all()


def test_every_part_has_its_share_of_every_kind() -> None:
    kinds = np.repeat([0, 1, 2], [50, 30, 7])
    parts = split(kinds, 4, seed=3)
    assert sorted(np.concatenate(parts).tolist()) == list(range(87))
    for kind, many in enumerate([50, 30, 7]):
        assert all(abs((kinds[part] == kind).sum() - many / 4) < 1 for part in parts)
    assert all(abs(len(part) - 87 / 4) < 1 for part in parts)


def test_the_seed_alone_decides() -> None:
    kinds = np.zeros(40, dtype=int)
    first, again, other = (np.concatenate(split(kinds, 4, seed)) for seed in (1, 1, 2))
    assert first.tolist() == again.tolist()
    assert first.tolist() != other.tolist()


def test_pieces_go_to_different_parts() -> None:
    parts = split(np.array([0, 0, 1]), 4, seed=0, pieces=[4, 1, 3])
    assert [sum(row in part for part in parts) for row in range(3)] == [4, 1, 3]
    assert all(len(set(part.tolist())) == len(part) for part in parts)


@pytest.mark.parametrize(("parts", "pieces"), [(0, 1), (2, 3), (2, 0)])
def test_impossible_cuts_are_refused(parts: int, pieces: int) -> None:
    with pytest.raises(ValueError):
        split(np.zeros(3), parts, 0, pieces)


def test_2000_rows_in_8_parts_are_near_the_whole_and_sooner_done() -> None:
    """POP's card: at least 0.97 of the full LP, and more than 3 times less CPU one part after another.

    As many parts as rows fall to the equal share: the bound is not vacuous.
    """
    shares, scale = crowd(2_000, 0)

    def solve(part: Shares, rows: IntVector) -> Solution:
        return whole_level(part, scale[rows])

    whole_level(*crowd(20, 1))  # loads the solver
    began = time.process_time()
    best = whole_level(shares, scale)
    between = time.process_time()
    found = solved(shares, 8, solve, seed=0)
    ended = time.process_time()
    check_feasible(shares, found)
    level = float((shares.reach(found.x) / scale).min())
    assert level == pytest.approx(found.value, rel=1e-6)
    assert (shares.used(best.x) > 0.999 * shares.capacity).all()  # it binds
    assert 0.97 <= level / best.value <= 1 + 1e-9
    assert between - began > 3 * (ended - between)

    single = solved(shares, 2_000, solve, seed=0, divide=False)
    check_feasible(shares, single)
    assert single.x == pytest.approx(np.tile(shares.capacity / 2_000, (2_000, 1)), abs=1e-7)
    assert 0.7 < single.value / best.value < 0.85  # 0.77 with these speeds


def test_a_gang_too_large_for_a_part_is_served_by_several() -> None:
    """A gang of 16 and 48 single ones on 32 devices: half of the time for all.

    In 4 parts of 8 the gang alone asks for two parts. Whole, it shares one with 12 others: 8 / 28.
    """
    shares = whole(Shares(np.ones((49, 1)), np.array([16.0, *np.ones(48)]), np.array([32.0])))

    def solve(part: Shares, rows: IntVector) -> Solution:
        return whole_level(part, 1.0)

    undivided = solved(shares, 4, solve, seed=1, divide=False)
    check_feasible(shares, undivided)
    assert undivided.value == pytest.approx(8 / 28, rel=0.05)
    found = solved(shares, 4, solve, seed=1)
    check_feasible(shares, found)
    assert found.value == pytest.approx(8 / 20, rel=0.05)  # 8 of the gang and 12 or 13 others
    assert (shares.reach(found.x) >= found.value * (1 - 1e-9)).all()


def test_500_cuts_are_feasible_and_no_better_than_the_whole() -> None:
    for i in range(500):
        dice = np.random.default_rng([6, i])
        n, m = int(dice.integers(1, 12)), int(dice.integers(1, 4))
        shares = whole(
            Shares(
                dice.lognormal(1, 1, (n, m)) * (dice.random((n, m)) < 0.8),
                dice.choice([1.0, 2.0, 4.0, 8.0], n),
                np.round(dice.uniform(0, 20, m)),
                dice.integers(0, 9, n).astype(float),
            )
        )

        def solve(part: Shares, rows: IntVector) -> Solution:
            return whole_total(part, 1.0)

        found = solved(shares, int(dice.integers(1, 6)), solve, seed=i, join=sum)
        check_feasible(shares, found)
        best = whole_total(shares, 1.0).value
        assert found.value == pytest.approx(shares.count @ shares.reach(found.x), rel=1e-6, abs=1e-9)
        assert found.value <= best * (1 + 1e-6) + 1e-9
        assert found.gap == np.inf


def test_one_part_is_the_whole() -> None:
    shares, scale = crowd(50, 2)
    found = solved(shares, 1, lambda part, rows: whole_level(part, scale[rows]), seed=0)
    assert found.value == pytest.approx(whole_level(shares, scale).value)
