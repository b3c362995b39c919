"""Whoever dies, and whenever: a job's processes run once for each attempt, and end with it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from tests.engines.conftest import Bench, bash, belonging_to, eventually

from dovetail.engines import cgroup, supervisor
from dovetail.engines.local import LocalEngine, _mark
from dovetail.model.units import SECOND

KILLS = 30
# A plane that is killed while it starts jobs, over and over. A process of its own, for it forks.
PLANE = """
import os, random, signal, sys, time
from pathlib import Path
from dovetail.engines.launch import Launch, Share
from dovetail.engines.local import LocalEngine, _mark

root, kills, chance = Path(sys.argv[1]), int(sys.argv[2]), random.Random(sys.argv[3])
for number in range(kills):
    plane = os.fork()
    if not plane:
        engine = LocalEngine(root)
        while True:
            for job in range(number + 1):
                text = f"echo $DOVETAIL_JOB_ID $DOVETAIL_ATTEMPT >> {root}/../ran.{job}"
                engine.start(Launch(f"j{job}", 1, (Share("n0", ("0",)),), ("/bin/bash", "-c", text)))
    time.sleep(chance.random() * 0.03)
    os.kill(plane, signal.SIGKILL)
    os.waitpid(plane, 0)
"""


def test_once_and_only_once_however_often_the_plane_is_killed(bench: Bench) -> None:
    words = [sys.executable, "-c", PLANE, str(bench.root), str(KILLS), "7"]
    subprocess.run(words, check=True, timeout=120)
    for job in range(KILLS):
        text = f"echo $DOVETAIL_JOB_ID $DOVETAIL_ATTEMPT >> {bench.root}/../ran.{job}"
        bench.engine.start(bash(text, job=f"j{job}"))
    for job in range(KILLS):
        assert bench.end(f"j{job}")[:2] == (0, "exited")
        assert (bench.root.parent / f"ran.{job}").read_text() == f"j{job} 1\n"


def test_many_supervisors_start_one_process(bench: Bench) -> None:
    planes = [LocalEngine(bench.root) for _ in range(4)]
    for plane in planes:
        plane.start(bash("echo ran; sleep 0.2"))
    assert bench.end().code == 0
    assert bench.log() == "ran\n"
    for plane in planes:
        plane.close()


@pytest.mark.parametrize("groups", [True, False])
def test_a_supervisor_that_is_killed_takes_all_with_it(bench: Bench, groups: bool) -> None:
    if not groups:
        bench.engine.close()
        bench.engine = LocalEngine(bench.root, limits=cgroup.Limits(why="none are wanted here"))
    bench.engine.start(bash("setsid sleep 311 & trap '' TERM; echo up; while :; do sleep 0.1; done"))
    bench.says("up")
    started = json.loads((bench.folder() / "started.json").read_text())
    os.kill(started["pid"], signal.SIGKILL)
    if groups:
        bench.again()  # a plane that comes back looks at once, one that runs after a while
    end = bench.end()
    assert (end.code, end.cause) == (137, "lost")
    assert end.detail == "its supervisor died; what was left of it was killed"
    assert end.started_at == started["at"]
    eventually(lambda: not belonging_to(bench.root))
    assert bench.log().startswith("up\n")  # bash may still say that its child was killed


def test_a_supervisor_killed_at_any_moment_starts_nothing_twice(bench: Bench) -> None:
    """From before it has the lock until after the job runs."""
    for number in range(12):
        job = f"j{number}"
        bench.engine.start(bash(f"echo ran >> {bench.root}/../{job}; sleep 0.05", job=job))
        time.sleep(number * 0.006)
        for line in belonging_to(bench.root):
            if "dovetail.engines.supervisor" in line and f"/{job}/" in line:
                with suppress(ProcessLookupError):
                    os.kill(int(line.split()[0]), signal.SIGKILL)
    bench.again()
    for number in range(12):
        job = f"j{number}"
        end = bench.end(job)
        file = bench.root.parent / job
        ran = file.read_text() if file.exists() else ""
        if end.cause == "exited":
            assert (end.code, ran) == (0, "ran\n")
        else:
            assert end.cause == "lost"
            assert ran in ("", "ran\n")


def test_a_machine_that_was_restarted_lost_its_attempts(bench: Bench) -> None:
    bench.run(bash("exit 0"))
    eventually(lambda: not belonging_to(bench.root))
    folder = bench.folder()
    (folder / "exit.json").unlink()
    started = json.loads((folder / "started.json").read_text())
    (folder / "started.json").write_text(json.dumps({**started, "boot": "another"}))
    bench.again()
    assert bench.end()[1:3] == ("lost", "the machine was restarted while it ran")


def test_the_pid_of_somebody_else_is_left_alone(bench: Bench) -> None:
    """Numbers come round again: who has the same pid but another birth is not ours."""
    bench.run(bash("exit 0"))
    eventually(lambda: not belonging_to(bench.root))
    (bench.folder() / "exit.json").unlink()
    with subprocess.Popen(["sleep", "300"], start_new_session=True) as other:
        said = {"processes": [[other.pid, supervisor.born(other.pid) + 1]]}
        (bench.folder() / "pids.json").write_text(json.dumps(said))
        bench.again()
        assert bench.end().cause == "lost"
        bench.engine.signal("j", 1, signal.SIGKILL)
        assert other.poll() is None
        other.kill()


def test_term_from_a_stranger_is_no_order_to_stop(bench: Bench) -> None:
    bench.engine.start(bash('trap "echo told; exit 0" TERM; echo up; sleep 300 & wait'))
    bench.says("up")
    os.kill(json.loads((bench.folder() / "started.json").read_text())["pid"], signal.SIGTERM)
    end = bench.end()
    assert (end.code, end.cause) == (0, "lost")
    assert end.detail == f"its supervisor got SIGTERM from process {os.getpid()}"
    assert bench.log() == "up\ntold\n"


OTHER_PLANE = """
import sys, time
from pathlib import Path
from dovetail.engines.launch import Launch, Share
from dovetail.engines.local import LocalEngine, _mark

engine = LocalEngine(Path(sys.argv[1]))
held = open(Path(sys.argv[1]) / "held", "w")
engine.wait(0)
text = "echo up; read line < ../../../go; echo went on"
engine.start(Launch("j", 1, (Share("n0", ("0",)),), ("/bin/bash", "-c", text)))
time.sleep(300)
"""


@pytest.mark.parametrize("death", [signal.SIGKILL, signal.SIGINT])
def test_a_job_outlives_the_plane(bench: Bench, death: signal.Signals) -> None:
    os.mkfifo(bench.root / "go")
    with subprocess.Popen(
        [sys.executable, "-c", OTHER_PLANE, str(bench.root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as plane:
        bench.says("up")
        os.killpg(plane.pid, death)  # as a terminal would, to all of its group
        plane.communicate()  # ends only if nobody holds the pipes any more
    held = os.fsencode(bench.root / "held")
    for file in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            assert os.fsencode(os.readlink(file)) != held
        except OSError:
            continue
    assert bench.engine.known() == {("j", 1)}
    assert bench.engine.poll() == []
    (bench.root / "go").write_text("go\n")
    assert bench.end()[:2] == (0, "exited")
    assert bench.log() == "up\nwent on\n"


def test_supervisors_that_never_come_up_are_given_up(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dovetail.engines.local.LIFE_CHECK", 0.0)
    monkeypatch.setattr("dovetail.engines.local.FULL_LOOK", 0.0)
    monkeypatch.setattr("sys.executable", "/bin/false")
    end = bench.run(bash("echo ran", time_limit=SECOND))
    assert (end.cause, end.detail) == (
        "unstartable",
        "no supervisor came up in 6 tries: /bin/false does not run",
    )
    assert bench.again().poll()[0].exit == end


def test_a_supervisor_is_small(bench: Bench) -> None:
    bench.engine.start(bash("echo up; sleep 300"))
    bench.says("up")
    pid = json.loads((bench.folder() / "started.json").read_text())["pid"]
    private = sum(
        int(line.split()[1])
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        if line.startswith("Private_")
    )
    assert private < 12_000  # kB; 4,700 measured, nearly all the interpreter's own
    loaded = Path(f"/proc/{pid}/maps").read_text()
    assert "libssl" not in loaded


# --- what is left of control groups -------------------------------------------------------------------


def test_a_group_that_cannot_be_removed_at_once_is_removed_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last process may still be on its way out; the end is told without waiting for that."""
    folder = tmp_path / "j" / "1"
    folder.mkdir(parents=True)
    group = tmp_path / "dovetail-j-1-0-x"
    group.mkdir()
    supervisor.write_json(str(folder), "launch.json", {"groups": [[[str(group), []]]]})
    tries: list[bool] = []

    def remove(name: str, patience: float = 2.0) -> bool:
        tries.append((folder / "exit.json").exists())
        if len(tries) < 4:
            return False
        Path(name).rmdir()
        return True

    monkeypatch.setattr(cgroup, "remove", remove)
    supervisor.Attempt(str(folder)).end(0, "exited", "")
    assert not group.exists()
    assert tries == [False, True, True, True]
    assert supervisor.read_json(str(folder / "exit.json"))["detail"] == ""


def test_a_plane_that_comes_back_removes_the_empty_groups_of_what_is_over(tmp_path: Path) -> None:
    root, base = tmp_path / "attempts", tmp_path / "cgroup"
    base.mkdir()

    def group(job: str, epoch: int, above: Path = root) -> Path:
        mark = _mark(above / job / str(epoch))
        made = base / f"dovetail-{job}-{epoch}-0-{mark}"
        made.mkdir()
        return made

    for job in ("over", "runs", "busy"):
        (root / job / "1").mkdir(parents=True)
        (root / job / "1" / "launch.json").write_text("{}")
    for job in ("over", "busy"):
        (root / job / "1" / "exit.json").write_text("{}")
    busy = group("busy", 1)
    (busy / "child").mkdir()  # as one that is not empty: it cannot be removed
    gone = [group("over", 1), group("was", 7)]
    kept = [busy, group("runs", 1), group("over", 1, tmp_path / "another"), base / "dovetail-plane"]
    kept[-1].mkdir()
    engine = LocalEngine(root, limits=cgroup.Limits(1, str(base), str(base)))
    engine.describe_limits()
    engine.close()
    assert [path for path in gone if path.exists()] == []
    assert [path for path in kept if not path.exists()] == []
