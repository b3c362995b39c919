"""Who leads: of several planes on one database one decides, and the others wait for it to go.

On SQLite the lock is a file in the state folder; on PostgreSQL an advisory lock of a session, which the
database lets go of by itself when the leader's connection breaks. Whoever leads also takes a new term
(`Store.lead`), so that a leader that lost its lock without noticing cannot write.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Protocol

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

KEY = 7310201  # "dove" among the advisory locks of a database


class Election(Protocol):
    """A lock that one plane at a time holds."""

    def won(self) -> bool:
        """Whether this plane leads from now on; asks again each time until it does."""

    def leave(self) -> None:
        """Let another lead."""


class FileElection:
    """By a lock on a file, which ends with the process however that ends."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None

    def won(self) -> bool:
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

    def leave(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def holder(self) -> str:
        """The process that holds it, as it wrote there."""
        try:
            return self._path.read_text().strip() or "unknown"
        except OSError:
            return "unknown"


class DatabaseElection:
    """By an advisory lock of PostgreSQL."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._session: Connection | None = None

    def won(self) -> bool:
        try:
            if self._session is None:
                session = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
                if not session.execute(sa.select(sa.func.pg_try_advisory_lock(KEY))).scalar():
                    session.close()
                    return False
                self._session = session
            else:
                self._session.exec_driver_sql("SELECT 1")  # raises once the session, and so the lock, is gone
        except sa.exc.DBAPIError:
            self.leave()
            return False
        return True

    def leave(self) -> None:
        if self._session is not None:
            self._session.invalidate()  # a session of a pool would keep the lock
            self._session.close()
            self._session = None
