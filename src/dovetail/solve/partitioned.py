"""POP: a large problem, partitioned at random into small ones that resemble it.

Narayanan et al., "Solving Large-Scale Granular Resource Allocation Problems Efficiently with POP", SOSP 2021.
Rows are distributed at random over k parts, kind by kind, so that each part has its share of every kind. Each
part gets 1/k of every pool. The parts are solved one by one and their shares are put together. The result is
always feasible, since each part keeps within its own capacity. It is good if rows are many and small, since
then each part is nearly a small copy of the whole. If a solver's time grows faster than linearly, the parts
take less time than the whole, even on one core.

A row that is large compared with a part would make that part unlike the others, and could not get more than
that part has. Such a row is divided into q equal pieces, which go to q different parts. A piece has 1/q of
the members (of one job, a fraction), and the row's share of the time is the mean of its pieces' shares. That
keeps every limit: devices add up, and a mean of shares that sum to at most 1 does so too. It keeps the
objectives as well: the mean of the reaches is no less than the smallest of them, and in a sum the pieces
weigh as much as the row. (Deviation: POP also divides rows that are merely untypical.)

Whether a gang could ever start in a pool is a question about the whole pool. Apply `time_shares.whole` first.
No gang starts inside a part's fraction of a pool, so `solve` must not apply it again.

If rows are few or k is large, quality falls: with one row in each part, every row gets an equal share and
cannot trade types with others. `prices` and `equal_rows` scale without that loss. So this is a preset for
reproducing POP, not our way to scale.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from dovetail.solve.time_shares import IntVector, Shares, Solution, within

Solve = Callable[[Shares, IntVector], Solution]  # a part, and the numbers of its rows in the whole


def split(kinds: ArrayLike, parts: int, seed: int, pieces: ArrayLike = 1) -> list[IntVector]:
    """Distribute rows over parts at random. Each gets, to within one, its share of every kind and of all.

    kinds[i] is the kind of row i. A row in several pieces goes to as many different parts.
    """
    kind = np.asarray(kinds)
    if kind.ndim != 1:
        raise ValueError(f"kinds must be a vector, not of shape {kind.shape}")
    if parts < 1:
        raise ValueError(f"there must be 1 part or more, not {parts}")
    many = np.broadcast_to(np.asarray(pieces, dtype=np.intp), kind.shape)
    if kind.size and not 1 <= many.min() <= many.max() <= parts:
        raise ValueError(f"a row goes to 1 to {parts} parts, not to {many.min()} or {many.max()}")
    shuffled = np.random.default_rng(seed).permutation(len(kind))
    rows = shuffled[np.argsort(kind[shuffled], kind="stable")]
    cards = np.repeat(rows, many[rows])  # neighbours go to different parts
    return [np.sort(cards[part::parts]) for part in range(parts)]


def solved(
    shares: Shares,
    parts: int,
    solve: Solve,
    seed: int,
    *,
    kinds: ArrayLike | None = None,
    join: Callable[[Sequence[float]], float] = min,
    divide: bool = True,
) -> Solution:
    """Solve each part with `solve` and put the shares together.

    `solve` gets the numbers of its rows too, to look up weights or normalising throughputs.
    If kinds are not given, rows of the same size that are fastest in the same way are of one kind. `join`
    makes one value of the parts' values: min for a level, sum for a total. With `divide` false every row
    stays in one piece. The gap is infinite: parts certify nothing about the whole.
    """
    if kinds is None:
        kinds = _kinds(shares)
    pieces = _pieces(shares, parts) if divide and parts > 1 else np.ones(len(shares.speed), dtype=np.intp)
    x, values = np.zeros(shares.speed.shape), []
    for rows in split(kinds, parts, seed, pieces):
        if not len(rows):
            continue
        part = Shares(
            shares.speed[rows],
            shares.size[rows],
            shares.capacity / parts,
            shares.count[rows] / pieces[rows],
            shares.pool,
        )
        found = solve(part, rows)
        values.append(found.value)
        x[rows] += within(part, found.x) / pieces[rows, None]
    return Solution(within(shares, x), join(values) if values else 0.0, np.inf)


def _kinds(shares: Shares) -> IntVector:
    if not shares.speed.size:
        return np.zeros(len(shares.speed), dtype=np.intp)
    fastest = shares.speed.argmax(axis=1)
    _, kind = np.unique(np.column_stack([shares.size, fastest]), axis=0, return_inverse=True)
    return np.array(kind, dtype=np.intp).reshape(len(fastest))


def _pieces(shares: Shares, parts: int) -> IntVector:
    """The fewest pieces with which a gang fits its part of each pool it may use, and all members the part."""
    room = np.where(shares.allowed, shares.capacity[shares.pool], np.inf).min(axis=1, initial=np.inf)
    pools = np.zeros((len(shares.speed), len(shares.capacity)), dtype=bool)
    row, way = np.nonzero(shares.allowed)
    pools[row, shares.pool[way]] = True
    together = np.where(pools, shares.capacity, 0.0).sum(axis=1)
    asked = np.maximum(shares.size / room, shares.weight / np.where(together > 0.0, together, np.inf))
    pieces: IntVector = np.clip(np.ceil(asked * parts - 1e-9), 1, parts).astype(np.intp)
    return pieces
