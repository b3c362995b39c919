"""Kueue: whole workloads are admitted against quotas, before any of their pods exists."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, NamedTuple, cast

from dovetail.mechanisms.place import Place
from dovetail.mechanisms.pods import by_class, dealt, joined, spread, stacked, suits, tasks_in
from dovetail.mechanisms.quota import THE_CLUSTER, latest_first, nominal, over_quota, reclaim
from dovetail.model.job import Shape
from dovetail.model.units import MINUTE, micros
from dovetail.model.view import JobView, Key, Order, Plan, Policy, Room, View

LONGEST_BACKOFF = 60 * MINUTE


class Requeued(NamedTuple):
    """Not all its pods started in time."""

    times: int
    until: int


class Ledger(NamedTuple):
    """What is remembered: who was admitted and is not whole yet, since when; and who was sent back."""

    unready: Mapping[str, int]
    requeued: Mapping[str, Requeued]


def _queue(job: JobView) -> tuple[str, str]:
    """By queue; who ran before stands alone, for it may have to rest while the others go on."""
    return job.tenant, job.id if job.epoch else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """Admit by quota, borrow inside the cohort, evict who borrowed when the owner comes."""

    strict: bool
    reclaims: bool
    preempts: bool
    ready_timeout: int
    backoff: int
    emptiest: bool
    whole: bool
    order: Order = by_class
    group: Callable[[JobView], Hashable] = _queue
    quantum: int | None = None
    waives: ClassVar[frozenset[str]] = frozenset({"whole gangs"})  # until the timeout for their readiness

    def decide(self, view: View) -> Plan:
        plan = view.draft()
        _Cycle(self, view, plan).run()
        return plan


class _Cycle:
    """One decision, and what it has found so far."""

    def __init__(self, policy: Admission, view: View, plan: Plan) -> None:
        self.policy, self.view, self.plan = policy, view, plan
        self.place: Place = spread if policy.emptiest else stacked
        self.quota = nominal(view.cluster)
        ledger = cast("Ledger", view.memory or Ledger({}, {}))
        self.unready = {name: at for name, at in ledger.unready.items() if name in view.running}
        self.requeued = dict(ledger.requeued)

    def run(self) -> None:
        self._complete()
        while self._admit():
            pass
        for since in self.unready.values():
            self._review(since + self.policy.ready_timeout)
        self.plan.memory = Ledger(self.unready, self.requeued) if self.unready or self.requeued else None

    def _complete(self) -> None:
        """Bind more pods of workloads that are not whole; send back who took too long."""
        plan, now = self.plan, self.view.now
        for name, since in sorted(self.unready.items(), key=lambda item: (item[1], item[0])):
            job = self.view.running[name]
            spots = job.spots or ()
            missing = job.shape.tasks - tasks_in(spots, job.shape)
            more = dealt(plan.room, replace(job.shape, roles=()), missing, emptiest=self.policy.emptiest)
            if more and plan.shift(job, joined(spots, more)):
                missing -= tasks_in(more, job.shape)
            if missing <= job.shape.tasks - _least(job):
                del self.unready[name]
            elif now - since >= self.policy.ready_timeout:
                plan.stop(job)
                del self.unready[name]
                times = self.requeued[name].times + 1 if name in self.requeued else 1
                wait = min(self.policy.backoff << min(times - 1, 20), LONGEST_BACKOFF)
                self.requeued[name] = Requeued(times, now + wait)

    def _admit(self) -> bool:
        """One walk over the queues' heads; whether somebody was evicted, which makes another worth while."""
        plan = self.plan
        shut: set[str] = set()
        short: list[JobView] = []
        for job in self.view.queue.walk(rank=self._rank):
            if job.tenant in shut or self._rests(job):
                continue
            over = self._over(job)
            if over is not None:
                short.append(job)
                if over == THE_CLUSTER:
                    plan.deny(job, "Resources")
                else:
                    plan.deny(job, "AssocGrpGRES", f"no quota is left in {over}")
            elif self._start(job):
                continue
            elif self.policy.whole:
                short.append(job)
            if self.policy.strict:
                shut.add(job.tenant)
        return any(self._evict_for(job) for job in short)

    def _rests(self, job: JobView) -> bool:
        """Sent back not long ago."""
        back = self.requeued.get(job.id)
        if back is None or back.until <= self.view.now:
            return False
        if self.place(self.plan.room, job) is not None:
            self._review(back.until)
        return not self.plan.deny(job, "BeginTime", "its pods did not all start in time")

    def _start(self, job: JobView) -> bool:
        """All pods if there is room, else those for which there is: the rest have time to come."""
        plan = self.plan
        spots = self.place(plan.room, job)
        if spots is None:
            # Of a GPU type there is no more quota than devices; and who was sent back waits until it fits.
            late = job.id in self.requeued or _free(plan.room, job.shape) < job.gpus
            if self.policy.whole or late:
                return plan.deny(job, "Resources")
            spots = dealt(plan.room, job.shape, job.shape.tasks, emptiest=self.policy.emptiest)
            if not spots:
                return plan.deny(job, "Resources")
        if not plan.start(job, spots):
            return False
        if tasks_in(spots, job.shape) < _least(job):
            self.unready[job.id] = self.view.now
        else:
            self.requeued.pop(job.id, None)
        return True

    def _evict_for(self, job: JobView) -> bool:
        """Take back what others of the cohort borrowed of this job's quota, or what lower priority holds."""
        plan, mine, line = self.plan, job.tenant, self.view.cluster.line
        used = self._used()
        reclaims = self.policy.reclaims and used.get(mine, 0) + job.shape.load <= self.quota.get(mine, 0)
        if not reclaims and not self.policy.preempts:
            return False
        cohort = line(mine)[1:]

        def may_leave(other: JobView) -> bool:
            if other.tenant == mine:
                return self.policy.preempts and other.priority < job.priority
            if not reclaims or self._used().get(other.tenant, 0) <= self.quota.get(other.tenant, 0):
                return False
            return any(name in cohort for name in line(other.tenant)[1:])

        def enough() -> bool:
            return self._over(job) is None and self.place(plan.room, job) is not None

        # Who borrows nothing now will not when others have left: all but a few need not be put in order.
        others = [other for other in self.view.running.values() if may_leave(other)]
        others.sort(key=lambda o: (o.tenant == mine, *latest_first(o)))
        gone = reclaim(plan, others, may_leave, enough)
        for other in gone:
            self.unready.pop(other.id, None)
        return bool(gone) and self._start(job)

    def _rank(self, job: JobView) -> Key:
        """Queues within their quota go first; inside a queue the order stays as it is."""
        return self.plan.used.get(job.tenant, 0) >= self.quota.get(job.tenant, 0)

    def _over(self, job: JobView) -> str | None:
        return over_quota(self.view.cluster, self.quota, self._used(), job.tenant, job.shape.load)

    def _used(self) -> Mapping[str, int]:
        """Admitted: what is held, and what those who are not whole have still to get."""
        if not self.unready:
            return self.plan.used
        used = dict(self.plan.used)
        for name in self.unready:
            job = self.view.running.get(name)
            for tenant in self.view.cluster.line(job.tenant) if job is not None else ():
                used[tenant] = used.get(tenant, 0) + (job.shape.load - job.held if job is not None else 0)
        return used

    def _review(self, at: int) -> None:
        self.plan.review_at = at if self.plan.review_at is None else min(at, self.plan.review_at)


def _least(job: JobView) -> int:
    return min(job.traits.least or job.shape.tasks, job.shape.tasks)


def _free(room: Room, shape: Shape) -> int:
    """Devices free for a shape, on whatever nodes."""
    return sum(
        room.free_on(node).bit_count()
        for node in range(len(room.cluster.nodes))
        if suits(room.cluster, shape, node)
    )


def kueue(
    *,
    strategy: Literal["best-effort", "strict"] = "best-effort",
    reclaim: bool = True,
    preempt: bool = True,
    ready_timeout: float = 300.0,
    requeue_backoff: float = 60.0,
    score: Literal["spread", "pack"] = "spread",
    whole: bool = False,
) -> Policy:
    """A workload is admitted whole against its queue's quota, and may borrow inside its cohort.

    A queue is a tenant (`quota`, `borrow`), its cohort the parent. `reclaim` evicts who borrowed, the latest
    first, when the owner wants its quota; `preempt` evicts lower priority inside a queue. A workload whose
    pods do not all start within `ready_timeout` seconds is sent back for `requeue_backoff`, twice as long
    each time; with `whole`, as under topology-aware scheduling, it is not admitted before all its pods have
    a place, and room is made for it as quota is. Deviations: quotas count GPUs of all types together, and of
    each type there is no more quota than there are devices; a workload for which not one pod fits is not
    admitted; one that was sent back is not admitted before it fits whole.
    """
    return Admission(
        strict=strategy == "strict",
        reclaims=reclaim,
        preempts=preempt,
        ready_timeout=micros(ready_timeout),
        backoff=micros(requeue_backoff),
        emptiest=score == "spread",
        whole=whole,
    )
