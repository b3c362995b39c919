"""Sizes: how many tasks each job is to run with, by job id.

0 means that the job is not to run now. A job that is not named keeps what it holds; while it waits, it is to
get what it asked for. Sizes lie between the fewest and the most tasks of a job (`model.estimate.task_range`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dovetail.model.cluster import Cluster
from dovetail.model.units import WHOLE
from dovetail.model.view import JobView, View

Sizes = Mapping[str, int]
Allocate = Callable[[View], Sizes]

_NONE: Sizes = {}


def as_asked(view: View) -> Sizes:
    """Every job gets what it asked for."""
    return _NONE


def milli_each(job: JobView) -> int:
    """Thousandths of a GPU for each task."""
    return job.shape.load // job.shape.tasks


class Left:
    """Milli-GPUs that are left to deal: in all, and below the limits of tenants if there are any."""

    def __init__(self, milli: int, cluster: Cluster | None = None) -> None:
        self.milli = milli
        tenants = cluster.tenants if cluster is not None else {}
        self._below = {name: each.limit * WHOLE for name, each in tenants.items() if each.limit is not None}
        self._line = cluster.line if cluster is not None else None

    def allows(self, job: JobView, tasks: int) -> bool:
        """Whether the limits of its tenant leave a job so many tasks more."""
        below = self._below
        if not below or self._line is None:
            return True
        load = tasks * milli_each(job)
        return all(load <= below.get(tenant, load) for tenant in self._line(job.tenant))

    def fits(self, job: JobView, tasks: int) -> bool:
        return tasks * milli_each(job) <= self.milli and self.allows(job, tasks)

    def take(self, job: JobView, tasks: int) -> None:
        """Give a job so many tasks more; fewer, if the number is negative."""
        load = tasks * milli_each(job)
        self.milli -= load
        if self._below and self._line is not None:
            for tenant in self._line(job.tenant):
                if tenant in self._below:
                    self._below[tenant] -= load


def whole_cluster(view: View) -> Left:
    """All that can be dealt, whichever jobs run now."""
    return Left(capacity(view), view.cluster)


def capacity(view: View) -> int:
    """Milli-GPUs to deal: all on open nodes, and those that jobs hold on other nodes.

    It does not depend on which jobs run: sizes that did would differ from one decision to the next, and jobs
    would be stopped and started without end.
    """
    room, nodes = view.room, view.cluster.nodes
    closed = {number for number in range(len(nodes)) if not room.is_open(number)}
    kept = sum(
        devices.bit_count()
        for job in (view.running.values() if closed else ())
        for node, devices, *_ in job.spots or ()
        if node in closed
    )
    return WHOLE * (kept + sum(node.gpus for number, node in enumerate(nodes) if number not in closed))
