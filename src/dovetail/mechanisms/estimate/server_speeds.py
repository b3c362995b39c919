"""Speeds of parameter-server jobs, fitted to sample runs and to the rates at which they ran.

Peng et al., "Optimus", EuroSys 2018, section 3.2: the terms of the speed are known (model.server_speed),
their figures are found by non-negative least squares. A few sample runs on few workers come first. They are
estimates of another estimator here. Points measured in the course of training replace and extend them. Other
jobs are estimated by the other estimator alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from dovetail.mechanisms.resize.resizing import held_tasks
from dovetail.model.cluster import Cluster
from dovetail.model.estimate import DECLARED, Estimate, Estimator, may_run, task_range
from dovetail.model.grant import FULL
from dovetail.model.job import Arch
from dovetail.model.server_speed import servers, terms
from dovetail.model.view import JobView, View
from dovetail.solve.non_negative import non_negative
from dovetail.solve.portable import rounded

SAMPLE_RUNS = 3  # on the least number of tasks, twice as many, and so on
Rates = Mapping[str, Mapping[tuple[str, int], float]]  # by job: its rate by GPU type and tasks


@dataclass(frozen=True)
class FittedServerSpeeds:
    """An estimator (model.estimate) of one decision; `rates` is what a policy keeps in its memory."""

    base: Estimator = DECLARED
    rates: Rates = field(default_factory=dict)

    @property
    def individual(self) -> bool:
        return bool(self.rates) or self.base.individual

    def observed(self, view: View) -> FittedServerSpeeds:
        """With the rates at which jobs run now; those of jobs that have ended are dropped."""
        found = dict[str, Mapping[tuple[str, int], float]]()
        for job in (*view.queue, *view.running.values()):
            known = self.rates.get(job.id)
            if (point := _measured(view, job)) is not None:
                where, rate = point
                known = {**(known or {}), where: rate}
            if known:
                found[job.id] = known
        return FittedServerSpeeds(view.estimator, found)

    def estimate(
        self, cluster: Cluster, job: JobView, tasks: int, type: str, nodes: int | None, batch: int | None
    ) -> Estimate:
        told = self.base.estimate(cluster, job, tasks, type, nodes, batch)
        if not fits(job) or nodes is not None or batch is not None:
            return told
        if not may_run(job.shape, job.traits, tasks, type):
            return told
        least, most = task_range(job.shape, job.traits)
        points = dict[int, float]()
        for size in (least << i for i in range(SAMPLE_RUNS) if least << i <= most):
            points[size] = self.base.estimate(cluster, job, size, type, None, None).speed
        for (kind, size), rate in self.rates.get(job.id, {}).items():
            if kind == type:
                points[size] = rate
        profile = job.traits.profile
        model = profile.server_speed if profile is not None else None
        fixed = sum(role.count for role in job.shape.roles)
        asked = (
            tuple(sorted(points.items())),
            fixed,
            1.0 if model is None else model.per_worker,
            model is None or model.synchronous,
        )
        speed = fitted_speed(asked, tasks)
        return told if speed is None else told._replace(speed=speed)


def fits(job: JobView) -> bool:
    """Whether the speed of the job is fitted: it is elastic, and exchanges over parameter servers."""
    return job.traits.arch is Arch.PARAMETER_SERVER and job.traits.elastic and job.shape.each > 0


Asked = tuple[tuple[tuple[int, float], ...], int, float, bool]  # points; servers, or per worker; synchronous


def fitted_speed(asked: Asked, tasks: int) -> float | None:
    """The speed of this number of tasks; None if the points say nothing."""
    figures = _figures(asked)
    time = sum(t * term for t, term in zip(figures, _terms(asked, tasks), strict=True))
    return 1.0 / time if time > 0 else None


@lru_cache(maxsize=4096)
def _figures(asked: Asked) -> tuple[float, ...]:
    """The figures with the smallest relative errors of the time of a step."""
    points = [(size, speed) for size, speed in asked[0] if speed > 0]
    if not points:
        return (0.0,) * len(_terms(asked, 1))
    rows = np.array([_terms(asked, size) for size, _ in points])
    speeds = np.array([speed for _, speed in points])
    found, _ = non_negative(rows * speeds[:, None], np.ones(len(points)))
    return tuple(rounded(found).tolist())


def _terms(asked: Asked, tasks: int) -> tuple[float, ...]:
    _, fixed, per_worker, synchronous = asked
    return terms(tasks, fixed or servers(tasks, per_worker), synchronous=synchronous)


def _measured(view: View, job: JobView) -> tuple[tuple[str, int], float] | None:
    """Where a job runs, and how fast; a rate of exactly 1 was not measured."""
    if job.spots is None or not fits(job) or job.terms != FULL or job.rate <= 0 or job.rate == 1.0:
        return None
    kinds = {view.cluster.nodes[spot[0]].type.name for spot in job.spots if spot[1]}
    return ((kinds.pop(), held_tasks(job)), job.rate) if len(kinds) == 1 else None
