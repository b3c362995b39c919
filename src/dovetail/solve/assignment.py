"""The assignment problem: rows to columns at least cost.

AlloX (EuroSys 2020) assigns jobs to places in the queues of machines. The method is Jonker and Volgenant's
shortest augmenting paths, through scipy (the extra `solvers`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from dovetail.solve.errors import Infeasible
from dovetail.solve.time_shares import IntVector


class Assignment(NamedTuple):
    """The column of each row; -1 for a row without, if there are more rows than columns."""

    column: IntVector
    cost: float


def assign(cost: ArrayLike) -> Assignment:
    """Give each row a column of its own (or each column a row, if they are fewer) at the least total cost.

    A cost of inf forbids a pair. Raises Infeasible if there is no assignment without forbidden pairs.
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
    except ValueError as error:  # the only cause that is left: not every row can have a column
        few, side = min((len(C), "row"), (C.shape[1], "column"))
        raise Infeasible(
            f"an assignment of {len(C)} rows to {C.shape[1]} columns",
            f"{np.isfinite(C).sum()} pairs are allowed, and they do not serve each of the {few} {side}s",
        ) from error
    column[rows] = columns
    return Assignment(column, float(C[rows, columns].sum()))
