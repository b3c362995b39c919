"""A partial-allocation auction: everybody says what each bundle is worth to it, and winners pay for the harm.

Of all ways to give each bidder one bundle the one with the largest product of values is chosen: multiplying
all of one's own values changes nothing. A winner then keeps only a part of its bundle: what the others'
values multiply to beside it, over what they would without it (Cole, Gkatzelis, Goel, "Mechanism design for
fair division", EC 2013). That hidden payment makes truth the best bid if a part of a bundle is worth that
part of its value, and nothing is worth 0. Where nothing has a value too, as here, exaggerating may still pay.
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
    """So much of what is on offer, and its value to a bidder: more than 0."""

    size: int
    value: float


class Award(NamedTuple):
    """Which bundle of its table a bidder wins, and the part of it that it keeps."""

    bundle: int
    keeps: float


def auction(tables: Sequence[Sequence[Bundle]], amount: int) -> list[Award]:
    """The awards to bidders by their tables, each of which begins with nothing, at size 0.

    Exact: one bidder after the other, keeping for every amount used the best product; from both ends, so that
    the best without somebody is a matter of joining what is before it and what is behind.
    """
    if not tables:
        return []
    step = reduce(math.gcd, (bundle.size for table in tables for bundle in table), 0) or 1
    room = amount // step
    logs = [[(bundle.size // step, math.log(bundle.value)) for bundle in table] for table in tables]
    before = _best_up_to(logs, room)
    behind = _best_up_to(logs[::-1], room)[::-1]
    wins = _traced(logs, before, room)
    total = before[-1][room]
    awards = []
    for i, won in enumerate(wins):
        without = float((before[i] + behind[i + 1][::-1]).max())
        awards.append(Award(won, min(1.0, math.exp(total - logs[i][won][1] - without))))
    return awards


def _best_up_to(logs: Sequence[Sequence[tuple[int, float]]], room: int) -> list[Vector]:
    """For the first 0, 1, 2, ... bidders: the largest sum of logs with at most so much used."""
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
    """The bundles that make the best sum, the smallest of equals, from the last bidder to the first."""
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
