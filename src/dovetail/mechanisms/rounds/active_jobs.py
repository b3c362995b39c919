"""The jobs that compete for GPUs in a round, and those that do not."""

from __future__ import annotations

from collections.abc import Iterable

from dovetail.model.view import JobView, Plan, View


def gpu_jobs(view: View) -> list[JobView]:
    """All active jobs that need GPUs, by submission."""
    jobs = [job for job in (*view.running.values(), *view.queue) if job.shape.each]
    jobs.sort(key=lambda job: job.seq)
    return jobs


def start_cpu_jobs(view: View, plan: Plan) -> None:
    """Start waiting jobs without GPUs, by submission: they keep no other job from its GPUs."""
    queue = view.queue
    heaps = [heap for shape in queue.shapes() if not shape.each for heap in queue.groups(shape).values()]
    jobs = [entry[2] for heap in heaps for entry in heap if queue.waiting(entry)]
    for job in sorted(jobs, key=lambda job: job.seq):
        plan.start(job)


def start_on_mixed_types(plan: Plan, jobs: Iterable[JobView]) -> None:
    """Start jobs that no single GPU type can hold on devices of several types, if these are free."""
    for job in jobs:
        if job.spots is None:
            spots = plan.room.anywhere(job.shape)
            if spots is None:
                plan.deny(job, "Resources", "no type has so many GPUs: it waits until enough are idle")
            else:
                plan.start(job, spots)
