"""Leases for gangs with deadlines: is there a table in which every job has its leases in time?

Time is cut into leases 0, 1, 2, ... Job i needs `need[i]` of the first `last[i]` leases, not necessarily in a
row, with `width[i]` in each; lease t has `room[t]`:

    x[i, t] in {0, 1}
    sum over t < last[i] of x[i, t]  = need[i]    for each job i
    sum over i of width[i] x[i, t]  <= room[t]    for each lease t

(Gao et al., "Chronus", SoCC 2021.) `exact` solves this program. `backwards` fills a table greedily: whatever
it finds is a solution, but it may find none where there is one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dovetail.solve import highs
from dovetail.solve.errors import SolveFailed

IntVector = npt.NDArray[np.int64]
Table = list[tuple[int, ...]]  # the leases of each job, in order


class Demand(NamedTuple):
    """What one job needs."""

    need: int  # leases
    width: int  # in each of them
    last: int  # all of them before this one


def backwards(demands: Sequence[Demand], room: IntVector) -> Table | None:
    """Least slack first (then the fewest leases, then the narrowest), each from its last lease backwards."""
    left = room.copy()
    table: Table = [()] * len(demands)
    order = sorted(range(len(demands)), key=lambda i: (demands[i].last - demands[i].need, *demands[i][:2], i))
    for i in order:
        need, width, last = demands[i]
        free = np.flatnonzero(left[: max(last, 0)] >= width)
        if len(free) < need:
            return None
        taken = free[len(free) - need :]
        left[taken] -= width
        table[i] = tuple(taken.tolist())
    return table


def exact(demands: Sequence[Demand], room: IntVector) -> Table | None:
    """A table by mixed integer programming, with leases as late as possible; None: there is none."""
    if any(demand.need > max(min(demand.last, len(room)), 0) for demand in demands):
        return None
    cells = [(i, t) for i, d in enumerate(demands) if d.need for t in range(min(d.last, len(room)))]
    if not cells:
        return [()] * len(demands)
    import highspy  # noqa: PLC0415

    asked = "a table of leases"
    solver = highs.fresh(asked)
    x = [solver.addBinary(obj=-float(t)) for _, t in cells]
    for i, demand in enumerate(demands):
        own = [x[k] for k, cell in enumerate(cells) if cell[0] == i]
        if own:
            solver.addConstr(sum(own) == demand.need)
    for t in sorted({t for _, t in cells}):
        here = [demands[i].width * x[k] for k, (i, at) in enumerate(cells) if at == t]
        solver.addConstr(sum(here) <= int(room[t]))
    solver.run()
    status = solver.getModelStatus()
    if status == highspy.HighsModelStatus.kInfeasible:
        return None
    if status != highspy.HighsModelStatus.kOptimal:
        raise SolveFailed(asked, solver.modelStatusToString(status))
    values = solver.getSolution().col_value
    chosen = [cell for cell, value in zip(cells, values, strict=True) if value > 0.5]
    return [tuple(t for i, t in chosen if i == job) for job in range(len(demands))]
