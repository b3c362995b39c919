"""ASTRAEA: long-term fairness in GPU-time for tenants, and inside them for jobs (Ye et al., TPDS 2021).

With gangs fairness at every moment is impossible: eight GPUs are free together or they are not. So fairness
is kept in the long run: the tenant and job that received the smallest part of what they deserved since their
arrival get the next lease.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from dovetail.mechanisms.order.keys import arrival
from dovetail.mechanisms.place.gpu_types import held_type, load_by_type
from dovetail.mechanisms.rounds.active_jobs import gpu_jobs, start_cpu_jobs
from dovetail.mechanisms.rounds.leases import SpeedByType, grant_leases, request_for, speeds_of, staying
from dovetail.model.units import WHOLE, micros
from dovetail.model.view import JobView, Order, Plan, Policy, View
from dovetail.policies.astraea.long_term_fairness import (
    Accounts,
    Request,
    Requests,
    accrued,
    lease_order,
    with_holdings,
    with_shares,
)


def astraea(*, lease: float = 600.0) -> Policy:
    """Long-term GPU-time fairness: received over deserved, for tenants by weight, and for their jobs.

    Every `lease` seconds the tenant with the smallest part of what it deserved since its arrival starts its
    job with the smallest part, again and again; a job that is picked again goes on where it is. Devices that
    fall free during a lease go to the next job in line until the lease ends. Lease [from memory]: the paper's
    is 10 to 20 minutes.
    """
    return Astraea(lease=micros(lease))


@dataclass(frozen=True, slots=True)
class LeaseAccounts:
    """What is kept between decisions: the end of the lease, and what each tenant and job received."""

    ends_at: int = 0
    accounts: Accounts = field(default_factory=Accounts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Astraea:
    """Leases to the jobs that received the smallest part of what they deserved."""

    lease: int
    order: Order = arrival
    group: Callable[[JobView], Hashable] | None = None
    quantum: int | None = None

    def decide(self, view: View) -> Plan:
        memory = view.memory if isinstance(view.memory, LeaseAccounts) else LeaseAccounts()
        plan = view.draft()
        start_cpu_jobs(view, plan)
        jobs = gpu_jobs(view)
        speeds = speeds_of(view, jobs)
        over = view.now >= memory.ends_at
        ends_at = view.now + self.lease if over else memory.ends_at
        accounts = self._with_shares(view, accrued(memory.accounts, view.now), _requests(jobs, speeds))
        stay = staying(jobs, view.now, lease_over=over)
        if over or len(view.queue):
            line = self._line(view, accounts, jobs, stay, speeds, ends_at - view.now)
            requests = [request_for(view.cluster, job, speeds[job.id]) for job in line]
            grant_leases(view, plan, stay, requests, lease_over=over)
        held = {job.id: (job.tenant, job.held) for job in jobs}
        plan.memory = LeaseAccounts(ends_at, with_holdings(accounts, held))
        plan.review_at = ends_at if len(view.queue) and view.running else None
        return plan

    def _line(
        self,
        view: View,
        accounts: Accounts,
        jobs: Sequence[JobView],
        stay: Sequence[JobView],
        speeds: Mapping[str, SpeedByType],
        lease: int,
    ) -> list[JobView]:
        """The other jobs, in the order in which they get a lease beside the jobs that stay."""
        room = load_by_type(view.cluster, view.room)
        given: dict[str, float] = {}
        for job in stay:
            kind = held_type(view.cluster, job)
            room[kind] = room.get(kind, 0) - job.held
            given[job.tenant] = given.get(job.tenant, 0.0) + job.held
        kept = {job.id for job in stay}
        others = {job.id: job for job in jobs if job.id not in kept}
        order = lease_order(accounts, _requests(others.values(), speeds), room, lease, given)
        return [others[id] for id in order]

    def _with_shares(self, view: View, accounts: Accounts, requests: Requests) -> Accounts:
        tenants = view.cluster.tenants.values()
        amount = sum(load_by_type(view.cluster, view.room).values())
        limits = {t.name: t.limit * WHOLE for t in tenants if t.limit is not None}
        return with_shares(accounts, requests, amount, {t.name: t.weight for t in tenants}, limits)


def _requests(jobs: Iterable[JobView], speeds: Mapping[str, SpeedByType]) -> Requests:
    found: dict[str, list[Request]] = {}
    for job in jobs:
        found.setdefault(job.tenant, []).append(Request(job.id, job.shape.load, tuple(speeds[job.id])))
    return found
