"""The database of the planes: the product's own store on a real SQLite file, with faults at its
transactions.

Two planes on one database behave as on PostgreSQL: each has a session that holds the advisory lock of
the election. The server releases the lock when the process of the session ends or the session is cut; a
process that is only stopped keeps it.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from tests.chaos.room import SECOND, Process, Room, Task

from dovetail.control import store as store_module
from dovetail.control import tables
from dovetail.control.migrations import LATEST
from dovetail.control.store import Batch, Deposed, Store, StoreError

LEASE = 15 * SECOND
Committed = Callable[["ChaosStore", Batch], None]


@cache
def template() -> Path:
    """A database with all tables. They are made as the code has them: migrations have tests of their own."""
    folder = Path(tempfile.mkdtemp(prefix="dovetail-chaos-template-", dir="/dev/shm"))
    store = Store(f"sqlite:///{folder / 'plane.db'}")
    tables.metadata.create_all(store.engine)
    with store.engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
    store.close()
    return folder


def drop_template() -> None:
    if template.cache_info().currsize:
        shutil.rmtree(template(), ignore_errors=True)
        template.cache_clear()


@dataclass(eq=False)
class Session:
    """A connection that may hold the lock of the election."""

    process: Process
    cut: bool = False
    lease_until: int | None = None  # None: it has the lead for as long as it lives


class Server:
    """The database server: which session holds the lock, and which planes reach it."""

    def __init__(self, room: Room, file: Path) -> None:
        self.room = room
        self.url = f"sqlite:///{file}"
        # Shared by all planes that are started: SQLAlchemy compiles each statement once for an engine.
        self.engine = store_module._engine(self.url)
        self.holder: Session | None = None
        self.led_last: str | None = None  # the name of the process that held it last
        self.unreachable: dict[str, int] = {}  # by name of a process: until when
        self.lost_answers = 0.0  # share of commits whose answer is lost
        self.committed: Committed = lambda store, batch: None

    def reachable(self, process: Process) -> bool:
        return self.room.now >= self.unreachable.get(process.name, 0)

    def locked(self) -> Session | None:
        """The session that holds the lock."""
        held = self.holder
        if held is not None and (held.cut or not held.process.alive):
            self.holder = held = None
        return held


class DatabaseLock:
    """An election with the semantics of `DatabaseElection`: the lock of a session, and perhaps a lease.

    A plane that names its address when it asks for the lead has a lease: it renews it by a thread, and asks
    `check` in each tick. Another plane takes over when the lease has run out.
    """

    def __init__(self, server: Server, store: Store) -> None:
        self._server = server
        self._store: Any = store
        self._session: Session | None = None

    def won(self, address: str = "", above: int = 0) -> bool:
        server, room = self._server, self._server.room
        room.io("election")
        process = room.process()
        if not server.reachable(process):
            self.leave()
            return False
        if self._session is not None and not address:
            if self._session.cut:
                self._session = None
            return self._session is not None
        held = server.locked()
        if held is not None and not (held.lease_until is not None and held.lease_until < room.now):
            return False
        self._session = server.holder = session = Session(process)
        room.note("won the election")
        room.struck["second-plane"] += server.led_last not in (None, process.name)
        server.led_last = process.name
        if address:
            session.lease_until = room.now + LEASE
            if not self._store.lead(address, above=above):
                return False
            room.thread(process, "lease", lambda: self._renew(session))
        return True

    def _renew(self, session: Session) -> None:
        server, room = self._server, self._server.room
        while not session.cut and server.holder is session:
            if server.reachable(session.process):
                session.lease_until = room.now + LEASE
            room.sleep(LEASE / 5 / SECOND)

    def check(self) -> None:
        session, room = self._session, self._server.room
        room.current()
        if session is None or session.cut or self._server.holder is not session:
            raise Deposed("another plane has taken the lead")
        if session.lease_until is None or session.lease_until - LEASE // 10 < room.now:
            raise Deposed("the lease has run out")

    def leave(self) -> None:
        self._server.room.current()
        if self._session is not None:
            self._session.cut = True
            self._session = None


class ChaosStore(Store):
    """The product's store, with yield points and faults around each transaction."""

    server: Server  # set for each room

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._written: dict[Task | None, Batch] = {}  # by the thread that writes it

    def migrate(self, version: int = LATEST, *, told: Callable[[int, int], None] | None = None) -> None:
        """The tables are there."""

    def close(self) -> None:
        """The engine is that of the server, with connections that the next plane takes over."""

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        self._fault("begin a transaction")
        with super().transaction() as connection:
            yield connection
        room = self.server.room
        if (batch := self._written.pop(room.current(), None)) is not None:
            self.server.committed(self, batch)
        if room.random.random() < self.server.lost_answers:
            room.note("the answer to a commit is lost")
            room.struck["lost-answer"] += 1
            room.sleep(0.5)
            raise StoreError("the database cannot be used: the connection was lost")
        room.io("committed")

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        room = self.server.room
        task = room.current()
        if task is not None and not self.server.reachable(task.process):
            room.sleep(1.0)
            raise StoreError("the database cannot be used: it does not answer")
        with super().reading() as connection:
            yield connection

    def commit(self, batch: Batch) -> None:
        task = self.server.room.current()
        self._written[task] = batch
        try:
            super().commit(batch)
        finally:
            self._written.pop(task, None)

    def _fault(self, what: str) -> None:
        room = self.server.room
        room.io(what)
        task = room.current()
        if task is not None and not self.server.reachable(task.process):
            room.sleep(1.0)
            raise StoreError("the database cannot be used: it does not answer")
        if room.disk_full:
            raise StoreError(
                "the disk is full (database or disk is full); make room, nothing accepted was lost"
            )


def corrupt_snapshot(store_file: Path, room: Room) -> bool:
    """Flip some bytes of the newest snapshot on disk; False if there is none."""
    engine = sa.create_engine(f"sqlite:///{store_file}")
    try:
        with engine.begin() as connection:
            row = connection.exec_driver_sql(
                "SELECT era, number, state FROM snapshots ORDER BY era DESC, number DESC LIMIT 1"
            ).first()
            if row is None:
                return False
            data = bytearray(row.state)
            for _ in range(3):
                data[room.random.randrange(len(data))] ^= 1 << room.random.randrange(8)
            changed: dict[str, Any] = {"era": row.era, "number": row.number, "state": bytes(data)}
            connection.execute(
                sa.text("UPDATE snapshots SET state = :state WHERE era = :era AND number = :number"), changed
            )
    finally:
        engine.dispose()
    return True
