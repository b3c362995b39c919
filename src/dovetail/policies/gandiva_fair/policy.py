"""Gandiva_fair: tickets, and trade between GPU generations (Chaudhary et al., EuroSys 2020).

Each tenant owns a share of every GPU type by its tickets. Every job lives on a server and takes its turns
there, by stride scheduling in quanta: it is suspended and resumed in place. Gangs that no server holds are
scheduled centrally, before the servers. Jobs move only to even out the ticket loads of the servers, to be
profiled on another GPU type, and to GPUs that would be idle. A tenant may trade its share: one that gains
little from fast GPUs lends them to one that gains much, for more slow GPUs than they are worth to it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Literal

from dovetail.mechanisms.fair.dominant_share import tenant_of, user_of
from dovetail.mechanisms.order.keys import arrival
from dovetail.mechanisms.rounds.active_jobs import start_cpu_jobs
from dovetail.model.units import micros
from dovetail.model.view import JobView, Order, Plan, Policy, View
from dovetail.policies.gandiva_fair.state import Rules, TicketState
from dovetail.policies.gandiva_fair.turn import Turn


def gandiva_fair(
    *,
    quantum: float = 60.0,
    trade: bool = True,
    trade_every: float = 300.0,
    balance_every: float = 300.0,
    speeds: Literal["measured", "declared"] = "measured",
    by: Literal["tenant", "user"] = "tenant",
) -> Policy:
    """Stride scheduling on each server in quanta of `quantum` seconds, and trade across GPU types.

    Tickets are the tenants' weights (`by="user"`: each user has one ticket). Each owner gets its share of
    every type in proportion to its tickets, gang-aware, and divides it equally among its jobs. Every
    `balance_every` seconds jobs move so that the servers' ticket loads are even. With `trade`, every
    `trade_every` seconds the owner that gains least from a faster type lends it to the one that gains most,
    at the second-highest speed-up as price, as long as both gain. Speed-ups are the means over an owner's
    jobs: as measured (jobs that name a model), or as declared.
    """
    rules = Rules(
        length=micros(quantum),
        trade=trade,
        trade_every=micros(trade_every),
        balance_every=micros(balance_every),
        measures=speeds == "measured",
        by_tenant=by == "tenant",
        owner=tenant_of if by == "tenant" else user_of,
    )
    return GandivaFair(rules=rules)


@dataclass(frozen=True, slots=True, kw_only=True)
class GandivaFair:
    """Quanta by tickets on each server, and tickets that are traded."""

    rules: Rules
    order: Order = arrival
    group: Callable[[JobView], Hashable] | None = None
    quantum: int | None = None

    def decide(self, view: View) -> Plan:
        state = view.memory if isinstance(view.memory, TicketState) else TicketState()
        plan = view.draft()
        start_cpu_jobs(view, plan)
        waiting = sorted((job for job in view.queue if job.shape.each), key=lambda job: job.seq)
        if not waiting:
            plan.memory = TicketState(measured=state.measured)
            return plan
        turn = Turn(self.rules, view, plan, state, waiting)
        plan.memory = turn.decided()
        waits = any(job.shape.each for job in view.queue)
        plan.review_at = turn.state.ends_at if waits and view.running else None
        return plan
