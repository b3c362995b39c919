"""Speeds by GPU type, as measured while jobs run, and as declared until they are measured.

Gandiva_fair profiles a job on each generation of GPUs that it runs on, and trades only what it has profiled.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from dovetail.mechanisms.estimate.measured_speeds import MeasuredSpeeds
from dovetail.model.view import JobView, View


class Speeds(NamedTuple):
    """A job's speed on each GPU type on which it can run, and the types on which that is not known yet."""

    by_type: dict[str, float]
    unknown: frozenset[str] = frozenset()


def speeds_of(view: View, job: JobView, kinds: Iterable[str], measured: MeasuredSpeeds | None) -> Speeds:
    """The job's speeds on those of these types that it accepts.

    With `measured`, a job that names its model has to be measured; any other is as declared.
    """
    accepted = [kind for kind in kinds if not job.shape.types or kind in job.shape.types]
    found: dict[str, float] = {}
    unknown = set()
    for kind in accepted:
        speed = view.speed(job, type=kind).speed
        if speed <= 0:
            continue
        if measured is not None and job.model:
            seen = measured.estimate(view.cluster, job, job.shape.tasks, kind, None, None)
            if seen.certainty > 0:
                speed = seen.speed
            else:
                unknown.add(kind)
        found[kind] = speed
    return Speeds(found or dict.fromkeys(accepted, 1.0), frozenset(unknown))
