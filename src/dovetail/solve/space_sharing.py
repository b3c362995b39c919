"""Space sharing: time shares where two rows may run together on the same devices, by column generation.

Beside its own ways to run, row i may share a set of devices with row j (of the same size) in way k, each at a
speed of its own, usually less than alone but more than half. A *pair column* q = (i, j, k) has the variable
y[q]: the sets of devices that run this pair, on average over time. With X = count * x for the single ways,

    time   of row i:    sum_k X[i,k] + sum of y[q] over all q with i in it   <= count[i]
    pool   r:           sum size * X + sum size * y  of the columns there    <= capacity[r]
    reach  of row i:    (sum_k speed[i,k] X[i,k] + sum of its speed in q * y[q]) / count[i]

(Gavel, Narayanan et al., OSDI 2020, section 3.1.) As there, this is a relaxation: that all rows keep within
their time does not quite mean that the pairs can be scheduled. Three rows that spend half of their time with
each of the two others keep within it, but while two of them run together the third has no partner.

There are as many pair columns as pairs of rows times ways, and nearly all are 0 in the answer. So the
*master* LP starts with the single columns. Its solution puts a price on the time of each row, on each pool,
and (for max-min) a worth on the reach of each row; a pair column would improve it only if what it yields at
these prices is more than what it costs (its *reduced cost* is positive; Gilmore and Gomory, Operations
Research 1961). One vectorised pass prices all columns; the best of each row is added; the solver goes on from
its last basis. While new columns promise a large gain, the master is not solved to the end: prices that are
about right find nearly the same columns, and most of the last steps would be undone. When no column has a
positive reduced cost, the master's optimum is that of the whole LP. What remains because of rounding is
certified: raising the price of each row's time by its best reduced cost makes the prices feasible for the
whole LP, so the optimum is at most value + sum_i best[i] (the time of a row counted as 1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dovetail.solve import highs
from dovetail.solve.errors import SolveFailed
from dovetail.solve.portable import dot, times
from dovetail.solve.time_shares import IntVector, Matrix, Shares, Vector, vector

if TYPE_CHECKING:
    import highspy

TOLERANCE = 1e-9  # a surplus (in units of the objective) that is not worth a column
LOOSE = 0.3  # of the largest surplus of a new column: the master is not yet solved more exactly than this
FINE = 1e-4  # below this the master is solved to the end
ROUNDS = 1_000


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """Pair columns: rows `first` and `second` together in way `way`, each at its own speed."""

    first: IntVector
    second: IntVector
    way: IntVector
    speed_first: Vector
    speed_second: Vector

    def __post_init__(self) -> None:
        for name in ("first", "second", "way"):
            given = np.asarray(getattr(self, name))
            if given.ndim != 1 or (given.size and not np.issubdtype(given.dtype, np.integer)):
                raise ValueError(f"{name} must be a vector of whole numbers")
            object.__setattr__(self, name, given.astype(np.intp))
        for name in ("speed_first", "speed_second"):
            object.__setattr__(self, name, vector(name, getattr(self, name), len(self.first)))
        if not len(self.first) == len(self.second) == len(self.way):
            raise ValueError("first, second and way must be of one length")

    def __len__(self) -> int:
        return len(self.first)


NONE = Pairs(*(np.empty(0, dtype=np.intp),) * 3, *(np.empty(0),) * 2)


class Shared(NamedTuple):
    """Shares of the time, alone and in pairs."""

    x: Matrix  # n x m: of each member of a row, alone
    y: Vector  # of each pair column: sets of devices that run it, on average
    value: float
    gap: float = 0.0  # certified, relative: the optimum is at most value * (1 + gap)

    def reach(self, shares: Shares, pairs: Pairs) -> Vector:
        """What each member of a row gets done in unit time."""
        n = len(shares.speed)
        extra = np.bincount(pairs.first, weights=pairs.speed_first * self.y, minlength=n)
        extra += np.bincount(pairs.second, weights=pairs.speed_second * self.y, minlength=n)
        return np.asarray(shares.reach(self.x) + extra / np.maximum(shares.count, 1e-300))


def level(shares: Shares, pairs: Pairs, scale: ArrayLike) -> Shared:
    """The highest t such that reach >= t * scale for every row: max-min fairness.

    Rows with scale 0 and rows without members do not count.
    """
    scales = vector("scale", scale, len(shares.speed), least=0.0)
    rated = (scales > 0.0) & (shares.count > 0.0)
    if not rated.any():
        raise ValueError("no row has members and a scale of more than 0: the level would be infinite")
    per = np.zeros(len(scales))
    per[rated] = 1.0 / scales[rated]
    even = (_even_reach(shares) * per)[rated]
    unit = float(np.median(even[even > 0.0])) if (even > 0.0).any() else 1.0
    return _solved(shares, pairs, per, unit, rated)


def total(shares: Shares, pairs: Pairs, gain: ArrayLike = 1.0) -> Shared:
    """The largest sum of count * gain * reach."""
    per = shares.count * vector("gain", gain, len(shares.speed), least=0.0)
    unit = dot(_even_reach(shares), per)
    return _solved(shares, pairs, per, unit or 1.0, None)


def _even_reach(shares: Shares) -> Vector:
    """About what rows reach if all have the same share of everything: for the order of magnitude."""
    share = np.minimum(1.0, shares.capacity / max(shares.weight.sum(), 1e-300))[shares.pool]
    return np.asarray(times(np.where(shares.allowed, shares.speed, 0.0), share) / max(len(share), 1))


class _Columns(NamedTuple):
    """Columns of the LP, scaled to the order of 1: at 1, all members of its smaller row run so all the time.

    Columns of one row only (single ways, and pairs within one class) use the fields of `first`.
    """

    first: IntVector
    second: IntVector
    pool: IntVector
    full: Vector  # sets of devices when the column is at 1
    time_first: Vector  # of the time of all members of that row
    time_second: Vector
    part: Vector  # of the pool
    worth_first: Vector  # what a member of that row reaches, in units of the objective
    worth_second: Vector

    def some(self, which: IntVector) -> _Columns:
        return _Columns(
            self.first[which],
            self.second[which],
            self.pool[which],
            self.full[which],
            self.time_first[which],
            self.time_second[which],
            self.part[which],
            self.worth_first[which],
            self.worth_second[which],
        )

    def surplus(self, prices: _Prices) -> Vector:
        """The reduced cost of each column: its worth at these prices, less what it costs."""
        time, worth = prices.time, prices.worth
        return np.asarray(
            worth[self.first] * self.worth_first
            + worth[self.second] * self.worth_second
            - time[self.first] * self.time_first
            - time[self.second] * self.time_second
            - prices.pool[self.pool] * self.part
        )


class _Prices(NamedTuple):
    time: Vector  # of all the time of a row
    pool: Vector  # of the whole pool
    worth: Vector  # of a unit of reach of a row


def _columns(
    shares: Shares,
    per: Vector,
    first: IntVector,
    second: IntVector,
    way: IntVector,
    speed_first: Vector,
    speed_second: Vector | None,
) -> _Columns:
    count, pool = shares.count, shares.pool[way]
    full = np.minimum(count[first], count[second])
    time_first = full / count[first]
    if speed_second is None:
        time_second, worth_second = np.zeros(len(first)), np.zeros(len(first))
        worth_first = time_first * speed_first * per[first]
    else:
        twins = first == second
        full = np.where(twins, full / 2, full)
        time_second = np.where(twins, 0.0, full / count[second])
        worth_first = (
            full / count[first] * np.where(twins, speed_first + speed_second, speed_first) * per[first]
        )
        worth_second = time_second * speed_second * per[second]
    part = shares.size[first] * full / shares.capacity[pool]
    return _Columns(first, second, pool, full, time_first, time_second, part, worth_first, worth_second)


def usable(shares: Shares, pairs: Pairs) -> IntVector:
    """The pair columns that may be more than 0; a ValueError if they do not belong to these rows."""
    n, m = shares.speed.shape
    first, second, way = pairs.first, pairs.second, pairs.way
    if not len(pairs):
        return np.empty(0, dtype=np.intp)
    if min(first.min(), second.min()) < 0 or max(first.max(), second.max()) >= n:
        raise ValueError(f"pairs must name rows from 0 to {n - 1}")
    if way.min() < 0 or way.max() >= m:
        raise ValueError(f"pairs must name ways from 0 to {m - 1}")
    if (shares.size[first] != shares.size[second]).any():
        raise ValueError("rows that run together must have the same size")
    runs = (pairs.speed_first > 0.0) & (pairs.speed_second > 0.0)
    there = np.where(
        first == second, shares.count[first] >= 2.0, shares.count[first] * shares.count[second] > 0.0
    )
    room = shares.capacity[shares.pool[way]] > 0.0
    return np.asarray(np.flatnonzero(runs & there & room))


def _solved(
    shares: Shares, pairs: Pairs, per: Vector, unit: float, rated: NDArray[np.bool_] | None
) -> Shared:
    """Solve for the level of the rows that are rated, or for the sum if none are named."""
    n, m = shares.speed.shape
    may = usable(shares, pairs)
    row, way = np.nonzero(shares.allowed & (shares.count > 0.0)[:, None])
    per_unit = per / unit
    singles = _columns(shares, per_unit, row, row, way, shares.speed[row, way], None)
    doubles = _columns(
        shares,
        per_unit,
        pairs.first[may],
        pairs.second[may],
        pairs.way[may],
        pairs.speed_first[may],
        pairs.speed_second[may],
    )
    x, y = np.zeros((n, m)), np.zeros(len(pairs))
    found = _generated(n, len(shares.capacity), singles, doubles, rated)
    if found is None:
        return Shared(x, y, 0.0)
    at_single, at_double, bound = found
    x[row, way] = at_single
    y[may] = at_double * doubles.full
    x, y = cut(shares, pairs, x, y)
    reach = Shared(x, y, 0.0).reach(shares, pairs) * per
    value = float(reach.sum() if rated is None else reach[rated].min())
    lacks = max(0.0, bound * unit - value)
    return Shared(x, y, value, lacks / value if value > 0.0 else np.inf if lacks > 0.0 else 0.0)


def _generated(
    n: int, p: int, singles: _Columns, doubles: _Columns, rated: NDArray[np.bool_] | None
) -> tuple[Vector, Vector, float] | None:
    """The value of each column, and a bound; None if no row can run, or not every rated row can."""
    if not len(singles.first) and not len(doubles.first):
        return None
    if rated is not None:
        able = np.zeros(n, dtype=bool)
        able[singles.first] = able[doubles.first] = able[doubles.second] = True
        if not able[rated].all():
            return None
    master = _Master(n, p, rated)
    master.add(singles)
    inside = np.zeros(len(doubles.first), dtype=bool)
    joined: list[IntVector] = []
    slack = TOLERANCE
    for _ in range(ROUNDS):
        prices = master.prices(slack)
        surplus = doubles.surplus(prices)
        outside = np.where(inside, 0.0, surplus)
        joining = _joining(n, doubles, outside)
        if not len(joining):
            if slack == TOLERANCE:
                break
            slack = TOLERANCE
            continue
        slack = LOOSE * float(outside.max())
        slack = slack if slack > FINE else TOLERANCE
        inside[joining] = True
        joined.append(joining)
        master.add(doubles.some(joining))
    else:
        raise SolveFailed(_Master.ASKED, f"columns still join after {ROUNDS} rounds")
    raised = np.zeros(n)
    for columns, over in ((singles, singles.surplus(prices)), (doubles, surplus)):
        np.maximum.at(raised, columns.first, np.maximum(0.0, over) / columns.time_first)
    bound = float(prices.time.sum() + prices.pool.sum() + raised.sum())
    amounts = master.amounts()
    at_double = np.zeros(len(inside))
    if joined:
        at_double[np.concatenate(joined)] = amounts[len(singles.first) :]
    return amounts[: len(singles.first)], at_double, bound


def _joining(n: int, columns: _Columns, surplus: Vector) -> IntVector:
    """For each row the column with the largest surplus that it is in."""
    paying = np.flatnonzero(surplus > TOLERANCE)
    first, second, gain = columns.first[paying], columns.second[paying], surplus[paying]
    most = np.zeros(n)
    np.maximum.at(most, first, gain)
    np.maximum.at(most, second, gain)
    best = np.full(n, -1)  # of several assignments to a row the last one counts
    for row in (first, second):
        leading = np.flatnonzero(gain >= most[row])
        best[row[leading]] = paying[leading]
    return np.unique(best[best >= 0])


def cut(shares: Shares, pairs: Pairs, x: Matrix, y: Vector) -> tuple[Matrix, Vector]:
    """The same shares with a solver's rounding taken off, so that no limit is exceeded."""
    n = len(x)
    x, y = np.where(x < 1e-12, 0.0, x), np.where(y < 1e-12, 0.0, y)
    both = np.bincount(pairs.first, weights=y, minlength=n) + np.bincount(
        pairs.second, weights=y, minlength=n
    )
    over = np.maximum(1.0, x.sum(axis=1) + both / np.maximum(shares.count, 1e-300))
    x /= over[:, None]
    y /= np.maximum(over[pairs.first], over[pairs.second])
    used = shares.used(x)
    pool = shares.pool[pairs.way]
    used += np.bincount(pool, weights=shares.size[pairs.first] * y, minlength=len(used))
    over = np.maximum(1.0, used / np.where(shares.capacity > 0.0, shares.capacity, 1.0))
    return x / over[shares.pool], y / over[pool]


class _Master:
    """The LP over the columns added so far: its rows are the time of each row, the pools, and the reach."""

    ASKED = "shares with pairs"

    def __init__(self, n: int, p: int, rated: NDArray[np.bool_] | None) -> None:
        import highspy  # noqa: PLC0415

        self._n, self._p, self._rated = n, p, rated
        rows = n + p + (0 if rated is None else n)
        lower, upper = np.full(rows, -np.inf), np.ones(rows)
        lower[n + p :], upper[n + p :] = 0.0, np.inf
        self._solver = highs.fresh(
            self.ASKED,
            presolve="off",
            solver="simplex",
            simplex_strategy=4,
            primal_feasibility_tolerance=TOLERANCE,
        )
        none = np.zeros(0, dtype=np.int32)
        self._check(self._solver.changeObjectiveSense(highspy.ObjSense.kMaximize))
        self._check(self._solver.addRows(rows, lower, upper, 0, np.zeros(rows, np.int32), none, np.zeros(0)))
        if rated is not None:  # the level: reach - level >= 0 for those that are rated
            index = (n + p + np.flatnonzero(rated)).astype(np.int32)
            self._check(self._solver.addCol(1.0, 0.0, np.inf, len(index), index, -np.ones(len(index))))

    def _check(self, status: highspy.HighsStatus) -> None:
        highs.taken(status, self.ASKED)

    def add(self, columns: _Columns) -> None:
        many = len(columns.first)
        if not many:
            return
        n, p = self._n, self._p
        index = [columns.first, columns.second, n + columns.pool]
        entries = [columns.time_first, columns.time_second, columns.part]
        if self._rated is None:
            cost = columns.worth_first + columns.worth_second
        else:
            cost = np.zeros(many)
            index += [n + p + columns.first, n + p + columns.second]
            entries += [columns.worth_first, columns.worth_second]
        values, indices = np.column_stack(entries), np.column_stack(index)
        there = values != 0.0
        start = np.concatenate([[0], np.cumsum(there.sum(axis=1))[:-1]]).astype(np.int32)
        self._check(
            self._solver.addCols(
                many,
                cost,
                np.zeros(many),
                np.full(many, np.inf),
                int(there.sum()),
                start,
                indices[there].astype(np.int32),
                values[there],
            )
        )

    def prices(self, slack: float) -> _Prices:
        """Solve, without the steps that would gain less than `slack`; the prices of the limits."""
        self._check(self._solver.setOptionValue("dual_feasibility_tolerance", slack))
        highs.run(self._solver, self.ASKED)
        n, p = self._n, self._p
        dual = np.asarray(self._solver.getSolution().row_dual)
        time, pool = np.maximum(0.0, dual[:n]), np.maximum(0.0, dual[n : n + p])
        if self._rated is None:
            return _Prices(time, pool, np.ones(n))
        worth = np.maximum(0.0, -dual[n + p :])
        # Scaled to sum to 1, so that the level's own column has reduced cost 0.
        return _Prices(*(price / worth.sum() for price in (time, pool, worth)))

    def amounts(self) -> Vector:
        """The value of each column, in the order in which they were added."""
        found = np.asarray(self._solver.getSolution().col_value)
        return found if self._rated is None else found[1:]
