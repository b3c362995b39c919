"""Version 6: the fewest GPUs with which an elastic job runs. Earlier jobs were rigid."""

from __future__ import annotations

from sqlalchemy.engine import Connection


def upgrade(connection: Connection) -> None:
    connection.exec_driver_sql("ALTER TABLE jobs ADD COLUMN gpus_least INTEGER")
