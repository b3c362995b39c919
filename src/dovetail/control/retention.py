"""What jobs leave on disk goes when they have been over for long.

Of a job that ended so many days ago the folders of its attempts (output, reports) are removed, and its
checkpoints if it completed: those of one that failed may be all that is left of its work. What the store
holds of it stays. Only what the store knows to be over is touched, so a folder of another origin is safe.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sa

from dovetail.control import tables
from dovetail.control.states import State
from dovetail.control.store import Store
from dovetail.model.errors import DovetailError

DAY_SECONDS = 86_400
AT_ONCE = 500

log = logging.getLogger("dovetail.plane")


def prune(store: Store, folder: Path, before: int) -> int:
    """Remove what jobs that ended before that moment left; how many folders."""
    removed = 0
    for name, states in (("attempts", None), ("checkpoints", (State.COMPLETED.value,))):
        for job in _over(store, _names(folder / name), before, states):
            shutil.rmtree(folder / name / job, ignore_errors=True)
            removed += not (folder / name / job).exists()
    return removed


def _names(folder: Path) -> list[str]:
    """Folders that may be those of jobs, and are not in use."""
    try:
        found = [entry.name for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False)]
        active = os.listdir(folder / ".active") if (folder / ".active").is_dir() else []
    except OSError:
        return []
    in_use = {name.rpartition("@")[0] for name in active}
    return sorted(name for name in found if not name.startswith(".") and name not in in_use)


def _over(store: Store, names: list[str], before: int, states: tuple[str, ...] | None) -> Iterator[str]:
    c = tables.jobs.c
    for start in range(0, len(names), AT_ONCE):
        query = sa.select(c.id).where(c.id.in_(names[start : start + AT_ONCE]), c.ended_at < before)
        with store.reading() as connection:
            found = connection.execute(query if states is None else query.where(c.state.in_(states))).all()
        yield from (row.id for row in found)


@contextmanager
def pruned(store: Store, folder: Path, before: Callable[[], int]) -> Iterator[None]:
    """While inside: prune now, and then once a day, beside everything else."""
    closing = threading.Event()

    def work() -> None:
        while True:
            try:
                if removed := prune(store, folder, before()):
                    log.info("removed %d folders of jobs that were over for long", removed)
            except (DovetailError, OSError) as error:
                log.warning("old folders could not be removed: %s", error)
            if closing.wait(DAY_SECONDS):
                return

    thread = threading.Thread(target=work, name="retention", daemon=True)
    thread.start()
    try:
        yield
    finally:
        closing.set()
        thread.join(timeout=60)
