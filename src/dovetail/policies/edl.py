"""Elastic Tiresias on EDL: jobs shrink for pending jobs and grow on idle GPUs (Wu et al., TPDS 2022)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil

from dovetail.mechanisms.allocate.marginal_gain import Gain, Surplus, can_resize, dealt, efficiency
from dovetail.mechanisms.allocate.sizes import Allocate, Left, milli_each, whole_cluster
from dovetail.mechanisms.order.attained_service import attained_service
from dovetail.mechanisms.place.placement import scattered
from dovetail.mechanisms.preempt.full_ranking import ranked
from dovetail.mechanisms.resize.resizing import elastic
from dovetail.model.estimate import task_range
from dovetail.model.units import micros
from dovetail.model.view import JobView, Policy, View
from dovetail.policies.composed import Composed

ROUNDING = 1e-9  # a tenth of 30 tasks is 3, though not in floating point


def edl(
    *, floor: float = 0.5, thresholds: Sequence[float] = (3250.0,), quantum: float | None = 60.0
) -> Policy:
    """The queues of tiresias-l; running jobs shrink so that pending jobs start, and grow on idle GPUs.

    Jobs rank by attained GPU-time, in queues that part at `thresholds` (GPU-seconds), and get what they ask
    for while that fits. If jobs are pending then, running jobs give up GPUs, down to the part `floor` of what
    they asked for: those of the last queue first, where a GPU adds least speed. GPUs that are left go one by
    one where they add most.

    Deviation: a pending job starts with the part `floor`, and one pending job is enough for running jobs to
    shrink; the paper's rules for both were not available.
    """
    if not 0 < floor <= 1:
        raise ValueError(
            f"floor is the part of its request that a job keeps, above 0 and up to 1, not {floor}"
        )
    return Composed(
        order=attained_service([micros(level) for level in thresholds]),
        allocate=compacted_and_expanded(floor),
        place=scattered,
        resize=elastic,
        quantum=micros(quantum) if quantum else None,
    )


def compacted_and_expanded(part: float) -> Allocate:
    """Sizes: as asked, by rank; then compaction for pending jobs, then expansion onto what is left.

    All of it is worked out anew at each decision from the jobs and their ranks, never from the sizes that
    they have, so that the same jobs get the same sizes whenever the policy is asked.
    """

    def allocate(view: View) -> dict[str, int]:
        jobs, left = ranked(view, _rank), whole_cluster(view)
        asked = {job.id: _asked(job, left.milli) for job in jobs}
        sizes = _by_rank(jobs, asked, left)
        gain = efficiency(view)
        _compact(jobs, sizes, left, lambda job: _floor(job, asked[job.id], part), gain)
        return sizes | dealt([job for job in jobs if sizes[job.id]], sizes, left, gain)

    return allocate


def _rank(job: JobView) -> tuple[bool, int, int]:
    """By queue, then by entry into it; running jobs that cannot be preempted go before all others."""
    return job.spots is None or job.traits.preemptible, job.stage, job.stage_since


def _asked(job: JobView, total: int) -> int:
    """The tasks that a job asks for; as many as the cluster has, if the job runs with fewer."""
    if not can_resize(job):
        return job.shape.tasks
    return max(min(job.shape.tasks, total // milli_each(job)), task_range(job.shape, job.traits)[0])


def _floor(job: JobView, asked: int, part: float) -> int:
    """The fewest tasks that a job is left with."""
    least = task_range(job.shape, job.traits)[0]
    return max(ceil(part * asked - ROUNDING), least) if can_resize(job) else asked


def _by_rank(jobs: Sequence[JobView], asked: dict[str, int], left: Left) -> dict[str, int]:
    """What each job asks for, in order of rank, while it fits."""
    sizes = dict.fromkeys(asked, 0)
    for job in jobs:
        if left.fits(job, tasks := asked[job.id]):
            left.take(job, tasks)
            sizes[job.id] = tasks
    return sizes


def _compact(
    jobs: Sequence[JobView], sizes: dict[str, int], left: Left, floor: Callable[[JobView], int], gain: Gain
) -> None:
    """Shrink jobs so that pending jobs start at their floors, in order of rank."""
    spare = Surplus(gain, floor, _last_queue_first)
    for job in jobs:
        if sizes[job.id]:
            spare.add(job, sizes[job.id])
    for job in jobs:
        load = (tasks := floor(job)) * milli_each(job)
        if not sizes[job.id] and load <= left.milli + spare.milli and left.allows(job, tasks):
            spare.take(sizes, left, load)
            left.take(job, tasks)
            sizes[job.id] = tasks


def _last_queue_first(job: JobView) -> int:
    return -job.stage
