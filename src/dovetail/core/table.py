"""All active jobs as arrays, for a policy that looks at every one of them.

One pass over the jobs fills every column. A policy that reads 1,000 jobs through their views pays that for
each sum that it forms; on arrays the sums are cheap. numpy is loaded when a policy first asks.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from copy import copy

import numpy as np
from numpy.typing import NDArray

from dovetail.model.cluster import Cluster
from dovetail.model.estimate import Estimator, alike, speed_of, task_range, types_of
from dovetail.model.grant import devices_of
from dovetail.model.job import Traits
from dovetail.model.view import JobView

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

MOST_CURVES = 20_000  # beyond, they are worked out again


class Table:
    """The columns of `JobTable` (model.view); `speeds` is worked out when it is first read."""

    __slots__ = (
        "_curves",
        "_speeds",
        "arrived_at",
        "each",
        "gpus",
        "held",
        "jobs",
        "least",
        "most",
        "priority",
        "remaining",
        "running",
        "running_tasks",
        "seq",
        "service",
        "tasks",
        "tenant",
        "tenants",
    )

    def __init__(self, curves: Curves, jobs: Sequence[JobView], now: int) -> None:
        self._curves = curves
        self._speeds: Floats | None = None
        self.jobs = jobs
        number: dict[str, int] = {}
        rows = [_row(job, now, number) for job in jobs]
        columns = np.array(rows, dtype=np.int64).reshape(len(rows), 13).T.copy()
        columns.setflags(write=False)
        self.seq: Ints = columns[0]
        self.gpus: Ints = columns[1]
        self.tasks: Ints = columns[2]
        self.each: Ints = columns[3]
        self.least: Ints = columns[4]
        self.most: Ints = columns[5]
        self.running_tasks: Ints = columns[6]
        self.held: Ints = columns[7]
        self.arrived_at: Ints = columns[8]
        self.priority: Ints = columns[9]
        self.tenant: Ints = columns[10]
        self.service: Ints = columns[11]
        self.remaining: Ints = columns[12]
        self.running: Mask = self.running_tasks > 0
        self.tenants = tuple(number)

    def __len__(self) -> int:
        return len(self.jobs)

    def estimated_by(self, estimator: Estimator) -> Table:
        """The same moment, with speeds from another estimator."""
        twin = copy(self)
        twin._curves, twin._speeds = Curves(self._curves.cluster, estimator), None
        return twin

    @property
    def speeds(self) -> Floats:
        if self._speeds is None:
            self._speeds = self._estimated()
            self._speeds.setflags(write=False)
        return self._speeds

    def _estimated(self) -> Floats:
        """A row per job, as wide as the largest job."""
        table = np.zeros((len(self.jobs), int(self.most.max(initial=0)) + 1))
        for i, job in enumerate(self.jobs):
            row = self._curves.of(job)
            table[i, : len(row)] = row
        return table


class Curves:
    """Speed by number of tasks, kept from one decision to the next.

    An estimator is a value, so that equal questions have equal answers. Jobs that it cannot tell apart share
    one curve.
    """

    __slots__ = ("_known", "cluster", "estimator")

    def __init__(self, cluster: Cluster, estimator: Estimator) -> None:
        self.cluster = cluster
        self._known: dict[Hashable, tuple[Traits, Floats]] = {}
        self.estimator = estimator

    def of(self, job: JobView) -> Floats:
        """Speeds of a job with 0, 1, ... tasks, up to the most that it takes."""
        types = types_of(self.cluster, job)
        key = alike(self.estimator, job), types, len(types) > 1 and job.spots is None
        known = self._known.get(key)
        if known is not None:
            return known[1]
        least, most = task_range(job.shape, job.traits)
        row = np.zeros(most + 1)
        for tasks in range(least, most + 1):
            row[tasks] = speed_of(self.estimator, self.cluster, job, tasks=tasks).speed
        if len(self._known) >= MOST_CURVES:
            self._known.clear()
        self._known[key] = job.traits, row  # the key has the id of the traits: keep them alive
        return row


def _row(job: JobView, now: int, tenants: dict[str, int]) -> tuple[int, ...]:
    shape = job.shape
    least, most = task_range(shape, job.traits)
    running = 0
    if job.spots is not None:
        running = devices_of(job.spots) // shape.each if shape.each else shape.tasks
    return (
        job.seq,
        shape.gpus,
        shape.tasks,
        shape.each,
        least,
        most,
        running,
        job.held,
        job.arrived_at,
        job.priority,
        tenants.setdefault(job.tenant, len(tenants)),
        job.service_at(now),
        job.remaining_at(now),
    )
