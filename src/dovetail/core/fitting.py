"""An elastic job that asks for more than the empty cluster holds asks for as much as fits instead.

The job keeps its bounds. Its reference run becomes the smaller one, which takes longer, so its work and its
estimate grow by as much: the same job takes the same time on the same devices, whichever of the two is told.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter

from dovetail.core.room import Room
from dovetail.model.cluster import Cluster
from dovetail.model.estimate import declared_speed, task_range
from dovetail.model.goodput import reference_goodput
from dovetail.model.job import Job
from dovetail.model.splicing import workers
from dovetail.model.topology import fewest_nodes


def fitting(room: Room, job: Job) -> Job | None:
    """The job as the empty cluster holds it; None if it cannot run there at all."""
    shape = job.shape
    if room.ever(shape):
        return job
    least, _ = task_range(shape, job.traits)
    for tasks in range(shape.tasks - 1, least - 1, -1):
        if room.ever(shape.of(tasks)):
            return _smaller(room.cluster, job, tasks)
    return None


def all_fitting(cluster: Cluster, jobs: Sequence[Job]) -> Sequence[Job]:
    """The jobs, with the elastic ones as the cluster holds them. A job that cannot run is left as it is."""
    traits = list(map(attrgetter("traits"), jobs))
    distinct = dict(zip(map(id, traits), traits, strict=True))  # many jobs share theirs
    if not any(one.elastic for one in distinct.values()):
        return jobs
    room = Room(cluster)
    return [(fitting(room, job) or job) if job.traits.elastic else job for job in jobs]


def _smaller(cluster: Cluster, job: Job, tasks: int) -> Job:
    traits = job.traits
    if traits.splice is not None:  # its workers stay as many
        traits = replace(traits, most=workers(job.shape, traits))
    slower = _reference(cluster, job, job.shape.tasks) / _reference(cluster, job, tasks)
    return replace(
        job,
        shape=job.shape.of(tasks),
        traits=traits,
        work=round(job.work * slower),
        estimate=round(job.estimate * slower),
        fails_after=None if job.fails_after is None else round(job.fails_after * slower),
    )


def _reference(cluster: Cluster, job: Job, tasks: int) -> float:
    """The speed of the reference run that the job would have if it asked for this number of tasks."""
    profile, shape = job.traits.profile, job.shape.of(tasks)
    if profile is not None and profile.goodput is not None:
        largest = max(node.gpus for node in cluster.nodes)  # the shape may need more nodes than there are
        across = fewest_nodes(cluster, shape) > 1 or shape.gpus > largest
        return reference_goodput(profile.goodput, shape.gpus or 1, across)
    kind = next(iter(shape.types or cluster.type_speeds))
    return declared_speed(cluster, job.shape, job.traits, tasks, kind).speed
