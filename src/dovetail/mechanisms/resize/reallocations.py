"""What reallocations have cost a job, and how far it may grow: rules that Pollux and Sia have in common.

Qiao et al., "Pollux", OSDI 2021, section 4.2; Jayaram Subramanya et al., "Sia", SOSP 2023, section 3.4.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dovetail.model.estimate import task_range
from dovetail.model.grant import Spots, devices_of
from dovetail.model.view import JobView

Past = dict[str, tuple[int, int]]  # by job: the most GPUs that it has had, and how often it was reallocated


def restart_factor(job: JobView, now: int, past: Past, delta: int) -> float:
    """What is left of the speed of a job that is reallocated: little if it is young or was often.

    Reconstructed: a job that waits loses nothing by a start.
    """
    if job.spots is None:
        return 1.0
    age = now - job.arrived_at
    _, restarts = past.get(job.id, (0, 0))
    return max(0.0, (age - restarts * delta) / (age + delta))


def most_gpus(job: JobView, past: Past) -> int:
    """Twice the most that a job has had, so that its scaling is known nearby; at first the fewest."""
    least, most = task_range(job.shape, job.traits)
    had, _ = past.get(job.id, (0, 0))
    return max(least * job.shape.each, min(most * job.shape.each, twice(had)))


def twice(had: int) -> int:
    return 2 * had


def remembered(jobs: Sequence[JobView], held: Mapping[str, Spots], past: Past) -> Past:
    """The past of these jobs after a decision; `held` is what they had before."""
    memory: Past = {}
    for job in jobs:
        most, restarts = past.get(job.id, (0, 0))
        now = job.spots or ()
        again = bool(held[job.id]) and now != held[job.id]
        memory[job.id] = max(most, devices_of(now)), restarts + again
    return memory
