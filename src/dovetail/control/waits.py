"""Waiting time of the jobs on record: the definition of `model.waiting`, over rows and in queries."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from dovetail.control import tables
from dovetail.model.waiting import Waits, first_start_after

_J = tables.jobs.c


def waited(row: Any, now: int) -> int:
    """Microseconds that a job was eligible and not running: until it ended, or until now."""
    return Waits(row.wait_time, row.waiting_since).total(now if row.ended_at is None else row.ended_at)


def first_start(row: Any) -> int | None:
    """Microseconds from when a job became eligible to its first start; None before that."""
    if row.first_started_at is None:
        return None
    eligible = row.eligible_at
    if eligible is None or eligible > row.first_started_at:
        eligible = row.submitted_at
    found: int = first_start_after(eligible, row.first_started_at)
    return found


def waited_in_sql(now: int) -> Any:
    """The same as `waited`."""
    end = sa.func.coalesce(_J.ended_at, sa.literal(now, sa.BigInteger))
    return _J.wait_time + sa.case((_J.waiting_since < end, end - _J.waiting_since), else_=0)


def first_start_in_sql() -> Any:
    """The same as `first_start`."""
    known = sa.and_(_J.eligible_at.is_not(None), _J.eligible_at <= _J.first_started_at)
    return first_start_after(sa.case((known, _J.eligible_at), else_=_J.submitted_at), _J.first_started_at)
