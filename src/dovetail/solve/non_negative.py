"""Least squares with coefficients of at least 0, for models of a few terms.

    minimise  |A x - b|   subject to  x >= 0

At the optimum x is the plain least-squares solution over the columns that it uses (Lawson and Hanson,
"Solving Least Squares Problems", 1974, chapter 23). With a handful of columns every set of them is tried, and
the best one without a negative coefficient is taken. That needs no tolerance for a gradient, and gives the
same bits on every CPU: sums are numpy's, never those of BLAS.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from dovetail.solve.portable import dot, rounded

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]

MOST_COLUMNS = 8  # 255 sets
DEPENDENT = 1e-10  # a column is a sum of others if no more than this part of it is left


def non_negative(columns: Matrix, target: Vector) -> tuple[Vector, float]:
    """The coefficients of the columns, and the sum of squared errors. Of equals the fewest columns are used.

    >>> columns = np.array([[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]])
    >>> non_negative(columns, np.array([2.0, 1.0, 0.0]))[0].round(9).tolist()
    [1.0, 0.0]
    """
    count = columns.shape[1]
    if count > MOST_COLUMNS:
        raise ValueError(f"every set of columns is tried: at most {MOST_COLUMNS}, not {count}")
    sizes = np.sqrt((columns * columns).sum(axis=0))
    used = [i for i in range(count) if sizes[i] > 0]
    unit = [columns[:, i] / sizes[i] for i in range(count) if sizes[i] > 0]
    best, error = np.zeros(count), dot(target, target)
    for number in range(1, len(used) + 1):
        for chosen in combinations(range(len(used)), number):
            found = _least_squares([unit[i] for i in chosen], target)
            if found is None or min(found) < 0:
                continue
            rest = target - sum(unit[i] * x for i, x in zip(chosen, found, strict=True))
            if (now := float(rounded(dot(rest, rest)))) < error:
                error, best = now, np.zeros(count)
                for i, x in zip(chosen, found, strict=True):
                    best[used[i]] = x / sizes[used[i]]
    return best, error


def _least_squares(columns: list[Vector], target: Vector) -> list[float] | None:
    """Coefficients by modified Gram-Schmidt; None if the columns depend on each other."""
    count = len(columns)
    basis, upper = list[Vector](), [[0.0] * count for _ in range(count)]
    rest, along = target, list[float]()
    for i, column in enumerate(columns):
        left = column
        for _ in range(2):  # twice: once leaves what rounding brought in
            for j, direction in enumerate(basis):
                part = dot(direction, left)
                upper[j][i] += part
                left = left - direction * part
        size = float(np.sqrt(dot(left, left)))
        if size <= DEPENDENT:
            return None
        upper[i][i] = size
        basis.append(left / size)
        along.append(dot(basis[i], rest))
        rest = rest - basis[i] * along[i]
    found = [0.0] * count
    for i in reversed(range(count)):
        found[i] = (along[i] - sum(upper[i][j] * found[j] for j in range(i + 1, count))) / upper[i][i]
    return found
