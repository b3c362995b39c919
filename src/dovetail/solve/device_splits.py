"""Devices split among jobs: for the largest total throughput, the fairest split, or a compromise.

Rows are jobs, columns are types of device. Row i holds `held[i, k]` devices of type k. It may mix types, and
their speeds add up:

    sum over i of held[i, k]                           <= capacity[k]
    sum over k of held[i, k]                           =  size[i], or 0: all or nothing   (with sizes)
    reach[i] = sum over k of speed[i, k] * held[i, k]
    total    = sum of reach           least = the smallest of reach[i] / scale[i]

With sizes, devices are whole: a MIP, solved to optimality by HiGHS. Without sizes a row may hold fractions of
devices: an LP. Time shares (`time_shares`) are something else: there a row is on one type at a time.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from dovetail.solve import highs
from dovetail.solve.errors import Infeasible
from dovetail.solve.time_shares import Matrix, Vector, vector

TIGHT = {
    "mip_rel_gap": 0.0,
    "mip_abs_gap": 0.0,
    "mip_feasibility_tolerance": 1e-9,
    "primal_feasibility_tolerance": 1e-10,
    "dual_feasibility_tolerance": 1e-10,
}
SLACK = 1e-9  # relative: how much of the first objective may be lost while the second is optimised


class Split(NamedTuple):
    """The devices that each row holds, and the throughput that follows."""

    held: Matrix  # n x m
    reach: Vector  # n
    total: float
    least: float


class Splits:
    """One set of jobs and devices, solved for several objectives."""

    def __init__(
        self, speed: ArrayLike, capacity: ArrayLike, scale: ArrayLike, size: ArrayLike | None = None
    ) -> None:
        self._speed = np.array(speed, dtype=np.float64)
        n, m = self._speed.shape
        if not n or not m:
            raise ValueError(f"speed must have rows and columns, not the shape {self._speed.shape}")
        self._capacity = vector("capacity", capacity, m, least=0.0)
        self._scale = vector("scale", scale, n, least=0.0)
        self._size = None if size is None else vector("size", size, n, least=1.0)
        # The solver's tolerances are meant for numbers of the order of 1.
        self._unit = float(max(self._speed.max(), 1e-300))
        self._best: tuple[Split, Split] | None = None

    def largest(self) -> Split:
        """The largest total; of those, the one with the largest least."""
        return self._extremes()[0]

    def fairest(self) -> Split:
        """The largest least; of those, the one with the largest total."""
        return self._extremes()[1]

    def between(self, weight: float) -> Split:
        """The split that maximises (1 - weight) * total / largest total + weight * least / largest least."""
        largest, fairest = self._extremes()
        if weight <= 0.0 or not fairest.least:
            return largest
        if weight >= 1.0:
            return fairest
        found = self._solved((1.0 - weight) / (largest.total or 1.0), weight / fairest.least)
        ends = (found, largest, fairest)  # the two extremes are exact: never return anything worse
        return max(
            ends, key=lambda s: (1 - weight) * s.total / largest.total + weight * s.least / fairest.least
        )

    def above(self, floor: float) -> Split:
        """The largest total with a least of at least `floor`; of those, the one with the largest least.

        A floor that no split reaches gives the fairest split.
        """
        largest, fairest = self._extremes()
        if floor <= largest.least:
            return largest
        if floor >= fairest.least * (1.0 - SLACK):
            return fairest
        most = self._solved(1.0, 0.0, least=floor)
        found = self._solved(0.0, 1.0, total=most.total * (1.0 - SLACK)) if most.total else most
        return max(found, most, key=lambda split: split.least)

    def _extremes(self) -> tuple[Split, Split]:
        if self._best is None:
            most = self._solved(1.0, 0.0)
            even = self._solved(0.0, 1.0)
            largest = self._solved(0.0, 1.0, total=most.total * (1.0 - SLACK)) if most.total else most
            fairest = self._solved(1.0, 0.0, least=even.least * (1.0 - SLACK)) if even.least else largest
            self._best = (largest, fairest)
        return self._best

    def _solved(self, gain: float, level: float, total: float = 0.0, least: float = 0.0) -> Split:
        """Maximise gain * total + level * least, with total and least no less than the arguments."""
        import highspy  # noqa: PLC0415  slow to load

        n, m = self._speed.shape
        whole = self._size is not None
        asked = "a split of devices"
        solver = highs.fresh(asked, **TIGHT)
        unit, free = self._unit, highspy.kHighsInf
        rates = self._speed / unit
        kind = highspy.HighsVarType.kInteger
        for i in range(n):
            for k in range(m):
                cap = self._capacity[k] if self._size is None else min(self._capacity[k], self._size[i])
                upper = float(cap) if self._speed[i, k] > 0.0 or whole else 0.0
                solver.addCol(gain * unit * float(rates[i, k]), 0.0, upper, 0, [], [])
                if whole:
                    solver.changeColIntegrality(i * m + k, kind)
        solver.addCol(level, 0.0, free if level or least else 0.0, 0, [], [])
        u = n * m
        for k in range(m):
            solver.addRow(-free, float(self._capacity[k]), n, np.arange(n) * m + k, np.ones(n))
        for i in range(n):
            cells = np.arange(m) + i * m
            if self._scale[i] > 0.0:  # a row that can run nowhere does not hold the others down
                over = self._speed[i] / self._scale[i]
                solver.addRow(0.0, free, m + 1, np.append(cells, u), np.append(over, -1.0))
            if self._size is not None:
                solver.addCol(0.0, 0.0, 1.0, 0, [], [])
                runs = u + 1 + i
                solver.changeColIntegrality(runs, kind)
                solver.addRow(
                    0.0, 0.0, m + 1, np.append(cells, runs), np.append(np.ones(m), -float(self._size[i]))
                )
        if total:
            solver.addRow(total / unit, free, n * m, np.arange(n * m), rates.ravel())
        if least:
            solver.addRow(least, free, 1, np.array([u]), np.ones(1))
        solver.changeObjectiveSense(highspy.ObjSense.kMaximize)
        highs.run(solver, asked)
        found = np.array(solver.getSolution().col_value[: n * m]).reshape(n, m)
        return self._split(np.maximum(np.rint(found) if whole else found, 0.0))

    def _split(self, held: Matrix) -> Split:
        over = held.sum(axis=0) > self._capacity * (1.0 + 1e-6) + 1e-6
        if over.any():
            raise Infeasible("a split of devices", "the solver overfilled a type")
        reach: Vector = (self._speed * held).sum(axis=1)
        can = self._scale > 0.0
        least = float((reach[can] / self._scale[can]).min()) if can.any() else 0.0
        return Split(held, reach, float(reach.sum()), least)
