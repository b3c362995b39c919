"""The batch with which running jobs go on: a term of what they hold, set after sizes and places."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from dovetail.model.view import JobView, Plan


def set_batches(plan: Plan, jobs: Iterable[JobView], batch: Callable[[JobView], int | None]) -> None:
    """Let each job go on with this global batch; None: the one that its own agent sets."""
    for job in list(jobs):
        wanted = batch(job)
        if job.spots is not None and job.terms.batch != wanted:
            plan.shift(job, job.spots, replace(job.terms, batch=wanted))
