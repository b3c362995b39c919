"""Long-term GPU-time fairness: what somebody has had of what it deserved since it came.

Everybody deserves its share of the cluster at every moment: a tenant by its weight, a job an equal part of
its tenant's, and nobody more than it asks for. What is missed today counts tomorrow: who has had the smallest
part of what it deserved goes first, tenants before jobs (ASTRAEA, TPDS 2021).

Amounts are milli-GPUs, and milli-GPU-microseconds over time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from dovetail.mechanisms.fair import water_filled


class Account(NamedTuple):
    """What somebody has had and deserved so far, what it holds now, and what it deserves now."""

    had: float = 0.0
    due: float = 0.0
    holds: float = 0.0
    share: float = 0.0

    def after(self, time: int) -> Account:
        return Account(self.had + self.holds * time, self.due + self.share * time, self.holds, self.share)

    def ltgf(self, time: int = 0, given: float = 0.0) -> float:
        """Had over deserved; as it will be after `time` with so many milli-GPUs, if that is said."""
        due = self.due + self.share * time
        return (self.had + given * time) / due if due > 0 else 1.0


class Wish(NamedTuple):
    """A job, what it asks for, and on which types it may be."""

    id: str
    load: int
    kinds: tuple[str, ...]


Wishes = Mapping[str, Sequence[Wish]]  # by tenant


@dataclass(frozen=True, slots=True)
class Ledger:
    """The accounts of tenants, and of the jobs that are there."""

    at: int = 0
    tenants: Mapping[str, Account] = field(default_factory=dict)
    jobs: Mapping[str, Account] = field(default_factory=dict)


def accrued(ledger: Ledger, now: int) -> Ledger:
    """The same accounts, later: nothing has changed hands since."""
    time = now - ledger.at
    if not time:
        return ledger
    return Ledger(
        now,
        {name: account.after(time) for name, account in ledger.tenants.items()},
        {name: account.after(time) for name, account in ledger.jobs.items()},
    )


def dealt(
    ledger: Ledger, wishes: Wishes, amount: float, weights: Mapping[str, float], limits: Mapping[str, float]
) -> Ledger:
    """From now on these are the jobs, and they share so much; jobs that are gone are struck out."""
    wants = {
        tenant: min(sum(wish.load for wish in jobs), limits.get(tenant, float("inf")))
        for tenant, jobs in wishes.items()
    }
    shares = water_filled(amount, wants, weights)
    tenants = {name: account._replace(share=0.0) for name, account in ledger.tenants.items()}
    jobs: dict[str, Account] = {}
    for tenant, mine in wishes.items():
        tenants[tenant] = ledger.tenants.get(tenant, Account())._replace(share=shares[tenant])
        parts = water_filled(shares[tenant], {wish.id: wish.load for wish in mine}, {})
        for wish in mine:
            jobs[wish.id] = ledger.jobs.get(wish.id, Account())._replace(share=parts[wish.id])
    return Ledger(ledger.at, tenants, jobs)


def held(ledger: Ledger, holds: Mapping[str, tuple[str, int]]) -> Ledger:
    """From now on these hold so much: job -> (tenant, milli-GPUs)."""
    sums: dict[str, int] = {}
    for tenant, load in holds.values():
        sums[tenant] = sums.get(tenant, 0) + load
    tenants = {
        name: account._replace(holds=float(sums.get(name, 0))) for name, account in ledger.tenants.items()
    }
    jobs = {name: account._replace(holds=float(holds[name][1])) for name, account in ledger.jobs.items()}
    return Ledger(ledger.at, tenants, jobs)


def in_turn(
    ledger: Ledger,
    wishes: Wishes,
    room: Mapping[str, int],
    lease: int,
    given: Mapping[str, float] | None = None,
) -> list[str]:
    """All jobs in the order in which they get the next lease, as long as there is room by type.

    Again and again the tenant with the smallest LTGF gets its job with the smallest that still fits, and is
    charged for it at once: LTGF is that at the end of the lease. `given` is held already, whatever the order.
    Whoever finds no room comes after all who do.
    """
    left = dict(room)
    used = dict(given or {})
    lines = {
        tenant: sorted(mine, key=lambda wish: ledger.jobs[wish.id].ltgf(lease))
        for tenant, mine in wishes.items()
    }
    heads = [(ledger.tenants[name].ltgf(lease, used.get(name, 0.0)), name) for name in lines]
    heapify(heads)
    order: list[str] = []
    behind: list[tuple[float, str]] = []
    while heads:
        ltgf, name = heappop(heads)
        line = lines[name]
        place, kind = next(
            (
                (i, kind)
                for i, wish in enumerate(line)
                for kind in wish.kinds
                if left.get(kind, 0) >= wish.load
            ),
            (-1, ""),
        )
        if place < 0:
            behind.append((ltgf, name))
            continue
        wish = line.pop(place)
        left[kind] -= wish.load
        used[name] = used.get(name, 0.0) + wish.load
        order.append(wish.id)
        if line:
            heappush(heads, (ledger.tenants[name].ltgf(lease, used[name]), name))
    for _, name in sorted(behind):
        order += [wish.id for wish in lines[name]]
    return order
