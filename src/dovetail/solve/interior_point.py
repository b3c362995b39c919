"""Time shares from the middle of the optimal face, by an interior-point method.

If an optimum is not unique, a vertex of the optimal face gives some rows the bare minimum and others all that
is left over, arbitrarily. An interior-point method ends inside the face, where every row gets some of it.
That is a better basis for a schedule, and Gavel's published schedules were made that way. The solver is
Clarabel, which takes the problems as they are written (minimise q x subject to b - A x in a cone). The point
where it ends depends on units, so callers give throughputs in steps a second where they know them.

For thousands of rows that all differ, use `time_share_lp`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dovetail.solve.errors import SolveFailed
from dovetail.solve.portable import dot
from dovetail.solve.space_sharing import NONE, Pairs, Shared, cut, usable
from dovetail.solve.time_shares import Matrix, Shares, Solution, Vector, within

if TYPE_CHECKING:
    from scipy.sparse import csc_matrix


def level(shares: Shares, scale: Vector) -> Solution:
    """The largest t such that reach >= t * scale for every row."""
    return _single(level_with(shares, NONE, scale))


def level_with(shares: Shares, pairs: Pairs, scale: Vector) -> Shared:
    """The same, where rows may run in pairs."""
    cells = _Cells(shares, pairs)
    over = cells.reach(1.0 / scale)
    rows = cells.stack([(cells.within, None), (-over, np.ones((len(scale), 1)))], extra=1)
    limits = np.concatenate([cells.limits, np.zeros(len(scale))])
    cost = np.concatenate([np.zeros(cells.count), [-1.0]])
    found = cells.shares(_solved(cost, rows, limits, [("nonnegative", len(limits))], "level"))
    return found._replace(value=float((found.reach(shares, pairs) / scale).min()))


def total(shares: Shares, gain: Vector) -> Solution:
    """The largest sum of gain * reach."""
    return _single(total_with(shares, NONE, gain))


def total_with(shares: Shares, pairs: Pairs, gain: Vector) -> Shared:
    """The same, where rows may run in pairs."""
    cells = _Cells(shares, pairs)
    cost = -np.asarray(cells.reach(gain).sum(axis=0)).ravel()
    found = cells.shares(
        _solved(cost, cells.within, cells.limits, [("nonnegative", len(cells.limits))], "total reach")
    )
    return found._replace(value=dot(gain, found.reach(shares, pairs)))


def reaching(shares: Shares, need: Vector) -> Matrix | None:
    """Shares with reach >= need, or None if there are none."""
    found = reaching_with(shares, NONE, need)
    return None if found is None else found.x


def reaching_with(shares: Shares, pairs: Pairs, need: Vector) -> Shared | None:
    """The same, where rows may run in pairs."""
    cells = _Cells(shares, pairs)
    rows = cells.stack([(cells.within, None), (-cells.reach(np.ones(len(need))), None)])
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
    n, reach = len(work), cells.reach(np.ones(len(work)))
    from scipy.sparse import csc_matrix, hstack, identity, vstack  # noqa: PLC0415  slow to load

    eye, none = identity(n, format="csc"), csc_matrix
    within = hstack([cells.within, none((len(cells.limits), n + 1))])
    late = hstack([none((n, cells.count)), csc_matrix(np.diag(work / isolated)), -np.ones((n, 1))])
    cones = [
        hstack([-reach, -eye, none((n, 1))]),
        none((n, cells.count + n + 1)),
        hstack([-reach, eye, none((n, 1))]),
    ]
    order = np.arange(3 * n).reshape(3, n).T.ravel()  # the three entries of each row together
    rows = vstack([within, late, vstack(cones, format="csr")[order]], format="csc")
    ends = np.concatenate([np.zeros(n), np.full(n, 2.0), np.zeros(n)])[order]
    limits = np.concatenate([cells.limits, -age / isolated, ends])
    cost = np.zeros(cells.count + n + 1)
    cost[-1] = 1.0
    kinds = [("nonnegative", len(cells.limits) + n), *[("cone", 3)] * n]
    found = cells.shares(_solved(cost, rows, limits, kinds, "finish-time fairness"))
    return found._replace(value=float(((age + work / found.reach(shares, pairs)) / isolated).max()))


def _single(found: Shared) -> Solution:
    return Solution(found.x, found.value)


class _Cells:
    """The entries of x that may be more than 0, then such pairs, and what all problems ask of them."""

    def __init__(self, shares: Shares, pairs: Pairs) -> None:
        from scipy.sparse import coo_matrix, identity, vstack  # noqa: PLC0415  slow to load

        self._coo: Any = coo_matrix
        self.problem, self.pairs = shares, pairs
        self.row, self.way = np.nonzero(shares.allowed)
        self.pair = usable(shares, pairs)
        single = len(self.row)
        self.count = single + len(self.pair)
        at = np.arange(self.count)
        n, p = len(shares.size), len(shares.capacity)
        first, second = pairs.first[self.pair], pairs.second[self.pair]
        # The row that runs in each cell; the second rows of pairs come after all of these.
        self._who = np.concatenate([self.row, first, second])
        self._at = np.concatenate([at, at[single:]])
        held = np.concatenate([shares.weight[self.row], shares.size[first]])
        pool = shares.pool[np.concatenate([self.way, pairs.way[self.pair]])]
        devices = coo_matrix((held, (pool, at)), (p, self.count))
        time = np.concatenate([np.ones(single), 1.0 / shares.count[first], 1.0 / shares.count[second]])
        times = coo_matrix((time, (self._who, self._at)), (n, self.count))
        self.within: csc_matrix = vstack([-identity(self.count), devices, times], format="csc")
        self.limits = np.concatenate([np.zeros(self.count), shares.capacity, np.ones(n)])

    def reach(self, by: Vector) -> Any:
        """What each row reaches, times `by`, as a matrix over the cells."""
        pairs, count = self.pairs, self.problem.count
        first, second = pairs.first[self.pair], pairs.second[self.pair]
        speed = np.concatenate(
            [
                self.problem.speed[self.row, self.way],
                pairs.speed_first[self.pair] / count[first],
                pairs.speed_second[self.pair] / count[second],
            ]
        )
        return self._coo((speed * by[self._who], (self._who, self._at)), (len(by), self.count))

    def stack(self, parts: list[tuple[Any, Matrix | None]], extra: int = 0) -> csc_matrix:
        from scipy.sparse import csc_matrix, hstack, vstack  # noqa: PLC0415  slow to load

        wide = [
            hstack([cells, csc_matrix((cells.shape[0], extra)) if more is None else more]) if extra else cells
            for cells, more in parts
        ]
        stacked: csc_matrix = vstack(wide, format="csc")
        return stacked

    def shares(self, found: Vector) -> Shared:
        """The solution as a matrix and by pair, without the solver's rounding beyond the limits."""
        x, y = np.zeros(self.problem.speed.shape), np.zeros(len(self.pairs))
        found = np.maximum(found[: self.count], 0.0)
        x[self.row, self.way] = found[: len(self.row)]
        y[self.pair] = found[len(self.row) :]
        if not len(self.pairs):
            return Shared(within(self.problem, x), y, 0.0)
        return Shared(*cut(self.problem, self.pairs, x, y), 0.0)


def _solved(cost: Vector, rows: csc_matrix, limits: Vector, kinds: list[tuple[str, int]], asked: str) -> Any:
    """The minimum; None if the problem is one of feasibility only and is infeasible."""
    import clarabel  # noqa: PLC0415
    from scipy.sparse import csc_matrix  # noqa: PLC0415

    settings = clarabel.DefaultSettings()
    settings.verbose = False
    made = {"nonnegative": clarabel.NonnegativeConeT, "cone": clarabel.SecondOrderConeT}
    nothing = csc_matrix((len(cost), len(cost)))
    cones = [made[kind](size) for kind, size in kinds]
    answer = clarabel.DefaultSolver(nothing, cost, rows, limits, cones, settings).solve()
    status = str(answer.status)
    if status == "Solved":
        return np.array(answer.x)
    if not asked:
        return None
    if status == "AlmostSolved":
        return np.array(answer.x)
    raise SolveFailed(asked, f"the solver stopped with {status}")
