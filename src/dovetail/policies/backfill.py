"""Backfilling: later jobs may pass, but never delay the first (Lifka 1995; Mu'alem and Feitelson 2001)."""

from __future__ import annotations

from typing import Literal

from dovetail.mechanisms.backfill import duration_class, easy
from dovetail.mechanisms.order import arrival, expected_end
from dovetail.model.view import Policy
from dovetail.policies.composed import Composed


def backfill(*, variant: Literal["easy"] = "easy") -> Policy:
    """EASY backfilling in order of arrival."""
    return Composed(order=expected_end(arrival), serve=easy, group=duration_class)
