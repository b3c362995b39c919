"""The versions of the tables, in order; `upgrade` applies those that a database has not had yet.

The version of a database is the number of the last one it has had, kept in a table of one row. The caller
holds the transaction: a database has a version whole, or not at all.
"""

from __future__ import annotations

from collections.abc import Callable

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from dovetail.control.migrations.versions import (
    v0001_the_first_tables,
    v0002_what_was_asked_and_held,
    v0003_how_long_jobs_waited,
    v0004_what_belongs_to_tenants,
    v0005_for_which_jobs_a_job_was_preempted,
    v0006_the_fewest_gpus_of_a_job,
    v0007_what_attempts_held_when,
)
from dovetail.model.errors import DovetailError

VERSIONS: dict[int, Callable[[Connection], None]] = {
    1: v0001_the_first_tables.upgrade,
    2: v0002_what_was_asked_and_held.upgrade,
    3: v0003_how_long_jobs_waited.upgrade,
    4: v0004_what_belongs_to_tenants.upgrade,
    5: v0005_for_which_jobs_a_job_was_preempted.upgrade,
    6: v0006_the_fewest_gpus_of_a_job.upgrade,
    7: v0007_what_attempts_held_when.upgrade,
}
LATEST = max(VERSIONS)

schema = sa.Table("dovetail_schema", sa.MetaData(), sa.Column("version", sa.Integer, nullable=False))


class NewerSchema(DovetailError):
    """The tables have a version that this code does not know."""


def upgrade(
    connection: Connection, version: int = LATEST, told: Callable[[int, int], None] | None = None
) -> None:
    """Bring the tables to this version; a database that has it already stays as it is.

    `told` is called before each step and after the last one: how many steps are done, and how many there are.
    """
    found = _version(connection)
    if found > LATEST:
        raise NewerSchema(f"its tables have version {found}, known are those up to {LATEST}")
    for number in range(found + 1, version + 1):
        if told is not None:
            told(number - 1 - found, version - found)
        VERSIONS[number](connection)
        connection.execute(sa.update(schema).values(version=number))
    if told is not None and found < version:
        told(version - found, version - found)


def _version(connection: Connection) -> int:
    """The version of the tables: 0 if there are none."""
    if sa.inspect(connection).has_table(schema.name):
        return int(connection.execute(sa.select(schema.c.version)).scalar() or 0)
    found = _taken_over(connection)
    connection.execute(sa.schema.CreateTable(schema))
    connection.execute(sa.insert(schema).values(version=found))
    return found


def _taken_over(connection: Connection) -> int:
    """The version that an earlier Dovetail kept in the table of alembic; 0 if there is none.

    That table is dropped. If another program uses alembic in the same database, its table is left alone.
    """
    there = sa.inspect(connection)
    if not (there.has_table("alembic_version") and there.has_table("meta")):
        return 0
    found = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()
    if found is None or not found.isdecimal():
        return 0
    connection.exec_driver_sql("DROP TABLE alembic_version")
    return int(found)
