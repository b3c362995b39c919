"""GPUs one by one: to the job that gains most by one more, from the job that loses least by one less.

What a task is worth is a function of the job and its number of tasks: the speed that it adds against the
first ones (`efficiency`), or another measure. Where gains shrink with the number of tasks, as those of
training jobs do, dealing one at a time gives the largest sum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from heapq import heapify, heappop, heappush, heapreplace
from typing import Any

from dovetail.mechanisms.allocate.sizes import Left, milli_each
from dovetail.model.estimate import task_range
from dovetail.model.view import JobView, View

Gain = Callable[[JobView, int], float]  # what the last of this number of tasks is worth to a job


def efficiency(view: View) -> Gain:
    """The speed that a task adds, in parts of what each of the fewest tasks does; 1: it scales linearly.

    It is a ratio of speeds on one type, so it does not change when a job starts or moves to another type.
    """
    table = view.table()
    curves = {job.id: curve for job, curve in zip(table.jobs, table.speeds.tolist(), strict=True)}

    def gain(job: JobView, tasks: int) -> float:
        curve, (least, _) = curves[job.id], task_range(job.shape, job.traits)
        return (curve[tasks] - curve[tasks - 1]) * least / curve[least] if curve[least] > 0 else 0.0

    return gain


def can_resize(job: JobView) -> bool:
    """Whether a job runs with more or fewer tasks: it is elastic, of whole GPUs that it shares with none."""
    return job.traits.elastic and job.shape.exclusive and job.shape.each > 0


def dealt(jobs: Iterable[JobView], sizes: Mapping[str, int], left: Left, gain: Gain) -> dict[str, int]:
    """New sizes of the jobs that grow while what is left goes to the largest gain, in order of growth.

    A job gets no task that is worth nothing to it. Of equal gains the job that was submitted first grows.
    """
    grown: dict[str, int] = {}
    heap: list[tuple[float, int, JobView]] = []

    def offer(job: JobView, tasks: int) -> tuple[float, int, JobView] | None:
        if tasks < task_range(job.shape, job.traits)[1] and (worth := gain(job, tasks + 1)) > 0:
            return -worth, job.seq, job
        return None

    for job in jobs:
        if can_resize(job) and (row := offer(job, sizes[job.id])) is not None:
            heap.append(row)
    heapify(heap)
    while heap and left.milli > 0:
        job = heap[0][2]
        if not left.fits(job, 1):
            heappop(heap)
            continue
        left.take(job, 1)
        grown[job.id] = tasks = grown.get(job.id, sizes[job.id]) + 1
        row = offer(job, tasks)
        if row is None:
            heappop(heap)
        else:
            heapreplace(heap, row)
    return grown


class Surplus:
    """The tasks that jobs have beyond their floors: taken back one by one, the smallest gain first.

    `before` sorts some jobs ahead of others whatever their gain. `milli` is what can be taken back in all.
    """

    def __init__(
        self, gain: Gain, floor: Callable[[JobView], int], before: Callable[[JobView], Any] = lambda job: 0
    ) -> None:
        self._gain, self._floor, self._before = gain, floor, before
        self._heap: list[tuple[Any, float, int, JobView, int]] = []
        self.milli = 0

    def add(self, job: JobView, tasks: int) -> None:
        """Let a job of this size give up what is beyond its floor."""
        if can_resize(job) and (more := tasks - self._floor(job)) > 0:
            self.milli += more * milli_each(job)
            self._push(job, tasks)

    def take(self, sizes: dict[str, int], left: Left, milli: int) -> None:
        """Make these sizes smaller until this much is left, if there is as much.

        Of equal gains the job that was submitted last gives up first.
        """
        while left.milli < milli and self._heap:
            *_, job, tasks = heappop(self._heap)
            sizes[job.id] = tasks - 1
            left.take(job, -1)
            self.milli -= milli_each(job)
            if tasks - 1 > self._floor(job):
                self._push(job, tasks - 1)

    def _push(self, job: JobView, tasks: int) -> None:
        heappush(self._heap, (self._before(job), self._gain(job, tasks), -job.seq, job, tasks))
