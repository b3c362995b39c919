"""YARN's capacity scheduler, as the deep-learning papers run it: FIFO queues with guarantees, and gangs."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Literal, cast

from dovetail.mechanisms.order.keys import arrival
from dovetail.mechanisms.preempt.reclaim import latest_first, reclaim
from dovetail.mechanisms.queue.reviews import review_by
from dovetail.mechanisms.quota.tenant_quota import ceilings, guarantees
from dovetail.model.grant import Spots
from dovetail.model.units import micros
from dovetail.model.view import JobView, Key, Order, Plan, Policy, View


def _queue_and_user(job: JobView) -> tuple[str, str]:
    return job.tenant, job.user


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """The queue with the least of its guarantee goes first; it may borrow idle guarantees of others."""

    user_limit: float
    delay: int  # with one node; with more nodes, offers come more often
    strict: bool
    preempt: bool
    order: Order = arrival
    group: Callable[[JobView], Hashable] = _queue_and_user
    quantum: int | None = None

    def decide(self, view: View) -> Plan:
        plan = view.draft()
        if not len(view.queue):
            plan.memory = None
            return plan
        _Pass(self, view, plan).serve()
        return plan


class _Pass:
    """One decision."""

    def __init__(self, policy: Capacity, view: View, plan: Plan) -> None:
        self.policy, self.view, self.plan = policy, view, plan
        cluster = view.cluster
        self.given = guarantees(cluster)
        self.most = ceilings(cluster, self.given)
        self.place_of = {name: i for i, name in enumerate(cluster.tenants)}
        self.by_user: dict[tuple[str, str], int] = {}
        for job in view.running.values():
            self._count(job, job.held)
        self.missed: dict[str, int] = {}  # since when a job has declined spots on more nodes than it needs
        self.before = cast("Mapping[str, int]", view.memory or {})
        self.entitled: list[JobView] = []  # jobs within their queue's guarantee, without room

    def serve(self) -> None:
        self._walk()
        while self.policy.preempt and any(self._take_back(job) for job in self.entitled):
            self._walk()
        self.plan.memory = self.missed or None

    def _walk(self) -> None:
        plan = self.plan
        closed: set[str] = set()
        self.entitled = []
        for job in self.view.queue.walk(rank=self._rank):
            queue = job.tenant if job.tenant in self.given else ""
            if queue in closed:
                continue
            if not self._user_may(job):
                plan.deny(job, "QOSMaxGRESPerUser", f"user {job.user} is at its limit in queue {queue}")
                continue
            if not self._try(job) and self.policy.strict:
                closed.add(queue)

    def _try(self, job: JobView) -> bool:
        plan, load = self.plan, job.shape.load
        full = self._full(job, load)
        if full is not None:
            return plan.deny(job, "AssocGrpGRES", f"queue {full} is at its maximum capacity")
        borrows = self._borrows(job, load)
        if borrows and self.entitled:
            return plan.deny(job, "Priority", "a job within its guarantee waits for what falls free")
        spots = self._place(job)
        if spots is not None and plan.start(job, spots):
            self._count(job, job.held)
            return True
        if spots is None and not borrows:
            self.entitled.append(job)
        return plan.deny(job, "Resources") if spots is None else False

    def _place(self, job: JobView) -> Spots | None:
        """A packed place; any place only after enough missed offers. A node makes one offer a heartbeat."""
        room, now = self.plan.room, self.view.now
        spots = room.best(job.shape)
        if spots is not None:
            return spots
        spots = room.anywhere(job.shape)
        if spots is None:
            return None
        since = self.before.get(job.id, now)
        relaxed_at = since + self.policy.delay // len(self.view.cluster.nodes)
        if relaxed_at <= now:
            return spots
        self.missed[job.id] = since
        review_by(self.plan, relaxed_at)
        return None

    def _take_back(self, job: JobView) -> bool:
        """Stop the latest jobs of queues that stay above their guarantee without them."""
        plan, used, given = self.plan, self.plan.used, self.given

        def may_leave(other: JobView) -> bool:
            return used.get(other.tenant, 0) - other.held >= given.get(other.tenant, 0)

        others = sorted(
            (other for other in self.view.running.values() if other.tenant != job.tenant), key=latest_first
        )
        gone = reclaim(plan, job, others, may_leave, lambda: plan.room.best(job.shape) is not None)
        for other in gone:
            self._count(other, -other.shape.load)
        if not gone or not plan.start(job):
            return False
        self._count(job, job.held)
        return True

    def _rank(self, job: JobView) -> Key:
        """From the root of the tree down: used over guaranteed, level by level."""
        line = self.view.cluster.line(job.tenant) if job.tenant in self.given else ()
        if not line:
            return ((float("inf"), -1),)
        used = self.plan.used
        return tuple(
            (used.get(name, 0) / self.given[name] if self.given[name] else float("inf"), self.place_of[name])
            for name in reversed(line)
        )

    def _borrows(self, job: JobView, load: int) -> bool:
        return self.plan.used.get(job.tenant, 0) + load > self.given.get(job.tenant, 0)

    def _full(self, job: JobView, load: int) -> str | None:
        if job.tenant not in self.given:
            return None
        for name in self.view.cluster.line(job.tenant):
            if self.plan.used.get(name, 0) + load > self.most[name]:
                return name
        return None

    def _user_may(self, job: JobView) -> bool:
        """Whether the user stays within its multiple of the queue's guarantee; one job is always allowed."""
        if not job.user or job.tenant not in self.given:
            return True
        holds = self.by_user.get(_queue_and_user(job), 0)
        return not holds or holds + job.shape.load <= self.policy.user_limit * self.given[job.tenant]

    def _count(self, job: JobView, load: int) -> None:
        key = _queue_and_user(job)
        self.by_user[key] = self.by_user.get(key, 0) + load


def yarn_cs(
    *,
    user_limit_factor: float = 1.0,
    locality_delay: int = 40,
    heartbeat: float = 1.0,
    discipline: Literal["strict", "skip"] = "strict",
    preempt: bool = False,
) -> Policy:
    """Queues with guaranteed and maximum capacity; the queue with the least of its guarantee goes first.

    A queue is a tenant: its capacity is `quota`, or its part by `weight` of what its siblings' quotas leave;
    its maximum is `limit`, or what it may `borrow` on top. A gang waits `locality_delay` missed offers (one
    per node and `heartbeat` seconds) for a packed place. Deviations: while a job within a guarantee waits for
    room, no queue borrows (YARN reserves containers instead, which a gang cannot use one by one); a user may
    always have one job, whatever the factor, or a wide job would never start.
    """
    return Capacity(
        user_limit=user_limit_factor,
        delay=micros(locality_delay * heartbeat),
        strict=discipline == "strict",
        preempt=preempt,
    )
