"""Water-filling: raise the level of all rows together; rows at their limit stay, the others go on.

At the largest common level some rows can still rise at no cost to the others. Raising those rows again and
again ends at the lexicographic max-min optimum: no row can get more without taking from a row that has no
more than it (Bertsekas and Gallager, "Data Networks", section 6.5).

The prices of each step tell which rows are at their limit. A row with a price of reach above 0 is at its
limit in every optimum (complementary slackness). The prices of a step sum to 1, so each step freezes at least
one row.

Groups. A company has divisions and those have teams; each level of the tree has its own rule. The root's rate
of rising is 1 and flows down: a `fair` group splits its rate over its members by weight, a `fifo` group gives
all of it to the first. Members at their limit are passed over, so what they leave goes to their
siblings first and to others only if the whole group is full. Gavel, OSDI 2020, section 4.3. Deviation: Gavel
finds the rows that are full by a mixed-integer program; prices give the same set, some of it a step later.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from dovetail.solve.errors import Infeasible, SolveFailed
from dovetail.solve.portable import dot
from dovetail.solve.time_share_lp import Optimum, Warm
from dovetail.solve.time_shares import Mask, Matrix, Shares, Vector, vector

PRICED = 1e-7  # of a step's prices, which sum to 1: more than the solver's rounding


@dataclass(frozen=True, slots=True)
class Group:
    """Rows (by number) and groups, between which the group's share is divided."""

    members: tuple[Group | int, ...]
    weights: tuple[float, ...] = ()  # of the members, for `fair`; all 1 if left out
    rule: Literal["fair", "fifo"] = "fair"

    def __post_init__(self) -> None:
        if self.rule not in {"fair", "fifo"}:
            raise ValueError(f"the rule of a group is fair or fifo, not {self.rule!r}")
        if self.weights and len(self.weights) != len(self.members):
            raise ValueError(f"{len(self.members)} members and {len(self.weights)} weights")
        if not all(0.0 < weight < np.inf for weight in self.weights):
            raise ValueError("weights must be more than 0 and finite")

    def rows(self) -> Iterator[int]:
        """All rows below, in order."""
        for member in self.members:
            if isinstance(member, Group):
                yield from member.rows()
            else:
                yield member


class Filling(NamedTuple):
    """Shares at which no row can rise without taking from a row that is no higher."""

    x: Matrix
    level: Vector  # n: reach / scale; 0 where scale is 0
    steps: int


def fill(shares: Shares, scale: ArrayLike, group: Group | None = None) -> Filling:
    """Raise reach / scale of all rows at the rates that the groups set, until no row can rise.

    Without a group all rows rise together: lexicographic max-min (weights are part of the scale). In a `fair`
    group a row with a count weighs as much as its members do together; in a `fifo` group its members rise
    together, so do not merge rows into classes if their order matters. Rows that can run nowhere, have
    no members or a scale of 0 stay at 0.
    """
    n = len(shares.speed)
    scales = vector("scale", scale, n, least=0.0)
    live = (scales > 0.0) & (shares.count > 0.0)
    if group is not None:
        named = sorted(group.rows())
        if named != sorted(set(named)) or not set(np.flatnonzero(live).tolist()) <= set(named) <= set(
            range(n)
        ):
            raise ValueError("each row with members and a scale must stand in exactly one group")
    live &= shares.allowed.any(axis=1)
    x, reached, warm = np.zeros_like(shares.speed), np.zeros(n), Warm()
    steps = 0
    while live.any():
        rate = live.astype(np.float64) if group is None else rates(group, live, shares.count)
        rise = rate * scales
        held, found = _raised(warm, shares, rise, reached)
        x, reached = found.x, held + found.value * rise
        full = found.reach_price * rise > PRICED * dot(found.reach_price, rise)
        if not (full & live).any():
            raise SolveFailed("water-filling", f"no row is full after step {steps + 1}")
        live &= ~full
        steps += 1
    done = shares.reach(x) / np.where(scales > 0.0, scales, 1.0)
    return Filling(x, np.where(scales > 0.0, done, 0.0), steps)


def _raised(warm: Warm, shares: Shares, rise: Vector, reached: Vector) -> tuple[Vector, Optimum]:
    """One step up from the levels reached, lowered by the smallest slack for rounding that is feasible.

    The slack is relative: rows with many devices lose more by it, and small rows gain. So it is kept small.
    """
    for room in (1e-11, 1e-10, 1e-9):
        held = reached * (1.0 - room)
        try:
            return held, warm.answer(shares, rise, held)
        except Infeasible:
            continue
    held = reached * (1.0 - 1e-8)
    return held, warm.answer(shares, rise, held)


def rates(group: Group, live: Mask, count: Vector) -> Vector:
    """How fast each member of each row rises when the whole tree rises at 1; rows that are full do not."""
    rate = np.zeros(len(live))

    def pour(group: Group, flow: float) -> None:
        weights = group.weights or (1.0,) * len(group.members)
        open_members = [(m, w) for m, w in zip(group.members, weights, strict=True) if rising(m)]
        if group.rule == "fifo":
            open_members = open_members[:1]
        heads = [w * (1.0 if isinstance(m, Group) else float(count[m])) for m, w in open_members]
        for (member, _), head in zip(open_members, heads, strict=True):
            part = flow * head / sum(heads)
            if isinstance(member, Group):
                pour(member, part)
            else:
                rate[member] = part / float(count[member])

    def rising(member: Group | int) -> bool:
        return any(live[row] for row in member.rows()) if isinstance(member, Group) else bool(live[member])

    pour(group, 1.0)
    return rate
