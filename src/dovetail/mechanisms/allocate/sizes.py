"""Sizes: how many tasks each job is to run with, by job id.

0 means that the job is not to run now. A job that is not named keeps what it holds; while it waits, it is to
get what it asked for. Sizes lie between the fewest and the most tasks of a job (`model.estimate.task_range`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dovetail.model.view import View

Sizes = Mapping[str, int]
Allocate = Callable[[View], Sizes]

_NONE: Sizes = {}


def as_asked(view: View) -> Sizes:
    """Every job gets what it asked for."""
    return _NONE
