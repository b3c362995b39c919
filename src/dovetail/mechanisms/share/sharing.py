"""Putting a job on devices that other jobs use.

A sharing rule is asked for each waiting job that finds no free devices. It may shift the jobs that run there,
start the job beside them, and answer True; or leave the plan as it is and answer False.
"""

from __future__ import annotations

from collections.abc import Callable

from dovetail.model.view import JobView, Plan, View

Share = Callable[[View, Plan, JobView], bool]


def exclusive(view: View, plan: Plan, job: JobView) -> bool:
    """No job gets devices that another job holds."""
    return False
