"""A plane whose ticks and time a test controls: a command returns when the plane has come to rest.

Plane, ledger, core, policy and store are the real ones. Jobs are entries in a dict: they run until the test
ends them, and stop as soon as they are told to.
"""

from __future__ import annotations

import copy
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
import sqlalchemy as sa
from tests.control.test_ledger import Attempt, Disk, Elected, HandEngine

from dovetail.control import clock, submission
from dovetail.control.chosen_policy import NamedPolicy
from dovetail.control.inbox import Command
from dovetail.control.plane import Plane
from dovetail.control.plane_settings import Settings
from dovetail.control.records import Record
from dovetail.control.request import parse_request
from dovetail.control.store import Store
from dovetail.control.tokens import Caller
from dovetail.engines.contract import Exit, Launch
from dovetail.model.cluster import Cluster
from dovetail.model.units import SECOND

T = TypeVar("T")
MOST_TICKS = 100
DIALECTS: dict[str, sa.Dialect] = {}  # one for all planes: statements are compiled once for each dialect
COMPILED: dict[Any, Any] = {}


class ObedientEngine(HandEngine):
    """A job that is told to stop has stopped. Devices may be shared, so they are not checked here."""

    def start(self, launch: Launch) -> None:
        self.disk.attempts.setdefault((launch.job, launch.epoch), Attempt(launch))

    def stop(self, job: str, epoch: int, why: str, grace: int) -> None:
        attempt = self.disk.attempts.get((job, epoch))
        if attempt is not None and attempt.exit is None:
            now = clock.steady_now()
            attempt.exit = Exit(143, "stopped", why, now, now)


class SteppedPlane(Plane):
    """It ticks when it is asked something, until nothing is left to do."""

    def _answer(self, command: Command[T]) -> T:
        self._inbox.add(command)
        self.settle()
        return command.future.result(timeout=0)

    def settle(self) -> None:
        """Tick until the plane is at rest."""
        for _ in range(MOST_TICKS):
            self._tick()
            if not (self._inbox or self._led().ledger.pending or self.engine.poll()):
                return
        raise AssertionError("the plane does not come to rest")


class Stepped:
    """A plane at a moment, with the means to act on it and to copy it."""

    def __init__(
        self, folder: Path, cluster: Cluster, now: int, disk: Disk, policy: NamedPolicy | None
    ) -> None:
        self.folder, self.cluster, self.disk, self.now = folder, cluster, disk, now
        self.store = Store(f"sqlite:///{folder / 'plane.db'}")
        engine = self.store.engine
        engine.dialect = DIALECTS.setdefault("sqlite", engine.dialect)
        self.store.engine = engine.execution_options(compiled_cache=COMPILED)
        with self.store.engine.connect() as connection:
            connection.exec_driver_sql("PRAGMA synchronous=OFF")
        clock.steady_now = lambda: self.now
        settings = Settings(
            folder, cluster, policy=None if policy is None else policy.make(), allow_root=True
        )
        self.plane = SteppedPlane(settings, self.store, ObedientEngine(disk), Elected(self.store))
        self.plane._seek()
        self.plane.settle()

    @property
    def records(self) -> Mapping[str, Record]:
        return self.plane._led().ledger.index.records

    @property
    def core(self) -> Any:
        return self.plane._led().ledger.core

    def submit(self, caller: Caller, body: Mapping[str, Any]) -> str:
        return submission.submit(self.plane, caller, parse_request(body), body).id

    def end(self, *jobs: str, at: int | None = None) -> None:
        """Running jobs complete at one moment, now or later."""
        self.now = self.now if at is None else max(self.now, at)
        for job in jobs:
            attempt = self.disk.attempts[job, self.records[job].epoch]
            attempt.exit = Exit(0, "exited", "", self.now, self.now)
        self.plane.settle()

    def runs(self, job: str) -> bool:
        record = self.records.get(job)
        return record is not None and record.state.value == "running"

    def close(self) -> None:
        self.store.close()

    @contextmanager
    def copied(self, folder: Path) -> Iterator[Stepped]:
        """The same moment in another plane, started from a copy of the store."""
        folder.mkdir()
        with self.store.engine.connect() as connection:
            connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
        shutil.copy(self.folder / "plane.db", folder / "plane.db")
        other = Stepped(folder, self.cluster, self.now, copy.deepcopy(self.disk), None)
        try:
            yield other
        finally:
            other.close()
            clock.steady_now = lambda: self.now
            shutil.rmtree(folder)


@contextmanager
def stepped(
    folder: Path, cluster: Cluster, policy: NamedPolicy, template: Path, now: int = 1_700_000_000 * SECOND
) -> Iterator[Stepped]:
    """A new plane on a copy of an empty store."""
    folder.mkdir()
    shutil.copy(template, folder / "plane.db")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clock, "steady_now", clock.steady_now)
        patch.setattr(submission, "fresh_id", lambda state, store: f"j{state.next_seq:05d}")
        made = Stepped(folder, cluster, now, Disk(), policy)
        try:
            yield made
        finally:
            made.close()


def empty_store(folder: Path) -> Path:
    """The file of a store with tables and nothing in them."""
    file = folder / "empty.db"
    store = Store(f"sqlite:///{file}")
    store.migrate()
    with store.engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA journal_mode=DELETE")
    store.close()
    return file
