"""Preempting running jobs for waiting jobs that rank higher.

Every waiting job, in order, starts if it fits, and otherwise preempts running jobs that rank behind it, the
last of them first, if that makes room. With all running jobs ranked too, this is the greedy prefix of all
active jobs. If its tenant's limit keeps a job from starting, it preempts no job, and delays no job of another
tenant.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from dovetail.mechanisms.place.placement import Find, Placement, packed
from dovetail.model.grant import Spots
from dovetail.model.job import Shape
from dovetail.model.view import Entry, JobView, Key, Order, Plan, View

Displaced = Sequence[tuple[JobView, Spots]]  # preempted jobs, each with the spots that it held


def preemptive(order: Order, *, strict: bool = False) -> Callable[[View, Placement], Plan]:
    """Start jobs in order and preempt those that rank behind; `strict`: no waiting job overtakes another."""

    assert order.limit is not None
    limit_of, indexed = order.limit, not order.drifts

    def serve(view: View, place: Placement = packed) -> Plan:
        plan = view.draft()
        room, queue, departures = plan.room, view.queue, view.departures
        find, always_packs = place.find, place.always_packs
        packs_job = place.packs if callable(place.packs) else place.packs_job  # one call less for each job
        has_tenants = bool(view.cluster.tenants)  # a limit is given as the reason before lack of room
        if place.prefers_packed:
            plan.start_arrivals(past_waiting=not strict)
        blocked: set[Shape] = set()
        full: dict[Shape, set[str]] = {}  # shapes that fit, and the tenants that are at a limit for them
        # If only arrivals happened since the last decision, preemption makes no room for other shapes, as it
        # made none then. Nor can these start before a running job is preempted. None: all shapes are tried.
        tried = None if view.changed else {job.shape for job in view.arrived}
        startable = tried
        refused: tuple[Shape, Key] | None = None  # of the last job that preemption made no room for
        again = True
        while again:
            again = False
            for job in _line(view, order, blocked, full) if full else queue.walk():
                shape = job.shape
                if shape in blocked:
                    continue
                if startable is not None and shape not in startable:
                    blocked.add(shape)
                    if strict:
                        break
                    continue
                spots = None
                consolidated = always_packs or packs_job(job)
                if not consolidated:
                    spots = find(room, job)
                elif has_tenants or room.may_fit(shape):  # most shapes do not: the index says so quickly
                    if plan.start(job):
                        continue
                    if room.may_fit(shape):
                        spots = find(room, job)
                displaced: Displaced = ()
                if spots is None and (tried is None or shape in tried):
                    limit = limit_of(job, view.now)
                    if not (indexed and consolidated and shape.plain):
                        displaced = _displaced_one_by_one(view, plan, order, job, find)
                    # Preemption makes no room for a job that needs as much as one for which it made none, and
                    # that may preempt no more; jobs started since only take room.
                    elif (
                        refused is None
                        or shape.tasks < refused[0].tasks
                        or shape.types != refused[0].types
                        or refused[1] < limit
                    ):
                        vacancy = departures.vacancy(shape, limit)
                        if vacancy is None:
                            refused = (shape, limit)
                        else:
                            displaced = [(runner, runner.spots or ()) for runner in vacancy.jobs]
                            for runner, _ in displaced:
                                plan.stop(runner, by=job)
                    if displaced:
                        startable = refused = None
                        if consolidated and not has_tenants and plan.start(job):
                            continue  # the preempted jobs are in the queue behind it, and may fit beside it
                        spots = find(room, job)
                if spots is None:
                    plan.deny(job, "Resources")
                    blocked.add(shape)
                elif plan.start(job, spots):
                    if not (displaced and has_tenants):
                        continue  # the preempted jobs are in the queue behind it now, and may fit beside it
                    blocked.difference_update(other.shape for other, _ in displaced)
                    full.clear()
                    again = True  # a tenant that was at its limit may be below it now
                    break
                else:
                    full.setdefault(shape, set()).add(job.tenant)
                    for other, before in displaced:
                        plan.start(other, before)
                if strict:
                    break
                if displaced or full:
                    again = True
                    break
        return plan

    return serve


def _line(
    view: View, order: Order, blocked: Collection[Shape], full: Mapping[Shape, Collection[str]]
) -> Iterator[JobView]:
    """Waiting jobs in order, without blocked shapes and without those beyond their tenant's limit."""
    while (job := _first(view, order, blocked, full)) is not None:
        yield job


def _first(
    view: View, order: Order, blocked: Collection[Shape], full: Mapping[Shape, Collection[str]]
) -> JobView | None:
    """The first waiting job with a shape that is not blocked, and within the limit of its tenant."""
    queue = view.queue
    head = queue.head({*blocked, *full})
    found: list[Entry] = [] if head is None else [(order.key(head, view.now), head.seq, head)]
    for shape, tenants in full.items():
        if shape not in blocked:
            for heap in queue.groups(shape).values():
                found += [e for e in heap if e[2].tenant not in tenants and queue.waiting(e)]
    return min(found)[2] if found else None


def _displaced_one_by_one(view: View, plan: Plan, order: Order, job: JobView, find: Find) -> Displaced:
    """Without an index: stop jobs, lowest rank first, until this one fits; stop none if it never does."""
    assert order.yields is not None
    assert order.limit is not None
    now, yields, limit = view.now, order.yields, order.limit(job, view.now)
    leaving = sorted(
        (key, -other.seq, other)
        for other in view.running.values()
        if other.traits.preemptible and (key := yields(other, now)) is not None and key < limit
    )
    return displace_among(plan, [other for _, _, other in leaving], job, find)


def displace_among(plan: Plan, leaving: Sequence[JobView], job: JobView, find: Find) -> Displaced:
    """Stop jobs in this order until `job` fits; then restart those that were not in the way.

    For shapes and placements without an index. The job that was stopped last is restarted first.
    """
    stopped: list[tuple[JobView, Spots]] = []
    for other in leaving:
        stopped.append((other, other.spots or ()))
        plan.stop(other, by=job)
        if find(plan.room, job) is not None:
            break
    else:
        for other, before in reversed(stopped):
            plan.start(other, before)
        return ()
    needed = []
    for other, before in reversed(stopped):
        plan.start(other, before)
        if find(plan.room, job) is None:
            plan.stop(other, by=job)
            needed.append((other, before))
    return needed
