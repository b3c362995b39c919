"""One configuration for each row: a multiple-choice knapsack, solved by prices, with a certified gap.

    maximise  sum_i value[i, c_i]     subject to  sum_i use[c_i, r] <= capacity[r]  for each pool r

where each row i picks one configuration c_i or none. This is the program of Sia (Jayaram Subramanya et al.,
SOSP 2023): a configuration is a number of GPUs of one type. The problem is NP-hard. It is easy in practice
because thousands of rows share a handful of pools:

*Prices.* Put a price lambda[r] >= 0 on each pool. Every row then picks for itself what is worth most after
paying, and   D(lambda) = lambda . capacity + sum_i max_c (value[i, c] - lambda . use[c])   is an upper bound
on the optimum whatever the prices are. D is convex and piecewise linear in as many dimensions as there are
pools. We find its lowest point by cutting planes inside a moving box (Marsten, Hogan, Blankenship, "The
boxstep method", Operations Research 1975): each evaluation gives a tangent, and a tiny LP over the tangents
the next prices.

*Repair.* At the best prices the picks overfill a pool or leave some of it idle, by about one row per pool.
Write loss[i, c] for what row i loses, after paying, by taking c and not its favourite. Then for every
feasible choice

    D(lambda) - its value = sum_i loss[i, c_i] + lambda . (capacity left over)

and both terms are >= 0. So we look for the cheapest set of losses that makes the picks fit and leaves little
over. Only rows that lose little are considered (the *core*; Pisinger, EJOR 1995), one after the other. For
each distinct vector of capacity left we keep the cheapest way to reach it. A way that has already lost more
than the best choice found is dropped. If nothing else was ever dropped, and all rows that could lose less
than that were considered, the choice is *proven* optimal and its gap is 0. Otherwise the gap is
D(lambda) - value.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dovetail.solve import highs
from dovetail.solve.portable import dot, times

Matrix = npt.NDArray[np.float64]
Vector = npt.NDArray[np.float64]
IntVector = npt.NDArray[np.int64]

SAMPLE = 250  # rows, spread evenly, from which the first prices are found if there are many more
ROUNDS = 400  # evaluations of D at most; the bound is valid whenever we stop
CLOSE = 1e-7  # relative: prices are good enough when the tangents promise no more than this
TINY = 1e-8  # a slope that is none: HiGHS leaves out coefficients below 1e-9, with a warning
SLIP = 1e-9  # relative to capacity: how far float sums may overfill
BEAM = 200  # ways kept while repairing, if not said otherwise
CORE = 120  # rows considered while repairing


class Choice(NamedTuple):
    """A feasible choice and how far from the best it may be."""

    pick: IntVector  # the configuration of each row; -1 is none
    value: float
    bound: float  # no feasible choice is worth more
    gap: float  # (bound - value) / |value|: the optimum is at most value + gap * |value|


def best_choice(
    value: npt.ArrayLike,
    use: npt.ArrayLike,
    capacity: npt.ArrayLike,
    *,
    none: npt.ArrayLike = 0.0,
    exact: bool = False,
    beam: int = BEAM,
) -> Choice:
    """Pick a configuration, or none, for every row: within capacity, and close to the largest total value.

    value[i, c] may be negative; -inf forbids c to row i. `none` is the value of a row without configuration,
    one number or one for each row. It is finite, so there is always a feasible choice. `exact` uses a MIP
    solver, which may take seconds for hundreds of rows and minutes for thousands. `beam` is how many ways are
    kept while repairing: fewer take less time.
    """
    V, U, cap, base = _checked(value, use, capacity, none)
    fits = (U - cap <= SLIP * (1 + cap)).all(axis=1)
    gain = np.where(fits, V - base[:, None], -np.inf)
    if not len(V) or not fits.any():
        return _choice(np.full(len(V), -1), V, base, 0.0)
    if exact:
        pick, above = _by_mip(gain, U, cap)
        return _choice(pick, V, base, above)
    # None becomes one more configuration, worth 0 and using nothing; it is the last one, hence index -1.
    gain = np.column_stack([gain, np.zeros(len(V))])
    U = np.vstack([U, np.zeros(len(cap))])
    favourite = gain.argmax(axis=1)
    if (times(U.T, np.bincount(favourite, minlength=len(U))) <= cap).all():  # all fit: there is no better
        gained = float(gain[np.arange(len(V)), favourite].sum())
        favourite[favourite == len(U) - 1] = -1
        return _choice(favourite, V, base, gained)
    prices, above, mixed = _prices(gain, U, cap)
    pick, lacks = _repaired(gain, U, cap, prices, above, mixed, beam)
    gained = float(gain[np.arange(len(V)), pick].sum())
    pick[pick == len(U) - 1] = -1
    return _choice(pick, V, base, gained + lacks)


def _checked(
    value: npt.ArrayLike, use: npt.ArrayLike, capacity: npt.ArrayLike, none: npt.ArrayLike
) -> tuple[Matrix, Matrix, Vector, Vector]:
    V = np.asarray(value, dtype=np.float64)
    U = np.asarray(use, dtype=np.float64)
    cap = np.asarray(capacity, dtype=np.float64)
    if V.ndim != 2 or U.ndim != 2 or cap.ndim != 1 or U.shape != (V.shape[1], len(cap)):
        raise ValueError(
            f"value is rows x configurations, use configurations x pools, capacity a number a pool; "
            f"got {V.shape}, {U.shape} and {cap.shape}"
        )
    base = np.broadcast_to(np.asarray(none, dtype=np.float64), (len(V),))
    if np.isnan(V).any() or np.isposinf(V).any():
        raise ValueError("a value is a finite number, or -inf where a configuration is not allowed")
    if not np.isfinite(base).all():
        raise ValueError("what a row without configuration is worth must be finite; a large loss is allowed")
    if not (np.isfinite(U) & (U >= 0)).all() or not (np.isfinite(cap) & (cap >= 0)).all():
        raise ValueError("use and capacity must be finite and not negative")
    return V, U, cap, base


def _choice(pick: IntVector, V: Matrix, base: Vector, above: float) -> Choice:
    """The result, with its value summed again; `above` bounds the gain over choosing nothing."""
    rows = np.flatnonzero(pick >= 0)
    gained = float((V[rows, pick[rows]] - base[rows]).sum())
    value = float(base.sum()) + gained
    lacks = max(0.0, above - gained)
    gap = 0.0 if lacks == 0 else lacks / abs(value) if value else math.inf
    return Choice(pick, value, value + lacks, gap)


# --- prices -----------------------------------------------------------------------------------------


def _prices(gain: Matrix, U: Matrix, cap: Vector) -> tuple[Vector, float, IntVector]:
    """Prices that give the tightest bound on the gain, that bound, and picks that nearly fit."""
    count = len(gain)
    top = np.zeros(len(cap))  # above these prices no row picks anything
    most = gain.max(axis=0)
    for r in range(len(cap)):
        users = (U[:, r] > 0) & (most > 0)
        top[r] = (most[users] / U[users, r]).max() if users.any() else 0.0
    if count < 4 * SAMPLE:
        return _boxstep(gain, U, cap, top, _in_proportion(gain, U, cap, top), 0.1, CLOSE)
    some = gain[:: count // SAMPLE]
    room = cap * (len(some) / count)
    start, _, _ = _boxstep(some, U, room, top, _in_proportion(some, U, room, top), 0.1, 100 * CLOSE)
    return _boxstep(gain, U, cap, top, start, 0.02, CLOSE)


def _in_proportion(gain: Matrix, U: Matrix, cap: Vector, top: Vector) -> Vector:
    """Start prices: the fraction of the top prices, one for all pools, at which demand is about the capacity.

    Found by bisection along that line, without an LP. 0 if all favourites fit at price 0.
    """
    low, high = 0.0, 1.0
    worth = times(U, top)

    def left(part: float) -> Vector:
        pick = (gain - part * worth).argmax(axis=1)
        return np.asarray(cap - times(U.T, np.bincount(pick, minlength=len(U))))

    if (left(0.0) >= 0).all():
        return np.zeros(len(cap))
    for _ in range(6):
        middle = (low + high) / 2
        low, high = (low, middle) if dot(left(middle), top) > 0 else (middle, high)
    return (low + high) / 2 * top


def _boxstep(
    gain: Matrix, U: Matrix, cap: Vector, top: Vector, start: Vector, radius: float, close: float
) -> tuple[Vector, float, IntVector]:
    """The lowest point of D, and D there, from tangents in a box that follows the best point so far.

    Also a mixture of the picks at the tangents that are tight at the lowest point: these are the picks of the
    rows in the linear relaxation, each for a part of the time.
    """
    rows = np.arange(len(gain))
    picks: list[IntVector] = []

    def tangent(at: Vector) -> tuple[float, Vector]:
        net = gain - times(U, at)
        pick = net.argmax(axis=1)
        picks.append(pick)
        used = times(U.T, np.bincount(pick, minlength=len(U)))
        return float(dot(at, cap) + net[rows, pick].sum()), cap - used

    model = _Tangents(top)
    best, (low, slope) = start, tangent(start)
    if not start.any() and (slope >= 0).all():
        return best, low, picks[0]  # every row gets its favourite
    model.add(best, low, slope)
    for _ in range(ROUNDS):
        least, most = np.maximum(0.0, best - radius * top), np.minimum(top, best + radius * top)
        at, promised = model.lowest(least, most)
        inside = bool((((at > least) | (least <= 0)) & ((at < most) | (most >= top))).all())
        if low - promised <= close * low:
            if inside:
                break
            radius *= 4  # D is convex: this box holds nothing lower
            continue
        height, slope = tangent(at)
        model.add(at, height, slope)
        if height < low - 0.1 * (low - promised):
            best, low = at, height
            radius *= 1.0 if inside else 2.5
        elif height > low + 0.5 * (low - promised):
            radius *= 0.5
    return best, low, _mixture(picks, model.weights())


def _mixture(picks: list[IntVector], weight: Vector) -> IntVector:
    """Divide the rows that are undecided between the same configurations among these in proportion.

    Classes of equal rows need this: at any prices all their rows pick the same.
    """
    held = np.flatnonzero(weight > 1e-9)
    choices = np.stack([picks[k] for k in held])
    mixed = choices[0].copy()
    wavering = np.flatnonzero((choices != choices[0]).any(axis=0))
    if len(wavering):
        _, kind = np.unique(choices[:, wavering], axis=1, return_inverse=True)
        kind = kind.ravel()
        order = np.argsort(kind, kind="stable")
        many = np.bincount(kind)
        place = np.arange(len(kind)) - np.repeat(np.cumsum(many) - many, many)
        quantile = (place + 0.5) / np.repeat(many, many)
        which = np.searchsorted(np.cumsum(weight[held])[:-1], quantile * weight[held].sum())
        going = wavering[order]
        mixed[going] = choices[which, going]
    return np.asarray(mixed)


class _Tangents:
    """The LP over the tangents of D: its variables are the prices, and a lower bound on D."""

    ASKED = "prices for one configuration a row"

    def __init__(self, top: Vector) -> None:
        self._index = np.arange(len(top) + 1, dtype=np.int32)
        self._solver = highs.fresh(self.ASKED, presolve="off", solver="simplex")
        lower, upper = np.concatenate(([-np.inf], np.zeros(len(top)))), np.concatenate(([np.inf], top))
        empty = np.zeros(0, dtype=np.int32)
        cost = (self._index == 0).astype(np.float64)
        highs.taken(
            self._solver.addCols(len(cost), cost, lower, upper, 0, empty, empty, np.zeros(0)), self.ASKED
        )

    def add(self, at: Vector, height: float, slope: Vector) -> None:
        slope = np.where(np.abs(slope) > TINY, slope, 0.0)  # the rest of a subtraction; HiGHS warns of it
        row = np.concatenate(([1.0], -slope))
        least = height - dot(slope, at)
        some = np.flatnonzero(row)
        highs.taken(self._solver.addRow(least, np.inf, len(some), self._index[some], row[some]), self.ASKED)

    def lowest(self, least: Vector, most: Vector) -> tuple[Vector, float]:
        highs.taken(self._solver.changeColsBounds(len(least), self._index[1:], least, most), self.ASKED)
        highs.run(self._solver, self.ASKED)
        found = np.asarray(self._solver.getSolution().col_value)
        return np.clip(found[1:], least, most), float(found[0])

    def weights(self) -> Vector:
        """The dual weight of each tangent at the point found last; they sum to 1."""
        return np.asarray(np.abs(self._solver.getSolution().row_dual))


# --- repair -----------------------------------------------------------------------------------------


def _repaired(
    gain: Matrix, U: Matrix, cap: Vector, prices: Vector, above: float, mixed: IntVector, beam: int
) -> tuple[IntVector, float]:
    """A feasible choice, and how much more any other could gain at most.

    Repairs the favourites at these prices and the mixture, takes the better one and improves it in the core.
    """
    rows = np.arange(len(gain))
    net = gain - times(U, prices)
    favourite = net.argmax(axis=1)
    loss = net[rows, favourite][:, None] - net
    # What the rows get at these prices equals D up to rounding, which must not make the bound too low.
    rounding = max(0.0, above - float(net[rows, favourite].sum() + dot(prices, cap)))

    def fitted(pick: IntVector) -> tuple[float, IntVector]:
        swaps = _Swaps(U, cap, prices, loss, pick)
        swaps.fit()
        swaps.fill()
        lacks = float(loss[rows, swaps.pick].sum() + dot(prices, cap - U[swaps.pick].sum(axis=0)))
        return lacks, swaps.pick

    lacks, pick = fitted(mixed)
    pick, least = _core(U, cap, prices, loss, favourite, pick, lacks, beam)
    lacks, pick = fitted(pick)
    return pick, max(0.0, lacks - least) + rounding


class _Swaps:
    """Moves of rows from one configuration to another, with the least loss for each such move at hand.

    What a move frees and takes depends on the two configurations only, so a small table of the least losses
    is enough. Equal rows move together: a class of a thousand equal jobs is one step.
    """

    def __init__(self, U: Matrix, cap: Vector, prices: Vector, loss: Matrix, pick: IntVector) -> None:
        self.pick = pick.copy()
        self._U, self._cap, self._loss = U, cap, loss
        self._slip = SLIP * (1 + cap)
        self._left = cap - U[pick].sum(axis=0)
        self._takes = U[None, :, :] - U[:, None, :]  # from, to, pool
        self._pays = times(self._takes, prices)
        self._cost = np.full((len(U), len(U)), np.inf)  # the least additional loss of a row that moves
        for at in np.unique(pick):
            self._refresh(int(at))

    def _refresh(self, at: int) -> None:
        members = np.flatnonzero(self.pick == at)
        if len(members):
            here = self._loss[members]
            self._cost[at] = (here - here[:, at : at + 1]).min(axis=0)
        else:
            self._cost[at] = np.inf
        self._cost[at, at] = np.inf

    def _move(self, at: int, to: int, most: float, dearest: float) -> None:
        """Move up to `most` rows that lose least, none of them more than `dearest`; but at least one row."""
        members = np.flatnonzero(self.pick == at)
        cost = self._loss[members, to] - self._loss[members, at]
        order = np.argsort(cost, kind="stable")
        able = int(np.searchsorted(cost[order], dearest, side="right"))
        going = members[order[: max(1, min(able, int(min(most, len(members)))))]]
        self.pick[going] = to
        self._left = self._left - len(going) * self._takes[at, to]
        self._refresh(at)
        self._refresh(to)

    def fit(self) -> None:
        """Until no pool is overfilled, make the move with the least loss for the overfill it removes.

        Every step removes some, more than rounding could pretend: so there is an end.
        """
        weight = 1 / np.maximum(self._cap, 1e-300)
        while (over := np.maximum(0.0, -self._left - self._slip)).any():
            after = np.maximum(0.0, self._takes - self._left - self._slip)
            relief = ((over - after) * weight).sum(axis=2)
            useful = (relief > 1e-12 * (over * weight).sum()) & np.isfinite(self._cost)
            score = np.full(relief.shape, np.inf)
            score[useful] = np.maximum(0.0, self._cost[useful]) / relief[useful]
            at, to = divmod(int(score.argmin()), len(self._U))
            drop = -self._takes[at, to]
            eases = (over > 0) & (drop > 0)
            most = float(np.ceil(over[eases] / drop[eases]).min())
            most = max(1.0, most - 1)
            after_all = np.maximum(0.0, most * self._takes[at, to] - self._left - self._slip)
            if ((over - after_all) * weight).sum() <= 0:  # another pool would be overfilled by as much
                most = 1.0
            next_best = np.partition(score, 1, axis=None)[1]
            self._move(at, to, most, float(next_best * relief[at, to]))

    def fill(self) -> None:
        """While a row can get a better configuration within the capacity left, make the best such move."""
        while True:
            fits = (self._takes <= self._left + self._slip).all(axis=2)
            better = np.where(fits, self._pays - self._cost, -np.inf)
            at, to = divmod(int(better.argmax()), len(self._U))
            if better[at, to] <= 1e-12 * (1 + abs(self._pays[at, to])):
                return
            takes = self._takes[at, to]
            needs = takes > 0
            most = (
                float(np.floor((self._left + self._slip)[needs] / takes[needs]).min()) if needs.any() else 1.0
            )
            next_best = max(0.0, float(np.partition(better, -2, axis=None)[-2]))
            self._move(at, to, most, float(self._pays[at, to]) - next_best)


def _core(
    U: Matrix,
    cap: Vector,
    prices: Vector,
    loss: Matrix,
    favourite: IntVector,
    pick: IntVector,
    limit: float,
    beam: int,
) -> tuple[IntVector, float]:
    """A choice nearer to the bound than `pick`, which is `limit` below it, if one is found.

    Also returns the least distance to the bound that any choice can have. Rows are considered one by one. A
    state is the capacity left (negative: overfilled) if the remaining rows keep their pick; its loss counts
    the rows considered so far.
    """
    rows = np.arange(len(loss))
    away = loss[rows, pick]
    others = loss.copy()
    others[rows, favourite] = np.inf
    second = others.min(axis=1)
    rank = np.where(pick != favourite, -away, second)
    core = np.argsort(rank, kind="stable")[:CORE]
    core = core[rank[core] < limit]
    outside = np.delete(rows, core)
    lost = float(away[outside].sum())
    # A better choice that we miss changes a row outside the core. It then loses at least the row's second
    # smallest loss, or nothing if that row is not at its favourite now.
    unasked = np.where(pick[outside] != favourite[outside], 0.0, second[outside])
    least = min(limit, float(unasked.min(initial=np.inf)))
    slip = SLIP * (1 + cap)

    states, losses = (cap - U[pick].sum(axis=0))[None, :], np.array([lost])
    to_come = float(away[core].sum())
    trail: list[tuple[IntVector, IntVector]] = []  # for each row: the state before, the choice
    best: tuple[int, int] | None = None
    axis = np.sqrt(np.arange(2, 2 + len(cap)))  # maps different states to different numbers
    for depth, row in enumerate(core):
        options = np.flatnonzero(loss[row] < limit)
        together = losses[:, None] + loss[row, options]
        came, took = np.nonzero(together < limit)
        if not len(came):
            break
        losses, took = together[came, took], options[took]
        states = states[came] + (U[pick[row]] - U[took])
        # Of equal states keep the one with the least loss.
        order = np.lexsort((losses, np.round(times(states, axis), 7)))
        differs = (np.abs(states[order[1:]] - states[order[:-1]]) > slip).any(axis=1)
        keep = order[np.concatenate(([True], differs))]
        if len(keep) > beam:
            promise = losses[keep] + 0.5 * times(np.abs(states[keep]), prices)
            by = np.argsort(promise, kind="stable")
            least = min(least, float(losses[keep[by[beam:]]].min()))
            keep = keep[by[:beam]]
        states, losses, came, took = states[keep], losses[keep], came[keep], took[keep]
        trail.append((came, took))
        to_come -= away[row]
        lacks = np.where((states >= -slip).all(axis=1), losses + times(states, prices), np.inf) + to_come
        found = int(lacks.argmin())
        if lacks[found] < limit:
            limit, best = float(lacks[found]), (depth, found)
    chosen = pick.copy()
    if best is not None:
        depth, state = best
        for level in range(depth, -1, -1):
            came, took = trail[level]
            chosen[core[level]] = took[state]
            state = int(came[state])
    return chosen, min(least, limit)


# --- exactly ----------------------------------------------------------------------------------------


def _by_mip(gain: Matrix, U: Matrix, cap: Vector) -> tuple[IntVector, float]:
    """The best choice, and a bound on its gain, by branch and bound."""
    import highspy  # noqa: PLC0415

    asked = f"one of {gain.shape[1]} configurations for each of {len(gain)} rows"
    row, config = np.nonzero(gain > 0)  # a row never picks a configuration without gain
    if not len(row):
        return np.full(len(gain), -1), 0.0
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = len(row), len(gain) + len(cap)
    lp.sense_ = highspy.ObjSense.kMaximize
    lp.col_cost_ = gain[row, config]
    lp.col_lower_, lp.col_upper_ = np.zeros(len(row)), np.ones(len(row))
    lp.row_lower_ = np.full(lp.num_row_, -np.inf)
    lp.row_upper_ = np.concatenate([np.ones(len(gain)), cap])
    # Each column: its row's choice, then what the configuration uses.
    entries = np.column_stack([np.ones(len(row)), U[config]])
    index = np.column_stack([row, np.tile(len(gain) + np.arange(len(cap)), (len(row), 1))])
    there = entries != 0
    lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    lp.a_matrix_.start_ = np.concatenate([[0], np.cumsum(there.sum(axis=1))]).astype(np.int32)
    lp.a_matrix_.index_ = index[there].astype(np.int32)
    lp.a_matrix_.value_ = entries[there]
    lp.integrality_ = [highspy.HighsVarType.kInteger] * len(row)
    solver = highs.fresh(asked, mip_rel_gap=0.0, mip_abs_gap=1e-9)
    highs.taken(solver.passModel(lp), asked)
    highs.run(solver, asked)
    taken = np.flatnonzero(np.asarray(solver.getSolution().col_value) > 0.5)
    pick = np.full(len(gain), -1)
    pick[row[taken]] = config[taken]
    return pick, float(solver.getInfo().mip_dual_bound)
