"""Queues that remember their order: after a decision running jobs are ahead of waiting ones.

The authors' simulator does this. A running job is safe from all waiting jobs of its queue, and a job that a
higher queue preempted is the first of its own queue to run again.
"""

from __future__ import annotations

from collections.abc import Iterable

from dovetail.model.view import JobView, View

QueueOrder = tuple[tuple[str, int], ...]  # jobs in order, each with the number of its queue


def queued_jobs(view: View, before: QueueOrder) -> list[JobView]:
    """All active jobs by queue: those of the last decision in their order, then jobs that entered since."""
    active = {job.id: job for job in (*view.running.values(), *view.queue)}
    kept = [active.pop(id) for id, stage in before if id in active and active[id].stage == stage]
    new = sorted(active.values(), key=lambda job: (job.stage_since, job.seq))
    return sorted(kept + new, key=lambda job: job.stage)


def queue_order(jobs: Iterable[JobView]) -> QueueOrder:
    """The queues after a decision: running jobs go before waiting ones, and else the order is kept."""
    return tuple((job.id, job.stage) for job in sorted(jobs, key=lambda job: (job.stage, job.spots is None)))
