"""Taking devices back for somebody who comes first.

Every waiting job, in order, starts if it fits, and otherwise displaces running jobs that rank behind it,
last first, if that makes room. With all running jobs ranked too this is the greedy prefix of all active jobs.
A job whose tenant is at a limit displaces nobody in vain, and holds up no other tenant's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from dovetail.mechanisms.place import Place, packed
from dovetail.mechanisms.skew import packs, packs_first
from dovetail.model.grant import Spots
from dovetail.model.job import Shape
from dovetail.model.view import Entry, JobView, Key, Order, Plan, View

Displaced = Sequence[tuple[JobView, Spots]]  # each with what it held


def preemptive(order: Order, *, nobody_overtakes: bool = False) -> Callable[[View, Place], Plan]:
    """Start in order, displacing those who rank behind."""

    assert order.limit is not None
    limit_of, indexed = order.limit, not order.drifts

    def serve(view: View, place: Place = packed) -> Plan:
        plan = view.draft()
        room, queue, exits = plan.room, view.queue, view.exits
        always = place is packed
        claims = bool(view.cluster.tenants)  # a limit is named before want of room, to whoever asks why
        if packs_first(place):
            plan.welcome(past=not nobody_overtakes)
        blocked: set[Shape] = set()
        full: dict[Shape, set[str]] = {}  # shapes that fit, and the tenants whose limits they do not
        # A shape that could not be helped before cannot be now, unless something moved or a better job came.
        tried = None if view.moved else {job.shape for job in view.arrived}
        only = tried  # nor can it start, until somebody is displaced
        refused: tuple[Shape, Key] | None = None  # the last for whom there was no relief, and its limit
        going = True
        while going:
            going = False
            for job in _line(view, order, blocked, full) if full else queue.walk():
                shape = job.shape
                if shape in blocked:
                    continue
                if only is not None and shape not in only:
                    blocked.add(shape)
                    if nobody_overtakes:
                        break
                    continue
                spots = None
                consolidated = always or packs(place, job)
                if not consolidated:
                    spots = place(room, job)
                elif claims or room.may_fit(shape):  # most do not, and that is quickly said
                    if plan.start(job):
                        continue
                    if room.may_fit(shape):
                        spots = place(room, job)
                displaced: Displaced = ()
                if spots is None and (tried is None or shape in tried):
                    limit = limit_of(job, view.now)
                    if not (indexed and consolidated and shape.plain):
                        displaced = _displaced_one_by_one(view, plan, order, job, place)
                    elif refused is None or not _harder(shape, limit, *refused):
                        relief = exits.relief(shape, limit)
                        if relief is None:
                            refused = (shape, limit)
                        else:
                            displaced = [(runner, runner.spots or ()) for runner in relief.jobs]
                            for runner, _ in displaced:
                                plan.stop(runner)
                    if displaced:
                        spots = place(room, job)
                        only = refused = None
                if spots is None:
                    plan.deny(job, "Resources")
                    blocked.add(shape)
                elif plan.start(job, spots):
                    if not (displaced and claims):
                        continue  # those who had to go stand in line behind it now, and may fit beside
                    blocked.difference_update(other.shape for other, _ in displaced)
                    full.clear()
                    going = True  # a tenant that was at its limit may not be any more
                    break
                else:
                    full.setdefault(shape, set()).add(job.tenant)
                    for other, before in displaced:
                        plan.start(other, before)
                if nobody_overtakes:
                    break
                if displaced or full:
                    going = True
                    break
        return plan

    return serve


def _harder(shape: Shape, limit: Key, than: Shape, its: Key) -> bool:
    """Whether it asks for no less than another of the same types, and may displace no more than that.

    If that one found no relief, it will find none either; those who started since only take room.
    """
    return shape.tasks >= than.tasks and shape.types == than.types and not its < limit


def _line(
    view: View, order: Order, blocked: Collection[Shape], full: Mapping[Shape, Collection[str]]
) -> Iterator[JobView]:
    """Who waits, in order, but for shapes that are blocked or beyond the limits of their tenants."""
    while (job := _first(view, order, blocked, full)) is not None:
        yield job


def _first(
    view: View, order: Order, blocked: Collection[Shape], full: Mapping[Shape, Collection[str]]
) -> JobView | None:
    """The first in the queue whose shape is not blocked, and not beyond the limit of its tenant."""
    queue = view.queue
    head = queue.head({*blocked, *full})
    found: list[Entry] = [] if head is None else [(order.key(head, view.now), head.seq, head)]
    for shape, tenants in full.items():
        if shape not in blocked:
            for heap in queue.groups(shape).values():
                found += [e for e in heap if e[2].tenant not in tenants and queue.waiting(e)]
    return min(found)[2] if found else None


def _displaced_one_by_one(view: View, plan: Plan, order: Order, job: JobView, place: Place) -> Displaced:
    """Where no index helps: stop those who yield first to this job until it fits; nobody if it never does."""
    assert order.yields is not None
    assert order.limit is not None
    now, yields, limit = view.now, order.yields, order.limit(job, view.now)
    leaving = sorted(
        (key, -other.seq, other)
        for other in view.running.values()
        if other.traits.preemptible and (key := yields(other, now)) is not None and key < limit
    )
    return displace_among(plan, [other for _, _, other in leaving], job, place)


def displace_among(plan: Plan, leaving: Sequence[JobView], job: JobView, place: Place) -> Displaced:
    """For shapes and placements without an index: stop, look, and put back who was not in the way.

    Of those who were stopped too many, the last to leave is the first to be put back.
    """
    stopped: list[tuple[JobView, Spots]] = []
    for other in leaving:
        stopped.append((other, other.spots or ()))
        plan.stop(other)
        if place(plan.room, job) is not None:
            break
    else:
        for other, before in reversed(stopped):
            plan.start(other, before)
        return ()
    needed = []
    for other, before in reversed(stopped):
        plan.start(other, before)
        if place(plan.room, job) is None:
            plan.stop(other)
            needed.append((other, before))
    return needed
