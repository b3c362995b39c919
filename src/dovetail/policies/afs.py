"""AFS: elastic shares for short jobs and for jobs that scale well (Hwang et al., NSDI 2021)."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dovetail.mechanisms.allocate.sizes import Allocate, capacity
from dovetail.mechanisms.order.attained_service import attained_service
from dovetail.mechanisms.order.keys import arrival
from dovetail.mechanisms.place.placement import scattered
from dovetail.mechanisms.resize.resizing import elastic
from dovetail.model.units import micros
from dovetail.model.view import JobTable, Policy, View
from dovetail.policies.composed import Composed

CRAWL = 1e-9  # a job that makes no progress with its least ends last
Ends = Callable[[int, float], Any]  # (row of a job, its speed) -> smaller for the job that ends first


def afs(
    *, lengths: Literal["known", "unknown"] = "known", levels: Sequence[float] = (3_600.0, 36_000.0)
) -> Policy:
    """GPUs go one by one to the job for which one more is worth most, at each arrival and each end.

    `lengths=unknown` (AFS-P): the job that has received less service is taken to end first, in queues that
    part at these `levels` of GPU-seconds.
    """
    if lengths == "known":
        return Composed(order=arrival, allocate=shares(_by_length), place=scattered, resize=elastic)
    order = attained_service([micros(level) for level in levels])
    return Composed(order=order, allocate=shares(_by_service), place=scattered, resize=elastic)


def shares(ranking: Callable[[JobTable], Ends]) -> Allocate:
    """The number of tasks of each job; `ranking` says which of two jobs is taken to end first."""

    def allocate(view: View) -> dict[str, int]:
        table = view.table()
        tasks = _dealt(table, capacity(view), ranking(table))
        return {job.id: count for job, count in zip(table.jobs, tasks, strict=True)}

    return allocate


def _by_length(table: JobTable) -> Ends:
    left = table.remaining.tolist()
    return lambda job, speed: left[job] / speed


def _by_service(table: JobTable) -> Ends:
    keys = [(job.stage, job.stage_since) for job in table.jobs]
    return lambda job, speed: keys[job]


def _dealt(table: JobTable, free: int, ends: Ends) -> list[int]:
    """Every job its least, the job that ends first before the others; then one task at a time.

    Of two jobs, one more task goes to the one that ends later if it gains more by it (`_gains`). The winner
    of a scan in the order of ends gets the task.
    """
    speeds = _relative(table).tolist()
    least, most = table.least.tolist(), table.most.tolist()
    each = [job.shape.load // job.shape.tasks for job in table.jobs]  # thousandths of a GPU
    tasks = [0] * len(table)
    line: list[tuple[Any, int]] = []  # the jobs that could use one more, in the order in which they end
    gain_if_first: dict[int, float] = {}
    gain_if_later: dict[int, float] = {}

    def give(job: int, count: int) -> None:
        nonlocal free
        tasks[job] += count
        free -= count * each[job]
        now = speeds[job][tasks[job]]
        if tasks[job] < most[job]:
            then = speeds[job][tasks[job] + 1]
            if then > now > 0:
                gain_if_first[job], gain_if_later[job] = _gains(now, then)
                insort(line, (ends(job, now), job))

    for job in _shortest_first(table, ends):
        if least[job] * each[job] <= free:
            give(job, least[job])
    while line and free > 0:
        winner = line[0]
        for rival in line:
            if gain_if_later[rival[1]] > gain_if_first[winner[1]]:
                winner = rival
        line.remove(winner)
        if each[winner[1]] <= free:
            give(winner[1], 1)
    return tasks


def _gains(now: float, then: float) -> tuple[float, float]:
    """What a faster speed is worth to the job that ends first of two, and to the other.

    The task serves the job that ends first until its end. It serves the other job until then, and that job is
    assumed to have it afterwards whatever is decided now: so its gain is counted against its new speed.
    """
    return (then - now) / now, (then - now) / then


def _shortest_first(table: JobTable, ends: Ends) -> list[int]:
    """Rows of jobs in the order in which they would end with the least that each runs with."""
    slowest = _relative(table)[np.arange(len(table)), table.least].tolist()
    return sorted(range(len(table)), key=lambda job: (ends(job, slowest[job] or CRAWL), job))


def _relative(table: JobTable) -> NDArray[np.float64]:
    """Speeds against the size that a job asked for: they do not depend on the type that it holds."""
    asked = table.speeds[np.arange(len(table)), table.tasks]
    return table.speeds / np.where(asked > 0, asked, 1.0)[:, None]
