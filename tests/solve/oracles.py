"""The same problems solved in another way: whole dense programs through scipy, bisection, and enumeration.

Slow and simple on purpose, in the units of the problem. They share no code with what they check.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from dovetail.solve.time_shares import Matrix, Shares, Vector


def instances(
    number: int, seed: int, *, most: int = 7, runnable: bool = True
) -> Iterator[tuple[Shares, Any]]:
    """Random problems, slack and scarce, with shared and empty pools; and the dice to draw the rest from."""
    for i in range(number):
        dice = np.random.default_rng([seed, i])
        n, m = int(dice.integers(1, most + 1)), int(dice.integers(1, 5))
        p = int(dice.integers(1, m + 1))
        pool = np.append(np.arange(p), dice.integers(0, p, m - p))
        speed = dice.lognormal(2.0, 1.0, (n, m)) * dice.choice([0.0, 1.0], (n, m), p=[0.2, 0.8])
        if dice.random() < 0.3:
            speed = np.round(speed / 5.0)  # ties
        size = dice.choice([1.0, 2.0, 4.0, 8.0], n)
        count = dice.integers(1, 5, n).astype(float)
        capacity = np.ceil(dice.uniform(0.05, 1.5) * (size @ count) * dice.dirichlet(np.ones(p)))
        if dice.random() < 0.1:
            capacity[dice.integers(p)] = 0.0
        if runnable:
            capacity[0] = max(capacity[0], 1.0)
            nowhere = ~((speed > 0.0) & (capacity > 0.0)[pool]).any(axis=1)
            speed[nowhere, 0] = 1.0
        yield Shares(speed, size, capacity, count, pool), dice


def check_feasible(shares: Shares, x: Matrix) -> None:
    """Every limit, one by one."""
    n, m = shares.speed.shape
    assert x.shape == (n, m)
    assert (x >= 0.0).all()
    assert (x[shares.speed <= 0.0] == 0.0).all()
    assert (x.sum(axis=1) <= 1.0 + 1e-9).all()
    for r, capacity in enumerate(shares.capacity):
        used = sum(
            shares.count[i] * shares.size[i] * x[i, k]
            for i in range(n)
            for k in range(m)
            if shares.pool[k] == r
        )
        assert used <= capacity + 1e-9


def _limits(shares: Shares, extra: int) -> tuple[Matrix, Vector, list[tuple[float, float | None]]]:
    """Dense rows of time and pools over x (row by row) and `extra` columns; bounds of all columns."""
    n, m = shares.speed.shape
    p = len(shares.capacity)
    rows = np.zeros((n + p, n * m + extra))
    for i, k in itertools.product(range(n), range(m)):
        rows[i, i * m + k] = 1.0
        rows[n + shares.pool[k], i * m + k] = shares.count[i] * shares.size[i]
    bounds: list[tuple[float, float | None]] = [
        (0.0, 1.0 if speed > 0.0 and count > 0.0 else 0.0)
        for speeds, count in zip(shares.speed, shares.count, strict=True)
        for speed in speeds
    ]
    return rows, np.append(np.ones(n), shares.capacity), bounds + [(0.0, None)] * extra


def _reach(shares: Shares, i: int, extra: int) -> Vector:
    n, m = shares.speed.shape
    row = np.zeros(n * m + extra)
    row[i * m : (i + 1) * m] = shares.speed[i]
    return row


def _linprog(cost: Vector, rows: Matrix, limits: Vector, bounds: Any, **equal: Any) -> Any:
    from scipy.optimize import linprog

    tight = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}
    return linprog(cost, A_ub=rows, b_ub=limits, bounds=bounds, method="highs", options=tight, **equal)


def best_level(shares: Shares, scale: Vector, floor: Vector) -> float | None:
    """Max t with reach >= t * scale + floor; None if the floors alone cannot be met."""
    rows, limits, bounds = _limits(shares, 1)
    for i in np.flatnonzero(((scale > 0.0) | (floor > 0.0)) & (shares.count > 0.0)):
        size = max(scale[i], floor[i])
        row = -_reach(shares, int(i), 1) / size
        row[-1] = scale[i] / size
        rows, limits = np.vstack([rows, row]), np.append(limits, -floor[i] / size)
    found = _linprog(np.append(np.zeros(rows.shape[1] - 1), -1.0), rows, limits, bounds)
    return None if found.status == 2 else float(-found.fun)


def best_total(shares: Shares, gain: Vector, floor: Vector) -> float | None:
    """Max sum of count * gain * reach with reach >= floor."""
    rows, limits, bounds = _limits(shares, 0)
    for i in np.flatnonzero((floor > 0.0) & (shares.count > 0.0)):
        rows = np.vstack([rows, -_reach(shares, int(i), 0) / floor[i]])
        limits = np.append(limits, -1.0)
    cost = -((shares.count * gain)[:, None] * shares.speed).ravel()
    found = _linprog(cost, rows, limits, bounds)
    return None if found.status == 2 else float(-found.fun)


def best_ratio(shares: Shares, gain: Vector, price: Vector, floor: Vector) -> float | None:
    """Charnes and Cooper 1962: y = x * tau with the money fixed to 1 makes it one linear program."""
    n = len(shares.speed)
    rows, limits, _ = _limits(shares, 1)
    rows[:, -1], limits = -limits, np.zeros(n + len(shares.capacity))
    for i in np.flatnonzero((floor > 0.0) & (shares.count > 0.0)):
        row = -_reach(shares, int(i), 1) / floor[i]
        row[-1] = 1.0
        rows, limits = np.vstack([rows, row]), np.append(limits, 0.0)
    can = (shares.speed > 0.0) & (shares.capacity > 0.0)[shares.pool] & (shares.count > 0.0)[:, None]
    bounds: list[tuple[float, float | None]] = [(0.0, None if may else 0.0) for may in can.ravel()]
    cost = -np.append(((shares.count * gain)[:, None] * shares.speed).ravel(), 0.0)
    money = np.append(np.outer(shares.count * shares.size, price).ravel(), 0.0)
    found = _linprog(cost, rows, limits, [*bounds, (0.0, None)], A_eq=money[None, :], b_eq=np.ones(1))
    return None if found.status == 2 else float(-found.fun)


def slack_of(shares: Shares, need: Vector) -> float:
    """By what part all needs could be exceeded at once; below 0 if they cannot be met."""
    rows, limits, bounds = _limits(shares, 1)
    for i in np.flatnonzero((need > 0.0) & (shares.count > 0.0)):
        row = -_reach(shares, int(i), 1) / need[i]
        row[-1] = 1.0
        rows, limits = np.vstack([rows, row]), np.append(limits, -1.0)
    found = _linprog(np.append(np.zeros(rows.shape[1] - 1), -1.0), rows, limits, [*bounds[:-1], (-1.0, None)])
    assert found.status == 0, found.message
    return float(-found.fun)


def needs_of(rho: float, age: Vector, work: Vector, isolated: Vector) -> Vector | None:
    """The reach at which every row ends by rho times its isolated time; None if a row is past that."""
    left = rho * isolated - age
    busy = work > 0.0
    if (left[busy] <= 0.0).any():
        return None
    return np.where(busy, work / np.where(left > 0.0, left, 1.0), 0.0)


def least(feasible: Any, low: float, high: float, digits: float = 1e-9) -> float:
    """Plain bisection: the least value that is feasible."""
    while high - low > digits * high:
        middle = (low + high) / 2
        low, high = (low, middle) if feasible(middle) else (middle, high)
    return high


def highest_reach(shares: Shares, i: int, need: Vector) -> float:
    """The most that row i can reach while every row j reaches need[j]."""
    rows, limits, bounds = _limits(shares, 0)
    for j in np.flatnonzero((need > 1e-8 * shares.speed.max(axis=1)) & (shares.count > 0.0)):
        rows = np.vstack([rows, -_reach(shares, int(j), 0) / need[j]])
        limits = np.append(limits, -1.0)
    found = _linprog(-_reach(shares, i, 0), rows, limits, bounds)
    assert found.status == 0, found.message
    return float(-found.fun)


def best_assignment(shares: Shares) -> float:
    """Whole jobs on whole types, by trying all: the largest total speed."""
    n, m = shares.speed.shape
    best = -math.inf
    for ways in itertools.product(range(-1, m), repeat=n):
        used = np.zeros(len(shares.capacity))
        for i, k in enumerate(ways):
            if k >= 0:
                used[shares.pool[k]] += shares.count[i] * shares.size[i]
        if (used <= shares.capacity).all():
            best = max(best, sum(shares.count[i] * shares.speed[i, k] for i, k in enumerate(ways) if k >= 0))
    return float(best)
