"""Version 3: how long a job has waited in all, and for each of its starts."""

from __future__ import annotations

from sqlalchemy.engine import Connection

# When a job became eligible for its first start. Holds after that were not recorded and count as waiting.
_ELIGIBLE = (
    "CASE WHEN jobs.eligible_at IS NOT NULL AND jobs.eligible_at <= jobs.first_started_at "
    "THEN jobs.eligible_at ELSE jobs.submitted_at END"
)


def upgrade(connection: Connection) -> None:
    for statement in (
        "ALTER TABLE jobs ADD COLUMN wait_time BIGINT DEFAULT '0' NOT NULL",
        "ALTER TABLE jobs ADD COLUMN wait_at_start BIGINT DEFAULT '0' NOT NULL",
        "ALTER TABLE jobs ADD COLUMN waiting_since BIGINT",
        "ALTER TABLE attempts ADD COLUMN waited BIGINT DEFAULT '0' NOT NULL",
        "UPDATE attempts SET waited = started_at - COALESCE("
        "(SELECT MAX(before.ended_at) FROM attempts AS before "
        "WHERE before.job = attempts.job AND before.epoch < attempts.epoch), "
        f"(SELECT {_ELIGIBLE} FROM jobs WHERE jobs.id = attempts.job))",
        "UPDATE attempts SET waited = 0 WHERE waited < 0",
        "UPDATE jobs SET wait_time = "
        "COALESCE((SELECT SUM(waited) FROM attempts WHERE attempts.job = jobs.id), 0)",
        "UPDATE jobs SET wait_at_start = wait_time",
        "UPDATE jobs SET waiting_since = COALESCE("
        "(SELECT MAX(attempts.ended_at) FROM attempts WHERE attempts.job = jobs.id), eligible_at) "
        "WHERE state = 'pending' OR (state = 'cancelled' AND first_started_at IS NULL)",
    ):
        connection.exec_driver_sql(statement)
