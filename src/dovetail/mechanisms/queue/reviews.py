"""When a policy wants to be asked again although nothing happens."""

from __future__ import annotations

from dovetail.model.view import Plan


def review_by(plan: Plan, at: int) -> None:
    """Ask again at this time, unless the plan asks for an earlier one already."""
    plan.review_at = at if plan.review_at is None else min(plan.review_at, at)
