"""Objectives over time shares: from throughputs and what is asked of them to shares.

Speeds are in whatever unit the caller has (steps a second, or against a reference run), work in the same unit
times seconds.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dovetail.mechanisms.positions import lines
from dovetail.solve import centre, columns, lp
from dovetail.solve.classes import classes
from dovetail.solve.columns import Pairs, Shared
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


def max_min_packed(shares: Shares, pairs: Pairs, weight: Vector, *, centred: bool = True) -> Shared:
    """The same, where two may run on the same devices."""
    scale = fair_scale(shares, weight)
    return centre.level_with(shares, pairs, scale) if centred else columns.level(shares, pairs, scale)


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


def max_sum_packed(shares: Shares, pairs: Pairs, *, centred: bool = True) -> Shared:
    """The same, where two may run on the same devices."""
    gain = np.ones(len(shares.size))
    return centre.total_with(shares, pairs, gain) if centred else columns.total(shares, pairs, gain)


def makespan(shares: Shares, work: Vector, *, centred: bool = True) -> Matrix:
    """Everybody done by the earliest end there is; centred, at most 5 % after it."""
    best = lp.level(shares, work, spare=not centred)
    x = centre.reaching(shares, work / searched(1.0 / best.value)) if centred else None
    return best.x if x is None else x


def makespan_packed(shares: Shares, pairs: Pairs, work: Vector, *, centred: bool = True) -> Shared:
    """The same, where two may run on the same devices."""
    best = columns.level(shares, pairs, work)
    found = centre.reaching_with(shares, pairs, work / searched(1.0 / best.value)) if centred else None
    return best if found is None else found


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


def finish_time_packed(shares: Shares, pairs: Pairs, age: Vector, work: Vector, isolated: Vector) -> Shared:
    """The same, where two may run on the same devices; in the centre alone."""
    return centre.finish_with(shares, pairs, age, work, isolated)


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
    return _in_turn(shares, order)[0]


def _in_turn(shares: Shares, order: Sequence[int]) -> tuple[Matrix, Sequence[int], Vector]:
    """The shares, those from the first for whom there was no room, and what is left of each pool."""
    x, left = np.zeros(shares.speed.shape), shares.capacity.copy()
    for at, i in enumerate(order):
        room = left[shares.pool] >= shares.size[i]
        if not room.any():
            return x, order[at:], left
        k = int(np.argmax(np.where(room, shares.speed[i], -1.0)))
        if shares.speed[i, k] > 0:
            x[i, k] = 1.0
            left[shares.pool[k]] -= shares.size[i]
    return x, (), left


def in_turn_packed(
    shares: Shares, pairs: Pairs, order: Sequence[int], *, worth: float = 1.5, slip: bool = False
) -> Shared:
    """In turn; then those left over, in the same order, each beside whom it gets most done with.

    What gets done is counted against each alone on those devices, and must be more than `worth` together; the
    first for whom there is nobody ends it. With `slip` the first for whom no type had room is forgotten if
    any device is free: those behind it are tried, as in the authors' simulator.
    """
    x, waiting, left = _in_turn(shares, order)
    y = np.zeros(len(pairs))
    if slip and left.any():
        waiting = waiting[1:]
    way = {i: int(np.argmax(x[i])) for i in order if x[i].any()}  # of those who are alone, in order
    first, second = pairs.first, pairs.second
    gain = pairs.speed_first / shares.speed[first, pairs.way] + (
        pairs.speed_second / shares.speed[second, pairs.way]
    )
    for i in waiting:
        mine = np.flatnonzero((first == i) | (second == i))
        with_whom = np.where(first[mine] == i, second[mine], first[mine]).tolist()
        best = {j: q for q, j in zip(mine, with_whom, strict=True) if way.get(j) == pairs.way[q]}
        beside = max((j for j in way if j in best), key=lambda j: gain[best[j]], default=None)
        if beside is None or gain[best[beside]] <= worth:
            break
        x[beside, way.pop(beside)] = 0.0
        y[best[beside]] = 1.0
    return Shared(x, y, float(x.sum() + y.sum()))


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
