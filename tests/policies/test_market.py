"""Rounds divided among jobs: against all divisions, and scheduled so that gangs fit."""

from __future__ import annotations

from itertools import product

import numpy as np

from dovetail.policies.shockwave.market import Window, laid_out, log_progress, shared_out


def window(seed: int) -> Window:
    luck = np.random.default_rng(seed)
    jobs, steps = 3, 5
    gains = luck.uniform(0, 1, (jobs, steps)) * luck.uniform(0.5, 4, (jobs, 1))
    worth = np.cumsum(-np.sort(-gains, axis=1), axis=1)  # less and less
    left = np.maximum(luck.uniform(1, 9, jobs)[:, None] - np.arange(steps), 0.0)
    return Window(
        worth, left, luck.integers(1, 3, jobs).astype(np.float64), 2.0, np.zeros(jobs, dtype=np.int64)
    )


def test_no_division_of_rounds_is_better_by_more_than_a_round() -> None:
    for seed in range(40):
        asked = window(seed)
        for price in (0.0, 0.3, 10.0):

            def value(given: tuple[int, ...], asked: Window = asked, price: float = price) -> float:
                at = np.arange(3), np.array(given)
                return float(asked.worth[at].sum() - price * asked.left[at].max())

            fits = [g for g in product(range(5), repeat=3) if np.array(g) @ asked.size <= 2.0 * 4]
            found = tuple(shared_out(asked, price).tolist())
            assert found in fits
            assert value(found) >= max(map(value, fits)) - price - 1e-6  # the end is known to a round, of 1


def test_every_job_gets_its_least_rounds() -> None:
    worth = np.tile(np.arange(5.0), (2, 1)) * np.array([[1.0], [9.0]])
    asked = Window(worth, np.zeros((2, 5)), np.ones(2), 1.0, np.array([3, 0]))
    assert shared_out(asked, 0.0).tolist() == [3, 1]
    assert (
        shared_out(Window(worth[:0], worth[:0], np.ones(0), 1.0, np.zeros(0, dtype=np.int64)), 0.0).tolist()
        == []
    )


def test_every_job_is_in_as_many_rounds_as_it_was_given() -> None:
    """Three jobs share two devices: each in two of three rounds."""
    rounds = laid_out([2, 2, 2], [1, 1, 1], 2, 3, [99, 99, 99])
    assert [len(rows) for rows in rounds] == [2, 2, 2]
    assert sorted(row for rows in rounds for row in rows) == [0, 0, 1, 1, 2, 2]


def test_a_job_that_is_due_goes_first() -> None:
    """Though the others have no round to lose, the late gang is not scheduled last."""
    rounds = laid_out([3, 3, 3, 1], [1, 1, 1, 2], 4, 3, [99, 99, 99, -1])
    assert rounds[0] == [3, 0, 1]


def test_the_logarithm_is_in_straight_lines() -> None:
    assert np.allclose(log_progress([0.0, 0.2, 1.0]), [np.log(1e-6), np.log(0.2), 0.0])
    assert np.isclose(log_progress(0.1), (np.log(1e-6) + np.log(0.2)) / 2)


def test_a_bound_on_the_longest_is_tried_though_looser_ones_change_nothing() -> None:
    """Two devices, four rounds; jobs of 8, 7 and 1 rounds. Any bound over 5 is met without the longest."""
    length = np.array([8.0, 7.0, 1.0])[:, None]
    steps = np.arange(5.0)
    worth = log_progress(np.minimum(steps / length, 1.0)) / 12
    asked = Window(worth, np.maximum(length - steps, 0.0), np.ones(3), 2.0, np.array([2, 2, 1]))
    assert shared_out(asked, 0.0).tolist() == [3, 4, 1]
    assert shared_out(asked, 3.6).tolist() == [4, 3, 1]
