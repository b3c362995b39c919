"""Tiresias: short jobs first though nobody knows their length (Gu et al., NSDI 2019)."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.mechanisms.las import attained_service
from dovetail.mechanisms.place import packed
from dovetail.mechanisms.preempt import preemptive
from dovetail.model.units import micros
from dovetail.model.view import Policy
from dovetail.policies.composed import Composed


def tiresias_l(
    *, thresholds: Sequence[float] = (3250.0,), promote: float | None = None, quantum: float | None = 60.0
) -> Policy:
    """Two queues by attained GPU-time; nothing need be known of a job."""
    order = attained_service([micros(t) for t in thresholds], promote)
    return Composed(
        order=order,
        serve=preemptive(order),
        place=packed,
        quantum=micros(quantum) if quantum else None,
    )
