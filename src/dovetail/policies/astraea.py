"""ASTRAEA: tenants, and inside them jobs, are owed GPU-time (Ye et al., TPDS 2021).

Fair at every moment is not to be had with gangs: eight GPUs are free together or they are not. So fairness is
kept in the long run: whoever has had the smallest part of what it deserved since it came gets the next lease.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from dovetail.mechanisms.leases import Seat, Tempo, filled, gathered, seat_for, seated, tempos
from dovetail.mechanisms.ltgf import Ledger, Wish, Wishes, accrued, dealt, held, in_turn
from dovetail.mechanisms.order import arrival
from dovetail.mechanisms.rounds import capacity, kind_of, spared
from dovetail.model.units import WHOLE, micros
from dovetail.model.view import JobView, Order, Plan, Policy, View


def astraea(*, lease: float = 600.0) -> Policy:
    """Long-term GPU-time fairness: had over deserved, for tenants by weight and inside them for jobs alike.

    Every `lease` seconds the tenant with the smallest part of what it deserved since it came starts its job
    with the smallest part, again and again; who is picked again goes on where it is. Devices that fall free
    between go to the next in line until the lease ends. Lease [from memory]: the paper's is 10 to 20 minutes.
    """
    return Astraea(lease=micros(lease))


@dataclass(frozen=True, slots=True)
class Memory:
    """What is kept between decisions."""

    ends_at: int = 0
    ledger: Ledger = field(default_factory=Ledger)


@dataclass(frozen=True, slots=True, kw_only=True)
class Astraea:
    """Leases to those who have had least of what they deserved."""

    lease: int
    order: Order = arrival
    group: Callable[[JobView], Hashable] | None = None
    quantum: int | None = None

    def decide(self, view: View) -> Plan:
        memory = view.memory if isinstance(view.memory, Memory) else Memory()
        plan = view.draft()
        jobs = gathered(view, plan)
        tempo = tempos(view.cluster, jobs)
        over = view.now >= memory.ends_at
        ends_at = view.now + self.lease if over else memory.ends_at
        ledger = self._dealt(view, accrued(memory.ledger, view.now), _wishes(jobs, tempo))
        stay = [job for job in jobs if (spared(job, view.now) if over else job.spots is not None)]
        if over or len(view.queue):
            line = self._line(view, ledger, jobs, stay, tempo, ends_at - view.now)
            seats = [seat_for(view.cluster, job, tempo[job.id]) for job in line]
            if over:
                seated(view, plan, [*(Seat(job, job.shape) for job in stay), *seats])
            else:
                filled(plan, seats)
        plan.memory = Memory(ends_at, held(ledger, {job.id: (job.tenant, job.held) for job in jobs}))
        plan.review_at = ends_at if len(view.queue) and view.running else None
        return plan

    def _line(
        self,
        view: View,
        ledger: Ledger,
        jobs: Sequence[JobView],
        stay: Sequence[JobView],
        tempo: Mapping[str, Tempo],
        lease: int,
    ) -> list[JobView]:
        """Everybody else, beside those who stay where they are."""
        room = capacity(view.cluster, view.room)
        given: dict[str, float] = {}
        for job in stay:
            kind = kind_of(view.cluster, job)
            room[kind] = room.get(kind, 0) - job.held
            given[job.tenant] = given.get(job.tenant, 0.0) + job.held
        kept = {job.id for job in stay}
        others = {job.id: job for job in jobs if job.id not in kept}
        return [others[id] for id in in_turn(ledger, _wishes(others.values(), tempo), room, lease, given)]

    def _dealt(self, view: View, ledger: Ledger, wishes: Wishes) -> Ledger:
        tenants = view.cluster.tenants.values()
        amount = sum(capacity(view.cluster, view.room).values())
        limits = {t.name: t.limit * WHOLE for t in tenants if t.limit is not None}
        return dealt(ledger, wishes, amount, {t.name: t.weight for t in tenants}, limits)


def _wishes(jobs: Iterable[JobView], tempo: Mapping[str, Tempo]) -> Wishes:
    found: dict[str, list[Wish]] = {}
    for job in jobs:
        found.setdefault(job.tenant, []).append(Wish(job.id, job.shape.load, tuple(tempo[job.id])))
    return found
