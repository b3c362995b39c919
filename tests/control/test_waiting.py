"""Waiting time on a real plane: time eligible and not running, after preemptions too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from tests.control import test_api as api
from tests.control.test_api import Live, eventually, gpus

from dovetail.control import clock, tables
from dovetail.control.store import Store
from dovetail.model.units import SECOND

HOUR = 3_600.0
NEW = ("wait_time", "wait_at_start", "waiting_since", "preempted_by", "gpus_least", "held_load", "held_since")
SLACK = 120.0  # seconds that the test itself may take, beside hours


class Hands:
    """A wall clock that can be moved forward."""

    def __init__(self) -> None:
        self._ahead = 0
        self._wall = clock.wall_now

    def now(self) -> int:
        return self._wall() + self._ahead

    def pass_by(self, seconds: float) -> None:
        self._ahead += round(seconds * SECOND)


@pytest.fixture
def hands(monkeypatch: pytest.MonkeyPatch) -> Hands:
    made = Hands()
    monkeypatch.setattr(clock, "steady_now", made.now)
    monkeypatch.setattr(clock, "wall_now", made.now)
    return made


@pytest.fixture
def live(tmp_path: Path, hands: Hands) -> Iterator[Live]:
    with api.living(tmp_path / "plane", api.FAST, virtual="1x4:A100") as made:
        yield made


def about(seconds: float) -> Any:
    return pytest.approx(seconds, abs=SLACK)


def test_a_preempted_job_reports_the_time_until_it_runs_again(live: Live, hands: Hands) -> None:
    low = live.submit("ann", **gpus(4), time="100h")
    live.until(low, "running")
    hands.pass_by(HOUR)
    high = live.submit("ann", **gpus(4), time="100h", priority="high")
    live.until(high, "running")
    assert live.until(low, "pending")["attempt"] == 1
    hands.pass_by(6 * HOUR)

    waiting = live.get(f"jobs/{low}")
    listed = {job["id"]: job for job in live.get("jobs")["items"]}
    live.engine.end(high)
    running = live.until(low, "running")
    hands.pass_by(2 * HOUR)
    so_far = live.get(f"jobs/{low}")
    live.engine.end(low, running["attempt"])
    ended = live.until(low, "completed")

    assert waiting["waited"] == about(6 * HOUR)
    assert listed[low]["waited"] == about(6 * HOUR)
    assert running["waited"] == about(6 * HOUR)
    assert ended["waited"] == about(6 * HOUR)  # it does not grow while the job runs, nor afterwards
    assert ended["first_start_after"] == about(0)
    assert (so_far["took"], ended["took"]) == (
        about(3 * HOUR),
        about(3 * HOUR),
    )
    for found in (so_far, ended):
        assert found["gpu_seconds"] == pytest.approx(4 * found["took"], abs=0.01)
    assert (running["waiting_since"], ended["waiting_since"]) == (None, None)
    assert waiting["waiting_since"] is not None
    (row,) = live.get("report?by=tenant", "ann")["items"]
    assert row["wait"]["mean"] == about(3 * HOUR)  # over two jobs
    assert row["first_start_after"]["mean"] == about(0)
    metrics = live.ask("GET", "metrics").text
    assert "dovetail_queue_wait_seconds_count 3.0" in metrics
    (total,) = (
        line.split()[1] for line in metrics.splitlines() if line.startswith("dovetail_queue_wait_seconds_sum")
    )
    assert float(total) == about(6 * HOUR)


def test_time_held_is_not_waiting(live: Live, hands: Hands) -> None:
    blocking = live.submit("ann", **gpus(4))
    live.until(blocking, "running")
    job = live.submit("ann", **gpus(1))
    hands.pass_by(HOUR)
    live.ask("POST", f"jobs/{job}/hold", "ann")
    hands.pass_by(5 * HOUR)
    held = live.get(f"jobs/{job}")
    live.ask("POST", f"jobs/{job}/release", "ann")
    hands.pass_by(2 * HOUR)
    live.engine.end(blocking)
    running = live.until(job, "running")

    assert held["waited"] == about(HOUR)
    assert running["waited"] == about(3 * HOUR)
    assert running["first_start_after"] == about(2 * HOUR)


def test_a_job_held_while_it_ran_waits_from_its_release(live: Live, hands: Hands) -> None:
    job = live.submit("ann", **gpus(1))
    live.until(job, "running")
    live.ask("POST", f"jobs/{job}/hold", "ann")
    live.until(job, "held")
    hands.pass_by(5 * HOUR)
    assert live.get(f"jobs/{job}")["waited"] == about(0)
    blocking = live.submit("ann", **gpus(4))
    live.until(blocking, "running")
    live.ask("POST", f"jobs/{job}/release", "ann")
    hands.pass_by(HOUR)
    assert live.get(f"jobs/{job}")["waited"] == about(HOUR)


def test_a_begin_time_and_a_dependency_are_not_waiting(live: Live, hands: Hands) -> None:
    first = live.submit("ann", **gpus(4))
    live.until(first, "running")
    later = live.submit("ann", **gpus(1), begin="+4h")
    after = live.submit("ann", **gpus(1), dependency=f"afterok:{first}")
    hands.pass_by(3 * HOUR)
    assert [live.get(f"jobs/{job}")["waited"] for job in (later, after)] == [0, 0]
    hands.pass_by(2 * HOUR)
    live.engine.ring()
    eventually(lambda: live.get(f"jobs/{later}")["state"] == "pending")
    live.engine.end(first)
    assert live.until(after, "running")["waited"] == about(0)
    assert live.until(later, "running")["waited"] == about(0)


def test_a_job_cancelled_in_the_queue_has_waited_until_then(live: Live, hands: Hands) -> None:
    blocking = live.submit("ann", **gpus(4))
    live.until(blocking, "running")
    job = live.submit("ann", **gpus(1))
    hands.pass_by(2 * HOUR)
    live.ask("POST", f"jobs/{job}/cancel", "ann")
    hands.pass_by(7 * HOUR)
    ended = live.until(job, "cancelled")
    assert (ended["waited"], ended["first_start_after"]) == (about(2 * HOUR), None)
    usage = live.get("usage?points=9", "ann")
    assert sum(usage["waiting"]) * usage["step"] == about(2 * HOUR)


def test_waits_before_the_columns_for_them_are_worked_out_from_the_attempts(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path / 'plane.db'}")
    store.migrate(2)
    facts = {"id": "j1", "seq": 1, "request": "r", "state": "pending", "epoch": 2, "submitted_at": 0}
    facts |= {"eligible_at": 10, "first_started_at": 30, "started_at": 100}
    filled = {name: facts.get(name, _blank(column)) for name, column in tables.jobs.c.items()}
    old = {name: filled[name] for name in filled if name not in NEW}
    columns, marks = ", ".join(f'"{name}"' for name in old), ", ".join(f":{name}" for name in old)
    spans = ((1, 30, 60), (2, 100, 150))
    attempts = ", ".join(f"('j1', {n}, '[]', '', 0, {start}, {end}, '', '')" for n, start, end in spans)
    with store.engine.begin() as connection:
        connection.exec_driver_sql("INSERT INTO requests VALUES ('r', '{}', '')")
        connection.execute(sa.text(f"INSERT INTO jobs ({columns}) VALUES ({marks})"), old)
        names = "job, epoch, placement, types, load, started_at, ended_at, cause, detail"
        connection.exec_driver_sql(f"INSERT INTO attempts ({names}) VALUES {attempts}")
    store.migrate()
    with store.reading() as connection:
        waited = connection.execute(sa.select(tables.attempts.c.waited)).scalars().all()
        row = connection.execute(sa.select(tables.jobs)).one()
    store.close()
    assert waited == [20, 40]
    assert (row.wait_time, row.wait_at_start, row.waiting_since) == (60, 60, 150)


def _blank(column: Any) -> Any:
    """A value for a column that does not matter here."""
    return None if column.nullable else 0 if isinstance(column.type, sa.Integer) else ""
