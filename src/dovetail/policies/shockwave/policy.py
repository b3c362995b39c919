"""Shockwave: fairness and efficiency for jobs that change their speed (Zheng et al., NSDI 2023).

A job that grows its batch size becomes faster over time. A scheduler that assumes the present speed for the
future gives such a job too much now, and other jobs finish late. Shockwave forecasts the remaining work of
each job (`regimes`). It divides the next window of rounds so that the welfare of all jobs is largest, with
more weight for jobs that would finish later than on a fair share, less a cost for the makespan (`market`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, floor

import numpy as np

from dovetail.mechanisms.estimate.speeds import by_type
from dovetail.mechanisms.order.keys import submission
from dovetail.mechanisms.place.gpu_types import held_type, load_by_type, of_type, place_on
from dovetail.mechanisms.rounds.active_jobs import gpu_jobs, start_cpu_jobs
from dovetail.mechanisms.rounds.time_share_rounds import Pick, plan_round
from dovetail.model.grant import nodes_of
from dovetail.model.job import Shape
from dovetail.model.topology import fewest_nodes
from dovetail.model.units import WHOLE, micros
from dovetail.model.view import JobView, Order, Plan, Policy, View
from dovetail.policies.shockwave.market import Window, laid_out, log_progress, shared_out
from dovetail.policies.shockwave.regimes import Forecast, ahead, behind, present_speed, time_of, work_in
from dovetail.solve.portable import dot


def shockwave(
    *,
    round: float = 120.0,
    window: int = 20,
    power: float = 5.0,
    makespan: float = 1e-3,
    forecast: Forecast = "posterior",
) -> Policy:
    """The largest welfare over the next `window` rounds of `round` seconds, with a forecast of speeds.

    Each job gets the rounds it needs to finish no later than on its fair share of the cluster. If these are
    too many, the latest jobs come first, and their weight is their lateness to the `power`. Further rounds
    are divided by the logarithm of progress, less `makespan` for each second that the longest job has left
    after the window; idle devices go to the job with the most work left. (The published code calls the two
    numbers lambda and k.)

    `forecast`: the remaining work of a job by the `posterior` of its regimes, at the present speed
    (`constant`), or as in its profile (`declared`), which a real scheduler cannot know.
    """
    if window < 1:
        raise ValueError(f"a window has one round at least, not {window}")
    return Shockwave(length=micros(round), window=window, power=power, makespan=makespan, forecast=forecast)


@dataclass(frozen=True, slots=True)
class WindowPlan:
    """What is kept between decisions: the jobs of the next rounds, and the contention so far."""

    ends_at: int = 0  # of the round
    seen_at: int = 0
    contention: float = 1.0  # GPUs that jobs ask for over GPUs of the cluster, since then
    experienced: Mapping[str, tuple[float, int]] = field(default_factory=dict)  # contention x time, time
    basis: frozenset[tuple[str, float]] = frozenset()  # the jobs planned for, and the regime of each
    rounds: tuple[tuple[str, ...], ...] = ()  # the jobs in each of the next rounds


@dataclass(frozen=True, slots=True)
class JobForecast:
    """The forecast for one job, in seconds on devices of its own."""

    job: JobView
    whole: float  # in all
    left: float
    pace: float  # mean speed over the types of the cluster, relative to the reference
    age: float
    fair: float  # from its arrival to its end on a fair share
    rho: float  # expected time from its arrival to its end, over `fair`


@dataclass(frozen=True, slots=True, kw_only=True)
class Shockwave:
    """Windows of rounds; a window is planned again when a job arrives, ends, or changes its speed."""

    length: int
    window: int
    power: float
    makespan: float
    forecast: Forecast
    order: Order = submission
    group: Callable[[JobView], Hashable] | None = None
    quantum: int | None = None

    def decide(self, view: View) -> Plan:
        window = view.memory if isinstance(view.memory, WindowPlan) else WindowPlan()
        if view.now < window.ends_at and view.running:
            plan = view.draft()
            start_cpu_jobs(view, plan)
            plan.review_at, plan.memory = window.ends_at, window
            return plan
        jobs = gpu_jobs(view)
        if window.contention <= 1.0 and all(_stays(view, job) for job in jobs):
            plan = view.draft()  # every job runs, as it did: nothing is to be divided
            start_cpu_jobs(view, plan)
            ends_at = view.now + self.length
            plan.memory = replace(window, ends_at=ends_at, rounds=())
            plan.review_at = ends_at if jobs else None
            return plan
        types = Types(view)
        window = self._with_contention(view, window, jobs, types)
        forecasts = {job.id: self._forecast(view, window, job, types) for job in jobs}
        basis = frozenset((job.id, present_speed(job, view.now)) for job in jobs)
        if basis != window.basis or not window.rounds:
            rounds = self._planned(view, window.contention, list(forecasts.values()), types)
            window = replace(window, basis=basis, rounds=rounds)
        first, *rest = window.rounds or ((),)
        longest = sorted(jobs, key=lambda job: (-forecasts[job.id].left, job.seq))
        named = {job.id: job for job in jobs}
        line = [named[id] for id in first]
        line += [job for job in longest if job.id not in first]
        plan = plan_round(view, self._picks(view, line, types))
        start_cpu_jobs(view, plan)
        for job in longest:  # devices that were not free together for the job that was picked for them
            self._start_on_idle(plan, job, types)
        ends_at = view.now + self.length
        plan.memory = replace(window, ends_at=ends_at, rounds=tuple(rest))
        plan.review_at = ends_at if jobs else None
        return plan

    def _with_contention(
        self, view: View, window: WindowPlan, jobs: Sequence[JobView], types: Types
    ) -> WindowPlan:
        """With the contention that each job experienced since its arrival."""
        passed = view.now - window.seen_at
        experienced = {}
        for job in jobs:
            sum_, time = window.experienced.get(job.id, (0.0, 0))
            since = min(passed, view.now - job.arrived_at)
            experienced[job.id] = sum_ + window.contention * since, time + since
        available = sum(types.available.values())
        contention = max(1.0, sum(job.shape.load for job in jobs) / available) if available else 1.0
        return replace(window, seen_at=view.now, contention=contention, experienced=experienced)

    def _forecast(self, view: View, window: WindowPlan, job: JobView, types: Types) -> JobForecast:
        """When a job would end with equal shares for all jobs, and when on its fair share."""
        now, profile, whole = view.now, job.traits.profile, max(job.estimate, 1)
        done = min(job.done_at(now), whole - 1)  # a job that outlives its estimate is about to end
        pace = types.pace(job)
        left = time_of(ahead(profile, done, whole, self.forecast)) / pace
        alone = time_of(behind(profile, done, whole)) / pace + left
        sum_, time = window.experienced[job.id]
        rest = left * window.contention
        fair = alone * (sum_ + window.contention * rest) / (time + rest)
        age = now - job.arrived_at
        return JobForecast(job, alone / 1e6, left / 1e6, pace, age / 1e6, fair / 1e6, (age + rest) / fair)

    def _planned(
        self, view: View, contention: float, forecasts: Sequence[JobForecast], types: Types
    ) -> tuple[tuple[str, ...], ...]:
        """The jobs in each of the next rounds."""
        total = sum(types.available.values()) / WHOLE
        steps = np.arange(self.window + 1) * self.length
        part = np.zeros((len(forecasts), self.window + 1))
        left = np.zeros_like(part)
        for i, seen in enumerate(forecasts):
            job, whole = seen.job, max(seen.job.estimate, 1)
            done = min(job.done_at(view.now), whole - 1)
            to_come = ahead(job.traits.profile, done, whole, self.forecast)
            if len(to_come) == 1:
                ((work, speed),) = to_come
                part[i] = (done + np.minimum(steps * seen.pace * speed, work)) / whole
            else:
                part[i] = [(done + work_in(to_come, time * seen.pace)) / whole for time in steps.tolist()]
            left[i] = np.maximum(seen.left - steps / 1e6, 0.0)
        size = np.array([seen.job.shape.load / WHOLE for seen in forecasts])
        worth = log_progress(part.round(9)) / (len(forecasts) * self.window)
        stays = np.array(
            [seen.job.spots is not None and not seen.job.traits.preemptible for seen in forecasts], dtype=bool
        )
        least = np.where(stays, self.window, [self._fair_rounds(seen, contention) for seen in forecasts])
        if dot(least, size) > total * self.window:  # not all can end in time: the latest jobs count most
            worth *= np.array([max(seen.rho, 1.0) ** self.power for seen in forecasts])[:, None]
            left_over = total * self.window
            for i in sorted(range(len(forecasts)), key=lambda i: (not stays[i], -_lateness(forecasts[i]), i)):
                if least[i] * size[i] > left_over and not stays[i]:
                    least[i] = 0
                left_over -= least[i] * size[i]
        given = shared_out(Window(worth, left, size, total, least), self.makespan)
        due = [(seen.fair - seen.age) * 1e6 / self.length for seen in forecasts]
        rows = laid_out(given.tolist(), size.tolist(), total, self.window, due)
        return tuple(tuple(forecasts[row].job.id for row in chosen) for chosen in rows)

    def _fair_rounds(self, seen: JobForecast, contention: float) -> int:
        """The rounds of the window that a job needs to end in time, if it has its share after the window.

        To within a round; all its remaining rounds if it should have ended by the end of the window.
        """
        length = self.length / 1e6
        may_wait = max((seen.fair - seen.age - self.window * length) / contention, 0.0)
        need = floor((seen.left - may_wait) / length + 1e-9) if may_wait else ceil(seen.left / length)
        return min(max(need, 0), self.window)

    def _picks(self, view: View, line: Sequence[JobView], types: Types) -> list[Pick]:
        """Jobs down the line while there are devices: each on the type it holds, or the fastest with room."""
        left = dict(types.available)
        picks: list[Pick] = []
        for job in view.running.values():
            if job.shape.each and not job.traits.preemptible:
                kind = held_type(view.cluster, job)
                picks.append(Pick(job, kind))
                left[kind] = left.get(kind, 0) - job.held
        chosen = {pick.job.id for pick in picks}
        for job in line:
            if not any(left.values()):
                break
            if job.id in chosen:
                continue
            for kind in types.usable(job):
                if left.get(kind, 0) >= job.shape.load:
                    picks.append(Pick(job, kind))
                    left[kind] -= job.shape.load
                    break
        return picks

    def _start_on_idle(self, plan: Plan, job: JobView, types: Types) -> None:
        if job.spots is not None or not plan.room.free_gpus:
            return
        kinds = types.usable(job)
        places = (place_on(plan.room, job.shape, kind) for kind in kinds)
        spots = next((spots for spots in places if spots is not None), None)
        if not kinds:  # a job that no single type can hold runs on several types
            spots = plan.room.anywhere(job.shape)
        if spots is not None:
            plan.start(job, spots)


def _lateness(seen: JobForecast) -> float:
    """By what the bounds are kept that can be, where not all can."""
    return seen.rho


def _stays(view: View, job: JobView) -> bool:
    """Whether a job holds devices of its own, on no more nodes than it needs: no round would move it."""
    if job.spots is None or not job.shape.exclusive:
        return False
    nodes = nodes_of(job.spots)
    if not all(map(view.room.is_open, nodes)):
        return False
    kind = held_type(view.cluster, job)
    return len(nodes) == 1 or len(nodes) <= fewest_nodes(view.cluster, of_type(job.shape, kind))


class Types:
    """The GPU types of the cluster at one instant, and how each job can use them."""

    def __init__(self, view: View) -> None:
        self.available = load_by_type(view.cluster, view.room)  # milli-GPUs
        self._view = view
        self._kinds = sorted(self.available)
        self._holds: dict[tuple[Shape, str], bool] = {}
        self._speeds: dict[str, tuple[float, ...]] = {}

    def usable(self, job: JobView) -> list[str]:
        """The types that could hold a job: the one it holds, then the fastest for it."""
        cluster = self._view.cluster
        speed = dict(zip(self._kinds, self._speed(job), strict=True))
        has = held_type(cluster, job) if job.spots is not None else None
        able = [kind for kind in self._kinds if speed[kind] > 0 and self._could_hold(job.shape, kind)]
        return sorted(able, key=lambda kind: (kind != has, -speed[kind], kind))

    def pace(self, job: JobView) -> float:
        """The mean speed of a job over the types, weighted by their number of GPUs."""
        speeds = self._speed(job)
        usable = [
            (speed, self.available[kind])
            for kind, speed in zip(self._kinds, speeds, strict=True)
            if speed > 0
        ]
        total = sum(count for _, count in usable)
        return sum(speed * count for speed, count in usable) / total if total else 1.0

    def _speed(self, job: JobView) -> tuple[float, ...]:
        if job.id not in self._speeds:
            self._speeds[job.id] = by_type(self._view, job, self._kinds)
        return self._speeds[job.id]

    def _could_hold(self, shape: Shape, kind: str) -> bool:
        key = shape, kind
        if key not in self._holds:
            self._holds[key] = self._view.room.ever(of_type(shape, kind))
        return self._holds[key]
