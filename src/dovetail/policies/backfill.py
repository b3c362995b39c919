"""Backfilling: later jobs may overtake, but never delay a job with a reservation.

Lifka, "The ANL/IBM SP scheduling system", JSSPP 1995 (EASY); Mu'alem and Feitelson, "Utilization,
predictability, workloads, and user runtime estimates", TPDS 2001 (conservative).
"""

from __future__ import annotations

from typing import Literal

from dovetail.mechanisms.order.keys import arrival, expected_end
from dovetail.mechanisms.queue.easy_backfill import duration_class, easy
from dovetail.mechanisms.queue.reserved_backfill import conservative
from dovetail.model.view import Policy
from dovetail.policies.composed import Composed


def backfill(*, variant: Literal["easy", "conservative"] = "easy", depth: int | None = None) -> Policy:
    """In order of arrival; `easy` reserves for the first waiting job, `conservative` for all.

    `depth` is how many waiting jobs are looked at (None: all). Durations are the declared ones.
    Deviation: a job that outlives its declared duration is not killed.
    """
    if variant == "conservative":
        return Composed(order=arrival, serve=conservative(arrival, depth))
    return Composed(order=expected_end(arrival), serve=easy(arrival, depth), group=duration_class)
