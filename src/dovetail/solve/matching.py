"""Matchings: rows to columns at least cost, and rows with rows for most weight.

`assign` is the assignment problem (AlloX: jobs to places in the queues of machines, EuroSys 2020): Jonker and
Volgenant's shortest augmenting paths, through scipy.

`pairs` is a matching in a general graph (Muri: which jobs to interleave on the same GPUs, SIGCOMM 2022). The
LP that lets every row be used once,

    maximise  sum of weight[e] * z[e]     subject to  sum of z[e] over the edges at a row  <= 1

may come out with halves along odd cycles: three rows cannot all be paired, yet the LP gives each half a
partner on either side. Edmonds (1965) showed that what is missing are the odd sets S, which hold at most
(|S| - 1) / 2 edges. There are too many to write down, so we add those that are broken: the odd components
that the non-zero edges form. Likewise few of the edges matter, so those join that pay at the prices of the LP
(see `columns`). If an LP solution that no other edge can improve is in whole numbers, it is the best
matching. Should it not be, and break no set that we look at (rare), a MIP over the edges that could still be
part of a better matching decides.

Edmonds' own algorithm in plain Python (networkx) takes 5 s for 200 rows, this 20 to 200 ms. It has no bound
in n as that has: of a few hundred rows, an odd number of them much alike, some take seconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dovetail.solve import highs
from dovetail.solve.errors import Infeasible, SolveFailed
from dovetail.solve.shares import IntVector, Matrix, Vector

if TYPE_CHECKING:
    import highspy

NEAR = 6  # edges for each row to begin with
FEW = 4  # edges for each row to branch on first
SETS = 10  # odd sets for each row at most; then branch
WHOLE = 1e-6  # an LP value that close to 0 or 1 is meant to be
PAYS = 1e-9  # a surplus (of the largest weight) that is worth an edge
ROUNDS = 1_000


class Assignment(NamedTuple):
    """Which column each row has; -1 if there are more rows than columns and it got none."""

    column: IntVector
    cost: float


def assign(cost: ArrayLike) -> Assignment:
    """Give each row a column of its own (or each column a row, if they are fewer) at the least total cost.

    inf forbids. Raises Infeasible if not all can be served.
    """
    C = np.asarray(cost, dtype=np.float64)
    if C.ndim != 2:
        raise ValueError(f"cost must be a matrix of rows by columns, not of shape {C.shape}")
    if np.isnan(C).any() or np.isneginf(C).any():
        raise ValueError("a cost is a finite number, or inf where a row cannot have a column")
    column = np.full(len(C), -1, dtype=np.intp)
    if not C.size:
        return Assignment(column, 0.0)
    from scipy.optimize import linear_sum_assignment  # noqa: PLC0415

    try:
        rows, columns = linear_sum_assignment(C)
    except ValueError as error:  # the only one that is left
        few, side = min((len(C), "row"), (C.shape[1], "column"))
        raise Infeasible(
            f"an assignment of {len(C)} rows to {C.shape[1]} columns",
            f"{np.isfinite(C).sum()} pairs are allowed, and they do not serve each of the {few} {side}s",
        ) from error
    column[rows] = columns
    return Assignment(column, float(C[rows, columns].sum()))


class Matching(NamedTuple):
    """Pairs of rows, the lower first, in order; and what they weigh together."""

    pair: NDArray[np.intp]  # k x 2
    weight: float


def pairs(weight: ArrayLike) -> Matching:
    """Pair rows with rows, nobody twice, for the most weight together.

    weight is symmetric; the diagonal does not matter. Pairs of weight 0 or less are never made; -inf forbids
    as any of them does. To have as many pairs as can be, add a large constant to all weights.
    """
    W = np.array(weight, dtype=np.float64)
    if W.ndim != 2 or W.shape[0] != W.shape[1]:
        raise ValueError(f"weight must be a square matrix, not of shape {W.shape}")
    np.fill_diagonal(W, 0.0)
    if np.isnan(W).any() or np.isposinf(W).any() or not np.array_equal(W, W.T):
        raise ValueError("weight must be symmetric and finite, or -inf where two rows cannot be paired")
    first, second = np.nonzero(np.triu(W, 1) > 0.0)
    if not len(first):
        return Matching(np.empty((0, 2), dtype=np.intp), 0.0)
    worth = W[first, second]
    made = np.sort(_Edges(len(W), first, second, worth / worth.max()).matched())
    return Matching(np.column_stack([first[made], second[made]]), float(worth[made].sum()))


class _Edges:
    """The LP over some edges and some odd sets, growing on both sides."""

    def __init__(
        self, n: int, first: IntVector, second: IntVector, worth: Vector, presolve: str = "off"
    ) -> None:
        import highspy  # noqa: PLC0415

        self._n, self._first, self._second, self._worth = n, first, second, worth
        self._asked = f"pairs of {n} rows"
        self._sets: list[NDArray[np.bool_]] = []  # which rows are in each odd set
        self._in = np.empty(0, dtype=np.intp)  # the edges of the LP, in order
        self._solver = highs.fresh(self._asked, presolve=presolve, mip_rel_gap=0.0, mip_abs_gap=PAYS)
        self._check(self._solver.changeObjectiveSense(highspy.ObjSense.kMaximize))
        none = np.zeros(0, dtype=np.int32)
        lower, start = np.full(n, -np.inf), np.zeros(n, dtype=np.int32)
        self._check(self._solver.addRows(n, lower, np.ones(n), 0, start, none, np.zeros(0)))

    def _check(self, status: highspy.HighsStatus) -> None:
        highs.taken(status, self._asked)

    def matched(self) -> IntVector:
        """The edges of a best matching."""
        joining = self._near()
        for rows in self._odd(self._first, self._second):  # the largest odd sets: one of them goes without
            self._add_set(rows)
        for _ in range(ROUNDS):
            self._add_edges(joining)
            highs.run(self._solver, self._asked)
            solution = self._solver.getSolution()
            surplus = self._surplus(np.asarray(solution.row_dual))
            joining = self._paying(surplus)
            if len(joining):
                continue
            z = np.asarray(solution.col_value)
            if (np.minimum(z, 1.0 - z) <= WHOLE).all():
                return self._in[z > 0.5]
            broken = self._broken(z) if len(self._sets) < SETS * self._n else []
            if not broken:
                return self._by_mip(surplus, float(z @ self._worth[self._in]))
            for rows in broken:
                self._add_set(rows)
        raise SolveFailed(self._asked, f"edges or odd sets still join after {ROUNDS} rounds")

    def _near(self) -> IntVector:
        """The heaviest few edges at each row."""
        order = np.argsort(-self._worth, kind="stable")
        edge = np.concatenate([order, order])
        row = np.concatenate([self._first[order], self._second[order]])
        rank = np.concatenate([np.arange(len(order))] * 2)
        by = np.lexsort((rank, row))
        place = np.arange(len(by)) - np.searchsorted(row[by], row[by])
        return np.asarray(np.unique(edge[by][place < NEAR]))

    def _inside(self, edges: IntVector) -> Matrix:
        """Whether both ends of an edge are in an odd set: edges x sets."""
        ends = [members[self._first[edges]] & members[self._second[edges]] for members in self._sets]
        return np.array(ends, dtype=np.float64).reshape(len(self._sets), len(edges)).T

    def _add_edges(self, edges: IntVector) -> None:
        many = len(edges)
        if not many:
            return
        self._in = np.concatenate([self._in, edges])
        ends = np.column_stack([self._first[edges], self._second[edges]])
        sets = np.tile(self._n + np.arange(len(self._sets)), (many, 1))
        index = np.column_stack([ends, sets])
        entries = np.column_stack([np.ones((many, 2)), self._inside(edges)])
        there = entries > 0.0
        start = np.concatenate([[0], np.cumsum(there.sum(axis=1))[:-1]]).astype(np.int32)
        lower, upper = np.zeros(many), np.full(many, np.inf)
        indices = index[there].astype(np.int32)
        self._check(
            self._solver.addCols(
                many, self._worth[edges], lower, upper, len(indices), start, indices, entries[there]
            )
        )

    def _add_set(self, rows: IntVector) -> None:
        members = np.zeros(self._n, dtype=bool)
        members[rows] = True
        self._sets.append(members)
        edges = np.flatnonzero(members[self._first[self._in]] & members[self._second[self._in]])
        index = edges.astype(np.int32)
        most = (len(rows) - 1) / 2
        self._check(self._solver.addRow(-np.inf, most, len(index), index, np.ones(len(index))))

    def _surplus(self, dual: Vector) -> Vector:
        """What each edge weighs beyond the prices of its ends and of the odd sets it is in."""
        dual = np.maximum(0.0, dual)
        surplus = self._worth - dual[self._first] - dual[self._second]
        for price, members in zip(dual[self._n :], self._sets, strict=True):
            if price > 0.0:
                surplus -= price * (members[self._first] & members[self._second])
        return np.asarray(surplus)

    def _paying(self, surplus: Vector) -> IntVector:
        """For each row the new edge that pays most."""
        order = np.flatnonzero(surplus > PAYS)
        order = np.setdiff1d(order, self._in, assume_unique=True)
        order = order[np.argsort(-surplus[order], kind="stable")]
        ends = (self._first[order], self._second[order])
        return np.unique(np.concatenate([order[np.unique(end, return_index=True)[1]] for end in ends]))

    def _odd(self, first: IntVector, second: IntVector) -> list[IntVector]:
        """The components with an odd number of rows, and more than one, that edges between these form."""
        label = np.arange(self._n)
        while True:  # each takes the lowest label among those it is joined to
            lower = label.copy()
            np.minimum.at(lower, first, label[second])
            np.minimum.at(lower, second, label[first])
            if np.array_equal(lower, label):
                break
            label = lower
        sizes = np.bincount(label, minlength=self._n)
        return [np.flatnonzero(label == name) for name in np.flatnonzero((sizes % 2 == 1) & (sizes > 1))]

    def _broken(self, z: Vector) -> list[IntVector]:
        """The odd components of the edges in use that hold more than they may."""
        first, second = self._first[self._in], self._second[self._in]
        used = z > WHOLE
        found = []
        for rows in self._odd(first[used], second[used]):
            held = float(z[np.isin(first, rows) & np.isin(second, rows)].sum())
            if held > (len(rows) - 1) / 2 + WHOLE:
                found.append(rows)
        return found

    def _by_mip(self, surplus: Vector, most: float) -> IntVector:
        """Branch and bound: over few edges first, then over those that a better matching may hold.

        Whoever uses an edge with a negative surplus falls short of the LP, which is worth `most`, by as much.
        """
        order = np.argsort(-surplus, kind="stable")
        edges = order[: FEW * self._n]
        while True:
            found = self._best_of(np.sort(edges))
            lacks = most - float(self._worth[found].sum())
            better = order[surplus[order] >= -lacks - PAYS]
            if len(better) <= len(edges):
                return found
            edges = better

    def _best_of(self, edges: IntVector) -> IntVector:
        """The best matching that uses these edges only."""
        import highspy  # noqa: PLC0415

        some = _Edges(self._n, self._first[edges], self._second[edges], self._worth[edges], presolve="on")
        some._add_edges(np.arange(len(edges)))
        for members in self._sets:
            some._add_set(np.flatnonzero(members))
        kinds = np.full(len(edges), highspy.HighsVarType.kInteger.value, dtype=np.uint8)
        columns = np.arange(len(edges), dtype=np.int32)
        self._check(some._solver.changeColsIntegrality(len(edges), columns, kinds))
        highs.run(some._solver, self._asked)
        return edges[np.asarray(some._solver.getSolution().col_value) > 0.5]
