"""what was asked for besides GPUs, and how long a job ran in all"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("cpus", sa.Integer(), nullable=True))
    op.add_column("jobs", sa.Column("memory", sa.BigInteger(), nullable=True))
    op.add_column("jobs", sa.Column("held_time", sa.BigInteger(), nullable=False, server_default="0"))
    op.execute(
        "UPDATE jobs SET held_time = COALESCE((SELECT SUM(ended_at - started_at) FROM attempts "
        "WHERE attempts.job = jobs.id AND ended_at IS NOT NULL), 0)"
    )
