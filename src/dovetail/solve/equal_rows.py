"""Rows that are equal become one row with a count: the same optimum from a far smaller problem.

The set of feasible time shares is convex, so all members of a class can get the average of the class without
loss: there is always an optimum in which equal rows get equal shares. A cluster has thousands of jobs but
only a few hundred kinds of them, so do this first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from dovetail.solve.time_shares import IntVector, Matrix, Shares, Vector

Scalar = TypeVar("Scalar", bound=np.generic)


@dataclass(frozen=True, slots=True, eq=False)
class Classes:
    """The smaller problem, and the mapping from rows to classes. Classes are in order of first appearance."""

    shares: Shares  # one row for each class; counts are summed
    first: IntVector  # the row that represents each class
    member: IntVector  # the class of each row

    def gather(self, values: NDArray[Scalar]) -> NDArray[Scalar]:
        """Values of rows as values of classes (all members have the same)."""
        return values[self.first]

    def spread(self, values: NDArray[Scalar]) -> NDArray[Scalar]:
        """Values of classes (shares, levels) as values of rows."""
        return values[self.member]


def classes(shares: Shares, *vectors: Vector) -> Classes:
    """Rows equal in speed, size and every further vector (scale, floor ...), bit for bit, become one."""
    columns = [shares.speed, shares.size[:, None], *(np.asarray(v, np.float64)[:, None] for v in vectors)]
    rows = np.hstack(columns) + 0.0  # -0.0 becomes 0.0
    first, member = _groups(rows)
    count = np.bincount(member, weights=shares.count, minlength=len(first)).astype(np.float64)
    small = Shares(shares.speed[first], shares.size[first], shares.capacity, count, shares.pool)
    return Classes(small, first, member)


def _groups(rows: Matrix) -> tuple[IntVector, IntVector]:
    """For each distinct row its first index, in rising order, and for each row which of those it equals."""
    key = _digest(rows)
    _, first, member = np.unique(key, return_index=True, return_inverse=True)
    if not np.array_equal(rows, rows[first[member]]):  # two different rows with one digest: sort in full
        _, first, member = np.unique(rows, axis=0, return_index=True, return_inverse=True)
        member = member.reshape(-1)
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return first[order], rank[member]


def _digest(rows: Matrix) -> NDArray[np.uint64]:
    """64 bits a row, to sort numbers instead of rows; equal rows have equal digests."""
    bits = np.ascontiguousarray(rows).view(np.uint64)
    key = np.zeros(len(rows), dtype=np.uint64)
    for column in bits.T:
        key ^= column
        key *= np.uint64(0x9E3779B97F4A7C15)  # wraps around; the golden ratio spreads low bits upwards
        key ^= key >> np.uint64(29)
    return key
