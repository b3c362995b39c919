"""How fast each active job would run in each way: on a GPU type, packed or split over more nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import is_

import numpy as np

from dovetail.mechanisms.estimate.speeds import by_type
from dovetail.mechanisms.place.gpu_types import SPLIT, of_type
from dovetail.mechanisms.rounds.active_jobs import gpu_jobs
from dovetail.model.cluster import Cluster
from dovetail.model.estimate import Estimator
from dovetail.model.view import JobView, View
from dovetail.solve.time_shares import Matrix, Vector


@dataclass(frozen=True, slots=True)
class SpeedTable:
    """The active jobs, the ways to run, and speeds relative to the reference run; 0: it cannot run so."""

    jobs: Sequence[JobView]
    ways: tuple[str, ...]
    speed: Matrix
    # What follows from these. Most rounds have the jobs of the round before, and then all of it.
    rows: Mapping[str, tuple[float, ...]]  # the speeds of each job
    pace: Vector  # steps a second of each job's reference run; 1 if it is not known
    fastest: Sequence[str]  # the ways to run by their mean speed, the fastest first
    on_no_type: Sequence[JobView]  # jobs that no single type can hold
    held: Mapping[str, int]  # milli-GPUs of each type
    basis: frozenset[tuple[str, int]]  # the jobs and what is held


_Row = tuple[JobView, tuple[float, ...], float]  # a job, its speeds, its pace


class SpeedTables:
    """Makes the table of each round; rows of jobs that were there before are not worked out again.

    A row depends on the cluster, the estimator and what is constant of a job, so what is kept only saves
    time. An estimator that answers job by job may change its mind: then nothing is kept.
    """

    __slots__ = ("_asked", "_last", "_rows")

    def __init__(self) -> None:
        self._asked: tuple[Cluster, Estimator, bool] | None = None
        self._last: SpeedTable | None = None
        self._rows: dict[str, _Row] = {}

    def table(self, view: View, held: Mapping[str, int], *, placement: bool) -> SpeedTable:
        """Speeds by the view's estimator; with `placement`, split placements are ways of their own.

        `held` are the milli-GPUs of each type.
        """
        jobs, last, before = gpu_jobs(view), self._last, self._rows
        asked = view.cluster, view.estimator, placement
        if (
            last is None
            or self._asked is None
            or not all(map(is_, asked, self._asked))
            or held != last.held
            or view.estimator.individual
        ):
            before = {}
        elif len(jobs) == len(last.jobs) and all(map(is_, jobs, last.jobs)):
            return last
        kinds = sorted(held)
        rows: dict[str, _Row] = {}
        for job in jobs:
            row = before.get(job.id)
            if row is None or row[0] is not job:
                row = job, self._row(view, job, kinds, held, placement), pace(job)
            rows[job.id] = row
        ways = (*kinds, *(kind + SPLIT for kind in kinds)) if placement else tuple(kinds)
        speeds = {id: row[1] for id, row in rows.items()}
        speed = np.array([*speeds.values()], dtype=np.float64).reshape(len(jobs), len(ways))
        mean = np.add.reduce(speed) / max(len(jobs), 1)
        self._asked, self._rows = asked, rows
        self._last = made = SpeedTable(
            jobs,
            ways,
            speed,
            rows=speeds,
            pace=np.array([row[2] for row in rows.values()]),
            fastest=[way for _, way in sorted(zip((-mean).tolist(), ways, strict=True))],
            on_no_type=[job for job in jobs if max(speeds[job.id], default=0.0) <= 0.0],
            held=held,
            basis=frozenset([*((id, 0) for id in rows), *held.items()]),
        )
        return made

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


def pace(job: JobView) -> float:
    """Steps a second of the reference run: throughputs of different models are added without scaling."""
    profile = job.traits.profile
    return (profile.pace if profile else 0.0) or 1.0
