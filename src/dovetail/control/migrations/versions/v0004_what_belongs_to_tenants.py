"""Version 4: measured speeds by tenant, and the account that a submission was accepted with.

Earlier speeds were means over the jobs of all tenants. They are dropped: their parts are not known, and jobs
report their speeds every few seconds. Earlier submissions have no account: that of their tenant counts.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.engine import Connection


def upgrade(connection: Connection) -> None:
    connection.exec_driver_sql("ALTER TABLE requests ADD COLUMN account VARCHAR(64)")
    connection.exec_driver_sql("DROP TABLE speeds")
    speeds = sa.Table(
        "speeds",
        sa.MetaData(),
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("model", sa.String(length=200), nullable=False),
        sa.Column("type", sa.String(length=64), nullable=False),
        sa.Column("gpus", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("rate", sa.Float(), nullable=False),
        sa.Column("count", sa.BigInteger(), nullable=False),
        sa.Column("time", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "model", "type", "gpus", name="pk_speeds"),
    )
    connection.execute(sa.schema.CreateTable(speeds))
