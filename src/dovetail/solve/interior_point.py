"""Time shares from the middle of the optimal face, by an interior-point method.

If an optimum is not unique, a vertex of the optimal face gives some rows the bare minimum and others all that
is left over, arbitrarily. An interior-point method ends inside the face, where every row gets some of it.
That is a better basis for a schedule, and Gavel's published schedules were made that way. The solver is
Clarabel, which takes the problems as they are written (minimise q x subject to b - A x in a cone). The point
where it ends depends on units, so callers give throughputs in steps a second where they know them.

For thousands of rows that all differ, use `time_share_lp`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from dovetail.solve.errors import SolveFailed
from dovetail.solve.portable import dot
from dovetail.solve.space_sharing import NONE, Pairs, Shared, cut, usable
from dovetail.solve.time_shares import IntVector, Matrix, Shares, Solution, Vector, within


def level(shares: Shares, scale: Vector) -> Solution:
    """The largest t such that reach >= t * scale for every row."""
    return _single(level_with(shares, NONE, scale))


def level_with(shares: Shares, pairs: Pairs, scale: Vector) -> Shared:
    """The same, where rows may run in pairs."""
    cells = _Cells(shares, pairs)
    n, t = len(scale), cells.count
    rises = _Entries(np.arange(n), np.full(n, t), np.ones(n))
    rows = _stacked([*cells.within, (n, [cells.reach(-1.0 / scale), rises])], t + 1)
    limits = np.concatenate([cells.limits, np.zeros(n)])
    cost = np.concatenate([np.zeros(cells.count), [-1.0]])
    found = cells.shares(_solved(cost, rows, limits, [("nonnegative", len(limits))], "level"))
    reach = found.reach(shares, pairs) if len(pairs) else shares.reach(found.x)
    return Shared(found.x, found.y, float((reach / scale).min()))


def total(shares: Shares, gain: Vector) -> Solution:
    """The largest sum of gain * reach."""
    return _single(total_with(shares, NONE, gain))


def total_with(shares: Shares, pairs: Pairs, gain: Vector) -> Shared:
    """The same, where rows may run in pairs."""
    cells = _Cells(shares, pairs)
    reach = cells.reach(gain)
    cost = -np.bincount(reach.column, weights=reach.value, minlength=cells.count).astype(np.float64)
    rows = _stacked(cells.within, cells.count)
    found = cells.shares(
        _solved(cost, rows, cells.limits, [("nonnegative", len(cells.limits))], "total reach")
    )
    return found._replace(value=dot(gain, found.reach(shares, pairs)))


def reaching(shares: Shares, need: Vector) -> Matrix | None:
    """Shares with reach >= need, or None if there are none."""
    found = reaching_with(shares, NONE, need)
    return None if found is None else found.x


def reaching_with(shares: Shares, pairs: Pairs, need: Vector) -> Shared | None:
    """The same, where rows may run in pairs."""
    cells = _Cells(shares, pairs)
    n = len(need)
    rows = _stacked([*cells.within, (n, [cells.reach(-np.ones(n))])], cells.count)
    limits = np.concatenate([cells.limits, -need])
    found = _solved(np.zeros(cells.count), rows, limits, [("nonnegative", len(limits))], "")
    return None if found is None else cells.shares(found)


def finish(shares: Shares, age: Vector, work: Vector, isolated: Vector) -> Solution:
    """The least possible rho = max over rows of (age + work / reach) / isolated (`time_share_lp.finish`)."""
    return _single(finish_with(shares, NONE, age, work, isolated))


def finish_with(shares: Shares, pairs: Pairs, age: Vector, work: Vector, isolated: Vector) -> Shared:
    """The same, where rows may run in pairs.

    With v for 1 / reach, which is a second-order cone: |(2, reach - v)| <= reach + v.
    """
    cells = _Cells(shares, pairs)
    n, rho = len(work), cells.count + len(work)
    each, v = np.arange(n), cells.count + np.arange(n)
    late = [_Entries(each, v, work / isolated), _Entries(each, np.full(n, rho), np.full(n, -1.0))]
    reach = cells.reach(-np.ones(n))
    cones = [  # the three entries of each row together
        _Entries(3 * reach.row, reach.column, reach.value),
        _Entries(3 * each, v, np.full(n, -1.0)),
        _Entries(3 * reach.row + 2, reach.column, reach.value),
        _Entries(3 * each + 2, v, np.ones(n)),
    ]
    rows = _stacked([*cells.within, (n, late), (3 * n, cones)], rho + 1)
    ends = np.tile([0.0, 2.0, 0.0], n)
    limits = np.concatenate([cells.limits, -age / isolated, ends])
    cost = np.zeros(rho + 1)
    cost[-1] = 1.0
    kinds = [("nonnegative", len(cells.limits) + n), *[("cone", 3)] * n]
    found = cells.shares(_solved(cost, rows, limits, kinds, "finish-time fairness"))
    return found._replace(value=float(((age + work / found.reach(shares, pairs)) / isolated).max()))


def _single(found: Shared) -> Solution:
    return Solution(found.x, found.value)


class _Entries(NamedTuple):
    """Entries of a sparse matrix."""

    row: IntVector
    column: IntVector
    value: Vector


class _Columns(NamedTuple):
    """A sparse matrix by columns, as Clarabel reads it: one of SciPy takes longer to make than to solve.

    Numbers are in lists, which Clarabel reads several times as fast as arrays.
    """

    data: list[float]
    indices: list[int]
    indptr: list[int]
    shape: tuple[int, int]

    @property
    def nnz(self) -> int:
        return len(self.data)

    @property
    def has_canonical_format(self) -> bool:
        return True  # each column in order of rows, nothing twice


def _stacked(blocks: Sequence[tuple[int, Sequence[_Entries]]], width: int) -> _Columns:
    """Blocks of (height, entries), one below the other."""
    rows, columns, values = [], [], []
    height = 0
    for tall, entries in blocks:
        for each in entries:
            rows.append(each.row + height)
            columns.append(each.column)
            values.append(each.value)
        height += tall
    row, column = np.concatenate(rows), np.concatenate(columns)
    order = np.lexsort((row, column))
    starts = np.zeros(width + 1, dtype=np.intp)
    np.cumsum(np.bincount(column, minlength=width), out=starts[1:])
    data = np.concatenate(values)[order]
    return _Columns(data.tolist(), row[order].tolist(), starts.tolist(), (height, width))


class _Cells:
    """The entries of x that may be more than 0, then such pairs, and what all problems ask of them."""

    def __init__(self, shares: Shares, pairs: Pairs) -> None:
        self.problem, self.pairs = shares, pairs
        self.row, self.way = np.nonzero(shares.allowed)
        self.pair = usable(shares, pairs)
        single = len(self.row)
        self.count = single + len(self.pair)
        at = np.arange(self.count)
        n, p = len(shares.size), len(shares.capacity)
        # The row that runs in each cell; the second rows of pairs come after all of these.
        self._who, self._at = self.row, at
        held, pool, time = shares.weight[self.row], shares.pool[self.way], np.ones(single)
        if len(self.pair):
            first, second = pairs.first[self.pair], pairs.second[self.pair]
            self._who = np.concatenate([self.row, first, second])
            self._at = np.concatenate([at, at[single:]])
            held = np.concatenate([held, shares.size[first]])
            pool = np.concatenate([pool, shares.pool[pairs.way[self.pair]]])
            time = np.concatenate([time, 1.0 / shares.count[first], 1.0 / shares.count[second]])
        self.within: list[tuple[int, list[_Entries]]] = [
            (self.count, [_Entries(at, at, np.full(self.count, -1.0))]),  # no share below 0
            (p, [_Entries(pool, at, held)]),
            (n, [_Entries(self._who, self._at, time)]),
        ]
        self.limits = np.concatenate([np.zeros(self.count), shares.capacity, np.ones(n)])

    def reach(self, by: Vector) -> _Entries:
        """What each row reaches, times `by`, as a matrix over the cells."""
        speed = self.problem.speed[self.row, self.way]
        if len(self.pair):
            pairs, count = self.pairs, self.problem.count
            first = pairs.speed_first[self.pair] / count[pairs.first[self.pair]]
            second = pairs.speed_second[self.pair] / count[pairs.second[self.pair]]
            speed = np.concatenate([speed, first, second])
        return _Entries(self._who, self._at, speed * by[self._who])

    def shares(self, found: Vector) -> Shared:
        """The solution as a matrix and by pair, without the solver's rounding beyond the limits."""
        x, y = np.zeros(self.problem.speed.shape), np.zeros(len(self.pairs))
        found = np.maximum(found[: self.count], 0.0)
        x[self.row, self.way] = found[: len(self.row)]
        y[self.pair] = found[len(self.row) :]
        if not len(self.pairs):
            return Shared(within(self.problem, x), y, 0.0)
        return Shared(*cut(self.problem, self.pairs, x, y), 0.0)


def _solved(cost: Vector, rows: _Columns, limits: Vector, kinds: list[tuple[str, int]], asked: str) -> Any:
    """The minimum; None if the problem is one of feasibility only and is infeasible."""
    import clarabel  # noqa: PLC0415

    settings = clarabel.DefaultSettings()
    settings.verbose = False
    made = {"nonnegative": clarabel.NonnegativeConeT, "cone": clarabel.SecondOrderConeT}
    size = len(cost)
    nothing = _Columns([], [], [0] * (size + 1), (size, size))
    cones = [made[kind](count) for kind, count in kinds]
    answer = clarabel.DefaultSolver(nothing, cost.tolist(), rows, limits.tolist(), cones, settings).solve()
    status = str(answer.status)
    if status == "Solved":
        return np.array(answer.x)
    if not asked:
        return None
    if status == "AlmostSolved":
        return np.array(answer.x)
    raise SolveFailed(asked, f"the solver stopped with {status}")
