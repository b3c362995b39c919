"""A table of speeds from a few of its cells: rows are models, columns GPU types or neighbours.

A cell is mostly its row times its column: a fast model is fast on all types, a fast type is fast for all
models. In logarithms that is a sum, fitted by least squares; a few factors on top say which rows suit which
columns. They are found by alternating least squares: with the columns fixed every row is a small linear
problem of its own, and the other way round. A ridge keeps a single measurement from counting too much. It is
in units of what the sums leave unexplained, so that the unit of the table does not matter.

Narayanan et al., "Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning Workloads" (Gavel), OSDI
2020, section 6. Deviation: it fits products, not their logarithms, and looks for the nearest known row after
filling in the new one; `fingerprinted` compares what was measured and nothing else, up to a factor.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dovetail.solve.portable import rounded

Table = NDArray[np.float64]

# By trial on the measurements that come with Dovetail:
PRIOR = 0.1  # how many measurements the assumption counts for that a row or column is like the others
ANCHORED = 10.0  # the same for rows with a known level (`around`)
RIDGE = 2.0  # of the factors
ROUNDS = 30


def completed(measured: Table, *, around: float | None = None, rank: int = 2, ridge: float = RIDGE) -> Table:
    """Every cell of a table in which NaN stands for cells not measured. Measured cells stay as they are.

    Cells of 0 (the model does not run there) stay too, and are not used. A row or column with nothing
    measured becomes the typical one. `around` is the known level of all rows, so that a difference from it is
    put down to the column; without it the level is the mean of what was measured (1 if nothing was). With
    two or three columns a cell is its row times its column, whatever the `rank`.
    """
    W = np.asarray(measured > 0, dtype=np.float64)  # NaN is not
    if not W.any():
        return np.where(np.isnan(measured), 1.0 if around is None else around, measured)
    logs = np.log(np.where(W > 0, measured, 1.0))
    mean = float((logs * W).sum() / W.sum()) if around is None else float(np.log(around))
    prior = PRIOR if around is None else ANCHORED
    guess = rounded(np.exp(mean + _fitted((logs - mean) * W, W, prior, rank, ridge)))
    return np.where(np.isnan(measured), guess, measured)


def fingerprinted(known: Table, measured: NDArray[np.float64]) -> NDArray[np.float64]:
    """A new row of which a few cells were measured: the rest is taken from the known row most like it."""
    chosen, factor = nearest(known, measured)
    return np.where(np.isnan(measured), known[chosen] * factor, measured)


def nearest(known: Table, measured: NDArray[np.float64]) -> tuple[int, float]:
    """The known row most like the measured cells of a new one, and how many times as fast the new one is.

    Rows are alike if their speeds have the same ratios. A row that lacks some of those cells ranks behind
    rows that have them; among equals the first is taken.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        apart = np.log(measured / known)
    seen = np.isfinite(apart)
    counts = seen.sum(axis=1)
    if not counts.any():
        raise ValueError("a row with nothing measured has no nearest row; use `completed` instead")
    apart = np.where(seen, apart, 0.0)
    factors = apart.sum(axis=1) / np.maximum(counts, 1)
    squares = (np.where(seen, apart - factors[:, None], 0.0) ** 2).sum(axis=1) / np.maximum(counts, 1)
    squares = np.round(squares, 12)
    best = int(np.lexsort((squares, -counts))[0])
    return best, float(rounded(np.exp(factors[best])))


def _fitted(X: Table, W: Table, prior: float, rank: int, ridge: float) -> Table:
    """Row + column + factors, nearest to X where W is 1."""
    by_row, by_column = W.sum(axis=1) + prior, W.sum(axis=0) + PRIOR
    rows, columns = np.zeros(len(X)), np.zeros(X.shape[1])
    for _ in range(ROUNDS):
        rows = ((X - columns) * W).sum(axis=1) / by_row
        columns = ((X - rows[:, None]) * W).sum(axis=0) / by_column
    left = (X - rows[:, None] - columns) * W
    spread = float(np.sqrt((left**2).sum() / W.sum()))
    rank = min(rank, min(X.shape) // 2 - 1)
    if rank < 1 or spread < 1e-9:
        return rows[:, None] + columns
    penalty = ridge * spread * np.eye(rank)
    V = spread * np.linalg.svd(left, full_matrices=False)[2][:rank].T
    U = np.zeros((len(X), rank))
    for _ in range(ROUNDS):
        U = _solved(left, W, V, penalty)
        V = _solved(left.T, W.T, U, penalty)
        shared = U @ V.T
        rows = ((X - columns - shared) * W).sum(axis=1) / by_row
        columns = ((X - rows[:, None] - shared) * W).sum(axis=0) / by_column
        left = (X - rows[:, None] - columns) * W
    return rows[:, None] + columns + U @ V.T


def _solved(left: Table, W: Table, V: Table, penalty: Table) -> Table:
    """For each row the factors that come nearest to what is left of it."""
    squares = np.einsum("ij,jk,jl->ikl", W, V, V) + penalty
    return np.linalg.solve(squares, (left @ V)[:, :, None])[:, :, 0]
