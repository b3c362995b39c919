"""How many containers of each application go where: the highest utilisation within two bounds.

Rows i are applications, columns g groups of equal servers, r resources. `x[i, g]` whole containers of i on
g; n_i of them in all, or none while it waits. With d the demand of a container, C all there is and s_i = n_i
max_r d_ir / C_r the dominant share,

    sum over i of x[i, g] d_i                  <= what group g has
    least_i <= n_i <= most_i                   or 0, if it has not started
    sum over i of |s_i - fair_i|               <= loss         fairness
    number of running i with another x[i]      <= resizes      each is stopped and resumed

and the sum over i and r of n_i d_ir / C_r (utilisation) is maximised. The objectives in order: as many
applications as possible run, the first rows before the last; the fairness bound is kept, or missed by as
little as possible; utilisation; and the fewest changes. (Sun et al., "Towards Distributed Machine Learning in
Shared Clusters", SMARTCOMP 2017.)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dovetail.solve import highs

Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]
IntVector = npt.NDArray[np.int64]
IntMatrix = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

RUN, MISS, CHANGE = 500.0, 100.0, 1e-3  # weights, against 1 for one resource wholly in use


@dataclass(frozen=True, slots=True, eq=False)
class Partition:
    """The problem, as arrays."""

    demand: Matrix  # i x r: of one container
    total: Vector  # r: the whole cluster; a resource of 0 counts in no share
    room: Matrix  # g x r: what each group of servers has for these applications
    fits: IntMatrix  # i x g: the most containers that its servers hold, one by one
    kind: IntVector  # g: an application stays on groups of one kind
    least: IntVector  # i
    most: IntVector  # i
    now: IntMatrix  # i x g: the containers that run; all 0 while it waits
    fair: Vector  # i: its fair share
    loss: float
    resizes: int


def divided(asked: Partition) -> IntMatrix:
    """The best x. Applications that run already keep running."""
    apps, groups = asked.now.shape
    if not asked.now.size:
        return asked.now
    plain = _without_choice(asked)
    if plain is not None:
        return plain
    runs = asked.now.sum(axis=1) > 0
    share = _parts(asked.demand, asked.total)
    program = _Program(f"containers of {apps} applications on {groups} groups of servers")
    x = [
        [program.column(share[i].sum(), asked.fits[i, g], whole=True) for g in range(groups)]
        for i in range(apps)
    ]
    starts = [program.column(RUN * (2 - i / apps), 1, whole=True, least=int(runs[i])) for i in range(apps)]
    missed = program.column(-MISS, np.inf)
    losses = [program.column(0.0, np.inf) for _ in range(apps)]
    for i in range(apps):
        count = [(at, 1.0) for at in x[i]]
        program.row([*count, (starts[i], -float(asked.least[i]))], 0.0, np.inf)
        program.row([*count, (starts[i], -float(asked.most[i]))], -np.inf, 0.0)
        dominant = [(at, float(share[i].max(initial=0.0))) for at in x[i]]
        program.row([*dominant, (losses[i], -1.0)], -np.inf, asked.fair[i])
        program.row([*dominant, (losses[i], 1.0)], asked.fair[i], np.inf)
    program.row([*((at, 1.0) for at in losses), (missed, -1.0)], -np.inf, asked.loss)
    for g in range(groups):
        for r in np.flatnonzero(asked.demand.any(axis=0) & np.isfinite(asked.room[g])):
            scale = max(asked.room[g, r], asked.demand[:, r].max())
            program.row(
                [(x[i][g], asked.demand[i, r] / scale) for i in range(apps)],
                -np.inf,
                asked.room[g, r] / scale,
            )
    _one_kind(program, asked, x)
    changes = []
    for i in np.flatnonzero(runs).tolist():
        change = program.column(-CHANGE, 1, whole=True)
        changes.append((change, 1.0))
        for g in range(groups):
            before, most = float(asked.now[i, g]), float(max(asked.fits[i, g], asked.now[i, g]))
            program.row([(x[i][g], 1.0), (change, -most)], -np.inf, before)
            program.row([(x[i][g], 1.0), (change, most)], before, np.inf)
    if changes:
        program.row(changes, -np.inf, asked.resizes)
    found = program.solved()
    placed: IntMatrix = np.rint(found[np.array(x)]).astype(np.int64)
    return placed


def _without_choice(asked: Partition) -> IntMatrix | None:
    """The best x where no program is needed: no application is elastic, and all that could start do.

    With fixed numbers of containers the shares and the use follow from which applications run. So it is best
    that nothing is moved and every application starts, but for those that need more than is left.
    """
    held = asked.now.sum(axis=1)
    if (asked.least != asked.most).any() or ((held > 0) & (held != asked.least)).any():
        return None
    free = asked.room - (asked.now[:, :, None] * asked.demand[:, None, :]).sum(axis=0)
    slack = 1e-9 * np.where(np.isfinite(asked.room), asked.room, 0.0)
    left = free.sum(axis=0)
    found = asked.now.copy()
    for i in np.flatnonzero(held == 0).tolist():
        if (asked.least[i] * asked.demand[i] > left + slack.sum(axis=0)).any():
            continue
        row = _first_kind(asked, i, free + slack)
        if row is None:
            return None
        found[i] = row
        free -= row[:, None] * asked.demand[i]
    return found


def _first_kind(asked: Partition, i: int, free: Matrix) -> IntVector | None:
    """The containers of one application on the first kind with room for all of them."""
    for kind in dict.fromkeys(asked.kind.tolist()):
        row, lacks = np.zeros(len(asked.kind), dtype=np.int64), int(asked.least[i])
        for g in np.flatnonzero(asked.kind == kind).tolist():
            needs = asked.demand[i] > 0
            fits = np.floor(free[g, needs] / asked.demand[i, needs]).min(initial=lacks)
            row[g] = max(0, min(lacks, int(asked.fits[i, g]), int(fits)))
            lacks -= int(row[g])
        if not lacks:
            return row
    return None


def _parts(demand: Matrix, total: Vector) -> Matrix:
    """The part of the cluster's total that one container takes; 0 for resources without bound."""
    return np.divide(demand, total, out=np.zeros_like(demand), where=total > 0)


def _one_kind(program: _Program, asked: Partition, x: list[list[int]]) -> None:
    kinds = np.unique(asked.kind)
    if len(kinds) < 2:
        return
    for i, row in enumerate(x):
        uses = {kind: program.column(0.0, 1, whole=True) for kind in kinds}
        program.row([(at, 1.0) for at in uses.values()], -np.inf, 1.0)
        for g, at in enumerate(row):
            program.row([(at, 1.0), (uses[asked.kind[g]], -float(asked.fits[i, g]))], -np.inf, 0.0)


class _Program:
    """A mixed-integer program, built column by column and row by row."""

    def __init__(self, asked: str) -> None:
        self._asked = asked
        self._cost: list[float] = []
        self._least: list[float] = []
        self._most: list[float] = []
        self._whole: list[bool] = []
        self._rows: list[tuple[list[tuple[int, float]], float, float]] = []

    def column(self, cost: float, most: float, *, least: float = 0.0, whole: bool = False) -> int:
        self._cost.append(float(cost))
        self._least.append(float(least))
        self._most.append(float(most))
        self._whole.append(whole)
        return len(self._cost) - 1

    def row(self, entries: list[tuple[int, float]], least: float, most: float) -> None:
        self._rows.append((entries, float(least), float(most)))

    def solved(self) -> Vector:
        """The values of all columns at the optimum."""
        import highspy  # noqa: PLC0415

        lp = highspy.HighsLp()
        lp.num_col_, lp.num_row_ = len(self._cost), len(self._rows)
        lp.sense_ = highspy.ObjSense.kMaximize
        lp.col_cost_, lp.col_lower_, lp.col_upper_ = map(np.array, (self._cost, self._least, self._most))
        lp.row_lower_ = np.array([least for _, least, _ in self._rows])
        lp.row_upper_ = np.array([most for _, _, most in self._rows])
        lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        lengths = [len(entries) for entries, _, _ in self._rows]
        lp.a_matrix_.start_ = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        lp.a_matrix_.index_ = np.array(
            [at for entries, _, _ in self._rows for at, _ in entries], dtype=np.int32
        )
        lp.a_matrix_.value_ = np.array([value for entries, _, _ in self._rows for _, value in entries])
        sort = highspy.HighsVarType
        lp.integrality_ = [sort.kInteger if whole else sort.kContinuous for whole in self._whole]
        solver = highs.fresh(self._asked, mip_rel_gap=0.0, mip_abs_gap=1e-6)
        highs.taken(solver.passModel(lp), self._asked)
        highs.run(solver, self._asked)
        return np.asarray(solver.getSolution().col_value)
