"""Time shares as linear programs, solved by HiGHS.

All objectives share one layout. Columns are the pairs (row, way) in which a row can run, and one more, `u`,
the common level. Rows are

    time     sum over k of x[i, k]                        <= 1
    pools    sum of count * size / capacity * x           <= 1
    reach    speed / d * x - unit * scale / d * u         >= floor / d

Everything is scaled to the order of 1 first: pools by their capacity, reach by `d`, the level by `unit` (what
an even split would give), and x by `part` (the part of its time that a row needs for that). The solver's
tolerances are absolute: a level of 1e-4 solved to 1e-7 would have only three correct digits.

Certificate. For any prices `l >= 0` of pools and `w >= 0` of reach, no feasible x is worth more than

    sum l + sum over i of max(0, max over k of (gain + w * speed / d - l * count * size / capacity)[i, k])
          - sum of w * floor / d

(weak duality; for the level, with w scaled so that its column prices out at 1). This is computed from the
solver's duals in plain numpy, and `Solution.gap` is that bound against the value of the x that is returned,
after it was cut to the limits. So a solution is certified independently of the solver.

Nothing is kept between calls, except in a `Warm`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from dovetail.solve.errors import Infeasible, SolveFailed
from dovetail.solve.portable import dot
from dovetail.solve.time_shares import IntVector, Mask, Matrix, Shares, Solution, Vector, vector, within

if TYPE_CHECKING:
    from highspy import Highs, HighsBasis

TOLERANCE = 1e-10  # of feasibility, primal and dual: the least that HiGHS takes
NOTHING = 1e-12  # entries of the matrix that are left out
KEPT = 1.0 - 1e-9  # the part of the level that must be kept while a second objective is optimised
CERTIFIED = 1e-7  # an answer with a larger gap is tried again by the next method

Method = tuple[tuple[str, Any], ...]  # options of HiGHS
CENTRE: Method = (("solver", "ipm"), ("run_crossover", "off"))  # interior point, no crossover to a vertex
PRIMAL: Method = (("solver", "simplex"), ("simplex_strategy", 4))  # x = 0 is feasible; a third faster
DUAL: Method = (("solver", "simplex"), ("simplex_strategy", 1))


class Optimum(NamedTuple):
    """The best shares and their dual prices."""

    x: Matrix
    value: float
    bound: float  # no x is worth more
    reach_price: Vector  # n: what one more unit of reach, asked of every row, takes off the value
    pool_price: Vector  # p: what one more device would add

    @property
    def gap(self) -> float:
        """How far the bound is from the value, relative to it."""
        return gap(self.value, self.bound)

    @property
    def solution(self) -> Solution:
        return Solution(self.x, self.value, self.gap)


def gap(value: float, bound: float) -> float:
    """Relative distance of an upper bound; infinite if the value is 0 and the bound is not."""
    if bound <= value:
        return 0.0
    return (bound - value) / value if value > 0.0 else np.inf


# --- the objectives --------------------------------------------------------------------------------


def level(
    shares: Shares, scale: ArrayLike, floor: ArrayLike = 0.0, *, centre: bool = False, spare: bool = False
) -> Solution:
    """The largest t such that reach >= t * scale + floor for every row.

    Max-min fairness: scale = normalising throughput x weight. Makespan: scale = work left; the makespan is
    1/t. Deadlines: floor = work left / time left. Rows with scale 0 are held to their floor alone, rows
    without members to nothing.

    An optimum is a vertex: rows that do not limit the level get the bare minimum or far more, arbitrarily.
    `centre` asks for a point inside the optimal face instead. `spare` then maximises the sum of reach / scale
    while every row keeps the level, so that no useful device is idle.
    """
    return Warm().level(shares, scale, floor, centre=centre, spare=spare)


def total(shares: Shares, gain: ArrayLike, floor: ArrayLike = 0.0, *, centre: bool = False) -> Solution:
    """The largest sum of count * gain * reach, with reach >= floor.

    Max-sum throughput: gain 1. FIFO and SJF: gain falling by rank. Service levels: floors.
    """
    gains = vector("gain", gain, len(shares.speed))
    program = Program.of(shares, 0.0, floor)
    worth = (shares.count * gains)[program.row] * shares.speed[program.row, program.way]
    return Solver().best(program, worth, "total reach", centre=centre).solution


def ratio(shares: Shares, gain: ArrayLike, price: ArrayLike, floor: ArrayLike = 0.0) -> Solution:
    """The largest (sum of count * gain * reach) / (sum of price[k] * count * size * x), with reach >= floor.

    Work per cost. If nothing runs the value is 0. Among the shares with the best ratio, those with the most
    work are returned. Without floors the best single way gives the ratio, and the gap is certified. With
    floors: Dinkelbach, "On nonlinear fractional programming", 1967: maximise gain - r * price, and take the
    ratio of the solution as the next r; r rises to the optimum, faster than linearly. The gap is then an
    estimate: what the last step gains, over the cost.
    """
    n, m = shares.speed.shape
    gains = vector("gain", gain, n, least=0.0)
    prices = vector("price", price, m)
    if not (prices > 0.0).all():
        raise ValueError("price must be more than 0 for every way to run")
    program = Program.of(shares, 0.0, floor)
    row, way = program.row, program.way
    worth = (shares.count * gains)[row] * shares.speed[row, way]
    money = shares.weight[row] * prices[way]
    with np.errstate(divide="ignore", invalid="ignore"):
        per_cost = np.where(money > 0.0, worth / money, 0.0)
    if not program.reach_low.any():  # no floors: only the best single way is used
        best = float(per_cost.max(initial=0.0))
        only = per_cost >= best * (1.0 - 1e-12)
        found = Solver().best(program, np.where(only, worth, -money), "work per cost")
        value = _work_per_cost(found.x, worth, money, row, way)
        return Solution(found.x, value, gap(value, best))
    solver, rate = Solver(), 0.0
    for _ in range(64):
        found = solver.best(program, worth - rate * money, "work per cost")
        value = _work_per_cost(found.x, worth, money, row, way)
        if value <= rate * (1.0 + 1e-10):
            break
        rate = value
    else:
        raise SolveFailed("work per cost", "the ratio still rises after 64 steps")
    spent = dot(money, found.x[row, way])
    left = gap(rate, rate + max(found.bound, 0.0) / spent) if spent > 0.0 else 0.0
    solver.require(worth - rate * money, -1e-9 * rate * spent)
    fuller = solver.best(program, worth, "most work at the best ratio")
    value = _work_per_cost(fuller.x, worth, money, row, way)
    return Solution(fuller.x, value, max(left, gap(value, rate)))


def _work_per_cost(x: Matrix, worth: Vector, money: Vector, row: IntVector, way: IntVector) -> float:
    entries = x[row, way]
    spent = dot(money, entries)
    return dot(worth, entries) / spent if spent > 0.0 else 0.0


def finish(shares: Shares, age: ArrayLike, work: ArrayLike, isolated: ArrayLike) -> Solution:
    """Finish-time fairness: the least possible rho = max over rows of (age + work / reach) / isolated.

    `isolated` is the time a row would take from its start to its end on its isolated share (1/n of the
    cluster); rho above 1 means that some row would have finished earlier on that share. Mahajan et al.,
    "Themis", NSDI 2020; as an objective over time shares in Gavel, section 4. Rows without members or work do
    not count.
    `Solution.gap` is relative, and here the optimum is at least value * (1 - gap).
    """
    warm = Warm()

    def ask(scale: Vector) -> Offer:
        found = warm.answer(shares, scale, np.zeros(len(scale)))
        return Offer(found.x, found.reach_price, found.bound * dot(found.reach_price, scale))

    return least_finish(shares, age, work, isolated, ask, 1e-9)


class Offer(NamedTuple):
    """Shares at a level, and prices of reach for which no shares bring sum of price * reach above `most`."""

    x: Matrix
    price: Vector
    most: float


def least_finish(
    shares: Shares,
    age: ArrayLike,
    work: ArrayLike,
    isolated: ArrayLike,
    ask: Callable[[Vector], Offer],
    tol: float,
) -> Solution:
    """`finish` by any solver of levels.

    A rho is feasible if level 1 is, at scale = work / (rho * isolated - age). That alone would be a
    bisection. But each level moves both ends of the interval: the rho of its shares is an upper bound, and
    its prices give a lower bound. The next rho to try is the lower end, or the middle if the interval was not
    halved. That takes some five levels instead of thirty.
    """
    n = len(shares.speed)
    ages, works = vector("age", age, n, least=0.0), vector("work", work, n, least=0.0)
    alone = vector("isolated", isolated, n)
    if not (alone > 0.0).all():
        raise ValueError("isolated must be more than 0")
    live = (shares.count > 0.0) & (works > 0.0)
    if not live.any():
        raise ValueError("no row has work left")
    fastest = np.where(shares.allowed, shares.speed, 0.0).max(axis=1, initial=0.0)[live]
    if not (fastest > 0.0).all():
        raise Infeasible("finish-time fairness", "a row with work left can run nowhere")
    a, r, iso = ages[live], works[live], alone[live]

    def rho(x: Matrix) -> float:
        reach = shares.reach(x)[live]
        return float(((a + r / reach) / iso).max()) if (reach > 0.0).all() else np.inf

    x = _even(shares)
    low, high = float(((a + r / fastest) / iso).max()), rho(x)
    at, scale = high, np.zeros(n)
    for _ in range(60):
        if high - low <= tol * high:
            return Solution(x, high, max(high - low, 0.0) / high)
        width = high - low
        scale[live] = r / (at * iso - a)
        offer = ask(scale)
        if rho(offer.x) < high:
            x, high = offer.x, rho(offer.x)
        low = max(low, _least_rho(offer.price[live], r, iso, a, offer.most, low, high))
        at = low if high - low <= width / 2 else (low + high) / 2
    raise SolveFailed("finish-time fairness", f"rho lies between {low:.12g} and {high:.12g}, and no closer")


def _least_rho(
    price: Vector, work: Vector, alone: Vector, age: Vector, most: float, low: float, high: float
) -> float:
    """The least rho of the interval for which sum of price * work / (rho * alone - age) is at most `most`."""

    def asked(rho: float) -> float:
        return dot(price, work / (rho * alone - age))

    if asked(low) <= most:
        return low
    for _ in range(100):  # `asked` falls as rho rises
        middle = (low + high) / 2
        if not low < middle < high:
            break
        if asked(middle) > most:
            low = middle
        else:
            high = middle
    return low


class Warm:
    """`level` with a warm start: each program starts from the basis of the last one.

    If counts, capacities or scales have changed a little, solving again takes a few steps. Which of several
    optima comes out may depend on the programs before. Use the function `level` where runs must be
    reproducible.
    """

    def __init__(self) -> None:
        self._solver = Solver()

    def level(
        self,
        shares: Shares,
        scale: ArrayLike,
        floor: ArrayLike = 0.0,
        *,
        centre: bool = False,
        spare: bool = False,
    ) -> Solution:
        """Like the function of that name."""
        n = len(shares.speed)
        scales, floors = vector("scale", scale, n, least=0.0), vector("floor", floor, n, least=0.0)
        return self.answer(shares, scales, floors, centre=centre, spare=spare).solution

    def answer(
        self, shares: Shares, scale: Vector, floor: Vector, *, centre: bool = False, spare: bool = False
    ) -> Optimum:
        """The level with its prices, from vectors that were checked."""
        program = Program.of(shares, scale, floor)
        if not program.levelled.any():
            raise ValueError("scale is 0 for every row that has members: there is no level to raise")
        asked = "level" if not floor.any() else "level above floors"
        if program.stuck.any() and not floor.any():  # a row can run nowhere: the level is 0
            n, p = len(shares.speed), len(shares.capacity)
            return Optimum(np.zeros_like(shares.speed), 0.0, 0.0, np.zeros(n), np.zeros(p))
        found = self._solver.best(program, None, asked, centre=centre and not spare)
        if not spare:
            return found
        self._solver.hold(program, found.value * KEPT)
        with np.errstate(divide="ignore"):
            worth = np.where(program.levelled, shares.count / np.where(scale > 0.0, scale, 1.0), 0.0)
        gains = worth[program.row] * shares.speed[program.row, program.way]
        fuller = self._solver.best(program, gains, "spare above the level", centre=centre)
        value = program.level_of(fuller.x)
        return Optimum(fuller.x, value, found.bound, found.reach_price, found.pool_price)


# --- one program, and the solver ---------------------------------------------------------------------


def _even(shares: Shares) -> Matrix:
    """A feasible x to scale by: every row has the same share of every way."""
    ways = np.bincount(shares.pool, minlength=len(shares.capacity))
    fair = shares.capacity / max(float(shares.weight.sum()), 1e-300) / np.maximum(ways, 1)
    return np.where(shares.allowed, np.minimum(fair[shares.pool], 1.0 / len(shares.pool)), 0.0)


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """The layout of the module's docstring for one problem, in the solver's units."""

    shares: Shares
    scale: Vector
    floor: Vector
    row: IntVector  # of each entry of x that may be more than 0, in row order
    way: IntVector
    crowd: Vector  # of each entry: count * size / capacity
    pull: Vector  # of each entry: speed / d
    lift: Vector  # n: unit * scale / d, the level's own column, negated
    reach_low: Vector  # n: floor / d
    d: Vector  # n
    part: Vector  # n: the x that the solver's 1 stands for
    unit: float  # the level that u = 1 stands for
    room: Vector  # p: 1, less what rows outside this program use at level 0
    drift: Vector  # p: what those rows use for each u
    u_range: tuple[float, float]

    @staticmethod
    def of(
        shares: Shares,
        scale: ArrayLike,
        floor: ArrayLike,
        *,
        taken: Vector | None = None,
        drift: Vector | None = None,
        levels: tuple[float, float] = (0.0, np.inf),
        unit: float | None = None,
    ) -> Program:
        """`taken` + `drift` * t are devices that rows outside this program use at level t."""
        n, p = len(shares.speed), len(shares.capacity)
        full = shares.count > 0.0
        scales = np.where(full, vector("scale", scale, n, least=0.0), 0.0)
        floors = np.where(full, vector("floor", floor, n, least=0.0), 0.0)
        allowed = shares.allowed
        row, way = np.nonzero(allowed)
        fastest = np.where(allowed, shares.speed, 0.0).max(axis=1, initial=0.0)
        levelled = scales > 0.0
        can = levelled & (fastest > 0.0)
        if unit is None:
            even = shares.reach(_even(shares))
            unit = float((even[can] / scales[can]).min()) if can.any() else 1.0
        d = np.maximum(unit * scales, floors)
        part = np.where(levelled & (fastest > d), d / np.where(fastest > 0.0, fastest, 1.0), 1.0)
        d = np.where(levelled, d, np.maximum(np.maximum(d, fastest), 1e-300))
        capacity = np.where(shares.capacity > 0.0, shares.capacity, 1.0)
        weight = np.where(full, shares.weight, shares.size)  # a row without members counts as one
        return Program(
            shares=shares,
            scale=scales,
            floor=floors,
            row=row,
            way=way,
            crowd=weight[row] / capacity[shares.pool[way]],
            pull=shares.speed[row, way] / d[row],
            lift=unit * scales / d,
            reach_low=floors / d,
            d=d,
            part=part,
            unit=unit,
            room=np.ones(p) if taken is None else 1.0 - taken / capacity,
            drift=np.zeros(p) if drift is None else unit * drift / capacity,
            u_range=(levels[0] / unit, levels[1] / unit),
        )

    @property
    def levelled(self) -> Mask:
        """Rows that rise with the level."""
        return self.scale > 0.0

    @property
    def stuck(self) -> Mask:
        """Rows that must reach something and can run nowhere."""
        can = np.zeros(len(self.scale), dtype=bool)
        can[self.row] = True
        return ((self.scale > 0.0) | (self.floor > 0.0)) & ~can

    def level_of(self, x: Matrix) -> float:
        """The t that shares x reach."""
        on = self.levelled
        over = (self.shares.reach(x)[on] - self.floor[on]) / self.scale[on]
        return float(max(over.min(), 0.0))

    def bound(self, worth: Vector | None, w: Vector, prices: Vector) -> float:
        """No feasible x is worth more (in the solver's units): the certificate of the module's docstring."""
        if worth is None:
            price_of_level = dot(w, self.lift) + dot(prices, self.drift)
            if price_of_level <= 0.0:
                return np.inf
            w, prices = w / price_of_level, prices / price_of_level
        rent = w[self.row] * self.pull - prices[self.shares.pool[self.way]] * self.crowd
        if worth is not None:
            rent = rent + worth
        rent = np.where(self.shares.count[self.row] > 0.0, rent, 0.0)
        starts = np.flatnonzero(np.diff(self.row, prepend=-1))
        time = np.maximum(np.maximum.reduceat(rent, starts), 0.0).sum() if len(starts) else 0.0
        found = dot(prices, self.room) + time - dot(w, self.reach_low)
        return min(found, self.u_range[1]) if worth is None else found


class Solver:
    """One HiGHS object; it starts from its last basis whenever the next program has the same entries."""

    def __init__(self) -> None:
        import highspy  # noqa: PLC0415  130 ms: not before something is solved

        self._api: Any = highspy
        self._highs: Highs = self._api.Highs()
        self._basis: HighsBasis | None = None
        self._shape: tuple[bytes, ...] = ()
        self._program: Program | None = None
        self._method: Method = ()
        for name, value in (
            ("output_flag", False),
            ("parallel", "off"),
            ("presolve", "off"),  # it costs more than it saves, and would discard the basis
            ("simplex_scale_strategy", 0),  # the program is scaled already
            ("primal_feasibility_tolerance", TOLERANCE),
            ("dual_feasibility_tolerance", TOLERANCE),
            ("ipm_optimality_tolerance", 1e-11),
            ("small_matrix_value", NOTHING),
        ):
            self._set(name, value)

    def best(self, program: Program, worth: Vector | None, asked: str, *, centre: bool = False) -> Optimum:
        """The x that makes sum of worth * x largest; without `worth`, the level."""
        size = max(float(np.abs(worth).max(initial=0.0)), 1e-300) if worth is not None else 1.0
        gains = np.zeros(len(program.row)) if worth is None else worth / size * program.part[program.row]
        cost = np.append(gains, float(worth is None))
        if program is self._program:
            columns = np.arange(len(cost), dtype=np.int32)
            self._ok(self._highs.changeColsCost(len(cost), columns, cost), "costs")
        else:
            self._load(program, cost, asked)
        for method in (CENTRE, PRIMAL, DUAL) if centre else (PRIMAL, DUAL):
            found = self._run(program, worth, size, method)
            if found is not None and (found.gap <= CERTIFIED or method is DUAL):
                return found
            state = self._highs.getModelStatus()
            self._ok(self._highs.clearSolver(), "fresh start")
        api = self._api
        if state in {api.HighsModelStatus.kInfeasible, api.HighsModelStatus.kUnboundedOrInfeasible}:
            raise Infeasible(asked, "the floors cannot all be met at once")
        raise SolveFailed(asked, f"the solver says {self._highs.modelStatusToString(state)}")

    def hold(self, program: Program, least: float) -> None:
        """Add to the program solved last: the level must not fall below this."""
        at = least / program.unit
        self._ok(self._highs.changeColBounds(len(program.row), at, at), "level held")

    def require(self, worth: Vector, least: float) -> None:
        """Add to the program solved last: the sum of worth * x must not fall below this."""
        assert self._program is not None
        worth = worth * self._program.part[self._program.row]
        size = max(float(np.abs(worth).max(initial=0.0)), 1e-300)
        entries = np.flatnonzero(np.abs(worth) > 1e-12 * size).astype(np.int32)
        infinite = self._api.kHighsInf
        self._ok(
            self._highs.addRow(least / size, infinite, len(entries), entries, worth[entries] / size), "row"
        )

    def _load(self, program: Program, cost: Vector, asked: str) -> None:
        n, p, entries = len(program.scale), len(program.room), len(program.row)
        if program.stuck.any() and program.floor[program.stuck].any():
            raise Infeasible(asked, "a row with a floor can run nowhere")
        infinite = self._api.kHighsInf
        part = program.part[program.row]
        index = np.empty((entries, 3), dtype=np.int32)
        value = np.empty((entries, 3))
        index[:, 0], value[:, 0] = program.row, 1.0
        index[:, 1], value[:, 1] = n + program.shares.pool[program.way], program.crowd * part
        index[:, 2], value[:, 2] = n + p + program.row, program.pull * part
        others = np.flatnonzero(np.abs(program.drift) > NOTHING)
        lifted = np.flatnonzero(program.lift > NOTHING)
        some = value > NOTHING
        starts = np.zeros(entries + 2, dtype=np.int32)
        np.cumsum(some.sum(axis=1), out=starts[1:-1])
        starts[-1] = starts[-2] + len(others) + len(lifted)
        upper = np.append(
            np.where(program.shares.count[program.row] > 0.0, infinite, 0.0), program.u_range[1]
        )
        lower = np.append(np.zeros(entries), program.u_range[0])
        bound = (program.scale > 0.0) | (program.floor > 0.0)
        status = self._highs.passModel(
            entries + 1,
            2 * n + p,
            int(starts[-1]),
            int(self._api.MatrixFormat.kColwise),
            int(self._api.ObjSense.kMaximize),
            0.0,
            cost,
            lower,
            np.minimum(upper, infinite),
            np.concatenate([np.full(n + p, -infinite), np.where(bound, program.reach_low, -infinite)]),
            np.concatenate([1.0 / program.part, program.room, np.full(n, infinite)]),
            starts,
            np.concatenate([index[some], n + others, n + p + lifted]).astype(np.int32),
            np.concatenate([value[some], program.drift[others], -program.lift[lifted]]),
            np.zeros(entries + 1, dtype=np.int32),
        )
        self._ok(status, "model")
        shape = (program.row.tobytes(), program.way.tobytes(), program.shares.pool.tobytes())
        if self._basis is not None and shape == self._shape:
            self._ok(self._highs.setBasis(self._basis), "basis")
        self._shape, self._basis, self._program = shape, None, program

    def _run(self, program: Program, worth: Vector | None, size: float, method: Method) -> Optimum | None:
        api, highs = self._api, self._highs
        if method is not self._method:
            for name, option in method:
                self._set(name, option)
            self._method = method
        if highs.run() == api.HighsStatus.kError or highs.getModelStatus() != api.HighsModelStatus.kOptimal:
            return None
        if method is not CENTRE and highs.getNumRow() == 2 * len(program.scale) + len(program.room):
            self._basis = highs.getBasis()
        found = highs.getSolution()
        x = np.zeros_like(program.shares.speed)
        x[program.row, program.way] = np.array(found.col_value)[:-1] * program.part[program.row]
        x = within(program.shares, x)
        n, p = len(program.scale), len(program.room)
        duals = np.array(found.row_dual)
        prices, w = np.maximum(duals[n : n + p], 0.0), np.maximum(-duals[n + p : 2 * n + p], 0.0)
        if worth is None:
            value, bound = program.level_of(x), program.bound(None, w, prices) * program.unit
            per = program.unit
        else:
            value = dot(worth, x[program.row, program.way])
            bound, per = program.bound(worth / size, w, prices) * size, size
        capacity = np.where(program.shares.capacity > 0.0, program.shares.capacity, 1.0)
        return Optimum(x, value, max(bound, value), per * w / program.d, per * prices / capacity)

    def _set(self, name: str, value: Any) -> None:
        self._ok(self._highs.setOptionValue(name, value), f"option {name}={value}")

    def _ok(self, status: Any, what: str) -> None:
        if status != self._api.HighsStatus.kOk:
            raise SolveFailed(what, f"the solver answers {status}")
