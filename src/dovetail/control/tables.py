"""The tables of the store. Times are microseconds of the plane's time; lists and objects are JSON text.

The journal is the truth about decisions; `jobs` and `attempts` are what users ask about, written in the same
commit. A token is kept as its hash only.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(column_0_label)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)

# Values about the plane itself: the leader, the clock, the chosen policy, the prices.
meta = Table(
    "meta",
    metadata,
    Column("key", String(64), primary_key=True),
    Column("value", Text, nullable=False),
)

# An era is a part of the journal under one policy, with its options, on one cluster.
eras = Table(
    "eras",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("after", BigInteger, nullable=False),  # the number of the step it comes after
    Column("time", BigInteger, nullable=False),
    Column("header", Text, nullable=False),
    Column("why", Text, nullable=False),
)

journal = Table(
    "journal",
    metadata,
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("era", Integer, ForeignKey("eras.id"), nullable=False),
    Column("time", BigInteger, nullable=False),
    Column("line", Text, nullable=False),
)

snapshots = Table(
    "snapshots",
    metadata,
    Column("era", Integer, ForeignKey("eras.id"), primary_key=True, autoincrement=False),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("state", LargeBinary, nullable=False),  # zlib over JSON
)

# Submissions; the members of an array share one.
requests = Table(
    "requests",
    metadata,
    Column("id", String(16), primary_key=True),
    Column("body", Text, nullable=False),
    Column("workdir", Text, nullable=False),
    Column("account", String(64)),  # that its jobs run as; null: of an older plane
)

jobs = Table(
    "jobs",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("seq", BigInteger, nullable=False, unique=True),
    Column("request", String(16), ForeignKey("requests.id"), nullable=False),
    Column("array", String(16)),
    Column("task", Integer),
    Column("name", Text, nullable=False),
    Column("kind", String(16), nullable=False),
    Column("tenant", String(64), nullable=False),
    Column("user", String(64), nullable=False),
    Column("model", Text, nullable=False),
    Column("gpus", Integer, nullable=False),
    Column("gpus_least", Integer),  # with which it runs, if it is elastic
    Column("load", Integer, nullable=False),  # milli-GPUs
    Column("nodes", Integer, nullable=False),
    Column("cpus", Integer),  # milli-cores on each node; null: not requested
    Column("memory", BigInteger),  # bytes on each node
    Column("types", Text, nullable=False),
    Column("dependency", Text),
    Column("at_most", Integer),  # members of its array at once
    Column("begin_at", BigInteger),
    Column("time_limit", BigInteger),
    Column("submitted_at", BigInteger, nullable=False),
    # the columns from here on change
    Column("state", String(16), nullable=False),
    Column("reason", Text, nullable=False),
    Column("priority", Integer, nullable=False),
    Column("held_by", String(16), nullable=False),
    Column("eligible_at", BigInteger),
    Column("first_started_at", BigInteger),
    Column("started_at", BigInteger),
    Column("ended_at", BigInteger),
    Column("epoch", Integer, nullable=False),
    Column("restarts", Integer, nullable=False),
    Column("retries", Integer, nullable=False),
    Column("exit_code", Integer),
    Column("cause", String(16), nullable=False),
    Column("placement", Text),
    Column("wanted", String(16), nullable=False),  # what a stopping job becomes once it has stopped
    Column("gpu_time", BigInteger, nullable=False),  # milli-GPU-microseconds held
    Column("lost_time", BigInteger, nullable=False),  # of these, work that was lost
    Column("held_time", BigInteger, nullable=False, server_default="0"),  # microseconds that it ran
    # What the attempt of an elastic job holds, in milli-GPUs, and since when; null: `load`, since its start.
    Column("held_load", Integer),
    Column("held_since", BigInteger),
    # Microseconds waited in all, and up to the last start; since when it waits, or waited when it ended.
    Column("wait_time", BigInteger, nullable=False, server_default="0"),
    Column("wait_at_start", BigInteger, nullable=False, server_default="0"),
    Column("waiting_since", BigInteger),
    Column("progress", Text),
    Column("preempted_by", Text),  # until it starts again: the jobs that it made way for
    Index("ix_jobs_state_seq", "state", "seq"),
    Index("ix_jobs_tenant_seq", "tenant", "seq"),
    Index("ix_jobs_array", "array"),
    Index("ix_jobs_ended_at", "ended_at"),
)

attempts = Table(
    "attempts",
    metadata,
    Column("job", String(40), ForeignKey("jobs.id"), primary_key=True),
    Column("epoch", Integer, primary_key=True, autoincrement=False),
    Column("placement", Text, nullable=False),
    Column("types", Text, nullable=False),
    Column("load", Integer, nullable=False),
    Column("started_at", BigInteger, nullable=False),
    Column("ended_at", BigInteger),
    Column("exit_code", Integer),
    Column("cause", String(16), nullable=False),
    Column("detail", Text, nullable=False),
    Column("waited", BigInteger, nullable=False, server_default="0"),  # microseconds, for this start
    Column("preempted_by", Text),  # the jobs that it made way for; null: it was not preempted
    Column(
        "resized_at", BigInteger
    ),  # when it was resized first: `placement`, `types`, `load` count until then
    Index("ix_attempts_ended_at", "ended_at"),
)

# What an attempt holds from a resize on, until the next one or its end.
segments = Table(
    "segments",
    metadata,
    Column("job", String(40), ForeignKey("jobs.id"), primary_key=True),
    Column("epoch", Integer, primary_key=True, autoincrement=False),
    Column("started_at", BigInteger, primary_key=True, autoincrement=False),
    Column("ended_at", BigInteger),
    Column("placement", Text, nullable=False),
    Column("types", Text, nullable=False),
    Column("load", Integer, nullable=False),
)

tenants = Table(
    "tenants",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("parent", String(64), nullable=False),
    Column("weight", Float, nullable=False),
    Column("quota", Integer),
    Column("borrow", Integer),
    Column("limit", Integer),
    Column("account", String(64), nullable=False),
)

tokens = Table(
    "tokens",
    metadata,
    Column("id", String(16), primary_key=True),
    Column("hash", LargeBinary, nullable=False),
    Column("name", Text, nullable=False),
    Column("tenant", String(64), nullable=False),
    Column("user", String(64), nullable=False),
    Column("role", String(8), nullable=False),
    Column("created_at", BigInteger, nullable=False),  # on the wall clock, like the next two
    Column("expires_at", BigInteger),
    Column("revoked_at", BigInteger),
    UniqueConstraint("hash"),
)

# Idempotency keys: a submission that is sent twice is accepted once.
keys = Table(
    "keys",
    metadata,
    Column("owner", String(16), primary_key=True),  # the token
    Column("key", String(255), primary_key=True),
    Column("digest", LargeBinary, nullable=False),
    Column("answer", Text, nullable=False),
    Column("time", BigInteger, nullable=False),
)

# Measured throughput: steps a second, by tenant, model, GPU type and how many.
speeds = Table(
    "speeds",
    metadata,
    Column("tenant", String(64), primary_key=True),
    Column("model", String(200), primary_key=True),
    Column("type", String(64), primary_key=True),
    Column("gpus", Integer, primary_key=True, autoincrement=False),
    Column("rate", Float, nullable=False),
    Column("count", BigInteger, nullable=False),
    Column("time", BigInteger, nullable=False),
)
