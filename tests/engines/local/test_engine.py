"""The local engine with real processes, from start to end."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from tests.engines.conftest import Bench, bash, belonging_to, eventually

from dovetail.engines.contract import Engine, Launch, NodeShare
from dovetail.engines.local import process_start
from dovetail.engines.local.engine import LocalEngine
from dovetail.engines.local.environment import environment_of
from dovetail.engines.local.json_files import write_json
from dovetail.model.errors import InputError
from dovetail.model.units import SECOND

KNOWN_TO_THE_PLANE = (("DOVETAIL_ARRAY_INDEX", "4"), ("DOVETAIL_DEADLINE", "unknown yet"))
PAIR = (NodeShare("n0", ("0", "1")), NodeShare("n1", ("2", "3")))


def test_it_is_an_engine(tmp_path: Path) -> None:
    engine: Engine = LocalEngine(tmp_path / "attempts")
    assert engine.known() == set()
    assert engine.poll() == []
    assert isinstance(engine, LocalEngine)
    engine.close()


# --- exit codes and causes -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "code", "detail"),
    [
        ("exit 0", 0, ""),
        ("exit 3", 3, "it exited with code 3"),
        ("kill -SEGV $$", 139, "it was killed by SIGSEGV"),
        ("kill -KILL $$", 137, "it was killed by SIGKILL"),
    ],
)
def test_exit_codes_and_signals_are_reported(bench: Bench, text: str, code: int, detail: str) -> None:
    before = time.time_ns() // 1_000
    end = bench.run(bash(text))
    assert (end.code, end.cause, end.detail, end.finished) == (code, "exited", detail, False)
    assert before <= end.started_at <= end.ended_at <= time.time_ns() // 1_000


def test_an_end_is_reported_until_it_is_forgotten(bench: Bench) -> None:
    bench.run(bash("echo here"))
    assert bench.engine.known() == {("j", 1)}
    assert len(bench.engine.poll()) == 1
    again = bench.restart()
    assert [report[:2] for report in again.poll()] == [("j", 1)]
    again.forget("j", 1)
    again.forget("j", 1)
    assert again.poll() == []
    assert bench.restart().known() == set()
    assert bench.engine.poll() == []
    assert bench.log() == "here\n"


def test_a_forgotten_attempt_is_not_started_again(bench: Bench) -> None:
    launch = bash("echo once")
    bench.run(launch)
    bench.engine.forget("j", 1)
    bench.engine.start(launch)
    assert bench.engine.poll()[0].exit.code == 0, "the plane does not know its end, so it is reported again"
    assert bench.log() == "once\n"


def test_the_end_is_reported_again_to_a_plane_that_orders_the_start_again(bench: Bench) -> None:
    """A plane whose records say that it runs learns of its end, also if the marker file is gone."""
    launch = bash("echo once; exit 3")
    end = bench.run(launch)
    (bench.root / ".active" / str(bench.engine.newest_term()) / "j@1").unlink()
    bench.restart().start(launch)
    assert [report.exit for report in bench.engine.poll()] == [end]
    assert bench.restart().known() == {("j", 1)}, "a later plane learns of it too"


def test_a_job_can_report_that_it_is_finished(bench: Bench) -> None:
    end = bench.run(bash('touch "$DOVETAIL_RUN_DIR/finished"; exit 143'))
    assert (end.code, end.finished) == (143, True)


def test_the_first_failure_ends_a_gang(bench: Bench) -> None:
    text = 'if [ $NODE_RANK = 1 ]; then exit 7; fi; trap "echo told; exit 9" TERM; sleep 300 & wait'
    end = bench.run(bash(text, shares=PAIR))
    assert (end.code, end.cause, end.detail) == (7, "exited", "process 1 on n1 exited with code 7")
    assert time.time_ns() // 1_000 - end.started_at < 200 * SECOND


def test_a_gang_that_ignores_sigterm_is_killed(bench: Bench) -> None:
    text = 'trap "" TERM; if [ $NODE_RANK = 1 ]; then sleep 0.3; exit 7; fi; while :; do sleep 1; done'
    end = bench.run(bash(text, shares=PAIR, grace=SECOND // 5))
    assert (end.code, end.cause) == (7, "exited")


def test_a_gang_ends_when_all_its_processes_have_ended(bench: Bench) -> None:
    end = bench.run(bash("sleep 0.$NODE_RANK; echo $NODE_RANK", shares=PAIR))
    assert end.code == 0
    assert [file.name for file in bench.engine.logs("j", 1)] == ["output.log", "output.1.log"]
    assert bench.log() == "0\n1\n"


# --- environment ----------------------------------------------------------------------------------


def variables(bench: Bench, launch: Launch) -> list[dict[str, str]]:
    assert bench.run(launch).code == 0, bench.log(launch.job, launch.epoch)
    return [
        dict(line.split("=", 1) for line in file.read_text().split("\0") if "=" in line)
        for file in bench.engine.logs(launch.job, launch.epoch)
    ]


def test_one_process_for_each_node(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOVETAIL_TOKEN", "secret")
    monkeypatch.setenv("RANK", "17")
    monkeypatch.setenv("HOUSE", "passed on")
    launch = bash(
        "env -0",
        epoch=3,
        name="my train",
        shares=PAIR,
        env=(
            ("LR", "0.1"),
            ("HOUSE", "own"),
            ("CUDA_VISIBLE_DEVICES", "7"),
            ("DOVETAIL_ARRAY_INDEX", "4"),
            ("DOVETAIL_DEADLINE", "x"),
        ),
        time_limit=3600 * SECOND,
        checkpoint_dir=str(bench.root.parent / "checkpoints" / "j"),
    )
    first, second = variables(bench, launch)
    assert first["DOVETAIL_JOB_ID"] == "j"
    assert first["DOVETAIL_JOB_NAME"] == "my train"
    assert (first["DOVETAIL_ATTEMPT"], first["DOVETAIL_RESTART_COUNT"]) == ("3", "2")
    assert (first["LR"], first["HOUSE"], first["DOVETAIL_ARRAY_INDEX"]) == ("0.1", "own", "4")
    assert [e["CUDA_VISIBLE_DEVICES"] for e in (first, second)] == ["0,1", "2,3"]
    assert [e["NODE_RANK"] for e in (first, second)] == ["0", "1"]
    assert (first["NNODES"], first["NPROC_PER_NODE"], first["MASTER_ADDR"]) == ("2", "2", "127.0.0.1")
    assert first["MASTER_PORT"] == second["MASTER_PORT"]
    assert first["DOVETAIL_NODE_IPS"] == "127.0.0.1\n127.0.0.1"
    assert first["GLOO_SOCKET_IFNAME"] == "lo"
    started = float(first["DOVETAIL_STARTED_AT"])
    assert float(first["DOVETAIL_DEADLINE"]) == pytest.approx(started + 3600, abs=0.01)
    assert first["PWD"] == first["DOVETAIL_RUN_DIR"] == str(bench.folder(epoch=3) / "run")
    assert os.path.isdir(first["DOVETAIL_CHECKPOINT_DIR"])
    for name in ("DOVETAIL_TOKEN", "RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_JOB_ID"):
        assert name not in first
    kept = environment_of(bench.folder(epoch=3))
    of_the_shell = {"PWD", "OLDPWD", "SHLVL", "_"}
    assert {name: kept[name] for name in kept.keys() - of_the_shell}.items() <= first.items()
    assert (bench.folder(epoch=3) / "environment.json").stat().st_mode & 0o777 == 0o600


def test_the_environment_of_the_plane_stays_with_the_plane(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("HF_HOME", "/data/hf")
    (env,) = variables(bench, bash("env -0"))
    assert "AWS_SECRET_ACCESS_KEY" not in env
    assert "HF_HOME" not in env
    assert env["PATH"] == os.environ["PATH"]
    bench.restart(LocalEngine(bench.root, passed=["HF_HOME"]))
    (env,) = variables(bench, bash("env -0", job="k"))
    assert env["HF_HOME"] == "/data/hf"
    assert "AWS_SECRET_ACCESS_KEY" not in env


def test_one_process_for_each_device(bench: Bench) -> None:
    shares = (NodeShare("n0", ("0", "1")), NodeShare("n1", ("2",)))
    found = variables(
        bench, bash("env -0", shares=shares, per_gpu=True, slurm_names=True, time_limit=SECOND * 90)
    )
    names = ("RANK", "LOCAL_RANK", "GROUP_RANK", "LOCAL_WORLD_SIZE", "WORLD_SIZE", "CUDA_VISIBLE_DEVICES")
    assert [tuple(env[name] for name in names) for env in found] == [
        ("0", "0", "0", "2", "3", "0,1"),
        ("1", "1", "0", "2", "3", "0,1"),
        ("2", "0", "1", "1", "3", "2"),
    ]
    theirs = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_NTASKS", "SLURM_JOB_NODELIST")
    assert [tuple(env[name] for name in theirs) for env in found] == [
        ("0", "0", "0", "3", "n0,n1"),
        ("1", "1", "0", "3", "n0,n1"),
        ("2", "0", "1", "3", "n0,n1"),
    ]
    assert found[0]["SLURM_JOB_END_TIME"] == str(int(float(found[0]["DOVETAIL_DEADLINE"])))


def test_a_job_without_devices_sees_none(bench: Bench) -> None:
    (env,) = variables(bench, bash("env -0", shares=(NodeShare("n0", ()),), per_gpu=True))
    assert (env["CUDA_VISIBLE_DEVICES"], env["WORLD_SIZE"]) == ("", "1")


def test_each_attempt_has_its_own_port(bench: Bench) -> None:
    ports = {variables(bench, bash("env -0", job=f"j{i}"))[0]["MASTER_PORT"] for i in range(3)}
    assert len(ports) == 3


def test_setup_runs_in_the_same_shell(bench: Bench) -> None:
    end = bench.run(bash("echo $x; f; false; echo on", setup="x='a b'\nf() { echo called; }"))
    assert (end.code, bench.log()) == (0, "a b\ncalled\non\n")
    end = bench.run(Launch("k", 1, PAIR[:1], ("printenv", "X"), setup="export X=1"))
    assert (end.code, bench.log("k")) == (0, "1\n")


@pytest.mark.parametrize("setup", ["false\ntrue", "echo 'never closed", "exit 9"])
def test_a_failing_setup_ends_the_attempt(bench: Bench, setup: str) -> None:
    end = bench.run(bash("echo ran", setup=setup))
    assert end.cause == "exited"
    assert end.code in (1, 2, 9)
    assert "ran" not in bench.log()


def test_processes_inherit_nothing_from_the_supervisor(bench: Bench) -> None:
    """No open files, no blocked or ignored signals, no input; each has its own session."""
    script = (
        "ls -l /proc/self/fd | grep -c ' -> '; cat; grep -E 'Sig(Blk|Ign)' /proc/self/status;"
        "read -r _ _ _ _ _ session _ < /proc/$$/stat; [ $session = $$ ] && echo leads"
    )
    assert bench.run(bash(script)).code == 0
    lines = bench.log().split("\n")
    assert lines[0] == "4"  # the three standard ones, and the folder that ls reads
    ours = ~(0b11 << 31)  # 32 and 33 belong to the C library
    assert [int(line.split()[1], 16) & ours for line in lines[1:3]] == [0, 0]
    assert lines[3] == "leads"


def test_a_checkpoint_folder_is_relative_to_the_workdir(bench: Bench, tmp_path: Path) -> None:
    (env,) = variables(bench, bash("env -0", workdir=str(tmp_path), checkpoint_dir="deep/saves"))
    assert env["DOVETAIL_CHECKPOINT_DIR"] == str(tmp_path / "deep/saves")
    assert (tmp_path / "deep/saves").is_dir()


# --- stop ----------------------------------------------------------------------------


def test_a_job_can_save_when_it_is_stopped(bench: Bench) -> None:
    bench.engine.start(bash('trap "cat $DOVETAIL_RUN_DIR/stop.json; exit 5" TERM; echo up; sleep 300 & wait'))
    bench.wait_for_output("up")
    assert not (bench.folder() / "run" / "stop.json").exists()
    bench.engine.stop("j", 1, "preempted", 20 * SECOND)
    end = bench.end()
    assert (end.code, end.cause, end.detail) == (5, "stopped", "told to stop (preempted)")
    said = json.loads(bench.log().partition("up\n")[2])
    assert (said["why"], said["grace"]) == ("preempted", 20 * SECOND)
    bench.engine.stop("j", 1, "again", 0)
    assert bench.end() == end


def test_a_child_process_can_save_after_its_shell_has_ended(bench: Bench) -> None:
    """A shell without a trap dies of SIGTERM at once; its child still has the grace."""
    child = 'trap "sleep 0.5; echo saved; exit 0" TERM; echo up; while :; do sleep 0.05; done'
    bench.engine.start(bash(f"bash -c '{child}'; echo not reached"))
    bench.wait_for_output("up")
    bench.engine.stop("j", 1, "preempted", 20 * SECOND)
    assert bench.end().cause == "stopped"
    assert bench.log().split() == ["up", "Terminated", "saved"]  # the second is printed by the shell


def test_a_job_that_ignores_sigterm_is_killed_after_the_grace(bench: Bench) -> None:
    bench.engine.start(bash('trap "" TERM; echo up; while :; do sleep 0.1; done'))
    bench.wait_for_output("up")
    bench.engine.stop("j", 1, "preempted", SECOND // 2)
    end = bench.end()
    assert (end.code, end.cause) == (137, "stopped")
    assert end.detail == "told to stop (preempted), killed after 0.5 s"


def test_a_second_order_can_shorten_the_grace(bench: Bench) -> None:
    bench.engine.start(bash('trap "" TERM; echo up; while :; do sleep 0.1; done'))
    bench.wait_for_output("up")
    bench.engine.stop("j", 1, "preempted", 1000 * SECOND)
    bench.engine.stop("j", 1, "cancelled", 2000 * SECOND)
    assert json.loads((bench.folder() / "stop.json").read_text())["why"] == "preempted"
    bench.engine.stop("j", 1, "cancelled", 0)
    assert bench.end()[:2] == (137, "stopped")


def test_a_suspended_process_is_stopped_too(bench: Bench) -> None:
    bench.engine.start(bash('trap "exit 4" TERM; echo up; kill -STOP $$; sleep 300 & wait'))
    bench.wait_for_output("up")
    bench.engine.stop("j", 1, "preempted", 30 * SECOND)
    assert bench.end()[:2] == (4, "stopped")


def test_an_order_to_stop_before_the_start(bench: Bench) -> None:
    """The order may be written before the supervisor runs; then the job is not started."""
    launch = bash("echo ran")
    bench.engine.start(launch)
    bench.end()
    folder = bench.folder(epoch=2)
    os.makedirs(folder / "run")
    said = json.loads((bench.folder() / "launch.json").read_text())
    (folder / "launch.json").write_text(json.dumps({**said, "epoch": 2}))
    bench.engine.stop("j", 2, "cancelled", SECOND)
    assert (folder / "stop.json").exists()
    end = bench.run(bash("echo ran", epoch=2))
    assert (end.code, end.cause) == (143, "stopped")
    assert end.detail == "told to stop before its command ran (cancelled)"
    assert bench.log("j", 2) == ""
    assert not (folder / "started.json").exists()


def test_processes_that_were_let_go_have_started(bench: Bench) -> None:
    """An order that comes while the last process of a gang executes its command finds a job that runs."""
    bench.run(bash("echo ran"))  # for its folder, and a term
    term, folder = bench.engine.newest_term(), str(bench.folder())
    write_json(folder, "stop.json", {"why": "preempted", "grace": SECOND, "at": 1, "term": term})
    reading, writing = os.pipe()  # of a process that has not executed its command yet
    try:
        with pytest.raises(process_start.StoppedBeforeStart, match="preempted"):
            process_start._await(folder, term, {reading: 1}, process_start.READY)
        process_start._await(folder, term, {reading: 1}, b"")
    finally:
        os.close(reading)
        os.close(writing)


def test_an_order_to_stop_is_found_without_a_signal(bench: Bench) -> None:
    bench.engine.start(bash("echo up; sleep 300"))
    bench.wait_for_output("up")
    rough = bench.folder() / "rough"
    rough.write_text(
        json.dumps({"why": "cancelled", "grace": 0, "at": 1, "term": bench.engine.newest_term()})
    )
    rough.rename(bench.folder() / "stop.json")
    assert bench.end().cause == "stopped"


def test_orders_for_unknown_attempts_are_ignored(bench: Bench) -> None:
    bench.engine.stop("unknown", 1, "why", 0)
    bench.engine.signal("unknown", 1, signal.SIGUSR1)
    assert bench.engine.logs("unknown", 1) == []
    assert bench.engine.reports("unknown", 1, 0) == ([], 0)
    assert bench.engine.known() == set()


def test_the_time_limit_holds_without_a_plane(bench: Bench) -> None:
    """SIGUSR1 at half the limit, to processes that handle it; SIGTERM at the limit; then SIGKILL."""
    for epoch, limit in enumerate((2, 10, 50), 1):  # on a busy machine the script may not be ready in time
        ready = bench.root.parent / f"ready.{epoch}"
        handles = f'trap "echo warned" USR1; date +%s%6N > {ready}; sleep 0.1'
        text = f"sleep 300 & trap '' TERM; bash -c '{handles}; while :; do sleep 0.05; done'"
        end = bench.run(bash(text, epoch=epoch, time_limit=limit * SECOND, grace=SECOND // 2))
        assert (end.code, end.cause) == (137, "timeout")
        assert end.detail == f"over its time limit of {limit} s, killed after 0.5 s"
        assert end.ended_at - end.started_at >= limit * SECOND + SECOND // 2
        if ready.exists() and int(ready.read_text() or 0) < end.started_at + limit * SECOND // 2:
            assert bench.log("j", epoch).splitlines()[:1] == ["warned"]
            return
    raise AssertionError("the script was never ready before the warning")


def test_signals_are_passed_on(bench: Bench) -> None:
    """SIGUSR1 and SIGUSR2 only to processes that handle them: the outer shell would die of them."""
    handles = 'trap "echo two; exit 0" USR2; echo up; while :; do sleep 0.05; done'
    bench.engine.start(bash(f"bash -c '{handles}'; echo and on; sleep 300"))
    bench.wait_for_output("up")
    bench.engine.signal("j", 1, signal.SIGUSR2)
    bench.wait_for_output("and on")
    assert bench.log() == "up\ntwo\nand on\n"
    bench.engine.signal("j", 1, signal.SIGHUP)
    end = bench.end()
    assert (end.code, end.cause) == (128 + signal.SIGHUP, "exited")


def test_no_process_survives_its_job(bench: Bench) -> None:
    """Neither in another session, nor orphaned, nor ignoring SIGTERM."""
    deaf = "trap '' TERM; env -i sleep 302; sleep 303"
    end = bench.run(bash(f'setsid sleep 301 & (setsid bash -c "{deaf}" &); echo up; exit 0'))
    assert (end.code, end.cause) == (0, "exited")
    for seconds in ("301", "302", "303"):
        assert not [
            p for p in Path("/proc").glob("[0-9]*/cmdline") if _words(p) == [b"sleep", seconds.encode()]
        ]
    eventually(lambda: not belonging_to(bench.root))


def _words(file: Path) -> list[bytes]:
    try:
        return file.read_bytes().split(b"\0")[:-1]
    except OSError:
        return []


# --- output -----------------------------------------------------------------------------------


def test_output_files_of_the_user(bench: Bench, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "logs").mkdir()
    (work / "logs/n0-0.out").write_text("before\n")
    end = bench.run(
        bash(
            "echo out $PWD; echo err >&2",
            shares=PAIR,
            workdir=str(work),
            output="logs/%N-%t.out",
            error="deep/er/all.err",
        )
    )
    assert end.code == 0
    assert (work / "logs/n0-0.out").read_text() == f"before\nout {work}\n"
    assert (work / "logs/n1-1.out").read_text() == f"out {work}\n"
    assert (work / "deep/er/all.err").read_text() == "err\nerr\n"
    names = ["logs/n0-0.out", "logs/n1-1.out", "deep/er/all.err"]
    assert [str(file.relative_to(work)) for file in bench.engine.logs("j", 1)] == names


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"output": "/proc/nothing/here"}, "cannot open the output file '/proc/nothing/here'"),
        ({"error": "/"}, "cannot open the error file '/'"),
        (
            {"workdir": "/no/such/folder"},
            "cannot enter the workdir '/no/such/folder': No such file or directory",
        ),
        ({"command": ("no-such-program",)}, "cannot run 'no-such-program': not found in PATH"),
        ({"command": ("/etc/passwd",)}, "cannot run '/etc/passwd': Permission denied"),
        ({"command": ("echo", "a\0b")}, "cannot run 'echo': embedded null byte"),
        ({"env": (("A=B", "c"),)}, "illegal environment variable name"),
        ({"checkpoint_dir": "/proc/nothing"}, "cannot make the checkpoint folder '/proc/nothing'"),
        ({"account": "no-such-account"}, "no account is named 'no-such-account' on this machine"),
    ],
)
def test_an_attempt_that_cannot_start_says_why(bench: Bench, change: dict[str, object], problem: str) -> None:
    end = bench.run(replace(bash("echo ran", shares=PAIR), **change))  # type: ignore[arg-type]
    assert (end.code, end.cause) == (127, "unstartable")
    assert problem in end.detail
    assert "\n" not in end.detail


def test_an_attempt_whose_folder_cannot_be_written_is_reported(bench: Bench) -> None:
    bench.root.joinpath("j").write_text("in the way")
    end = bench.run(bash("echo ran"))
    assert end.cause == "unstartable"
    assert bench.engine.known() == {("j", 1)}
    bench.root.joinpath("j").unlink()
    bench.engine.forget("j", 1)


def test_long_output_is_complete(bench: Bench) -> None:
    end = bench.run(bash("seq 100000; seq 100000 >&2", shares=PAIR))
    assert end.code == 0
    numbers = "".join(f"{i}\n" for i in range(1, 100_001))
    for file in bench.engine.logs("j", 1):
        assert file.read_text() == numbers * 2


def test_reports_are_read_by_complete_lines(bench: Bench) -> None:
    file = bench.folder() / "run" / "reports.jsonl"
    bench.run(bash(f"echo '{json.dumps({'step': 1})}' >> $DOVETAIL_RUN_DIR/reports.jsonl"))
    found, offset = bench.engine.reports("j", 1, 0)
    assert found == [{"step": 1}]
    with file.open("a") as text:
        text.write('broken\n[1]\n{"step": 2}\n{"step"')
    found, offset = bench.engine.reports("j", 1, offset)
    assert found == [{"step": 2}]
    assert bench.engine.reports("j", 1, offset) == ([], offset)
    with file.open("a") as text:
        text.write(": 3}\n" + "x" * 3_000_000 + '\n{"step": 4}\n')
    steps = []
    for _ in range(6):
        found, offset = bench.engine.reports("j", 1, offset)
        steps += [report["step"] for report in found]
    assert steps == [3, 4]
    assert offset == file.stat().st_size
    file.unlink()
    file.symlink_to("/etc/passwd")
    assert bench.engine.reports("j", 1, 0) == ([], 0)


# --- names ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "job", ["", ".", "..", "../x", "a/b", "a b", "a\n", ".active", "-x", "a@1", "ä", "$(id)"]
)
def test_invalid_ids_are_refused(bench: Bench, job: str) -> None:
    with pytest.raises(InputError, match="cannot name a folder"):
        bench.engine.start(bash("echo ran", job=job))
    with pytest.raises(InputError):
        bench.engine.stop(job, 1, "why", 0)
    assert bench.engine.known() == set()


def test_hostile_text_is_not_executed(bench: Bench, tmp_path: Path) -> None:
    trap = Path(f"/tmp/h{os.getpid()}")
    nasty = f"a b'c\"d\n$(touch {trap}) `touch {trap}` ; touch {trap} & ../../x %N%s \\ \udcff"
    work = tmp_path / nasty.replace("/", "_")
    work.mkdir()
    end = bench.run(
        Launch(
            job="j",
            epoch=1,
            shares=(NodeShare("n$(x)", ("0",)),),
            command=("printf", "%s\\0", nasty),
            name=nasty,
            setup=f"touch {tmp_path}/setup; env -0 | grep -zc . > count",
            env=(("NASTY", nasty), ("BASH_FUNC_x%%", "() { :; }")),
            workdir=str(work),
            output=f"../{nasty.replace('/', '_')}.%N.out",
        )
    )
    assert end.code == 0, end
    (log,) = bench.engine.logs("j", 1)
    assert log.read_bytes() == os.fsencode(nasty) + b"\0"
    assert "n$(x)" in log.name
    assert (tmp_path / "setup").exists()
    assert not trap.exists()
    assert environment_of(bench.folder())["DOVETAIL_JOB_NAME"] == nasty


# --- waiting ----------------------------------------------------------------------------------------


def test_the_end_of_an_attempt_ends_a_wait(bench: Bench) -> None:
    bench.engine.wait(0)
    bench.engine.start(bash("sleep 0.2"))
    bench.engine.poll()
    began = time.monotonic()
    bench.engine.wait(50)
    assert time.monotonic() - began < 40
    assert len(bench.engine.poll()) == 1


def test_another_thread_ends_a_wait(bench: Bench) -> None:
    timer = threading.Timer(0.1, bench.engine.ring)
    timer.start()
    began = time.monotonic()
    bench.engine.wait(50)
    assert time.monotonic() - began < 40
    timer.join()
    bench.engine.wait(0.01)


def test_the_doorbell_works_in_a_deep_folder(tmp_path: Path) -> None:
    """The path of a socket may have 108 bytes."""
    bench = Bench(tmp_path / ("d" * 100) / ("e" * 100))
    bench.engine.wait(0)
    bench.engine.start(bash("exit 0"))
    bench.engine.wait(50)
    assert [report.exit.code for report in bench.engine.poll()] == [0]
    bench.engine.close()


def test_a_poll_is_cheap(bench: Bench) -> None:
    """Forgotten attempts cost nothing; running ones are looked at once a second."""
    for number in range(300):
        (bench.root / f"old{number}" / "1").mkdir(parents=True)
    bench.run(bash("exit 0"))
    began = time.process_time()
    for _ in range(1000):
        bench.engine.poll()
    assert time.process_time() - began < 1.0
    assert bench.engine.known() == {("j", 1)}


def test_a_job_can_choose_its_stop_signal(bench: Bench) -> None:
    text = "trap 'echo saved; exit 3' INT; echo up; while :; do sleep 0.05; done"
    bench.engine.start(replace(bash(text), stop_signal=int(signal.SIGINT)))
    bench.wait_for_output("up")
    bench.engine.stop("j", 1, "preempted", 60 * SECOND)
    end = bench.end()
    assert (end.code, end.cause) == (3, "stopped")
    assert bench.log().endswith("saved\n")
