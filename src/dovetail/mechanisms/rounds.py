"""Shares of time, made true in rounds.

A policy says what share of its time each job should spend on each type of GPU. Nobody runs on half a gang,
so the shares come true over rounds: in each the jobs furthest behind their shares run, on the type they are
furthest behind on, for the whole of it. A job that is picked again for the type it has goes on undisturbed.

How far behind: its share of a type over the time that it had there since the shares were last dealt.
Everybody begins with half a round to its name, so that newcomers come in order of their shares. Whoever has
no share comes last: devices that nobody else wants are not left idle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from dovetail.model.cluster import Cluster
from dovetail.model.grant import Spots, nodes_of
from dovetail.model.job import Shape
from dovetail.model.speed import fewest_nodes
from dovetail.model.units import WHOLE
from dovetail.model.view import JobView, Plan, Room, View

Deal = Mapping[str, Mapping[str, float]]  # job -> way to run (a type) -> share of its time


SPLIT = " split"  # a way to run that takes devices of a type on more nodes than the gang needs: "V100 split"


class Pick(NamedTuple):
    """Somebody who runs in the next round, and in which way: on a type, together or split."""

    job: JobView
    way: str


@dataclass(frozen=True, slots=True)
class Book:
    """What is kept from one round to the next. All times in microseconds."""

    number: int = 0  # rounds so far
    began_at: int = 0
    ends_at: int = 0
    dealt_at: int | None = None
    dealt_to: frozenset[tuple[str, int]] = frozenset()  # the jobs, the devices of each type: what it rests on
    deal: Deal = field(default_factory=dict)
    runs: Mapping[str, str] = field(default_factory=dict)  # in this round: job -> type
    had: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # since the deal
    owed: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # and left over from former deals


def over(book: Book, view: View) -> bool:
    """Whether it is time for the next round: this one is over, or nobody runs any more."""
    return view.now >= book.ends_at or not view.running


def accounted(book: Book, view: View) -> Book:
    """The book with the round that has just ended written into it; those who are gone are struck out."""
    spent = view.now - book.began_at
    had: dict[str, dict[str, int]] = {}
    for job in active(view):
        times = dict(book.had.get(job.id, {}))
        if (kind := book.runs.get(job.id)) is not None:
            times[kind] = times.get(kind, 0) + spent
        had[job.id] = times
    owed = {id: book.owed[id] for id in had if id in book.owed}
    return replace(book, had=had, owed=owed, runs={}, deal={i: s for i, s in book.deal.items() if i in had})


def redealt(book: Book, view: View, deal: Deal, whom: frozenset[tuple[str, int]]) -> Book:
    """A new deal: what somebody missed of the last is remembered, and breaks ties from now on."""
    passed = view.now - (book.dealt_at or 0)
    owed = {}
    for id, times in book.had.items():
        before, share = book.owed.get(id, {}), book.deal.get(id, {})
        kinds = {*times, *share, *before}
        owed[id] = {
            kind: before.get(kind, 0.0) + share.get(kind, 0.0) * passed - times.get(kind, 0) for kind in kinds
        }
    had: dict[str, dict[str, int]] = {id: {} for id in book.had}
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
            chosen[job.id] = Pick(job, kind)
            left[kind] = left.get(kind, 0) - job.held
    jobs = active(view)
    for way in ways:
        kind = type_of(way)
        for job in sorted(jobs, key=lambda job: (_behind(book, job, way, length), -job.seq), reverse=True):
            if left.get(kind, 0) <= 0:
                break
            if job.id in chosen or job.shape.load > left[kind] or not usable(job, way):
                continue
            if idle or book.deal.get(job.id, {}).get(way):
                left[kind] -= job.shape.load
                chosen[job.id] = Pick(job, way)
    return [pick for pick in chosen.values() if pick.job.id in book.deal or pick.job.spots is not None]


def _behind(book: Book, job: JobView, way: str, length: int) -> tuple[float, float, float]:
    share = book.deal.get(job.id, {}).get(way, 0.0)
    had = book.had.get(job.id, {}).get(way, 0) + length / 2
    return share / had, book.owed.get(job.id, {}).get(way, 0.0), share


def begun(book: Book, view: View, picks: Iterable[Pick], length: int) -> Book:
    """The book at the start of a round."""
    runs = {pick.job.id: pick.way for pick in picks if pick.job.spots is not None}
    return replace(book, number=book.number + 1, began_at=view.now, ends_at=view.now + length, runs=runs)


def enact(view: View, picks: Sequence[Pick]) -> Plan:
    """Let those picked run and nobody else; who runs in its way already stays where it is.

    The largest are placed first, so that the small ones do not break up what they need.
    """
    plan = view.draft()
    wanted = {pick.job.id: pick.way for pick in picks}
    for job in list(view.running.values()):
        stays = spared(job, view.now) or _stays(view.cluster, job, wanted.get(job.id))
        if job.shape.each and not stays:
            plan.stop(job)
    for job, way in sorted(picks, key=lambda pick: -pick.job.shape.load):
        if job.spots is None:
            spots = place_on(plan.room, job.shape, way)
            if spots is None:
                plan.deny(job, "Resources", f"its turn on {way} has come, but not the devices together")
            else:
                plan.start(job, spots)
    return plan


def _stays(cluster: Cluster, job: JobView, way: str | None) -> bool:
    """On the type it is to have; and no move is made to be split."""
    if way is None or job.spots is None or type_of(way) != kind_of(cluster, job):
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
