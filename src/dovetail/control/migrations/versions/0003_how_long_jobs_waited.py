"""how long a job has waited in all, and for each of its starts"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

# When a job became eligible for its first start. Holds after that were not recorded and count as waiting.
_ELIGIBLE = (
    "CASE WHEN jobs.eligible_at IS NOT NULL AND jobs.eligible_at <= jobs.first_started_at "
    "THEN jobs.eligible_at ELSE jobs.submitted_at END"
)


def upgrade() -> None:
    for name in ("wait_time", "wait_at_start"):
        op.add_column("jobs", sa.Column(name, sa.BigInteger(), nullable=False, server_default="0"))
    op.add_column("jobs", sa.Column("waiting_since", sa.BigInteger(), nullable=True))
    op.add_column("attempts", sa.Column("waited", sa.BigInteger(), nullable=False, server_default="0"))
    op.execute(
        "UPDATE attempts SET waited = started_at - COALESCE("
        "(SELECT MAX(before.ended_at) FROM attempts AS before "
        "WHERE before.job = attempts.job AND before.epoch < attempts.epoch), "
        f"(SELECT {_ELIGIBLE} FROM jobs WHERE jobs.id = attempts.job))"
    )
    op.execute("UPDATE attempts SET waited = 0 WHERE waited < 0")
    op.execute(
        "UPDATE jobs SET wait_time = "
        "COALESCE((SELECT SUM(waited) FROM attempts WHERE attempts.job = jobs.id), 0)"
    )
    op.execute("UPDATE jobs SET wait_at_start = wait_time")
    op.execute(
        "UPDATE jobs SET waiting_since = COALESCE("
        "(SELECT MAX(attempts.ended_at) FROM attempts WHERE attempts.job = jobs.id), eligible_at) "
        "WHERE state = 'pending' OR (state = 'cancelled' AND first_started_at IS NULL)"
    )
