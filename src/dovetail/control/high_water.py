"""The last step that was recorded, kept beside the database.

A database can lose its last commits: a log that was deleted or cut, an old backup, a file that was replaced.
What is left may look whole. A plane that went on from there would stop the jobs that it has never heard of.
So the number of the last step is also in a small file of the state folder, written after each commit: a
database with fewer steps is older than the folder. (`control.binding` notices another database.)
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import sqlalchemy as sa

from dovetail.control import tables
from dovetail.control.store import Store
from dovetail.engines.contract import AttemptKey
from dovetail.model.errors import InputError

LENGTH = 120  # bytes of the file, always: a shorter mark leaves nothing of a longer one
MOST_NAMED = 3


class LostWrites(InputError):
    """The database is older than the state folder."""


class Mark(NamedTuple):
    """A step of a database."""

    database: str  # the id that it shares with the state folder (`control.binding`)
    step: int


class HighWater:
    """The file with the mark."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> Mark | None:
        """The mark; None if there is none, or it is damaged."""
        with suppress(OSError, ValueError, KeyError, TypeError):
            found = json.loads(self._path.read_bytes()[:LENGTH])
            if isinstance(found["database"], str) and isinstance(found["step"], int):
                return Mark(found["database"], found["step"])
        return None

    def note(self, mark: Mark, *, durable: bool) -> None:
        """Write the mark. One that is not written is only older than it could be."""
        with suppress(OSError):
            file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                os.pwrite(file, json.dumps(mark._asdict()).ljust(LENGTH - 1).encode() + b"\n", 0)
                if durable:
                    os.fsync(file)
            finally:
                os.close(file)


def check_nothing_is_lost(store: Store, folder: Path, known: set[AttemptKey], mark: Mark | None) -> None:
    """Refuse a database that is older than the mark, or does not know attempts that the engine has.

    The mark and the attempts were read before: another plane may lead and write meanwhile.
    """
    last = store.last_step()
    if mark is not None and mark.database == store.folder and last < mark.step:
        found = f"its last step is {last}, and step {mark.step} was recorded here"
    elif unheard := sorted(known - _recorded(store, known)):
        names = ", ".join(f"{job} (attempt {epoch})" for job, epoch in unheard[:MOST_NAMED])
        more = f" and {len(unheard) - MOST_NAMED} more" if len(unheard) > MOST_NAMED else ""
        found = f"it does not know {names}{more}"
    else:
        return
    raise LostWrites(
        f"the database is older than the state folder {folder}: {found}; restore the newest backup, or go on "
        "without what is lost, and stop the jobs that it does not know, with dovetail up --accept-loss"
    )


def _recorded(store: Store, attempts: set[AttemptKey]) -> set[AttemptKey]:
    """The attempts of which there is a record."""
    c = tables.attempts.c
    jobs = sorted({job for job, _ in attempts})
    found: set[AttemptKey] = set()
    with store.reading() as connection:
        for start in range(0, len(jobs), 500):
            query = sa.select(c.job, c.epoch).where(c.job.in_(jobs[start : start + 500]))
            found |= {(row.job, row.epoch) for row in connection.execute(query)}
    return found
