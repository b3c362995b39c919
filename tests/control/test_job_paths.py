"""Paths that a request may not name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dovetail.control.job_paths import check_paths
from dovetail.control.problems import RequestError
from dovetail.control.request import parse_request

STATE = Path("/srv/dovetail")


@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"checkpoint": {"path": "/srv/dovetail/checkpoints/.."}}, "/checkpoint/path"),
        ({"checkpoint": {"path": "/srv/dovetail/checkpoints/k3v9q2"}}, "/checkpoint/path"),
        ({"checkpoint": {"path": "$ROOT/checkpoints"}, "env": {"ROOT": "/srv/dovetail"}}, "/checkpoint/path"),
        ({"workdir": "/srv/dovetail"}, "/workdir"),
        ({"workdir": "/srv/x/../dovetail/attempts"}, "/workdir"),
        ({"workdir": "../../j/1/run"}, "/workdir"),
        ({"output": "../launch.json"}, "/output"),
        ({"error": "/srv/dovetail/token"}, "/error"),
        ({"output": "dovetail/token", "workdir": "/srv"}, "/output"),
    ],
)
def test_a_path_in_the_state_folder_is_refused(fields: dict[str, Any], pointer: str) -> None:
    with pytest.raises(RequestError) as caught:
        check_paths(parse_request({"run": "x", **fields}), STATE)
    (problem,) = caught.value.problems
    assert problem.pointer == pointer
    assert problem.detail.endswith("lies in the state folder of the plane; name another")


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"output": "logs/out", "error": "../run/err", "checkpoint": {"path": "saves"}},
        {"workdir": "/srv/dovetail-2", "output": "../out"},
        {"workdir": "/home/ada", "checkpoint": {"path": "$CKPT_DIR"}},
    ],
)
def test_other_paths_are_accepted(fields: dict[str, Any]) -> None:
    check_paths(parse_request({"run": "x", **fields}), STATE)


def test_a_state_folder_behind_a_link_has_two_names(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    for name in ("real", "link"):
        with pytest.raises(RequestError):
            check_paths(parse_request({"run": "x", "workdir": str(tmp_path / name)}), tmp_path / "link")
