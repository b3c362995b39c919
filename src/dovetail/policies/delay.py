"""Delay scheduling: a job waits a little for a good place, and other jobs go first meanwhile.

Zaharia et al., "Delay Scheduling", EuroSys 2010.
"""

from __future__ import annotations

from dovetail.mechanisms.order.keys import arrival, waiting_in_order
from dovetail.mechanisms.place.locality import LocalityWaits, start_with_locality
from dovetail.mechanisms.place.placement import Placement
from dovetail.mechanisms.queue.discipline import Discipline
from dovetail.model.units import micros
from dovetail.model.view import Plan, Policy, View
from dovetail.policies.composed import Composed


def delay_scheduling(*, d_node: float = 5.0, d_rack: float = 5.0) -> Policy:
    """A job waits up to `d_node` seconds for one node, `d_rack` more for one rack, then takes any place.

    Only time during which the job declines a free place counts, as in the paper's skip count. A gang wider
    than a node starts with the rack, one wider than a rack takes any place.
    Deviations: locality is that of a gang's devices to each other, not of a task to its data; the order is
    arrival (the paper's is fair sharing between jobs of many tasks).
    """
    return Composed(order=arrival, serve=delayed(micros(d_node), micros(d_rack)))


def delayed(for_node: int, for_rack: int) -> Discipline:
    """In order of arrival, passing over jobs that still wait for locality."""

    def serve(view: View, place: Placement) -> Plan:
        plan = view.draft()
        waits = view.memory if isinstance(view.memory, LocalityWaits) else LocalityWaits()
        delays = (for_node, for_rack)
        plan.memory = start_with_locality(view, plan, waiting_in_order(arrival)(view), waits, delays)
        return plan

    return serve
