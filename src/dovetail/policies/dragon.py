"""DRAGON: gangs in order of arrival; running jobs shrink for one that waits too long, and grow when idle.

Lin, Yeh and Chou, "DRAGON: A Dynamic Scheduling and Scaling Controller for Managing Distributed Deep Learning
Jobs in Kubernetes Cluster", CLOSER 2019. The rule is reconstructed: from the public controller of the authors
(version 0.9.1), since the paper was not available.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import cast

from dovetail.mechanisms.order.keys import arrival
from dovetail.mechanisms.place.placement import Placement, scattered
from dovetail.mechanisms.queue.reviews import review_by
from dovetail.mechanisms.resize.resizing import grow, held_tasks, start_smaller
from dovetail.mechanisms.resize.shrinking import resizable, spare_tasks, start_by_shrinking
from dovetail.model.estimate import task_range
from dovetail.model.units import micros
from dovetail.model.view import JobView, Order, Plan, Policy, View


def dragon(*, pending_limit: float = 30.0, idle_limit: float = 60.0) -> Policy:
    """Gangs on the fewest nodes, in order of arrival; elastic jobs are scaled down and up. Reconstructed.

    A job starts with as many tasks as there is room for, up to what it asked for. Jobs that do not fit are
    passed over. When the first one has waited for `pending_limit` seconds, running jobs are scaled down until
    it fits; if they cannot be, no other job starts before it. When nothing was started or scaled and no job
    has waited for `idle_limit` seconds, running jobs are scaled up onto the idle GPUs.
    """
    if pending_limit < 0 or idle_limit < 0:
        raise ValueError(f"limits are times of 0 s and more, not {pending_limit} and {idle_limit}")
    return Dragon(pending_limit=micros(pending_limit), idle_limit=micros(idle_limit))


@dataclass(frozen=True, slots=True)
class Quiet:
    """Since when nothing was started or scaled, and no job waited."""

    since: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Dragon:
    """The three phases of the controller: scale down for the first job, start what fits, scale up."""

    pending_limit: int
    idle_limit: int
    place: Placement = scattered
    order: Order = arrival
    group: Callable[[JobView], Hashable] | None = None
    quantum: int | None = None

    def decide(self, view: View) -> Plan:
        plan, now = view.draft(), view.now
        before = len(view.running)
        if self._start_late(view, plan):
            self._start_fitting(view, plan)
        head = view.queue.head()
        if head is not None:
            plan.memory = None
            if (late_at := head.waiting_since + self.pending_limit) > now:
                review_by(plan, late_at)
            return plan
        quiet = cast("Quiet | None", view.memory)
        if quiet is None or len(view.running) > before:
            quiet = Quiet(now)
        if quiet.since + self.idle_limit <= now and scale_up(view, plan):
            quiet = Quiet(now)
        if quiet.since + self.idle_limit > now and plan.room.free_gpus and _growing(view):
            review_by(plan, quiet.since + self.idle_limit)
        plan.memory = quiet
        return plan

    def _start_late(self, view: View, plan: Plan) -> bool:
        """Start the first jobs that have waited too long; False: one of them cannot, and all others wait."""
        while (job := view.queue.head()) is not None and self._late(job, view.now):
            if not self._start(plan, job) and not self._scale_down(view, plan, job):
                plan.deny(job, "Resources", "running jobs have too few GPUs to spare")
                return False
        return True

    def _start_fitting(self, view: View, plan: Plan) -> None:
        full = set[Hashable]()
        for job in view.queue.walk():
            asked = job.shape, task_range(job.shape, job.traits)[0], job.tenant
            if asked in full or not self._start(plan, job):
                full.add(asked)
                plan.deny(job, "Resources")

    def _late(self, job: JobView, now: int) -> bool:
        return now - job.waiting_since >= self.pending_limit

    def _start(self, plan: Plan, job: JobView) -> bool:
        tasks, shape = job.shape.tasks, job.shape
        if shape.exclusive and shape.each:
            tasks = min(tasks, plan.room.free_gpus // shape.each)
        return start_smaller(plan, job, tasks, self.place)

    def _scale_down(self, view: View, plan: Plan, job: JobView) -> bool:
        least, _ = task_range(job.shape, job.traits)
        return start_by_shrinking(plan, job, least, self.place, view.running.values(), first_started)


def first_started(giving: Sequence[JobView], lacks: int) -> tuple[JobView, int]:
    """The job that started first gives up what is lacking, as far as it can."""
    job = min(giving, key=_by_start)
    return job, min(spare_tasks(job), -(-lacks // job.shape.each))


def scale_up(view: View, plan: Plan) -> bool:
    """Let running jobs grow, the first to start first, each as far as it can; whether one did."""
    grown = False
    for job in sorted(_growing(view), key=_by_start):
        has = held_tasks(job)
        grow(plan, job, task_range(job.shape, job.traits)[1])
        grown |= held_tasks(job) > has
    return grown


def _growing(view: View) -> list[JobView]:
    """Running jobs that take more tasks than they have."""
    return [
        job
        for job in view.running.values()
        if resizable(job) and held_tasks(job) < task_range(job.shape, job.traits)[1]
    ]


def _by_start(job: JobView) -> tuple[int, int]:
    return job.started_at, job.seq
