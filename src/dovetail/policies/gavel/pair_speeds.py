"""The pairs of jobs that may share devices, and how fast each job is beside the other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dovetail.mechanisms.place.gpu_types import of_type
from dovetail.mechanisms.share.device_pairs import pair_shape
from dovetail.model.job import Shape
from dovetail.model.view import JobView, Room
from dovetail.policies.gavel.speed_table import SpeedTable
from dovetail.solve.space_sharing import NONE, Pairs
from dovetail.solve.time_shares import IntVector, Vector


def pairs_of(room: Room, jobs: Sequence[JobView], table: SpeedTable, paces: Vector) -> Pairs:
    """All pairs of jobs that may share devices, worked out once for all jobs of the same model and shape."""
    row = {job.id: speeds for job, speeds in zip(table.jobs, table.speed, strict=True)}
    members: dict[tuple[str, Shape, int], list[int]] = {}
    for i, job in enumerate(jobs):
        if job.model and job.traits.profile is not None and job.traits.profile.beside:
            members.setdefault((job.model, job.shape, id(job.traits.profile)), []).append(i)
    classes = [np.array(rows) for rows in members.values()]
    found: list[tuple[IntVector, IntVector, int, float, float]] = []
    for a, mine in enumerate(classes):
        for theirs in classes[a:]:
            one, other = jobs[mine[0]], jobs[theirs[0]]
            both = pair_shape(one.shape, other.shape)
            if both is None:
                continue
            first, second = (side.ravel() for side in np.meshgrid(mine, theirs, indexing="ij"))
            if mine is theirs:
                first, second = first[first < second], second[first < second]
            for k, way in enumerate(table.ways):
                speeds = speed_beside(one, other, way), speed_beside(other, one, way)
                fit = min(*speeds, row[one.id][k], row[other.id][k]) > 0
                if fit and (both == one.shape or room.ever(of_type(both, way))):
                    found.append((first, second, k, *speeds))
    if not found:
        return NONE
    first = np.concatenate([row[0] for row in found])
    second = np.concatenate([row[1] for row in found])
    sizes = [len(row[0]) for row in found]
    way_of, of_first, of_second = (np.repeat([row[c] for row in found], sizes) for c in (2, 3, 4))
    of_first, of_second = of_first * paces[first], of_second * paces[second]
    swap = first > second
    early, late = np.where(swap, second, first), np.where(swap, first, second)
    order = np.lexsort((way_of, late, early))
    return Pairs(
        early[order],
        late[order],
        way_of[order],
        np.where(swap, of_second, of_first)[order],
        np.where(swap, of_first, of_second)[order],
    )


def speed_beside(job: JobView, other: JobView, way: str) -> float:
    """The speed of a job that shares its devices with the other, relative to its reference; 0: unknown."""
    profile = job.traits.profile
    return profile.beside.get(way, {}).get(other.model, 0.0) if profile is not None else 0.0
