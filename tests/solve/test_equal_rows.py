"""Equal rows as one: the same optimum, and the way back."""

from __future__ import annotations

import numpy as np
import pytest
from tests.solve.oracles import check_feasible

from dovetail.solve import equal_rows as module
from dovetail.solve.equal_rows import classes
from dovetail.solve.time_share_lp import level
from dovetail.solve.time_shares import Shares


def crowd(
    seed: int, rows: int = 60, kinds: int = 7
) -> tuple[Shares, np.ndarray[tuple[int, ...], np.dtype[np.float64]]]:
    dice = np.random.default_rng(seed)
    kind = dice.integers(0, kinds, rows)
    speed, size = dice.lognormal(1.0, 1.0, (kinds, 3)), dice.choice([1.0, 2.0, 4.0], kinds)
    shares = Shares(
        speed[kind], size[kind], np.array([12.0, 9.0, 4.0]), dice.integers(1, 4, rows).astype(float)
    )
    return shares, dice.uniform(1.0, 2.0, kinds)[kind]


@pytest.mark.parametrize("seed", range(20))
def test_the_optimum_is_that_of_all_rows(seed: int) -> None:
    shares, scale = crowd(seed)
    few = classes(shares, scale)
    assert len(few.first) <= 7
    found = level(few.shares, few.gather(scale))
    assert found.value == pytest.approx(level(shares, scale).value, rel=1e-9)
    check_feasible(shares, few.spread(found.x))


def test_classes_stand_in_order_of_first_appearance() -> None:
    shares = Shares(np.array([[2.0], [1.0], [2.0], [3.0], [1.0]]), np.ones(5), np.ones(1))
    few = classes(shares)
    assert few.first.tolist() == [0, 1, 3]
    assert few.member.tolist() == [0, 1, 0, 2, 1]
    assert few.shares.count.tolist() == [2.0, 2.0, 1.0]
    assert few.spread(few.gather(shares.speed)).tolist() == shares.speed.tolist()


def test_a_difference_in_any_vector_keeps_rows_apart() -> None:
    shares = Shares(np.ones((3, 2)), np.array([1.0, 1.0, 2.0]), np.ones(2))
    assert classes(shares).member.tolist() == [0, 0, 1]
    assert classes(shares, np.array([1.0, 2.0, 2.0])).member.tolist() == [0, 1, 2]
    assert classes(shares, np.array([0.0, -0.0, 0.0])).member.tolist() == [0, 0, 1]


def test_rows_with_colliding_digests_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    shares, scale = crowd(1)
    expected = classes(shares, scale)
    monkeypatch.setattr(module, "_digest", lambda rows: np.zeros(len(rows), dtype=np.uint64))
    found = classes(shares, scale)
    assert found.first.tolist() == expected.first.tolist()
    assert found.member.tolist() == expected.member.tolist()
