"""A database that is older than the state folder: the plane says so instead of stopping the running jobs."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.control.harness import eventually, free_port

from dovetail import Client
from dovetail.control.high_water import HighWater, Mark
from dovetail.engines.local.terms import marked_attempts

COMMAND = [sys.executable, "-m", "dovetail.cli"]


@contextlib.contextmanager
def up(folder: Path, *words: str) -> Iterator[Client]:
    """A plane that is killed at the end."""
    log = folder / "up.log"
    command = [
        *COMMAND,
        "up",
        "--state",
        str(folder / "state"),
        "--port",
        str(free_port()),
        "--virtual",
        "1x4",
        *words,
    ]
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output) as process:
        try:
            eventually(lambda: "dovetail is up" in log.read_text() or process.poll() is not None, "the plane")
            assert process.poll() is None, log.read_text()
            with Client(state=folder / "state") as client:
                yield client
        finally:
            process.kill()


def refused(folder: Path) -> str:
    command = [
        *COMMAND,
        "up",
        "--state",
        str(folder / "state"),
        "--port",
        str(free_port()),
        "--virtual",
        "1x4",
    ]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2, ended.stderr
    assert ended.stderr.count("\n") == 1, ended.stderr
    return ended.stderr


def lives(pid: int) -> bool:
    try:
        return "zombie" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


@pytest.mark.slow(10)
@pytest.mark.parametrize("running", [True, False], ids=["with a running job", "with held jobs only"])
def test_a_lost_log_is_noticed_before_anything_is_stopped(tmp_path: Path, running: bool) -> None:
    pid = tmp_path / "pid"
    with up(tmp_path) as client:
        for _ in range(3):
            client.submit({"run": "true", "hold": True, "resources": {"gpus": 1}})
        if running:
            client.submit(
                {"run": f"echo $$ > {pid}.part; mv {pid}.part {pid}; exec sleep 90", "resources": {"gpus": 1}}
            )
            eventually(pid.exists, "the start of the job")
    os.truncate(tmp_path / "state" / "plane.db-wal", 0)
    for _ in range(2):  # also when it is asked again
        said = refused(tmp_path)
        emptied = "is new or was emptied" in said  # the log had all of it
        assert emptied or "is older than the state folder" in said
        flag = "--rebind" if emptied else "--accept-loss"
        assert flag in said
    if running:
        assert lives(int(pid.read_text())), "a running job is not stopped"
    with up(tmp_path, flag) as client:
        assert list(client.jobs(active=True)) == []
        if running:
            eventually(lambda: not lives(int(pid.read_text())), "the end of a job that no record is left of")
            active = str(tmp_path / "state" / "attempts" / ".active")
            eventually(lambda: not marked_attempts(active), "that the plane has forgotten it")
    with up(tmp_path):
        pass  # it was accepted


def test_a_plane_that_is_killed_comes_up_again(tmp_path: Path) -> None:
    with up(tmp_path) as client:
        client.submit({"run": "true", "hold": True, "resources": {"gpus": 1}})
    with up(tmp_path) as client:
        assert len(list(client.jobs(active=True))) == 1


def test_a_mark_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    mark = HighWater(tmp_path / "high-water")
    assert mark.read() is None
    mark.note(Mark("abc", 12), durable=True)
    assert HighWater(tmp_path / "high-water").read() == Mark("abc", 12)
    mark.note(Mark("abc", 7), durable=False)
    assert mark.read() == Mark("abc", 7)
    for damaged in (b"", b"{", b"[]", b'{"database": 1}', os.urandom(40)):
        (tmp_path / "high-water").write_bytes(damaged)
        assert mark.read() is None


def test_down_leaves_a_process_alone_that_has_the_number_of_the_plane(tmp_path: Path) -> None:
    with up(tmp_path):
        pass
    address = tmp_path / "state" / "address.json"
    with subprocess.Popen(["sleep", "60"]) as stranger:
        try:
            address.write_text(json.dumps({**json.loads(address.read_text()), "pid": stranger.pid}))
            command = [*COMMAND, "down", "--state", str(tmp_path / "state")]
            ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
            assert (ended.returncode, stranger.poll()) == (1, None), ended.stderr
            assert "no plane runs" in ended.stderr
        finally:
            stranger.send_signal(signal.SIGKILL)
