"""Tickets: what owners may trade, and what each of their jobs gets of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dovetail.mechanisms.fair.water_filling import water_filled
from dovetail.model.view import JobView
from dovetail.policies.gandiva_fair.profiling import Speeds
from dovetail.policies.gandiva_fair.trade import Holding, after_trades, trades

Tickets = Mapping[str, Mapping[str, float]]  # owner -> GPU type -> milli-GPUs


def divided(tickets: Tickets, there: Mapping[tuple[str, str], Mapping[str, float]]) -> dict[str, float]:
    """The tickets of each job: those of its owner for a type, divided equally among its jobs there.

    `there` are the jobs by owner and type, each with its load: no job has more tickets than that.
    """
    found: dict[str, float] = {}
    for (owner, kind), loads in there.items():
        amount = tickets.get(owner, {}).get(kind, 0.0)
        if len(set(loads.values())) == 1:
            for id, load in loads.items():
                found[id] = min(amount / len(loads), load)
        else:
            found |= water_filled(amount, loads, {})
    return found


def traded(
    tickets: Tickets,
    kinds: Sequence[str],
    wants: Mapping[str, float],
    mine: Mapping[str, Sequence[JobView]],
    speeds: Mapping[str, Speeds],
) -> dict[str, dict[str, float]]:
    """Trade between each two types, the most unlike first, among owners of which all jobs can use both.

    The speeds of all their jobs on both must be known.
    """
    now = {owner: dict(theirs) for owner, theirs in tickets.items()}
    pairs = [(fast, slow) for i, fast in enumerate(kinds) for slow in reversed(kinds[i + 1 :])]
    for fast, slow in pairs:
        speedups: dict[str, float] = {}
        for owner, jobs in mine.items():
            known = [speeds[job.id] for job in jobs]
            if any(kind not in s.by_type or kind in s.unknown for s in known for kind in (fast, slow)):
                continue
            gains = sum(
                speeds[job.id].by_type[fast] / speeds[job.id].by_type[slow] * job.shape.load for job in jobs
            )
            speedups[owner] = gains / wants[owner]
        held = {owner: Holding(now[owner].get(fast, 0.0), now[owner].get(slow, 0.0)) for owner in speedups}
        beside = {owner: sum(now[owner].values()) - sum(held[owner]) for owner in held}
        made = trades(held, speedups, {owner: wants[owner] - beside[owner] for owner in held})
        for owner, (more, less) in after_trades(held, made).items():
            now[owner] |= {fast: more, slow: less}
    return now
