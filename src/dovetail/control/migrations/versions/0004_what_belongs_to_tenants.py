"""measured speeds by tenant, and the account that a submission was accepted with

Earlier speeds were means over the jobs of all tenants. They are dropped: their parts are not known, and jobs
report their speeds every few seconds. Earlier submissions have no account: that of their tenant counts.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("requests", sa.Column("account", sa.String(length=64), nullable=True))
    op.drop_table("speeds")
    op.create_table(
        "speeds",
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("model", sa.String(length=200), nullable=False),
        sa.Column("type", sa.String(length=64), nullable=False),
        sa.Column("gpus", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("rate", sa.Float(), nullable=False),
        sa.Column("count", sa.BigInteger(), nullable=False),
        sa.Column("time", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "model", "type", "gpus", name=op.f("pk_speeds")),
    )
