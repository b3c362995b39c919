"""Objectives over time shares: the shares that are best for the throughputs of jobs.

A row is a job. Speeds may be in any unit (steps a second, or relative to a reference run); work is in the
same unit times seconds.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dovetail.mechanisms.objective.completion_matching import machine_queues
from dovetail.solve import interior_point, portable, prices, space_sharing, time_share_lp
from dovetail.solve.equal_rows import classes
from dovetail.solve.errors import Infeasible
from dovetail.solve.space_sharing import Pairs, Shared
from dovetail.solve.time_shares import Matrix, Shares, Solution, Vector
from dovetail.solve.water_filling import Group, fill

MANY = 1_000  # different rows for which a linear program over all of them takes too long
CLOSE = 1e-4  # relative


def max_min(shares: Shares, weight: Vector, *, centred: bool = True) -> Solution:
    """The largest minimum throughput; what is left over raises other rows."""
    scale = fair_scale(shares, weight)
    if centred:
        return interior_point.level(shares, scale)
    small = classes(shares, scale)
    found = _level(small.shares, small.gather(scale))
    return found._replace(x=small.spread(found.x))


def _level(shares: Shares, scale: Vector) -> Solution:
    """The largest level, and what is left over; within `CLOSE` of it if very many rows compete."""
    if len(scale) > MANY:
        found = prices.level(shares, scale, tol=CLOSE)
        if (shares.used(found.x) > (1.0 - CLOSE) * shares.capacity).all():  # nothing is left over
            return found
    return time_share_lp.level(shares, scale, spare=True)


def max_min_packed(shares: Shares, pairs: Pairs, weight: Vector, *, centred: bool = True) -> Shared:
    """The same, where two rows may share devices."""
    scale = fair_scale(shares, weight)
    return (
        interior_point.level_with(shares, pairs, scale)
        if centred
        else space_sharing.level(shares, pairs, scale)
    )


def filled(shares: Shares, weight: Vector, group: Group | None = None) -> Matrix:
    """Water filling: max-min, then again for the rows that can still rise; down a tree if one is given."""
    scale = fair_scale(shares, weight)
    if group is not None:  # the order inside a group matters, so equal rows are not merged
        return fill(shares, scale, group).x
    small = classes(shares, scale)
    return small.spread(fill(small.shares, small.gather(scale)).x)


def fair_scale(shares: Shares, weight: Vector) -> Vector:
    """The throughput of an equal share of all types, by weight; a gang of two GPUs counts twice."""
    return proportional(shares) * weight / shares.size


def max_sum(shares: Shares, *, centred: bool = True) -> Solution:
    """The sum of throughputs."""
    gain = np.ones(len(shares.size))
    return interior_point.total(shares, gain) if centred else time_share_lp.total(shares, gain)


def max_sum_packed(shares: Shares, pairs: Pairs, *, centred: bool = True) -> Shared:
    """The same, where two rows may share devices."""
    gain = np.ones(len(shares.size))
    return (
        interior_point.total_with(shares, pairs, gain)
        if centred
        else space_sharing.total(shares, pairs, gain)
    )


def makespan(shares: Shares, work: Vector, *, centred: bool = True) -> Matrix:
    """All rows end at the earliest possible makespan; centred, at most 5 % after it."""
    best = time_share_lp.level(shares, work, spare=not centred)
    x = interior_point.reaching(shares, work / searched(1.0 / best.value)) if centred else None
    return best.x if x is None else x


def makespan_packed(shares: Shares, pairs: Pairs, work: Vector, *, centred: bool = True) -> Shared:
    """The same, where two rows may share devices."""
    best = space_sharing.level(shares, pairs, work)
    found = (
        interior_point.reaching_with(shares, pairs, work / searched(1.0 / best.value)) if centred else None
    )
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
        return interior_point.finish(shares, age, work, isolated).x
    if len(work) > MANY:
        return prices.finish(shares, age, work, isolated, tol=CLOSE).x
    return time_share_lp.finish(shares, age, work, isolated).x


def finish_time_packed(shares: Shares, pairs: Pairs, age: Vector, work: Vector, isolated: Vector) -> Shared:
    """The same, where two rows may share devices; in the centre alone."""
    return interior_point.finish_with(shares, pairs, age, work, isolated)


def cheapest(shares: Shares, price: Vector, floor: Vector) -> Matrix:
    """Throughput per cost, each row relative to its fastest way; floors are kept if all of them can be."""
    fastest = shares.speed.max(axis=1)
    try:
        return time_share_lp.ratio(shares, 1.0 / fastest, price, np.where(floor <= fastest, floor, 0.0)).x
    except Infeasible:
        return time_share_lp.ratio(shares, 1.0 / fastest, price).x


def in_order(shares: Shares, order: Sequence[int]) -> Matrix:
    """Each row in order takes the fastest type with room for it, up to the first row without room.

    A row that cannot run on the types with room is passed over: it could not have used them.
    """
    return _in_order(shares, order)[0]


def _in_order(shares: Shares, order: Sequence[int]) -> tuple[Matrix, Sequence[int], Vector]:
    """The shares, the rows from the first without room on, and what is left of each pool."""
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


def in_order_packed(
    shares: Shares, pairs: Pairs, order: Sequence[int], *, worth: float = 1.5, fifo_compat: bool = False
) -> Shared:
    """As `in_order`; then each waiting row, in order, joins the row with which the pair is fastest.

    The speed of a pair is the sum of both relative to each alone on those devices, and must be more than
    `worth`; the first row without such a partner ends it. With `fifo_compat` the first row without room is
    left out if any device is free, and the rows behind it are tried, as in the authors' simulator.
    """
    x, waiting, left = _in_order(shares, order)
    y = np.zeros(len(pairs))
    if fifo_compat and left.any():
        waiting = waiting[1:]
    way = {i: int(np.argmax(x[i])) for i in order if x[i].any()}  # of the rows that are alone, in order
    first, second = pairs.first, pairs.second
    gain = pairs.speed_first / shares.speed[first, pairs.way] + (
        pairs.speed_second / shares.speed[second, pairs.way]
    )
    for i in waiting:
        mine = np.flatnonzero((first == i) | (second == i))
        partners = np.where(first[mine] == i, second[mine], first[mine]).tolist()
        best = {j: q for q, j in zip(mine, partners, strict=True) if way.get(j) == pairs.way[q]}
        beside = max((j for j in way if j in best), key=lambda j: gain[best[j]], default=None)
        if beside is None or gain[best[beside]] <= worth:
            break
        x[beside, way.pop(beside)] = 0.0
        y[best[beside]] = 1.0
    return Shared(x, y, float(x.sum() + y.sum()))


def proportional(shares: Shares) -> Vector:
    """Throughput with time on each type in proportion to its number of devices."""
    part = shares.capacity / shares.capacity.sum()
    first = np.array(
        [int(np.argmax(shares.pool == r)) for r in range(len(part))]
    )  # of ways, the best: together
    reach: Vector = portable.times(shares.speed[:, first], part)
    return reach


def in_machine_queues(shares: Shares, work: Vector, kept: Matrix) -> Matrix:
    """Rows with a place keep it; of the others, the first in the queue of each free device gets it.

    The queues are those with the least mean completion time (`completion_matching`); rows further back have
    no share.
    """
    x = np.where(kept > 0.0, 1.0, 0.0)
    pool, size = shares.pool, shares.size
    left = shares.capacity - np.bincount(
        pool, weights=portable.times(x.T, size), minlength=len(shares.capacity)
    )
    first = [int(np.argmax(pool == r)) for r in range(len(left))]  # of the ways to use a type, together
    with np.errstate(divide="ignore"):
        times = np.where(shares.speed > 0.0, work[:, None] / shares.speed, np.inf)[:, first]
    times[:, left < 1.0] = np.inf
    waiting = np.flatnonzero(~x.any(axis=1) & np.isfinite(times).any(axis=1))
    machines = machine_queues(times[waiting], [[0.0] * int(free) for free in left], size[waiting])
    for r, of_type in enumerate(machines):
        for line in of_type:
            fits = [waiting[place] for place in line if size[waiting[place]] <= left[r]]
            if fits:
                x[fits[0], first[r]] = 1.0
                left[r] -= size[fits[0]]
    return x


def equal_parts(shares: Shares) -> Matrix:
    """An n-th part of every type for each row; for part of the time if that is less than the gang."""
    first = np.array([int(np.argmax(shares.pool == r)) for r in range(len(shares.capacity))])
    part = shares.capacity / len(shares.size) / shares.size[:, None]
    x = np.zeros(shares.speed.shape)
    x[:, first] = part / np.maximum(part.sum(axis=1), 1.0)[:, None]
    return x


def private(shares: Shares) -> Vector:
    """Throughput on an n-th part of every type."""
    reach: Vector = (shares.speed * equal_parts(shares)).sum(axis=1)
    return reach
