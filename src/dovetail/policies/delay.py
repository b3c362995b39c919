"""Delay scheduling: wait a little for a good place, and let others go first meanwhile.

Zaharia et al., "Delay Scheduling", EuroSys 2010.
"""

from __future__ import annotations

from dataclasses import dataclass

from dovetail.mechanisms.backfill import in_order
from dovetail.mechanisms.order import arrival
from dovetail.mechanisms.relax import Patience, patiently
from dovetail.model.units import micros
from dovetail.model.view import Order, Plan, Policy, View


@dataclass(frozen=True, slots=True)
class Delayed:
    """In order of arrival, passing over those who still wait for locality."""

    delays: tuple[int, int]  # for a node, then for a rack
    order: Order = arrival
    group: None = None
    quantum: int | None = None

    def decide(self, view: View) -> Plan:
        plan = view.draft()
        patience = view.memory if isinstance(view.memory, Patience) else Patience()
        plan.memory = patiently(view, plan, in_order(arrival)(view), patience, self.delays)
        return plan


def delay_scheduling(*, d_node: float = 5.0, d_rack: float = 5.0) -> Policy:
    """A job waits up to `d_node` seconds for one node, `d_rack` more for one rack, then takes any place.

    Patience runs only while something is free that the job declines, as in the paper's skip count. A gang
    wider than a node starts with the rack, one wider than a rack takes any place.
    Deviations: locality is that of a gang's devices to each other, not of a task to its data; the order is
    arrival (the paper's is fair sharing between jobs of many tasks).
    """
    return Delayed((micros(d_node), micros(d_rack)))
