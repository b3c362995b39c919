"""Themis: finish times as fair as a private share of the cluster (Mahajan et al., NSDI 2020).

An app is a group of jobs, or a job by itself. Its finish-time fairness is rho = T_shared / T_ideal: when it
ends here, since it came, over when it would on a private n-th of the cluster, n being how many apps there
are. Everybody at rho <= 1 has lost nothing by sharing. When leases end the GPUs are offered to those with the
worst rho; these say what each bundle would make of it, and an auction with hidden payments divides them. The
rest goes to the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from dovetail.mechanisms.auction import Bundle, auction
from dovetail.mechanisms.leases import (
    Seat,
    Tempo,
    fastest_first,
    filled,
    gathered,
    of_kinds,
    seat_for,
    seated,
    tempos,
)
from dovetail.mechanisms.order import arrival
from dovetail.mechanisms.rounds import capacity, kind_of, spared
from dovetail.model.chance import chance
from dovetail.model.units import micros
from dovetail.model.view import JobView, Order, Plan, Policy, Room, View

Name = tuple[str, str]  # of an app: its group, or else its job


def themis(*, fairness: float = 0.8, lease: float = 1200.0, payments: bool = True) -> Policy:
    """Finish-time fairness by auction, in leases of `lease` seconds.

    The GPUs are offered to the part 1 - `fairness` of the apps with the worst rho: near 1 the worst off alone
    are served, at 0 everybody bids and what raises the product of 1/rho most is done. Without `payments`
    winners keep all they win. An app is a job's group, or the job itself; what it does not win goes at random
    to others. Values of fairness and lease [from memory].
    """
    return Themis(fairness=fairness, lease=micros(lease), payments=payments)


@dataclass(frozen=True, slots=True)
class Record:
    """What is remembered of an app."""

    arrived_at: int
    seen_at: int
    crowd: float  # `Memory.crowd` then
    asked: Mapping[str, tuple[int, int]]  # of each of its jobs: milli-GPUs and the time it said


@dataclass(frozen=True, slots=True)
class Memory:
    """What is kept between decisions."""

    ends_at: int = 0
    at: int = 0
    crowd: float = 0.0  # apps x microseconds so far
    apps: Mapping[Name, Record] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class App:
    """An app at one moment, and what it would have in the lease to come."""

    name: Name
    elapsed: int
    ideal: float  # microseconds on a private share
    private: float  # milli-GPUs of it from now on, in units of the reference
    pace: float  # of one of its jobs there
    left: Mapping[str, float]  # microseconds of work, by job
    load: Mapping[str, int]
    tempo: Mapping[str, Tempo]
    waiting: list[JobView]  # those nearest to their end first
    given: dict[str, float] = field(default_factory=dict)  # job -> speed

    def rho(self, lease: int, more: Iterable[tuple[JobView, float]] = ()) -> float:
        """Finish-time fairness if it has this in the lease, and its private share from then on."""
        given = self.given | {job.id: speed for job, speed in more}
        after = {id: max(left - given.get(id, 0.0) * lease, 0.0) for id, left in self.left.items()}
        work = sum(self.load[id] * left for id, left in after.items())
        if work:
            shared = lease + max(work / self.private, max(after.values()) / self.pace)
        else:
            shared = max(left / given[id] for id, left in self.left.items())
        return (self.elapsed + shared) / self.ideal

    def bid(
        self, kind: str, lease: int, amount: int, free: Room | None
    ) -> tuple[list[tuple[JobView, float]], list[Bundle]]:
        """Its jobs that would use a type, with their speeds, and what the first 0, 1, ... are worth: 1/rho.

        While others hold leases (`free` is what they leave) a job may find no place on few nodes; then it
        counts what being split costs it.
        """
        mine: list[tuple[JobView, float]] = []
        table, size = [Bundle(0, 1 / self.rho(lease))], 0
        for job in self.waiting:
            speed = self.tempo[job.id].get(kind, 0.0)
            if not speed or job.id in self.given or size + job.shape.load > amount:
                continue
            split = job.traits.profile.split_on(kind) if job.traits.profile else 1.0
            if split > 1.0 and free is not None and free.best(of_kinds(job.shape, (kind,))) is None:
                speed /= split
            mine.append((job, speed))
            size += job.shape.load
            table.append(Bundle(size, 1 / self.rho(lease, mine)))
        return mine, table


@dataclass(frozen=True, slots=True, kw_only=True)
class Themis:
    """Leases by auction among those with the worst rho."""

    fairness: float
    lease: int
    payments: bool
    says: Callable[[Name, list[Bundle]], list[Bundle]] = lambda name, table: table  # what an app claims
    order: Order = arrival
    group: Callable[[JobView], Hashable] | None = None
    quantum: int | None = None

    def decide(self, view: View) -> Plan:
        memory = view.memory if isinstance(view.memory, Memory) else Memory()
        plan = view.draft()
        jobs = gathered(view, plan)
        memory = _noted(memory, view.now, jobs)
        over = view.now >= memory.ends_at
        if over:
            memory = replace(memory, ends_at=view.now + self.lease)
        if over or len(view.queue):
            stay = [job for job in jobs if (spared(job, view.now) if over else job.spots is not None)]
            apps = _apps(view, memory, jobs, stay)
            won, rest = self._divided(view, apps, stay, memory.ends_at - view.now, fresh=over)
            if over:
                seated(view, plan, [*(Seat(job, job.shape) for job in stay), *won, *rest])
            else:
                filled(plan, [*won, *rest])
            filled(plan, [seat._replace(packed=False) for seat in rest])
        plan.memory = memory
        plan.review_at = memory.ends_at if len(view.queue) and view.running else None
        return plan

    def _divided(
        self, view: View, apps: Sequence[App], stay: Sequence[JobView], lease: int, *, fresh: bool
    ) -> tuple[list[Seat], list[Seat]]:
        """Who wins, and who comes after: the apps outside the auction, at random, then those inside.

        One auction for each type, the fastest first; what was won before counts in the next.
        """
        room, luck = capacity(view.cluster, view.room), chance(view)
        for job in stay:
            kind = kind_of(view.cluster, job)
            room[kind] = room.get(kind, 0) - job.held
        bidders = self._worst(apps, lease)
        won: dict[str, Seat] = {}
        for kind in fastest_first({id: tempo for app in bidders for id, tempo in app.tempo.items()}, room):
            bids = [app.bid(kind, lease, room[kind], None if fresh else view.room) for app in bidders]
            tables = [self.says(app.name, table) for app, (_, table) in zip(bidders, bids, strict=True)]
            for app, (mine, _), award in zip(bidders, bids, auction(tables, max(room[kind], 0)), strict=True):
                part = award.bundle * (award.keeps if self.payments else 1.0)
                whole = math.floor(part + 1e-9)
                whole += luck.random() < part - whole
                for job, speed in mine[:whole]:
                    app.given[job.id] = speed
                    won[job.id] = Seat(job, of_kinds(job.shape, (kind,)))
        inside = {app.name for app in bidders}
        outside = [app for app in apps if app.name not in inside]
        luck.shuffle(outside)
        rest = [
            seat_for(view.cluster, job, app.tempo[job.id])._replace(packed=True)
            for app in [*outside, *bidders]
            for job in app.waiting
            if job.id not in won
        ]
        return list(won.values()), rest

    def _worst(self, apps: Sequence[App], lease: int) -> list[App]:
        """Those to whom the devices are offered."""
        wanting = sorted((app for app in apps if app.waiting), key=lambda app: -app.rho(lease))
        return wanting[: max(1, math.ceil((1 - self.fairness) * len(wanting) - 1e-9))]


def _noted(memory: Memory, now: int, jobs: Sequence[JobView]) -> Memory:
    """The memory with who came and who is gone; the crowd was the same since the last time."""
    crowd = memory.crowd + (now - memory.at) * len(memory.apps)
    apps: dict[Name, Record] = {}
    for job in jobs:
        name = _name(job)
        record = apps.get(name) or memory.apps.get(name) or Record(job.arrived_at, now, crowd, {})
        if job.id not in record.asked:
            record = replace(record, asked={**record.asked, job.id: (job.shape.load, job.estimate)})
        apps[name] = record
    return replace(memory, at=now, crowd=crowd, apps=apps)


def _name(job: JobView) -> Name:
    return (job.group, "") if job.group else ("", job.id)


def _apps(view: View, memory: Memory, jobs: Sequence[JobView], stay: Sequence[JobView]) -> list[App]:
    """Everybody, with what it holds for sure."""
    now, room = view.now, capacity(view.cluster, view.room)
    total = sum(room.values()) or 1
    speeds = tempos(view.cluster, jobs)
    kept = {job.id for job in stay}
    members: dict[Name, list[JobView]] = {}
    for job in jobs:
        members.setdefault(_name(job), []).append(job)
    found = []
    for name, mine in members.items():
        record = memory.apps[name]
        tempo = {job.id: speeds[job.id] for job in mine}
        reach = sum(room[k] * speed.get(k, 0.0) for speed in tempo.values() for k in room) / len(mine)
        reach = reach or total
        seen = now - record.seen_at
        crowd = (memory.crowd - record.crowd) / seen if seen else len(members)
        work = sum(load * time for load, time in record.asked.values())
        longest = max(time for _, time in record.asked.values())
        left = {job.id: float(max(job.remaining_at(now), job.estimate // 10, 1)) for job in mine}
        app = App(
            name=name,
            elapsed=now - record.arrived_at,
            ideal=max(work * max(crowd, 1.0) / reach, longest * total / reach, 1.0),
            private=reach / len(members),
            pace=reach / total,
            left=left,
            load={job.id: job.shape.load for job in mine},
            tempo=tempo,
            waiting=[job for job in mine if job.id not in kept],
        )
        app.waiting.sort(key=lambda job: (left[job.id], job.seq))
        for job in mine:
            if job.id in kept:
                app.given[job.id] = tempo[job.id].get(kind_of(view.cluster, job), 1.0)
        found.append(app)
    return found
