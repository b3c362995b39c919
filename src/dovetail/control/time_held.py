"""How long a job ran and what it held, so far: `took` and GPU time, over rows and in queries.

A job runs from a start to the end of that attempt, its grace period included. The store sums up the attempts
that have ended; the attempt that runs now is added here.
"""

from __future__ import annotations

import json
from typing import Any

import sqlalchemy as sa

from dovetail.control import tables
from dovetail.control.states import State
from dovetail.model.units import WHOLE

_J = tables.jobs.c
_A = tables.attempts.c
ON_DEVICES = (State.RUNNING.value, State.STOPPING.value)
GPU_SECOND = 1_000_000_000  # milli-GPU-microseconds, which the store counts in


def took(row: Any, now: int) -> int:
    """Microseconds that a job ran, over all its attempts."""
    total: int = row.held_time + _running(row, now)
    return total


def attempt_took(row: Any, now: int) -> int:
    """Microseconds that one attempt ran."""
    return max(0, int(now if row.ended_at is None else row.ended_at) - int(row.started_at))


def gpu_seconds(row: Any, now: int) -> float:
    """GPUs held times seconds, over all attempts of a job."""
    total: float = (row.gpu_time + row.load * _running(row, now)) / GPU_SECOND
    return total


def gpus_held(row: Any) -> float:
    """GPUs that a job holds now. The placement says how many an elastic job has."""
    if row.state not in ON_DEVICES or row.started_at is None:
        return 0.0
    if row.gpus_least is None or not row.placement:
        return round(float(row.load / WHOLE), 3)
    return float(sum(len(part["devices"]) for part in json.loads(row.placement)))


def _running(row: Any, now: int) -> int:
    if row.state not in ON_DEVICES or row.started_at is None:
        return 0
    return max(0, now - int(row.started_at))


def gpu_seconds_in_sql(now: int) -> Any:
    """The same as `gpu_seconds`, of each job."""
    at = sa.literal(now, sa.BigInteger)
    runs = sa.and_(_J.state.in_(ON_DEVICES), _J.started_at < at)
    running = sa.case((runs, _J.load * (1.0 / GPU_SECOND) * (at - _J.started_at)), else_=0.0)
    return _J.gpu_time * (1.0 / GPU_SECOND) + running


def attempt_end(now: int) -> Any:
    """When an attempt ended, in a query; now for one that runs."""
    return sa.func.coalesce(_A.ended_at, sa.literal(now, sa.BigInteger))


def attempt_gpu_seconds(first: Any, last: Any) -> Any:
    """GPUs held times seconds of an attempt between two moments, in a query."""
    return _A.load * (1.0 / GPU_SECOND) * (last - first)
