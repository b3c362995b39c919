"""AlloX: which job runs on which kind of device, and in which order, by matching (Le et al., EuroSys 2020).

A job may run on a GPU or on a CPU, or on an old GPU or a new one, and the speed-up differs from job to job.
The least mean completion time without preemption is then a cheapest matching of jobs to positions in the
queues of the machines (`completion_matching`). The first job in the queue of a free machine starts; at the
next arrival or end the matching is made again. For fairness only jobs of the users with the least progress
take part.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Literal

import numpy as np

from dovetail.mechanisms.estimate.speeds import by_type
from dovetail.mechanisms.objective.completion_matching import Matrix, machine_queues
from dovetail.mechanisms.order.keys import submission
from dovetail.mechanisms.place.gpu_types import held_type, load_by_type, of_type, place_on
from dovetail.mechanisms.rounds.active_jobs import gpu_jobs, start_cpu_jobs, start_on_mixed_types
from dovetail.model.units import SECOND, WHOLE, micros
from dovetail.model.view import JobView, Order, Plan, Policy, View
from dovetail.solve.extra import require


def allox(
    *,
    a: float = 0.3,
    by: Literal["user", "tenant"] = "user",
    window: int = 100,
    round: float = 0.0,
) -> Policy:
    """The least mean completion time over kinds of devices, by matching, without preemption.

    Only jobs of the fraction `a` of waiting users (or tenants, with `by`) with the least progress share take
    part: a = 1 gives the least mean, a small `a` is fair. A user's progress share [from memory] is the GPUs
    that its jobs hold, each weighted by the job's speed there relative to its best kind. If no job of these
    users starts, the next user joins.

    At most `window` jobs enter a matching, those that can finish soonest. `round`: decide only at multiples
    of this many seconds; 0: at every arrival and end. A job of w GPUs counts as one that keeps the jobs
    behind it waiting w times as long (the paper has jobs of one device).
    """
    if not 0 < a <= 1:
        raise ValueError(f"a is a fraction of the users, above 0 and at most 1, not {a}")
    require("scipy", "policy allox")
    return AlloX(a=a, by=by, window=window, quantum=micros(round) if round else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlloX:
    """Matching at every event, among the users with the least progress."""

    a: float
    by: Literal["user", "tenant"]
    window: int
    quantum: int | None
    order: Order = submission
    group: Callable[[JobView], Hashable] | None = None

    def decide(self, view: View) -> Plan:
        plan = view.draft()
        start_cpu_jobs(view, plan)
        if not view.room.free_gpus and not _shared(view):
            return plan
        kinds = sorted(load_by_type(view.cluster, view.room))
        kinds = [kind for kind, ready in zip(kinds, _ready(view, plan, kinds), strict=True) if ready]
        jobs = [job for job in gpu_jobs(view) if job.spots is None]
        times = self._times(view, jobs, kinds)
        able = {job.id: row for row, job in enumerate(jobs) if np.isfinite(times[row]).any()}
        while any(job.id in able and job.spots is None for job in jobs):
            waiting = [job for job in jobs if job.id in able and job.spots is None]
            if not self._matched(view, plan, waiting, kinds, times, able) or self.a == 1:
                break
        self._gaps(plan, jobs, kinds, times)
        return plan

    def _matched(
        self,
        view: View,
        plan: Plan,
        waiting: Sequence[JobView],
        kinds: Sequence[str],
        times: Matrix,
        row: dict[str, int],
    ) -> bool:
        """Start the first job in each queue; whether any started. With a < 1 each user starts one job."""
        progress = self._progress(view, kinds)
        users = sorted(
            {self._owner(job) for job in waiting}, key=lambda user: (progress.get(user, 0.0), user)
        )
        ready = _ready(view, plan, kinds)
        if not any(when == 0 for machines in ready for when in machines):
            return False
        for joined in range(ceil(self.a * len(users)), len(users) + 1):
            among = set(users[:joined])
            chosen = [job for job in waiting if self._owner(job) in among]
            chosen.sort(key=lambda job: (times[row[job.id]].min(), job.seq))
            del chosen[self.window :]
            table = times[[row[job.id] for job in chosen]]
            size = np.array([job.shape.load / WHOLE for job in chosen])
            started: set[str] = set()
            for kind, machines in zip(kinds, machine_queues(table, ready, size), strict=True):
                free = sum(1 for when in ready[kinds.index(kind)] if when == 0)
                for line in machines[:free]:
                    for place in line:
                        job = chosen[place]
                        if self.a < 1 and self._owner(job) in started:
                            continue
                        spots = place_on(plan.room, job.shape, kind)
                        if spots is not None and plan.start(job, spots):
                            started.add(self._owner(job))
                            break
                        plan.deny(
                            job, "Resources", f"it is first in the queue of a {kind}, but does not fit yet"
                        )
            if started:
                return True
        return False

    def _times(self, view: View, jobs: Sequence[JobView], kinds: Sequence[str]) -> Matrix:
        """Seconds each job would take on each kind; infinity where it cannot run."""
        times = np.full((len(jobs), len(kinds)), np.inf)
        fits: dict[tuple[object, str], bool] = {}
        for i, job in enumerate(jobs):
            left = max(job.remaining_at(view.now), 1) / SECOND
            for k, speed in enumerate(by_type(view, job, kinds)):
                key = (job.shape, kinds[k])
                if key not in fits:
                    allowed = not job.shape.types or kinds[k] in job.shape.types
                    fits[key] = allowed and view.room.ever(of_type(job.shape, kinds[k]))
                if fits[key] and speed > 0:
                    times[i, k] = left / speed
        return times

    def _progress(self, view: View, kinds: Sequence[str]) -> dict[str, float]:
        """What each user runs on, as GPUs of each job's best kind."""
        found: dict[str, float] = {}
        for job in view.running.values():
            if job.shape.each:
                speed = dict(zip(kinds, by_type(view, job, kinds), strict=True))
                part = speed.get(held_type(view.cluster, job), 0.0) / (
                    max(speed.values(), default=0.0) or 1.0
                )
                owner = self._owner(job)
                found[owner] = found.get(owner, 0.0) + job.held / WHOLE * part
        return found

    def _owner(self, job: JobView) -> str:
        return job.user if self.by == "user" else job.tenant

    def _gaps(self, plan: Plan, jobs: Sequence[JobView], kinds: Sequence[str], times: Matrix) -> None:
        """Jobs with parts of devices fill gaps; a job too large for any kind takes several kinds."""
        for job, took in zip(jobs, times, strict=True):
            if job.spots is not None:
                continue
            if not np.isfinite(took).any():
                start_on_mixed_types(plan, (job,))
            elif not job.shape.exclusive:
                for k in np.argsort(took, kind="stable"):
                    spots = place_on(plan.room, job.shape, kinds[k]) if np.isfinite(took[k]) else None
                    if spots is not None and plan.start(job, spots):
                        break


def _shared(view: View) -> bool:
    """Whether a waiting job asks for a part of a device."""
    return any(not job.shape.exclusive for job in view.queue)


def _ready(view: View, plan: Plan, kinds: Sequence[str]) -> list[list[float]]:
    """For each kind, in how many seconds each of its devices is free, soonest first.

    A job past its expected end is assumed to run on for as long as it is late already.
    """
    busy: dict[tuple[int, int], float] = {}
    for job in view.running.values():
        left = (job.ends_at(view.now) - view.now) / SECOND
        for node, devices, *_ in job.spots or ():
            for device in range(devices.bit_length()):
                if devices >> device & 1:
                    busy[node, device] = max(busy.get((node, device), 1e-6), abs(left))
    found: dict[str, list[float]] = {kind: [] for kind in kinds}
    for number, machine in enumerate(view.cluster.nodes):
        if plan.room.is_open(number) and machine.type.name in found:
            found[machine.type.name] += [0.0] * plan.room.free_on(number).bit_count()
    for (number, _), left in busy.items():
        if plan.room.is_open(number) and (kind := view.cluster.nodes[number].type.name) in found:
            found[kind].append(left)
    return [sorted(found[kind]) for kind in kinds]
