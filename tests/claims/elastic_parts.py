"""What claim files of elastic systems have in common: sizes over time, and broken parts for mutants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dovetail.mechanisms.allocate.marginal_gain import Gain
from dovetail.mechanisms.allocate.sizes import Left, Sizes
from dovetail.mechanisms.resize.resizing import held_tasks
from dovetail.model.estimate import task_range
from dovetail.model.grant import devices_of
from dovetail.model.units import SECOND, WHOLE
from dovetail.model.view import JobView, View
from dovetail.sim.run import Run


def sizes_at(result: Run, at: float) -> dict[str, int]:
    """GPUs of each job at a time, in seconds."""
    now = round(at * SECOND)
    return {s.job: devices_of(s.spots) for s in result.stretches if s.start <= now < s.end}


def in_order_of_arrival(
    jobs: Sequence[JobView], sizes: Mapping[str, int], left: Left, gain: Gain
) -> dict[str, int]:
    """In place of `dealt`: the first job gets what it can use, then the second."""
    grown = {}
    for job in sorted(jobs, key=lambda job: job.seq):
        more = min(left.milli // WHOLE, task_range(job.shape, job.traits)[1] - sizes[job.id])
        left.take(job, more)
        grown[job.id] = sizes[job.id] + more
    return grown


def stopped_first(view: View, sizes: Sizes) -> dict[str, int]:
    """In place of `elastic`: a job is stopped, and starts with another size at the next decision."""
    running = view.running
    return {
        id: 0 if id in running and tasks != held_tasks(running[id]) else tasks for id, tasks in sizes.items()
    }


def only_grown(view: View, sizes: Sizes) -> dict[str, int]:
    """In place of `elastic`: a job keeps what it has, and may get more."""
    running = view.running
    return {
        id: max(tasks, held_tasks(running[id])) if id in running else tasks for id, tasks in sizes.items()
    }
