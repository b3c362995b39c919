"""Objectives over time shares where very many jobs differ: quicker, and within the stated distance."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from dovetail.mechanisms.objective import share_objectives
from dovetail.mechanisms.objective.share_objectives import CLOSE, MANY, fair_scale, finish_time, max_min
from dovetail.solve import time_share_lp
from dovetail.solve.time_shares import Shares


def crowd(load: float, rows: int = MANY + 100) -> Shares:
    """Jobs of one GPU, no two alike, that ask for `load` times the devices."""
    dice = np.random.default_rng(7)
    speed = dice.uniform(1.0, 5.0, (rows, 3))
    return Shares(speed, np.ones(rows), np.full(3, round(rows / 3 / load)))


def cpu_seconds(solve: Any) -> tuple[float, Any]:
    began = time.process_time()
    found = solve()
    return time.process_time() - began, found


def test_many_different_jobs_are_levelled_at_a_fraction_of_the_time() -> None:
    shares = crowd(load=3.0)
    weight = np.ones(len(shares.size))
    took, found = cpu_seconds(lambda: max_min(shares, weight, centred=False))
    whole_took, whole = cpu_seconds(lambda: time_share_lp.level(shares, fair_scale(shares, weight)))
    assert whole.value * (1 - CLOSE) <= found.value <= whole.value * (1 + 1e-9)
    assert took < whole_took / 2


def test_devices_that_are_left_over_raise_other_jobs() -> None:
    """One slow job limits the level; the others have room for more, and get it."""
    shares = crowd(load=0.5)
    weight = np.ones(len(shares.size))
    weight[0] = 100.0  # runs all the time and stays the lowest
    x = max_min(shares, weight, centred=False).x
    assert np.median(x.sum(axis=1)) > 0.99


def test_finish_times_of_many_jobs_are_within_the_distance(monkeypatch: pytest.MonkeyPatch) -> None:
    shares = crowd(load=3.0, rows=120)
    dice = np.random.default_rng(8)
    n = len(shares.size)
    age, work = dice.uniform(0.0, 50.0, n), dice.uniform(50.0, 500.0, n)
    isolated = age + work / (shares.speed.mean(axis=1) / 3.0)

    def worst() -> float:
        x = finish_time(shares, age, work, isolated, centred=False)
        return float(((age + work / shares.reach(x)) / isolated).max())

    exact = worst()
    monkeypatch.setattr(share_objectives, "MANY", 100)
    assert exact * (1 - 1e-9) <= worst() <= exact * (1 + 2 * CLOSE)
