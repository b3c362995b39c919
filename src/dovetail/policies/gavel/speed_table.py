"""How fast each active job would run in each way: on a GPU type, packed or split over more nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dovetail.mechanisms.estimate.speeds import by_type
from dovetail.mechanisms.place.gpu_types import SPLIT, load_by_type, of_type
from dovetail.mechanisms.rounds.active_jobs import gpu_jobs
from dovetail.model.view import JobView, View
from dovetail.solve.time_shares import Matrix


@dataclass(frozen=True, slots=True)
class SpeedTable:
    """The active jobs, the ways to run, and speeds relative to the reference run; 0: it cannot run so."""

    jobs: Sequence[JobView]
    ways: Sequence[str]
    speed: Matrix


def speed_table(view: View, *, placement: bool) -> SpeedTable:
    """Speeds by the view's estimator; with `placement`, split placements are ways of their own."""
    jobs, held = gpu_jobs(view), load_by_type(view.cluster, view.room)
    kinds = sorted(held)
    speed = np.zeros((len(jobs), len(kinds)))
    fits: dict[tuple[object, str], bool] = {}
    for i, job in enumerate(jobs):
        known = by_type(view, job, kinds)
        for k, kind in enumerate(kinds):
            key = (job.shape, kind)
            if key not in fits:
                allowed = job.shape.load <= held[kind] and kind in (job.shape.types or kinds)
                fits[key] = allowed and view.room.ever(of_type(job.shape, kind))
            speed[i, k] = max(known[k], 0.0) if fits[key] else 0.0
    if not placement:
        return SpeedTable(jobs, kinds, speed)
    slower = np.ones(speed.shape)
    for i, job in enumerate(jobs):
        if job.traits.profile:
            slower[i] = [job.traits.profile.split_on(kind) for kind in kinds]
    gangs = np.array([job.shape.tasks > 1 for job in jobs])
    split = np.where(gangs[:, None], speed / slower, 0.0)
    return SpeedTable(jobs, [*kinds, *(kind + SPLIT for kind in kinds)], np.hstack([speed, split]))
