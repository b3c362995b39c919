"""Leader election: of several planes on one database one leads, and the others wait to take over.

On SQLite the lock is a file in the state folder. On PostgreSQL the leader has a lease, a row that a thread
renews by the clock of the database. Another plane takes over when the lease has run out, or at once when the
database has lost the session of the leader, which holds an advisory lock named after its term.

None of this keeps a plane that was stopped for a while from acting: it believes that it leads until it looks.
So each leader begins a new term, by which the store refuses its commits (`Store.commit`) and the engine its
orders (`Engine.lead`).
"""

from __future__ import annotations

import fcntl
import logging
import math
import os
import threading
import time
from pathlib import Path
from typing import Protocol

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from dovetail.control.store import Deposed, Store, StoreError

KEY = 7310201  # "dove" among the advisory locks of a database; the second key is the term
LEASE = 15.0  # seconds after which a leader that does not renew may be replaced
RENEWALS = 5  # in the time of a lease
MARGIN = 0.1  # of a lease: a leader steps down so much earlier than others may take over
LONGEST_TICK = 120.0  # seconds; a loop that is busy for longer counts as hung, and loses its lease
LEAVING = 5.0  # seconds to wait for the database when a plane stops to lead

log = logging.getLogger("dovetail.plane")


class Election(Protocol):
    """Decides which plane leads."""

    def won(self, address: str, above: int) -> bool:
        """Try to lead, in a new term above that number (`Store.term`). Whether this plane leads now."""

    def check(self) -> None:
        """Raise `Deposed` unless this plane still leads. The loop calls this in each tick, which is quick."""

    def leave(self) -> None:
        """Stop to lead."""


class FileElection:
    """A lock on a file, which the kernel releases when the process ends."""

    def __init__(self, path: Path, store: Store) -> None:
        self._path = path
        self._store = store
        self._file: int | None = None

    def locked(self) -> bool:
        """Whether this plane has the lock. Tries to get it if not."""
        if self._file is None:
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(file)
                return False
            os.ftruncate(file, 0)
            os.write(file, f"{os.getpid()}\n".encode())
            self._file = file
        return True

    def won(self, address: str, above: int) -> bool:
        return self.locked() and self._store.lead(address, above=above)

    def check(self) -> None:
        if self._file is None:
            raise Deposed("this plane has given up its lock; it leads no more")

    def leave(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def holder(self) -> str:
        """The id of the process that holds the lock, as written in the file."""
        try:
            return self._path.read_text().strip() or "unknown"
        except OSError:
            return "unknown"


class DatabaseElection:
    """A lease in PostgreSQL."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lease = LEASE
        self._keeper: LeaseKeeper | None = None

    def led_by(self) -> str:
        """The address of the plane that leads now; "" if none does."""
        led = self._store.led()
        return led.url if led.left > 0 and not self._session_lost(led.term) else ""

    def won(self, address: str, above: int) -> bool:
        self.leave()
        led = self._store.led()
        if led.left > 0 and not self._session_lost(led.term):
            return False
        term = max(led.term, above) + 1
        try:
            session = self._store.engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        except sa.exc.DBAPIError as error:
            raise StoreError(self._store.told(error)) from error
        asked = now()
        try:
            # The lock comes first: a leader of whose term no session has the lock is taken for dead.
            while not _lock(session, term):
                term += 1  # a plane that hangs since it had this lock has not begun the term
            if not self._store.lead(address, above=term - 1, after=led.term, lease=self._lease):
                _close(session)
                return False
        except sa.exc.DBAPIError as error:
            _close(session)
            raise StoreError(self._store.told(error)) from error
        except BaseException:
            _close(session)
            raise
        self._keeper = LeaseKeeper(self._store, session, term, self._lease, asked)
        self._keeper.start()
        return True

    def check(self) -> None:
        if self._keeper is None:
            raise Deposed("this plane has no lease; it leads no more")
        self._keeper.check()

    def leave(self) -> None:
        if self._keeper is not None:
            self._keeper.stop()
            self._keeper = None

    def _session_lost(self, term: int) -> bool:
        """Whether no session has the lock of this term: its leader has gone, or was cut off."""
        with self._store.transaction() as connection:
            query = sa.select(sa.func.pg_try_advisory_xact_lock_shared(KEY, term))
            return bool(connection.execute(query).scalar())


class LeaseKeeper(threading.Thread):
    """Renews the lease of a term as long as the loop lives.

    It is a thread of its own because a tick may take longer than a lease: a slow decision must not cost the
    lead, or the next leader would lose it in the same decision. The session is used by this thread alone.
    """

    def __init__(self, store: Store, session: Connection, term: int, lease: float, asked: float) -> None:
        super().__init__(name="lease", daemon=True)
        self._store = store
        self._session: Connection | None = session
        self._term = term
        self._lease = lease
        self._until = asked + lease * (1 - MARGIN)
        self._lost = ""  # why the lease is not renewed any more
        self._ticked = math.inf  # when the loop was seen last; until its first tick it loads the jobs
        self._leaving = threading.Event()

    def check(self) -> None:
        """Called by the loop: note that it lives, and raise `Deposed` if the lease is lost."""
        self._ticked = now()
        if self._lost:
            raise Deposed(self._lost)
        if self._ticked >= self._until:
            raise Deposed(
                f"the lease of {self._lease:g} s could not be renewed; another plane may lead, this one stops"
            )

    def stop(self) -> None:
        self._leaving.set()
        self.join(LEAVING)

    def run(self) -> None:
        try:
            self._keep()
        finally:
            self._lost = self._lost or "the lease is not renewed any more; this plane stops"
            _close(self._session)

    def _keep(self) -> None:
        pause = every = self._lease / RENEWALS
        while not self._leaving.wait(pause):
            pause = every
            asked = now()
            if asked - self._ticked > LONGEST_TICK:
                self._lost = f"the loop was busy for more than {LONGEST_TICK:g} s; it leads no more"
                log.error("%s", self._lost)
                return
            try:
                renewed = self._renewed()
            except sa.exc.DBAPIError as error:
                log.warning("the lease cannot be renewed now: %s", self._store.told(error))
                _close(self._session)
                self._session = None
                pause = min(1.0, every)
                continue
            if not renewed:
                self._lost = "another plane has taken the lead; this one gives no more orders"
                return
            self._until = asked + self._lease * (1 - MARGIN)

    def _renewed(self) -> bool:
        """Renew the lease, with another session if the last one was lost; False if the term is over."""
        if self._session is None:
            session = self._store.engine.connect().execution_options(isolation_level="AUTOCOMMIT")
            self._session = session
            _lock(session, self._term)  # if another plane probes it just now, that one takes over
        return self._store.renewed(self._session, self._term, self._lease)


def now() -> float:
    """Seconds on a clock that cannot be set, and that goes on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _lock(session: Connection, term: int) -> bool:
    return bool(session.execute(sa.select(sa.func.pg_try_advisory_lock(KEY, term))).scalar())


def _close(session: Connection | None) -> None:
    if session is not None:
        session.invalidate()  # a session that returns to the pool would keep the lock
        session.close()
