"""Time shares from the middle of the optimal face, by an interior-point method.

Where an optimum is not unique a vertex of its face gives some rows the bare minimum and others all that is
left over, as it falls. An interior-point method ends inside the face, where everybody gets some of it: a
better deal to schedule by, and what Gavel's published schedules were made with. This goes through Clarabel,
which takes the problems as they are written (minimise q x subject to b - A x in a cone). Units matter for
where exactly it ends, so callers give throughputs in steps a second where they know them.

Time shares of thousands of rows that all differ are a matter for `lp` or `prices`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dovetail.solve.errors import SolveFailed
from dovetail.solve.shares import Matrix, Shares, Solution, Vector, within

if TYPE_CHECKING:
    from scipy.sparse import csc_matrix


def level(shares: Shares, scale: Vector) -> Solution:
    """The largest t such that reach >= t * scale for every row."""
    cells = _Cells(shares)
    over = cells.reach(1.0 / scale)
    rows = cells.stack([(cells.within, None), (-over, np.ones((len(scale), 1)))], extra=1)
    limits = np.concatenate([cells.limits, np.zeros(len(scale))])
    cost = np.concatenate([np.zeros(cells.count), [-1.0]])
    found = _solved(cost, rows, limits, [("nonnegative", len(limits))], "level")
    x = cells.shares(found)
    return Solution(x, float((shares.reach(x) / scale).min()))


def total(shares: Shares, gain: Vector) -> Solution:
    """The largest sum of gain * reach."""
    cells = _Cells(shares)
    cost = -(gain[:, None] * shares.speed)[cells.row, cells.way]
    found = _solved(cost, cells.within, cells.limits, [("nonnegative", len(cells.limits))], "total reach")
    x = cells.shares(found)
    return Solution(x, float(gain @ shares.reach(x)))


def reaching(shares: Shares, need: Vector) -> Matrix | None:
    """Shares with reach >= need, or None if there are none."""
    cells = _Cells(shares)
    rows = cells.stack([(cells.within, None), (-cells.reach(np.ones(len(need))), None)])
    limits = np.concatenate([cells.limits, -need])
    found = _solved(np.zeros(cells.count), rows, limits, [("nonnegative", len(limits))], "")
    return None if found is None else cells.shares(found)


def finish(shares: Shares, age: Vector, work: Vector, isolated: Vector) -> Solution:
    """The least possible rho = max over rows of (age + work / reach) / isolated (see `lp.finish`).

    With v for 1 / reach, which is a second-order cone: |(2, reach - v)| <= reach + v.
    """
    cells = _Cells(shares)
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
    order = np.arange(3 * n).reshape(3, n).T.ravel()  # the three of a row together
    rows = vstack([within, late, vstack(cones, format="csr")[order]], format="csc")
    ends = np.concatenate([np.zeros(n), np.full(n, 2.0), np.zeros(n)])[order]
    limits = np.concatenate([cells.limits, -age / isolated, ends])
    cost = np.zeros(cells.count + n + 1)
    cost[-1] = 1.0
    kinds = [("nonnegative", len(cells.limits) + n), *[("cone", 3)] * n]
    found = _solved(cost, rows, limits, kinds, "finish-time fairness")
    x = cells.shares(found)
    return Solution(x, float(((age + work / shares.reach(x)) / isolated).max()))


class _Cells:
    """The entries of x that may be more than 0, one behind the other, and what all problems ask of them."""

    def __init__(self, shares: Shares) -> None:
        from scipy.sparse import coo_matrix, identity, vstack  # noqa: PLC0415  slow to load

        self._coo: Any = coo_matrix
        self.problem = shares
        self.row, self.way = np.nonzero(shares.allowed)
        self.count = len(self.row)
        at = np.arange(self.count)
        n, p = len(shares.size), len(shares.capacity)
        devices = coo_matrix((shares.weight[self.row], (shares.pool[self.way], at)), (p, self.count))
        time = coo_matrix((np.ones(self.count), (self.row, at)), (n, self.count))
        self.within: csc_matrix = vstack([-identity(self.count), devices, time], format="csc")
        self.limits = np.concatenate([np.zeros(self.count), shares.capacity, np.ones(n)])

    def reach(self, by: Vector) -> Any:
        """What each row reaches, times `by`, as a matrix over the cells."""
        speed = self.problem.speed[self.row, self.way] * by[self.row]
        return self._coo((speed, (self.row, np.arange(self.count))), (len(by), self.count))

    def stack(self, parts: list[tuple[Any, Matrix | None]], extra: int = 0) -> csc_matrix:
        from scipy.sparse import csc_matrix, hstack, vstack  # noqa: PLC0415  slow to load

        wide = [
            hstack([cells, csc_matrix((cells.shape[0], extra)) if more is None else more]) if extra else cells
            for cells, more in parts
        ]
        stacked: csc_matrix = vstack(wide, format="csc")
        return stacked

    def shares(self, found: Vector) -> Matrix:
        """As a matrix, cut to the limits."""
        x = np.zeros(self.problem.speed.shape)
        x[self.row, self.way] = np.maximum(found[: self.count], 0.0)
        return within(self.problem, x)


def _solved(cost: Vector, rows: csc_matrix, limits: Vector, kinds: list[tuple[str, int]], asked: str) -> Any:
    """The minimum, or None where nothing is asked for but to fit and nothing fits."""
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
