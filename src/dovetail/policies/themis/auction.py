"""A partial-allocation auction: bidders report the value of each bundle, and winners pay for their harm.

Each bidder gets one bundle, so that the product of all values is largest: a bidder that multiplies all its
values by a factor changes nothing. A winner then keeps only a part of its bundle: the product of the other
bidders' values, over what this product would be without the winner (Cole, Gkatzelis, Goel, "Mechanism design
for fair division", EC 2013). This hidden payment makes the truth the best bid if a part of a bundle is worth
that part of its value, and the empty bundle is worth 0. Where the empty bundle has a value, as here, a bidder
may still gain by exaggerating.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]


class Bundle(NamedTuple):
    """An amount of the resource on offer, and its value to a bidder: more than 0."""

    size: int
    value: float


class Award(NamedTuple):
    """The index of the bundle that a bidder wins, and the part of it that it keeps."""

    bundle: int
    keeps: float


def auction(tables: Sequence[Sequence[Bundle]], amount: int) -> list[Award]:
    """The awards to bidders by their tables of bundles; each table begins with the empty bundle.

    Exact, by dynamic programming: bidder after bidder, with the best product for every amount used. It runs
    from both ends, so that the best product without one bidder joins the two sides of it.
    """
    if not tables:
        return []
    step = reduce(math.gcd, (bundle.size for table in tables for bundle in table), 0) or 1
    room = amount // step
    logs = [[(bundle.size // step, _log(bundle.value)) for bundle in table] for table in tables]
    before = _best_up_to(logs, room)
    behind = _best_up_to(logs[::-1], room)[::-1]
    wins = _traced(logs, before, room)
    total = before[-1][room]
    awards = []
    for i, won in enumerate(wins):
        without = float((before[i] + behind[i + 1][::-1]).max())
        awards.append(Award(won, min(1.0, math.exp(total - logs[i][won][1] - without))))
    return awards


def _log(value: float) -> float:
    """The logarithm, without its last digits: they depend on the CPU."""
    return round(math.log(value), 12)


def _best_up_to(logs: Sequence[Sequence[tuple[int, float]]], room: int) -> list[Vector]:
    """For the first 0, 1, 2, ... bidders: the largest sum of logs for each amount used at most."""
    best = np.zeros(room + 1)
    found = [best]
    for table in logs:
        more = np.full(room + 1, -np.inf)
        for size, value in table:
            if size <= room:
                np.maximum(more[size:], best[: room + 1 - size] + value, out=more[size:])
        best = more
        found.append(best)
    return found


def _traced(logs: Sequence[Sequence[tuple[int, float]]], before: Sequence[Vector], room: int) -> list[int]:
    """The bundles that make the best sum; of equal ones the smallest."""
    wins = []
    for i in range(len(logs) - 1, -1, -1):
        at = before[i + 1][room]
        won = next(
            k
            for k, (size, value) in enumerate(logs[i])
            if size <= room and before[i][room - size] + value >= at - 1e-12 * (1 + abs(at))
        )
        wins.append(won)
        room -= logs[i][won][0]
    return wins[::-1]
