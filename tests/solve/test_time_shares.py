"""The problem itself: what is refused, and what shares come to."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail.solve.time_shares import Shares, whole, within

TWO = Shares(np.array([[1.0, 2.0, 0.0], [3.0, 0.0, 4.0]]), [1.0, 2.0], [4.0, 1.0], pool=[0, 0, 1])  # type: ignore[arg-type]


def test_defaults_are_one_member_each_and_a_pool_for_each_column() -> None:
    shares = Shares(np.ones((2, 3)), np.ones(2), np.ones(3))
    assert shares.count.tolist() == [1.0, 1.0]
    assert shares.pool.tolist() == [0, 1, 2]


def test_reach_and_use() -> None:
    x = np.array([[0.5, 0.5, 0.0], [0.25, 0.0, 0.5]])
    assert TWO.reach(x).tolist() == [1.5, 2.75]
    assert TWO.used(x).tolist() == [1.5, 1.0]


def test_arrays_are_copies_that_cannot_be_written() -> None:
    speed = np.ones((1, 1))
    shares = Shares(speed, np.ones(1), np.ones(1))
    speed[0, 0] = 9.0
    assert shares.speed[0, 0] == 1.0
    with pytest.raises(ValueError, match="read-only"):
        shares.speed[0, 0] = 9.0


def test_a_gang_larger_than_a_pool_cannot_use_it() -> None:
    assert whole(TWO).speed.tolist() == [[1.0, 2.0, 0.0], [3.0, 0.0, 0.0]]


def test_within_takes_off_what_is_too_much() -> None:
    x = within(TWO, np.array([[0.6, 0.6, 0.5], [-0.1, 0.3, 0.9]]))
    assert x.sum(axis=1).max() <= 1.0
    assert (TWO.used(x) <= TWO.capacity).all()
    assert x[0, 2] == x[1, 0] == x[1, 1] == 0.0


def test_an_empty_problem_is_a_problem() -> None:
    shares = Shares(np.empty((0, 2)), np.empty(0), np.ones(2))
    assert shares.used(np.empty((0, 2))).tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"speed": np.ones(2)}, "speed must be a matrix"),
        ({"speed": np.array([[np.nan, 1.0]])}, "speed must be finite"),
        ({"size": [0.0]}, "size must be more than 0"),
        ({"size": [1.0, 1.0]}, "size must be a vector of length 1"),
        ({"capacity": [-1.0, 1.0]}, "capacity must be at least 0, but -1 was given"),
        ({"capacity": [np.inf, 1.0]}, "capacity must be finite"),
        ({"count": [-2.0]}, "count must be at least 0"),
        ({"pool": [0, 2]}, "pool must name one of 2 capacities"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(change: dict[str, object], message: str) -> None:
    right: dict[str, object] = {"speed": np.ones((1, 2)), "size": [1.0], "capacity": [1.0, 1.0]}
    with pytest.raises(ValueError, match=message) as refused:
        Shares(**(right | change))  # type: ignore[arg-type]
    assert "\n" not in str(refused.value)
