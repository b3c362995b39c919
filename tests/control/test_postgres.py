"""Two planes on one PostgreSQL: one leads, the other takes over, and whoever was deposed writes no more."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from tests.conftest import chaos_seed
from tests.control import harness

from dovetail.control import store as store_module
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


@pytest.mark.chaos
@pytest.mark.slow(20)
def test_the_other_takes_over_and_nothing_is_lost(
    database: Callable[[], str], nursery: harness.Nursery, tmp_path: Path
) -> None:
    url, pick = database(), random.Random(chaos_seed(30))
    driver = harness.Driver(
        tmp_path, harness.Line(tmp_path, NAMES, patient=True), seed=chaos_seed(31), most=10
    )
    driver.start()
    kills, stops = 0, 0
    led: set[str] = set()

    def who_leads() -> str:
        for name in NAMES:  # a fault may end both of them before one leads
            if nursery.dead(name, 0.001):
                fault = (pick.choice(harness.POINTS), pick.randint(1, 8)) if pick.random() < 0.5 else None
                boot(nursery, tmp_path, name, url, seed=kills, fault=fault, lease=5.0)
        return next((name for name in NAMES if leads(tmp_path, name)), "")

    def worked() -> bool:
        """Enough has been done between the kills; on a busy machine that takes more of them."""
        return (len(driver.kinds) > KILLS and led == set(NAMES) and stops > 0) or not driver.is_alive()

    while kills < KILLS or not worked():
        first = harness.eventually(who_leads, "a leader")
        led.add(first)
        if not nursery.dead(first, pick.random() * 0.6):
            if pick.random() < 0.4:
                stops += stopped_until_replaced(nursery, tmp_path, url, first, cut=pick.random() < 0.7)
            else:
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
    assert stops


def stopped_until_replaced(nursery: harness.Nursery, folder: Path, url: str, name: str, *, cut: bool) -> bool:
    """Stop a leader until the other plane leads, and let it go on. False if there is no other."""
    (other,) = set(NAMES) - {name}
    pid = nursery.pids[name]
    with suppress(ProcessLookupError):  # it may have died of its own fault by now
        os.kill(pid, signal.SIGSTOP)
    try:
        if cut:
            cut_off(url)
        harness.eventually(lambda: nursery.dead(other, 0.001) or leads(folder, other), "that the other leads")
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    return other in nursery.pids


def cut_off(url: str, *, all_of_them: bool = False) -> None:
    """End the session by which a plane leads, or all that it has, while it lives."""
    engine = sa.create_engine(url_of(url, Path()), isolation_level="AUTOCOMMIT")
    try:
        with engine.connect() as connection:
            holders = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND classid = :key AND granted"
            if all_of_them:
                holders = "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
            query = sa.text(
                f"SELECT count(pg_terminate_backend(pid)) FROM ({holders}) AS h WHERE pid <> pg_backend_pid()"
            )
            connection.execute(query, {} if all_of_them else {"key": KEY})
    finally:
        engine.dispose()


def submitted(folder: Path, name: str, kind: str = "short", **more: Any) -> str:
    body = harness.body(kind, harness.traces_in(folder), **more)
    return str(asked(folder, name, do="submit", caller="red", key=None, body=body)[0])


def asked(folder: Path, name: str, **question: Any) -> Any:
    line = harness.Line(folder, [name])
    try:
        return line.once(**question)
    finally:
        line.hang_up()


def trace(folder: Path) -> list[str]:
    return (folder / "traces" / "trace").read_text().splitlines()


def begun(folder: Path) -> set[tuple[str, str]]:
    """The attempts that have begun: job and epoch."""
    words = (line.split() for line in trace(folder))
    return {(job, epoch) for word, job, epoch, *_ in words if word == "begin"}


def all_go(folder: Path) -> None:
    """Let the jobs end that hold their devices until then."""
    (folder / "traces" / "go").touch()


def completed(url: str) -> int:
    engine = sa.create_engine(url_of(url, Path()))
    try:
        with engine.connect() as connection:
            query = "SELECT count(*) FROM jobs WHERE state = 'completed'"
            return int(connection.execute(sa.text(query)).scalar() or 0)
    finally:
        engine.dispose()


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
    boot(nursery, tmp_path, "one", url, lease=600.0)  # it renews seldom, and so does not know for a while
    assert leader(tmp_path) == "one"
    before = submitted(tmp_path, "one")
    harness.eventually(lambda: state_of(url, before) == "completed")
    boot(nursery, tmp_path, "two", url)
    cut_off(url)
    harness.eventually(lambda: leads(tmp_path, "two"))
    assert leads(tmp_path, "one")  # it does not know yet

    # A job of the new leader ends while that one looks away: the old one sees it, and must leave it alone.
    job = submitted(tmp_path, "two", "until")
    harness.eventually(lambda: f"begin {job} " in (tmp_path / "traces" / "trace").read_text())
    harness.eventually(lambda: state_of(url, job) == "running")
    os.kill(nursery.pids["two"], signal.SIGSTOP)
    all_go(tmp_path)
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
        with pytest.raises(Deposed):
            old.keep("clock", "{}")
        assert new.value("clock") is None
        new.keep("clock", "{}")
        new.commit(Batch())
        assert old.leader() == "http://new"
    finally:
        old.close()
        new.close()


def test_a_leader_that_is_stopped_between_two_statements_is_replaced(
    database: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Statements that a driver sends together: the session is not idle, and its lock would stay."""
    monkeypatch.setattr(store_module, "LONGEST_PAUSE_MS", 1_000)
    url = url_of(database(), Path())
    old, new = Store(url), Store(url)
    try:
        old.migrate()
        old.lead("http://old")
        raw = psycopg.connect(url.replace("postgresql+psycopg", "postgresql"), autocommit=True)
        raw.execute("BEGIN")
        raw.execute("SET LOCAL idle_in_transaction_session_timeout = 1000")
        raw.pgconn.enter_pipeline_mode()
        raw.pgconn.send_query_params(b"SELECT value FROM meta WHERE key = 'leader' FOR SHARE", None)
        raw.pgconn.send_flush_request()
        while raw.pgconn.flush():
            pass
        harness.eventually(lambda: new.lead("http://new"), "that the new one leads")
        raw.pgconn.finish()
    finally:
        old.close()
        new.close()


# --- a leader that stops, and goes on when another one leads


@pytest.mark.parametrize("cut", [True, False], ids=["its session is cut", "its lease runs out"])
def test_a_deposed_leader_performs_none_of_its_orders(
    database: Callable[[], str], nursery: harness.Nursery, tmp_path: Path, cut: bool
) -> None:
    """Its orders to start were committed and not performed; the jobs were requeued since."""
    url = database()
    boot(nursery, tmp_path, "one", url, slow_starts=0.5, lease=5.0)
    assert leader(tmp_path) == "one"
    body = harness.body("until", harness.traces_in(tmp_path), array="0-7")
    jobs = asked(tmp_path, "one", do="submit", caller="red", key=None, body=body)
    assert asked(tmp_path, "one", do="act", verb="requeue", ids=jobs)
    stopped = nursery.pids["one"]
    os.kill(stopped, signal.SIGSTOP)  # with most of its orders left
    try:
        boot(nursery, tmp_path, "two", url, lease=5.0)
        if cut:
            cut_off(url)
        harness.eventually(lambda: leads(tmp_path, "two"), "that the other plane leads")
        harness.eventually(lambda: {(job, "2") for job in jobs} <= begun(tmp_path), "that all jobs run again")
        assert len(begun(tmp_path)) < 2 * len(jobs), "the first leader had performed all of its orders"
    finally:
        os.kill(stopped, signal.SIGCONT)
    harness.eventually(lambda: not leads(tmp_path, "one"), "that it steps down")
    after = submitted(tmp_path, "two", "short")
    all_go(tmp_path)
    harness.eventually(lambda: completed(url) == len(jobs) + 1, "the end of all jobs")
    assert state_of(url, after) == "completed"
    for name in NAMES:
        nursery.kill(name, signal.SIGTERM)
    harness.nobody_left(tmp_path)
    harness._trace(tmp_path / "traces" / "trace")  # no device is held twice, no job runs twice at once
    log = (tmp_path / "plane.log").read_text()
    assert (
        f" {stopped} WARNING another plane has taken the lead" in log
        or f" {stopped} WARNING the lease" in log
    )
    assert "Traceback" not in log


@pytest.mark.parametrize(
    ("point", "times"), [("lead inside", 3), ("commit inside", 1), ("start before", 1), ("start written", 1)]
)
def test_a_hung_leader_is_replaced_when_its_lease_runs_out(
    database: Callable[[], str], nursery: harness.Nursery, tmp_path: Path, point: str, times: int
) -> None:
    """Also if it hangs while it holds a lock of the database, or in the middle of an order."""
    url = database()
    boot(nursery, tmp_path, "one", url, lease=5.0, fault=(point, times, signal.SIGSTOP))
    hung = nursery.pids["one"]
    question = {
        "do": "submit",
        "caller": "red",
        "key": "k",
        "body": harness.body("until", harness.traces_in(tmp_path)),
    }
    line = harness.Line(tmp_path, ["one"])
    try:
        if point.startswith("start"):  # else it hangs by itself
            assert leader(tmp_path) == "one"
            line.send(**question)
        harness.eventually(lambda: is_stopped(hung), "that the leader hangs")
        boot(nursery, tmp_path, "two", url, lease=5.0)
        harness.eventually(lambda: leads(tmp_path, "two"), "that the other plane leads")
        (job,) = asked(tmp_path, "two", **question)
        harness.eventually(lambda: any(line.startswith(f"begin {job} ") for line in trace(tmp_path)))
    finally:
        os.kill(hung, signal.SIGCONT)
        line.hang_up()
    harness.eventually(lambda: not leads(tmp_path, "one"), "that it steps down")
    all_go(tmp_path)
    harness.eventually(lambda: state_of(url, job) == "completed")
    for name in NAMES:
        nursery.kill(name, signal.SIGTERM)
    harness.nobody_left(tmp_path)
    harness._trace(tmp_path / "traces" / "trace")


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
