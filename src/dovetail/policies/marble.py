"""MARBLE: several jobs on a node, each as wide as it still scales (Han et al., CCGRID 2020)."""

from __future__ import annotations

from functools import partial

from dovetail.mechanisms.allocate.marginal_gain import dealt
from dovetail.mechanisms.allocate.sizes import Left
from dovetail.mechanisms.order.keys import arrival
from dovetail.mechanisms.place.placement import Placement
from dovetail.mechanisms.queue.discipline import Discipline
from dovetail.mechanisms.resize.resizing import held_tasks, sized
from dovetail.model.estimate import task_range
from dovetail.model.units import WHOLE
from dovetail.model.view import JobView, Plan, Policy, View
from dovetail.policies.composed import Composed


def marble(*, knee: float = 0.3) -> Policy:
    """First come, first served, with as many GPUs of one node as a job uses well; the others wait for none.

    A job is given GPUs up to its knee: the last one that makes it faster by more than `knee` (0.3: 30 %).
    While no job waits, free GPUs go to running jobs, one by one, where the speed gains most. Deviation: they
    are given back when a job waits for them; the paper's rule for that was not available.
    """
    if knee < 0:
        raise ValueError(f"knee is the least gain by one more GPU, 0 or more, not {knee}")
    return Composed(order=arrival, serve=up_to_the_knee(knee))


def up_to_the_knee(threshold: float) -> Discipline:
    """Start jobs in order at their knees, with less if a node has less; then let running jobs grow."""

    def serve(view: View, place: Placement) -> Plan:
        plan = view.draft()
        while (job := view.queue.head()) is not None:
            if not _start(view, plan, job, place, threshold):
                plan.deny(job, "Resources")
                return plan
        _grow(view, plan)
        return plan

    return serve


def knee_of(view: View, job: JobView, threshold: float) -> int:
    """The most tasks of which the last one makes the job faster by more than the threshold, on one node."""
    least, most = task_range(job.shape, job.traits)
    if least == most or not job.shape.each:
        return least if least == most else job.shape.tasks
    widest = max((node.gpus for node in view.cluster.nodes), default=0) // job.shape.each
    for tasks in range(min(most, widest), least, -1):
        if _gain(view, job, tasks) > threshold:
            return tasks
    return least


def _gain(view: View, job: JobView, tasks: int) -> float:
    """The part by which the last of these tasks makes the job faster."""
    before = view.speed(job, tasks=tasks - 1).speed
    return view.speed(job, tasks=tasks).speed / before - 1 if before > 0 else 0.0


def _start(view: View, plan: Plan, job: JobView, place: Placement, threshold: float) -> bool:
    wanted, (least, _) = knee_of(view, job, threshold), task_range(job.shape, job.traits)
    return (
        _place(plan, job, wanted, wanted, place)
        or _give_back(view, plan, job, wanted, threshold)
        or _place(plan, job, wanted - 1, least, place)
    )


def _place(plan: Plan, job: JobView, most: int, least: int, place: Placement) -> bool:
    """With as many tasks as there is room for on as few nodes as they need."""
    for tasks in range(most, least - 1, -1):
        spots = place.find(plan.room, sized(job, tasks))
        if spots is not None and plan.start(job, spots):
            return True
    return False


def _give_back(view: View, plan: Plan, job: JobView, wanted: int, threshold: float) -> bool:
    """Start the job on the node where running jobs have most beyond their knees; False: nothing changes."""
    if not job.shape.plain:
        return False
    beyond: dict[int, list[tuple[int, JobView]]] = {}
    for other in view.running.values():
        node = _node(other)
        if node is not None and (more := held_tasks(other) - knee_of(view, other, threshold)) > 0:
            beyond.setdefault(node, []).append((more, other))
    least, _ = task_range(job.shape, job.traits)

    def reach(node: int) -> tuple[int, int]:
        free = plan.room.free_on(node).bit_count()
        return min(wanted, free + sum(more for more, _ in beyond[node])), -node

    for node in sorted(beyond, key=reach, reverse=True):
        tasks = reach(node)[0]
        if tasks < least:
            return False
        before = [(other, other.spots) for _, other in beyond[node]]
        for more, other in sorted(beyond[node], key=lambda row: (-row[0], row[1].seq)):
            lacks = tasks - plan.room.free_on(node).bit_count()
            if lacks > 0:
                plan.resize(other, held_tasks(other) - min(more, lacks))
        spots = plan.room.on(job.shape.of(tasks), [node])
        if spots is not None and plan.start(job, spots):
            return True
        for other, held in before:
            if held is not None and other.spots != held:
                plan.shift(other, held, other.terms)
    return False


def _grow(view: View, plan: Plan) -> None:
    """Free GPUs of a node to the jobs on it, one by one, where the speed gains most."""
    jobs: dict[int, list[JobView]] = {}
    for job in view.running.values():
        if (node := _node(job)) is not None and plan.room.free_on(node):
            jobs.setdefault(node, []).append(job)
    for node, here in jobs.items():
        held = {job.id: held_tasks(job) for job in here}
        left = Left(WHOLE * plan.room.free_on(node).bit_count())
        for job_id, tasks in dealt(here, held, left, partial(_gain, view)).items():
            plan.resize(view.running[job_id], tasks)


def _node(job: JobView) -> int | None:
    """The node of a job that can grow and shrink on it; None for other jobs."""
    if job.spots is None or len(job.spots) != 1 or not job.shape.plain or not job.traits.elastic:
        return None
    return job.spots[0][0]
