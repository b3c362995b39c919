"""Who keeps what it holds when a lease ends.

At the end of a lease everybody stands in one line, and the devices go down the line as far as they reach. Who
runs and is reached goes on where it is: its lease is renewed in place, and costs nothing. Who waits and does
not fit takes the devices of those behind, the last first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from dovetail.mechanisms.preempt import Displaced, displace_among
from dovetail.mechanisms.rounds import capacity
from dovetail.mechanisms.throughput import declared
from dovetail.model.cluster import Cluster
from dovetail.model.grant import Spots, load_of
from dovetail.model.job import Shape
from dovetail.model.view import JobView, Plan, Room, View

Tempo = Mapping[str, float]  # type -> speed


class Seat(NamedTuple):
    """A place in the line."""

    job: JobView
    shape: Shape  # the job's own, content with the types it is meant for
    packed: bool = False  # on as few nodes as it can be, or not at all


def seated(view: View, plan: Plan, line: Sequence[Seat]) -> None:
    """Down the line: who runs goes on, who fits starts, who does not displaces the last of those behind."""
    behind = sum(seat.job.held for seat in line if seat.job.traits.preemptible)
    spare = idle(view, plan.room)
    full: set[tuple[Shape, bool]] = set()
    for i, seat in enumerate(line):
        job = seat.job
        if job.spots is not None:
            behind -= job.held if job.traits.preemptible else 0
            continue
        if seat[1:] in full:
            continue
        displaced: Displaced = ()
        spots = _spots(plan.room, seat)
        if spots is None and spare + behind >= seat.shape.load:
            displaced = _displaced(view, plan, seat, line[i + 1 :])
            spots = _spots(plan.room, seat) if displaced else None
        if spots is None:
            plan.deny(job, "Resources", "others come first in this lease")
            full.add((seat.shape, seat.packed))
        elif not plan.start(job, spots):  # its tenant is at a limit
            for other, before in displaced:
                plan.start(other, before)
        else:
            freed = sum(load_of(before) for _, before in displaced)
            behind, spare = behind - freed, spare + freed - job.held
            if displaced:
                full.clear()


def filled(plan: Plan, line: Iterable[Seat]) -> None:
    """Down the line: who fits starts; nobody has to go."""
    full: set[tuple[Shape, bool]] = set()
    for seat in line:
        if seat.job.spots is not None or seat[1:] in full:
            continue
        spots = _spots(plan.room, seat)
        if spots is None:
            plan.deny(seat.job, "Resources", "others hold a lease")
            full.add((seat.shape, seat.packed))
        else:
            plan.start(seat.job, spots)


def gathered(view: View, plan: Plan) -> list[JobView]:
    """All jobs that need devices, by submission. Work without GPUs is in nobody's way: it starts at once."""
    waiting = list(view.queue)
    for job in waiting:
        if not job.shape.each:
            plan.start(job)
    jobs = [job for job in (*view.running.values(), *waiting) if job.shape.each]
    jobs.sort(key=lambda job: job.seq)
    return jobs


def tempos(cluster: Cluster, jobs: Iterable[JobView]) -> dict[str, Tempo]:
    """How fast each job goes on the types on which it gets anywhere."""
    every = tuple(kind.name for kind in cluster.types)
    known: dict[tuple[tuple[str, ...], int], Tempo] = {}
    found = {}
    for job in jobs:
        kinds = job.shape.types
        key = kinds, id(job.traits.profile)
        tempo = known.get(key)
        if tempo is None:
            pairs = zip(kinds or every, declared(cluster, job, kinds or every), strict=True)
            tempo = {kind: speed for kind, speed in pairs if speed > 0}
            known[key] = tempo = tempo or dict.fromkeys(kinds or every, 1.0)
        found[job.id] = tempo
    return found


def fastest_first(tempos: Mapping[str, Tempo], kinds: Iterable[str]) -> list[str]:
    """Types by the mean speed of those jobs that get anywhere on them."""
    mean = {}
    for kind in kinds:
        known = [tempo[kind] for tempo in tempos.values() if kind in tempo]
        mean[kind] = sum(known) / len(known) if known else 0.0
    return sorted(mean, key=lambda kind: (-mean[kind], kind))


@lru_cache(maxsize=4096)
def of_kinds(shape: Shape, kinds: tuple[str, ...]) -> Shape:
    """The shape, content with these types."""
    return shape if shape.types == kinds else replace(shape, types=kinds)


def seat_for(cluster: Cluster, job: JobView, tempo: Tempo) -> Seat:
    """A place for a job that does not mind which of its types it gets."""
    free = len(tempo) == len(job.shape.types or cluster.types)
    return Seat(job, job.shape if free else of_kinds(job.shape, tuple(tempo)))


def idle(view: View, room: Room) -> int:
    """Milli-GPUs on open nodes that nobody holds."""
    held = sum(
        job.held for job in view.running.values() if all(room.is_open(spot[0]) for spot in job.spots or ())
    )
    return sum(capacity(view.cluster, room).values()) - held


def _spots(room: Room, seat: Seat) -> Spots | None:
    shape = seat.shape
    if seat.packed:
        return room.best(shape)
    if shape.exclusive and room.free_gpus < shape.gpus:
        return None
    return room.anywhere(shape)


def _displaced(view: View, plan: Plan, seat: Seat, behind: Sequence[Seat]) -> Displaced:
    """Of those behind, only who holds devices that the seat could use need be asked."""
    types, nodes = seat.shape.types, view.cluster.nodes
    leaving = [
        other.job
        for other in reversed(behind)
        if other.job.spots
        and other.job.traits.preemptible
        and (not types or any(nodes[spot[0]].type.name in types for spot in other.job.spots))
    ]
    return displace_among(plan, leaving, seat.job, lambda room, _: _spots(room, seat))
