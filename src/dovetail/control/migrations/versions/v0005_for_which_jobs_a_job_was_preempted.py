"""Version 5: for which jobs a job was preempted, in its row until it starts again and in that of the attempt.

It is not known of earlier preemptions.
"""

from __future__ import annotations

from sqlalchemy.engine import Connection


def upgrade(connection: Connection) -> None:
    for table in ("jobs", "attempts"):
        connection.exec_driver_sql(f"ALTER TABLE {table} ADD COLUMN preempted_by TEXT")
