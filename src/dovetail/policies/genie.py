"""GENIE: the task that can wait least goes first, on the fewest GPUs that meet its deadline (Chen et al.).

A processing rate is predicted for each placement: a number of GPUs, of a type, on one node or on several. So
the policy knows how long a task would run in each place that is free now, how long it can still wait, and how
few GPUs suffice. The rule follows the published descriptions of both papers (DATE 2019; TPDS 2020).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal, NamedTuple

from dovetail.mechanisms.order.keys import arrival
from dovetail.mechanisms.place.gpu_types import of_type
from dovetail.mechanisms.rounds.active_jobs import start_cpu_jobs
from dovetail.model.estimate import alike, task_range
from dovetail.model.grant import Spots, nodes_of
from dovetail.model.units import micros
from dovetail.model.view import JobView, Order, Plan, Policy, Room, View


def genie(*, late: Literal["first", "last"] = "first", slack: float = 0.0) -> Policy:
    """Shortest waiting allowance first, without preemption, at each arrival and each end.

    The allowance is the time to the deadline less the predicted run time in the fastest place that is free.
    The task then takes the fewest GPUs that meet its deadline, or, if none do, the fastest place. Tasks that
    can no longer meet theirs have the shortest allowance of all; with `late="last"` (ours) they come last.
    `slack` is added to predicted run times, in seconds, if the predictions are not exact.
    """
    if slack < 0:
        raise ValueError(f"slack is added to predicted run times: it is not below 0, as {slack}")
    return Genie(late=late, slack=micros(slack))


class Way(NamedTuple):
    """A place that is free now, and how fast the task would run there."""

    spots: Spots
    gpus: int
    speed: float


class Ranked(NamedTuple):
    """A waiting task: smaller ones start first."""

    too_late: bool
    allowance: float
    arrived_at: int
    number: int  # in the order of submission
    runs: Sequence[tuple[float, Way]]  # the predicted run time in each free place


@dataclass(frozen=True, slots=True, kw_only=True)
class Genie:
    """Shortest waiting allowance first, on the fewest GPUs that suffice."""

    late: Literal["first", "last"]
    slack: int
    order: Order = arrival
    group: Callable[[JobView], Hashable] | None = None
    quantum: int | None = None

    def decide(self, view: View) -> Plan:
        plan = view.draft()
        start_cpu_jobs(view, plan)
        waiting = sorted((job for job in view.queue if job.shape.each), key=lambda job: job.seq)
        while waiting:
            first = min(self._ranked(view, plan.room, waiting), default=None)
            if first is None:
                break
            job, runs = waiting.pop(first.number), first.runs
            plan.start(job, chosen(runs, _left(job, view.now)).spots)  # refused at a limit of its tenant
        for job in waiting:
            plan.deny(job, "Resources")
        return plan

    def _ranked(self, view: View, room: Room, waiting: Sequence[JobView]) -> Iterator[Ranked]:
        """The tasks for which a place is free."""
        now, found = view.now, dict[Hashable, list[Way]]()
        for number, job in enumerate(waiting):
            kind = (
                alike(view.estimator, job),
                job.deadline is None,
            )  # jobs of one kind fit in the same places
            if kind not in found:
                found[kind] = _ways(view, room, job)
            if found[kind]:
                work = job.remaining_at(now) + (job.traits.checkpoint.restore if job.epoch else 0)
                runs = [(work / way.speed + self.slack, way) for way in found[kind]]
                spare = allowance(_left(job, now), min(time for time, _ in runs))
                yield Ranked(spare < 0 and self.late == "last", spare, job.arrived_at, number, runs)


def allowance(left: float, run: float) -> float:
    """How long a task can still wait for its fastest place; below 0 if it is too late."""
    return left - run


def chosen(runs: Sequence[tuple[float, Way]], left: float) -> Way:
    """The fewest GPUs that meet the deadline, the fastest of these; if none do, the fastest of all."""
    in_time = [(way.gpus, time, number) for number, (time, way) in enumerate(runs) if time <= left]
    if in_time:
        return runs[min(in_time)[2]][1]
    return runs[min((time, way.gpus, number) for number, (time, way) in enumerate(runs))[2]][1]


def sizes(job: JobView) -> Sequence[int]:
    """The numbers of tasks to choose from; without a deadline there is nothing to choose by."""
    if job.deadline is None:
        return (job.shape.tasks,)
    least, most = task_range(job.shape, job.traits)
    return range(least, most + 1)


def predicted(view: View, job: JobView, tasks: int, kind: str | None, spots: Spots) -> float:
    """The processing rate in a place: by GPUs, type, and on how many nodes."""
    return view.speed(job, tasks=tasks, type=kind, nodes=len(nodes_of(spots))).speed


def _left(job: JobView, now: int) -> float:
    return inf if job.deadline is None else job.deadline - now


def _ways(view: View, room: Room, job: JobView) -> list[Way]:
    """For each size and GPU type the packed place, or one over several nodes if no other is free."""
    shape, found = job.shape, []
    kinds = shape.types or tuple(kind.name for kind in view.cluster.types)
    for tasks in sizes(job):
        if shape.exclusive and tasks * shape.each > room.free_gpus:
            break
        wanted = shape.of(tasks)
        for kind in kinds:
            spots = room.anywhere(of_type(wanted, kind) if len(kinds) > 1 else wanted)
            if spots is not None and (speed := predicted(view, job, tasks, kind, spots)) > 0:
                found.append(Way(spots, tasks * shape.each, speed))
        if len(kinds) > 1 and not any(room.ever(of_type(wanted, kind)) for kind in kinds):
            spots = room.anywhere(wanted)  # no type has so many: on several, as fast as the slowest
            if spots is not None:
                slowest = min(predicted(view, job, tasks, kind, spots) for kind in _types(view, spots))
                found += [Way(spots, tasks * shape.each, slowest)] if slowest > 0 else []
    return found


def _types(view: View, spots: Spots) -> set[str]:
    return {view.cluster.nodes[node].type.name for node in nodes_of(spots)}
