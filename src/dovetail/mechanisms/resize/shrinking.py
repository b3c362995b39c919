"""Starting a job on devices that running jobs give up: which job gives up how many is the policy's choice."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from dovetail.mechanisms.place.placement import Placement
from dovetail.mechanisms.resize.resizing import held_tasks, start
from dovetail.model.estimate import task_range
from dovetail.model.grant import Spots
from dovetail.model.view import JobView, Plan

# (jobs with tasks to spare, GPUs that are lacking) -> the job that gives up tasks, and how many; None: no job
Giver = Callable[[Sequence[JobView], int], tuple[JobView, int] | None]


def start_by_shrinking(
    plan: Plan, job: JobView, tasks: int, place: Placement, running: Iterable[JobView], giver: Giver
) -> bool:
    """Shrink running jobs, one after another, until the job starts; False: it does not, nothing changes."""
    wanted = job.shape.of(tasks).gpus
    return shrink_until(lambda: start(plan, job, tasks, place), plan, wanted, running, giver)


def shrink_until(
    done: Callable[[], bool], plan: Plan, wanted: int, running: Iterable[JobView], giver: Giver
) -> bool:
    """Shrink running jobs until `done`, which needs so many free GPUs; False: it is not, nothing changes.

    A job whose devices are not needed after all, such as those of another type, gets them back.
    """
    giving = [other for other in running if spare_tasks(other) > 0 and _open(plan, other)]
    spare = sum(spare_tasks(other) * other.shape.each for other in giving)
    if not wanted or plan.room.free_gpus + spare < wanted:
        return False
    before: list[tuple[JobView, Spots]] = []
    started = False
    while giving and not started:
        given = giver(giving, max(1, wanted - plan.room.free_gpus))
        if given is None:
            break
        other, fewer = given
        before.append((other, other.spots or ()))
        if not plan.resize(other, held_tasks(other) - fewer):
            giving.remove(other)
        started = done()
        giving = [each for each in giving if spare_tasks(each) > 0]
    for other, spots in reversed(before):
        if other.spots != spots and free_again(plan, other, spots):
            plan.shift(other, spots, other.terms)
    return started


def spare_tasks(job: JobView) -> int:
    """How many tasks a running job can give up."""
    return held_tasks(job) - task_range(job.shape, job.traits)[0] if resizable(job) else 0


def resizable(job: JobView) -> bool:
    """Whether a running job can have more or fewer tasks: it is elastic, and shares no device."""
    return job.traits.elastic and job.shape.each > 0 and job.shape.exclusive


def _open(plan: Plan, job: JobView) -> bool:
    return all(plan.room.is_open(spot[0]) for spot in job.spots or ())


def free_again(plan: Plan, job: JobView, spots: Spots) -> bool:
    """Whether what a job has given up of these spots is still free."""
    room, held = plan.room, {spot[0]: spot for spot in job.spots or ()}
    for node, devices, _, cpus, memory in spots:
        _, mine, _, cores, size = held.get(node, (node, 0, 0, 0, 0))
        if devices & ~mine & ~room.free_on(node):
            return False
        if cpus - cores > room.free_cpus(node) or memory - size > room.free_memory(node):
            return False
    return True
