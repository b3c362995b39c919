"""Wang et al.: elastic jobs start at once, and GPUs go where they shorten the remaining time most.

Wang et al., "An Efficient and Non-Intrusive GPU Scheduling Framework for Deep Learning Training Systems", SC
2020. The progress of a job gives its remaining time for each number of GPUs. A newcomer takes free GPUs, or
those that running jobs can best do without; GPUs that fall free go to running jobs. A job is resized by a
restart of its process, and the next process is started early when it shrinks: both pauses are the job's
(`Checkpoint.resize`, `Checkpoint.shrink`), and a resize counts for what it saves beyond them.

The rule is reconstructed: the paper's algorithm was not available.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from math import inf
from typing import NamedTuple, cast

from dovetail.mechanisms.order.keys import arrival
from dovetail.mechanisms.place.placement import Placement, scattered
from dovetail.mechanisms.resize.resizing import grow, held_tasks, start
from dovetail.mechanisms.resize.shrinking import Giver, resizable, start_by_shrinking
from dovetail.model.estimate import task_range
from dovetail.model.view import JobView, Plan, Policy, View
from dovetail.policies.composed import Composed

Times = Mapping[
    str, Sequence[float]
]  # the remaining time of each job by its number of tasks, in microseconds


def wang() -> Policy:
    """Newcomers start with their least; GPUs go where they shorten the remaining time most. Reconstructed.

    A job that finds too few free GPUs starts on those of running jobs that lose least by giving them up. All
    GPUs that are then free go to running jobs. No job is preempted.
    """
    return Composed(order=arrival, serve=by_remaining_time, place=scattered)


class Seen(NamedTuple):
    """The rate of a running job, and the number of tasks with which it was first seen."""

    tasks: int
    rate: float


class Elastic(NamedTuple):
    """A running job that can be resized."""

    job: JobView
    tasks: int
    least: int
    most: int
    times: Sequence[float]
    restart: int  # the pause if it grows


def by_remaining_time(view: View, place: Placement) -> Plan:
    """Start all jobs that can start, in order of arrival; then let running jobs grow."""
    plan = view.draft()
    last = cast("Mapping[str, Seen]", view.memory or {})
    rates = {job.id: seen(job, last.get(job.id)) for job in view.running.values() if resizable(job)}
    plan.memory = rates
    if rates or any(job.traits.elastic for job in view.queue):
        times = remaining_times(view, rates)
        started = _admit(view, plan, place, times)
        for kind in {node.type.name: None for node in view.cluster.nodes}:
            _grow(view, plan, kind, times, started)
    else:
        _admit(view, plan, place, {})
    return plan


def seen(job: JobView, last: Seen | None) -> Seen:
    """The job's rate and its tasks; a rate from before a resize still goes with the tasks from before."""
    return last if last is not None and last.rate == job.rate else Seen(held_tasks(job), job.rate)


def remaining_times(view: View, rates: Mapping[str, Seen]) -> dict[str, list[float]]:
    """From the work that is left, the estimated speeds, and the measured rate of a running job."""
    table, found = view.table(), dict[str, list[float]]()
    for job, left, row in zip(table.jobs, table.remaining.tolist(), table.speeds.tolist(), strict=True):
        work = left * slower_than_told(row, rates.get(job.id))
        found[job.id] = [work / speed if speed > 0 else inf for speed in row]
    return found


def slower_than_told(speeds: Sequence[float], rate: Seen | None) -> float:
    """How many times slower a job runs than it was estimated to; a rate of exactly 1 was not measured."""
    if rate is None or rate.rate in (0.0, 1.0) or not 0 < rate.tasks < len(speeds):
        return 1.0
    return speeds[rate.tasks] / rate.rate or 1.0


def loss(job: Elastic, lacks: int) -> tuple[float, int]:
    """What a job loses per GPU if it gives up this number, or what it can spare; how many tasks that is."""
    each = job.job.shape.each
    fewer = min(job.tasks - job.least, -(-lacks // each))
    pause = job.job.traits.checkpoint.to_shrink
    return (job.times[job.tasks - fewer] - job.times[job.tasks] + pause) / (fewer * each), fewer


def least_loss(times: Times) -> Giver:
    """The job that loses least remaining time per GPU gives up what is lacking."""

    def giver(giving: Sequence[JobView], lacks: int) -> tuple[JobView, int]:
        rows = [(*loss(row, lacks), row.job.seq, i) for i, row in enumerate(_elastic(giving, times))]
        _, fewer, _, i = min(rows)
        return giving[i], fewer

    return giver


def gain(job: Elastic, free: int) -> tuple[float, int]:
    """The most that a job gains per GPU by more tasks, net of its restart; how many more these are."""
    each, now = job.job.shape.each, job.times[job.tasks]
    steps = range(1, min(job.most - job.tasks, free // each) + 1)
    found = [((now - job.times[job.tasks + more] - job.restart) / (more * each), -more) for more in steps]
    best, more = max(found, default=(0.0, 0))
    return best, -more


def dealt(jobs: Iterable[Elastic], free: int) -> list[tuple[JobView, int]]:
    """GPUs step by step to the job that gains most per GPU; the jobs that grow, and their new sizes."""
    rows = {job.job.id: job for job in jobs}
    heap = [(-best, job.job.seq, job.job.id) for job in rows.values() if (best := gain(job, free)[0]) > 0]
    heapify(heap)
    sizes: dict[str, int] = {}
    while heap and free > 0:
        worth, seq, id = heappop(heap)
        best, more = gain(rows[id], free)
        if -best == worth:  # else the GPUs that are left do not suffice for that step
            sizes[id] = rows[id].tasks + more
            free -= more * rows[id].job.shape.each
            rows[id] = rows[id]._replace(tasks=sizes[id], restart=0)
            best, _ = gain(rows[id], free)
        if best > 0:
            heappush(heap, (-best, seq, id))
    return [(rows[id].job, tasks) for id, tasks in sizes.items()]


def _admit(view: View, plan: Plan, place: Placement, times: Times) -> set[str]:
    """Start waiting jobs with their least; the ids of those that start."""
    started, full, giver = set[str](), set[Hashable](), least_loss(times)
    for job in view.queue.walk():
        least, _ = task_range(job.shape, job.traits)
        asked = job.shape.of(least), job.tenant
        if asked in full:
            plan.deny(job, "Resources")
        elif start(plan, job, least, place) or start_by_shrinking(
            plan, job, least, place, view.running.values(), giver
        ):
            started.add(job.id)
        else:
            full.add(asked)
            plan.deny(job, "Resources", "running jobs have too few GPUs to spare")
    return started


def _grow(view: View, plan: Plan, kind: str, times: Times, started: Collection[str]) -> None:
    """Give the free GPUs of a type to the jobs on it; a job that starts only now needs no restart."""
    jobs = [job for job in view.running.values() if _kind(plan, job) == kind]
    while jobs and (free := _free(plan, kind)):
        grown = dealt(_elastic(jobs, times, started), free)
        stuck = {job.id for job, tasks in grown if not grow(plan, job, tasks)}
        if not stuck:
            return
        jobs = [job for job in jobs if job.id not in stuck]


def _elastic(jobs: Iterable[JobView], times: Times, started: Collection[str] = ()) -> list[Elastic]:
    found = []
    for job in jobs:
        if resizable(job):
            least, most = task_range(job.shape, job.traits)
            restart = 0 if job.id in started else job.traits.checkpoint.to_grow
            found.append(Elastic(job, held_tasks(job), least, most, times[job.id], restart))
    return found


def _kind(plan: Plan, job: JobView) -> str | None:
    """The one type that a job runs on; None if it runs on several."""
    nodes = plan.room.cluster.nodes
    kinds = {nodes[spot[0]].type.name for spot in job.spots or ()}
    return kinds.pop() if len(kinds) == 1 else None


def _free(plan: Plan, kind: str) -> int:
    nodes = enumerate(plan.room.cluster.nodes)
    return sum(plan.room.free_on(number).bit_count() for number, node in nodes if node.type.name == kind)
