"""Matching jobs to places in lines: against all schedules there are, with machines that are busy at first."""

from __future__ import annotations

from itertools import product
from random import Random

import numpy as np

from dovetail.mechanisms.objective.completion_matching import machine_queues, places


def total(times: np.ndarray, ready: list[list[float]], found: list[list[list[int]]]) -> float:
    added = 0.0
    for kind, machines in enumerate(found):
        for machine, line in enumerate(machines):
            now = ready[kind][machine]
            for row in line:
                now += times[row, kind]
                added += now
    return added


def best(times: np.ndarray, ready: list[list[float]]) -> float:
    spots = [(kind, when) for kind, machines in enumerate(ready) for when in machines]
    least = np.inf
    for where in product(range(len(spots)), repeat=len(times)):
        added = 0.0
        for at, (kind, when) in enumerate(spots):
            now = when
            for time in sorted(times[row, kind] for row, place in enumerate(where) if place == at):
                now += time
                added += now
        least = min(least, added)
    return float(least)


def test_no_schedule_is_better() -> None:
    """So the places left out were worth nothing."""
    for seed in range(60):
        luck = Random(seed)
        ready = [sorted(luck.choice((0, 0, 3, 8)) * 1.0 for _ in range(luck.randint(1, 2))) for _ in range(2)]
        jobs = luck.randint(1, 5)
        times = np.array([[luck.randint(1, 9), luck.randint(1, 20)] for _ in range(jobs)], dtype=np.float64)
        found = machine_queues(times, ready)
        assert sorted(row for kind in found for line in kind for row in line) == list(range(jobs))
        assert abs(total(times, ready, found) - best(times, ready)) < 1e-9


def test_a_job_goes_only_where_it_can() -> None:
    times = np.array([[np.inf, 5.0], [1.0, np.inf]])
    assert machine_queues(times, [[0.0], [0.0]]) == [[[1]], [[0]]]


def test_a_gang_lets_a_single_job_go_first() -> None:
    """Equal times: four devices wait for the gang, one for the other."""
    times = np.array([[10.0], [10.0]])
    assert machine_queues(times, [[0.0]], np.array([4.0, 1.0])) == [[[1, 0]]]


def test_few_places_are_enough() -> None:
    kind, *_ = places(100, [[0.0] * 64])
    assert len(kind) < 100 * 6
