"""Objectives over time shares: from throughputs and what is asked of them to shares.

Speeds are in whatever unit the caller has (steps a second, or against a reference run), work in the same unit
times seconds.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dovetail.mechanisms.positions import lines
from dovetail.solve import centre, lp
from dovetail.solve.classes import classes
from dovetail.solve.errors import Infeasible
from dovetail.solve.filling import Group, fill
from dovetail.solve.shares import Matrix, Shares, Solution, Vector


def max_min(shares: Shares, weight: Vector, *, centred: bool = True) -> Solution:
    """The worst-off row's throughput as large as can be; what is left over helps whom it can."""
    scale = fair_scale(shares, weight)
    if centred:
        return centre.level(shares, scale)
    small = classes(shares, scale)
    found = lp.level(small.shares, small.gather(scale), spare=True)
    return found._replace(x=small.spread(found.x))


def filled(shares: Shares, weight: Vector, group: Group | None = None) -> Matrix:
    """Max-min, and then for those who can still rise, and so on; by the levels of a tree if one is given."""
    scale = fair_scale(shares, weight)
    if group is not None:  # who goes first inside a group matters: nobody is merged
        return fill(shares, scale, group).x
    small = classes(shares, scale)
    return small.spread(fill(small.shares, small.gather(scale)).x)


def fair_scale(shares: Shares, weight: Vector) -> Vector:
    """What a throughput is measured by: that of an equal share of all types; a gang of two counts twice."""
    return proportional(shares) * weight / shares.size


def max_sum(shares: Shares, *, centred: bool = True) -> Solution:
    """The sum of throughputs."""
    gain = np.ones(len(shares.size))
    return centre.total(shares, gain) if centred else lp.total(shares, gain)


def makespan(shares: Shares, work: Vector, *, centred: bool = True) -> Matrix:
    """Everybody done by the earliest end there is; centred, at most 5 % after it."""
    best = lp.level(shares, work, spare=not centred)
    x = centre.reaching(shares, work / searched(1.0 / best.value)) if centred else None
    return best.x if x is None else x


def searched(best: float, low: float = 100.0, high: float = 1e6) -> float:
    """The end that a bisection to within 5 % finds: Gavel's own search, over seconds."""
    while high < best:
        low, high = high, high * 10.0
    while 1.05 * low < high:
        middle = (low + high) / 2
        low, high = (low, middle) if middle >= best else (middle, high)
    return high


def finish_time(
    shares: Shares, age: Vector, work: Vector, isolated: Vector, *, centred: bool = True
) -> Matrix:
    """The largest (age + work / throughput) / isolated as small as can be."""
    if centred:
        return centre.finish(shares, age, work, isolated).x
    return lp.finish(shares, age, work, isolated).x


def cheapest(shares: Shares, price: Vector, floor: Vector) -> Matrix:
    """Throughput for money, each row against its fastest way; floors are kept if all of them can be."""
    fastest = shares.speed.max(axis=1)
    try:
        return lp.ratio(shares, 1.0 / fastest, price, np.where(floor <= fastest, floor, 0.0)).x
    except Infeasible:
        return lp.ratio(shares, 1.0 / fastest, price).x


def in_turn(shares: Shares, order: Sequence[int]) -> Matrix:
    """Each in order takes the fastest type that has room for it, up to the first for whom none has.

    One that cannot run on the types with room is passed over: it could not have used them.
    """
    x, left = np.zeros(shares.speed.shape), shares.capacity.copy()
    for i in order:
        room = left[shares.pool] >= shares.size[i]
        if not room.any():
            break
        k = int(np.argmax(np.where(room, shares.speed[i], -1.0)))
        if shares.speed[i, k] > 0:
            x[i, k] = 1.0
            left[shares.pool[k]] -= shares.size[i]
    return x


def proportional(shares: Shares) -> Vector:
    """Throughput with time on each type in proportion to how many there are."""
    part = shares.capacity / shares.capacity.sum()
    first = np.array(
        [int(np.argmax(shares.pool == r)) for r in range(len(part))]
    )  # of ways, the best: together
    reach: Vector = shares.speed[:, first] @ part
    return reach


def in_lines(shares: Shares, work: Vector, kept: Matrix) -> Matrix:
    """Whoever has a place keeps it; of the others, who comes first in the lines for free devices.

    The lines are those with the least mean completion time (`positions`); who is further back has no share.
    """
    x = np.where(kept > 0.0, 1.0, 0.0)
    pool, size = shares.pool, shares.size
    left = shares.capacity - np.bincount(pool, weights=size @ x, minlength=len(shares.capacity))
    first = [int(np.argmax(pool == r)) for r in range(len(left))]  # of the ways to use a type, together
    with np.errstate(divide="ignore"):
        times = np.where(shares.speed > 0.0, work[:, None] / shares.speed, np.inf)[:, first]
    times[:, left < 1.0] = np.inf
    waiting = np.flatnonzero(~x.any(axis=1) & np.isfinite(times).any(axis=1))
    machines = lines(times[waiting], [[0.0] * int(free) for free in left], size[waiting])
    for r, of_type in enumerate(machines):
        for line in of_type:
            fits = [waiting[place] for place in line if size[waiting[place]] <= left[r]]
            if fits:
                x[fits[0], first[r]] = 1.0
                left[r] -= size[fits[0]]
    return x


def equal_parts(shares: Shares) -> Matrix:
    """An n-th part of every type for each, in turns if that is less than the gang."""
    first = np.array([int(np.argmax(shares.pool == r)) for r in range(len(shares.capacity))])
    part = shares.capacity / len(shares.size) / shares.size[:, None]
    x = np.zeros(shares.speed.shape)
    x[:, first] = part / np.maximum(part.sum(axis=1), 1.0)[:, None]
    return x


def private(shares: Shares) -> Vector:
    """Throughput on an n-th part of every type."""
    reach: Vector = (shares.speed * equal_parts(shares)).sum(axis=1)
    return reach
