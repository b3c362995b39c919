"""The plane's memory: one writer, one commit a tick.

A commit holds everything that a tick changed: the step, the jobs, the attempts, the answers that were
promised. Either all of it is there after a crash or none. Every commit first makes sure that this plane still
leads, in the same transaction: one that was deposed cannot write any more.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from dovetail.control import tables
from dovetail.control.records import CHANGING, Attempt, Record
from dovetail.control.states import ACTIVE
from dovetail.model.errors import DovetailError, InputError

LEADER = "leader"


class StoreError(DovetailError):
    """The database cannot be used as it is."""


class BadStore(StoreError, InputError):
    """The database that was named cannot be opened: the question is wrong, or needs a person's help."""


class Deposed(StoreError):
    """Another plane leads by now."""


@dataclass(slots=True)
class Batch:
    """What one tick wants written."""

    steps: list[dict[str, Any]] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)
    added: list[Record] = field(default_factory=list)
    changed: dict[str, Record] = field(default_factory=dict)
    begun: list[Attempt] = field(default_factory=list)
    ended: list[Attempt] = field(default_factory=list)
    keys: list[dict[str, Any]] = field(default_factory=list)
    eras: list[dict[str, Any]] = field(default_factory=list)
    snapshots: list[dict[str, Any]] = field(default_factory=list)
    tenants: list[dict[str, Any]] = field(default_factory=list)
    dropped_tenants: list[str] = field(default_factory=list)
    speeds: list[dict[str, Any]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return any(getattr(self, name) for name in self.__slots__)


def url_of(database: str | None, folder: Path) -> str:
    """The database as SQLAlchemy names it: a file in the state folder unless one was asked for."""
    if not database:
        return f"sqlite:///{folder / 'plane.db'}"
    if database.startswith(("postgresql://", "postgres://")):
        return "postgresql+psycopg://" + database.partition("://")[2]
    if database.startswith(("postgresql+psycopg://", "sqlite:///")):
        return database
    raise BadStore(
        f"the database {_masked(database)} is neither SQLite nor PostgreSQL; "
        "write sqlite:////path/to/file or postgresql://user@host/name"
    )


def _masked(url: str) -> str:
    """Without its password, which may also stand among the options."""
    try:
        return sa.make_url(url).set(query={}).render_as_string(hide_password=True)
    except (sa.exc.ArgumentError, ValueError):
        return url.split("://", maxsplit=1)[0] + "://…"


class Store:
    """The database of a plane."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.term = 0  # under which this plane leads
        self.sqlite = url.startswith("sqlite")
        try:
            self.engine = _engine(url)
            with self.engine.connect() as connection:
                if self.sqlite:
                    found = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar()
                    if found != "ok":
                        raise BadStore(self._corrupt(str(found)))
                else:
                    connection.exec_driver_sql("SELECT 1")
        except ModuleNotFoundError as error:
            raise BadStore(
                f"the database {_masked(url)} needs the package {error.name}; "
                "install it: pip install 'dovetail[postgres]'"
            ) from None
        except sa.exc.DBAPIError as error:
            raise BadStore(self._told(error)) from None
        except (sa.exc.ArgumentError, ValueError):
            raise BadStore(
                f"the database {_masked(url)} cannot be read as an address; write postgresql://user@host:5432/name"
            ) from None

    def _corrupt(self, found: str) -> str:
        return (
            f"the database {_masked(self.url)} is corrupt ({found}); nothing was changed: restore it from a "
            "backup, or name another --state to begin anew"
        )

    def _told(self, error: sa.exc.DBAPIError) -> str:
        """One line about what went wrong, and what to do."""
        problem = " ".join(str(error.orig).split())
        if any(word in problem for word in ("malformed", "not a database", "corrupt")):
            return self._corrupt(problem)
        if "full" in problem or "No space" in problem:
            return (
                f"the disk of {_masked(self.url)} is full ({problem}); make room, nothing accepted was lost"
            )
        if "readonly" in problem or "unable to open" in problem:
            return f"the database {_masked(self.url)} cannot be written ({problem}); mend its permissions"
        return f"the database {_masked(self.url)} does not answer as it should: {problem}"

    def close(self) -> None:
        self.engine.dispose()

    def migrate(self) -> None:
        """Bring the tables up to what this version writes."""
        from alembic import command  # noqa: PLC0415 - half a second, and only when a plane starts
        from alembic.config import Config  # noqa: PLC0415
        from alembic.util.exc import CommandError  # noqa: PLC0415

        config = Config()
        config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
        try:
            with self.engine.begin() as connection:
                if self.sqlite:  # by itself it would commit every table on its own
                    connection.exec_driver_sql("BEGIN IMMEDIATE")
                else:  # two planes may start at once
                    connection.exec_driver_sql("SELECT pg_advisory_xact_lock(7310200)")
                config.attributes["connection"] = connection
                command.upgrade(config, "head")
        except CommandError as error:
            raise BadStore(
                f"the database {_masked(self.url)} is of a newer Dovetail ({error}); upgrade this one"
            ) from None
        except sa.exc.DBAPIError as error:
            raise BadStore(self._told(error)) from None

    # -- leading

    def lead(self, address: str) -> None:
        """Become the one who writes; whoever led before cannot any more."""
        with self.transaction() as connection:
            row = connection.execute(
                sa.select(tables.meta.c.value).where(tables.meta.c.key == LEADER).with_for_update()
            ).scalar()
            term = json.loads(row)["term"] + 1 if row else 1
            value = json.dumps({"term": term, "url": address})
            if row:
                connection.execute(
                    sa.update(tables.meta).where(tables.meta.c.key == LEADER).values(value=value)
                )
            else:
                connection.execute(sa.insert(tables.meta).values(key=LEADER, value=value))
        self.term = term

    def leader(self) -> str:
        """The address of the plane that led last."""
        with self.reading() as connection:
            row = connection.execute(
                sa.select(tables.meta.c.value).where(tables.meta.c.key == LEADER)
            ).scalar()
        return str(json.loads(row)["url"]) if row else ""

    def _still_leads(self, connection: Connection) -> None:
        row = connection.execute(
            sa.select(tables.meta.c.value).where(tables.meta.c.key == LEADER).with_for_update(read=True)
        ).scalar()
        if row is None or json.loads(row)["term"] != self.term:
            raise Deposed("another plane has taken the lead; this one writes no more")

    # -- transactions

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        try:
            with self.engine.begin() as connection:
                yield connection
        except sa.exc.DBAPIError as error:
            raise StoreError(self._told(error)) from error

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        try:
            with self.engine.connect() as connection:
                yield connection
        except sa.exc.DBAPIError as error:
            raise StoreError(self._told(error)) from error

    def commit(self, batch: Batch) -> None:
        """Write all of it, or nothing."""
        with self.transaction() as connection:
            self._still_leads(connection)
            for rows, table in (
                (batch.requests, tables.requests),
                (batch.eras, tables.eras),
                (batch.steps, tables.journal),
                ([{**r.constant(), **r.changing()} for r in batch.added], tables.jobs),
                ([_attempt_row(a) for a in batch.begun], tables.attempts),
                (batch.keys, tables.keys),
                (batch.snapshots, tables.snapshots),
            ):
                if rows:
                    connection.execute(sa.insert(table), rows)
            for taken in batch.snapshots:
                self._thin_out(connection, taken["era"])
            added = {r.id for r in batch.added}  # written above, as they are by now
            changed = [{"key": r.id, **r.changing()} for r in batch.changed.values() if r.id not in added]
            if changed:
                connection.execute(_UPDATE_JOB, changed)
            if batch.ended:
                connection.execute(
                    _END_ATTEMPT,
                    [
                        {
                            "key_job": a.job,
                            "key_epoch": a.epoch,
                            "ended_at": a.ended_at,
                            "exit_code": a.exit_code,
                            "cause": a.cause,
                            "detail": a.detail,
                        }
                        for a in batch.ended
                    ],
                )
            for name in batch.dropped_tenants:
                connection.execute(sa.delete(tables.tenants).where(tables.tenants.c.name == name))
            for row in batch.tenants:
                connection.execute(sa.delete(tables.tenants).where(tables.tenants.c.name == row["name"]))
                connection.execute(sa.insert(tables.tenants).values(**row))
            for row in batch.speeds:
                same = sa.and_(*(tables.speeds.c[name] == row[name] for name in ("model", "type", "gpus")))
                connection.execute(sa.delete(tables.speeds).where(same))
                connection.execute(sa.insert(tables.speeds).values(**row))

    def _thin_out(self, connection: Connection, era: int) -> None:
        """Of an era's snapshots the first stays, to replay from, and the last few."""
        column = tables.snapshots.c.number
        numbers = list(
            connection.execute(
                sa.select(column).where(tables.snapshots.c.era == era).order_by(column)
            ).scalars()
        )
        if drop := numbers[1:-2]:
            connection.execute(
                sa.delete(tables.snapshots).where(tables.snapshots.c.era == era, column.in_(drop))
            )

    # -- what a plane reads when it wakes up

    def era(self) -> dict[str, Any] | None:
        """The last one."""
        with self.reading() as connection:
            row = connection.execute(
                sa.select(tables.eras).order_by(tables.eras.c.id.desc()).limit(1)
            ).first()
        return dict(row._mapping) if row else None

    def snapshot(self, era: int, up_to: int | None = None) -> dict[str, Any] | None:
        """The last one of an era, or the last before a step."""
        query = sa.select(tables.snapshots).where(tables.snapshots.c.era == era)
        if up_to is not None:
            query = query.where(tables.snapshots.c.number <= up_to)
        with self.reading() as connection:
            row = connection.execute(query.order_by(tables.snapshots.c.number.desc()).limit(1)).first()
        state: dict[str, Any] | None = json.loads(zlib.decompress(row.state)) if row else None
        return state

    def steps(self, era: int, after: int) -> Iterator[str]:
        """The lines of the journal behind a step."""
        query = (
            sa.select(tables.journal.c.line)
            .where(tables.journal.c.era == era, tables.journal.c.number > after)
            .order_by(tables.journal.c.number)
        )
        with self.reading() as connection:
            for row in connection.execution_options(yield_per=500).execute(query):
                yield row.line

    def last_step(self) -> int:
        with self.reading() as connection:
            return connection.execute(sa.select(sa.func.max(tables.journal.c.number))).scalar() or 0

    def active(self) -> list[Record]:
        """All jobs that are not over, as they were submitted."""
        query = (
            sa.select(tables.jobs)
            .where(tables.jobs.c.state.in_([s.value for s in ACTIVE]))
            .order_by(tables.jobs.c.seq)
        )
        with self.reading() as connection:
            return [Record.from_row(row._mapping) for row in connection.execute(query)]

    def requests(self, ids: Sequence[str]) -> dict[str, tuple[Any, str]]:
        """What was asked for, by id: the body, and the folder it was sent from."""
        found: dict[str, tuple[Any, str]] = {}
        with self.reading() as connection:
            for start in range(0, len(ids), 500):
                query = sa.select(tables.requests).where(tables.requests.c.id.in_(ids[start : start + 500]))
                for row in connection.execute(query):
                    found[row.id] = (json.loads(row.body), row.workdir)
        return found

    def next_seq(self) -> int:
        with self.reading() as connection:
            return (connection.execute(sa.select(sa.func.max(tables.jobs.c.seq))).scalar() or 0) + 1

    def states_of(self, ids: Collection[str]) -> dict[str, str]:
        """The states of jobs by id, and of the members of arrays by theirs."""
        with self.reading() as connection:
            rows = connection.execute(
                sa.select(tables.jobs.c.id, tables.jobs.c.state).where(
                    sa.or_(tables.jobs.c.id.in_(ids), tables.jobs.c.array.in_(ids))
                )
            )
            return {row.id: row.state for row in rows}

    def tenants(self) -> list[dict[str, Any]]:
        with self.reading() as connection:
            rows = connection.execute(sa.select(tables.tenants).order_by(tables.tenants.c.name))
            return [dict(row._mapping) for row in rows]

    def tenants_of(self, ids: Collection[str]) -> dict[str, str]:
        """Whose jobs or arrays these are; those that do not exist are left out."""
        jobs = tables.jobs.c
        with self.reading() as connection:
            rows = connection.execute(
                sa.select(jobs.id, jobs.array, jobs.tenant).where(
                    sa.or_(jobs.id.in_(ids), jobs.array.in_(ids))
                )
            ).all()
        found = {row.id: row.tenant for row in rows if row.id in ids}
        return found | {row.array: row.tenant for row in rows if row.array in ids}

    def speeds(self) -> list[dict[str, Any]]:
        with self.reading() as connection:
            return [dict(row._mapping) for row in connection.execute(sa.select(tables.speeds))]

    def remembered(self, owner: str, key: str) -> tuple[bytes, Any] | None:
        """What was answered to a submission with this key, and the digest of what was sent."""
        with self.reading() as connection:
            row = connection.execute(
                sa.select(tables.keys).where(tables.keys.c.owner == owner, tables.keys.c.key == key)
            ).first()
        return (bytes(row.digest), json.loads(row.answer)) if row else None

    def value(self, key: str) -> str | None:
        with self.reading() as connection:
            found: str | None = connection.execute(
                sa.select(tables.meta.c.value).where(tables.meta.c.key == key)
            ).scalar()
        return found

    def keep(self, key: str, value: str) -> None:
        with self.transaction() as connection:
            connection.execute(sa.delete(tables.meta).where(tables.meta.c.key == key))
            connection.execute(sa.insert(tables.meta).values(key=key, value=value))


def packed(state: dict[str, Any]) -> bytes:
    """A snapshot as it is stored."""
    return zlib.compress(json.dumps(state, separators=(",", ":")).encode(), 3)


_UPDATE_JOB = (
    sa.update(tables.jobs)
    .where(tables.jobs.c.id == sa.bindparam("key"))
    .values({name: sa.bindparam(name) for name in CHANGING})
)
_END_ATTEMPT = (
    sa.update(tables.attempts)
    .where(
        tables.attempts.c.job == sa.bindparam("key_job"), tables.attempts.c.epoch == sa.bindparam("key_epoch")
    )
    .values({name: sa.bindparam(name) for name in ("ended_at", "exit_code", "cause", "detail")})
)


def _attempt_row(attempt: Attempt) -> dict[str, Any]:
    return {
        "job": attempt.job,
        "epoch": attempt.epoch,
        "placement": json.dumps(attempt.placement),
        "types": attempt.types,
        "load": attempt.load,
        "started_at": attempt.started_at,
        "ended_at": attempt.ended_at,
        "exit_code": attempt.exit_code,
        "cause": attempt.cause,
        "detail": attempt.detail,
    }


def _engine(url: str) -> Engine:
    if not url.startswith("sqlite"):
        return sa.create_engine(
            url,
            pool_size=10,
            max_overflow=20,
            pool_pre_ping=True,
            connect_args={"connect_timeout": 10, "keepalives_idle": 5, "keepalives_interval": 2},
        )
    engine = sa.create_engine(url, connect_args={"timeout": 30}, pool_size=20, max_overflow=20)

    @sa.event.listens_for(engine, "connect")
    def _set_up(connection: Any, record: object) -> None:
        cursor = connection.cursor()
        # Every thread that reads has a connection, and each its cache: 4 MB of it.
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "cache_size=-4000"):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    return engine
