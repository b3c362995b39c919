"""Version 1: the first tables."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.engine import Connection


def upgrade(connection: Connection) -> None:
    tables = sa.MetaData()
    sa.Table(
        "eras",
        tables,
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("after", sa.BigInteger(), nullable=False),
        sa.Column("time", sa.BigInteger(), nullable=False),
        sa.Column("header", sa.Text(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_eras"),
    )
    sa.Table(
        "keys",
        tables,
        sa.Column("owner", sa.String(length=16), nullable=False),
        sa.Column("key", sa.String(length=255), nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("answer", sa.Text(), nullable=False),
        sa.Column("time", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("owner", "key", name="pk_keys"),
    )
    sa.Table(
        "meta",
        tables,
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_meta"),
    )
    sa.Table(
        "requests",
        tables,
        sa.Column("id", sa.String(length=16), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("workdir", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_requests"),
    )
    sa.Table(
        "speeds",
        tables,
        sa.Column("model", sa.String(length=200), nullable=False),
        sa.Column("type", sa.String(length=64), nullable=False),
        sa.Column("gpus", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("rate", sa.Float(), nullable=False),
        sa.Column("count", sa.BigInteger(), nullable=False),
        sa.Column("time", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("model", "type", "gpus", name="pk_speeds"),
    )
    sa.Table(
        "tenants",
        tables,
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("parent", sa.String(length=64), nullable=False),
        sa.Column("weight", sa.Float(), nullable=False),
        sa.Column("quota", sa.Integer(), nullable=True),
        sa.Column("borrow", sa.Integer(), nullable=True),
        sa.Column("limit", sa.Integer(), nullable=True),
        sa.Column("account", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_tenants"),
    )
    sa.Table(
        "tokens",
        tables,
        sa.Column("id", sa.String(length=16), nullable=False),
        sa.Column("hash", sa.LargeBinary(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("user", sa.String(length=64), nullable=False),
        sa.Column("role", sa.String(length=8), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=True),
        sa.Column("revoked_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_tokens"),
        sa.UniqueConstraint("hash", name="uq_tokens_hash"),
    )
    sa.Table(
        "jobs",
        tables,
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("request", sa.String(length=16), nullable=False),
        sa.Column("array", sa.String(length=16), nullable=True),
        sa.Column("task", sa.Integer(), nullable=True),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("user", sa.String(length=64), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("gpus", sa.Integer(), nullable=False),
        sa.Column("load", sa.Integer(), nullable=False),
        sa.Column("nodes", sa.Integer(), nullable=False),
        sa.Column("types", sa.Text(), nullable=False),
        sa.Column("dependency", sa.Text(), nullable=True),
        sa.Column("at_most", sa.Integer(), nullable=True),
        sa.Column("begin_at", sa.BigInteger(), nullable=True),
        sa.Column("time_limit", sa.BigInteger(), nullable=True),
        sa.Column("submitted_at", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("held_by", sa.String(length=16), nullable=False),
        sa.Column("eligible_at", sa.BigInteger(), nullable=True),
        sa.Column("first_started_at", sa.BigInteger(), nullable=True),
        sa.Column("started_at", sa.BigInteger(), nullable=True),
        sa.Column("ended_at", sa.BigInteger(), nullable=True),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("restarts", sa.Integer(), nullable=False),
        sa.Column("retries", sa.Integer(), nullable=False),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("cause", sa.String(length=16), nullable=False),
        sa.Column("placement", sa.Text(), nullable=True),
        sa.Column("wanted", sa.String(length=16), nullable=False),
        sa.Column("gpu_time", sa.BigInteger(), nullable=False),
        sa.Column("lost_time", sa.BigInteger(), nullable=False),
        sa.Column("progress", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["request"], ["requests.id"], name="fk_jobs_request_requests"),
        sa.PrimaryKeyConstraint("id", name="pk_jobs"),
        sa.UniqueConstraint("seq", name="uq_jobs_seq"),
        sa.Index("ix_jobs_array", "array"),
        sa.Index("ix_jobs_ended_at", "ended_at"),
        sa.Index("ix_jobs_state_seq", "state", "seq"),
        sa.Index("ix_jobs_tenant_seq", "tenant", "seq"),
    )
    sa.Table(
        "journal",
        tables,
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("era", sa.Integer(), nullable=False),
        sa.Column("time", sa.BigInteger(), nullable=False),
        sa.Column("line", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["era"], ["eras.id"], name="fk_journal_era_eras"),
        sa.PrimaryKeyConstraint("number", name="pk_journal"),
    )
    sa.Table(
        "snapshots",
        tables,
        sa.Column("era", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("state", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["era"], ["eras.id"], name="fk_snapshots_era_eras"),
        sa.PrimaryKeyConstraint("era", "number", name="pk_snapshots"),
    )
    sa.Table(
        "attempts",
        tables,
        sa.Column("job", sa.String(length=40), nullable=False),
        sa.Column("epoch", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("placement", sa.Text(), nullable=False),
        sa.Column("types", sa.Text(), nullable=False),
        sa.Column("load", sa.Integer(), nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=False),
        sa.Column("ended_at", sa.BigInteger(), nullable=True),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("cause", sa.String(length=16), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["jobs.id"], name="fk_attempts_job_jobs"),
        sa.PrimaryKeyConstraint("job", "epoch", name="pk_attempts"),
        sa.Index("ix_attempts_ended_at", "ended_at"),
    )
    tables.create_all(connection, checkfirst=False)
