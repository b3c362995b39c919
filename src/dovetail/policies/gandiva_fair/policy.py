"""Gandiva_fair: tickets, and trade between GPU generations (Chaudhary et al., EuroSys 2020).

Each tenant owns a share of every GPU type by its tickets, and gets it by stride scheduling in quanta. It may
trade its share: a tenant that gains little from fast GPUs lends them to one that gains much, for more slow
GPUs than they are worth to it. No tenant ends below what it was entitled to, and the cluster does more work.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from dovetail.mechanisms.fair.dominant_share import tenant_of, user_of
from dovetail.mechanisms.fair.water_filling import water_filled
from dovetail.mechanisms.order.keys import arrival
from dovetail.mechanisms.place.gpu_types import held_type, load_by_type, of_types
from dovetail.mechanisms.rounds.active_jobs import gpu_jobs, start_cpu_jobs
from dovetail.mechanisms.rounds.leases import (
    LeaseRequest,
    SpeedByType,
    fastest_first,
    grant_leases,
    request_for,
    speeds_of,
    staying,
)
from dovetail.model.units import micros
from dovetail.model.view import JobView, Order, Plan, Policy, View
from dovetail.policies.gandiva_fair.stride import (
    Passes,
    RunningJob,
    Tickets,
    charged,
    next_quantum,
    with_tickets,
)
from dovetail.policies.gandiva_fair.trade import Holding, after_trades, trades

Speeds = Mapping[str, SpeedByType]  # by job


def gandiva_fair(
    *,
    quantum: float = 60.0,
    trade: bool = True,
    trade_every: float = 300.0,
    by: Literal["tenant", "user"] = "tenant",
) -> Policy:
    """Stride scheduling by tickets in quanta of `quantum` seconds, and trade across GPU types.

    Tickets are the tenants' weights (`by="user"`: each user has one ticket). Each owner gets its share of
    every type in proportion to its tickets, gang-aware, and divides it equally among its jobs. With `trade`,
    every `trade_every` seconds the owner that gains least from a faster type lends it to the one that gains
    most, at the second-highest speed-up as price, as long as both gain. Speed-ups are those declared with the
    jobs, the mean over an owner's jobs.
    """
    return GandivaFair(
        length=micros(quantum),
        trade=trade,
        trade_every=micros(trade_every),
        owner=tenant_of if by == "tenant" else user_of,
    )


@dataclass(frozen=True, slots=True)
class TicketState:
    """What is kept between decisions: the end of the quantum, the passes, and the traded tickets."""

    ends_at: int = 0
    passes: Passes = field(default_factory=Passes)
    traded_at: int | None = None
    traded_for: frozenset[tuple[str, float]] = frozenset()  # the owners and types of the last trade
    tickets: Tickets = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class GandivaFair:
    """Quanta by tickets, and tickets that are traded."""

    length: int
    trade: bool
    trade_every: int
    owner: Callable[[JobView], str]
    order: Order = arrival
    group: Callable[[JobView], Hashable] | None = None
    quantum: int | None = None

    def decide(self, view: View) -> Plan:
        state = view.memory if isinstance(view.memory, TicketState) else TicketState()
        passes = charged(state.passes, view.now)
        plan = view.draft()
        start_cpu_jobs(view, plan)
        jobs = gpu_jobs(view)
        speeds = speeds_of(view, jobs)
        mine: dict[str, list[JobView]] = {}
        for job in jobs:
            mine.setdefault(self.owner(job), []).append(job)
        over = view.now >= state.ends_at
        if over:
            state = self._with_tickets(view, replace(state, ends_at=view.now + self.length), mine, speeds)
        ids = {owner: [job.id for job in theirs] for owner, theirs in mine.items()}
        passes = with_tickets(passes, state.tickets, ids)
        stay = staying(jobs, view.now, lease_over=over)
        if over or len(view.queue):
            here = {job.id: held_type(view.cluster, job) for job in jobs if job.spots is not None}
            picks = self._picked(view, passes, mine, stay, speeds, here, state.ends_at - view.now)
            met = {pick.job.id for pick in picks} | {job.id for job in stay}
            rest = [request_for(view.cluster, job, speeds[job.id]) for job in jobs if job.id not in met]
            for pick in picks if over else ():
                if pick.job.id in here and here[pick.job.id] not in pick.shape.types:
                    plan.stop(pick.job)
            grant_leases(view, plan, stay, [*picks, *rest], lease_over=over)
        running = {
            job.id: RunningJob(self.owner(job), held_type(view.cluster, job), job.held)
            for job in jobs
            if job.spots is not None
        }
        plan.memory = replace(state, passes=replace(passes, running=running))
        moves = len(view.queue) or (len(mine) > 1 and len(view.cluster.types) > 1)
        plan.review_at = state.ends_at if moves and view.running else None
        return plan

    def _picked(
        self,
        view: View,
        passes: Passes,
        mine: Mapping[str, Sequence[JobView]],
        stay: Sequence[JobView],
        speeds: Speeds,
        here: Mapping[str, str],
        length: int,
    ) -> list[LeaseRequest]:
        """The jobs that run next on each type, the fastest type first."""
        room = load_by_type(view.cluster, view.room)
        for job in stay:
            room[here[job.id]] = room.get(here[job.id], 0) - job.held
        gone = {job.id for job in stay}
        jobs = {job.id: job for theirs in mine.values() for job in theirs}
        picks: list[LeaseRequest] = []
        for kind in fastest_first(speeds, room):
            lines: dict[str, list[tuple[str, int]]] = {}
            for owner, theirs in mine.items():
                able = [job for job in theirs if job.id not in gone and kind in speeds[job.id]]
                # The least service received, then jobs that hold this type, then the largest gain by it.
                able.sort(
                    key=lambda job: (
                        passes.jobs[job.id],
                        here.get(job.id) != kind,
                        -speeds[job.id][kind] / sum(speeds[job.id].values()),
                        job.seq,
                    )
                )
                lines[owner] = [(job.id, job.shape.load) for job in able]
            for id in next_quantum(passes, kind, lines, room[kind], length):
                gone.add(id)
                picks.append(LeaseRequest(jobs[id], of_types(jobs[id].shape, (kind,))))
        return picks

    def _with_tickets(
        self, view: View, state: TicketState, mine: Mapping[str, Sequence[JobView]], speeds: Speeds
    ) -> TicketState:
        """Tickets of each type by weight and demand, and after trade."""
        room = load_by_type(view.cluster, view.room)
        weights = {t.name: t.weight for t in view.cluster.tenants.values()} if self.owner is tenant_of else {}
        basis = frozenset([*((owner, weights.get(owner, 1.0)) for owner in mine), *room.items()])
        fresh = state.traded_at is not None and view.now < state.traded_at + self.trade_every
        if fresh and basis == state.traded_for:
            return state
        wants = {owner: float(sum(job.shape.load for job in theirs)) for owner, theirs in mine.items()}
        total = sum(room.values())
        shares = water_filled(total, wants, weights)
        usable = {
            owner: {kind for job in theirs for kind in speeds[job.id]} for owner, theirs in mine.items()
        }
        tickets = {
            owner: {kind: share * room[kind] / total for kind in room if kind in usable[owner]}
            for owner, share in shares.items()
        }
        if self.trade and len(room) > 1:
            tickets = _traded(tickets, fastest_first(speeds, room), wants, mine, speeds)
        return replace(state, tickets=tickets, traded_at=view.now, traded_for=basis)


def _traded(
    tickets: Mapping[str, Mapping[str, float]],
    kinds: Sequence[str],
    wants: Mapping[str, float],
    mine: Mapping[str, Sequence[JobView]],
    speeds: Speeds,
) -> dict[str, dict[str, float]]:
    """Trade between each two types, the most unlike first, among owners of which all jobs can use both."""
    now = {owner: dict(theirs) for owner, theirs in tickets.items()}
    pairs = [(fast, slow) for i, fast in enumerate(kinds) for slow in reversed(kinds[i + 1 :])]
    for fast, slow in pairs:
        speedups: dict[str, float] = {}
        for owner, jobs in mine.items():
            if all(fast in speeds[job.id] and slow in speeds[job.id] for job in jobs):
                gains = sum(speeds[job.id][fast] / speeds[job.id][slow] * job.shape.load for job in jobs)
                speedups[owner] = gains / wants[owner]
        held = {owner: Holding(now[owner].get(fast, 0.0), now[owner].get(slow, 0.0)) for owner in speedups}
        beside = {owner: sum(now[owner].values()) - sum(held[owner]) for owner in held}
        made = trades(held, speedups, {owner: wants[owner] - beside[owner] for owner in held})
        for owner, (more, less) in after_trades(held, made).items():
            now[owner] |= {fast: more, slow: less}
    return now
