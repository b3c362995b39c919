"""Arithmetic that gives the same bits on every CPU, and rounding of what a solver returns.

Equal inputs must give equal journals on every machine. Two things could break that:

- Products through BLAS (`@`, `dot`) and `einsum` add in an order that depends on the CPU, with fused
  multiply-add or without. `np.log` and `np.exp` depend on the CPU too. The last digit differs, and a solver
  that is given it may end at another of several optima. `dot` and `times` multiply first and then add in the
  order of numpy's `sum`, which is the same everywhere.
- A solver's answer is right to some digits. A comparison of two answers must not rest on the others: what is
  equal in truth must compare as equal, so that the tie is broken by rule. `rounded` keeps the digits that are
  significant.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]
Numbers = NDArray[np.float64] | NDArray[np.signedinteger[Any]]


def dot(a: Numbers, b: Numbers) -> float:
    """The sum of a * b."""
    return float((a * b).sum())


def times(matrix: Matrix, vector: Numbers) -> Matrix:
    """The matrix times the vector, over the last axis."""
    return np.asarray((matrix * vector).sum(axis=-1))


def rounded(values: ArrayLike, bits: int = 30) -> Matrix:
    """Numbers rounded to this many significant bits; 30 bits are about nine decimal digits.

    >>> float(rounded(1.0 + 1e-12)), float(rounded(0.1))
    (1.0, 0.09999999997671694)
    """
    mantissa, exponent = np.frexp(np.asarray(values, dtype=np.float64))
    return np.asarray(np.ldexp(np.rint(np.ldexp(mantissa, bits)), exponent - bits))
