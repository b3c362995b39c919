"""A plane that finds its journal or its snapshots unusable: which jobs it goes on with, and what it says."""

from __future__ import annotations

import json
import logging
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from tests.control.harness import disagreements, eventually, stored

from dovetail.control import commands, tables
from dovetail.control.plane import Plane
from dovetail.control.request import parse_request
from dovetail.control.serve import Wanted, plane_up
from dovetail.control.states import State
from dovetail.control.submission import submit
from dovetail.control.tokens import Caller
from dovetail.model.units import DAY

ANN = Caller("t", "default", "ann", "user")
STUBBORN = "trap '' TERM; touch $DOVETAIL_RUN_DIR/up; while test ! -e {done}; do sleep 0.05; done"


def submitted(plane: Plane, run: str = "sleep 90", **more: Any) -> str:
    body = {"run": run, "resources": {"gpus": 1}, "time": "1h", **more}
    return submit(plane, ANN, parse_request(body), body).id


def states(plane: Plane) -> dict[str, State]:
    return plane.ask(lambda state, now: {r.id: r.state for r in state.ledger.index})


def state_of(plane: Plane, id: str) -> str:
    with plane.store.reading() as connection:
        return str(connection.execute(sa.select(tables.jobs.c.state).where(tables.jobs.c.id == id)).scalar())


def ended(plane: Plane) -> None:
    commands.cancel(plane, list(states(plane)))
    eventually(lambda: not states(plane), "the end of all jobs")


def with_changed_code(folder: Path) -> None:
    """A crash, and then a step of the journal is one that the code would not decide again."""
    with stored(folder, leads=False) as store, store.transaction() as connection:
        number = connection.execute(sa.select(sa.func.max(tables.journal.c.number))).scalar()
        connection.execute(
            sa.update(tables.journal).where(tables.journal.c.number == number).values(line="{}")
        )
        _without_last_snapshots(connection, int(number or 0))


def _without_last_snapshots(connection: Any, number: int) -> None:
    connection.execute(sa.delete(tables.snapshots).where(tables.snapshots.c.number >= number))


def test_jobs_that_the_queue_did_not_have_are_not_started_from_their_rows(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    wanted = Wanted(folder=folder, virtual="1x8:A100", port=1)
    done = tmp_path / "done"
    with plane_up(wanted) as up:
        plane = up.plane
        runs = submitted(plane)
        kept_out = {
            "held": submitted(plane, hold=True),
            "later": submitted(plane, begin="+1h"),
            "dependent": submitted(plane, dependency=f"afterok:{runs}"),
            "released": submitted(plane, hold=True),
        }
        members = f"{submitted(plane, array='0-1%1')}_1"
        stubborn = {"checkpoint": {"grace": "1h"}}
        leaving = {
            verb: submitted(plane, STUBBORN.format(done=done), **stubborn)
            for verb in ("cancel", "hold", "requeue")
        }
        eventually(
            lambda: all((folder / "attempts" / id / "1" / "run" / "up").exists() for id in leaving.values())
        )
        for verb, id in leaving.items():
            commands.TO_JOBS[verb](plane, [id])
        before = states(plane)
        assert before[members] is State.HELD
        assert {before[id] for id in leaving.values()} == {State.STOPPING}
    with_changed_code(folder)
    with plane_up(wanted) as up:
        plane = up.plane
        assert plane.ask(lambda state, now: disagreements(state.ledger)) == []
        assert states(plane) == before
        plane.change(lambda state, now: None)  # a tick later it still is
        assert states(plane) == before
        assert commands.release(plane, [kept_out["released"]]) == [kept_out["released"]]
        done.touch()  # the core may have granted it devices of a job that stops
        eventually(lambda: states(plane)[kept_out["released"]] is State.RUNNING, "that a released job starts")
        eventually(
            lambda: state_of(plane, leaving["cancel"]) in ("cancelled", "completed"),
            "the end of what was cancelled",
        )
        eventually(lambda: state_of(plane, leaving["hold"]) in ("held", "completed"))
        eventually(lambda: state_of(plane, leaving["requeue"]) == "completed")
        assert plane.failed is None
        assert {id: states(plane)[id] for name, id in kept_out.items() if name != "released"} == {
            id: State.HELD for name, id in kept_out.items() if name != "released"
        }
        ended(plane)


def _cut(state: bytes) -> bytes:
    return state[: len(state) // 2]


def _no_json(state: bytes) -> bytes:
    return zlib.compress(b"{")


def _another(state: bytes) -> bytes:
    return zlib.compress(json.dumps({"version": json.loads(zlib.decompress(state))["version"]}).encode())


def _a_list(state: bytes) -> bytes:
    return zlib.compress(b"[]")


@pytest.mark.parametrize("all_of_them", [False, True], ids=["the last", "all"])
@pytest.mark.parametrize("damage", [_cut, _no_json, _another, _a_list])
def test_a_corrupt_snapshot_costs_a_line_in_the_log(
    tmp_path: Path, damage: Callable[[bytes], bytes], all_of_them: bool, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "state"
    wanted = Wanted(folder=folder, virtual="1x2:A100", port=1)
    with plane_up(wanted) as up:
        submitted(up.plane), submitted(up.plane), submitted(up.plane), submitted(up.plane, hold=True)
        before = states(up.plane)
    with stored(folder, leads=False) as store, store.transaction() as connection:
        c = tables.snapshots.c
        rows = connection.execute(sa.select(tables.snapshots).order_by(c.number)).all()
        assert len(rows) > 1
        for row in rows if all_of_them else rows[-1:]:
            same = (c.era == row.era, c.number == row.number)
            connection.execute(sa.update(tables.snapshots).where(*same).values(state=damage(row.state)))
    with caplog.at_level(logging.WARNING), plane_up(wanted) as up:
        assert states(up.plane) == before
        assert up.plane.ask(lambda state, now: disagreements(state.ledger)) == []
        ended(up.plane)
    assert "cannot be read" in caplog.text
    assert ("restored from their rows" in caplog.text) == all_of_them


def test_time_does_not_go_back_when_jobs_are_restored_from_their_rows(tmp_path: Path) -> None:
    """The last step is of a boot at which the wall clock was a month ahead; now it is right."""
    folder = tmp_path / "state"
    wanted = Wanted(folder=folder, virtual="1x2:A100", port=1)
    with plane_up(wanted) as up:
        submitted(up.plane)
        later = up.plane.clock.now() + 30 * DAY
    with_changed_code(folder)
    with stored(folder, leads=False) as store, store.transaction() as connection:
        last = sa.select(sa.func.max(tables.journal.c.number)).scalar_subquery()
        connection.execute(
            sa.update(tables.journal).where(tables.journal.c.number == last).values(time=later)
        )
    with plane_up(wanted) as up:
        assert up.plane.clock.now() >= later
        ended(up.plane)


def test_a_job_without_devices_is_stopped_before_it_starts_again(tmp_path: Path) -> None:
    """Its row does not say on which node it runs, so the core cannot let it go on."""
    folder, trace = tmp_path / "state", tmp_path / "trace"
    wanted = Wanted(folder=folder, virtual="2x1:A100", port=1)
    run = f"trap 'echo out >> {trace}; exit 143' TERM; echo in >> {trace}; while true; do sleep 0.05; done"
    with plane_up(wanted) as up:
        id = submitted(up.plane, run, resources={"gpus": 0, "cpus": 1})
        eventually(trace.exists, "the first start")
    with_changed_code(folder)
    with plane_up(wanted) as up:
        eventually(lambda: trace.read_text().split()[:3] == ["in", "out", "in"], "the second start")
        epochs = up.plane.ask(lambda state, now: [r.epoch for r in state.ledger.index if r.id == id])
        assert epochs == [2]
        ended(up.plane)


def test_a_request_from_before_amounts_had_units_is_read_as_it_was_meant(tmp_path: Path) -> None:
    """A plane of an earlier version took 7200 for seconds, and 500 for half of a GPU."""
    wanted = Wanted(folder=tmp_path, virtual="1x4:A100", port=1)
    with plane_up(wanted) as up:
        id = submitted(up.plane, hold=True)
    with stored(tmp_path, leads=False) as store, store.transaction() as connection:
        body = json.loads(str(connection.execute(sa.select(tables.requests.c.body)).scalar()))
        body |= {"time": 7200, "expected": 90.5, "gpu_share": 500, "checkpoint": {"grace": 60, "every": 600}}
        connection.execute(sa.update(tables.requests).values(body=json.dumps(body)))
    with plane_up(wanted) as up:
        asked = up.plane.ask(lambda state, now: next(iter(state.ledger.index.asked.values())).request)
        assert (asked.time, asked.expected, asked.gpu_share) == (7_200_000_000, 90_500_000, 500)
        assert asked.checkpoint is not None
        assert (asked.checkpoint.grace, asked.checkpoint.every) == (60_000_000, 600_000_000)
        assert states(up.plane) == {id: State.HELD}
        ended(up.plane)
