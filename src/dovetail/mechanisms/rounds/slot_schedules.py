"""Schedules over time slots: tasks of a job on each node in each slot, and how a slot is put into effect."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dovetail.model.grant import Spot, Spots
from dovetail.model.job import Shape
from dovetail.model.units import WHOLE
from dovetail.model.view import JobView, Plan, Room

Ints = npt.NDArray[np.int64]


class Stay(NamedTuple):
    """Tasks on a node from one slot to another; the last one is not included."""

    first: int
    until: int
    node: int
    tasks: int


Stays = tuple[Stay, ...]  # the schedule of a job


def stays(slots: Iterable[tuple[int, Ints]]) -> Stays:
    """The schedule that has these tasks on each node, slot by slot; equal slots in a row become one stay."""
    done: list[Stay] = []
    open_: dict[int, Stay] = {}
    for slot, tasks in slots:
        here = {int(node): int(tasks[node]) for node in np.flatnonzero(tasks)}
        for node, stay in list(open_.items()):
            if stay.until != slot or here.get(node) != stay.tasks:
                done.append(open_.pop(node))
        for node, count in here.items():
            first = open_[node].first if node in open_ else slot
            open_[node] = Stay(first, slot + 1, node, count)
    return tuple(sorted([*done, *open_.values()]))


def tasks_in(schedule: Stays, slot: int) -> dict[int, int]:
    """The tasks on each node in a slot."""
    return {stay.node: stay.tasks for stay in schedule if stay.first <= slot < stay.until}


def end_of(schedule: Stays) -> int:
    """The first slot after a schedule."""
    return max((stay.until for stay in schedule), default=0)


def next_change(schedules: Iterable[Stays], slot: int) -> int | None:
    """The next slot in which some schedule differs from the slot before."""
    changes = (at for schedule in schedules for stay in schedule for at in stay[:2] if at > slot)
    return min(changes, default=None)


def counts(spots: Spots | None, each: int) -> dict[int, int]:
    """The tasks on each node of a job that holds these spots."""
    return {node: devices.bit_count() // each for node, devices, *_ in spots or () if devices}


def enact(
    plan: Plan,
    scheduled: Mapping[JobView, Mapping[int, int]],
    others: Sequence[JobView],
    closed: Collection[int],
) -> None:
    """Give scheduled jobs the tasks that this slot has for them, on the nodes that it says.

    `others` are jobs without a schedule that may be stopped for them, the last one first. A job whose place
    is not free goes on where it was, or starts anywhere; if nothing is free, it waits.
    """
    before: dict[str, Spots] = {}
    for job, wanted in scheduled.items():
        if job.spots is None or counts(job.spots, job.shape.each) == wanted:
            continue
        if wanted and any(spot[0] in closed for spot in job.spots):
            continue  # it may end on a node that is drained, and could not come back
        before[job.id] = job.spots
        plan.stop(job)
    waiting = [job for job, wanted in scheduled.items() if wanted and job.spots is None]
    for job in waiting:
        _make_room(plan, job.shape, scheduled[job], others)
    for job in sorted(waiting, key=lambda job: (job.id not in before, job.seq)):
        spots = _spots(plan.room, job.shape, scheduled[job], before.get(job.id, ()))
        if spots is None and job.id in before:
            was = counts(before[job.id], job.shape.each)
            spots = _spots(plan.room, job.shape, was, before[job.id])
        if spots is None:
            spots = plan.room.anywhere(job.shape.of(sum(scheduled[job].values())))
        if spots is None:
            plan.deny(job, "Resources", "its schedule has GPUs for it that are not free yet")
        else:
            plan.start(job, spots)


def _make_room(plan: Plan, shape: Shape, wanted: Mapping[int, int], others: Sequence[JobView]) -> None:
    """Stop jobs without a schedule where they are in the way, the last one first."""
    for node, tasks in wanted.items():
        for job in reversed(others):
            if plan.room.free_on(node).bit_count() >= tasks * shape.each:
                break
            if job.spots is not None and any(spot[0] == node for spot in job.spots):
                plan.stop(job)


def _spots(room: Room, shape: Shape, wanted: Mapping[int, int], before: Spots) -> Spots | None:
    """Spots for so many tasks on each node, on the devices that the job had before if they are free."""
    found = list[Spot]()
    for node, tasks in sorted(wanted.items()):
        had = sum(spot[1] for spot in before if spot[0] == node)
        free = room.free_on(node)
        cpus, memory = tasks * shape.cpus, tasks * shape.memory
        lacks = room.free_cpus(node) < cpus or room.free_memory(node) < memory
        if not room.is_open(node) or lacks or free.bit_count() < tasks * shape.each:
            return None
        own = _lowest(free & had, tasks * shape.each)
        rest = _lowest(free & ~own, tasks * shape.each - own.bit_count())
        found.append((node, own | rest, WHOLE, cpus, memory))
    return tuple(found) or None


def _lowest(mask: int, count: int) -> int:
    """The lowest bits of a mask, up to a number of them."""
    found = 0
    for _ in range(min(count, mask.bit_count())):
        bit = mask & -mask
        found |= bit
        mask ^= bit
    return found
