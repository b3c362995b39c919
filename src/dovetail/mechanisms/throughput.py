"""How fast a job would go on each type of GPU: what a policy believes of it.

Two beliefs. *Declared*: what the job's profile says, and where it says nothing what the cluster says of its
types. *Seen*: what running jobs of the same model were measured at, filled in from other models where this
one has not been yet; nobody has to say anything. Speeds are against the job's reference run, which is on a
type of speed 1. The simulator's true speeds are another thing (model.speed), even when they agree.

Gavel (Narayanan et al., OSDI 2020, section 6) measures jobs in their first rounds and completes the matrix.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import numpy as np

from dovetail.mechanisms.completion import completed
from dovetail.model.cluster import Cluster
from dovetail.model.grant import FULL
from dovetail.model.units import SECOND
from dovetail.model.view import JobView, View

SETTLED = SECOND  # a job that began less than this ago has nothing to tell
FADES = 100  # a mean over more measurements than this forgets the oldest
MOST = 2_000  # cells kept: beyond, those first measured longest ago go

Model = tuple[str, int]  # a model, and the GPUs it asks for
Cell = tuple[str, int, str]  # the same, on a type
UNKNOWN: Model = ("", 0)


def declared(cluster: Cluster, job: JobView, types: Sequence[str]) -> tuple[float, ...]:
    """Speeds by type from the job's profile, else the types' own; 0 where it may not or cannot run."""
    own = _own(cluster)
    profile, allowed = job.traits.profile, job.shape.types
    said: Mapping[str, float] = profile.speeds if profile is not None else {}
    return tuple(
        said.get(kind, own.get(kind, 1.0)) if not allowed or kind in allowed else 0.0 for kind in types
    )


@dataclass(frozen=True)
class Seen:
    """Speeds measured so far: a value, to be kept in a policy's memory.

    A job counts while it runs alone and whole on one type, from a second after its start. A rate of exactly 1
    is what a job has that never reported any, so it counts only for models of which another rate was seen:
    a plane on which nothing reports teaches nothing, and one that reports is believed. Jobs that name no
    model cannot be known again; they go by what is typical of the others.
    """

    means: Mapping[Cell, tuple[float, int]] = field(default_factory=dict)  # mean, and of how many
    own: Mapping[str, float] = field(default_factory=dict)  # the types' speeds, as the cluster says
    reporting: frozenset[str] = frozenset()  # models with a rate other than 1

    def with_(self, view: View) -> Seen:
        """What is known once those who run now have been looked at."""
        own = _own(view.cluster)
        looks = [
            (job.model, job.gpus, kind, job.rate)
            for job in view.running.values()
            if job.model and job.rate > 0 and (kind := _kind(view, job)) is not None
        ]
        reporting = self.reporting | {model for model, _, _, rate in looks if rate != 1.0}
        changed: dict[Cell, tuple[float, int]] = {}
        for model, gpus, kind, rate in looks:
            if model in reporting:
                cell = model, gpus, kind
                mean, count = changed.get(cell) or self.means.get(cell, (0.0, 0))
                count = min(count + 1, FADES)
                changed[cell] = mean + (rate - mean) / count, count
        if own == self.own and all(self.means.get(cell) == mean for cell, mean in changed.items()):
            return self
        means = {**self.means, **changed}
        if len(means) > MOST:
            old = set([cell for cell in means if cell not in changed][: len(means) - MOST])
            means = {cell: mean for cell, mean in means.items() if cell not in old}
        return Seen(means, own, reporting)

    def speeds(self, job: JobView, types: Sequence[str]) -> tuple[float, ...]:
        """By type: as measured, else as the other models make likely, else the type's own speed.

        A model measured with another number of GPUs says nothing here: on Gavel's table its ratios between
        types are no nearer (47 % off) than those of the typical model (45 %).
        """
        allowed = job.shape.types
        row = self._table.get((job.model, job.gpus)) or self._table[UNKNOWN]
        return tuple(
            row.get(kind, self.own.get(kind, 1.0)) if not allowed or kind in allowed else 0.0
            for kind in types
        )

    def measured(self, job: JobView) -> Mapping[str, float]:
        """What was measured of its like, by type."""
        key = job.model, job.gpus
        return {cell[2]: mean for cell, (mean, _) in self.means.items() if cell[:2] == key}

    def __reduce__(self) -> tuple[type[Seen], tuple[object, ...]]:
        return Seen, (self.means, self.own, self.reporting)  # and not what was worked out from them

    @cached_property
    def _table(self) -> Mapping[Model, Mapping[str, float]]:
        cells = tuple((cell, mean) for cell, (mean, _) in self.means.items())
        return _completed(cells, tuple(self.own.items()))


@lru_cache(maxsize=16)
def _completed(
    cells: tuple[tuple[Cell, float], ...], own: tuple[tuple[str, float], ...]
) -> Mapping[Model, Mapping[str, float]]:
    """Every model on every type, the one of which nothing is known too.

    Completed as multiples of the types' own speeds, which stand where nothing is known. The reference run is
    on a type of speed 1, so if a model is slow where it runs, that is first of all the type's doing: it is
    believed faster where it has not been, and will be tried there.
    """
    speeds = dict(own)
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


def _own(cluster: Cluster) -> dict[str, float]:
    return {kind.name: kind.speed for kind in cluster.types}


def _kind(view: View, job: JobView) -> str | None:
    """The one type it runs on, alone and as it asked to, long enough to tell; None otherwise."""
    if job.spots is None or job.terms != FULL or view.now - job.started_at < SETTLED:
        return None
    if not job.shape.exclusive or job.held != job.shape.load:
        return None
    nodes = view.cluster.nodes
    kinds = {nodes[node].type.name for node, devices, *_ in job.spots if devices}
    return kinds.pop() if len(kinds) == 1 else None
