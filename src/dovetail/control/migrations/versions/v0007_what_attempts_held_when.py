"""Version 7: what an attempt held when, for those that were resized. None was before."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.engine import Connection


def upgrade(connection: Connection) -> None:
    connection.exec_driver_sql("ALTER TABLE jobs ADD COLUMN held_load INTEGER")
    connection.exec_driver_sql("ALTER TABLE jobs ADD COLUMN held_since BIGINT")
    connection.exec_driver_sql("ALTER TABLE attempts ADD COLUMN resized_at BIGINT")
    metadata = sa.MetaData()
    sa.Table("jobs", metadata, sa.Column("id", sa.String(40), primary_key=True))
    segments = sa.Table(
        "segments",
        metadata,
        sa.Column("job", sa.String(40), nullable=False),
        sa.Column("epoch", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("started_at", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("ended_at", sa.BigInteger()),
        sa.Column("placement", sa.Text(), nullable=False),
        sa.Column("types", sa.Text(), nullable=False),
        sa.Column("load", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["jobs.id"], name="fk_segments_job_jobs"),
        sa.PrimaryKeyConstraint("job", "epoch", "started_at", name="pk_segments"),
    )
    segments.create(connection)
