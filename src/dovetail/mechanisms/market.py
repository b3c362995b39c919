"""Rounds of a window as goods on a market: everybody gets so many that the welfare of all is greatest.

In a Fisher market with equal budgets the prices at which all goods are sold maximise the Nash welfare, the
sum of the logarithms of what everybody gets out of them (Eisenberg, Gale, 1959). Here the goods are the
rounds of a window, a gang of w devices takes w times as much of each, and what somebody gets out of n rounds
is how far it will be then: any function of n, so regimes to come are easily counted in. The end of the last
job costs something too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dovetail.solve.choose import best_choice

Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]
IntVector = npt.NDArray[np.int64]

BASES = np.array([0.0, 0.2, 0.4, 0.6, 0.8, 1.0])  # of Shockwave's code: between them the logarithm is a line
ORIGIN = 1e-6  # and the logarithm of 0 is that of this


def log_progress(part: npt.ArrayLike) -> Matrix:
    """The logarithm of how far somebody is (0 to 1), in straight lines."""
    values = np.log(np.concatenate([[ORIGIN], BASES[1:]]))
    return np.asarray(np.interp(np.asarray(part, dtype=np.float64), BASES, values))


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """What is for sale, and what it is worth to whom."""

    worth: Matrix  # jobs x (rounds + 1): with n rounds
    left: Matrix  # jobs x (rounds + 1): seconds it would have left then
    size: Vector  # jobs: devices
    capacity: float  # devices in each round
    least: IntVector  # jobs: rounds that it must have


def shared_out(window: Window, makespan: float) -> IntVector:
    """Rounds for each job that make the most of the worths, less `makespan` times the most anybody has left.

    If the longest is to have at most M left, everybody needs some rounds at least; the best choice beyond
    these is a knapsack. M falls by a round as the longest gets one more, and the value first rises and then
    falls: so few of them need be tried.
    """
    jobs, steps = window.worth.shape
    if not jobs:
        return np.zeros(0, dtype=np.int64)
    longest = int(window.left[:, 0].argmax())
    tried: dict[int, tuple[float, IntVector]] = {}

    def value(rounds: int) -> float:
        if rounds not in tried:
            most = window.left[longest, rounds]
            floor = np.maximum((window.left > most + 1e-9).sum(axis=1), window.least)
            floor = np.minimum(floor, steps - 1)
            if rounds and floor @ window.size > window.capacity * (steps - 1):
                tried[rounds] = -np.inf, floor  # more than there is
            else:
                given = floor + _beyond(window, floor)
                at = np.arange(jobs), given
                tried[rounds] = float(window.worth[at].sum() - makespan * window.left[at].max()), given
        return tried[rounds][0]

    low, high = 0, steps - 1
    while high - low > 2:
        third = (high - low) // 3
        if value(low + third) < value(high - third):
            low += third
        else:
            high -= third
    best = max(range(low, high + 1), key=lambda rounds: (value(rounds), -rounds))
    return tried[best][1]


def _beyond(window: Window, floor: IntVector) -> IntVector:
    """How many rounds more than its floor each job gets, so that they fill the window best."""
    jobs, steps = window.worth.shape
    left = max(window.capacity * (steps - 1) - float(floor @ window.size), 0.0)
    sizes, kind = np.unique(window.size, return_inverse=True)
    more = np.arange(1, steps)
    to = floor[:, None] + more
    rows = np.arange(jobs)
    gain = window.worth[rows[:, None], np.minimum(to, steps - 1)] - window.worth[rows, floor][:, None]
    gain[to >= steps] = -np.inf
    value = np.full((jobs, len(sizes), steps - 1), -np.inf)
    value[rows, kind] = gain / max(gain.max(initial=0.0), 1e-300)
    pick = best_choice(value.reshape(jobs, -1), np.outer(sizes, more).reshape(-1, 1), [left]).pick
    return np.where(pick >= 0, pick % (steps - 1) + 1, 0).astype(np.int64)


def laid_out(
    given: Sequence[int], size: Sequence[float], capacity: float, rounds: int, due: Sequence[float]
) -> list[list[int]]:
    """Who is in which round, when everybody is to be in so many of them: the rows, in the order they chose.

    Who is due before the window ends (`due` counts rounds) goes first, then who has no round to lose, then
    who is due first: so each has its rounds in a row, mostly. A gang that finds no place in a round is
    passed by.
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
