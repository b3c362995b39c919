"""What is removed when a job has been over for long, and what is not."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.control import harness

from dovetail.control.records import Record
from dovetail.control.retention import prune
from dovetail.control.serve import Wanted, plane_up
from dovetail.control.states import State
from dovetail.control.store import Batch, Store, url_of
from dovetail.model.units import SECOND


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
        store.commit(Batch(requests=[{"id": "r", "body": '{"run": "x"}', "workdir": ""}], added=records))
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
