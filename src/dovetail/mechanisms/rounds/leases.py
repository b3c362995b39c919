"""Leases: which jobs keep their devices when a lease ends.

At the end of a lease all jobs form one line, and the devices go down the line as far as they reach. A running
job that is reached goes on where it is: its lease is renewed in place, at no cost. A waiting job that does
not fit preempts jobs behind it, the last first.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple

from dovetail.mechanisms.estimate.speeds import by_type
from dovetail.mechanisms.place.gpu_types import load_by_type, of_types
from dovetail.mechanisms.preempt.displacement import Displaced, displace_among
from dovetail.mechanisms.preempt.stopping import must_keep_running
from dovetail.model.cluster import Cluster
from dovetail.model.estimate import alike
from dovetail.model.grant import Spots, load_of
from dovetail.model.job import Shape
from dovetail.model.view import JobView, Plan, Room, View

SpeedByType = Mapping[str, float]  # GPU type -> speed


class LeaseRequest(NamedTuple):
    """A job in the line for a lease, and where it may run."""

    job: JobView
    shape: Shape  # the job's shape, restricted to the types that it is meant for
    packed: bool = False  # only on as few nodes as it needs


def staying(jobs: Iterable[JobView], now: int, *, lease_over: bool) -> list[JobView]:
    """Running jobs that keep their devices: all during a lease; at its end those that must not be stopped."""
    return [job for job in jobs if (must_keep_running(job, now) if lease_over else job.spots is not None)]


def grant_leases(
    view: View, plan: Plan, stay: Iterable[JobView], line: Sequence[LeaseRequest], *, lease_over: bool
) -> None:
    """Start the jobs in line: at the end of a lease they may preempt jobs behind them, during one not."""
    if lease_over:
        grant_new_leases(view, plan, [*(LeaseRequest(job, job.shape) for job in stay), *line])
    else:
        grant_free_devices(plan, line)


def grant_new_leases(view: View, plan: Plan, line: Sequence[LeaseRequest]) -> None:
    """Down the line: running jobs go on, jobs that fit start, others preempt the last of those behind."""
    behind = sum(request.job.held for request in line if request.job.traits.preemptible)
    spare = idle_load(view, plan.room)
    full: set[tuple[Shape, bool]] = set()
    for i, request in enumerate(line):
        job = request.job
        if job.spots is not None:
            behind -= job.held if job.traits.preemptible else 0
            continue
        if request[1:] in full:
            continue
        displaced: Displaced = ()
        spots = _spots(plan.room, request)
        if spots is None and spare + behind >= request.shape.load:
            displaced = _displaced(view, plan, request, line[i + 1 :])
            spots = _spots(plan.room, request) if displaced else None
        if spots is None:
            plan.deny(job, "Resources", "other jobs come first in this lease")
            full.add((request.shape, request.packed))
        elif not plan.start(job, spots):  # its tenant is at a limit
            for other, before in displaced:
                plan.start(other, before)
        else:
            freed = sum(load_of(before) for _, before in displaced)
            behind, spare = behind - freed, spare + freed - job.held
            if displaced:
                full.clear()


def grant_free_devices(plan: Plan, line: Iterable[LeaseRequest]) -> None:
    """Down the line: jobs that fit start; no job is preempted."""
    full: set[tuple[Shape, bool]] = set()
    for request in line:
        if request.job.spots is not None or request[1:] in full:
            continue
        spots = _spots(plan.room, request)
        if spots is None:
            plan.deny(request.job, "Resources", "other jobs hold a lease")
            full.add((request.shape, request.packed))
        else:
            plan.start(request.job, spots)


def speeds_of(view: View, jobs: Iterable[JobView]) -> dict[str, SpeedByType]:
    """The estimated speed of each job on the GPU types on which it can run."""
    every = tuple(kind.name for kind in view.cluster.types)
    known: dict[Hashable, SpeedByType] = {}
    found = {}
    for job in jobs:
        kinds = job.shape.types
        key = alike(view.estimator, job)
        speeds = known.get(key)
        if speeds is None:
            pairs = zip(kinds or every, by_type(view, job, kinds or every), strict=True)
            speeds = {kind: speed for kind, speed in pairs if speed > 0}
            known[key] = speeds = speeds or dict.fromkeys(kinds or every, 1.0)
        found[job.id] = speeds
    return found


def fastest_first(speeds: Mapping[str, SpeedByType], kinds: Iterable[str]) -> list[str]:
    """GPU types by the mean speed of the jobs that can run on them."""
    mean = {}
    for kind in kinds:
        known = [of_job[kind] for of_job in speeds.values() if kind in of_job]
        mean[kind] = sum(known) / len(known) if known else 0.0
    return sorted(mean, key=lambda kind: (-mean[kind], kind))


def request_for(cluster: Cluster, job: JobView, speeds: SpeedByType) -> LeaseRequest:
    """A request for any of the GPU types on which a job can run."""
    unrestricted = len(speeds) == len(job.shape.types or cluster.types)
    return LeaseRequest(job, job.shape if unrestricted else of_types(job.shape, tuple(speeds)))


def idle_load(view: View, room: Room) -> int:
    """Milli-GPUs on open nodes that no job holds."""
    held = sum(
        job.held for job in view.running.values() if all(room.is_open(spot[0]) for spot in job.spots or ())
    )
    return sum(load_by_type(view.cluster, room).values()) - held


def _spots(room: Room, request: LeaseRequest) -> Spots | None:
    shape = request.shape
    if request.packed:
        return room.best(shape)
    if shape.exclusive and room.free_gpus < shape.gpus:
        return None
    return room.anywhere(shape)


def _displaced(view: View, plan: Plan, request: LeaseRequest, behind: Sequence[LeaseRequest]) -> Displaced:
    """Preempt jobs behind in line; only those on GPU types that the request could use are tried."""
    types, nodes = request.shape.types, view.cluster.nodes
    leaving = [
        other.job
        for other in reversed(behind)
        if other.job.spots
        and other.job.traits.preemptible
        and (not types or any(nodes[spot[0]].type.name in types for spot in other.job.spots))
    ]
    return displace_among(plan, leaving, request.job, lambda room, _: _spots(room, request))
