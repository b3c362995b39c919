"""for which jobs a job was preempted, in its row until it starts again and in that of the attempt

It is not known of earlier preemptions.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for table in ("jobs", "attempts"):
        op.add_column(table, sa.Column("preempted_by", sa.Text(), nullable=True))
