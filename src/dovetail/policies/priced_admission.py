"""Admission by prices: what `oasis` and `aonline` have in common.

Every node has a price for each time slot, which rises exponentially with the GPUs that are taken there. A job
that arrives is admitted if some schedule is worth more than it costs (`solve.priced_schedules`). Its schedule
is fixed then, and prices rise. A job that is not admitted is refused.

Reconstructed: prices by default are between the lowest worth seen so far, divided by 4, and the highest.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import NamedTuple

import numpy as np

from dovetail.mechanisms.order.keys import arrival
from dovetail.mechanisms.place.gpu_types import of_types
from dovetail.mechanisms.preempt.stopping import may_be_stopped
from dovetail.mechanisms.rounds.active_jobs import gpu_jobs, start_cpu_jobs
from dovetail.mechanisms.rounds.slot_schedules import (
    Stays,
    counts,
    enact,
    end_of,
    next_change,
    stays,
    tasks_in,
)
from dovetail.model.cluster import Cluster
from dovetail.model.estimate import task_range
from dovetail.model.grant import nodes_of
from dovetail.model.topology import fewest_nodes
from dovetail.model.units import MINUTE
from dovetail.model.view import JobView, Order, Plan, View
from dovetail.solve.priced_schedules import (
    Floats,
    Ints,
    Options,
    Schedule,
    best_schedule,
    cheapest,
    chosen,
    prices,
)

OVERDUE = MINUTE  # a job that runs longer than declared is planned by the minute
FINE = 4  # units of work in a slot with the fewest tasks, and at least in a job
MOST_UNITS = 512
HORIZON = 4_096  # slots; a job that takes longer has no schedule
BELOW = 4.0  # by which the lowest price is below the lowest worth that was seen

Utility = Callable[[JobView, Ints, int], Floats]  # of a job that ends at these times; the length of a slot


@dataclass(frozen=True, slots=True)
class Schedules:
    """What is kept between decisions. Slots are counted from time 0."""

    of: Mapping[str, Stays] = field(default_factory=dict)  # of each admitted job
    unscheduled: frozenset[str] = frozenset()  # jobs that were answered, and run on what is left
    worths: tuple[float, float] | None = None  # the lowest and the highest seen


class Way(NamedTuple):
    """One way to run in a slot: how many tasks, on which nodes, and how fast."""

    tasks: int
    nodes: tuple[int, ...]
    one_node: bool
    speed: float  # on as few nodes as the gang needs
    split: float  # on more nodes
    fewest: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedAdmission:
    """Admit the jobs that are worth their price, and keep to their schedules."""

    utility: Utility
    slot: int
    low: float | None
    high: float | None
    drop: bool
    by_type: bool  # a schedule counts with the speed of each GPU type; else with that of the slowest
    order: Order = arrival
    group: Callable[[JobView], Hashable] | None = None
    quantum: int | None = None

    def decide(self, view: View) -> Plan:
        plan = view.draft()
        start_cpu_jobs(view, plan)
        jobs = gpu_jobs(view)
        memory = view.memory if isinstance(view.memory, Schedules) else Schedules()
        book = Book(self, view, jobs, memory)
        dropped = set[str]()
        for job in jobs:
            if job.id in book.of:
                if book.lost(job):
                    book.reschedule(job)
                continue
            if job.id in book.unscheduled or not may_be_scheduled(view.cluster, job):
                continue
            by = book.admit(job)
            if by is not None:
                plan.accept(job, by)
            elif self.drop and job.spots is None:
                plan.refuse(job, "every schedule costs more than the job is worth")
                dropped.add(job.id)
            else:
                plan.demote(job, job.priority - 1, "every schedule costs more than the job is worth")
                book.unscheduled.add(job.id)
        active = [job for job in jobs if job.id not in dropped]
        self._enact(view, plan, book, active)
        plan.memory = Schedules(dict(book.of), frozenset(book.unscheduled), book.worths)
        change = next_change(book.of.values(), book.first)
        plan.review_at = None if change is None else change * self.slot
        return plan

    def _enact(self, view: View, plan: Plan, book: Book, jobs: Sequence[JobView]) -> None:
        scheduled = {job: tasks_in(book.of[job.id], book.first) for job in jobs if job.id in book.of}
        others = [job for job in jobs if job not in scheduled]
        enact(plan, scheduled, [job for job in others if may_be_stopped(job)], book.closed)
        for job in others:
            if job.spots is None and not book.start_on_the_rest(plan, job):
                plan.deny(job, "Resources", "schedules of admitted jobs leave too few GPUs")
        for job in scheduled:
            if job.spots is None:
                plan.deny(job, "Priority", "its schedule has no GPUs for it in this slot")


class Book:
    """The slots from now on: what is taken, what it costs, and what is taken next."""

    def __init__(
        self, policy: PricedAdmission, view: View, jobs: Sequence[JobView], memory: Schedules
    ) -> None:
        ids = {job.id for job in jobs}
        self._policy, self._view, self._jobs = policy, view, jobs
        self.first = view.now // policy.slot
        self.of = {id: schedule for id, schedule in memory.of.items() if id in ids}
        self.unscheduled = set(memory.unscheduled & ids)
        self.worths = memory.worths
        cluster = view.cluster
        self._size = [node.gpus for node in cluster.nodes]
        self.closed = {node for node in range(len(self._size)) if not view.room.is_open(node)}
        self._each = {job.id: job.shape.each for job in jobs}
        self._table: Ints | None = None

    def taken(self, slots: int) -> Ints:
        """GPUs that are taken on each node in the slots from now on, in this many of them at least."""
        if self._table is None:
            ends = max((end_of(schedule) for schedule in self.of.values()), default=0) - self.first
            kept = [(job, self._slots(job)) for job in self._jobs if job.spots and not may_be_stopped(job)]
            length = max([1, ends, *(until for _, until in kept)])
            self._table = np.zeros((length, len(self._size)), np.int64)
            for id, schedule in self.of.items():
                self._take(schedule, self._each[id])
            for job, until in kept:
                for node, devices, *_ in job.spots or ():
                    self._table[:until, node] += devices.bit_count()
        lacks = slots - len(self._table)
        if lacks > 0:
            self._table = np.concatenate((self._table, np.zeros((lacks, len(self._size)), np.int64)))
        return self._table

    def _take(self, schedule: Stays, each: int) -> None:
        assert self._table is not None
        for first, until, node, tasks in schedule:
            if until > self.first:
                self._table[max(first - self.first, 0) : until - self.first, node] += tasks * each

    def _slots(self, job: JobView) -> int:
        """For how many slots a job that is not stopped holds its GPUs."""
        left = job.remaining_at(self._view.now) or OVERDUE
        rate = (job.rate if job.spots is not None else 0.0) or 1.0
        end = self._view.now + ceil(left / rate) + job.traits.checkpoint.restore
        return min(-(-end // self._policy.slot) - self.first, HORIZON)

    def lost(self, job: JobView) -> bool:
        """Whether a schedule has ended before its job, or has a node that is gone."""
        schedule = self.of[job.id]
        if end_of(schedule) <= self.first:
            return True
        return job.spots is None and any(node in self.closed for node in tasks_in(schedule, self.first))

    def reschedule(self, job: JobView) -> None:
        """The schedule that ends the job soonest beside the others, whatever it costs."""
        del self.of[job.id]
        self._table = None
        found = self._found(job, None)
        if found is None:
            self.unscheduled.add(job.id)
        else:
            self._keep(job, found[1])

    def admit(self, job: JobView) -> int | None:
        """When the job will have ended, if it is admitted."""
        worth = worth_of(job)
        lowest, highest = self.worths or (worth, worth)
        self.worths = min(lowest, worth), max(highest, worth)
        found = self._found(job, self._policy.utility)
        if found is None or not worth_its_price(found[0]):
            return None
        self._keep(job, found[1])
        return end_of(found[1]) * self._policy.slot

    def _keep(self, job: JobView, schedule: Stays) -> None:
        self.of[job.id] = schedule
        self.taken(end_of(schedule) - self.first)
        self._take(schedule, job.shape.each)

    def _limits(self) -> tuple[float, float]:
        """The price on an empty node, and on a full one."""
        low, high = self._policy.low, self._policy.high
        lowest, highest = self.worths or (1.0, 1.0)
        low = min(lowest / BELOW, high or highest) if low is None else low
        return low, max(low, highest if high is None else high)

    def _found(self, job: JobView, utility: Utility | None) -> tuple[Schedule, Stays] | None:
        """The best schedule of a job, or without a utility the one that ends soonest."""
        now, slot = self._view.now, self._policy.slot
        ways = self._ways(job)
        if not ways:
            return None
        left = job.remaining_at(now) or OVERDUE
        if job.epoch and job.spots is None:
            left += job.traits.checkpoint.restore
        slowest = min(way.speed for way in ways)
        unit = min(slowest * slot, left) / FINE
        unit = max(unit, min(left / MOST_UNITS, slowest * slot))
        work = ceil(left / unit)
        slots = len(self.taken(1)) + ceil(left / (min(way.split for way in ways) * slot)) + 1
        if slots > HORIZON:
            return None
        ends = (self.first + 1 + np.arange(slots, dtype=np.int64)) * slot
        worth = np.asarray(-ends / slot, float) if utility is None else utility(job, ends, slot)
        if utility is not None:
            slots = int(np.flatnonzero(worth > 0).max(initial=-1)) + 1  # nothing is worth a later end
            worth = worth[:slots]
        if not slots:
            return None
        taken = self.taken(slots)[:slots]
        size = np.array([0 if node in self.closed else gpus for node, gpus in enumerate(self._size)])
        room = (size - taken) // job.shape.each
        price = prices(taken, self._size, *self._limits())
        lengths = np.full(slots, slot, np.int64)
        lengths[0] = (self.first + 1) * slot - now
        units = np.zeros((slots, len(ways)), np.int64)
        cost = np.empty((slots, len(ways)))
        for column, way in enumerate(ways):
            nodes = list(way.nodes)
            places = cheapest(
                price[:, nodes], room[:, nodes], way.tasks, job.shape.each, one_node=way.one_node
            )
            speed = np.where(places.nodes <= way.fewest, way.speed, way.split)
            units[:, column] = np.floor(lengths * speed / unit)
            cost[:, column] = places.cost * (lengths / slot)
        if utility is None:
            cost = np.where(np.isfinite(cost), 0.0, np.inf)
        found = best_schedule(Options(units, cost), work, worth)
        if found is None:
            return None
        rows = list[tuple[int, Ints]]()
        before = np.zeros(len(self._size), np.int64)
        for node, tasks in counts(job.spots, job.shape.each).items():
            before[node] = tasks
        for row, column in found.choices:
            way = ways[column]
            nodes, tasks_on = list(way.nodes), np.zeros(len(self._size), np.int64)
            tasks_on[nodes] = chosen(
                price[row, nodes], room[row, nodes], way.tasks, before[nodes], one_node=way.one_node
            )
            rows.append((self.first + row, tasks_on))
            before = tasks_on
        return found, stays(rows)

    def _ways(self, job: JobView) -> list[Way]:
        """The sizes of a job on the nodes of each GPU type; packed on one node too where that is faster."""
        cluster, shape = self._view.cluster, job.shape
        accepted = [kind for kind in cluster.type_speeds if not shape.types or kind in shape.types]
        found = self._on(job, [[kind] for kind in accepted], accepted)
        return found or self._on(job, [accepted], accepted)  # no type alone has so many GPUs

    def _on(self, job: JobView, groups: Sequence[Sequence[str]], accepted: Sequence[str]) -> list[Way]:
        """The ways to run on the nodes of one of these groups of GPU types."""
        cluster, view, shape = self._view.cluster, self._view, job.shape
        found = list[Way]()
        for kinds in groups:
            nodes = tuple(n for n, node in enumerate(cluster.nodes) if node.gpus and node.type.name in kinds)
            sizes = [self._size[node] // shape.each for node in nodes]
            counted = kinds if self._policy.by_type else accepted
            for tasks in levels(job):
                if tasks > sum(sizes):
                    continue
                fewest = fewest_nodes(cluster, of_types(shape.of(tasks), tuple(kinds)))
                speed = min((view.speed(job, tasks=tasks, type=kind).speed for kind in counted), default=0.0)
                split = speed
                if tasks > 1:
                    split = min(
                        view.speed(job, tasks=tasks, type=kind, nodes=fewest + 1).speed for kind in counted
                    )
                if min(speed, split) <= 0:
                    continue
                if split < speed and tasks <= max(sizes):
                    found.append(Way(tasks, nodes, True, speed, split, fewest))
                found.append(Way(tasks, nodes, False, speed, split, fewest))
        return found

    def start_on_the_rest(self, plan: Plan, job: JobView) -> bool:
        """Start a job without a schedule on GPUs that no schedule has now.

        A job that cannot be stopped starts only where no schedule needs the GPUs until it ends.
        """
        least, _ = task_range(job.shape, job.traits)
        shapes = dict.fromkeys((job.shape, job.shape.of(least))) if job.shape.exclusive else (job.shape,)
        for shape in shapes:
            avoid = 0
            for _ in range(2):
                spots = plan.room.best(shape, avoid) or plan.room.anywhere(shape, avoid)
                if spots is None:
                    break
                avoid = 0 if may_be_stopped(job) else self._needed(plan, job)
                if not any(avoid >> node & 1 for node in nodes_of(spots)):
                    return plan.start(job, spots)
        return False

    def _needed(self, plan: Plan, job: JobView) -> int:
        """The nodes on which schedules need GPUs that are free now, before a job would end."""
        until = self._slots(job)
        most = self.taken(until)[:until].max(axis=0).tolist()
        free = [plan.room.free_on(node).bit_count() for node in range(len(self._size))]
        return sum(1 << n for n, size in enumerate(self._size) if size - most[n] < free[n])


def worth_its_price(found: Schedule) -> bool:
    """Whether a job is admitted."""
    return found.surplus > 0


def worth_of(job: JobView) -> float:
    """What a job is worth for each GPU and slot of its work: its priority, and 1 at least."""
    return float(max(job.priority, 1))


def value_of(job: JobView, slot: int) -> float:
    """What a job is worth in all: its worth, for the GPU time of what it asks for and declares."""
    return worth_of(job) * job.gpus * job.estimate / slot


def due_of(job: JobView, slot: int, patience: float) -> int:
    """The deadline of a job; without one, `patience` times its declared duration and one slot."""
    if job.deadline is not None:
        return job.deadline
    return job.arrived_at + round(patience * job.estimate) + slot


def may_be_scheduled(cluster: Cluster, job: JobView) -> bool:
    """Whether whole GPUs over time are all that a job needs, and no limit of its tenant can be in the way."""
    shape, tenants = job.shape, cluster.tenants
    if tenants and any(
        name in tenants and tenants[name].limit is not None for name in cluster.line(job.tenant)
    ):
        return False
    return may_be_stopped(job) and shape.exclusive and not (shape.roles or shape.partition)


def levels(job: JobView) -> Iterable[int]:
    """The numbers of tasks to choose from: the fewest, the most, what it asked for, and powers of two."""
    least, most = task_range(job.shape, job.traits)
    powers = (1 << power for power in range(most.bit_length()))
    return sorted({least, most, job.shape.tasks, *(n for n in powers if least <= n <= most)})
