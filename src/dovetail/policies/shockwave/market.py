"""Rounds of a window as goods on a market, divided so that the welfare of all jobs is largest.

In a Fisher market with equal budgets the prices at which all goods are sold maximise the Nash welfare, the
sum of the logarithms of all utilities (Eisenberg, Gale, 1959). Here the goods are the rounds of a window, a
gang of w devices takes w times as much of each, and the utility of n rounds to a job is its progress after
them. This may be any function of n, so later regimes are easily included. The makespan has a cost too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dovetail.solve.multiple_choice import best_choice
from dovetail.solve.portable import dot, rounded

Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]
IntVector = npt.NDArray[np.int64]

BASES = np.array([0.0, 0.2, 0.4, 0.6, 0.8, 1.0])  # of Shockwave's code: between them the logarithm is a line
ORIGIN = 1e-6  # and the logarithm of 0 is that of this


def log_progress(part: npt.ArrayLike) -> Matrix:
    """The logarithm of a job's progress (0 to 1), piecewise linear."""
    values = np.array([round(math.log(base), 12) for base in (ORIGIN, *BASES[1:])])
    return np.asarray(np.interp(np.asarray(part, dtype=np.float64), BASES, values))


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """The rounds on offer, and their value to each job."""

    worth: Matrix  # jobs x (rounds + 1): with n rounds
    left: Matrix  # jobs x (rounds + 1): seconds it would have left then
    size: Vector  # jobs: devices
    capacity: float  # devices in each round
    least: IntVector  # jobs: rounds that it must get


def shared_out(window: Window, makespan: float) -> IntVector:
    """Rounds for each job that maximise the sum of values, less `makespan` times the longest time left.

    If no job may have more than M left, each job needs a least number of rounds; the best choice beyond
    these is a knapsack. M falls by a round when the longest job gets one more. A bound that the last choice
    meets anyway changes nothing, so the next one that it does not meet is tried, down to the lowest M that
    the rounds suffice for.
    """
    jobs, steps = window.worth.shape
    if not jobs:
        return np.zeros(0, dtype=np.int64)
    rows = np.arange(jobs)
    offered = window.capacity * (steps - 1)
    bounds = window.left[window.left[:, 0].argmax()]  # M, with one round more and more for the longest job
    best, found, floor = -np.inf, np.zeros(jobs, dtype=np.int64), np.minimum(window.least, steps - 1)
    while True:
        given = floor + _beyond(window, floor)
        longest = window.left[rows, given].max()
        value = float(rounded(window.worth[rows, given].sum() - makespan * longest))
        if value > best:
            best, found = value, given
        lower = bounds[bounds < longest - 1e-9]
        if not makespan or not len(lower):
            return found
        floor = np.minimum(np.maximum((window.left > lower[0] + 1e-9).sum(axis=1), window.least), steps - 1)
        if (window.left[rows, floor] > lower[0] + 1e-9).any() or dot(floor, window.size) > offered:
            return found


def _beyond(window: Window, floor: IntVector) -> IntVector:
    """How many rounds more than its floor each job gets, so that they fill the window best."""
    jobs, steps = window.worth.shape
    left = max(window.capacity * (steps - 1) - dot(floor, window.size), 0.0)
    sizes, kind = np.unique(window.size, return_inverse=True)
    more = np.arange(1, steps)
    to = floor[:, None] + more
    rows = np.arange(jobs)
    gain = window.worth[rows[:, None], np.minimum(to, steps - 1)] - window.worth[rows, floor][:, None]
    gain[to >= steps] = -np.inf
    value = np.full((jobs, len(sizes), steps - 1), -np.inf)
    value[rows, kind] = rounded(gain / max(gain.max(initial=0.0), 1e-300))
    pick = best_choice(value.reshape(jobs, -1), np.outer(sizes, more).reshape(-1, 1), [left]).pick
    return np.where(pick >= 0, pick % (steps - 1) + 1, 0).astype(np.int64)


def laid_out(
    given: Sequence[int], size: Sequence[float], capacity: float, rounds: int, due: Sequence[float]
) -> list[list[int]]:
    """The rows in each round, in the order in which they were picked; `given` is how many rounds each gets.

    Jobs that are due before the window ends (`due` counts rounds) go first, then jobs that need every round
    that is left, then by due time: so a job's rounds are mostly consecutive. A gang that does not fit in a
    round is left out of it.
    """
    need = list(given)
    found = []
    for left in range(rounds, 0, -1):
        line = [row for row, wants in enumerate(need) if wants]
        line.sort(key=lambda row: (due[row] > rounds, need[row] < left, due[row], row))
        chosen, free = [], capacity
        for row in line:
            if size[row] <= free + 1e-9:
                chosen.append(row)
                free -= size[row]
                need[row] -= 1
        found.append(chosen)
    return found
