"""Backfilling: later jobs may pass, but never delay who is promised a start.

Lifka, "The ANL/IBM SP scheduling system", JSSPP 1995 (EASY); Mu'alem and Feitelson, "Utilization,
predictability, workloads, and user runtime estimates", TPDS 2001 (conservative).
"""

from __future__ import annotations

from typing import Literal

from dovetail.mechanisms.backfill import conservative, duration_class, easy
from dovetail.mechanisms.order import arrival, expected_end
from dovetail.model.view import Policy
from dovetail.policies.composed import Composed


def backfill(*, variant: Literal["easy", "conservative"] = "easy", depth: int | None = None) -> Policy:
    """In order of arrival; `easy` promises a start to the first that waits, `conservative` to all.

    `depth` is how many waiting jobs are looked at (None: all). Lengths are the declared ones.
    Deviation: a job that outlives its declared length is not killed.
    """
    if variant == "conservative":
        return Composed(order=arrival, serve=conservative(arrival, depth))
    return Composed(order=expected_end(arrival), serve=easy(arrival, depth), group=duration_class)
