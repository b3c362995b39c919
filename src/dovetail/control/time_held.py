"""How long a job ran and what it held, so far: `took` and GPU time, over rows and in queries.

A job runs from a start to the end of that attempt, its grace period included. The store sums up the attempts
that have ended; the attempt that runs now is added here.
"""

from __future__ import annotations

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
    load = row.load if row.held_load is None else row.held_load
    since = row.started_at if row.held_since is None else row.held_since
    running = 0 if row.state not in ON_DEVICES or since is None else max(0, now - int(since))
    total: float = (row.gpu_time + load * running) / GPU_SECOND
    return total


def gpus_held(row: Any) -> float:
    """GPUs that a job holds now."""
    if row.state not in ON_DEVICES or row.started_at is None:
        return 0.0
    return round(float((row.load if row.held_load is None else row.held_load) / WHOLE), 3)


def _running(row: Any, now: int) -> int:
    if row.state not in ON_DEVICES or row.started_at is None:
        return 0
    return max(0, now - int(row.started_at))


def gpu_seconds_in_sql(now: int) -> Any:
    """The same as `gpu_seconds`, of each job."""
    at = sa.literal(now, sa.BigInteger)
    load, since = sa.func.coalesce(_J.held_load, _J.load), sa.func.coalesce(_J.held_since, _J.started_at)
    runs = sa.and_(_J.state.in_(ON_DEVICES), since < at)
    running = sa.case((runs, load * (1.0 / GPU_SECOND) * (at - since)), else_=0.0)
    return _J.gpu_time * (1.0 / GPU_SECOND) + running


# What attempts held from when to when: an attempt that was resized has one more row for each resize.
_S = tables.segments.c
_COLUMNS = ("job", "epoch", "placement", "types", "load", "started_at")
HELD = sa.union_all(
    sa.select(
        *(_A[name] for name in _COLUMNS), sa.func.coalesce(_A.resized_at, _A.ended_at).label("ended_at")
    ),
    sa.select(*(_S[name] for name in _COLUMNS), _S.ended_at),
).subquery("held")


def attempt_end(now: int, columns: Any = HELD.c) -> Any:
    """When an attempt, or a part of it, ended, in a query; now for one that runs."""
    return sa.func.coalesce(columns.ended_at, sa.literal(now, sa.BigInteger))


def attempt_gpu_seconds(first: Any, last: Any) -> Any:
    """GPUs held times seconds between two moments, in a query."""
    return HELD.c.load * (1.0 / GPU_SECOND) * (last - first)
