"""Gandiva_fair: tickets, and trade between GPU generations (Chaudhary et al., EuroSys 2020).

Everybody owns a share of each type of GPU by its tickets, and has it in turns of a quantum. What one is
entitled to it may trade: who gains little from fast GPUs lends them to who gains much, for more slow ones
than they are worth to it. Nobody ends below what it was entitled to, and the cluster does more work.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from dovetail.mechanisms.fair import tenant_of, user_of, water_filled
from dovetail.mechanisms.leases import (
    Seat,
    Tempo,
    fastest_first,
    filled,
    gathered,
    of_kinds,
    seat_for,
    seated,
    tempos,
)
from dovetail.mechanisms.order import arrival
from dovetail.mechanisms.rounds import capacity, kind_of, spared
from dovetail.mechanisms.stride import Passes, Tickets, Turn, advanced, in_turn, joined
from dovetail.mechanisms.trade import Holding, settled, trades
from dovetail.model.units import micros
from dovetail.model.view import JobView, Order, Plan, Policy, View

Speeds = Mapping[str, Tempo]  # by job


def gandiva_fair(
    *,
    quantum: float = 60.0,
    trade: bool = True,
    trade_every: float = 300.0,
    by: Literal["tenant", "user"] = "tenant",
) -> Policy:
    """Tickets, in turns of `quantum` seconds, and trade across GPU types.

    Tickets are the tenants' weights (`by="user"`: everybody has one). Each owner has its share of every type
    in proportion, in gang-aware turns, and divides it among its jobs alike. With `trade`, every `trade_every`
    seconds whoever gains least from a faster type lends it to who gains most, at the second-highest speed-up
    as price, as long as somebody gains. Speed-ups are those declared with the jobs, the mean over an owner's.
    """
    return GandivaFair(
        length=micros(quantum),
        trade=trade,
        trade_every=micros(trade_every),
        owner=tenant_of if by == "tenant" else user_of,
    )


@dataclass(frozen=True, slots=True)
class Memory:
    """What is kept between decisions."""

    ends_at: int = 0
    passes: Passes = field(default_factory=Passes)
    traded_at: int | None = None
    traded_by: frozenset[tuple[str, float]] = frozenset()  # the owners with their tickets, the types
    tickets: Tickets = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class GandivaFair:
    """Turns by tickets, and tickets that are traded."""

    length: int
    trade: bool
    trade_every: int
    owner: Callable[[JobView], str]
    order: Order = arrival
    group: Callable[[JobView], Hashable] | None = None
    quantum: int | None = None

    def decide(self, view: View) -> Plan:
        memory = view.memory if isinstance(view.memory, Memory) else Memory()
        passes = advanced(memory.passes, view.now)
        plan = view.draft()
        jobs = gathered(view, plan)
        speeds = tempos(view.cluster, jobs)
        mine: dict[str, list[JobView]] = {}
        for job in jobs:
            mine.setdefault(self.owner(job), []).append(job)
        over = view.now >= memory.ends_at
        if over:
            memory = self._dealt(view, replace(memory, ends_at=view.now + self.length), mine, speeds)
        ids = {owner: [job.id for job in theirs] for owner, theirs in mine.items()}
        passes = joined(passes, memory.tickets, ids)
        stay = [job for job in jobs if (spared(job, view.now) if over else job.spots is not None)]
        if over or len(view.queue):
            here = {job.id: kind_of(view.cluster, job) for job in jobs if job.spots is not None}
            picks = self._picked(view, passes, mine, stay, speeds, here, memory.ends_at - view.now)
            met = {seat.job.id for seat in picks} | {job.id for job in stay}
            rest = [seat_for(view.cluster, job, speeds[job.id]) for job in jobs if job.id not in met]
            if over:
                for seat in picks:
                    if seat.job.id in here and here[seat.job.id] not in seat.shape.types:
                        plan.stop(seat.job)
                seated(view, plan, [*(Seat(job, job.shape) for job in stay), *picks, *rest])
            else:
                filled(plan, [*picks, *rest])
        turns = {
            job.id: Turn(self.owner(job), kind_of(view.cluster, job), job.held)
            for job in jobs
            if job.spots is not None
        }
        plan.memory = replace(memory, passes=replace(passes, turns=turns))
        moves = len(view.queue) or (len(mine) > 1 and len(view.cluster.types) > 1)
        plan.review_at = memory.ends_at if moves and view.running else None
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
    ) -> list[Seat]:
        """Who is next on each type, the fastest type first."""
        room = capacity(view.cluster, view.room)
        for job in stay:
            room[here[job.id]] = room.get(here[job.id], 0) - job.held
        gone = {job.id for job in stay}
        jobs = {job.id: job for theirs in mine.values() for job in theirs}
        picks: list[Seat] = []
        for kind in fastest_first(speeds, room):
            lines: dict[str, list[tuple[str, int]]] = {}
            for owner, theirs in mine.items():
                able = [job for job in theirs if job.id not in gone and kind in speeds[job.id]]
                # Who has had least, then who is there already, then who gains most by the type.
                able.sort(
                    key=lambda job: (
                        passes.jobs[job.id],
                        here.get(job.id) != kind,
                        -speeds[job.id][kind] / sum(speeds[job.id].values()),
                        job.seq,
                    )
                )
                lines[owner] = [(job.id, job.shape.load) for job in able]
            for id in in_turn(passes, kind, lines, room[kind], length):
                gone.add(id)
                picks.append(Seat(jobs[id], of_kinds(jobs[id].shape, (kind,))))
        return picks

    def _dealt(
        self, view: View, memory: Memory, mine: Mapping[str, Sequence[JobView]], speeds: Speeds
    ) -> Memory:
        """Everybody's share of each type by its tickets and its wants, and what comes of it by trade."""
        room = capacity(view.cluster, view.room)
        weights = {t.name: t.weight for t in view.cluster.tenants.values()} if self.owner is tenant_of else {}
        whom = frozenset([*((owner, weights.get(owner, 1.0)) for owner in mine), *room.items()])
        fresh = memory.traded_at is not None and view.now < memory.traded_at + self.trade_every
        if fresh and whom == memory.traded_by:
            return memory
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
        return replace(memory, tickets=tickets, traded_at=view.now, traded_by=whom)


def _traded(
    tickets: Mapping[str, Mapping[str, float]],
    kinds: Sequence[str],
    wants: Mapping[str, float],
    mine: Mapping[str, Sequence[JobView]],
    speeds: Speeds,
) -> dict[str, dict[str, float]]:
    """Trade between each two types, the most unlike first. Who has a job that cannot use both stays out."""
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
        for owner, (more, less) in settled(held, made).items():
            now[owner] |= {fast: more, slow: less}
    return now
