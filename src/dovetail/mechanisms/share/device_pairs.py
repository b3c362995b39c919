"""Two jobs on the same devices, each with half of every device."""

from __future__ import annotations

from dataclasses import replace

from dovetail.mechanisms.place.gpu_types import place_on
from dovetail.model.grant import Spots
from dovetail.model.job import Shape
from dovetail.model.units import WHOLE
from dovetail.model.view import JobView, Plan, View

HALF = WHOLE // 2


def pair_shape(shape: Shape, other: Shape) -> Shape | None:
    """What two jobs need to share devices: equal tasks of whole devices; None if they never can."""
    alike = (shape.tasks, shape.each, shape.partition) == (other.tasks, other.each, other.partition)
    if not alike or not (shape.exclusive and other.exclusive) or shape.roles or other.roles:
        return None
    return replace(shape, cpus=shape.cpus + other.cpus, memory=shape.memory + other.memory)


def place_beside(plan: Plan, job: JobView, way: str, other: JobView) -> Spots | None:
    """Half of the devices of the other job; if that one waits, of devices with room for both."""
    if other.spots is None:
        both = pair_shape(job.shape, other.shape)
        spots = None if both is None else place_on(plan.room, both, way)
        return None if spots is None else spots_of(job.shape, spots, HALF)
    spots = spots_of(job.shape, other.spots, HALF)
    room = plan.room
    lacks = any(room.free_cpus(n) < cpus or room.free_memory(n) < size for n, _, _, cpus, size in spots)
    return None if lacks else spots


def spots_of(shape: Shape, spots: Spots, milli: int) -> Spots:
    """This part of each of these devices, with the CPU and memory that the shape needs there."""
    return tuple(
        (node, devices, milli, shape.cpus * tasks, shape.memory * tasks)
        for node, devices, *_ in spots
        for tasks in (devices.bit_count() // shape.each,)
    )


def devices_held(job: JobView) -> tuple[tuple[int, int], ...]:
    """(node, devices) of a running job."""
    return tuple(sorted(spot[:2] for spot in job.spots or ()))


def shares_devices(job: JobView) -> bool:
    """Whether a job asked for whole devices and holds a part of them: the rest is for another job."""
    spots = job.spots
    if spots is None or not job.shape.exclusive:
        return False
    return 0 < spots[0][2] < WHOLE if len(spots) == 1 else any(0 < spot[2] < WHOLE for spot in spots)


def partner_of(view: View, job: JobView) -> JobView | None:
    """The job that shares the devices of this one."""
    if not shares_devices(job):
        return None
    devices = devices_held(job)
    others = (
        other
        for other in view.running.values()
        if other is not job and shares_devices(other) and devices_held(other) == devices
    )
    return next(others, None)


def is_alone(view: View, job: JobView) -> bool:
    """Whether no other job holds any part of the devices of this one."""
    held = dict(devices_held(job))
    return not any(
        held.get(node, 0) & devices
        for other in view.running.values()
        if other is not job
        for node, devices, *_ in other.spots or ()
    )
