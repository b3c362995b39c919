"""Time shares: for which share of the time each job runs in which way.

Rows are jobs, or classes of `count` equal jobs. Columns are ways to run: a GPU type, or a type used in one of
several manners (consolidated, split). Pools are what is scarce: the devices of a type. Several columns may
draw on one pool. `x[i, k]` is the share of the time in which each member of row i runs in way k:

    sum over k of x[i, k]                           <= 1             no job is in two places
    sum over i, k of pool r: count * size * x       <= capacity[r]   devices are not used twice
    reach[i] = sum over k of speed[i, k] * x[i, k]                   what a member gets done in unit time

A speed of 0 or less means that the row cannot run that way. Narayanan et al., "Heterogeneity-Aware Cluster
Scheduling Policies for Deep Learning Workloads" (Gavel), OSDI 2020, section 3.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]
IntVector = NDArray[np.intp]
Mask = NDArray[np.bool_]


def _unsaid() -> Vector:
    return np.empty(0)


def _unsaid_pool() -> IntVector:
    return np.empty(0, dtype=np.intp)


@dataclass(frozen=True, slots=True, eq=False)
class Shares:
    """The problem, checked; its arrays are copies that cannot be written to."""

    speed: Matrix  # n x m
    size: Vector  # n: devices that each member holds while it runs
    capacity: Vector  # p
    count: Vector = field(default_factory=_unsaid)  # n: members of the row; ones if left out
    pool: IntVector = field(default_factory=_unsaid_pool)  # m: the pool of each column; arange if left out

    def __post_init__(self) -> None:
        speed = np.array(self.speed, dtype=np.float64, order="C")
        if speed.ndim != 2:
            raise ValueError(f"speed must be a matrix of rows by ways to run, not of shape {speed.shape}")
        n, m = speed.shape
        if not np.isfinite(speed).all():
            raise ValueError("speed must be finite; 0 says that a row cannot run that way")
        capacity = vector("capacity", self.capacity, None, least=0.0)
        size = vector("size", self.size, n, least=0.0)
        if not (size > 0.0).all():
            raise ValueError("size must be more than 0")
        count = vector("count", self.count if np.size(self.count) or not n else np.ones(n), n, least=0.0)
        pool = np.array(self.pool if np.size(self.pool) or not m else np.arange(m), dtype=np.intp)
        if pool.shape != (m,) or (m and not 0 <= pool.min() <= pool.max() < len(capacity)):
            raise ValueError(f"pool must name one of {len(capacity)} capacities for each of {m} columns")
        for name, array in zip(
            ("speed", "size", "capacity", "count", "pool"), (speed, size, capacity, count, pool), strict=True
        ):
            array.setflags(write=False)
            object.__setattr__(self, name, array)

    @property
    def allowed(self) -> Mask:
        """Where a row can run at all: n x m."""
        return (self.speed > 0.0) & (self.capacity > 0.0)[self.pool]

    @property
    def weight(self) -> Vector:
        """Devices that all members of a row hold when all run: count x size."""
        return self.count * self.size

    def reach(self, x: Matrix) -> Vector:
        """What each member gets done in unit time."""
        return np.asarray((self.speed * x).sum(axis=1))

    def used(self, x: Matrix) -> Vector:
        """Devices in use, on average over time: p."""
        each = (self.weight[:, None] * x).sum(axis=0)  # not @: BLAS adds in an order that depends on the CPU
        return np.bincount(self.pool, weights=each, minlength=len(self.capacity)).astype(np.float64)


class Solution(NamedTuple):
    """Shares, what they are worth, and how much better any others could be."""

    x: Matrix  # n x m
    value: float
    gap: float = 0.0  # certified, relative: the optimum is at most value * (1 + gap)


def whole(shares: Shares) -> Shares:
    """The same problem where a gang larger than a pool cannot use that pool: it would never start there."""
    fits = shares.size[:, None] <= shares.capacity[shares.pool][None, :]
    return replace(shares, speed=np.where(fits, shares.speed, 0.0))


def within(shares: Shares, x: Matrix) -> Matrix:
    """The same shares with a solver's rounding taken off, so that no limit is exceeded."""
    x = np.where(shares.allowed, np.maximum(x, 0.0), 0.0)
    x /= np.maximum(x.sum(axis=1), 1.0)[:, None]
    over = shares.used(x) / np.where(shares.capacity > 0.0, shares.capacity, 1.0)
    x /= np.maximum(over, 1.0)[shares.pool]
    return x


def vector(name: str, given: ArrayLike, n: int | None, *, least: float | None = None) -> Vector:
    """A finite float vector of length n (a number stands for n of it), or a ValueError in one line."""
    array = np.array(given, dtype=np.float64)
    if array.ndim == 0 and n is not None:
        array = np.full(n, float(array))
    if array.ndim != 1 or (n is not None and len(array) != n):
        raise ValueError(f"{name} must be a vector of length {n}, not of shape {array.shape}")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} must be finite")
    if least is not None and (array < least).any():
        raise ValueError(f"{name} must be at least {least:g}, but {array.min():g} was given")
    return array
