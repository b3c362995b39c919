"""The policy of a new plane: priorities that age, quotas, preemption, and a promise to the first in line.

It is made for users who give no estimates and for jobs of every size. Four rules:

1. **Order.** By priority, then by arrival. An hour of waiting is worth `aging` steps of priority, so that no
   stream of urgent jobs keeps a job waiting for ever. If tenants have quotas, jobs within them go first.
2. **Backfill.** Jobs that fit start, in this order. The first job without room is promised a start, and so
   is the first job beyond each quota. A job behind starts only if it delays none of them
   (`mechanisms.queue.promises`, which states the bound).
3. **Quotas.** A tenant has what its quota says and may borrow what others under the same parent leave
   unused. A job within its quota evicts borrowers.
4. **Preemption.** A job evicts jobs of its own tenant with a lower priority, unless they had waited so long
   before their start that they went before it.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from dovetail.mechanisms.order.keys import by_priority
from dovetail.mechanisms.preempt.reclaim import latest_first, reclaim
from dovetail.mechanisms.queue.promises import Guard, Promise, promise_of_quota, promise_of_room
from dovetail.mechanisms.queue.reserved_backfill import needed
from dovetail.mechanisms.quota.tenant_quota import NO_LIMIT, nominal
from dovetail.model.cluster import Cluster
from dovetail.model.grant import Spots
from dovetail.model.job import Shape
from dovetail.model.units import WHOLE
from dovetail.model.view import JobView, Key, Order, Plan, Policy, View


class Promised(NamedTuple):
    """What is kept between decisions."""

    promises: tuple[Promise, ...]


def _alike(job: JobView) -> tuple[str, int, int, int]:
    """If the first waiting job of a shape and group cannot start, the others are not tried.

    Their durations are equal to one part in sixteen. A promise may keep out the longer ones only.
    """
    time = job.remaining_at(0)
    size = max(time.bit_length() - 5, 0)
    return job.tenant, job.priority, size, time >> size


@dataclass(frozen=True, slots=True, kw_only=True)
class PromisedQueue:
    """Start in order, evict by quota and priority, and keep the promises to jobs that wait."""

    order: Order
    ages: bool
    reclaims: bool
    preempts: bool
    group: Callable[[JobView], Hashable] = _alike
    quantum: int | None = None

    def decide(self, view: View) -> Plan:
        plan = view.draft()
        _Decision(self, view, plan).run()
        return plan


class _Decision:
    def __init__(self, policy: PromisedQueue, view: View, plan: Plan) -> None:
        self.policy, self.view, self.plan = policy, view, plan
        self.quota = nominal(view.cluster)
        self.most = most_of(view.cluster, self.quota)
        self.guaranteed = {
            tenant.name for tenant in view.cluster.tenants.values() if tenant.quota is not None
        }
        kept = view.memory.promises if isinstance(view.memory, Promised) else ()
        self.before = {promise.job: promise for promise in kept}
        self.guards: list[Guard] = []
        self.full: set[Shape] = set()  # shapes without room
        self.kept_out: dict[Shape, int] = {}  # shapes that promises keep out, if they run for this long
        self.held: dict[str, list[tuple[Key, int, int]]] = {}  # by tenant: (key, seq, milli-GPUs) in order
        self.beyond: dict[str, tuple[Key, int, int]] = {}  # by tenant: its first job that waits for its quota
        self.lowest: dict[str, int] = {}  # the lowest priority of a tenant's running jobs
        self.evicted: set[str] = set()  # they start again in a later decision: a stop takes time

    def run(self) -> None:
        while self._serve():
            pass
        kept = tuple(guard.kept() for guard in self.guards)
        self.plan.memory = Promised(kept) if kept else None

    def _serve_again(self, job: JobView) -> bool:
        """Jobs were evicted for this one: begin anew, with the promises as they are now."""
        for guard in self.guards:
            guard.started(job)
            self.before[guard.job.id] = guard.kept()
        return True

    def _serve(self) -> bool:
        """One walk along the queue; whether jobs were evicted, so that the order is another now."""
        plan = self.plan
        self.guards, self.full, self.kept_out = [], set(), {}
        self.lowest = {}
        for other in self.view.running.values():
            if other.traits.preemptible:
                self.lowest[other.tenant] = min(self.lowest.get(other.tenant, other.priority), other.priority)
        waits_for_room: JobView | None = None
        short: set[str] = set()  # tenants with a job that waits for quota
        for job in self._line():
            if over := self._over(job, plan.used):
                if job.id not in self.evicted and self._evict_for(job):
                    return self._serve_again(job)
                plan.deny(job, "AssocGrpGRES", f"too little is left of the quota of {over}")
                if over not in short:
                    short.add(over)
                    self._promise_quota(job)
                continue
            if keeper := next((guard for guard in self.guards if not guard.within_quota(job)), None):
                plan.deny(job, "AssocGrpGRES", "the quota is kept for a job before it", keeper.job)
                continue
            evicted = job.id in self.evicted
            spots = None if evicted else self._find(job)
            if spots is not None:
                if plan.start(job, spots):
                    for guard in self.guards:
                        guard.started(job)
                    if self.guaranteed:
                        self._count(job)
                continue
            if not evicted and self._evict_for(job):
                return self._serve_again(job)
            if waits_for_room is None:
                if self._promise(job, promise_of_room(self.view, plan, job)):
                    waits_for_room = job
                    plan.deny(job, "Resources")
                else:
                    plan.deny(job, "ReqNodeNotAvail", "the nodes it needs are not available")
            elif job.shape in self.full:
                plan.deny(job, "Resources")
            else:
                plan.deny(job, "Priority", "starting it now would delay a job before it", waits_for_room)
        return False

    # -- the order

    def _line(self) -> Iterator[JobView]:
        """Waiting jobs in order; if tenants have quotas, jobs within them first."""
        if not self.guaranteed:
            return self.view.queue.walk()
        self.held = {}
        for other in self.view.running.values():
            self._count(other)
        self.beyond, queue = {}, self.view.queue
        for shape in queue.shapes():
            for heap in queue.groups(shape).values():
                self._borrows(heap[0][2])
        return queue.walk(rank=self._borrows)

    def _count(self, job: JobView) -> None:
        entry = (self.policy.order.key(job, self.view.now), job.seq, job.held)
        insort(self.held.setdefault(job.tenant, []), entry)

    def _borrows(self, job: JobView) -> bool:
        """Whether a job would not be within the quota of its tenant.

        A quota goes to the jobs of a tenant in their order. Running jobs that overtook this one do not count,
        and a job behind one that waits for the quota does not get it first.
        """
        tenant, load = job.tenant, job.shape.load
        if tenant not in self.guaranteed:
            return True
        mine = (self.policy.order.key(job, self.view.now), job.seq, 0)
        before = sum(held for key, seq, held in self.held.get(tenant, ()) if (key, seq, 0) < mine)
        if before + load > self.quota[tenant]:
            if load <= self.quota[tenant] and mine < self.beyond.get(tenant, (*mine[:2], 1)):
                self.beyond[tenant] = mine
            return True
        return tenant in self.beyond and self.beyond[tenant] < mine

    # -- room and quota

    def _over(self, job: JobView, used: Mapping[str, int]) -> str | None:
        """The tenant at which a job is beyond a quota or a limit."""
        load = job.shape.load
        for name in self.view.cluster.line(job.tenant) if self.most else ():
            if used.get(name, 0) + load > self.most.get(name, NO_LIMIT):
                return name
        return None

    def _find(self, job: JobView) -> Spots | None:
        """A place for a job that breaks no promise."""
        shape, room = job.shape, self.plan.room
        time = needed(job, self.view.now)
        if shape in self.full or time >= self.kept_out.get(shape, time + 1):
            return None
        avoid = 0
        while (spots := room.anywhere(shape, avoid)) is not None:
            full = 0
            for guard in self.guards:
                full |= guard.full_nodes(job, spots)
            if not full:
                return spots
            avoid |= full
        if avoid:
            self.kept_out[shape] = time
        else:
            self.full.add(shape)
        return None

    def _promise_quota(self, job: JobView) -> bool:
        return self._promise(
            job, promise_of_quota(self.view, self.plan, job, lambda used: self._over(job, used) is not None)
        )

    def _promise(self, job: JobView, fresh: Promise | None) -> bool:
        """Keep the promise from before, unless the new one is earlier or the old one cannot be kept."""
        if fresh is None:
            return False
        line = self.view.cluster.line(job.tenant) if self.most else ()
        most = {name: self.most[name] for name in line if name in self.most}
        guard = Guard(self.view, self.plan, job, fresh, most)
        before = self.before.get(job.id)
        if before is not None and before.start <= fresh.start and bool(before.places) == bool(fresh.places):
            earlier = Guard(self.view, self.plan, job, before, most)
            guard = earlier if earlier.feasible() else guard
        self.guards.append(guard)
        return True

    # -- eviction

    def _evict_for(self, job: JobView) -> bool:
        """Evict borrowers of this job's quota, or jobs of its tenant with a lower priority, and start it."""
        plan, mine, cluster = self.plan, job.tenant, self.view.cluster
        within = mine in self.guaranteed and plan.used.get(mine, 0) + job.shape.load <= self.quota[mine]
        reclaims = self.policy.reclaims and within
        preempts = self.policy.preempts and self.lowest.get(mine, job.priority) < job.priority
        if not reclaims and not preempts:
            return False
        cohort = set(cluster.line(mine)[1:])

        def may_leave(other: JobView) -> bool:
            if other.tenant == mine:
                return preempts and other.priority < job.priority and self._goes_before(job, other)
            if not reclaims or cohort.isdisjoint(cluster.line(other.tenant)[1:]):
                return False
            return plan.used.get(other.tenant, 0) > self.quota.get(other.tenant, 0)

        def fits() -> bool:
            self.full.discard(job.shape)
            self.kept_out.pop(job.shape, None)
            return self._over(job, plan.used) is None and self._find(job) is not None

        others = [other for other in self.view.running.values() if may_leave(other)]
        if not others:
            return False
        others.sort(key=lambda other: (other.tenant == mine, *latest_first(other)))
        gone = reclaim(plan, job, others, may_leave, fits)
        self.evicted.update(other.id for other in gone)
        self.full.discard(job.shape)
        self.kept_out.pop(job.shape, None)
        return bool(gone) and plan.start(job, self._find(job))

    def _goes_before(self, job: JobView, other: JobView) -> bool:
        """Whether a waiting job goes before a running one, which does not age while it runs."""
        if not self.policy.ages:
            return True
        key, now = self.policy.order.key, self.view.now
        return bool(key(job, now)[0] < key(other, now)[0] + now - other.started_at)


def most_of(cluster: Cluster, quota: Mapping[str, int]) -> dict[str, int]:
    """How many milli-GPUs each tenant may hold, with what it may borrow; those without a bound are left out.

    A tenant borrows from those under the same parent, up to the quota of the parent's whole subtree.
    """
    most: dict[str, int] = {}
    parents = {tenant.parent for tenant in cluster.tenants.values()}
    for tenant in cluster.tenants.values():
        bound = NO_LIMIT
        if tenant.quota is not None or tenant.name in parents:
            bound = quota[tenant.name]
        if tenant.parent in cluster.tenants:
            bound = NO_LIMIT if tenant.borrow is None else quota[tenant.name] + tenant.borrow * WHOLE
        if tenant.limit is not None:
            bound = min(bound, tenant.limit * WHOLE)
        if bound < NO_LIMIT:
            most[tenant.name] = bound
    return most


def dovetail(*, aging: float = 5.0, reclaim: bool = True, preempt: bool = True) -> Policy:
    """Priorities that age, quotas with borrowing, preemption, and a start promised to the first in line.

    An hour of waiting is worth `aging` steps of priority (0: none). `reclaim` evicts borrowers when the owner
    needs its quota; `preempt` evicts jobs of the same tenant with a lower priority.
    """
    order = by_priority(larger_first=True, aging=aging)
    return PromisedQueue(order=Order(order.key), ages=aging > 0.0, reclaims=reclaim, preempts=preempt)
