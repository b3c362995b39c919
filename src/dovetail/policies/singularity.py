"""Singularity: tiers keep their GPU-time fractions, since every job can be halved, preempted and moved.

Shukla et al., "Singularity: Planet-Scale, Preemptive and Elastic Scheduling of AI Workloads", 2022. Its
mechanisms are the jobs' own here: transparent checkpoints (`Checkpoint.on_stop`) and splicing
(`Traits.splice`). The policy is reconstructed: the paper describes its aims and not its rules.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf

from dovetail.mechanisms.place.defragmentation import start_by_moving
from dovetail.mechanisms.place.placement import packed, scattered
from dovetail.mechanisms.preempt.stopping import may_be_stopped
from dovetail.mechanisms.queue.reviews import review_by
from dovetail.mechanisms.quota.gpu_fraction import Period, lasts
from dovetail.mechanisms.resize.resizing import held_tasks, start
from dovetail.mechanisms.resize.shrinking import free_again, resizable, shrink_until
from dovetail.model.estimate import task_range
from dovetail.model.grant import Spots, nodes_of
from dovetail.model.splicing import workers
from dovetail.model.units import WHOLE, micros
from dovetail.model.view import JobView, Order, Plan, Policy, View


def singularity(
    *, tiers: Sequence[float] = (0.0, 0.7, 0.95), period: float = 86_400.0, spell: float = 600.0
) -> Policy:
    """Higher tiers get GPUs by halving and preempting jobs of lower ones. Reconstructed.

    `tiers` are the fractions of the GPU time they asked for that jobs are to get over a `period` (seconds),
    by priority: 0 and below, 1, 2 and above. A job that would be below its fraction in less than a `spell`
    (seconds) claims GPUs of lower tiers: jobs of the lowest tier are halved, then others while they keep
    their own fraction for a spell; then jobs without a fraction are preempted, and if that is too little, the
    other lower tiers are halved and preempted too. On idle GPUs jobs grow to what
    they asked for, and beyond that up to the most they take, each at most once in a spell. Running jobs move
    to other nodes if a job can then start on one node.
    """
    if not tiers or not all(0 <= fraction <= 1 for fraction in tiers) or list(tiers) != sorted(tiers):
        raise ValueError(f"tiers are fractions from 0 to 1 by priority, the lowest first, not {tiers}")
    if period <= 0 or spell <= 0:
        raise ValueError(f"period and spell are times above 0 s, not {period} and {spell}")
    return Singularity(tuple(tiers), micros(period), micros(spell))


@dataclass(frozen=True)
class Singularity:
    """Tiers, the time over which their fractions count, and the time for which a decision should last."""

    tiers: tuple[float, ...]
    period: int
    spell: int
    group: Callable[[JobView], Hashable] | None = None
    quantum: int | None = None

    @cached_property
    def order(self) -> Order:
        return Order(self.rank)

    def rank(self, job: JobView, now: int) -> tuple[int, int]:
        """The higher tier first, then by arrival."""
        return -self.tier(job), job.arrived_at

    def tier(self, job: JobView) -> int:
        return min(max(job.priority, 0), len(self.tiers) - 1)

    def fraction(self, job: JobView) -> float:
        return self.tiers[self.tier(job)]

    def decide(self, view: View) -> Plan:
        plan = view.draft()
        _Decision(self, view, plan).run()
        return plan


class _Decision:
    """One decision: the claims of the tiers, then the queue, then growth."""

    def __init__(self, policy: Singularity, view: View, plan: Plan) -> None:
        self.policy, self.view, self.plan = policy, view, plan
        active = (*view.running.values(), *view.queue)
        self.entitled = sorted((job for job in active if policy.fraction(job) > 0), key=self._rank)
        last = view.memory if isinstance(view.memory, Period) else Period()
        self.period = last.at(view.now, policy.period, self.entitled)

    def run(self) -> None:
        plan, policy = self.plan, self.policy
        plan.memory = self.period
        for job in self.entitled:
            if self._claims(job):
                self._enforce(job)
        refused = set[Hashable]()
        for job in self.view.queue.walk():
            kind = job.shape, id(job.traits), job.tenant
            if kind in refused or not self._start(job):
                refused.add(kind)
                plan.deny(job, "Resources")
        if plan.room.free_gpus:
            self._grow()
        for job in self.entitled:
            review_by(plan, self.period.start + policy.period)
            if job.held < job.shape.load:  # it may have to claim the rest
                left = self._lasts(job, job.held) - policy.spell
                if left < inf:
                    review_by(plan, self.view.now + (int(left) + 1 if left > 0 else policy.spell))

    def _rank(self, job: JobView) -> tuple[int, int, int]:
        return (*self.policy.rank(job, self.view.now), job.seq)

    def _lasts(self, job: JobView, held: int) -> float:
        return lasts(self.period, job, self.policy.fraction(job), held, self.view.now)

    def _claims(self, job: JobView) -> bool:
        """Whether a job that has less than it asked for would be below its fraction within a spell."""
        return job.held < job.shape.load and self._lasts(job, job.held) <= self.policy.spell

    # -- starting, in the order of what it costs others

    def _start(self, job: JobView) -> bool:
        """On free GPUs and those that jobs have beyond what they asked for; with fewer if it must."""
        if self._as_asked(job) or self._by_shrinking(job, lambda _: False):
            return True
        sizes = _sizes(job, task_range(job.shape, job.traits)[0], job.shape.tasks - 1)
        return any(start(self.plan, job, tasks, scattered) for tasks in sizes)

    def _enforce(self, job: JobView) -> None:
        """Give a job what it asked for, from lower tiers: halve, then preempt, then both without regard."""
        if self._as_asked(job):
            return
        spares, below = self._spares(job), self._ranks_below(job)
        for gives, leaves in ((spares, self._is_basic), (below, self._is_basic), (below, below)):
            if self._by_shrinking(job, gives) or self._by_preempting(job, gives, leaves):
                return

    def _as_asked(self, job: JobView) -> bool:
        """Start a job, or let it grow to what it asked for, on free GPUs."""
        if job.spots is not None:
            return self._fits(job)
        if start(self.plan, job, job.shape.tasks, packed):
            return True
        spots = scattered.find(self.plan.room, job)
        if spots is None or self._slower_on(job, spots):
            running = list(self.view.running.values())
            if start_by_moving(self.plan, job, running, self._may_move):
                return True
        return spots is not None and self.plan.start(job, spots)

    def _slower_on(self, job: JobView, spots: Spots) -> bool:
        """Whether a job is slower on so many nodes than on one."""
        nodes = len(nodes_of(spots))
        return nodes > 1 and self.view.speed(job, nodes=nodes).speed < self.view.speed(job, nodes=1).speed

    def _may_move(self, job: JobView) -> bool:
        """A job moves if no work is lost, and if it has done work for a spell."""
        return may_be_stopped(job) and self._settled(job)

    def _settled(self, job: JobView) -> bool:
        return self.view.now - job.live_at >= self.policy.spell

    # -- making room

    def _spares(self, job: JobView) -> Gives:
        """Jobs of lower tiers that keep their own fraction for a spell with half of what they hold."""
        below = self._ranks_below(job)

        def gives(other: JobView) -> bool:
            left = _fewer(other) * other.shape.each * WHOLE
            return below(other) and self._lasts(other, left) > self.policy.spell

        return gives

    def _ranks_below(self, job: JobView) -> Gives:
        tier = self.policy.tier
        return lambda other: tier(other) < tier(job)

    def _by_shrinking(self, job: JobView, gives: Gives) -> bool:
        """Halve jobs that give: first what is beyond their request, then the lowest tier."""

        def giver(giving: Sequence[JobView], lacks: int) -> tuple[JobView, int] | None:
            able = [other for other in giving if _expanded(other) or gives(other)]
            other = min(able, key=self._turn, default=None)
            return None if other is None else (other, held_tasks(other) - _fewer(other))

        others = [other for other in self.view.running.values() if other is not job]
        lacks = (job.shape.tasks - held_tasks(job)) * job.shape.each
        return shrink_until(lambda: self._fits(job), self.plan, lacks, others, giver)

    def _turn(self, other: JobView) -> tuple[bool, int, float, int]:
        part = held_tasks(other) / other.shape.tasks
        return part <= 1, self.policy.tier(other), -part, -other.seq

    def _fits(self, job: JobView) -> bool:
        """Start a job, or let it grow to what it asked for, where that stops no other job."""
        if job.spots is None:
            return start(self.plan, job, job.shape.tasks, scattered)
        return resizable(job) and self.plan.resize(job, job.shape.tasks)

    def _is_basic(self, job: JobView) -> bool:
        return not self.policy.fraction(job)

    def _by_preempting(self, job: JobView, gives: Gives, leaves: Gives) -> bool:
        """Stop jobs: the lowest tier first, then those that lose no work, then the last to start."""
        plan, tier, running = self.plan, self.policy.tier, self.view.running.values()
        leaving = [other for other in running if other.traits.preemptible and leaves(other)]
        leaving.sort(key=lambda other: (tier(other), _victim(other)))
        stopped: list[tuple[JobView, Spots]] = []
        done = False
        while leaving and not done:
            other = leaving.pop(0)
            stopped.append((other, other.spots or ()))
            plan.stop(other, by=job)
            done = self._fits(job) or self._by_shrinking(job, gives)
        for other, before in reversed(stopped):  # those that were not in the way go on
            if free_again(plan, other, before):
                plan.start(other, before)
        return done

    # -- idle GPUs

    def _grow(self) -> None:
        """Jobs grow to what they asked for, then beyond it; by tier and arrival."""
        plan, now = self.plan, self.view.now
        jobs = sorted((job for job in self.view.running.values() if resizable(job)), key=self._rank)
        for job in jobs:
            self._to(job, job.shape.tasks)
        for job in jobs:
            most = task_range(job.shape, job.traits)[1]
            if held_tasks(job) < job.shape.tasks or held_tasks(job) >= most or not plan.room.free_gpus:
                continue
            if self._settled(job):
                self._to(job, most)
            else:
                review_by(plan, max(job.live_at, now) + self.policy.spell)

    def _to(self, job: JobView, tasks: int) -> None:
        """Let a job grow up to so many tasks, as far as that is faster."""
        has = held_tasks(job)
        limit = min(tasks, has + self.plan.room.free_gpus // job.shape.each)
        if limit <= has:
            return
        speed = self.view.speed(job, tasks=has).speed
        for size in _sizes(job, has + 1, limit):
            if self.view.speed(job, tasks=size).speed > speed and self.plan.resize(job, size):
                return


Gives = Callable[[JobView], bool]


def _victim(job: JobView) -> tuple[bool, int, int]:
    return not job.traits.checkpoint.on_stop, -job.started_at, -job.seq


def _expanded(job: JobView) -> bool:
    """Whether a job has more than it asked for."""
    return held_tasks(job) > job.shape.tasks


def _fewer(job: JobView) -> int:
    """The tasks with which a job goes on that gives GPUs: what it asked for, if it has more, else half."""
    if _expanded(job):
        return job.shape.tasks
    least = task_range(job.shape, job.traits)[0]
    return next(_sizes(job, least, held_tasks(job) // 2), least)


def _sizes(job: JobView, least: int, most: int) -> Iterator[int]:
    """Sizes in this range, the largest first; a spliced job has as many workers on each GPU."""
    world = workers(job.shape, job.traits) if job.traits.splice is not None else 0
    for tasks in range(most, least - 1, -1):
        if world % tasks == 0 or tasks == job.shape.tasks:
            yield tasks
