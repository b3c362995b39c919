"""Removal of old files of jobs.

Some days after a job has ended, the folders of its attempts (output, reports) are removed, and its
checkpoints if it completed: the checkpoints of a failed job may be all that is left of its work. Its rows in
the store stay. Only folders of jobs that the store knows to have ended are removed.

Nothing is removed on one reading of the clock. The days that count are those that the plane has seen: while
it runs it notes its time every hour. If it starts more than two days after its last note, either no plane ran
or the clock is wrong, and the plane cannot tell which. Then the time in between does not count, and files are
kept for as much longer. The steps of the journal and the idempotency keys are removed by the same rule.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import sqlalchemy as sa

from dovetail.control import tables
from dovetail.control.states import State
from dovetail.control.store import Store
from dovetail.engines.local.terms import marked_attempts
from dovetail.model.errors import DovetailError
from dovetail.model.units import DAY

HOUR_SECONDS = 3_600.0
LOOKS_PER_DAY = 24
LONGEST_GAP = 2.0  # days between two notes of the time; of a longer gap only this much counts
KEY = "retention"  # in the store
AT_ONCE = 500

log = logging.getLogger("dovetail.plane")


def prune(store: Store, folder: Path, before: int) -> int:
    """Remove the folders of jobs that ended before that time; returns how many."""
    removed = 0
    for name, states in (("attempts", None), ("checkpoints", (State.COMPLETED.value,))):
        for job in _over(store, _names(folder / name), before, states):
            shutil.rmtree(folder / name / job, ignore_errors=True)
            removed += not (folder / name / job).exists()
    return removed


def _prune_all(store: Store, folder: Path, before: int) -> None:
    if removed := prune(store, folder, before):
        log.info("removed %d folders of jobs that ended long ago", removed)
    if steps := store.prune_journal(before):
        log.info("removed %d steps of the journal", steps)
    store.prune_keys(before)


def _names(folder: Path) -> list[str]:
    """Folders with names of jobs that are not in use."""
    try:
        found = [entry.name for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False)]
        active = marked_attempts(str(folder / ".active"))
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


@dataclass(frozen=True, slots=True)
class Seen:
    """The times that the plane has seen."""

    at: int  # the last of them
    doubt: int = 0  # of the time before, so much does not count
    since: int = 0  # when the last doubt came up

    def noted(self, now: int, keep: int, most: int) -> Seen:
        """With one more time, after a gap that is not longer than `most`, or else is doubted.

        A doubt is over once nothing is left that it could keep: after time that is not doubted itself.
        """
        doubt, since = self.doubt, self.since
        if doubt and min(now, self.at + most) - since > keep + doubt:
            doubt = 0
        if now - self.at > most:
            doubt, since = doubt + now - self.at - most, now
        return Seen(max(now, self.at), doubt, since)


def oldest_kept(store: Store, now: int, keep: int, most: int = round(LONGEST_GAP * DAY)) -> int:
    """Note the time; what ended before the result has been kept for long enough."""
    kept = store.value(KEY)
    last = Seen(**json.loads(kept)) if kept else Seen(store.last_time() or now)
    seen = last.noted(now, keep, most)
    if seen.doubt > last.doubt:
        days = (now - last.at) / DAY
        log.warning(
            "the last record is %.1f days old: no plane ran since, or the clock is wrong; that time does not "
            "count for the removal of old files, and nothing is removed because of it",
            days,
        )
    store.keep(KEY, json.dumps(asdict(seen)))
    return min(now, seen.at) - keep - seen.doubt


@contextmanager
def pruned(
    store: Store,
    folder: Path,
    days: float,
    now: Callable[[], int],
    leads: Callable[[], bool],
    scale: float = 1.0,
) -> Iterator[None]:
    """Prune now and then once a day, on a thread of its own, until the context ends.

    `now` tells the time of the plane, which runs at `scale`. Only a plane that leads prunes.
    """
    closing = threading.Event()
    keep, most = round(days * scale * DAY), round(LONGEST_GAP * scale * DAY)

    def work() -> None:
        looks = 0
        while True:
            try:
                if leads():
                    before = oldest_kept(store, now(), keep, most)
                    if looks % LOOKS_PER_DAY == 0:
                        _prune_all(store, folder, before)
                    looks += 1
            except (DovetailError, OSError) as error:
                log.warning("old folders could not be removed: %s", error)
            if closing.wait(HOUR_SECONDS):
                return

    thread = threading.Thread(target=work, name="retention", daemon=True)
    thread.start()
    try:
        yield
    finally:
        closing.set()
        thread.join(timeout=60)
