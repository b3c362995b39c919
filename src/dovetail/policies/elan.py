"""Elan: elastic FIFO and backfill, with jobs that are resized in a second (Xie et al., ICDCS 2020)."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Literal

from dovetail.mechanisms.allocate.marginal_gain import can_resize, dealt, efficiency
from dovetail.mechanisms.allocate.sizes import Allocate, Left, milli_each, whole_cluster
from dovetail.mechanisms.order.keys import arrival
from dovetail.mechanisms.place.placement import scattered
from dovetail.mechanisms.queue.future_capacity import FOREVER
from dovetail.mechanisms.resize.resizing import elastic
from dovetail.model.estimate import task_range
from dovetail.model.view import JobView, Policy, View
from dovetail.policies.composed import Composed


def elan(*, queue: Literal["fifo", "backfill"] = "fifo") -> Policy:
    """A job starts when the least with which it runs can be free; what is left goes where it adds most speed.

    Running jobs give GPUs back, down to their least, as soon as the next job can start with them; none is
    preempted. `fifo`: the first job that cannot start stops the queue. `backfill`: jobs behind it start too,
    if it can still start when it could with running jobs at their least, by declared durations.

    Deviation: the batch size is left to the job.
    """
    return Composed(order=arrival, allocate=elastic_queue(queue), place=scattered, resize=elastic)


def elastic_queue(queue: Literal["fifo", "backfill"]) -> Allocate:
    """Sizes: their least for jobs that run or start now, and what is left one task at a time."""

    def allocate(view: View) -> dict[str, int]:
        left, jobs = whole_cluster(view), list(view.running.values())
        for job in jobs:
            left.take(job, _least(job))
        jobs += _started(view, left, backfill=queue == "backfill")
        sizes = dict.fromkeys((job.id for job in view.queue), 0) | {job.id: _least(job) for job in jobs}
        return sizes | dealt(jobs, sizes, left, efficiency(view))

    return allocate


def _least(job: JobView) -> int:
    """The tasks with which a job starts, and which it keeps until it ends."""
    return task_range(job.shape, job.traits)[0] if can_resize(job) else job.shape.tasks


def _started(view: View, left: Left, *, backfill: bool) -> list[JobView]:
    """The waiting jobs that start: in order of arrival, up to the first whose least is not left.

    With `backfill` also jobs behind it that end before it can start, or leave enough for it. A job that its
    tenant's limit keeps waiting delays no other job.
    """
    found = list[JobView]()
    start, spare = -1, 0  # of the first job that waits: when it can start, and what it leaves then
    for job in sorted(view.queue, key=lambda job: (job.arrived_at, job.seq)):
        tasks = _least(job)
        if not left.allows(job, tasks):
            continue
        if not left.fits(job, tasks):
            if not backfill:
                break
            if start < 0:
                start, spare = _reservation(view, [*view.running.values(), *found], left, job)
            continue
        if start >= 0 and _end(view, job) > start:
            if (load := tasks * milli_each(job)) > spare:
                continue
            spare -= load
        left.take(job, tasks)
        found.append(job)
    return found


def _reservation(view: View, jobs: Sequence[JobView], left: Left, first: JobView) -> tuple[int, int]:
    """When the first waiting job can start at the latest, and the milli-GPUs that it does not need then."""
    free, load = left.milli, _least(first) * milli_each(first)
    for end, _, job in sorted((_end(view, job), job.seq, job) for job in jobs):
        free += _least(job) * milli_each(job)
        if free >= load:
            return end, free - load
    return FOREVER, 0


def _end(view: View, job: JobView) -> int:
    """When a job ends if it has its least from now on: what it has beyond that may be taken back."""
    speed = view.speed(job, tasks=_least(job)).speed
    return view.now + max(1, ceil(job.remaining_at(view.now) / speed)) if speed > 0 else FOREVER
