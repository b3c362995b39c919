"""Two planes on one PostgreSQL: one leads, the other takes over, and whoever was deposed writes no more."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from tests.control import harness

from dovetail.control.election import KEY
from dovetail.control.store import Batch, Deposed, Store, url_of

KILLS = 20
NAMES = ("one", "two")


@pytest.fixture(scope="module")
def nursery() -> Iterator[harness.Nursery]:
    with harness.nursed() as made:
        yield made


def leads(folder: Path, name: str) -> bool:
    line = harness.Line(folder, [name])
    try:
        return bool(line.once(do="leads"))
    except harness.Gone:
        return False
    finally:
        line.hang_up()


def leader(folder: Path) -> str:
    found: str = harness.eventually(lambda: next((n for n in NAMES if leads(folder, n)), ""), "a leader")
    return found


def boot(nursery: harness.Nursery, folder: Path, name: str, url: str, **more: Any) -> None:
    nursery.boot(name, folder, database=url, port=1 + NAMES.index(name), snapshots=40, **more)


@pytest.mark.long(15)
def test_the_other_takes_over_and_nothing_is_lost(
    database: Callable[[], str], nursery: harness.Nursery, tmp_path: Path
) -> None:
    url, pick = database(), random.Random(30)
    driver = harness.Driver(tmp_path, harness.Line(tmp_path, NAMES), seed=31, most=10)
    driver.start()
    kills, led = 0, set()

    def who_leads() -> str:
        for name in NAMES:  # a fault may end both of them before one leads
            if nursery.dead(name, 0.001):
                fault = (pick.choice(harness.POINTS), pick.randint(1, 8)) if pick.random() < 0.5 else None
                boot(nursery, tmp_path, name, url, seed=kills, fault=fault)
        return next((name for name in NAMES if leads(tmp_path, name)), "")

    while kills < KILLS:
        first = harness.eventually(who_leads, "a leader")
        led.add(first)
        if not nursery.dead(first, pick.random() * 0.6):
            nursery.kill(first)
        kills += 1
    for name in NAMES:
        nursery.kill(name)
        boot(nursery, tmp_path, name, url)
    driver.finish()
    for name in NAMES:
        nursery.kill(name, signal.SIGTERM)
    found = harness.nothing_lost(tmp_path, driver, url)
    assert found["jobs"] > KILLS
    assert led == set(NAMES)


def cut_off(url: str, *, all_of_them: bool = False) -> None:
    """End the session by which a plane leads, or all that it has, while it lives."""
    engine = sa.create_engine(url_of(url, Path()), isolation_level="AUTOCOMMIT")
    try:
        with engine.connect() as connection:
            holders = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND objid = :key AND granted"
            if all_of_them:
                holders = "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
            query = sa.text(
                f"SELECT count(pg_terminate_backend(pid)) FROM ({holders}) AS h WHERE pid <> pg_backend_pid()"
            )
            assert connection.execute(query, {} if all_of_them else {"key": KEY}).scalar()
    finally:
        engine.dispose()


def submitted(folder: Path, name: str, kind: str = "short", **more: Any) -> str:
    line = harness.Line(folder, [name])
    try:
        body = harness.body(kind, harness.traces_in(folder), **more)
        ids = line.once(do="submit", caller="red", key=None, body=body)
        return str(ids[0])
    finally:
        line.hang_up()


def state_of(url: str, job: str) -> str:
    engine = sa.create_engine(url_of(url, Path()))
    try:
        with engine.connect() as connection:
            found = connection.execute(sa.text("SELECT state FROM jobs WHERE id = :id"), {"id": job}).scalar()
            return str(found)
    finally:
        engine.dispose()


def test_a_deposed_leader_cannot_write_nor_hide_the_end_of_a_job(
    database: Callable[[], str], nursery: harness.Nursery, tmp_path: Path
) -> None:
    url = database()
    boot(nursery, tmp_path, "one", url)
    assert leader(tmp_path) == "one"
    before = submitted(tmp_path, "one")
    harness.eventually(lambda: state_of(url, before) == "completed")
    boot(nursery, tmp_path, "two", url)
    cut_off(url)
    harness.eventually(lambda: leads(tmp_path, "two"))
    assert leads(tmp_path, "one")  # it does not know yet

    # A job of the new leader ends while that one looks away: the old one sees it, and must leave it alone.
    job = submitted(tmp_path, "two", "abrupt")
    harness.eventually(lambda: f"begin {job} " in (tmp_path / "traces" / "trace").read_text())
    harness.eventually(lambda: state_of(url, job) == "running")
    os.kill(nursery.pids["two"], signal.SIGSTOP)
    harness.eventually((tmp_path / "attempts" / job / "1" / "exit.json").exists)
    time.sleep(2.5)
    os.kill(nursery.pids["two"], signal.SIGCONT)
    harness.eventually(lambda: state_of(url, job) == "completed", "that its end is heard of")

    with pytest.raises((harness.Gone, harness.Refused)):
        submitted(tmp_path, "one")
    harness.eventually(lambda: not leads(tmp_path, "one"))
    after = submitted(tmp_path, "two")
    harness.eventually(lambda: state_of(url, after) == "completed")
    for name in NAMES:
        nursery.kill(name, signal.SIGTERM)
    harness.nobody_left(tmp_path)


def test_a_plane_that_is_cut_off_from_its_database_comes_back(
    database: Callable[[], str], nursery: harness.Nursery, tmp_path: Path
) -> None:
    url = database()
    boot(nursery, tmp_path, "one", url)
    assert leader(tmp_path) == "one"
    job = submitted(tmp_path, "one", "long")
    cut_off(url, all_of_them=True)
    harness.eventually(lambda: state_of(url, job) == "completed")
    harness.eventually(lambda: leads(tmp_path, "one"))
    again = submitted(tmp_path, "one")
    harness.eventually(lambda: state_of(url, again) == "completed")
    nursery.kill("one", signal.SIGTERM)
    harness.nobody_left(tmp_path)


def test_a_term_ends_for_good(database: Callable[[], str]) -> None:
    url = url_of(database(), Path())
    old, new = Store(url), Store(url)
    try:
        old.migrate()
        old.lead("http://old")
        old.commit(Batch())
        new.lead("http://new")
        with pytest.raises(Deposed):
            old.commit(Batch())
        new.commit(Batch())
        assert old.leader() == "http://new"
    finally:
        old.close()
        new.close()
