"""How fast each active job would run in each way: on a GPU type, packed or split over more nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dovetail.mechanisms.estimate.speeds import by_type
from dovetail.mechanisms.place.gpu_types import SPLIT, of_type
from dovetail.mechanisms.rounds.active_jobs import gpu_jobs
from dovetail.model.job import Shape, Traits
from dovetail.model.view import JobView, View
from dovetail.solve.time_shares import Matrix


@dataclass(frozen=True, slots=True)
class SpeedTable:
    """The active jobs, the ways to run, and speeds relative to the reference run; 0: it cannot run so."""

    jobs: Sequence[JobView]
    ways: tuple[str, ...]
    speed: Matrix


class SpeedTables:
    """Makes the table of each round; rows of jobs that were there before are not worked out again.

    A row depends on the cluster, the estimator and what is constant of a job, so what is kept only saves
    time. An estimator that answers job by job may change its mind: then nothing is kept.
    """

    __slots__ = ("_basis", "_rows")

    def __init__(self) -> None:
        self._basis: tuple[Any, ...] = ()
        self._rows: dict[str, tuple[Shape, Traits, str, tuple[float, ...]]] = {}

    def table(self, view: View, held: Mapping[str, int], *, placement: bool) -> SpeedTable:
        """Speeds by the view's estimator; with `placement`, split placements are ways of their own.

        `held` are the milli-GPUs of each type.
        """
        jobs, kinds = gpu_jobs(view), sorted(held)
        basis = (view.cluster, view.estimator, held, placement)
        same = len(self._basis) == len(basis) and all(
            mine is its or (mine == its and mine is held)
            for mine, its in zip(basis, self._basis, strict=True)
        )
        before = self._rows if same and not view.estimator.individual else {}
        rows: dict[str, tuple[Shape, Traits, str, tuple[float, ...]]] = {}
        for job in jobs:
            row = before.get(job.id)
            if row is None or not (row[0] is job.shape and row[1] is job.traits and row[2] == job.model):
                row = job.shape, job.traits, job.model, self._row(view, job, kinds, held, placement)
            rows[job.id] = row
        self._basis, self._rows = basis, rows
        ways = (*kinds, *(kind + SPLIT for kind in kinds)) if placement else tuple(kinds)
        speed = np.array([rows[job.id][3] for job in jobs], dtype=np.float64).reshape(len(jobs), len(ways))
        return SpeedTable(jobs, ways, speed)

    def _row(
        self, view: View, job: JobView, kinds: Sequence[str], held: Mapping[str, int], placement: bool
    ) -> tuple[float, ...]:
        known = by_type(view, job, kinds)
        shape = job.shape
        speeds = [
            max(speed, 0.0)
            if shape.load <= held[kind]
            and kind in (shape.types or kinds)
            and view.room.ever(of_type(shape, kind))
            else 0.0
            for kind, speed in zip(kinds, known, strict=True)
        ]
        if not placement:
            return tuple(speeds)
        profile = job.traits.profile
        slower = [profile.split_on(kind) if profile else 1.0 for kind in kinds]
        split = [speed / by if shape.tasks > 1 else 0.0 for speed, by in zip(speeds, slower, strict=True)]
        return (*speeds, *split)
