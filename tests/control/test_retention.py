"""What is removed when a job has been over for long, and what is not."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import sqlalchemy as sa
from tests.control import harness

from dovetail.control import commands, plane_state, steady_time, tables
from dovetail.control.records import AttemptRecord, Record
from dovetail.control.request import parse_request
from dovetail.control.retention import oldest_kept, prune
from dovetail.control.serve import Wanted, plane_up
from dovetail.control.states import State
from dovetail.control.store import Batch, Store, url_of
from dovetail.control.submission import submit
from dovetail.control.tokens import Caller
from dovetail.model.units import DAY, SECOND


def left(folder: Path) -> dict[str, set[str]]:
    return {
        name: {path.name for path in (folder / name).iterdir() if path.name != ".active"}
        for name in ("attempts", "checkpoints")
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Jobs that ended a second after 1970, and one that has not."""
    folder = tmp_path / "state"
    folder.mkdir()
    states = {
        "done": State.COMPLETED,
        "fail": State.FAILED,
        "late": State.COMPLETED,
        "runs": State.RUNNING,
        "busy": State.COMPLETED,
    }
    ends = {"late": 100 * SECOND, "runs": None}
    records = [
        Record(id=name, seq=at, request="r", state=state, ended_at=ends.get(name, SECOND))
        for at, (name, state) in enumerate(states.items())
    ]
    with harness.stored(folder) as store:
        request = {"id": "r", "body": '{"run": "x"}', "workdir": ""}
        store.commit(Batch(requests=[request], added=records, begun=[AttemptRecord("busy", 1)]))
    for name in (*states, "stranger"):
        for part in ("attempts", "checkpoints"):
            (folder / part / name / "1" / "run").mkdir(parents=True)
    (folder / "attempts" / ".active").mkdir()
    (folder / "attempts" / ".active" / "busy@1").touch()
    (folder / "attempts" / "link").symlink_to(folder / "attempts" / "runs")
    return folder


def test_only_what_is_known_to_be_over_for_long_is_removed(folder: Path) -> None:
    store = Store(url_of(None, folder))
    assert prune(store, folder, 50 * SECOND) == 4
    found = left(folder)
    assert found["attempts"] == {"late", "runs", "busy", "stranger", "link"}
    assert found["checkpoints"] == {"fail", "late", "runs", "stranger"}
    assert (folder / "attempts" / "runs" / "1").is_dir()
    assert prune(store, folder, 50 * SECOND) == 0
    store.close()


@pytest.mark.parametrize("days", [0.0, 30.0])
def test_a_plane_prunes_when_it_starts(folder: Path, days: float) -> None:
    with plane_up(Wanted(folder=folder, virtual="1x1", port=0, keep_days=days)):
        pass
    assert ("done" in left(folder)["attempts"]) == (days == 0.0)
    assert ("done" in left(folder)["checkpoints"]) == (days == 0.0)
    assert "fail" in left(folder)["checkpoints"]


def test_a_start_with_a_clock_far_ahead_removes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "state"
    wanted = Wanted(folder=folder, virtual="1x2:A100", port=1)
    with plane_up(wanted) as up:
        body = {"run": "true", "resources": {"gpus": 1}}
        id = submit(up.plane, Caller("t", "red", "ann", "user"), parse_request(body), body).id
        harness.eventually(lambda: up.plane.ask(lambda state, now: not state.ledger.index.records))
    real = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() + 40 * 86_400_000_000_000)
    # As in a process of its own, on a machine that was booted since.
    monkeypatch.setattr(steady_time.STEADY, "_now", steady_time.STEADY.now() + 40 * DAY, raising=True)
    monkeypatch.setattr(steady_time.STEADY, "_resumed", True)
    with plane_up(wanted) as up:
        assert up.plane.clock.now() > (real() // 1_000) + 39 * DAY
        harness.eventually(lambda: "does not count" in caplog.text, "that it says so")
    assert (folder / "attempts" / id).is_dir(), "nothing is removed on one reading of the clock"


def test_days_count_that_the_plane_has_seen(tmp_path: Path) -> None:
    now, keep = 1_000 * DAY, 30 * DAY
    with harness.stored(tmp_path) as store:
        assert oldest_kept(store, now, keep) == now - keep
        for _ in range(40):
            now += DAY
            assert oldest_kept(store, now, keep) == now - keep, "a plane that runs sees every day"
        now += 40 * DAY
        assert oldest_kept(store, now, keep) == now - keep - 38 * DAY, "two days count"
        for _ in range(68):
            now += DAY
            assert oldest_kept(store, now, keep) == now - keep - 38 * DAY
        now += DAY
        assert oldest_kept(store, now, keep) == now - keep, "all that was doubted is old by now"


def test_a_second_doubt_does_not_end_the_first(tmp_path: Path) -> None:
    now, keep = 1_000 * DAY, 30 * DAY
    with harness.stored(tmp_path) as store:
        assert oldest_kept(store, now, keep) == now - keep
        for gap in (10, 50):  # a clock that is ahead, and after the next boot much further
            now += gap * DAY
            before = oldest_kept(store, now, keep)
        assert before == 1_000 * DAY - keep + 4 * DAY, "two days of each gap count"


def test_old_steps_and_keys_are_removed_and_a_start_needs_none_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plane_state, "SNAPSHOT_EVERY", 4)
    wanted = Wanted(folder=tmp_path / "state", virtual="1x2:A100", port=1)
    ann = Caller("t", "red", "ann", "user")
    body = {"run": "true", "resources": {"gpus": 1}}
    held = {"run": "sleep 60", "hold": True, "resources": {"gpus": 1}}
    with plane_up(wanted) as up:
        store = up.plane.store
        kept = submit(up.plane, ann, parse_request(held), held).id
        for number in range(12):
            submit(up.plane, ann, parse_request(body), body, f"key{number}")
            harness.eventually(lambda: up.plane.ask(lambda state, now: len(state.ledger.index.records) == 1))
        before, last = counted(store), store.last_step()
        soon = up.plane.clock.now() + DAY
        assert store.prune_journal(up.plane.clock.now() - DAY) == 0, "all of it is new"
        assert store.prune_journal(soon) > 0
        store.prune_keys(soon)
        after = counted(store)
        assert (before["keys"], after["keys"]) == (12, 0)
        assert 0 < after["journal"] < before["journal"]
        assert store.last_step() == last
        assert store.prune_journal(soon) == 0
    with plane_up(wanted) as up:
        assert list(up.plane.ask(lambda state, now: list(state.ledger.index.records))) == [kept]
        commands.cancel(up.plane, [kept])


def counted(store: Store) -> dict[str, int]:
    with store.reading() as connection:
        return {
            table.name: connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()
            for table in (tables.journal, tables.keys, tables.snapshots)
        }
