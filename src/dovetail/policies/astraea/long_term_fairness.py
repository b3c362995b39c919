"""Long-term GPU-time fairness (LTGF): received over deserved GPU-time since the arrival.

A tenant deserves its share of the cluster by weight at every moment, and a job an equal part of its tenant's
share, never more than it asks for. A deficit is kept: the tenant with the smallest LTGF goes first, and of
its jobs the one with the smallest (ASTRAEA, TPDS 2021).

Amounts are milli-GPUs, and milli-GPU-microseconds over time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from dovetail.mechanisms.fair.water_filling import water_filled


class Account(NamedTuple):
    """The GPU-time that a tenant or job received and deserved so far, and what it holds and deserves now."""

    had: float = 0.0
    due: float = 0.0
    holds: float = 0.0
    share: float = 0.0

    def after(self, time: int) -> Account:
        return Account(self.had + self.holds * time, self.due + self.share * time, self.holds, self.share)

    def fairness(self, time: int = 0, given: float = 0.0) -> float:
        """Received over deserved; with `time`, as it will be then if `given` milli-GPUs are held."""
        due = self.due + self.share * time
        return (self.had + given * time) / due if due > 0 else 1.0


class Request(NamedTuple):
    """A job, the milli-GPUs it asks for, and the GPU types it may run on."""

    id: str
    load: int
    kinds: tuple[str, ...]


Requests = Mapping[str, Sequence[Request]]  # by tenant


@dataclass(frozen=True, slots=True)
class Accounts:
    """The accounts of all tenants, and of the active jobs, at a moment."""

    at: int = 0
    tenants: Mapping[str, Account] = field(default_factory=dict)
    jobs: Mapping[str, Account] = field(default_factory=dict)


def accrued(accounts: Accounts, now: int) -> Accounts:
    """The accounts at a later time; holdings did not change since."""
    time = now - accounts.at
    if not time:
        return accounts
    return Accounts(
        now,
        {name: account.after(time) for name, account in accounts.tenants.items()},
        {name: account.after(time) for name, account in accounts.jobs.items()},
    )


def with_shares(
    accounts: Accounts,
    requests: Requests,
    amount: float,
    weights: Mapping[str, float],
    limits: Mapping[str, float],
) -> Accounts:
    """From now on the active jobs are those of `requests`, and they share `amount`; others are dropped."""
    wants = {
        tenant: min(sum(request.load for request in jobs), limits.get(tenant, float("inf")))
        for tenant, jobs in requests.items()
    }
    shares = water_filled(amount, wants, weights)
    tenants = {name: account._replace(share=0.0) for name, account in accounts.tenants.items()}
    jobs: dict[str, Account] = {}
    for tenant, mine in requests.items():
        tenants[tenant] = accounts.tenants.get(tenant, Account())._replace(share=shares[tenant])
        of_jobs = water_filled(shares[tenant], {request.id: request.load for request in mine}, {})
        for request in mine:
            jobs[request.id] = accounts.jobs.get(request.id, Account())._replace(share=of_jobs[request.id])
    return Accounts(accounts.at, tenants, jobs)


def with_holdings(accounts: Accounts, holds: Mapping[str, tuple[str, int]]) -> Accounts:
    """From now on these jobs hold this much: job -> (tenant, milli-GPUs)."""
    sums: dict[str, int] = {}
    for tenant, load in holds.values():
        sums[tenant] = sums.get(tenant, 0) + load
    tenants = {
        name: account._replace(holds=float(sums.get(name, 0))) for name, account in accounts.tenants.items()
    }
    jobs = {name: account._replace(holds=float(holds[name][1])) for name, account in accounts.jobs.items()}
    return Accounts(accounts.at, tenants, jobs)


def lease_order(
    accounts: Accounts,
    requests: Requests,
    room: Mapping[str, int],
    lease: int,
    given: Mapping[str, float] | None = None,
) -> list[str]:
    """All jobs in the order in which they get the next lease, with this much room by type.

    Again and again the tenant with the smallest LTGF gets its job with the smallest LTGF that still fits, and
    is charged for it at once: LTGF is that at the end of the lease. `given` is what tenants hold already.
    Jobs for which there is no room come last.
    """
    left = dict(room)
    used = dict(given or {})
    lines = {
        tenant: sorted(mine, key=lambda request: accounts.jobs[request.id].fairness(lease))
        for tenant, mine in requests.items()
    }
    heads = [(accounts.tenants[name].fairness(lease, used.get(name, 0.0)), name) for name in lines]
    heapify(heads)
    order: list[str] = []
    behind: list[tuple[float, str]] = []
    while heads:
        fairness, name = heappop(heads)
        line = lines[name]
        place, kind = next(
            (
                (i, kind)
                for i, request in enumerate(line)
                for kind in request.kinds
                if left.get(kind, 0) >= request.load
            ),
            (-1, ""),
        )
        if place < 0:
            behind.append((fairness, name))
            continue
        request = line.pop(place)
        left[kind] -= request.load
        used[name] = used.get(name, 0.0) + request.load
        order.append(request.id)
        if line:
            heappush(heads, (accounts.tenants[name].fairness(lease, used[name]), name))
    for _, name in sorted(behind):
        order += [request.id for request in lines[name]]
    return order
