"""Elastic scaling with batch size: GPUs where they make the largest sum of speed-ups (Saxena et al., 2020).

Saxena, Jayaram, Basu, Sabharwal and Verma, "Effective Elastic Scaling of Deep Learning Workloads", MASCOTS
2020. A job whose batch may grow scales to more GPUs than one whose batch is fixed, for each GPU has enough to
do between two exchanges. So GPUs and batch are decided together. The speed-up of a job with k GPUs is its
throughput there at the best batch within its bounds, over that with one GPU at the best batch for one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dovetail.mechanisms.allocate.marginal_gain import can_resize
from dovetail.mechanisms.allocate.sizes import Left, Sizes, whole_cluster
from dovetail.mechanisms.estimate.throughput import batch_on_grant, samples_by_tasks
from dovetail.mechanisms.order.keys import arrival
from dovetail.mechanisms.place.placement import Placement, scattered
from dovetail.mechanisms.resize.batch_sizes import set_batches
from dovetail.mechanisms.resize.resizing import enact_sizes
from dovetail.mechanisms.share.sharing import exclusive
from dovetail.model.estimate import task_range
from dovetail.model.units import WHOLE, micros
from dovetail.model.view import JobView, Order, Plan, View
from dovetail.solve.largest_sum import Floats, largest_sum


def vaibhav(
    *, interval: float = 600.0, most_gpus: int = 10, batch: Literal["elastic", "fixed"] = "elastic"
) -> Vaibhav:
    """Jobs start in order of arrival at their least; GPUs go where they make the largest sum of speed-ups.

    `interval`: seconds between two decisions if nothing happens. `most_gpus`: of a job. `batch=fixed`: every
    job keeps the batch of its reference run, and is scaled by GPUs alone.
    """
    if interval <= 0 or most_gpus < 1:
        raise ValueError(f"interval is above 0 s and most_gpus at least 1, not {interval} and {most_gpus}")
    if batch not in ("elastic", "fixed"):
        raise ValueError(f"batch is elastic or fixed, not {batch!r}")
    return Vaibhav(interval=micros(interval), most_gpus=most_gpus, fixed=batch == "fixed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Vaibhav:
    """Admission in order of arrival, a dynamic program for the sizes, and a batch for each job."""

    interval: int
    most_gpus: int
    fixed: bool
    place: Placement = scattered
    order: Order = arrival
    group: None = None
    quantum: None = None

    def decide(self, view: View) -> Plan:
        sizes = self.sizes(view)
        plan = view.draft()
        enact_sizes(view, plan, sizes, self.order, self.place, exclusive)
        set_batches(plan, view.running.values(), lambda job: batch_on_grant(view, job, fixed=self.fixed))
        if view.running:
            plan.review_at = (view.now // self.interval + 1) * self.interval
        return plan

    def sizes(self, view: View) -> Sizes:
        """The tasks of each job; 0 for jobs that are not admitted."""
        left = whole_cluster(view)
        jobs = admitted(view, left)
        elastic = [job for job in jobs if can_resize(job)]
        for job in elastic:
            left.take(job, -least_tasks(job))
        return (
            dict.fromkeys((job.id for job in view.queue), 0)
            | {job.id: least_tasks(job) for job in jobs}
            | self._shares(view, elastic, left)
        )

    def _shares(self, view: View, jobs: Sequence[JobView], left: Left) -> dict[str, int]:
        if not jobs:
            return {}
        ranges = [self._range(job, left) for job in jobs]
        widest = max(job.shape.each * tasks[-1] for job, tasks in zip(jobs, ranges, strict=True))
        values = np.full((len(jobs), widest + 1), -np.inf)
        speeds = _speeds(view, fixed=self.fixed)
        for row, job, tasks in zip(values, jobs, ranges, strict=True):
            row[[job.shape.each * count for count in tasks]] = speed_ups(speeds(job, tasks), tasks[0])
        gpus = largest_sum(values, left.milli // WHOLE)
        if gpus is None:  # running jobs are on nodes that were lost, and hold more than there is
            return {}
        return {job.id: count // job.shape.each for job, count in zip(jobs, gpus.tolist(), strict=True)}

    def _range(self, job: JobView, left: Left) -> range:
        """The numbers of tasks that the job may have."""
        least, most = task_range(job.shape, job.traits)
        most = max(least, min(most, self.most_gpus // job.shape.each))
        while most > least and not left.allows(job, most):
            most -= 1
        return range(least, most + 1)


def admitted(view: View, left: Left) -> list[JobView]:
    """Running jobs, and waiting ones in order of arrival while each job can have its least.

    A job that its tenant's limit keeps waiting delays no other job.
    """
    jobs = list(view.running.values())
    for job in jobs:
        left.take(job, least_tasks(job))
    for job in sorted(view.queue, key=lambda job: (job.arrived_at, job.seq)):
        tasks = least_tasks(job)
        if left.allows(job, tasks):
            if not left.fits(job, tasks):
                break
            left.take(job, tasks)
            jobs.append(job)
    return sorted(jobs, key=lambda job: job.seq)


def least_tasks(job: JobView) -> int:
    """The fewest tasks with which a job is run."""
    return task_range(job.shape, job.traits)[0] if can_resize(job) else job.shape.tasks


def speed_ups(speeds: Sequence[float], least: int) -> Floats:
    """Speeds over that of one task, if the first of them is of this many tasks that scale linearly."""
    first = speeds[0]
    return np.array(speeds) * (least / first) if first > 0 else np.zeros(len(speeds))


def _speeds(view: View, *, fixed: bool) -> Callable[[JobView, Sequence[int]], Sequence[float]]:
    table = view.table()
    curves = {job.id: curve for job, curve in zip(table.jobs, table.speeds.tolist(), strict=True)}

    def speeds(job: JobView, sizes: Sequence[int]) -> Sequence[float]:
        found = samples_by_tasks(view, job, sizes, fixed=fixed)
        return [curves[job.id][tasks] for tasks in sizes] if found is None else found

    return speeds
