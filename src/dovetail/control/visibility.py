"""Which rows a caller may see: an admin sees all tenants, every other caller one. Added nowhere else."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from dovetail.control import tables
from dovetail.control.tokens import Caller

_J = tables.jobs.c


def visible(caller: Caller) -> list[Any]:
    """Conditions on the table of jobs."""
    return [] if caller.admin else [_J.tenant == caller.tenant]


def number_of(caller: Caller, id: str) -> Any:
    """The number of a job, in order of submission.

    Cursors name the job instead: its number would tell how many jobs other tenants have submitted.
    """
    other = tables.jobs.alias()
    query = sa.select(other.c.seq).where(other.c.id == id)
    return (query if caller.admin else query.where(other.c.tenant == caller.tenant)).scalar_subquery()
