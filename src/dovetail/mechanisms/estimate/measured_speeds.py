"""Speeds measured while jobs run: an estimator that needs no profile.

The rates of running jobs of the same model, with as many GPUs, on the same type, are averaged. Types on which
a model has not run yet are filled in from the other models. Speeds are relative to the job's reference run,
which is on a type of speed 1. The rate of a running job comes from its reports (live) or its progress
(simulated): `JobView.rate`.

Gavel (Narayanan et al., OSDI 2020, section 6) measures jobs in their first rounds and completes the matrix.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import numpy as np

from dovetail.mechanisms.estimate.matrix_completion import completed
from dovetail.model.cluster import Cluster
from dovetail.model.estimate import ASSUMED, DECLARED, IMPOSSIBLE, Estimate, may_run
from dovetail.model.grant import FULL
from dovetail.model.units import SECOND
from dovetail.model.view import JobView, View

WARM_UP = SECOND  # a job that started less than this ago is not measured
MEAN_OVER = 100  # a mean over more measurements than this forgets the oldest
MOST_CELLS = 2_000  # beyond this, the cells first measured longest ago are dropped

Model = tuple[str, int]  # a model, and the number of GPUs
Cell = tuple[str, int, str]  # the same, on a GPU type
UNKNOWN: Model = ("", 0)


@dataclass(frozen=True)
class MeasuredSpeeds:
    """Speeds measured so far: an estimator (model.estimate), and a value that a policy keeps in its memory.

    Its certainty is n / (n + 1) after n measurements of the model on the type, and 0 without any. A job is
    measured while it runs alone and whole on one type, from a second after its start. A job that never
    reported a rate has a rate of exactly 1, so a rate of 1 counts only for models of which another rate was
    measured. Jobs that name no model are taken to be like the typical model.
    """

    means: Mapping[Cell, tuple[float, int]] = field(default_factory=dict)  # mean, and of how many
    of_types: Mapping[str, float] = field(default_factory=dict)  # the cluster's own speed of each type
    reporting: frozenset[str] = frozenset()  # models with a rate other than 1

    @property
    def individual(self) -> bool:
        return False

    def observed(self, view: View) -> MeasuredSpeeds:
        """With the rates of the jobs that run now."""
        of_types = view.cluster.type_speeds
        rates = [
            (job.model, job.gpus, kind, job.rate)
            for job in view.running.values()
            if job.model and job.rate > 0 and (kind := _kind(view, job)) is not None
        ]
        reporting = self.reporting | {model for model, _, _, rate in rates if rate != 1.0}
        changed: dict[Cell, tuple[float, int]] = {}
        for model, gpus, kind, rate in rates:
            if model in reporting:
                cell = model, gpus, kind
                mean, count = changed.get(cell) or self.means.get(cell, (0.0, 0))
                count = min(count + 1, MEAN_OVER)
                changed[cell] = mean + (rate - mean) / count, count
        if of_types == self.of_types and all(self.means.get(cell) == mean for cell, mean in changed.items()):
            return self
        means = {**self.means, **changed}
        if len(means) > MOST_CELLS:
            old = set([cell for cell in means if cell not in changed][: len(means) - MOST_CELLS])
            means = {cell: mean for cell, mean in means.items() if cell not in old}
        return MeasuredSpeeds(means, of_types, reporting)

    def estimate(
        self, cluster: Cluster, job: JobView, tasks: int, type: str, nodes: int | None, batch: int | None
    ) -> Estimate:
        """As measured, else as the other models make likely, else the cluster's speed of the type.

        For another number of tasks, other nodes or another batch size than the job asked for, the measured
        speed is scaled as its profile declares. The same model measured with another number of GPUs does not
        help: on Gavel's table its ratios between types are no nearer (47 % off) than those of the typical
        model (45 %).
        """
        shape = job.shape
        if not may_run(shape, job.traits, tasks, type):
            return IMPOSSIBLE
        row = self._table.get((job.model, shape.gpus)) or self._table[UNKNOWN]
        speed = row.get(type, self.of_types.get(type, 1.0))
        if tasks != shape.tasks or nodes is not None or batch is not None:
            asked = DECLARED.estimate(cluster, job, shape.tasks, type, None, None).speed
            other = DECLARED.estimate(cluster, job, tasks, type, nodes, batch).speed
            return Estimate(speed * other / asked if asked else 0.0, ASSUMED)
        _, count = self.means.get((job.model, shape.gpus, type), (0.0, 0))
        return Estimate(speed, count / (count + 1))

    def measured(self, job: JobView) -> Mapping[str, float]:
        """The measured speeds of jobs of the same model and number of GPUs, by type."""
        key = job.model, job.gpus
        return {cell[2]: mean for cell, (mean, _) in self.means.items() if cell[:2] == key}

    def __reduce__(self) -> tuple[type[MeasuredSpeeds], tuple[object, ...]]:
        return MeasuredSpeeds, (self.means, self.of_types, self.reporting)  # without what is derived

    @cached_property
    def _table(self) -> Mapping[Model, Mapping[str, float]]:
        cells = tuple((cell, mean) for cell, (mean, _) in self.means.items())
        return _completed(cells, tuple(self.of_types.items()))


@lru_cache(maxsize=16)
def _completed(
    cells: tuple[tuple[Cell, float], ...], of_types: tuple[tuple[str, float], ...]
) -> Mapping[Model, Mapping[str, float]]:
    """Every model on every type, and a row for the unknown model.

    The table is completed as multiples of the cluster's speeds of the types, which stand where nothing is
    known. The reference run is on a type of speed 1. So a model that is slow where it runs is taken to be
    slowed by that type: it is expected to be faster on types where it has not run, and is tried there.
    """
    speeds = dict(of_types)
    kinds = list(dict.fromkeys((*speeds, *(cell[2] for cell, _ in cells))))
    column = {kind: number for number, kind in enumerate(kinds)}
    models: list[Model] = [*dict.fromkeys(cell[:2] for cell, _ in cells), UNKNOWN]
    row = {model: number for number, model in enumerate(models)}
    base = np.array([speeds.get(kind, 1.0) or 1.0 for kind in kinds])
    table = np.full((len(models), len(kinds)), np.nan)
    for (model, gpus, kind), mean in cells:
        table[row[model, gpus], column[kind]] = mean / base[column[kind]]
    filled = completed(table, around=1.0) * base
    for (model, gpus, kind), mean in cells:
        filled[row[model, gpus], column[kind]] = mean  # to the last digit
    return {
        model: dict(zip(kinds, map(float, cells_of), strict=True))
        for model, cells_of in zip(models, filled, strict=True)
    }


def _kind(view: View, job: JobView) -> str | None:
    """The one type that a job runs on, alone and as requested, long enough to measure; None otherwise."""
    if job.spots is None or job.terms != FULL or view.now - job.started_at < WARM_UP:
        return None
    if not job.shape.exclusive or job.held != job.shape.load:
        return None
    nodes = view.cluster.nodes
    kinds = {nodes[node].type.name for node, devices, *_ in job.spots if devices}
    return kinds.pop() if len(kinds) == 1 else None
