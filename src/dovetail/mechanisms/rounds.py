"""Shares of time, made true in rounds.

A policy says what share of its time each job should spend on each type of GPU. Nobody runs on half a gang,
so the shares come true over rounds: in each the jobs furthest behind their shares run, on the type they are
furthest behind on, for the whole of it. A job that is picked again for the type it has goes on undisturbed.

How far behind: its share of a type over the time that it had there since the shares were last dealt.
Everybody begins with half a round to its name, so that newcomers come in order of their shares. Whoever has
no share comes last: devices that nobody else wants are not left idle.

Two jobs may have a share as a *pair*: time that they spend together, on the devices of one of them. A pair is
in the line like a job, and takes both; each of the two then holds half of every device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from dovetail.model.cluster import Cluster
from dovetail.model.grant import Spots, devices_of, nodes_of
from dovetail.model.job import Shape
from dovetail.model.speed import fewest_nodes
from dovetail.model.units import WHOLE
from dovetail.model.view import JobView, Plan, Room, View

Pair = tuple[str, str]  # the earlier first
Who = str | Pair  # a job, or two on the same devices
Deal = Mapping[Who, Mapping[str, float]]  # who -> way to run (a type) -> share of its time

HALF = WHOLE // 2

SPLIT = " split"  # a way to run that takes devices of a type on more nodes than the gang needs: "V100 split"


class Pick(NamedTuple):
    """Somebody who runs in the next round, and in which way: on a type, together or split."""

    job: JobView
    way: str
    beside: JobView | None = None  # on the same devices; it has a pick of its own


@dataclass(frozen=True, slots=True)
class Book:
    """What is kept from one round to the next. All times in microseconds."""

    number: int = 0  # rounds so far
    began_at: int = 0
    ends_at: int = 0
    dealt_at: int | None = None
    dealt_to: frozenset[tuple[str, int]] = frozenset()  # the jobs, the devices of each type: what it rests on
    deal: Deal = field(default_factory=dict)
    runs: Mapping[Who, str] = field(default_factory=dict)  # in this round: who -> type
    had: Mapping[Who, Mapping[str, int]] = field(default_factory=dict)  # since the deal
    owed: Mapping[Who, Mapping[str, float]] = field(default_factory=dict)  # and left over from former deals


def over(book: Book, view: View) -> bool:
    """Whether it is time for the next round: this one is over, or nobody runs any more."""
    return view.now >= book.ends_at or not view.running


def accounted(book: Book, view: View) -> Book:
    """The book with the round that has just ended written into it; those who are gone are struck out."""
    spent = view.now - book.began_at
    here: dict[Who, None] = {job.id: None for job in active(view)}
    for who in (*book.deal, *book.had):
        if not isinstance(who, str) and who[0] in here and who[1] in here:
            here[who] = None
    had: dict[Who, dict[str, int]] = {}
    for who in here:
        times = dict(book.had.get(who, {}))
        if (kind := book.runs.get(who)) is not None:
            times[kind] = times.get(kind, 0) + spent
        had[who] = times
    owed = {who: book.owed[who] for who in had if who in book.owed}
    deal = {who: share for who, share in book.deal.items() if who in had}
    return replace(book, had=had, owed=owed, runs={}, deal=deal)


def redealt(book: Book, view: View, deal: Deal, whom: frozenset[tuple[str, int]]) -> Book:
    """A new deal: what somebody missed of the last is remembered, and breaks ties from now on."""
    passed = view.now - (book.dealt_at or 0)
    owed: dict[Who, dict[str, float]] = {}
    for who, times in book.had.items():
        before, share = book.owed.get(who, {}), book.deal.get(who, {})
        kinds = {*times, *share, *before}
        owed[who] = {
            kind: before.get(kind, 0.0) + share.get(kind, 0.0) * passed - times.get(kind, 0) for kind in kinds
        }
    had: dict[Who, dict[str, int]] = {who: {} for who in book.had}
    return replace(book, deal=deal, dealt_at=view.now, dealt_to=whom, had=had, owed=owed)


def picked(
    book: Book,
    view: View,
    ways: Sequence[str],
    usable: Callable[[JobView, str], bool],
    length: int,
    *,
    idle: bool = True,
) -> list[Pick]:
    """Who runs next: way by way in the given order, those furthest behind first, while there are devices.

    Whoever came after the deal waits for the next, though devices are kept for it that nobody else has a
    share of. Without `idle` nobody runs in a way that it has no share of.
    """
    left = capacity(view.cluster, view.room)
    chosen: dict[str, Pick] = {}
    for job in view.running.values():
        if job.shape.each and spared(job, view.now):
            kind = kind_of(view.cluster, job)
            mate = mate_of(view, job)
            mate = mate if mate is not None and spared(mate, view.now) else None
            chosen[job.id] = Pick(job, kind, mate)
            # The half that nobody keeps is no device for others.
            alone = lends(job) and mate is None
            left[kind] = left.get(kind, 0) - (devices_of(job.spots or ()) * WHOLE if alone else job.held)
    jobs = active(view)
    by_id = {job.id: job for job in jobs}
    pairs = [(by_id[who[1]], by_id[who[0]]) for who in book.deal if not isinstance(who, str)]
    for way in ways:
        kind = type_of(way)
        line: list[tuple[JobView, JobView | None]] = [(job, None) for job in jobs]
        line += [(late, early) for late, early in pairs if book.deal[early.id, late.id].get(way)]
        line.sort(key=lambda two: (_behind(book, two, way, length), _place(two)), reverse=True)
        for job, other in line:
            if left.get(kind, 0) <= 0:
                break
            if job.id in chosen or (other is not None and other.id in chosen):
                continue
            if job.shape.load > left[kind] or (other is None and not usable(job, way)):
                continue
            if idle or book.deal.get(_who(job, other), {}).get(way):
                left[kind] -= job.shape.load
                chosen[job.id] = Pick(job, way, other)
                if other is not None:
                    chosen[other.id] = Pick(other, way, job)
    return [
        pick
        for pick in chosen.values()
        if pick.job.id in book.deal or pick.beside is not None or pick.job.spots is not None
    ]


def _who(job: JobView, other: JobView | None) -> Who:
    if other is None:
        return job.id
    return (job.id, other.id) if job.seq < other.seq else (other.id, job.id)


def _behind(
    book: Book, two: tuple[JobView, JobView | None], way: str, length: int
) -> tuple[float, float, float]:
    who = _who(*two)
    share = book.deal.get(who, {}).get(way, 0.0)
    had = book.had.get(who, {}).get(way, 0) + length / 2
    return share / had, book.owed.get(who, {}).get(way, 0.0), share


def _place(two: tuple[JobView, JobView | None]) -> tuple[int, int]:
    """Who is here longer comes first, a job before its pairs."""
    late, early = two
    return -late.seq, 1 if early is None else -early.seq


def begun(book: Book, view: View, picks: Iterable[Pick], length: int) -> Book:
    """The book at the start of a round."""
    runs = {
        _who(job, other if other is not None and other.spots is not None else None): way
        for job, way, other in picks
        if job.spots is not None
    }
    return replace(book, number=book.number + 1, began_at=view.now, ends_at=view.now + length, runs=runs)


def enact(view: View, picks: Sequence[Pick]) -> Plan:
    """Let those picked run and nobody else; who runs in its way already stays where it is.

    The largest are placed first, so that the small ones do not break up what they need. Of a pair, one stays
    if it can and the other joins it.
    """
    plan = view.draft()
    stay = _staying(view, picks)
    lone = {pick.job.id for pick in picks if lends(pick.job) and _alone(view, pick.job)}
    for job in list(view.running.values()):
        if job.shape.each and job.id not in stay:
            plan.stop(job)
    for job, _, other in picks:
        if job.id in stay and other is not None and not lends(job):
            plan.shift(job, _part(job, HALF))
        elif job.id in stay and other is None and job.id in lone:
            plan.shift(job, _part(job, WHOLE))
    for job, way, other in sorted(picks, key=lambda pick: -pick.job.shape.load):
        if job.spots is None:
            spots = place_on(plan.room, job.shape, way) if other is None else _beside(plan, job, way, other)
            if spots is None:
                plan.deny(job, "Resources", f"its turn on {way} has come, but not the devices together")
            else:
                plan.start(job, spots)
    return plan


def _staying(view: View, picks: Sequence[Pick]) -> set[str]:
    """Who goes on where it is: what two of a former pair hold, only one of them can keep for itself."""
    stay = {job.id for job in view.running.values() if spared(job, view.now)}
    taken = {_devices(view.running[id]) for id in stay if view.running[id].shape.exclusive}
    for job, way, other in picks:
        if job.id in stay or not _stays(view.cluster, job, way):
            continue
        devices = _devices(job)
        if job.shape.exclusive and devices in taken:
            together = other is not None and other.id in stay and _devices(other) == devices
            if not together:
                continue
        elif other is not None and other.id in stay:
            continue  # it joins the other
        taken.add(devices)
        stay.add(job.id)
    return stay


def _beside(plan: Plan, job: JobView, way: str, other: JobView) -> Spots | None:
    """Half of the devices of the other; or of such as have room for both."""
    if other.spots is None:
        both = paired(job.shape, other.shape)
        spots = None if both is None else place_on(plan.room, both, way)
        return None if spots is None else _share(job.shape, spots, HALF)
    spots = _share(job.shape, other.spots, HALF)
    room = plan.room
    lacks = any(room.free_cpus(n) < cpus or room.free_memory(n) < size for n, _, _, cpus, size in spots)
    return None if lacks else spots


def _part(job: JobView, milli: int) -> Spots:
    assert job.spots is not None
    return _share(job.shape, job.spots, milli)


def _share(shape: Shape, spots: Spots, milli: int) -> Spots:
    """So much of these devices, with the CPU and memory that the shape has beside them."""
    return tuple(
        (node, devices, milli, shape.cpus * tasks, shape.memory * tasks)
        for node, devices, *_ in spots
        for tasks in (devices.bit_count() // shape.each,)
    )


def _devices(job: JobView) -> tuple[tuple[int, int], ...]:
    return tuple(sorted(spot[:2] for spot in job.spots or ()))


def lends(job: JobView) -> bool:
    """Whether it asked for whole devices and holds a part of them: the rest is for another."""
    return job.spots is not None and job.shape.exclusive and any(0 < spot[2] < WHOLE for spot in job.spots)


def mate_of(view: View, job: JobView) -> JobView | None:
    """Who is on the same devices as one that lends a part of them."""
    if not lends(job):
        return None
    devices = _devices(job)
    others = (o for o in view.running.values() if o is not job and lends(o) and _devices(o) == devices)
    return next(others, None)


def _alone(view: View, job: JobView) -> bool:
    """Whether nobody else is on any of its devices: not even one that asked for a part of one."""
    held = dict(_devices(job))
    return not any(
        held.get(node, 0) & devices
        for other in view.running.values()
        if other is not job
        for node, devices, *_ in other.spots or ()
    )


def paired(shape: Shape, other: Shape) -> Shape | None:
    """What two gangs need to be on the very same devices: whole ones, as many, dealt alike; None if never."""
    alike = (shape.tasks, shape.each, shape.partition) == (other.tasks, other.each, other.partition)
    if not alike or not (shape.exclusive and other.exclusive) or shape.roles or other.roles:
        return None
    return replace(shape, cpus=shape.cpus + other.cpus, memory=shape.memory + other.memory)


def _stays(cluster: Cluster, job: JobView, way: str) -> bool:
    """On the type it is to have; and no move is made to be split."""
    if job.spots is None or type_of(way) != kind_of(cluster, job):
        return False
    split = len(nodes_of(job.spots)) > fewest_nodes(cluster, of_kind(job.shape, type_of(way)))
    return way.endswith(SPLIT) or not split


def spared(job: JobView, now: int) -> bool:
    """Whether a running job must not be stopped now: it may not be, or nothing of this start would be kept.

    Who saves nothing when it is stopped runs until it has saved by itself; else rounds shorter than that
    would keep it busy for ever.
    """
    if job.spots is None:
        return False
    checkpoint = job.traits.checkpoint
    done = (now - job.started_at - checkpoint.restore) * job.rate
    if not job.traits.preemptible or done <= 0:
        return True
    return not checkpoint.on_stop and (checkpoint.every is None or done < checkpoint.every)


def place_on(room: Room, shape: Shape, way: str) -> Spots | None:
    """Devices of one type: packed if that is free, over any nodes if not."""
    return room.anywhere(of_kind(shape, type_of(way)))


def type_of(way: str) -> str:
    """The type of GPU of a way to run."""
    return way.removesuffix(SPLIT)


def of_kind(shape: Shape, kind: str) -> Shape:
    """The shape, content with one type of GPU."""
    return shape if shape.types == (kind,) else replace(shape, types=(kind,))


def active(view: View) -> list[JobView]:
    """All jobs that need devices, by submission."""
    jobs = [job for job in (*view.running.values(), *view.queue) if job.shape.each]
    jobs.sort(key=lambda job: job.seq)
    return jobs


def capacity(cluster: Cluster, room: Room) -> dict[str, int]:
    """Milli-GPUs of each type on the nodes that are open."""
    found: dict[str, int] = {}
    for number, node in enumerate(cluster.nodes):
        if node.gpus and room.is_open(number):
            found[node.type.name] = found.get(node.type.name, 0) + node.gpus * WHOLE
    return found


def kind_of(cluster: Cluster, job: JobView) -> str:
    """The type of the devices that a job holds; of its slowest if they differ."""
    assert job.spots is not None
    types = [cluster.nodes[spot[0]].type for spot in job.spots if spot[1]]
    return min(types, key=lambda kind: (kind.speed, kind.name)).name
