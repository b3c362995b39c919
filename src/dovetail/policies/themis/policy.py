"""Themis: finish times as fair as a private share of the cluster (Mahajan et al., NSDI 2020).

An app is a group of jobs, or a job by itself. Its finish-time fairness is rho = T_shared / T_ideal: the time
from its arrival to its end in the shared cluster, over the same time on a private n-th of the cluster, where
n is the number of apps. An app at rho <= 1 loses nothing by sharing. When leases end, the GPUs are offered to
the apps with the worst rho. These bid the rho that each bundle of GPUs would give them, and an auction with
hidden payments divides the GPUs. What is left goes to the other apps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from dovetail.mechanisms.order.keys import arrival
from dovetail.mechanisms.place.gpu_types import held_type, load_by_type, of_types
from dovetail.mechanisms.rounds.active_jobs import gpu_jobs, start_cpu_jobs
from dovetail.mechanisms.rounds.leases import (
    LeaseRequest,
    SpeedByType,
    fastest_first,
    grant_free_devices,
    grant_leases,
    request_for,
    speeds_of,
    staying,
)
from dovetail.model.chance import chance
from dovetail.model.cluster import Cluster
from dovetail.model.grant import nodes_of
from dovetail.model.topology import fewest_nodes
from dovetail.model.units import micros
from dovetail.model.view import JobView, Order, Plan, Policy, View
from dovetail.policies.themis.auction import Bundle, auction

Name = tuple[str, str]  # of an app: its group, or else its job


def themis(*, fairness: float = 0.8, lease: float = 1200.0, payments: bool = True) -> Policy:
    """Finish-time fairness by auction, in leases of `lease` seconds.

    The GPUs are offered to the fraction 1 - `fairness` of the apps, those with the worst rho. Near 1 only the
    worst-off apps bid; at 0 all apps bid, and the division with the largest product of 1/rho is taken.
    Without `payments` winners keep all they win. An app is a job's group, or the job itself; GPUs that no
    bidder keeps go to other apps at random. Values of fairness and lease [from memory].
    """
    return Themis(fairness=fairness, lease=micros(lease), payments=payments)


@dataclass(frozen=True, slots=True)
class AppRecord:
    """What is kept of an app."""

    arrived_at: int
    seen_at: int
    app_time: float  # `AppHistory.app_time` then
    asked: Mapping[str, tuple[int, int]]  # of each of its jobs: milli-GPUs and estimated duration


@dataclass(frozen=True, slots=True)
class AppHistory:
    """What is kept between decisions: the end of the lease, and the apps with their arrival."""

    ends_at: int = 0
    at: int = 0
    app_time: float = 0.0  # number of apps, summed over microseconds so far
    apps: Mapping[Name, AppRecord] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class App:
    """An app at one moment, and what it gets in the next lease."""

    name: Name
    elapsed: int
    ideal: float  # microseconds on a private share
    private: float  # milli-GPUs of the private share from now on, in units of the reference
    pace: float  # speed of one of its jobs there
    left: Mapping[str, float]  # microseconds of work, by job
    load: Mapping[str, int]
    speeds: Mapping[str, SpeedByType]  # by job
    waiting: list[JobView]  # the least remaining work first
    given: dict[str, float] = field(default_factory=dict)  # job -> speed

    def rho(self, lease: int, more: Iterable[tuple[JobView, float]] = ()) -> float:
        """Finish-time fairness with `given` and `more` during the lease, and the private share after it."""
        given = self.given | {job.id: speed for job, speed in more}
        after = {id: max(left - given.get(id, 0.0) * lease, 0.0) for id, left in self.left.items()}
        work = sum(self.load[id] * left for id, left in after.items())
        if work:
            shared = lease + max(work / self.private, max(after.values()) / self.pace)
        else:
            shared = max(left / given[id] for id, left in self.left.items())
        return (self.elapsed + shared) / self.ideal

    def bid(
        self, cluster: Cluster, kind: str, lease: int, amount: int, offered: Mapping[int, int]
    ) -> tuple[list[Placed], list[Bundle]]:
        """The jobs that would use a type, and the value of the first 0, 1, ... of them: 1/rho.

        `amount` are the milli-GPUs on offer, `offered` the whole GPUs by node. The value of a job depends on
        where it would run beside the app's jobs before it: split over more nodes than it needs, it is slower.
        A job whose lease ends stays where it is.
        """
        mine: list[Placed] = []
        table, size, left = [Bundle(0, 1 / self.rho(lease))], 0, dict(offered)
        for job in self.waiting:
            speed = self.speeds[job.id].get(kind, 0.0)
            if not speed or job.id in self.given or size + job.shape.load > amount:
                continue
            packed = _packed_on(left, cluster, job, kind)
            mine.append(Placed(job, speed if packed else speed / _slowdown(job, kind), packed))
            size += job.shape.load
            more = [(each.job, each.speed) for each in mine]
            table.append(Bundle(size, 1 / self.rho(lease, more)))
        return mine, table


class Placed(NamedTuple):
    """A job in a bid: its speed, and whether it would be on as few nodes as it needs."""

    job: JobView
    speed: float
    packed: bool


def _slowdown(job: JobView, kind: str) -> float:
    """How much slower a job is on more nodes than it needs."""
    return max(job.traits.profile.split_on(kind), 1.0) if job.traits.profile else 1.0


def _is_packed(cluster: Cluster, job: JobView, kind: str) -> bool:
    nodes = nodes_of(job.spots or ())
    return len(nodes) <= 1 or len(nodes) <= fewest_nodes(cluster, of_types(job.shape, (kind,)))


def _packed_on(left: dict[int, int], cluster: Cluster, job: JobView, kind: str) -> bool:
    """Take a job's GPUs off what is left of each node; whether it is on as few nodes as it needs."""
    shape = job.shape
    if job.spots is not None and held_type(cluster, job) == kind:
        for node, devices, *_ in job.spots:
            left[node] = left.get(node, 0) - devices.bit_count()
        return _is_packed(cluster, job, kind)
    tasks, used = shape.tasks, 0
    whole = [node for node, free in left.items() if free >= shape.gpus]
    tightest = min(whole, key=lambda node: (left[node], node), default=None)
    line = [tightest] if tightest is not None else sorted(left, key=lambda node: (-left[node], node))
    for node in line:
        if (here := min(left[node] // shape.each, tasks)) > 0:
            left[node] -= here * shape.each
            tasks, used = tasks - here, used + 1
    return shape.tasks == 1 or (tasks == 0 and used <= fewest_nodes(cluster, of_types(shape, (kind,))))


@dataclass(frozen=True, slots=True, kw_only=True)
class Themis:
    """Leases by auction among the apps with the worst rho."""

    fairness: float
    lease: int
    payments: bool
    bids: Callable[[Name, list[Bundle]], list[Bundle]] = lambda name, table: (
        table
    )  # the values an app reports
    order: Order = arrival
    group: Callable[[JobView], Hashable] | None = None
    quantum: int | None = None

    def decide(self, view: View) -> Plan:
        history = view.memory if isinstance(view.memory, AppHistory) else AppHistory()
        plan = view.draft()
        start_cpu_jobs(view, plan)
        jobs = gpu_jobs(view)
        history = _updated(history, view.now, jobs)
        over = view.now >= history.ends_at
        if over:
            history = replace(history, ends_at=view.now + self.lease)
        if over or len(view.queue):
            stay = staying(jobs, view.now, lease_over=over)
            apps = _apps(view, history, jobs, stay)
            won, rest = self._divided(view, apps, stay, history.ends_at - view.now)
            grant_leases(view, plan, stay, [*won, *rest], lease_over=over)
            grant_free_devices(plan, [request._replace(packed=False) for request in [*won, *rest]])
        plan.memory = history
        plan.review_at = history.ends_at if len(view.queue) and view.running else None
        return plan

    def _divided(
        self, view: View, apps: Sequence[App], stay: Sequence[JobView], lease: int
    ) -> tuple[list[LeaseRequest], list[LeaseRequest]]:
        """The winners, and the jobs after them: of apps outside the auction, at random, then of bidders.

        One auction for each GPU type, the fastest first; what an app won before counts in the next.
        """
        room, offers, luck = load_by_type(view.cluster, view.room), _offers(view, stay), chance(view)
        for job in stay:
            kind = held_type(view.cluster, job)
            room[kind] = room.get(kind, 0) - job.held
        bidders = self._worst(apps, lease)
        won: dict[str, LeaseRequest] = {}
        for kind in fastest_first({id: of for app in bidders for id, of in app.speeds.items()}, room):
            bids = [app.bid(view.cluster, kind, lease, room[kind], offers.get(kind, {})) for app in bidders]
            tables = [self.bids(app.name, table) for app, (_, table) in zip(bidders, bids, strict=True)]
            awards = auction(tables, max(room[kind], 0))
            for app, (mine, _), award in zip(bidders, bids, awards, strict=True):
                part = award.bundle * (award.keeps if self.payments else 1.0)
                whole = math.floor(part + 1e-9)
                whole += luck.random() < part - whole
                for job, speed, packed in mine[:whole]:
                    app.given[job.id] = speed
                    must = packed and _slowdown(job, kind) > 1.0
                    won[job.id] = LeaseRequest(job, of_types(job.shape, (kind,)), packed=must)
        inside = {app.name for app in bidders}
        outside = [app for app in apps if app.name not in inside]
        luck.shuffle(outside)
        rest = [
            request_for(view.cluster, job, app.speeds[job.id])._replace(packed=True)
            for app in [*outside, *bidders]
            for job in app.waiting
            if job.id not in won
        ]
        return list(won.values()), rest

    def _worst(self, apps: Sequence[App], lease: int) -> list[App]:
        """The apps to which the devices are offered."""
        wanting = sorted((app for app in apps if app.waiting), key=lambda app: -app.rho(lease))
        return wanting[: max(1, math.ceil((1 - self.fairness) * len(wanting) - 1e-9))]


def _offers(view: View, stay: Iterable[JobView]) -> dict[str, dict[int, int]]:
    """By type and node: the GPUs of open nodes that no staying job holds."""
    nodes, found = view.cluster.nodes, dict[str, dict[int, int]]()
    for number, node in enumerate(nodes):
        if node.gpus and view.room.is_open(number):
            found.setdefault(node.type.name, {})[number] = node.gpus
    for job in stay:
        for number, devices, *_ in job.spots or ():
            free = found.get(nodes[number].type.name, {})
            if number in free:
                free[number] = max(free[number] - devices.bit_count(), 0)
    return found


def _updated(history: AppHistory, now: int, jobs: Sequence[JobView]) -> AppHistory:
    """The history with new apps added and ended apps dropped."""
    app_time = history.app_time + (now - history.at) * len(history.apps)
    apps: dict[Name, AppRecord] = {}
    for job in jobs:
        name = _name(job)
        record = apps.get(name) or history.apps.get(name) or AppRecord(job.arrived_at, now, app_time, {})
        if job.id not in record.asked:
            record = replace(record, asked={**record.asked, job.id: (job.shape.load, job.estimate)})
        apps[name] = record
    return replace(history, at=now, app_time=app_time, apps=apps)


def _name(job: JobView) -> Name:
    return (job.group, "") if job.group else ("", job.id)


def _apps(view: View, history: AppHistory, jobs: Sequence[JobView], stay: Sequence[JobView]) -> list[App]:
    """All apps, with the jobs that keep their devices."""
    now, room = view.now, load_by_type(view.cluster, view.room)
    total = sum(room.values()) or 1
    all_speeds = speeds_of(view, jobs)
    kept = {job.id for job in stay}
    members: dict[Name, list[JobView]] = {}
    for job in jobs:
        members.setdefault(_name(job), []).append(job)
    found = []
    for name, mine in members.items():
        record = history.apps[name]
        speeds = {job.id: all_speeds[job.id] for job in mine}
        reach = sum(room[k] * speed.get(k, 0.0) for speed in speeds.values() for k in room) / len(mine)
        reach = reach or total
        seen = now - record.seen_at
        mean_apps = (history.app_time - record.app_time) / seen if seen else len(members)
        work = sum(load * time for load, time in record.asked.values())
        longest = max(time for _, time in record.asked.values())
        left = {job.id: float(max(job.remaining_at(now), job.estimate // 10, 1)) for job in mine}
        app = App(
            name=name,
            elapsed=now - record.arrived_at,
            ideal=max(work * max(mean_apps, 1.0) / reach, longest * total / reach, 1.0),
            private=reach / len(members),
            pace=reach / total,
            left=left,
            load={job.id: job.shape.load for job in mine},
            speeds=speeds,
            waiting=[job for job in mine if job.id not in kept],
        )
        app.waiting.sort(key=lambda job: (left[job.id], job.seq))
        for job in mine:
            if job.id in kept:
                kind = held_type(view.cluster, job)
                split = 1.0 if _is_packed(view.cluster, job, kind) else _slowdown(job, kind)
                app.given[job.id] = speeds[job.id].get(kind, 1.0) / split
        found.append(app)
    return found
