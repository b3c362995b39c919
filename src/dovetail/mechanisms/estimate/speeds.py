"""Asking for a job's speed: on each type of GPU, or from an estimator of the policy's own.

`view.speed` answers by the estimator that the core was given. A policy with an estimator of its own asks
`estimated(view, estimator)`, which is the same view but for `speed` and `table`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from dovetail.model.estimate import Estimate, Estimator, speed_of
from dovetail.model.view import JobTable, JobView, View


def by_type(view: View, job: JobView, types: Sequence[str]) -> tuple[float, ...]:
    """The job's speed as asked for on each of these types; 0 where it may not or cannot run."""
    return tuple([view.speed(job, type=name).speed for name in types])


def estimated(view: View, estimator: Estimator) -> View:
    """The same view, with speeds from this estimator."""
    return cast("View", _Estimated(view, estimator))


class _Estimated:
    """A view that passes on everything but speeds."""

    __slots__ = ("_table", "_view", "estimator")

    def __init__(self, view: View, estimator: Estimator) -> None:
        self._view = view
        self.estimator = estimator
        self._table: JobTable | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._view, name)

    def speed(self, job: JobView, **asked: Any) -> Estimate:
        return speed_of(self.estimator, self._view.cluster, job, **asked)

    def table(self) -> JobTable:
        if self._table is None:
            self._table = self._view.table().estimated_by(self.estimator)
        return self._table
