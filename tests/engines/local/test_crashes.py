"""Planes and supervisors that are killed: an attempt runs at most once, and no process survives it."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from tests.conftest import chaos_seed
from tests.engines.conftest import Bench, bash, belonging_to, eventually, leading

from dovetail.engines.contract import NodeShare
from dovetail.engines.local import cgroup
from dovetail.engines.local.attempt_groups import folder_digest
from dovetail.engines.local.cgroup_limits import Limits
from dovetail.engines.local.engine import LocalEngine
from dovetail.engines.local.json_files import read_json
from dovetail.engines.local.processes import start_ticks
from dovetail.engines.local.supervisor import NOTHING, Supervisor
from dovetail.engines.local.supervisor_process import _PROGRAM
from dovetail.model.units import SECOND

KILLS = 30
SUPERVISOR_MODULES = (
    "account_folders",
    "attempt_files",
    "cgroup",
    "doorbell",
    "json_files",
    "output_limit",
    "process_start",
    "processes",
    "state_paths",
    "supervisor",
)
# A plane that is killed while it starts jobs, over and over. It forks, so it is a process of its own.
PLANE = """
import os, random, signal, sys, time
from pathlib import Path
from dovetail.engines.contract import Launch, NodeShare
from dovetail.engines.local.engine import LocalEngine

root, kills, chance = Path(sys.argv[1]), int(sys.argv[2]), random.Random(sys.argv[3])
for number in range(kills):
    plane = os.fork()
    if not plane:
        engine = LocalEngine(root)
        engine.lead(number + 2)
        while True:
            for job in range(number + 1):
                text = f"echo $DOVETAIL_JOB_ID $DOVETAIL_ATTEMPT >> {root}/../ran.{job}"
                engine.start(Launch(f"j{job}", 1, (NodeShare("n0", ("0",)),), ("/bin/bash", "-c", text)))
    time.sleep(chance.random() * 0.03)
    os.kill(plane, signal.SIGKILL)
    os.waitpid(plane, 0)
"""


@pytest.mark.chaos
def test_an_attempt_runs_once_however_often_the_plane_is_killed(bench: Bench) -> None:
    words = [sys.executable, "-c", PLANE, str(bench.root), str(KILLS), str(chaos_seed(7))]
    subprocess.run(words, check=True, timeout=120)
    bench.restart()
    for job in range(KILLS):
        text = f"echo $DOVETAIL_JOB_ID $DOVETAIL_ATTEMPT >> {bench.root}/../ran.{job}"
        bench.engine.start(bash(text, job=f"j{job}"))
    for job in range(KILLS):
        assert bench.end(f"j{job}")[:2] == (0, "exited")
        assert (bench.root.parent / f"ran.{job}").read_text() == f"j{job} 1\n"


def test_many_supervisors_start_one_process(bench: Bench) -> None:
    planes = [LocalEngine(bench.root) for _ in range(4)]
    for plane in planes:
        leading(plane).start(bash("echo ran; sleep 0.2"))
    bench.restart()
    assert bench.end().code == 0
    assert bench.log() == "ran\n"
    for plane in planes:
        plane.close()


@pytest.mark.parametrize("groups", [True, False])
def test_when_a_supervisor_is_killed_its_job_is_killed(bench: Bench, groups: bool) -> None:
    if not groups:
        bench.restart(LocalEngine(bench.root, limits=Limits(why="not used in this test")))
    bench.engine.start(bash("setsid sleep 311 & trap '' TERM; echo up; while :; do sleep 0.1; done"))
    bench.wait_for_output("up")
    started = json.loads((bench.folder() / "started.json").read_text())
    os.kill(started["pid"], signal.SIGKILL)
    if groups:
        bench.restart()  # a restarted plane checks at once, a running one after some seconds
    end = bench.end()
    assert (end.code, end.cause) == (137, "lost")
    assert end.detail == "its supervisor died; its remaining processes were killed"
    assert end.started_at == started["at"]
    eventually(lambda: not belonging_to(bench.root))
    assert bench.log().startswith("up\n")  # bash may print that its child was killed


def test_a_supervisor_killed_at_any_moment_starts_nothing_twice(bench: Bench) -> None:
    """From before it has the lock until after the job runs."""
    for number in range(12):
        job = f"j{number}"
        bench.engine.start(bash(f"echo ran >> {bench.root}/../{job}; sleep 0.05", job=job))
        time.sleep(number * 0.006)
        for line in belonging_to(bench.root):
            if "dovetail.engines.local.supervisor" in line and f"/{job}/" in line:
                with suppress(ProcessLookupError):
                    os.kill(int(line.split()[0]), signal.SIGKILL)
    bench.restart()
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


def supervisor_of(bench: Bench) -> int:
    return int(json.loads((bench.folder() / "started.json").read_text())["pid"])


def leader_of(bench: Bench) -> int:
    return int(json.loads((bench.folder() / "pids.json").read_text())["processes"][0][0])


def test_a_job_dies_with_its_supervisor(bench: Bench) -> None:
    """At once, not when a plane looks: work that is done after that would be done again."""
    bench.engine.start(bash("trap '' TERM; echo up; while :; do sleep 0.1; done"))
    bench.wait_for_output("up")
    leader = leader_of(bench)
    os.kill(supervisor_of(bench), signal.SIGKILL)
    eventually(lambda: not start_ticks(leader))


def test_a_dead_supervisor_is_noticed_at_the_next_look(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.engine.start(bash("setsid sleep 312 & echo up; sleep 300"))
    bench.wait_for_output("up")
    bench.restart()
    assert bench.engine.poll() == []
    monkeypatch.setattr("dovetail.engines.local.engine.SUPERVISOR_CHECK_EVERY", math.inf)
    bench.engine._check_at[("j", 1)] = math.inf
    os.kill(supervisor_of(bench), signal.SIGKILL)
    assert bench.end().cause == "lost"
    eventually(lambda: not belonging_to(bench.root))


@pytest.mark.parametrize("helper", ["", "setsid sleep 314 & "])
@pytest.mark.parametrize("code", [0, 3])
def test_a_job_that_ended_before_it_was_told_to_stop_was_not_stopped(
    bench: Bench, helper: str, code: int
) -> None:
    """Its supervisor is suspended meanwhile, so it finds the end and the order at the same time."""
    bench.engine.start(bash(f"{helper} echo up; until [ -e go ]; do sleep 0.02; done; exit {code}"))
    bench.wait_for_output("up")
    supervisor, leader = supervisor_of(bench), leader_of(bench)
    os.kill(supervisor, signal.SIGSTOP)
    (bench.folder() / "run" / "go").touch()
    eventually(lambda: not start_ticks(leader))
    bench.engine.stop("j", 1, "preempted", 20 * SECOND)
    os.kill(supervisor, signal.SIGCONT)
    assert bench.end()[:2] == (code, "exited")


@pytest.mark.parametrize("code", [0, 3])
def test_an_end_that_a_supervisor_saw_counts_although_it_dies(bench: Bench, code: int) -> None:
    """Before it has written the end it waits for helper processes, and removes control groups."""
    bench.engine.start(bash(f"(trap '' TERM; setsid sleep 316) & echo up; exit {code}"))
    eventually((bench.folder() / "ended.json").exists)
    with suppress(ProcessLookupError):  # a slow test may find it gone
        os.kill(supervisor_of(bench), signal.SIGKILL)
    bench.restart()
    assert bench.end()[:2] == (code, "exited")
    eventually(lambda: not belonging_to(bench.root))


@pytest.mark.parametrize("helpers", [True, False])
def test_the_note_of_an_end_survives_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, helpers: bool
) -> None:
    """By its own sync while helper processes are waited for; else by that of exit.json, which follows."""
    synced: list[str] = []
    fsync = os.fsync

    def noted(handle: int) -> None:
        synced.append(
            os.readlink(f"/proc/self/fd/{handle}").rpartition("/")[2].removesuffix(f".{os.getpid()}")
        )
        fsync(handle)

    monkeypatch.setattr(os, "fsync", noted)
    folder = tmp_path / "j" / "1"
    folder.mkdir(parents=True)
    supervisor = Supervisor(str(folder), NOTHING)
    supervisor._note_end(exit_follows=not helpers)
    assert synced == ([".ended.json", "1"] if helpers else [])
    assert json.loads((folder / "ended.json").read_text())["code"] == 0
    supervisor.end(0, "exited", "")
    assert synced[-2:] == [".exit.json", "1"]


@pytest.mark.parametrize("killed", [False, True])
def test_an_end_tells_how_long_the_attempt_lasted(bench: Bench, killed: bool) -> None:
    """Of its supervisor too, if that died: the wall clock may have been set since the start."""
    bench.engine.start(bash("echo up; sleep 0.3; until [ -e go ]; do sleep 0.02; done"))
    bench.wait_for_output("up")
    time.sleep(0.3)
    started = json.loads((bench.folder() / "started.json").read_text())
    if killed:
        os.kill(supervisor_of(bench), signal.SIGKILL)
    else:
        (bench.folder() / "run" / "go").touch()
    end = bench.end()
    assert (
        300_000 <= end.lasted <= time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000 - started["since_boot"]
    )


def test_a_stopped_job_has_not_ended_by_itself(bench: Bench) -> None:
    bench.engine.start(bash("trap 'exit 0' TERM; echo up; sleep 300 & wait"))
    bench.wait_for_output("up")
    bench.engine.stop("j", 1, "preempted", 20 * SECOND)
    assert bench.end().cause == "stopped"
    assert not (bench.folder() / "ended.json").exists()


def test_a_gang_of_which_one_process_still_runs_is_stopped(bench: Bench) -> None:
    pair = (NodeShare("n0", ("0",)), NodeShare("n1", ("1",)))
    text = "echo up $NODE_RANK; [ $NODE_RANK = 0 ] && exit 0; trap 'exit 0' TERM; sleep 300 & wait"
    bench.engine.start(bash(text, shares=pair))
    bench.wait_for_output("up 0")
    bench.wait_for_output("up 1")
    bench.engine.stop("j", 1, "preempted", 20 * SECOND)
    assert bench.end().cause == "stopped"


@pytest.mark.parametrize("ended", [True, False])
def test_an_attempt_is_lost_when_the_machine_restarts_unless_it_had_ended(bench: Bench, ended: bool) -> None:
    bench.run(bash("exit 0"))
    eventually(lambda: not belonging_to(bench.root))
    folder = bench.folder()
    (folder / "exit.json").unlink()
    if not ended:
        (folder / "ended.json").unlink()
    started = json.loads((folder / "started.json").read_text())
    (folder / "started.json").write_text(json.dumps({**started, "boot": "another"}))
    bench.restart()
    end = bench.end()
    if ended:
        assert end[:2] == (0, "exited")
    else:
        assert end[1:3] == ("lost", "the machine was restarted while it ran")
    assert end.lasted == 0, "how long it ran is not known"


def test_a_reused_pid_is_not_signalled(bench: Bench) -> None:
    """A process with the same pid but another start time is not of the attempt."""
    bench.run(bash("exit 0"))
    eventually(lambda: not belonging_to(bench.root))
    for name in ("exit.json", "ended.json"):
        (bench.folder() / name).unlink()
    with subprocess.Popen(["sleep", "300"], start_new_session=True) as other:
        pids = {"processes": [[other.pid, start_ticks(other.pid) + 1]]}
        (bench.folder() / "pids.json").write_text(json.dumps(pids))
        bench.restart()
        assert bench.end().cause == "lost"
        bench.engine.signal("j", 1, signal.SIGKILL)
        assert other.poll() is None
        other.kill()


def test_sigterm_from_another_process_loses_the_attempt(bench: Bench) -> None:
    bench.engine.start(bash('trap "echo told; exit 0" TERM; echo up; sleep 300 & wait'))
    bench.wait_for_output("up")
    os.kill(json.loads((bench.folder() / "started.json").read_text())["pid"], signal.SIGTERM)
    end = bench.end()
    assert (end.code, end.cause) == (0, "lost")
    assert end.detail == f"its supervisor got SIGTERM from process {os.getpid()}"
    assert bench.log() == "up\ntold\n"


OTHER_PLANE = """
import sys, time
from pathlib import Path
from dovetail.engines.contract import Launch, NodeShare
from dovetail.engines.local.engine import LocalEngine

engine = LocalEngine(Path(sys.argv[1]))
engine.lead(engine.newest_term() + 1)
held = open(Path(sys.argv[1]) / "held", "w")
engine.wait(0)
text = "echo up; read line < ../../../go; echo went on"
engine.start(Launch("j", 1, (NodeShare("n0", ("0",)),), ("/bin/bash", "-c", text)))
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
        bench.wait_for_output("up")
        os.killpg(plane.pid, death)  # to its whole process group, as a terminal does
        plane.communicate()  # returns only when no process has the pipes open
    held = os.fsencode(bench.root / "held")
    for file in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            assert os.fsencode(os.readlink(file)) != held
        except OSError:
            continue
    bench.restart()
    assert bench.engine.known() == {("j", 1)}
    assert bench.engine.poll() == []
    (bench.root / "go").write_text("go\n")
    assert bench.end()[:2] == (0, "exited")
    assert bench.log() == "up\nwent on\n"


def test_the_engine_gives_up_when_no_supervisor_comes_up(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dovetail.engines.local.engine.SUPERVISOR_CHECK_EVERY", 0.0)
    monkeypatch.setattr("dovetail.engines.local.engine.SCAN_EVERY", 0.0)
    monkeypatch.setattr("sys.executable", "/bin/false")
    end = bench.run(bash("echo ran", time_limit=SECOND))
    assert (end.cause, end.detail) == (
        "unstartable",
        "no supervisor came up in 6 tries: /bin/false does not run",
    )
    assert bench.restart().poll()[0].exit == end


def test_a_supervisor_imports_little() -> None:
    """Thousands of supervisors may start, and the excluded modules are slow to import."""
    code = f"{_PROGRAM.rpartition(';')[0]}; print(*sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    assert "dovetail.engines.local.supervisor" in loaded
    assert loaded & {"collections", "contextlib", "ctypes", "enum", "json", "re", "signal", "typing"} == set()
    assert {name for name in loaded if name.startswith("dovetail.")} == {
        "dovetail.engines",
        "dovetail.engines.local",
        "dovetail.model",
        "dovetail.model.formats",
        *(f"dovetail.engines.local.{name}" for name in SUPERVISOR_MODULES),
    }


def test_a_supervisor_is_small(bench: Bench) -> None:
    bench.engine.start(bash("echo up; sleep 300"))
    bench.wait_for_output("up")
    pid = json.loads((bench.folder() / "started.json").read_text())["pid"]
    private = sum(
        int(line.split()[1])
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        if line.startswith("Private_")
    )
    assert private < 12_000  # kB; 4,700 measured, nearly all of the interpreter
    loaded = Path(f"/proc/{pid}/maps").read_text()
    assert "libssl" not in loaded


# --- leftover control groups -------------------------------------------------------------------


def test_a_group_that_cannot_be_removed_at_once_is_removed_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last process may still be exiting; the end is reported without waiting for that."""
    folder = tmp_path / "j" / "1"
    folder.mkdir(parents=True)
    group = tmp_path / "dovetail-j-1-0-x"
    group.mkdir()
    tries: list[bool] = []

    def remove(name: str, timeout: float = 2.0) -> bool:
        tries.append((folder / "exit.json").exists())
        if len(tries) < 4:
            return False
        Path(name).rmdir()
        return True

    monkeypatch.setattr(cgroup, "remove", remove)
    Supervisor(str(folder), {**NOTHING, "groups": [[(str(group), [])]]}).end(0, "exited", "")
    assert not group.exists()
    assert tries == [False, True, True, True]
    assert read_json(str(folder / "exit.json"))["detail"] == ""


def test_a_restarted_plane_removes_the_empty_groups_of_ended_attempts(tmp_path: Path) -> None:
    root, base = tmp_path / "attempts", tmp_path / "cgroup"
    base.mkdir()

    def group(job: str, epoch: int, above: Path = root) -> Path:
        mark = folder_digest(above / job / str(epoch))
        made = base / f"dovetail-{job}-{epoch}-0-{mark}"
        made.mkdir()
        return made

    for job in ("over", "runs", "busy"):
        (root / job / "1").mkdir(parents=True)
        (root / job / "1" / "launch.json").write_text("{}")
    for job in ("over", "busy"):
        (root / job / "1" / "exit.json").write_text("{}")
    busy = group("busy", 1)
    (busy / "child").mkdir()  # it cannot be removed, like a group with processes
    gone = [group("over", 1), group("was", 7)]
    kept = [busy, group("runs", 1), group("over", 1, tmp_path / "another"), base / "dovetail-plane"]
    kept[-1].mkdir()
    engine = LocalEngine(root, limits=Limits(1, str(base), str(base)))
    engine.describe_limits()
    engine.close()
    assert [path for path in gone if path.exists()] == []
    assert [path for path in kept if not path.exists()] == []
