"""Live is as simulated: the same jobs on a real plane and in the simulator end at about the same times."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from dovetail.control.fidelity import (
    DEFAULT_CLUSTER,
    DEFAULT_SCALE,
    FIRST,
    Cancelled,
    Fidelity,
    Lived,
    Pair,
    compared,
    entries_of,
    live,
    mixed_workload,
    simulated,
)
from dovetail.model.errors import InputError
from dovetail.model.job import Job, Shape, gang
from dovetail.model.units import MINUTE, SECOND
from dovetail.traces import load_trace

POLICIES = ("fifo", "srtf", "tiresias-l")
FOUR = """id,submit,gpus,duration
a,0,4,60
b,10,2,150
c,20,4,100
d,30,1,80
"""


def typed(*words: str) -> Result:
    from dovetail.cli.main import app

    return CliRunner().invoke(app, ["fidelity", *words])


BURSTS, JOBS_A_BURST = 5, 11  # of the mixed workload; a burst is over when the next one comes


def test_the_workload_is_worth_comparing() -> None:
    """Many jobs of all sizes, some over several nodes, that wait and are preempted."""
    jobs = load_trace(str(mixed_workload())).jobs
    entries, notes = entries_of(jobs, DEFAULT_CLUSTER, DEFAULT_SCALE)
    runs = {name: simulated(entries, DEFAULT_CLUSTER, name, {}) for name in POLICIES}

    assert notes == []
    assert len(jobs) == BURSTS * JOBS_A_BURST
    assert {job.shape.gpus for job in jobs} == {1, 2, 3, 4, 6, 8}
    assert sum(wait > 60 for wait in runs["fifo"].wait()) >= 20
    assert min(runs["srtf"].preemptions, runs["tiresias-l"].preemptions) >= 10


@pytest.mark.long
@pytest.mark.slow(45)
@pytest.mark.parametrize("burst", range(BURSTS))
def test_mean_within_3_percent_and_every_job_within_10_under_fifo_srtf_and_tiresias(burst: int) -> None:
    jobs = sorted(load_trace(str(mixed_workload())).jobs, key=lambda job: job.arrived_at)
    jobs = jobs[burst * JOBS_A_BURST : (burst + 1) * JOBS_A_BURST]
    entries, _ = entries_of(jobs, DEFAULT_CLUSTER, DEFAULT_SCALE)
    made = {name: simulated(entries, DEFAULT_CLUSTER, name, {}) for name in POLICIES}

    # The planes run side by side: their jobs sleep.
    with ThreadPoolExecutor(len(POLICIES)) as pool:
        runs = {name: pool.submit(live, entries, DEFAULT_CLUSTER, name, {}) for name in POLICIES}
        lived = {name: run.result() for name, run in runs.items()}

    def judged(name: str) -> Fidelity:
        return compared(name, DEFAULT_SCALE, made[name], lived[name])

    # A busy machine wakes processes late, and the difference shows: a policy that is off gets a second try.
    for name in POLICIES:
        if judged(name).beyond(mean=0.03, job=0.10):
            lived[name] = live(entries, DEFAULT_CLUSTER, name, {})
    found = {name: judged(name) for name in POLICIES}
    beyond = [text for one in found.values() for text in one.beyond(mean=0.03, job=0.10)]
    assert beyond == [], {name: (one.difference, one.worst) for name, one in found.items()}
    for name in ("srtf", "tiresias-l"):
        assert any(pair.live_stops for pair in found[name].pairs)

    # The same check tells a policy from another.
    for name, other in (("fifo", "srtf"), ("srtf", "tiresias-l"), ("tiresias-l", "fifo")):
        crossed = compared(name, DEFAULT_SCALE, made[other], lived[name])
        assert len(crossed.beyond(mean=0.03, job=0.10)) > 3


def test_a_clock_that_runs_at_another_pace_is_found_out() -> None:
    jobs = [Job(f"j{i}", i * 5 * SECOND, gang(2), 2 * MINUTE, 2 * MINUTE) for i in range(3)]
    entries, _ = entries_of(jobs, "1x4", 60.0)  # they take two seconds each, for a plane at that pace
    made = simulated(entries, "1x4", "fifo", {})

    lived = live(entries, "1x4", "fifo", {}, scale=90.0)

    assert len(compared("fifo", 90.0, made, lived).beyond()) == 1 + len(jobs)


def test_the_check_is_strict_about_its_limits() -> None:
    def one(*times: tuple[float, float]) -> Fidelity:
        pairs = (Pair(f"j{i}", 1, 0.0, a, b, 0, 0) for i, (a, b) in enumerate(times))
        return Fidelity("fifo", 60.0, tuple(pairs))

    assert one((109.0, 100.0), (1000.0, 1000.0)).beyond() == []
    assert one((111.0, 100.0), (1000.0, 1000.0)).beyond() == [
        "fifo: job j0 took 111 s live and 100 s simulated (+11.0%, more than 10%)"
    ]
    assert one((104.0, 100.0), (104.0, 100.0)).beyond() == ["fifo: the mean differs by +4.0%, more than 3%"]
    assert len(one((89.0, 100.0), (96.0, 100.0)).beyond()) == 2
    assert len(one((float("nan"), 100.0)).beyond()) == 2


def test_both_sides_are_told_the_same() -> None:
    job = Job(
        "x/1", 7 * MINUTE, gang(3, ("A100",)), 100 * SECOND, 250 * SECOND,
        tenant="red", user="ann", priority=7, model="bert", deadline=9 * MINUTE,
    )  # fmt: skip
    (entry,), _ = entries_of([job], "2x4:A100,2x4:V100", 60.0)

    heard = entry.job
    assert (heard.shape, heard.estimate, heard.work) == (job.shape, job.estimate, job.work)
    assert (heard.tenant, heard.user, heard.priority) == ("red", "ann", 7)
    assert heard.model == "red/bert"  # a live plane keeps the speeds of tenants apart
    assert (heard.arrived_at, heard.deadline) == (FIRST, FIRST + 2 * MINUTE)  # it is the first
    assert heard.traits.checkpoint.on_stop
    assert entry.body["command"][-4:] == ["--work", "100.000000", "--scale", "60.0"]


def test_what_virtual_gpus_cannot_do_is_refused() -> None:
    with pytest.raises(InputError, match="slices"):
        entries_of([Job("s", 0, Shape(slice="1g"), SECOND, SECOND)], "1x4:A100", 60.0)
    with pytest.raises(InputError, match="no jobs"):
        entries_of([], "1x4", 60.0)


def test_a_run_that_is_cancelled_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    jobs = [Job(f"j{i}", 0, gang(2), 60 * MINUTE, 60 * MINUTE) for i in range(4)]
    entries, _ = entries_of(jobs, "1x4", 60.0)
    enough = threading.Event()
    timer = threading.Timer(3.0, enough.set)
    timer.start()

    with pytest.raises(Cancelled):
        live(entries, "1x4", "fifo", {}, cancelled=enough)

    timer.join()
    until = time.monotonic() + 60
    while left := processes_of(tmp_path):
        assert time.monotonic() < until, left
        time.sleep(0.05)
    assert list(tmp_path.iterdir()) == []


def processes_of(folder: Path) -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (
                str(folder).encode()
                in (process / "environ").read_bytes() + (process / "cmdline").read_bytes()
            ):
                found.append(process.name)
        except OSError:
            continue
    return found


@pytest.mark.slow(10)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_ends_the_command_and_removes_its_folders(tmp_path: Path, number: signal.Signals) -> None:
    """Two planes run jobs of minutes; the command has said so, and leaves nothing when it is told to end."""
    (tmp_path / "four.csv").write_text(FOUR)
    made = tmp_path / "made"
    made.mkdir()
    words = ["--virtual", "1x4", "--policies", "fifo,srtf", "--time-scale", "1"]
    heard = ("env", "--default-signal")  # the tests may run under nohup themselves
    process = subprocess.Popen(
        [*heard, sys.executable, "-m", "dovetail.cli", "fidelity", str(tmp_path / "four.csv"), *words],
        env={**os.environ, "TMPDIR": str(made)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        end = time.monotonic() + 240
        while len(list(made.glob("dovetail-fidelity-*/attempts/*/1/output.log"))) < 2:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < end
            time.sleep(0.1)
        process.send_signal(number)
        said, told = process.communicate(timeout=240)
    finally:
        process.kill()
        process.wait()
    assert list(made.glob("dovetail-fidelity-*")) == []
    assert (process.returncode, said) == (128 + number, "")
    assert re.search(r"^note: 4 jobs live under 2 policies at once: this takes about \d+ min", told, re.M), (
        told
    )


@pytest.mark.slow(10)
def test_the_command_answers_first_and_then_shows_each_job(tmp_path: Path) -> None:
    (tmp_path / "four.csv").write_text(FOUR)
    words = (str(tmp_path / "four.csv"), "--virtual", "1x4", "--policies", "fifo,srtf", "--time-scale", "50")
    result = typed(*words, "--jobs-out", str(tmp_path / "jobs.csv"))

    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    for line, policy in zip(lines, ("fifo", "srtf"), strict=False):
        assert re.fullmatch(
            rf"{policy}: 4 jobs, mean completion [\d.]+ (min|s)( \d+ s)? live, "
            r"[\d.]+ (min|s)( \d+ s)? simulated "
            r"\([+-][\d.]+ %\); worst job [+-][\d.]+ %",
            line,
        )
    assert [line.split()[0] for line in lines if line.startswith(("  a ", "  b ", "  c ", "  d "))] == [
        *"abcd"
    ]
    with (tmp_path / "jobs.csv").open() as text:
        rows = list(csv.DictReader(text))
    assert [(row["policy"], row["id"]) for row in rows] == [(p, j) for p in ("fifo", "srtf") for j in "abcd"]
    assert rows[0]["simulated"] == "60.000"
    assert float(rows[0]["live"]) >= 60.0


def test_the_command_in_json(tmp_path: Path) -> None:
    (tmp_path / "four.csv").write_text(FOUR)
    words = ("--cluster", "2x4:A100", "--policy", "fifo", "--set", "discipline=skip", "--head", "2", "--json")
    said = json.loads(typed(str(tmp_path / "four.csv"), *words).stdout)

    (one,) = said["policies"]
    assert (one["jobs"], said["time_scale"], said["cluster"]) == (2, 60.0, "2x4:A100")
    assert (one["policy"], one["options"]) == ("fifo", {"discipline": "skip"})
    assert [pair["id"] for pair in one["pairs"]] == ["a", "b"]
    assert one["worst"]["job"] in ("a", "b")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--policy", "nosuch"], "nosuch"),
        (["--policy", "fifo", "--policies", "srtf"], "exclude each other"),
        (["--virtual", "cluster.yaml"], "describes no GPUs"),
        (["--virtual", "1x4"], "can never fit on 1x4"),
        (["--time-scale", "0"], "time scale"),
        (["nosuch.csv"], "nosuch.csv"),
    ],
)
def test_a_wrong_question_is_answered_before_anything_runs(words: list[str], said: str) -> None:
    result = typed(*words)
    assert result.exit_code == 2
    assert said in result.output


def test_what_became_of_a_job_is_counted_from_its_planned_arrival() -> None:
    entries, _ = entries_of([Job("j", 0, gang(1), MINUTE, MINUTE)], "1x4", 60.0)
    made = simulated(entries, "1x4", "fifo", {})
    (pair,) = compared("fifo", 60.0, made, {"j": Lived(66.0, 1)}).pairs
    assert (pair.live, pair.simulated, pair.live_stops, pair.simulated_stops) == (66.0, 60.0, 1, 0)
    assert pair.difference == pytest.approx(0.1)
