"""Jobs that write to the files of their own attempt, under the account of the plane."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from tests.control import harness

from dovetail.control import commands, submission, tables
from dovetail.control.plane import Plane
from dovetail.control.problems import RequestError
from dovetail.control.request import parse_request
from dovetail.control.serve import Up, Wanted, plane_up
from dovetail.control.tokens import Caller

ANN = Caller("ann", "team", "ann", "user")
FILES = ("stop.json", "exit.json", "started.json", "launch.json", "pids.json", "logs.json", "run/stop.json")


def submit(plane: Plane, run: str, **more: Any) -> str:
    body = {"run": run, "resources": {"gpus": 1}, **more}
    return submission.submit(plane, ANN, parse_request(body), body).id


def states(up: Up) -> dict[str, str]:
    assert up.plane.failed is None
    with up.plane.store.reading() as connection:
        return {row.id: row.state for row in connection.execute(sa.select(tables.jobs))}


@pytest.mark.parametrize("content", ['{"at": {}, "code": [], "processes": 1}', "junk", "[1e999, null]"])
def test_a_job_that_spoils_its_files_does_not_end_the_plane(tmp_path: Path, content: str) -> None:
    wanted = Wanted(folder=tmp_path / "state", virtual="1x8:A100")
    spoil = f"printf '%s' '{content}' > $DOVETAIL_RUN_DIR/.."
    marks = [tmp_path / str(number) for number in range(len(FILES))]
    with plane_up(wanted) as up:
        spoilers = [
            submit(up.plane, f"{spoil}/{file}; touch {mark}; sleep 300", checkpoint={"grace": "1s"}, retry=0)
            for file, mark in zip(FILES, marks, strict=True)
        ]
        harness.eventually(lambda: all(mark.exists() for mark in marks))
        good = submit(up.plane, "true")
        harness.eventually(lambda: states(up)[good] == "completed")
    with plane_up(wanted) as up:
        assert up.plane.leads
        again = submit(up.plane, "true")
        harness.eventually(lambda: states(up)[again] == "completed")
        commands.TO_JOBS["cancel"](up.plane, spoilers)
        harness.eventually(lambda: not set(states(up).values()) & harness.ACTIVE, "the end of all jobs")
        assert {states(up)[job] for job in spoilers} <= {"cancelled", "node-failed"}
    harness.nobody_left(tmp_path / "state")


def test_a_path_in_the_state_folder_is_refused_at_submission(tmp_path: Path) -> None:
    with plane_up(Wanted(folder=tmp_path / "state", virtual="1x1:A100")) as up:
        for fields in (
            {"checkpoint": {"path": f"{tmp_path}/state/checkpoints/.."}},
            {"output": "../launch.json"},
        ):
            with pytest.raises(RequestError, match="lies in the state folder of the plane; name another"):
                submit(up.plane, "true", **fields)
        assert states(up) == {}
