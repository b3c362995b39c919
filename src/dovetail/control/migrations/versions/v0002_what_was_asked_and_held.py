"""Version 2: what was asked for besides GPUs, and how long a job ran in all."""

from __future__ import annotations

from sqlalchemy.engine import Connection


def upgrade(connection: Connection) -> None:
    for statement in (
        "ALTER TABLE jobs ADD COLUMN cpus INTEGER",
        "ALTER TABLE jobs ADD COLUMN memory BIGINT",
        "ALTER TABLE jobs ADD COLUMN held_time BIGINT DEFAULT '0' NOT NULL",
        "UPDATE jobs SET held_time = COALESCE((SELECT SUM(ended_at - started_at) FROM attempts "
        "WHERE attempts.job = jobs.id AND ended_at IS NOT NULL), 0)",
    ):
        connection.exec_driver_sql(statement)
