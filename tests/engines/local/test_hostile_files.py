"""Files that a job, or a fault, has left in the folder of an attempt: they fail this attempt alone.

The jobs here run under the account of the plane, so they can write to every file of their attempt.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.engines.conftest import Bench, bash, belonging_to, eventually

from dovetail.engines.contract import NodeShare
from dovetail.engines.local.attempt_files import (
    living_leaders,
    read_ended,
    read_exit,
    read_launch,
    read_started,
    read_stop,
)
from dovetail.engines.local.engine import LocalEngine
from dovetail.engines.local.environment import environment_of
from dovetail.engines.local.job_output import readable_logs
from dovetail.engines.local.json_files import Unreadable
from dovetail.model.units import SECOND

FILES = (
    "exit.json",
    "ended.json",
    "started.json",
    "launch.json",
    "pids.json",
    "logs.json",
    "stop.json",
    "environment.json",
    "lock",
    "run/reports.jsonl",
    "run/finished",
    "run/stop.json",
)
EXIT = {
    "code": 0,
    "cause": "exited",
    "detail": "",
    "started_at": 1,
    "ended_at": 2,
    "finished": False,
    "lasted": 1,
}
VALID: dict[str, Any] = {
    "exit.json": EXIT,
    "started.json": {"at": 1, "boot": "x", "pid": 1, "since_boot": 1},
    "pids.json": {"processes": [[1, 1]]},
    "stop.json": {"why": "x", "grace": 1, "at": 1},
    "logs.json": ["/x"],
}  # fmt: skip
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just(10**30),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@st.composite
def contents(draw: st.DrawFn) -> tuple[str, bytes]:
    """A file of an attempt with arbitrary bytes, arbitrary JSON, or JSON of which one part is wrong."""
    name = draw(st.sampled_from(FILES))
    if name in VALID and draw(st.booleans()):
        value = VALID[name]
        if isinstance(value, dict):
            key = draw(st.sampled_from(sorted(value)))
            value = {**value, key: draw(values)}
            if draw(st.booleans()):
                del value[key]
        return name, json.dumps(value).encode()
    return name, draw(st.binary(max_size=50) | values.map(lambda value: json.dumps(value).encode()))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attempts are looked at whenever the engine is polled."""
    monkeypatch.setattr("dovetail.engines.local.engine.SCAN_EVERY", 0.0)
    monkeypatch.setattr("dovetail.engines.local.engine.SUPERVISOR_CHECK_EVERY", 0.5)


def use(bench: Bench, epoch: int) -> None:
    """Call every method that reads the files of an attempt."""
    for engine in (bench.engine, LocalEngine(bench.root)):
        engine.known()
        engine.poll()
        engine.logs("h", epoch)
        engine.reports("h", epoch, 0)
        environment_of(bench.folder("h", epoch))
        if engine is not bench.engine:
            engine.close()
    bench.engine.signal("h", epoch, 10)
    bench.engine.stop("h", epoch, "cancelled", SECOND)


def survives(bench: Bench, plant: Callable[[Path], None], epoch: int) -> None:
    """Whatever lies there before the start or after the end, the attempt ends, and another one goes on."""
    folder = bench.folder("h", epoch)
    (folder / "run").mkdir(parents=True)
    plant(folder)
    bench.engine.start(bash("exit 0", job="h", epoch=epoch))
    use(bench, epoch)
    bench.end("h", epoch)
    eventually(lambda: not belonging_to(folder))
    plant(folder)
    use(bench, epoch)
    bench.engine.start(bash("exit 0", job="h", epoch=epoch))
    bench.end("h", epoch)
    bench.engine.forget("h", epoch)
    assert [key for key in bench.engine.known() if key[0] == "h"] == []
    assert bench.engine.poll() == []


@pytest.mark.slow(20)
@pytest.mark.usefixtures("quick")
def test_no_content_of_a_file_harms_the_engine_or_another_attempt(bench: Bench) -> None:
    bench.engine.start(bash("echo up; while [ ! -e go ]; do sleep 0.05; done", job="steady"))
    bench.wait_for_output("up", "steady")
    epochs = count(1)

    @settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
    @given(contents())
    def check(planted: tuple[str, bytes]) -> None:
        def plant(folder: Path) -> None:
            (folder / planted[0]).write_bytes(planted[1])

        survives(bench, plant, next(epochs))

    check()
    (bench.folder("steady") / "run" / "go").touch()
    assert bench.end("steady")[:2] == (0, "exited")


READERS: tuple[Callable[[Path], object], ...] = (
    lambda folder: read_launch(str(folder)),
    lambda folder: read_started(str(folder)),
    lambda folder: read_stop(str(folder)),
    lambda folder: read_ended(str(folder)),
    lambda folder: read_exit(str(folder)),
    lambda folder: living_leaders(str(folder)),
    environment_of,
    readable_logs,
)


def test_what_is_read_from_a_file_is_valid_or_unreadable(bench: Bench) -> None:
    """Whichever part of a real file is replaced by whatever value."""
    bench.engine.start(bash("echo up; sleep 300"))
    bench.wait_for_output("up")
    bench.engine.stop("j", 1, "over", SECOND)
    bench.end()
    folder = bench.folder()
    (folder / "ended.json").write_text(json.dumps({"code": 0, "cause": "exited", "detail": ""}))
    originals = {name: (folder / name).read_bytes() for name in FILES if name.endswith(".json")}

    @settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.sampled_from(sorted(originals)), st.data())
    def check(name: str, data: st.DataObject) -> None:
        content = json.loads(originals[name])
        place: Any = content
        while True:
            keys = list(range(len(place))) if isinstance(place, list) else sorted(place)
            if not keys:
                break
            key = data.draw(st.sampled_from(keys))
            if isinstance(place[key], dict | list) and data.draw(st.booleans()):
                place = place[key]
                continue
            place[key] = data.draw(values)
            break
        (folder / name).write_text(json.dumps(content))
        try:
            for read in READERS:
                with suppress(Unreadable):
                    read(folder)
        finally:
            (folder / name).write_bytes(originals[name])

    check()


def _link(path: Path) -> None:
    path.symlink_to("/etc/passwd")


def _folder(path: Path) -> None:
    (path / "inside").mkdir(parents=True)


def _deep(path: Path) -> None:
    path.write_text("[" * 100_000)


def _huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(10 << 30)


@pytest.mark.slow(20)
@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("make", [_link, _folder, os.mkfifo, _deep, _huge])
def test_no_kind_of_file_harms_the_engine_or_another_attempt(
    bench: Bench, make: Callable[[Path], None]
) -> None:
    bench.engine.start(bash("echo up; sleep 300", job="steady"))
    bench.wait_for_output("up", "steady")

    for epoch, name in enumerate(("exit.json", "started.json", "launch.json", "stop.json", "pids.json"), 1):

        def plant(folder: Path, name: str = name) -> None:
            path = folder / name
            if path.is_symlink() or path.is_file():
                path.unlink()
            if not path.exists():
                make(path)

        survives(bench, plant, epoch)
    assert ("steady", 1) in bench.engine.known()


def test_a_job_that_writes_to_its_stop_file_harms_only_itself(bench: Bench) -> None:
    """As the plane's own account it can write anywhere; what it is shown is a copy."""
    text = """
        echo '{"at": {}}' > $DOVETAIL_RUN_DIR/stop.json
        echo '{"at": {}}' > $DOVETAIL_RUN_DIR/../stop.json
        echo up; sleep 300
    """
    bench.engine.start(bash(text))
    bench.wait_for_output("up")
    bench.engine.stop("j", 1, "cancelled", SECOND)
    end = bench.end()
    assert end.cause == "stopped"
    assert bench.restart().poll()[0].exit == end


@pytest.mark.usefixtures("quick")
def test_an_end_that_cannot_be_read_is_a_lost_attempt_with_the_reason(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """Unless the supervisor had noted before how the job ended."""
    bench.run(bash("exit 0"))
    eventually(lambda: not belonging_to(bench.root))
    (bench.folder() / "exit.json").write_text('{"code": 0, "cau')
    bench.restart()
    assert bench.end()[:2] == (0, "exited")
    eventually(lambda: not belonging_to(bench.root))
    (bench.folder() / "ended.json").unlink()
    (bench.folder() / "exit.json").write_text('{"code": 0, "cau')
    bench.restart()
    end = bench.end()
    assert end.cause == "lost"
    assert end.detail.startswith("its exit.json cannot be read: it is not valid JSON")
    assert "job j attempt 1: its exit.json cannot be read" in caplog.text


@pytest.mark.usefixtures("quick")
def test_an_end_that_a_job_forges_badly_does_not_end_it(bench: Bench) -> None:
    bench.engine.start(
        bash("echo junk > ../exit.json; echo up; until [ -e go ]; do sleep 0.05; done; exit 4")
    )
    bench.wait_for_output("up")
    for _ in range(5):
        assert bench.engine.poll() == []
    (bench.folder() / "run" / "go").touch()
    assert bench.end()[:2] == (4, "exited")


def test_the_text_of_an_end_can_be_stored(bench: Bench) -> None:
    """A lone surrogate or a NUL would fail the commit of the plane."""
    bench.run(bash("exit 0"))
    exit = json.loads((bench.folder() / "exit.json").read_text())
    (bench.folder() / "exit.json").write_text(json.dumps({**exit, "detail": "a\0b\ud800\nc"}))
    assert ascii(bench.restart().poll()[0].exit.detail) == "'a b? c'"


@pytest.mark.parametrize("name", ["../launch.json", "../environment.json", "../new", "../../../../token"])
def test_an_output_file_cannot_be_a_file_of_the_plane(bench: Bench, name: str) -> None:
    (bench.root.parent / "token").write_text("secret")
    for job, field in enumerate(("output", "error")):
        launch = replace(bash("echo ran", job=f"j{job}"), **{field: name})  # type: ignore[arg-type]
        end = bench.run(launch)
        assert end.cause == "unstartable"
        assert "it lies in the state folder of the plane; name another" in end.detail
        assert [file.name for file in bench.engine.logs(launch.job, 1) if file.name != "output.log"] == []
    assert not (bench.folder("j0") / "new").exists()
    assert (bench.root.parent / "token").read_text() == "secret"


def test_a_link_to_a_file_of_the_plane_is_not_shown(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    text = f"echo mine; mv {tmp_path}/mine {tmp_path}/was; ln -s {bench.folder()} {tmp_path}/mine"
    bench.run(bash(text, output=str(tmp_path / "mine" / "launch.json")))
    assert bench.engine.logs("j", 1) == []


@pytest.mark.parametrize("field", ["workdir", "checkpoint_dir"])
@pytest.mark.parametrize("linked", [False, True])
def test_a_folder_of_a_job_cannot_lie_in_the_state_folder(
    bench: Bench, tmp_path: Path, field: str, linked: bool
) -> None:
    target = bench.root.parent
    if linked:
        target = tmp_path / "link"
        target.symlink_to(bench.root.parent)
    (bench.root.parent / "checkpoints" / "other").mkdir(parents=True)
    for job, path in enumerate(("", "checkpoints/other", "checkpoints/..", "attempts/j0/1", "new")):
        launch = replace(bash("echo ran", job=f"j{job}"), **{field: f"{target}/{path}"})  # type: ignore[arg-type]
        end = bench.run(launch)
        assert end.cause == "unstartable", path
        assert "it lies in the state folder of the plane; name another" in end.detail
    assert not (bench.root.parent / "new").exists()


def test_a_job_may_use_its_own_folders(bench: Bench) -> None:
    run = bench.folder() / "run"
    end = bench.run(bash("echo ran", checkpoint_dir=f"{run}/saves", output="deep/out", error=f"{run}/err"))
    assert end.code == 0
    assert (run / "saves").is_dir()
    assert bench.engine.logs("j", 1) == [run / "deep/out", run / "err"]


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("removed", [".", "j", "j/1"])
def test_attempts_are_lost_when_their_folder_is_removed(bench: Bench, removed: str) -> None:
    """Nothing of them goes on, and the engine starts others without a restart."""
    bench.engine.start(bash("setsid sleep 313 & echo up; sleep 300", shares=(NodeShare("n0", ()),)))
    bench.wait_for_output("up")
    assert bench.engine.poll() == []
    bench.engine.wait(0)
    shutil.rmtree(bench.root / removed)
    end = bench.end()
    assert end.cause == "lost"
    assert "its launch.json cannot be read: it is gone" in end.detail
    eventually(lambda: not belonging_to(bench.root))
    assert bench.run(bash("echo here", job="next")).code == 0
    assert bench.log("next") == "here\n"
