"""The defects for which the simulation was built, each put back: the whole fix is undone, not one guard.

The code before these fixes had them all at once, and other modules. Here the plane is as it is now, without
one fix. A fix has several guards in a row, each of which alone would still hold: so all are taken out.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from tests.chaos import database, kernel
from tests.chaos.mutants import Patched
from tests.chaos.room import SECOND

from dovetail.control import job_reports, plane, recovery, report_values, retention, serve
from dovetail.control.clock import Clock
from dovetail.control.launching import perform
from dovetail.control.steady_time import SteadyTime
from dovetail.control.store import Store, StoreError
from dovetail.engines.local import supervisor
from dovetail.engines.local.attempt_files import stop_order
from dovetail.engines.local.supervisor import Supervisor
from dovetail.engines.local.terms import Term

FOR_EVER = 1_000_000 * 3_600 * SECOND


@dataclass(frozen=True, slots=True)
class Undone:
    """A fix that is taken out, and a world in which a rule reports the defect."""

    defect: str
    rule: str
    patched: Callable[[], list[Patched]]
    seed: int
    hours: float
    faults: tuple[str, ...]
    shown: str  # in the detail of what is reported
    beside: str = ""  # another fix that must be undone first; without this one the world keeps the rule


@contextmanager
def undone(name: str) -> Iterator[None]:
    """The product has this defect again."""
    with ExitStack() as all_of:
        for place, attribute, new in UNDONE[name].patched():
            all_of.enter_context(patch.object(place, attribute, new))
        yield


def _believes_reports() -> list[Patched]:
    """No look at values and rates. What is stored then fails by itself, or in arithmetic."""

    def rate(report: Any) -> Any:
        rate = report.get("steps_per_second")
        return rate if isinstance(rate, int | float) and not rate <= 0 else None

    return [
        (report_values, "checked_report", dict),
        (job_reports, "checked_report", dict),
        (job_reports, "rate_of", rate),
    ]


def _takes_all_rows() -> list[Patched]:
    return [(recovery, "_in_core", lambda record: True)]  # also held ones; those that wait for jobs are held


def _fails_by_damage() -> list[Patched]:
    """Damage passes the guards of each caller as a failure of the store does: no older snapshot, no rows."""

    def snapshot(self: Store, era: int, number: int) -> Any:
        with self.reading() as connection:
            state = connection.exec_driver_sql(
                "SELECT state FROM snapshots WHERE era = ? AND number = ?", (era, number)
            ).scalar_one()
        try:
            return json.loads(zlib.decompress(state))
        except (zlib.error, ValueError) as error:
            raise StoreError(f"a snapshot cannot be unpacked: {error}") from error

    return [(Store, "snapshot", snapshot)]


def _accepts_any_folder() -> list[Patched]:
    """Nor does the store look when a term begins: it does for a plane whose folder has an id."""
    return [
        (serve, "check_binding", lambda *_: None),
        (serve, "bind", lambda folder, store, rebind=False: ""),
    ]


def _gives_leftover_orders() -> list[Patched]:
    """No look whether it leads before an order, and none at the engine whose order it is."""

    def unchecked(*given: Any, **named: Any) -> None:
        perform(*given, **{**named, "check": lambda: None})

    return [
        *_accepts_any_folder(),
        (plane, "perform", unchecked),
        (Term, "check", lambda self: None),
    ]


def _has_no_lease() -> list[Patched]:
    """Of the model of the database: the product's own lease is in PostgreSQL, which no world has."""
    return [(database, "LEASE", FOR_EVER)]


def _obeys_after_the_end() -> list[Patched]:
    """An order to stop counts before the end of the job that came first."""
    reap = Supervisor._reap

    def late(self: Supervisor) -> bool:
        order = stop_order(self.folder, self.term)
        if order is not None and not self.ending:
            self.stop_seen = order["at"]
            self._ask_to_end("stopped", order["why"], order["grace"], order)
        return reap(self)

    return [
        (Supervisor, "_reap", late),
        (Supervisor, "_have_all_ended", lambda self: False),
        (Supervisor, "_note_end", lambda self, exit_follows=False: None),
    ]


def _leaves_jobs_alone() -> list[Patched]:
    """A job lives on when its supervisor dies, and no later one learns how it ended."""
    return [
        (kernel, "DEATH_SIGNAL", False),
        (supervisor, "read_ended", lambda folder: None),
    ]


def _follows_the_wall() -> list[Patched]:
    return [
        (SteadyTime, "now", lambda self: self._wall()),
        (SteadyTime, "of_wall", lambda self, wall: wall),
        (SteadyTime, "resume", lambda self, kept: None),
        (Clock, "least_span", lambda self, real: 0),
    ]


def _removes_by_one_reading() -> list[Patched]:
    return [
        *_follows_the_wall(),
        (retention, "oldest_kept", lambda store, now, keep, most=0: now - keep),
    ]


TWO_FOLDERS = ("other-folder", "second-plane")
UNDONE = {
    "report number": Undone(
        "an integer of 400 digits in a report ends the loop, after each start again",
        "leads",
        _believes_reports,
        seed=15,
        hours=0.2,
        faults=("rubbish",),
        shown="OverflowError",
    ),
    "report NaN": Undone(
        "NaN in a report makes each commit fail",
        "leads",
        _believes_reports,
        seed=34,
        hours=0.3,
        faults=("rubbish",),
        shown="NOT NULL constraint failed: speeds.rate",
    ),
    "held": Undone(
        "a held job starts after the code of the policy has changed",
        "eligible",
        _takes_all_rows,
        seed=1,
        hours=0.3,
        faults=("changed-policy",),
        shown="is held",
    ),
    "dependent": Undone(
        "a job that waits for another one starts after the code of the policy has changed",
        "eligible",
        _takes_all_rows,
        seed=2,
        hours=0.3,
        faults=("changed-policy",),
        shown="waits after",
    ),
    "snapshot": Undone(
        "a damaged snapshot ends each start of the plane",
        "leads",
        _fails_by_damage,
        seed=3,
        hours=0.3,
        faults=("corrupt-snapshot",),
        shown="a snapshot cannot be unpacked",
    ),
    "leftover": Undone(
        "a deposed leader that is continued gives the orders that it still has",
        "one holder",
        _gives_leftover_orders,
        seed=54,
        hours=0.5,
        faults=("depose", *TWO_FOLDERS),
        shown="is held by",
        beside="folder",
    ),
    "lease": Undone(
        "a leader that hangs is not replaced",
        "leads",
        _has_no_lease,
        seed=2,
        hours=0.3,
        faults=("second-plane", "stop-plane"),
        shown="none has for",
    ),
    "folder": Undone(
        "a plane with another state folder starts running attempts again",
        "decided",
        _accepts_any_folder,
        seed=2,
        hours=0.1,
        faults=("kill-plane", *TWO_FOLDERS),
        shown="was started twice",
    ),
    "late stop": Undone(
        "a job ended with 0 before it was told to stop, and is run again",
        "done",
        _obeys_after_the_end,
        seed=24,
        hours=0.3,
        faults=("stop-supervisor",),
        shown="ended with 0",
    ),
    "orphan": Undone(
        "a job outlives its supervisor, ends with 0, counts as lost and is run again",
        "done",
        _leaves_jobs_alone,
        seed=1,
        hours=0.5,
        faults=("kill-supervisor",),
        shown="ended with 0",
    ),
    "stands still": Undone(
        "the time of the plane stands still after the wall clock was set back",
        "time",
        _follows_the_wall,
        seed=1,
        hours=0.2,
        faults=("clock-jump",),
        shown="it has stood still",
    ),
    "charged": Undone(
        "an attempt is charged by a wall clock that has jumped",
        "charged",
        _follows_the_wall,
        seed=2,
        hours=0.1,
        faults=("clock-jump",),
        shown="and is charged",
    ),
    "removed": Undone(
        "a plane that starts while the wall clock is far ahead removes output of the same hour",
        "kept",
        _removes_by_one_reading,
        seed=2,
        hours=0.3,
        faults=("clock-jump", "kill-plane"),
        shown="is removed",
    ),
}
