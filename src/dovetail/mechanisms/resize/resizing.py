"""From the sizes that jobs are to have to a plan: which running jobs are resized, and in which order.

Free devices are given out first, then running jobs shrink or stop, and then the devices that they leave are
given to the other jobs: a waiting job starts, and a running job grows, as soon as those are free.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from dovetail.mechanisms.allocate.sizes import Sizes
from dovetail.mechanisms.place.placement import Placement
from dovetail.mechanisms.share.sharing import Share
from dovetail.model.errors import PlanError
from dovetail.model.estimate import task_range
from dovetail.model.grant import devices_of
from dovetail.model.job import Shape
from dovetail.model.view import JobView, Order, Plan, View

Resize = Callable[[View, Sizes], Sizes]


def rigid(view: View, sizes: Sizes) -> Sizes:
    """Running jobs keep the size with which they started."""
    return {job_id: tasks for job_id, tasks in sizes.items() if job_id not in view.running or not tasks}


def elastic(view: View, sizes: Sizes) -> Sizes:
    """Running jobs are resized whenever the allocation says so."""
    return sizes


def enact_sizes(view: View, plan: Plan, sizes: Sizes, order: Order, place: Placement, share: Share) -> None:
    """Start, resize and stop jobs so that they have these sizes, as far as there is room."""
    now = view.now
    waiting = []
    for job in view.queue if view.queue.head() is not None else ():
        tasks = sizes.get(job.id, job.shape.tasks)
        if tasks:
            waiting.append((order.key(job, now), job.seq, job, _checked(job, tasks)))
        else:
            plan.deny(job, "Priority", "the allocation has no GPUs for it now")
    waiting.sort(key=lambda row: row[:2])
    running = [(job, sizes[job.id]) for job in view.running.values() if job.id in sizes]
    for _, _, job, tasks in waiting:
        start(plan, job, tasks, place)
    grows = [(job, tasks) for job, tasks in running if job.shape.each and tasks > held_tasks(job)]
    lacks = [(job, tasks) for job, tasks in grows if not grow(plan, job, _checked(job, tasks))]
    shrinks = [(job, tasks) for job, tasks in running if tasks < held_tasks(job)]
    for job, tasks in shrinks:
        if tasks:
            plan.resize(job, tasks)
        elif job.traits.preemptible:
            plan.stop(job)
    for _, _, job, tasks in waiting:
        if job.spots is None and not start_smaller(plan, job, tasks, place) and not share(view, plan, job):
            plan.deny(job, "Resources")
    if shrinks:
        for job, tasks in lacks:
            grow(plan, job, tasks)


def held_tasks(job: JobView) -> int:
    """With how many tasks a job runs; 0 while it waits."""
    if job.spots is None:
        return 0
    return devices_of(job.spots) // job.shape.each if job.shape.each else job.shape.tasks


def _checked(job: JobView, tasks: int) -> int:
    least, most = task_range(job.shape, job.traits)
    if not least <= tasks <= most:
        raise PlanError(f"job {job.id} runs with {least} to {most} tasks, not {tasks}")
    return tasks


def grow(plan: Plan, job: JobView, tasks: int) -> bool:
    """To this number of tasks, or as near as there is room; whether it has them all."""
    has = held_tasks(job)
    room = plan.room.free_gpus // job.shape.each
    for size in range(min(tasks, has + room), has, -1):
        if plan.resize(job, size):
            return size == tasks
    return False


def start_smaller(plan: Plan, job: JobView, tasks: int, place: Placement) -> bool:
    """With this number of tasks, or with fewer, as far as the job runs with fewer."""
    least, _ = task_range(job.shape, job.traits)
    return any(start(plan, job, size, place) for size in range(tasks, least - 1, -1))


def start(plan: Plan, job: JobView, tasks: int, place: Placement) -> bool:
    """With this number of tasks, where the placement finds room."""
    spots = place.find(plan.room, sized(job, tasks))
    return spots is not None and plan.start(job, spots)


def sized(job: JobView, tasks: int) -> JobView:
    """The job as if it asked for this number of tasks, for a placement to look at."""
    return job if tasks == job.shape.tasks else cast("JobView", _Sized(job, job.shape.of(tasks)))


class _Sized:
    __slots__ = ("_job", "gpus", "shape")

    def __init__(self, job: JobView, shape: Shape) -> None:
        self._job = job
        self.shape = shape
        self.gpus = shape.gpus

    def __getattr__(self, name: str) -> Any:
        return getattr(self._job, name)
