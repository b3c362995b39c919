"""The max-min level if all rows differ, by prices on the pools, with a certified bound.

Put a price l[r] on the devices of each pool. To reach level t a row buys the cheapest mixture of ways; as its
time is limited to 1, that is a point on the lower convex hull of (speed / scale, cost) over its ways and
idling, so it mixes at most two neighbours of the hull. With prices scaled to `l . capacity = 1`, all devices
together cost 1, hence

    tau(l) = the largest t at which all rows together pay at most 1        is an upper bound on the level,

whatever the prices (Lagrangian duality), and the best prices make it tight. Rows are coupled by the prices
only, so tau is a few numpy passes over n x m; and there are only as many prices as pools.

1. Prices. Without the scaling the bound is L(l) = max over t of t + l . (capacity - d(t, l)), d being what
   rows buy; tau(l) is the least of L along the ray of l. L is convex, and any demand d bought at a level t
   bounds it from below everywhere: L(l') >= t + l' . (capacity - d). A handful of such cuts is a model of L
   (Kelley's cutting planes; in the dual, Dantzig-Wolfe). The next prices are the lowest point of the model,
   moved half way back to the best prices so far (Wentges 1997), which keeps them from oscillating.
2. Shares. At good prices nearly every row has only one sensible mixture, which moves linearly with t. A
   linear program over the few undecided rows, with the other rows in its right-hand side, gives feasible
   shares, and often the best prices. If the gap to the bound is too large, the prices are improved and more
   rows are left undecided. With all rows undecided the program is the whole problem, so this ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dovetail.solve import time_share_lp
from dovetail.solve.errors import Infeasible, SolveFailed
from dovetail.solve.portable import dot
from dovetail.solve.time_share_lp import Program, Solver, Warm, gap
from dovetail.solve.time_shares import IntVector, Matrix, Shares, Solution, Vector, vector, within

if TYPE_CHECKING:
    from highspy import Highs

FINEST = 1e-8  # gap
ROUNDS = 500  # price vectors tried at most


def level(shares: Shares, scale: ArrayLike, *, tol: float = 1e-4, undecided: int = 32) -> Solution:
    """The largest t with reach >= t * scale, to a certified relative gap of at most `tol` (not below 1e-8).

    `undecided` is how many rows for each pool the linear program is given at first; a problem with no more
    rows than that is solved whole.
    """
    scales = vector("scale", scale, len(shares.speed), least=0.0)
    on = np.flatnonzero((scales > 0.0) & (shares.count > 0.0))
    if len(on) <= undecided * len(shares.capacity) or not shares.allowed[on].any(axis=1).all():
        _check(tol)
        return Warm().level(shares, scales)
    return _solved(Market(shares, scales, on), tol, undecided)[0]


def finish(
    shares: Shares,
    age: ArrayLike,
    work: ArrayLike,
    isolated: ArrayLike,
    *,
    tol: float = 1e-4,
    undecided: int = 32,
) -> Solution:
    """Finish-time fairness as in `time_share_lp.finish`, to a certified relative gap of at most `tol`.

    Jobs differ in age and work, so here all rows differ as a rule.
    """
    on = np.flatnonzero((vector("work", work, len(shares.speed)) > 0.0) & (shares.count > 0.0))
    if len(on) <= undecided * len(shares.capacity):
        _check(tol)
        return time_share_lp.finish(shares, age, work, isolated)
    start: Vector | None = None

    def ask(scale: Vector) -> time_share_lp.Offer:
        nonlocal start
        found, best = _solved(Market(shares, scale, on), tol / 2, undecided, start)
        start = best.prices
        price = np.zeros(len(scale))
        price[on] = best.slope / scale[on]
        return time_share_lp.Offer(found.x, price, best.most)

    return time_share_lp.least_finish(shares, age, work, isolated, ask, tol)


def _check(tol: float) -> None:
    if not tol >= FINEST:
        raise ValueError(f"tol must be at least {FINEST:g}, but {tol:g} was given")


def _solved(
    market: Market, tol: float, undecided: int, start: Vector | None = None
) -> tuple[Solution, Bought]:
    """The level, and what is bought at the prices that prove it."""
    _check(tol)
    shares, rows = market.shares, len(market.on)
    search, solver = Search(market, start), Solver()
    x, value = np.zeros_like(shares.speed), 0.0
    aim, free = max(1e-3, tol), min(undecided * len(shares.capacity), rows)
    while True:
        search.lower_to(aim)
        found = market.shares_at(search.best, free, solver)
        if found is not None:
            shared, prices = found
            if market.level_of(shared) > value:
                x, value = shared, market.level_of(shared)
            if prices.any():
                search.ask(prices)
        if gap(value, search.bound) <= tol:
            return Solution(x, value, gap(value, search.bound)), search.best
        if free >= rows:
            raise SolveFailed("level by prices", f"a gap of {gap(value, search.bound):.2g} is left")
        aim, free = max(aim / 10, 1e-7), min(2 * free, rows)


class Bought(NamedTuple):
    """What rows buy at given prices to reach the level that they allow: each mixes two ways, low and high."""

    level: float
    prices: Vector  # p: of a device; all devices together cost 1
    steep: float  # what one more unit of level would cost
    demand: Vector  # p: devices
    low: IntVector  # n: the slower way; m stands for idling
    high: IntVector  # n
    slope: Vector  # n: the row's part of `steep`
    most: (
        float  # no shares bring sum of slope * reach / scale above this: all there is, and the rents of time
    )


class Market:
    """The rows that take part in the level, and what they buy at given prices."""

    def __init__(self, shares: Shares, scale: Vector, on: IntVector) -> None:
        self.shares, self.scale, self.on = shares, scale, on
        allowed = shares.allowed[on]
        n, m = allowed.shape
        self.speed = np.zeros((n, m + 1))  # in levels; the last column is idling
        self.speed[:, :m] = np.where(allowed, shares.speed[on] / scale[on][:, None], 0.0)
        self.weight = shares.weight[on]
        self.most = float(self.speed.max(axis=1).min())  # the level at which some row runs all the time
        self.rows = np.arange(n)

    def buy(self, direction: Vector) -> Bought:
        """The level that prices in this direction allow, and what each row buys to reach it."""
        prices = direction / dot(direction, self.shares.capacity)
        cost = self._cost(prices)
        corner = self._hull(cost)
        speeds, costs = self.speed[self.rows, corner], cost[self.rows, corner]  # corners x n
        level = self.most
        while True:  # Newton on a convex rising piecewise linear function: from above, hence finite
            edge = (speeds[1:] < level).sum(axis=0)
            v0, v1 = speeds[edge, self.rows], speeds[edge + 1, self.rows]
            c0 = costs[edge, self.rows]
            slope = (costs[edge + 1, self.rows] - c0) / (v1 - v0)
            steep = float(slope.sum())
            over = float((c0 + slope * (level - v0)).sum()) - 1.0
            if over <= 1e-13:
                break
            level -= over / steep
        low, high = corner[edge, self.rows], corner[edge + 1, self.rows]
        share = (level - v0) / (v1 - v0)
        demand = self._devices(low, 1.0 - share) + self._devices(high, share)
        most = 1.0 + float((slope * v0 - c0).sum())
        return Bought(level, prices, steep, demand, low, high, slope, most)

    def shares_at(self, bought: Bought, free: int, solver: Solver) -> tuple[Matrix, Vector] | None:
        """Feasible shares near what was bought, and the prices they imply; `free` rows may use any way.

        The other rows keep to their two ways. None if that is not feasible.
        """
        shares, t = self.shares, bought.level
        order = np.argsort(self._margin(bought), kind="stable")
        loose, fixed = np.sort(order[:free]), np.sort(order[free:])
        v0, v1 = self.speed[fixed, bought.low[fixed]], self.speed[fixed, bought.high[fixed]]
        per = 1.0 / (v1 - v0)
        at_zero = self._devices(bought.low, v1 * per, fixed) - self._devices(bought.high, v0 * per, fixed)
        drift = self._devices(bought.high, per, fixed) - self._devices(bought.low, per, fixed)
        rows = self.on[loose]
        few = Shares(shares.speed[rows], shares.size[rows], shares.capacity, shares.count[rows], shares.pool)
        levels = (float(v0.max(initial=0.0)), float(v1.min(initial=self.most)))
        program = Program.of(few, self.scale[rows], 0.0, taken=at_zero, drift=drift, levels=levels, unit=t)
        try:
            found = solver.best(program, None, "rows that are undecided")
        except Infeasible:
            return None
        x = np.zeros((len(shares.speed), len(shares.pool) + 1))
        x[rows, :-1] = found.x
        x[self.on[fixed], bought.low[fixed]] = (v1 - found.value) * per
        x[self.on[fixed], bought.high[fixed]] = (found.value - v0) * per
        return within(shares, x[:, :-1]), found.pool_price

    def level_of(self, x: Matrix) -> float:
        """The least level of all rows."""
        return float((self.shares.reach(x)[self.on] / self.scale[self.on]).min())

    def _cost(self, prices: Vector) -> Matrix:
        cost = np.zeros_like(self.speed)
        np.multiply.outer(self.weight, prices[self.shares.pool], out=cost[:, :-1])
        return cost

    def _hull(self, cost: Matrix) -> NDArray[np.intp]:
        """The corners of each row's lower hull from idling to `most`, corners x n; the last one repeats."""
        idle = self.speed.shape[1] - 1
        corners = [np.full(len(self.rows), idle)]
        while True:
            at = corners[-1]
            v = self.speed[self.rows, at]
            if len(corners) > 1 and (v >= self.most).all():
                return np.stack(corners)
            ahead = self.speed - v[:, None]
            rise = cost - cost[self.rows, at][:, None]
            with np.errstate(divide="ignore", invalid="ignore"):
                slope = np.where(ahead > 0.0, rise / ahead, np.inf)
            following = slope.argmin(axis=1)
            corners.append(np.where(v < self.most, following, at))

    def _devices(self, way: IntVector, share: Vector, rows: IntVector | None = None) -> Vector:
        """Devices that rows use when each spends that share of its time in its way; idling uses none."""
        way, weight = (way, self.weight) if rows is None else (way[rows], self.weight[rows])
        each = np.bincount(way, weights=weight * share, minlength=self.speed.shape[1])[:-1]
        used = np.bincount(self.shares.pool, weights=each, minlength=len(self.shares.capacity))
        return used.astype(np.float64)

    def _margin(self, bought: Bought) -> Vector:
        """By how much, relatively, prices or the level must be wrong before a row would use another way."""
        cost = self._cost(bought.prices)
        v0, v1 = self.speed[self.rows, bought.low], self.speed[self.rows, bought.high]
        line = cost[self.rows, bought.low] - bought.slope * v0
        worth = bought.slope[:, None] * self.speed
        size = cost + worth + (bought.slope * v1)[:, None]
        with np.errstate(divide="ignore", invalid="ignore"):
            dearer = np.where(size > 0.0, (cost - worth - line[:, None]) / size, 0.0)
        dearer[:, :-1][self.speed[:, :-1] <= 0.0] = np.inf  # the row cannot run that way
        dearer[self.rows, bought.low] = np.inf
        dearer[self.rows, bought.high] = np.inf
        room = np.minimum(v1 - bought.level, np.where(v0 > 0.0, bought.level - v0, np.inf))
        margin: Vector = np.minimum(dearer.min(axis=1), room / bought.level)
        return margin


class Search:
    """Better and better prices, by cutting planes."""

    def __init__(self, market: Market, start: Vector | None = None) -> None:
        import highspy  # noqa: PLC0415  slow to load: not before something is solved

        self._api: Any = highspy
        self._market = market
        self._capacity = np.where(market.shares.capacity > 0.0, market.shares.capacity, 1.0)
        self._open = market.shares.capacity > 0.0
        self._picture: Highs = self._api.Highs()
        p = len(self._capacity)
        for name, value in (
            ("output_flag", False),
            ("parallel", "off"),
            ("presolve", "off"),
            ("primal_feasibility_tolerance", 1e-10),
            ("dual_feasibility_tolerance", 1e-10),
        ):
            self._ok(self._picture.setOptionValue(name, value))
        equal = np.where(self._open, 1.0 / self._capacity, 0.0)  # all of each pool costs the same
        self.best = market.buy(equal if start is None else start)
        self._unit = self.best.level
        self.asked = 1
        infinite = self._api.kHighsInf
        for r in range(p):
            self._ok(self._picture.addVar(0.0, infinite if self._open[r] else 0.0))
        self._ok(self._picture.addVar(0.0, infinite))
        self._ok(self._picture.changeColCost(p, 1.0))
        self._cut(0.0, np.zeros(p))
        self._cut(self.best.level, self.best.demand)

    @property
    def bound(self) -> float:
        """An upper bound on the level."""
        return self.best.level

    def ask(self, direction: Vector) -> Bought:
        """Evaluate these prices, and add the cut to the model."""
        bought = self._market.buy(direction)
        self._cut(bought.level, bought.demand)
        if bought.level < self.best.level:
            self.best = bought
        self.asked += 1
        return bought

    def lower_to(self, aim: float) -> None:
        """Try prices until the model proves the bound to be within a relative `aim` of the least possible."""
        while self.asked < ROUNDS:
            lowest, least = self._lowest()
            if least >= self.bound * (1.0 - aim):
                return
            centre = self.best.prices / max(self.best.steep, 1e-300)
            self.ask((lowest + centre) / 2)

    def _cut(self, level: float, demand: Vector) -> None:
        p = len(demand)
        row = np.append(demand / self._capacity - 1.0, 1.0)
        row[:p][np.abs(row[:p]) < 1e-9] = 0.0
        entries = np.flatnonzero(row).astype(np.int32)
        infinite = self._api.kHighsInf
        self._ok(self._picture.addRow(level / self._unit, infinite, len(entries), entries, row[entries]))

    def _lowest(self) -> tuple[Vector, float]:
        """The prices at the lowest point of the model, and its value there."""
        self._picture.run()
        state = self._picture.getModelStatus()
        if state != self._api.HighsModelStatus.kOptimal:
            raise SolveFailed("prices", f"the solver says {self._picture.modelStatusToString(state)}")
        point = np.array(self._picture.getSolution().col_value)
        return np.maximum(point[:-1], 0.0) * self._unit / self._capacity, float(point[-1]) * self._unit

    def _ok(self, status: Any) -> None:
        if status != self._api.HighsStatus.kOk:
            raise SolveFailed("prices", f"the solver answers {status}")
