"""The store of a plane: one writer, one commit per tick.

A commit holds all changes of a tick: the step, the jobs, the attempts and the idempotency keys. After a crash
either all of it is there or none. Each commit checks in the same transaction that this plane still leads: a
plane that was deposed cannot write.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from dovetail.control import migrations, tables
from dovetail.control.records import CHANGING, AttemptRecord, Record, Segment
from dovetail.control.states import ACTIVE
from dovetail.model.errors import DovetailError, InputError

LEADER, LEASE, FOLDER = "leader", "lease", "folder"  # keys in `meta`
LEADING = 7310202  # an advisory lock of PostgreSQL, held while a term begins
LOCK_TIMEOUT_MS = 2_000  # for a plane that tries to lead while another one commits
LONGEST_PAUSE_MS = 10_000  # in a transaction; the database ends the session of a plane that hangs in one
LOCK_NOT_AVAILABLE = "55P03"  # of PostgreSQL
PRUNED_AT_ONCE = 1_000  # rows; the loop commits in between


class StoreError(DovetailError):
    """The database cannot be read or written now."""


class BadStore(StoreError, InputError):
    """The database cannot be opened: its address is wrong, or an administrator has to repair it."""


class RefusedWrite(StoreError):
    """The database works, and refuses a value: writing it again would be refused again."""


class BadSnapshot(DovetailError):
    """A snapshot in the store cannot be read."""


class Deposed(StoreError):
    """Another plane has taken the lead."""


class Led(NamedTuple):
    """The plane that led last."""

    term: int  # 0: none has led yet
    url: str
    left: float  # seconds until its lease runs out; not positive if it has


class StoredRequest(NamedTuple):
    """A submission."""

    body: Any
    workdir: str
    account: str | None  # None: of an older plane


@dataclass(slots=True)
class Batch:
    """The rows that one tick writes."""

    steps: list[dict[str, Any]] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)
    added: list[Record] = field(default_factory=list)
    changed: dict[str, Record] = field(default_factory=dict)
    begun: list[AttemptRecord] = field(default_factory=list)
    ended: list[AttemptRecord] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)
    keys: list[dict[str, Any]] = field(default_factory=list)
    eras: list[dict[str, Any]] = field(default_factory=list)
    snapshots: list[dict[str, Any]] = field(default_factory=list)
    tenants: list[dict[str, Any]] = field(default_factory=list)
    dropped_tenants: list[str] = field(default_factory=list)
    speeds: list[dict[str, Any]] = field(default_factory=list)
    values: list[dict[str, str]] = field(default_factory=list)  # key and value, as `keep` writes them

    def __bool__(self) -> bool:
        return any(getattr(self, name) for name in self.__slots__)


def url_of(database: str | None, folder: Path) -> str:
    """The address of the database for SQLAlchemy; by default a file in the state folder."""
    if not database:
        return f"sqlite:///{folder / 'plane.db'}"
    if database.startswith(("postgresql://", "postgres://")):
        return "postgresql+psycopg://" + database.partition("://")[2]
    if database.startswith(("postgresql+psycopg://", "sqlite:///")):
        return database
    raise BadStore(
        f"the database {masked(database)} is neither SQLite nor PostgreSQL; "
        "write sqlite:////path/to/file or postgresql://user@host/name"
    )


def masked(url: str) -> str:
    """The address without its password, which may also be in the options."""
    try:
        return sa.make_url(url).set(query={}).render_as_string(hide_password=True)
    except (sa.exc.ArgumentError, ValueError):
        return url.split("://", maxsplit=1)[0] + "://…"


class Store:
    """The database of a plane."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.term = 0  # the term in which this plane leads
        self.folder = ""  # the id of the state folder that the database is bound to, once that was checked
        self.sqlite = url.startswith("sqlite")
        try:
            self.engine = _engine(url)
            with self.engine.connect() as connection:
                if self.sqlite:
                    found = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar()
                    if found != "ok":
                        raise BadStore(self._corrupt(" ".join(str(found).split())))
                else:
                    connection.exec_driver_sql("SELECT 1")
        except ModuleNotFoundError as error:
            raise BadStore(
                f"the database {masked(url)} needs the package {error.name}; "
                "install it: pip install 'dovetail[postgres]'"
            ) from None
        except sa.exc.DBAPIError as error:
            raise BadStore(self.told(error)) from None
        except (sa.exc.ArgumentError, ValueError):
            raise BadStore(
                f"the database {masked(url)} cannot be read as an address; write postgresql://user@host:5432/name"
            ) from None

    def _corrupt(self, found: str) -> str:
        return (
            f"the database {masked(self.url)} is corrupt ({found}); nothing was changed: restore it from a "
            "backup, or name another --state to start with an empty one"
        )

    def told(self, error: sa.exc.DBAPIError) -> str:
        """The problem in one line, and what to do."""
        problem = " ".join(str(error.orig).split())
        if any(word in problem for word in ("malformed", "not a database", "corrupt")):
            return self._corrupt(problem)
        if "full" in problem or "No space" in problem:
            return f"the disk of {masked(self.url)} is full ({problem}); free space, no accepted job is lost"
        if "readonly" in problem or "unable to open" in problem:
            return f"the database {masked(self.url)} cannot be written ({problem}); fix its permissions"
        return f"the database {masked(self.url)} cannot be used: {problem}"

    def close(self) -> None:
        self.engine.dispose()

    def migrate(
        self, version: int = migrations.LATEST, *, told: Callable[[int, int], None] | None = None
    ) -> None:
        """Bring the tables to the schema of this version, or of an earlier one; `told` hears of its steps."""
        try:
            with self.engine.begin() as connection:
                if self.sqlite:  # or it would commit each table on its own
                    connection.exec_driver_sql("BEGIN IMMEDIATE")
                else:  # two planes may start at once
                    connection.exec_driver_sql("SELECT pg_advisory_xact_lock(7310200)")
                migrations.upgrade(connection, version, told)
        except migrations.NewerSchema as error:
            raise BadStore(
                f"the database {masked(self.url)} is from a newer Dovetail ({error}); upgrade this one"
            ) from None
        except sa.exc.DBAPIError as error:
            raise BadStore(self.told(error)) from None

    def has_tables(self) -> bool:
        """Whether this is the database of a plane already."""
        try:
            return sa.inspect(self.engine).has_table(tables.meta.name)
        except sa.exc.DBAPIError as error:
            raise StoreError(self.told(error)) from error

    # -- leading

    def lead(
        self, address: str, *, above: int = 0, after: int | None = None, lease: float | None = None
    ) -> bool:
        """Begin a new term: this plane may write, and the one that led before may not.

        It is newer than the last one and than `above`. With `after` it begins only if that is the last term
        still. The lease is in seconds from now. Returns whether the term has begun.
        """
        with self.transaction() as connection:
            if not self.sqlite:
                connection.exec_driver_sql(f"SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS}")
            try:
                if not self.sqlite:  # two planes may begin the first term, for which there is no row to lock
                    connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({LEADING})")
                rows = _values(connection, LEADER, FOLDER, lock=True)
            except sa.exc.DBAPIError as error:
                if getattr(error.orig, "sqlstate", "") != LOCK_NOT_AVAILABLE:
                    raise
                connection.rollback()  # the leader hangs in a commit
                self._end_hanging()
                return False
            last = json.loads(rows[LEADER])["term"] if LEADER in rows else 0
            if after is not None and last != after:
                return False
            if self.folder and (FOLDER not in rows or json.loads(rows[FOLDER])["id"] != self.folder):
                raise BadStore(
                    f"the database {masked(self.url)} was bound to another state folder; "
                    "this plane cannot lead: stop it"
                )
            term = max(last, above) + 1
            value = json.dumps({"term": term, "url": address})
            if LEADER in rows:
                connection.execute(
                    sa.update(tables.meta).where(tables.meta.c.key == LEADER).values(value=value)
                )
            else:
                connection.execute(sa.insert(tables.meta).values(key=LEADER, value=value))
            if lease is not None:
                connection.execute(_BEGIN_LEASE, {"term": term, "lease": lease})
        self.term = term
        return True

    def _end_hanging(self) -> None:
        """End the sessions that have kept a row of `meta` locked for too long.

        The database does so itself, but not with a session that was stopped between two statements that its
        driver sends together: that one does not count as idle.
        """
        with self.transaction() as connection:
            connection.execute(_END_HANGING, {"pause": LONGEST_PAUSE_MS / 1_000})

    def renewed(self, connection: Connection, term: int, lease: float) -> bool:
        """Renew the lease of a term; False if that term is over. For any thread, with its own connection."""
        return bool(connection.execute(_RENEW_LEASE, {"term": term, "lease": lease}).rowcount)

    def led(self) -> Led:
        """The plane that led last, and what is left of its lease by the clock of the database."""
        with self.reading() as connection:
            rows = _values(connection, LEADER, LEASE)
            clock = 0.0 if self.sqlite else float(connection.execute(_DATABASE_CLOCK).scalar() or 0.0)
        if LEADER not in rows:
            return Led(0, "", 0.0)
        leader, lease = json.loads(rows[LEADER]), json.loads(rows.get(LEASE, "{}"))
        left = lease["until"] - clock if lease.get("term") == leader["term"] else 0.0
        return Led(leader["term"], leader["url"], left)

    def leader(self) -> str:
        """The address of the plane that led last."""
        with self.reading() as connection:
            row = connection.execute(
                sa.select(tables.meta.c.value).where(tables.meta.c.key == LEADER)
            ).scalar()
        return str(json.loads(row)["url"]) if row else ""

    def _still_leads(self, connection: Connection) -> None:
        row = connection.execute(_LEADER_LOCKED).scalar()
        if row is None or json.loads(row)["term"] != self.term:
            raise Deposed("another plane has taken the lead; this one writes no more")

    # -- transactions

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        try:
            with self.engine.begin() as connection:
                if not self.sqlite:  # a plane that hangs here must not keep what it has locked
                    connection.exec_driver_sql(
                        f"SET LOCAL idle_in_transaction_session_timeout = {LONGEST_PAUSE_MS}"
                    )
                yield connection
        except (sa.exc.IntegrityError, sa.exc.DataError, sa.exc.ProgrammingError) as error:
            problem = " ".join(str(error.orig).split())
            raise RefusedWrite(f"the database {masked(self.url)} refuses a value: {problem}") from error
        except sa.exc.DBAPIError as error:
            raise StoreError(self.told(error)) from error

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        try:
            with self.engine.connect() as connection:
                yield connection
        except sa.exc.DBAPIError as error:
            raise StoreError(self.told(error)) from error

    def commit(self, batch: Batch) -> None:
        """Write the whole batch, or nothing."""
        try:
            self._write(batch)
        except (ValueError, OverflowError, TypeError) as error:  # of the driver: it has no such value
            raise RefusedWrite(f"the database {masked(self.url)} has no such value: {error}") from error

    def _write(self, batch: Batch) -> None:
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
                    connection.execute(_INSERT[table.name], rows)
            for taken in batch.snapshots:
                self._thin_out(connection, taken["era"])
            added = {r.id for r in batch.added}  # these were written above
            changed = [{"key": r.id, **r.changing()} for r in batch.changed.values() if r.id not in added]
            if changed:
                connection.execute(_UPDATE_JOB, changed)
            for segment in batch.segments:
                _begin_segment(connection, segment)
            if resized := [a for a in batch.ended if a.resized]:
                rows = [{"key_job": a.job, "key_epoch": a.epoch, "at": a.ended_at} for a in resized]
                connection.execute(_END_SEGMENT, rows)
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
                            "preempted_by": _json_or_null(a.preempted_by),
                        }
                        for a in batch.ended
                    ],
                )
            for name in batch.dropped_tenants:
                connection.execute(sa.delete(tables.tenants).where(tables.tenants.c.name == name))
            for row in batch.tenants:
                connection.execute(sa.delete(tables.tenants).where(tables.tenants.c.name == row["name"]))
                connection.execute(sa.insert(tables.tenants).values(**row))
            for row in batch.values:
                _keep(connection, row["key"], row["value"])
            for row in batch.speeds:
                same = sa.and_(
                    *(tables.speeds.c[name] == row[name] for name in ("tenant", "model", "type", "gpus"))
                )
                connection.execute(sa.delete(tables.speeds).where(same))
                connection.execute(sa.insert(tables.speeds).values(**row))

    def _thin_out(self, connection: Connection, era: int) -> None:
        """Keep the first snapshot of an era, from which it can be replayed, and the last two."""
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

    # -- removal of what is old

    def prune_journal(self, before: int) -> int:
        """Remove steps before a time that no start needs; returns how many.

        A start needs the last two snapshots of the last era and the steps after them. An older era goes with
        its snapshots once all of its steps are old; its header stays.
        """
        journal, snapshots = tables.journal.c, tables.snapshots.c
        era = self.era()
        kept = [] if era is None else self.snapshots_of(era["id"])[:2]
        if era is None or not kept:
            return 0
        needed = kept[-1]
        old = sa.and_(journal.time < before, journal.number <= needed, journal.number < self.last_step())
        removed = 0
        while True:
            with self.transaction() as connection:
                self._still_leads(connection)
                few = sa.select(journal.number).where(old).order_by(journal.number).limit(PRUNED_AT_ONCE)
                numbers = list(connection.execute(few).scalars())
                if numbers:
                    connection.execute(sa.delete(tables.journal).where(journal.number <= numbers[-1]))
                    removed += len(numbers)
                first = connection.execute(sa.select(sa.func.min(journal.number))).scalar()
                if removed and first is not None:  # snapshots from which nothing can be replayed any more
                    connection.execute(
                        sa.delete(tables.snapshots).where(
                            snapshots.number < first - 1,
                            sa.or_(snapshots.era != era["id"], snapshots.number < needed),
                        )
                    )
            if len(numbers) < PRUNED_AT_ONCE:
                return removed

    def prune_keys(self, before: int) -> None:
        """Remove idempotency keys of submissions before a time."""
        with self.transaction() as connection:
            self._still_leads(connection)
            connection.execute(sa.delete(tables.keys).where(tables.keys.c.time < before))

    def last_time(self) -> int | None:
        """The time of the last step."""
        with self.reading() as connection:
            found: int | None = connection.execute(sa.select(sa.func.max(tables.journal.c.time))).scalar()
        return found

    # -- reads at start-up

    def era(self) -> dict[str, Any] | None:
        """The last era."""
        with self.reading() as connection:
            row = connection.execute(_LAST_ERA).first()
        return dict(row._mapping) if row else None

    def snapshots_of(self, era: int, up_to: int | None = None) -> list[int]:
        """The steps after which snapshots of an era were taken, the last one first."""
        with self.reading() as connection:
            numbers = connection.execute(_SNAPSHOTS_OF, {"of": era}).scalars()
            return [number for number in numbers if up_to is None or number <= up_to]

    def snapshot(self, era: int, number: int) -> dict[str, Any]:
        """The snapshot of an era after a step. It raises BadSnapshot if it cannot be read."""
        with self.reading() as connection:
            state = connection.execute(_SNAPSHOT, {"of": era, "after": number}).scalar_one()
        try:
            taken = json.loads(zlib.decompress(state))
        except (zlib.error, ValueError, RecursionError) as error:
            raise BadSnapshot(f"it is damaged: {error}") from None
        if not isinstance(taken, dict) or taken.get("number") != number:
            raise BadSnapshot("it holds something else")
        return taken

    def steps(self, era: int, after: int) -> Iterator[str]:
        """The lines of the journal after a step."""
        with self.reading() as connection:
            found = connection.execution_options(yield_per=500).execute(_STEPS, {"of": era, "after": after})
            for row in found:
                yield row.line

    def last_step(self) -> int:
        with self.reading() as connection:
            return connection.execute(_LAST_STEP).scalar() or 0

    def active(self) -> list[Record]:
        """All jobs that are not over, in the order in which they were submitted."""
        with self.reading() as connection:
            return [Record.from_row(row._mapping) for row in connection.execute(_ACTIVE_JOBS)]

    def requests(self, ids: Sequence[str]) -> dict[str, StoredRequest]:
        """Submissions by id."""
        found: dict[str, StoredRequest] = {}
        with self.reading() as connection:
            for start in range(0, len(ids), 500):
                query = sa.select(tables.requests).where(tables.requests.c.id.in_(ids[start : start + 500]))
                for row in connection.execute(query):
                    found[row.id] = StoredRequest(json.loads(row.body), row.workdir, row.account)
        return found

    def next_seq(self) -> int:
        with self.reading() as connection:
            return (connection.execute(_LAST_SEQ).scalar() or 0) + 1

    def states_of(self, ids: Collection[str]) -> dict[str, str]:
        """The states of jobs by id. The id of an array stands for all its members."""
        with self.reading() as connection:
            rows = connection.execute(
                sa.select(tables.jobs.c.id, tables.jobs.c.state).where(
                    sa.or_(tables.jobs.c.id.in_(ids), tables.jobs.c.array.in_(ids))
                )
            )
            return {row.id: row.state for row in rows}

    def completed_runs(self, most: int) -> list[Any]:
        """The last completed jobs, the oldest of them first: their kind and how long they ran."""
        jobs = tables.jobs.c
        query = (
            sa.select(jobs.tenant, jobs.user, jobs.name, jobs.load, jobs.nodes, jobs.held_time)
            .where(jobs.state == "completed")
            .order_by(jobs.seq.desc())
            .limit(most)
        )
        with self.reading() as connection:
            return list(reversed(connection.execute(query).all()))

    def tenants(self) -> list[dict[str, Any]]:
        with self.reading() as connection:
            rows = connection.execute(sa.select(tables.tenants).order_by(tables.tenants.c.name))
            return [dict(row._mapping) for row in rows]

    def tenants_of(self, ids: Collection[str]) -> dict[str, str]:
        """The tenants of jobs and arrays by id; ids that do not exist are left out."""
        jobs = tables.jobs.c
        with self.reading() as connection:
            rows = connection.execute(
                sa.select(jobs.id, jobs.array, jobs.tenant).where(
                    sa.or_(jobs.id.in_(ids), jobs.array.in_(ids))
                )
            ).all()
        found = {row.id: row.tenant for row in rows if row.id in ids}
        return found | {row.array: row.tenant for row in rows if row.array in ids}

    def knows(self, kind: str, name: str) -> bool:
        """Whether the tenant or the user (`kind`) of this name has a token or a job."""
        with self.reading() as connection:
            return any(
                connection.execute(sa.select(c[kind]).where(c[kind] == name).limit(1)).first() is not None
                for c in (tables.tokens.c, tables.jobs.c)
            )

    def known_tenants(self) -> set[str]:
        """All tenants that have a token or a job."""
        with self.reading() as connection:
            found = {row.tenant for row in connection.execute(sa.select(tables.tokens.c.tenant).distinct())}
            # From one to the next by the index: there may be millions of jobs, and there are few tenants.
            tenant = tables.jobs.c.tenant
            last: str | None = ""
            while last is not None:
                last = connection.execute(sa.select(sa.func.min(tenant)).where(tenant > last)).scalar()
                found.add(last)
            return {name for name in found if name}

    def speeds(self) -> list[dict[str, Any]]:
        with self.reading() as connection:
            return [dict(row._mapping) for row in connection.execute(sa.select(tables.speeds))]

    def remembered(self, owner: str, key: str) -> tuple[bytes, Any] | None:
        """The digest of the submission with this key, and the answer to it."""
        with self.reading() as connection:
            row = connection.execute(
                sa.select(tables.keys).where(tables.keys.c.owner == owner, tables.keys.c.key == key)
            ).first()
        return (bytes(row.digest), json.loads(row.answer)) if row else None

    def value(self, key: str) -> str | None:
        with self.reading() as connection:
            found: str | None = connection.execute(_VALUE, {"name": key}).scalar()
        return found

    def keep(self, key: str, value: str) -> None:
        """Write a value outside a tick, if this plane leads."""
        with self.transaction() as connection:
            self._still_leads(connection)
            _keep(connection, key, value)


def packed(state: dict[str, Any]) -> bytes:
    """A snapshot as it is stored."""
    return zlib.compress(json.dumps(state, separators=(",", ":")).encode(), 3)


def _values(connection: Connection, *keys: str, lock: bool = False) -> dict[str, str]:
    query = sa.select(tables.meta).where(tables.meta.c.key.in_(keys)).order_by(tables.meta.c.key)
    return {row.key: row.value for row in connection.execute(query.with_for_update() if lock else query)}


def _keep(connection: Connection, key: str, value: str) -> None:
    connection.execute(_DROP_VALUE, {"name": key})
    connection.execute(_INSERT["meta"], {"key": key, "value": value})


# The statements of every commit and every start: to build one takes longer than to run it.
_INSERT = {table.name: sa.insert(table) for table in tables.metadata.sorted_tables}
_VALUE = sa.select(tables.meta.c.value).where(tables.meta.c.key == sa.bindparam("name"))
_DROP_VALUE = sa.delete(tables.meta).where(tables.meta.c.key == sa.bindparam("name"))
_LAST_ERA = sa.select(tables.eras).order_by(tables.eras.c.id.desc()).limit(1)
_LAST_STEP = sa.select(sa.func.max(tables.journal.c.number))
_LAST_SEQ = sa.select(sa.func.max(tables.jobs.c.seq))
_SNAPSHOTS_OF = (
    sa.select(tables.snapshots.c.number)
    .where(tables.snapshots.c.era == sa.bindparam("of"))
    .order_by(tables.snapshots.c.number.desc())
)
_SNAPSHOT = sa.select(tables.snapshots.c.state).where(
    tables.snapshots.c.era == sa.bindparam("of"), tables.snapshots.c.number == sa.bindparam("after")
)
_STEPS = (
    sa.select(tables.journal.c.line)
    .where(tables.journal.c.era == sa.bindparam("of"), tables.journal.c.number > sa.bindparam("after"))
    .order_by(tables.journal.c.number)
)
_ACTIVE_JOBS = (
    sa.select(tables.jobs)
    .where(tables.jobs.c.state.in_([s.value for s in ACTIVE]))
    .order_by(tables.jobs.c.seq)
)
_LEADER_LOCKED = sa.select(tables.meta.c.value).where(tables.meta.c.key == LEADER).with_for_update(read=True)
_DATABASE_CLOCK = sa.text("SELECT extract(epoch FROM clock_timestamp())")
_END_HANGING = sa.text(
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity JOIN pg_locks USING (pid) "
    f"WHERE relation = '{tables.meta.name}'::regclass AND mode IN ('RowShareLock', 'RowExclusiveLock') "
    "AND granted AND pid <> pg_backend_pid() "
    "AND xact_start < clock_timestamp() - make_interval(secs => cast(:pause AS double precision))"
)
_LEASE_VALUE = (
    "json_build_object('term', cast(:term AS bigint), "
    "'until', extract(epoch FROM clock_timestamp()) + cast(:lease AS double precision))::text"
)
_BEGIN_LEASE = sa.text(
    f"INSERT INTO meta (key, value) VALUES ('{LEASE}', {_LEASE_VALUE}) "
    "ON CONFLICT (key) DO UPDATE SET value = excluded.value"
)
_RENEW_LEASE = sa.text(
    f"UPDATE meta SET value = {_LEASE_VALUE} "
    f"WHERE key = '{LEASE}' AND (value::json ->> 'term')::bigint = cast(:term AS bigint)"
)
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
    .values(
        {name: sa.bindparam(name) for name in ("ended_at", "exit_code", "cause", "detail", "preempted_by")}
    )
)


_S = tables.segments.c
_END_SEGMENT = (
    sa.update(tables.segments)
    .where(_S.job == sa.bindparam("key_job"), _S.epoch == sa.bindparam("key_epoch"), _S.ended_at.is_(None))
    .values(ended_at=sa.bindparam("at"))
)
_RESIZE_ATTEMPT = (
    sa.update(tables.attempts)
    .where(
        tables.attempts.c.job == sa.bindparam("key_job"),
        tables.attempts.c.epoch == sa.bindparam("key_epoch"),
        tables.attempts.c.resized_at.is_(None),
    )
    .values(resized_at=sa.bindparam("at"))
)


def _begin_segment(connection: Connection, segment: Segment) -> None:
    """An attempt holds something else from now on. Of several changes at one moment the last counts."""
    key = {"key_job": segment.job, "key_epoch": segment.epoch, "at": segment.started_at}
    same = sa.and_(_S.job == segment.job, _S.epoch == segment.epoch, _S.started_at == segment.started_at)
    connection.execute(sa.delete(tables.segments).where(same))
    connection.execute(_RESIZE_ATTEMPT, key)
    connection.execute(_END_SEGMENT, key)
    row = {**asdict(segment), "placement": json.dumps(segment.placement)}
    connection.execute(_INSERT["segments"], row)


def _attempt_row(attempt: AttemptRecord) -> dict[str, Any]:
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
        "waited": attempt.waited,
        "preempted_by": _json_or_null(attempt.preempted_by),
    }


def _json_or_null(value: object) -> str | None:
    return None if value is None else json.dumps(value)


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
        # Each reading thread has a connection with its own cache of 4 MB.
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "cache_size=-4000"):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    return engine
