"""Shockwave: fair and efficient for jobs whose speed will change (Zheng et al., NSDI 2023).

Jobs that grow their batch speed up as they go along. Who takes the speed of today for that of tomorrow gives
such a job too much now, and somebody else ends late. Shockwave foresees what is ahead of each job
(`mechanisms.regimes`), and deals out a window of rounds to come such that the welfare of all is greatest,
weighted towards those who would end later than on a fair share, less a cost for the end of the last job
(`mechanisms.market`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, floor

import numpy as np

from dovetail.mechanisms.market import Window, laid_out, log_progress, shared_out
from dovetail.mechanisms.regimes import Forecast, ahead, behind, seen_regime, time_of, work_in
from dovetail.mechanisms.rounds import Pick, active, capacity, enact, kind_of, of_kind, place_on
from dovetail.mechanisms.throughput import declared
from dovetail.model.job import Shape
from dovetail.model.units import WHOLE, micros
from dovetail.model.view import JobView, Order, Plan, Policy, View

_ARRIVAL = Order(key=lambda job, now: job.seq, fifo=True)


def shockwave(
    *,
    round: float = 120.0,
    window: int = 20,
    power: float = 5.0,
    makespan: float = 1e-3,
    forecast: Forecast = "posterior",
) -> Policy:
    """The greatest welfare over the next `window` rounds of `round` seconds, foreseeing how speeds change.

    Everybody has the rounds it needs to end no later than on its share of the cluster. If these are too
    many, those who would be latest come first, and weigh as much as they would be late to the `power`. What
    is beyond goes by the logarithm of progress, less `makespan` for each second that the longest job has
    left then; and idle devices to who has most to do. (The published code calls the two numbers lambda and
    k.)

    `forecast`: what is left of a job by the `posterior` of its regimes, as fast as now (`constant`), or as
    its profile has it (`declared`), which nobody can know.
    """
    if window < 1:
        raise ValueError(f"a window has one round at least, not {window}")
    return Shockwave(length=micros(round), window=window, power=power, makespan=makespan, forecast=forecast)


@dataclass(frozen=True, slots=True)
class Memory:
    """What is kept between decisions."""

    ends_at: int = 0  # the round
    seen_at: int = 0
    crowd: float = 1.0  # how many times the devices were asked for since then
    felt: Mapping[str, tuple[float, int]] = field(default_factory=dict)  # by job: crowd x time, and time
    basis: frozenset[tuple[str, float]] = frozenset()  # the jobs planned for, and the regime of each
    rounds: tuple[tuple[str, ...], ...] = ()  # who is in the rounds to come


@dataclass(frozen=True, slots=True)
class Outlook:
    """What is expected of one job, in seconds where it is alone."""

    job: JobView
    whole: float  # in all
    left: float
    pace: float  # on the devices there are, against its reference
    age: float
    fair: float  # from its arrival to its end on a share of its own
    rho: float  # the same as things stand, over that


@dataclass(frozen=True, slots=True, kw_only=True)
class Shockwave:
    """Windows of rounds; a plan holds until somebody comes, ends, or changes its speed."""

    length: int
    window: int
    power: float
    makespan: float
    forecast: Forecast
    order: Order = _ARRIVAL
    group: Callable[[JobView], Hashable] | None = None
    quantum: int | None = None

    def decide(self, view: View) -> Plan:
        memory = view.memory if isinstance(view.memory, Memory) else Memory()
        if view.now < memory.ends_at and view.running:
            plan = view.draft()
            self._helpers(view, plan)
            plan.review_at, plan.memory = memory.ends_at, memory
            return plan
        jobs = active(view)
        types = Types(view)
        memory = self._felt(view, memory, jobs, types)
        outlooks = {job.id: self._outlook(view, memory, job, types) for job in jobs}
        basis = frozenset((job.id, seen_regime(job, view.now)) for job in jobs)
        if basis != memory.basis or not memory.rounds:
            memory = replace(
                memory, basis=basis, rounds=self._planned(view, memory.crowd, list(outlooks.values()), types)
            )
        first, *rest = memory.rounds or ((),)
        longest = sorted(jobs, key=lambda job: (-outlooks[job.id].left, job.seq))
        named = {job.id: job for job in jobs}
        line = [named[id] for id in first]
        line += [job for job in longest if job.id not in first]
        plan = enact(view, self._picks(view, line, types))
        self._helpers(view, plan)
        for job in longest:  # devices that did not come together for whom they were meant
            self._squeeze(plan, job, types)
        ends_at = view.now + self.length
        plan.memory = replace(memory, ends_at=ends_at, rounds=tuple(rest))
        plan.review_at = ends_at if jobs else None
        return plan

    def _felt(self, view: View, memory: Memory, jobs: Sequence[JobView], types: Types) -> Memory:
        """How crowded it was for each job since it came."""
        passed = view.now - memory.seen_at
        felt = {}
        for job in jobs:
            sum_, time = memory.felt.get(job.id, (0.0, 0))
            since = min(passed, view.now - job.arrived_at)
            felt[job.id] = sum_ + memory.crowd * since, time + since
        there = sum(types.there.values())
        crowd = max(1.0, sum(job.shape.load for job in jobs) / there) if there else 1.0
        return replace(memory, seen_at=view.now, crowd=crowd, felt=felt)

    def _outlook(self, view: View, memory: Memory, job: JobView, types: Types) -> Outlook:
        """When it would end if served in turn with the others, and when on a share of its own."""
        now, profile, whole = view.now, job.traits.profile, max(job.estimate, 1)
        done = min(job.done_at(now), whole - 1)  # who outlives its estimate is about to end
        pace = types.pace(job)
        left = time_of(ahead(profile, done, whole, self.forecast)) / pace
        alone = time_of(behind(profile, done, whole)) / pace + left
        sum_, time = memory.felt[job.id]
        rest = left * memory.crowd
        fair = alone * (sum_ + memory.crowd * rest) / (time + rest)
        age = now - job.arrived_at
        return Outlook(job, alone / 1e6, left / 1e6, pace, age / 1e6, fair / 1e6, (age + rest) / fair)

    def _planned(
        self, view: View, crowd: float, outlooks: Sequence[Outlook], types: Types
    ) -> tuple[tuple[str, ...], ...]:
        """Who is in which of the next rounds."""
        total = sum(types.there.values()) / WHOLE
        steps = np.arange(self.window + 1) * self.length
        part = np.zeros((len(outlooks), self.window + 1))
        left = np.zeros_like(part)
        for i, seen in enumerate(outlooks):
            job, whole = seen.job, max(seen.job.estimate, 1)
            done = min(job.done_at(view.now), whole - 1)
            to_come = ahead(job.traits.profile, done, whole, self.forecast)
            part[i] = [(done + work_in(to_come, time * seen.pace)) / whole for time in steps.tolist()]
            left[i] = np.maximum(seen.left - steps / 1e6, 0.0)
        size = np.array([seen.job.shape.load / WHOLE for seen in outlooks])
        worth = log_progress(part) / (len(outlooks) * self.window)
        stays = np.array(
            [seen.job.spots is not None and not seen.job.traits.preemptible for seen in outlooks], dtype=bool
        )
        least = np.where(stays, self.window, [self._fair_rounds(seen, crowd) for seen in outlooks])
        if least @ size > total * self.window:  # not all can end in time: who would be latest counts most
            worth *= np.array([max(seen.rho, 1.0) ** self.power for seen in outlooks])[:, None]
            used = 0.0
            for i in sorted(range(len(outlooks)), key=lambda i: (not stays[i], -outlooks[i].rho, i)):
                used += least[i] * size[i]
                if used > total * self.window and not stays[i]:
                    used -= least[i] * size[i]
                    least[i] = 0
        given = shared_out(Window(worth, left, size, total, least), self.makespan)
        due = [(seen.fair - seen.age) * 1e6 / self.length for seen in outlooks]
        rows = laid_out(given.tolist(), size.tolist(), total, self.window, due)
        return tuple(tuple(outlooks[row].job.id for row in chosen) for chosen in rows)

    def _fair_rounds(self, seen: Outlook, crowd: float) -> int:
        """How many rounds of the window it needs to end in time, if it has its share thereafter: to within a
        round, but all that are left to it if it should have ended by then.
        """
        length = self.length / 1e6
        may_wait = max((seen.fair - seen.age - self.window * length) / crowd, 0.0)
        need = floor((seen.left - may_wait) / length + 1e-9) if may_wait else ceil(seen.left / length)
        return min(max(need, 0), self.window)

    def _picks(self, view: View, line: Sequence[JobView], types: Types) -> list[Pick]:
        """Down the line as many as there are devices: each on its type, or the fastest that has room."""
        left = dict(types.there)
        picks: list[Pick] = []
        for job in view.running.values():
            if job.shape.each and not job.traits.preemptible:
                kind = kind_of(view.cluster, job)
                picks.append(Pick(job, kind))
                left[kind] = left.get(kind, 0) - job.held
        chosen = {pick.job.id for pick in picks}
        for job in line:
            if job.id in chosen:
                continue
            for kind in types.usable(job):
                if left.get(kind, 0) >= job.shape.load:
                    picks.append(Pick(job, kind))
                    left[kind] -= job.shape.load
                    break
        return picks

    def _squeeze(self, plan: Plan, job: JobView, types: Types) -> None:
        if job.spots is not None or not plan.room.free_gpus:
            return
        kinds = types.usable(job)
        places = (place_on(plan.room, job.shape, kind) for kind in kinds)
        spots = next((spots for spots in places if spots is not None), None)
        if not kinds:  # a gang that no single type can hold runs on mixed ones
            spots = plan.room.anywhere(job.shape)
        if spots is not None:
            plan.start(job, spots)

    def _helpers(self, view: View, plan: Plan) -> None:
        """Work without GPUs is in nobody's way."""
        for job in list(view.queue):
            if not job.shape.each:
                plan.start(job)


class Types:
    """The types of GPU there are at one instant, and what they are to each job."""

    def __init__(self, view: View) -> None:
        self.there = capacity(view.cluster, view.room)  # milli-GPUs
        self._view = view
        self._kinds = sorted(self.there)
        self._holds: dict[tuple[Shape, str], bool] = {}

    def usable(self, job: JobView) -> list[str]:
        """Those that could hold it: the one it has, then the fastest for it."""
        cluster = self._view.cluster
        speed = dict(zip(self._kinds, declared(cluster, job, self._kinds), strict=True))
        has = kind_of(cluster, job) if job.spots is not None else None
        able = [kind for kind in self._kinds if speed[kind] > 0 and self._could_hold(job.shape, kind)]
        return sorted(able, key=lambda kind: (kind != has, -speed[kind], kind))

    def pace(self, job: JobView) -> float:
        """Its speed on them, by how many there are of each."""
        speeds = declared(self._view.cluster, job, self._kinds)
        usable = [
            (speed, self.there[kind]) for kind, speed in zip(self._kinds, speeds, strict=True) if speed > 0
        ]
        total = sum(count for _, count in usable)
        return sum(speed * count for speed, count in usable) / total if total else 1.0

    def _could_hold(self, shape: Shape, kind: str) -> bool:
        key = shape, kind
        if key not in self._holds:
            self._holds[key] = self._view.room.ever(of_kind(shape, kind))
        return self._holds[key]
