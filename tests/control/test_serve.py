"""What a start that fails leaves behind: nothing."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest
from tests.control import harness

from dovetail.control.serve import Wanted, serve
from dovetail.model.errors import DovetailError


@pytest.fixture
def port() -> int:
    """One that is free, as far as one can know."""
    return harness.free_port()


def failed(wanted: Wanted) -> str:
    with pytest.raises(DovetailError) as error:
        serve(wanted, lambda up: pytest.fail("it is up"))
    return str(error.value)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"policy": "nosuch"}, "nosuch"),
        ({"virtual": "nonsense"}, "describes no cluster"),
        ({"scale": 0.0}, "is not positive"),
        ({"database": "postgresql://nobody@127.0.0.1:1/x"}, "cannot be used"),
        ({"database": "mysql://x"}, "neither SQLite nor PostgreSQL"),
        ({"pass_env": ("HF_HOME", "PGPASSWORD")}, "PGPASSWORD holds a secret of the plane"),
        ({"pass_env": ("DOVETAIL_JOB_ID",)}, "DOVETAIL_JOB_ID is set for each job"),
    ],
)
def test_a_start_that_fails_leaves_nothing_behind(
    tmp_path: Path, port: int, wrong: dict[str, Any], words: str
) -> None:
    said: dict[str, Any] = {"virtual": "1x1", **wrong}
    assert words in failed(Wanted(folder=tmp_path / "state", port=port, **said))
    assert list(tmp_path.iterdir()) == []


def test_a_port_that_is_taken_leaves_nothing_behind(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        assert "cannot listen" in failed(Wanted(folder=tmp_path / "state", port=number, virtual="1x1"))
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_no_state_folder(tmp_path: Path, port: int) -> None:
    file = tmp_path / "state"
    file.write_text("mine")
    assert failed(Wanted(folder=file, port=port, virtual="1x1")) == (
        f"the state folder {file} is a file; name another with --state"
    )
    assert file.read_text() == "mine"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: only root can give a folder away")
@pytest.mark.parametrize("name", ["", "attempts", "checkpoints"])
def test_root_does_not_use_a_state_folder_of_another_account(tmp_path: Path, port: int, name: str) -> None:
    folder = tmp_path / "state"
    for part in ("attempts", "checkpoints"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    os.chown(folder / name, 65534, 65534)
    assert failed(Wanted(folder=folder, port=port, virtual="1x1")) == (
        f"{folder / name} belongs to another account, which could make root run its programs; "
        "give it to root (chown -R root), or name another folder with --state"
    )
    assert not (folder / "plane.db").exists()
