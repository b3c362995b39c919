"""The verbs of the live plane, against one that says what a test tells it to."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.client import fakeplane as fake
from tests.client.fakeplane import Reply, a_job, problem
from typer.testing import CliRunner, Result

Dove = Callable[..., Result]
DEADLINE = 60.0


TOKEN = "dt_secret_of_the_test"


@pytest.fixture
def plane(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A plane of this machine, found through its state folder."""
    for name in ("DOVETAIL_URL", "DOVETAIL_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    state = folder / "state"
    state.mkdir()
    monkeypatch.setenv("DOVETAIL_STATE", str(state))
    with fake.fake_plane() as made:
        (state / "address.json").write_text(json.dumps({"url": made.url, "token": TOKEN, "pid": 1}))
        yield made


def listed(plane: Any, *jobs: dict[str, Any], path: str = "/jobs") -> None:
    def page(asked: Any) -> Any:
        wanted = asked.query.get("state", "").split(",")
        return Reply(
            {"items": [job for job in jobs if wanted == [""] or job["state"] in wanted], "next": None}
        )

    plane.on("GET", path, page)
    plane.on("GET", "/policy", Reply({"name": "fifo", "options": {}, "stand_in": None}))


# --- no plane, and usage errors --------------------------------------------------------------------


@pytest.mark.parametrize("size", ["much", "-1", "1.5.2G"])
def test_a_limit_for_output_that_is_not_a_size_is_one_line(dove: Dove, folder: Path, size: str) -> None:
    result = dove("up", "--state", str(folder / "state"), "--virtual", "1x1", "--output-limit", size)
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"--output-limit {size}: not a size; write 1GiB, 500MB, or 0 for no limit" in result.stderr
    assert not (folder / "state").exists()


def test_no_plane_is_one_line(dove: Dove, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOVETAIL_STATE", str(folder / "nothing"))
    monkeypatch.delenv("DOVETAIL_URL", raising=False)
    result = dove("ps")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "dovetail up" in result.stderr
    assert result.stderr.count("\n") == 1


MISTAKES = {
    "ps -o csv": ("csv", "json"),
    "ps -o custom-columns=": ("custom-columns",),
    "ps --json -o yaml": ("exclude each other",),
    "ps -t PX": ("PX", "pending"),
    "why ../tokens": ("'../tokens'", "dovetail ps"),
    "why k3v9q2": ("no job", "k3v9q2", "dovetail ps -a"),
    "ps --pending -t R": ("--pending", "R"),
    "ps -o custom-columns=X:": ("X:", "path"),
    "history --since 3": ("3d",),
    "report --since 1d --until 2d": ("1d", "2d"),
    "policy default --set whole=true": ("give the name of the policy",),
    "policies nosuchthing": ("'nosuchthing'", "dovetail policies"),
    "submit --gpus 0.5 -- true": ("--gpu-share 0.5",),
    "logs k3v9q2 --attempt 0": ("attempt",),
    "cancel": ("--mine",),
    "cancel k3v9q2 --mine": ("only one",),
    "cancel --mine --array 3-7": ("exactly one array",),
    "hold a b --array 1": ("exactly one array",),
    "priority k3v9q2 1.5": ("1.5", "whole number"),
    "drain gpu[01-": ("gpu[01-", "gpu[01-08]"),
    "drain gpu[8-1]": ("gpu[01-08]",),
    "nodes n9": ("n9", "dovetail nodes"),
    "history --since soon": ("soon", "3d"),
    "report --by colour": ("colour", "tenant"),
    "report --month --since 3d": ("month",),
    "token create x --role king": ("king", "admin"),
    "token create x --expires soon": ("soon", "--expires"),
    "policy --set a=1": ("needs the name of a policy",),
    "policy fifo --set disciplin=skip": ("disciplin", "discipline"),
    "submit": ("job file",),
    "submit none.yaml": ("none.yaml",),
    "submit five.yaml --wrap true": ("exactly one of",),
    "submit --gpus 1 --time 30 -- true": ("30m",),
    "submit --env NOT_SET_ANYWHERE -- true": ("NOT_SET_ANYWHERE",),
    "run --gpus 1": ("COMMAND",),
    "submit --gpus 1 nosuchprog --foo": ("nosuchprog", "nor a program", "write -- before"),
    "ps --state running": ("--states",),
    "sumbit x": ("Did you mean 'submit'? see dovetail --help",),
    "simulate five.csv --cluster 1x8 --policy fiffo": ("did you mean fifo? see dovetail policies\n",),
    "shell k3v9q2": ("no job",),
}


@pytest.mark.parametrize("command", MISTAKES)
def test_a_usage_error_is_one_clear_line(dove: Dove, plane: Any, command: str) -> None:
    plane.on("GET", "/nodes", Reply({"items": [], "next": None}))
    for path in ("/jobs/k3v9q2", "/jobs/k3v9q2/why"):
        plane.on("GET", path, problem(404, "no job has this id"))
    result = dove(command)
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    for word in MISTAKES[command]:
        assert word in result.stderr
    assert not [asked for asked in plane.asked if asked.method != "GET"]


@pytest.mark.parametrize("token", ["a\nb", "日本"])
def test_an_invalid_token_is_reported(
    dove: Dove, plane: Any, monkeypatch: pytest.MonkeyPatch, token: str
) -> None:
    monkeypatch.setenv("DOVETAIL_TOKEN", token)
    result = dove("ps")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "copy it again" in result.stderr
    assert token not in result.stderr


@pytest.mark.parametrize("key", ["", " a", "a\nb", "ä", "k" * 256])
def test_an_invalid_idempotency_key_is_reported(dove: Dove, plane: Any, key: str) -> None:
    result = dove("submit --key", key, "--", "true")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: the key ")
    assert result.stderr.count("\n") == 1
    assert plane.asked == []


def test_an_invalid_number_and_empty_text_are_reported(dove: Dove, plane: Any) -> None:
    for command in (("tenant set a --weight nan",), ("submit --wrap", " ")):
        result = dove(*command)
        assert (result.exit_code, result.stdout, plane.asked) == (2, "", [])
        assert result.stderr.count("\n") == 1


def test_a_repeated_error_is_printed_once(dove: Dove, plane: Any) -> None:
    for detail in ("make it first", "parent: make it first"):
        wrong = problem(422, detail, errors=[{"pointer": "/parent", "detail": "make it first"}])
        plane.on("PUT", "/tenants/a", wrong)
        assert dove("tenant set a").stderr == "error: parent: make it first\n"


def test_the_token_is_nowhere_to_be_seen(dove: Dove, plane: Any) -> None:
    plane.on("GET", "/jobs", problem(401, "no such token"))
    result = dove("ps")
    assert plane.asked[0].headers["authorization"] == f"Bearer {TOKEN}"
    assert result.exit_code == 2
    assert TOKEN not in result.output + result.stderr


def test_control_characters_never_reach_the_terminal(dove: Dove, plane: Any) -> None:
    listed(plane, a_job(name="\x1b[2Jgone\nnew", user="a\tb", state="pending", reason="\x07"))
    said = dove("ps -o wide").stdout
    assert "?[2Jgone?new" in said
    assert not set(said) & set("\x1b\x07\t")


def test_ps_loads_nothing_heavy(plane: Any) -> None:
    listed(plane, a_job())
    heavy = (
        "numpy",
        "fastapi",
        "sqlalchemy",
        "uvicorn",
        "yaml",
        "dovetail.control",
        "dovetail.sim",
        "dovetail.core",
    )
    code = (
        "import sys\nfrom dovetail.cli.main import app\n"
        "try: app(['ps'])\nexcept SystemExit as end: assert not end.code, end.code\n"
        f"print([name for name in {heavy!r} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
    assert "k3v9q2" in done.stdout


# --- lists -----------------------------------------------------------------------------------------


def test_ps_lists_running_and_waiting_jobs(dove: Dove, plane: Any) -> None:
    waiting = a_job("m8x0aa", state="pending", letter="PD", reason="Resources", placement=[], started_at=None)
    gang = a_job("gang00", gpus=12, placement=[{"node": f"n{i}", "devices": [0]} for i in range(3)])
    listed(plane, waiting, gang)
    lines = dove("ps").stdout.splitlines()
    assert lines[0] == "1 running on 12 GPUs, 1 waiting"
    assert lines[2].split()[:5] == ["job", "name", "user", "state", "GPUs"]
    assert lines[3].split()[0] == "gang00"
    assert lines[3].endswith("n[0-2]")
    assert lines[4].endswith("Resources")
    assert "dovetail why" in lines[-1]
    assert [asked.query.get("active") for asked in plane.asked] == ["true", None], (
        "one request for all jobs, because between two a job may start and be in neither; then the policy"
    )
    assert dove("queue").stdout.splitlines()[0] == lines[0]


def test_ps_passes_its_filters_to_the_api(dove: Dove, plane: Any) -> None:
    listed(plane)
    assert dove("ps --mine -t PD,R -A research -u ann -n sft*").stdout.startswith("no matching jobs")
    query = plane.asked[0].query
    assert query["state"] == "pending,running"
    assert (query["mine"], query["tenant"], query["user"], query["name"]) == (
        "true",
        "research",
        "ann",
        "sft*",
    )
    dove("ps -a")
    assert "active" not in plane.asked[1].query
    dove("ps --pending")
    assert plane.asked[2].query["state"] == "pending,held"


def test_an_array_stands_on_one_line(dove: Dove, plane: Any) -> None:
    members = [
        a_job(f"k3v9q2_{i}", state="pending", reason="Resources", array={"id": "k3v9q2", "index": i})
        for i in range(5)
    ]
    whole = {"count": 100, "states": {"running": 8, "pending": 92}, "first_started_at": None}
    listed(plane, a_job("other0"), {**members[4], "members": whole})
    said = dove("ps").stdout
    assert all(asked.query["fold"] == "true" for asked in plane.asked)
    assert said.count("k3v9q2") == 1
    assert "8 running, 92 pending" in said
    assert said.startswith("9 running on 36 GPUs, 92 waiting")
    listed(plane, a_job("other0"), *members)
    assert dove("ps --expand").stdout.count("k3v9q2_") == 5
    assert len(json.loads(dove("ps -o json").stdout)["jobs"]) == 6


def test_the_forms_of_an_answer(dove: Dove, plane: Any) -> None:
    listed(plane, a_job())
    as_json = json.loads(dove("ps -o json").stdout)
    assert as_json == json.loads(dove("ps --json").stdout) == yaml.safe_load(dove("ps -o yaml").stdout)
    assert as_json["jobs"][0]["id"] == "k3v9q2"
    assert dove("ps -o name").stdout == "k3v9q2\n"
    lines = dove("ps -o custom-columns=ID:.id,NODE:.placement[0].node,X:.none,gpus").stdout.splitlines()
    assert [line.split() for line in lines] == [["ID", "NODE", "X", "gpus"], ["k3v9q2", "n0", "<none>", "4"]]
    wide = dove("ps -o wide").stdout
    assert " ST " in wide
    assert " R " in wide


def test_the_limit_is_kept_and_said(dove: Dove, plane: Any) -> None:
    listed(plane, *(a_job(f"j{i}") for i in range(5)))
    result = dove("ps --limit 3 -a")
    assert "j2" in result.stdout
    assert "j3" not in result.stdout
    assert "--limit 30" in result.stderr


def test_when_jobs_start(dove: Dove, plane: Any) -> None:
    listed(plane, a_job(state="pending", reason="Resources"))
    span = {"low": "2099-01-01T00:00:00Z", "likely": "2099-01-02T00:00:00Z", "high": "2099-01-03T00:00:00Z"}
    plane.on("GET", "/jobs/k3v9q2/why", Reply({"starts_at": span}))
    assert "about 2099-01-0" in dove("ps --start").stdout


def test_watching_without_a_terminal_prints_a_line_for_each_change(plane: Any) -> None:
    listed(plane, a_job())
    plane.on(
        "GET", "/watch", Reply(stream=['id: 1\nevent: job\ndata: {"id": "m8x0aa", "state": "completed"}\n\n'])
    )
    command = [sys.executable, "-m", "dovetail.cli", "ps", "--watch"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        seen = [process.stdout.readline() for _ in range(5)]
        process.send_signal(signal.SIGINT)
        process.wait(DEADLINE)
    assert seen[0].startswith("1 running")
    assert seen[4] == "m8x0aa  completed\n"
    assert process.returncode == 130


def test_watching_on_a_terminal_shows_the_list_anew(plane: Any) -> None:
    import pty

    listed(plane, a_job())

    def stream(_: Any) -> Any:
        listed(plane, a_job(), a_job("m8x0aa"))
        event = 'event: job\ndata: {"id": "m8x0aa", "state": "running"}\n\n'
        return Reply(stream=["event: ready\ndata: {}\n\n", *[event] * 1_000])

    plane.on("GET", "/watch", stream)
    main, side = pty.openpty()
    command = [sys.executable, "-m", "dovetail.cli", "ps", "--watch"]
    with subprocess.Popen(command, stdout=side) as process:
        os.close(side)
        seen = b""
        while b"m8x0aa" not in seen:
            seen += os.read(main, 4096)
        process.send_signal(signal.SIGINT)
        process.wait(DEADLINE)
    os.close(main)
    assert process.returncode == 130
    assert seen.startswith(b"\x1b[2J\x1b[H1 running")
    assert seen.count(b"\x1b[2J") == 2


# --- one job ---------------------------------------------------------------------------------------


def test_why_begins_with_the_sentence(dove: Dove, plane: Any) -> None:
    answer = {
        "job": "k3v9q2",
        "state": "pending",
        "reason": "Resources",
        "sentence": "It needs 8 A100; 4 are free.",
        "holders": [
            {"job": "m8x0aa", "tenant": "research", "gpus": 4, "ends_at": "2099-01-01T00:00:00Z"},
            {"job": None, "tenant": None, "gpus": 2, "ends_at": None, "jobs": 7},
            {"job": None, "tenant": None, "gpus": 2, "ends_at": None, "hidden": True},
        ],
        "remedy": "ask for 4",
        "assumed": "no estimate given: assumed 1 h",
        "starts_at": {"low": None, "likely": "2099-01-01T00:00:00Z", "high": None},
        "ahead": {"own": 2, "others": True},
    }
    plane.on("GET", "/jobs/k3v9q2/why", Reply(answer))
    lines = dove("why job/k3v9q2").stdout.splitlines()
    assert lines[0] == "It needs 8 A100; 4 are free."
    assert lines[1].startswith("it will start about ")
    assert lines[2] == "no estimate given: assumed 1 h"
    assert lines[3] == "ahead of it: 2 jobs of yours and jobs of other users"
    assert "7 more jobs" in "\n".join(lines)
    assert "a job of another tenant" in "\n".join(lines)
    assert lines[-1] == "to start sooner:  ask for 4"
    assert json.loads(dove("why k3v9q2 --json").stdout) == answer

    plane.on("GET", "/jobs/k3v9q2/why", Reply({**answer, "remedies_in": 7}))
    assert dove("why k3v9q2").stdout.splitlines()[-1].endswith("; ask again in 7 s")


def test_describe_shows_the_attempts(dove: Dove, plane: Any) -> None:
    attempt = {"attempt": 1, "started_at": "2026-11-15T12:00:00Z", "ended_at": "2026-11-15T12:10:00Z"}
    attempt |= {"exit_code": 143, "cause": "stopped", "detail": "preempted", "placement": [{"node": "n0"}]}
    plane.on("GET", "/jobs/k3v9q2", Reply(a_job(restarts=1)))
    plane.on("GET", "/jobs/k3v9q2/attempts", Reply({"items": [attempt], "next": None}))
    said = dove("describe k3v9q2").stdout
    assert said.startswith("k3v9q2 train: running, n0")
    assert "10 min" in said
    assert "preempted" in said
    assert json.loads(dove("describe k3v9q2 --json").stdout)["attempts"] == [attempt]


def test_parts_of_gpus_are_shown_as_parts(dove: Dove, plane: Any) -> None:
    half, quarters = a_job("half00", gpus=1, gpu_share=0.5), a_job("quart0", gpus=2, gpu_share=0.25)
    listed(plane, half, quarters, a_job("whole0", gpus=3, gpu_share=1.0))
    lines = dove("ps").stdout.splitlines()
    assert lines[0] == "3 running on 4 GPUs"
    assert [line.split()[4] for line in lines[3:6]] == ["0.5", "2x0.25", "3"]
    listed(plane, half)
    assert dove("ps").stdout.startswith("1 running on 0.5 GPUs")
    listed(plane, half, path="/history")
    assert " 0.5 " in dove("history").stdout
    plane.on("GET", "/jobs/half00", Reply(half))
    plane.on("GET", "/jobs/half00/attempts", Reply({"items": [], "next": None}))
    assert "asks for   0.5 GPUs on 1 node, A100\n" in dove("describe half00").stdout
    device = {"node": "n0", "index": 0, "type": "A100", "state": "shared", "used": 0.75, "job": "half00"}
    plane.on("GET", "/gpus", Reply({"items": [{**device, "jobs": ["half00", "quart0"]}], "next": None}))
    said = dove("gpus").stdout.splitlines()
    assert said[0] == "0 of 1 GPU free, 1 shared"
    assert said[3].split() == ["n0", "0", "A100", "shared", "0.75", "half00,quart0"]


def test_describe_shows_the_request_and_the_lost_work(dove: Dove, plane: Any) -> None:
    plane.on("GET", "/jobs/k3v9q2/attempts", Reply({"items": [], "next": None}))
    job = a_job(gpus=8, nodes=2, cpus=1.5, memory=3 << 29, lost_gpu_seconds=3600.0)
    plane.on("GET", "/jobs/k3v9q2", Reply(job))
    said = dove("describe k3v9q2").stdout
    assert "8 GPUs on 2 nodes, A100; 1.5 CPUs and 1.5 GiB of memory on each node" in said
    assert "lost       1 GPU h of work that was not saved" in said
    plane.on("GET", "/jobs/k3v9q2", Reply(a_job(cpus=1.0, memory=0)))
    said = dove("describe k3v9q2").stdout
    assert "asks for   4 GPUs on 1 node, A100; 1 CPU\n" in said
    assert "lost" not in said
    plane.on("GET", "/jobs/k3v9q2", Reply(a_job(gpus=0, gpu_types=[], nodes=2, cpus=2.0, memory=None)))
    assert "asks for   2 CPUs on each of 2 nodes\n" in dove("describe k3v9q2").stdout


def test_why_says_when_a_begin_time_comes(dove: Dove, plane: Any) -> None:
    answer = {
        "job": "k3v9q2",
        "state": "held",
        "reason": "BeginTime",
        "sentence": "Its begin time has not come.",
    }
    plane.on("GET", "/jobs/k3v9q2/why", Reply(answer))
    plane.on("GET", "/jobs/k3v9q2", Reply(a_job(state="held", begin_at="2099-01-02T12:00:00Z")))
    assert "come: it is 2099-01-0" in dove("why k3v9q2").stdout
    plane.on("GET", "/jobs/k3v9q2", Reply(a_job(state="held")))
    assert dove("why k3v9q2").stdout == "Its begin time has not come.\n"


def test_release_says_why_a_job_still_waits(dove: Dove, plane: Any) -> None:
    waits = a_job(state="held", reason="Dependency")
    answer = {"job": "k3v9q2", "state": "held", "reason": "Dependency", "sentence": "It waits for m8x0aa."}
    plane.on("GET", "/jobs/k3v9q2/why", Reply(answer))
    plane.on("GET", "/jobs/k3v9q2", Reply(waits))
    plane.on("POST", "/jobs/k3v9q2/release", Reply(waits))
    said = dove("release k3v9q2").stdout
    assert said == "k3v9q2 is released, but still waits: It waits for m8x0aa.\n"
    plane.on("POST", "/jobs/k3v9q2/release", problem(409, "nothing to release: k3v9q2 is held"))
    result = dove("release k3v9q2")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: k3v9q2 is not held")
    assert "It waits for m8x0aa." in result.stderr


def serve_log(plane: Any, text: bytes, files: int = 1) -> None:
    def chunk(asked: Any) -> Any:
        offset = int(asked.query["offset"])
        piece = text[offset : offset + 50]
        if "tail" in asked.query:
            offset, piece = 0, b"".join(text.splitlines(keepends=True)[-int(asked.query["tail"]) :])
            return Reply(piece, headers={"X-Next-Offset": str(len(text)), "X-Files": str(files)})
        return Reply(piece, headers={"X-Next-Offset": str(offset + len(piece)), "X-Files": str(files)})

    plane.on("GET", "/jobs/k3v9q2/logs", chunk)


def test_logs_are_printed_as_they_are(dove: Dove, plane: Any) -> None:
    text = "".join(f"line {i} \x1b[1mbold\x1b[0m\r\n" for i in range(20))
    serve_log(plane, text.encode())
    plane.on("GET", "/jobs/k3v9q2", Reply(a_job(state="completed")))
    assert dove("logs k3v9q2").stdout_bytes.decode() == text
    assert dove("logs -f k3v9q2").stdout_bytes.decode() == text
    assert dove("logs k3v9q2 --tail 2").stdout.count("line") == 2
    assert dove("logs k3v9q2 --tail 2 -f").stdout.count("line") == 2


def test_the_logs_of_several_processes_follow_each_other(dove: Dove, plane: Any) -> None:
    serve_log(plane, b"hello\n", files=2)
    plane.on("GET", "/jobs/k3v9q2", Reply(a_job(state="completed", nodes=2)))
    assert dove("logs k3v9q2").stdout == "==> rank 0 <==\nhello\n==> rank 1 <==\nhello\n"
    assert dove("logs k3v9q2 --rank 1").stdout == "hello\n"
    stream = "event: attempt\ndata: {}\n\ndata: [0] a\ndata: [1] b\n\nevent: end\ndata: {}\n\n"
    plane.on("GET", "/jobs/k3v9q2/logs/stream", Reply(stream=[stream]))
    assert dove("logs -f k3v9q2").stdout == "[0] a\n[1] b\n"


def test_a_job_that_has_not_started_has_no_log(dove: Dove, plane: Any) -> None:
    plane.on("GET", "/jobs/k3v9q2", Reply(a_job(state="pending", attempt=0, reason="Resources")))
    result = dove("logs k3v9q2")
    assert result.exit_code == 2
    assert "dovetail why k3v9q2" in result.stderr


@pytest.mark.parametrize("verb", ["hold", "release", "requeue"])
def test_verbs_that_change_a_job(dove: Dove, plane: Any, verb: str) -> None:
    plane.on("POST", f"/jobs/k3v9q2/{verb}", Reply(a_job(state="held", reason="JobHeldUser")))
    assert dove(f"{verb} k3v9q2").stdout == "k3v9q2 is held, JobHeldUser\n"
    assert dove(f"{verb} k3v9q2 --array 3-7").exit_code == 0
    assert plane.asked[1].query == {"tasks": "3-7"}


def test_priority_is_a_number_or_a_word(dove: Dove, plane: Any) -> None:
    plane.on("POST", "/jobs/k3v9q2/priority", Reply(a_job(priority=100)))
    assert dove("priority k3v9q2 100").stdout == "k3v9q2 has priority 100\n"
    dove("priority k3v9q2 high")
    assert [asked.body for asked in plane.asked] == [{"priority": 100}, {"priority": "high"}]


def test_a_priority_below_zero_is_no_option(dove: Dove, plane: Any) -> None:
    plane.on("POST", "/jobs/k3v9q2/priority", Reply(a_job(priority=-5)))
    for command in ("priority k3v9q2 -5", "priority k3v9q2 -- -5"):
        assert dove(command).stdout == "k3v9q2 has priority -5\n"
        assert plane.asked[-1].body == {"priority": -5}


def test_cancel_one_some_and_all(dove: Dove, plane: Any) -> None:
    for id, state in (("a", "cancelled"), ("b", "stopping")):
        plane.on("GET", f"/jobs/{id}", Reply(a_job(id)))
        plane.on("POST", f"/jobs/{id}/cancel", Reply(a_job(id, state=state)))
    plane.on("POST", "/jobs/cancel", Reply({"count": 2, "missing": []}))
    assert dove("cancel a").stdout == "a cancelled\n"
    assert dove("cancel a b a").stdout == "a cancelled\nb cancelled; it is stopping\n"
    assert dove("cancel --mine").stdout == "2 jobs cancelled\n"
    assert plane.asked[-1].body == {"mine": True}
    listed(plane, a_job("x"), a_job("y"))
    dove("cancel --user ann")
    assert plane.asked[-1].body == {"ids": ["x", "y"]}


def test_cancel_part_of_an_array(dove: Dove, plane: Any) -> None:
    array = {"id": "k3v9q2", "count": 10, "states": {"cancelled": 5, "running": 5}}
    plane.on("GET", "/jobs/k3v9q2", Reply(array))
    plane.on("POST", "/jobs/k3v9q2/cancel", Reply({**array, "acted": 5}))
    assert dove("cancel k3v9q2 --array 3-7").stdout == "k3v9q2 cancelled: 3-7 (5 jobs)\n"
    assert plane.asked[-1].query == {"tasks": "3-7"}
    plane.on("POST", "/jobs/k3v9q2/cancel", Reply({**array, "acted": 0}))
    assert "3-7 had already ended" in dove("cancel k3v9q2 --array 3-7").stdout


@pytest.mark.parametrize(
    ("state", "told"),
    [
        ("completed", "k3v9q2 had already completed"),
        ("cancelled", "k3v9q2 had already been cancelled"),
        ("timeout", "k3v9q2 had already ended: timeout"),
    ],
)
def test_a_job_that_has_ended_is_not_reported_as_cancelled(
    dove: Dove, plane: Any, state: str, told: str
) -> None:
    plane.on("GET", "/jobs/k3v9q2", Reply(a_job(state=state)))
    result = dove("cancel k3v9q2")
    assert (result.stdout, result.exit_code) == (told + "\n", 0)
    assert [asked.method for asked in plane.asked] == ["GET"]


def test_a_job_that_ends_during_its_cancellation_is_reported_as_it_ended(dove: Dove, plane: Any) -> None:
    plane.on("GET", "/jobs/k3v9q2", Reply(a_job()))
    plane.on("POST", "/jobs/k3v9q2/cancel", Reply(a_job(state="completed")))
    assert dove("cancel k3v9q2").stdout == "k3v9q2 had already completed\n"


def test_cancel_acts_on_those_that_are_there_and_names_the_others(dove: Dove, plane: Any) -> None:
    plane.on("GET", "/jobs/a", Reply(a_job("a")))
    plane.on("POST", "/jobs/a/cancel", Reply(a_job("a", state="cancelled")))
    result = dove("cancel x a y")
    assert (result.stdout, result.exit_code) == ("a cancelled\n", 2)
    assert result.stderr == "error: no job has the id x, y; see them with dovetail ps -a\n"
    plane.on("POST", "/jobs/cancel", Reply({"count": 29, "missing": ["j7"]}))
    result = dove("cancel", *(f"j{i}" for i in range(30)))
    assert (result.stdout, result.exit_code) == ("29 jobs cancelled\n", 2)
    assert "the id j7;" in result.stderr


def test_a_shell_has_the_environment_of_the_job(plane: Any, folder: Path) -> None:
    plane.on("GET", "/jobs/k3v9q2", Reply(a_job(attempt=2)))
    attempt = folder / "state" / "attempts" / "k3v9q2" / "2"
    attempt.mkdir(parents=True)
    environment = {"PATH": os.environ["PATH"], "CUDA_VISIBLE_DEVICES": "4,5", "DOVETAIL_JOB_ID": "k3v9q2"}
    (attempt / "environment.json").write_text(json.dumps(environment))
    command = [sys.executable, "-m", "dovetail.cli", "shell", "k3v9q2", "--"]
    command += ["sh", "-c", 'echo "$DOVETAIL_JOB_ID $CUDA_VISIBLE_DEVICES $DOVETAIL_STATE"; exit 7']
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("k3v9q2 4,5 \n", 7)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, which can run programs as another account")
def test_a_shell_of_root_has_the_account_of_the_job(plane: Any, folder: Path) -> None:
    """Its environment is its user's: as root, a variable such as LD_PRELOAD would run the user's code."""
    plane.on("GET", "/jobs/k3v9q2", Reply(a_job(attempt=2)))
    run = folder / "state" / "attempts" / "k3v9q2" / "2" / "run"
    run.mkdir(parents=True)
    os.chown(run, 65534, 65534)
    (run.parent / "environment.json").write_text(json.dumps({"PATH": os.environ["PATH"], "PWD": "/"}))
    command = [sys.executable, "-m", "dovetail.cli", "shell", "k3v9q2", "--", "id", "-u"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("65534\n", 0)


# --- submit, run, plan -----------------------------------------------------------------------------


def takes_jobs(plane: Any, count: int = 1) -> None:
    ids = ["k3v9q2"] if count == 1 else [f"k3v9q2_{i}" for i in range(count)]
    plane.on("POST", "/jobs", Reply({"id": "k3v9q2", "ids": ids, "count": count, "array": count > 1}, 201))


def test_submit_a_file_with_flags_before_it(dove: Dove, plane: Any, folder: Path) -> None:
    takes_jobs(plane)
    (folder / "train.yaml").write_text(
        "name: sft\nresources: {accelerators: 'A100:8', memory: 32G}\n"
        "time: 2h\nenv: {A: '1'}\nrun: python train.py\n"
    )
    result = dove("submit train.yaml --gpus 2 --time 4h -J other --env B=2 -A research --priority 5")
    assert result.stdout.startswith("submitted k3v9q2\n")
    request = plane.asked[0].body
    assert request["resources"] == {"accelerators": "A100:2", "memory": "32G"}
    assert (request["time"], request["name"], request["run"]) == ("4h", "other", "python train.py")
    assert (request["queue"], request["priority"], request["workdir"]) == ("research", 5, str(folder))
    assert request["env"] == {**request["env"], "A": "1", "B": "2", "PATH": os.environ["PATH"]}
    assert TOKEN not in json.dumps(request)
    assert len(plane.asked[0].headers["idempotency-key"]) == 32
    assert dove("submit train.yaml --parsable").stdout == "k3v9q2\n"
    assert json.loads(dove("submit train.yaml --json --key mine").stdout)["id"] == "k3v9q2"
    assert plane.asked[-1].headers["idempotency-key"] == "mine"


def test_notes_of_the_plane_are_printed(dove: Dove, plane: Any) -> None:
    made = {"id": "k3v9q2", "ids": ["k3v9q2"], "count": 1, "array": False, "notes": ["you may have meant m"]}
    plane.on("POST", "/jobs", Reply(made, 201))
    plane.on("POST", "/plan", Reply({"fits": True, "notes": ["you may have meant m"]}))
    for command in ("submit --parsable -- true", "run --detach true", "plan --gpus 1"):
        assert dove(command).stderr == "note: you may have meant m\n"


def test_submit_a_script_says_what_it_ignored(dove: Dove, plane: Any, folder: Path) -> None:
    takes_jobs(plane, 3)
    (folder / "job.sh").write_text(
        "#!/bin/bash\n#SBATCH --job-name=sweep --gres=gpu:2\n"
        "#SBATCH --mail-type=END\n#SBATCH -t 30\necho hello\n"
    )
    result = dove("submit job.sh --array 0-2%2")
    assert "an array of 3 jobs" in result.stdout
    assert "line 3" in result.stderr
    assert "mail" in result.stderr
    request = plane.asked[0].body
    assert (request["name"], request["array"]) == ("sweep", "0-2%2")


def test_submit_from_standard_input_and_from_the_command_line(plane: Any, folder: Path) -> None:
    from dovetail.cli.main import app

    takes_jobs(plane)
    result = CliRunner().invoke(app, ["submit", "-", "--parsable"], input="run: echo hello")
    assert result.stdout == "k3v9q2\n", result.stderr
    assert plane.asked[0].body["run"] == "echo hello"
    CliRunner().invoke(app, ["submit", "--gpus", "1", "--", "python", "train.py", "--gpus", "7"])
    assert plane.asked[1].body["command"] == ["python", "train.py", "--gpus", "7"]
    assert plane.asked[1].body["resources"] == {"gpus": 1}
    CliRunner().invoke(app, ["submit", "--wrap", "a && b"])
    assert plane.asked[2].body["run"] == "a && b"


def test_errors_of_the_plane_name_the_line_of_the_job_file(dove: Dove, plane: Any, folder: Path) -> None:
    (folder / "bad.yaml").write_text("name: x\nresources:\n  gpu: 3\nrun: 'true'\n")
    errors = [{"pointer": "/resources/gpu", "detail": "unknown key 'gpu'; did you mean gpus?"}]
    for verb, path in (("submit", "/jobs"), ("plan", "/plan")):
        plane.on("POST", path, problem(422, "resources/gpu: unknown key", errors=errors))
        result = dove(f"{verb} bad.yaml")
        assert result.exit_code == 2
        assert result.stderr == "error: bad.yaml, line 3: unknown key 'gpu'; did you mean gpus?\n"


def test_submit_and_wait_ends_as_the_job_ends(dove: Dove, plane: Any) -> None:
    takes_jobs(plane)
    ended = {
        "completed": 0,
        "failed": 3,
        "timeout": 124,
        "cancelled": 130,
        "out-of-memory": 137,
        "node-failed": 1,
    }
    for state, code in ended.items():
        exit_code = {"failed": 3, "completed": 0}.get(state)
        plane.on("GET", "/jobs/k3v9q2", [Reply(a_job()), Reply(a_job(state=state, exit_code=exit_code))])
        assert dove("submit --wait --wrap true").exit_code == code


def test_run_shows_the_output_and_ends_as_the_job_ends(dove: Dove, plane: Any, folder: Path) -> None:
    takes_jobs(plane)
    serve_log(plane, b"hello\n")
    states = [
        a_job(state="pending", attempt=0),
        a_job(),
        a_job(state="failed", exit_code=3, detail="it failed"),
    ]
    plane.on("GET", "/jobs/k3v9q2", [Reply(job) for job in states])
    result = dove("run --gpus A100:2 --", "python", "train.py", "--lr", "3")
    assert (result.stdout, result.exit_code) == ("hello\n", 3)
    assert result.stderr == "note: job k3v9q2 failed: it failed\n"
    request = plane.asked[0].body
    assert request["command"] == ["python", "train.py", "--lr", "3"]
    assert (request["workdir"], request["name"]) == (str(folder), "train.py")
    assert dove("run --detach", "python", "-c", "pass").stdout == "k3v9q2\n"
    assert plane.asked[-1].body["command"] == ["python", "-c", "pass"]


def test_an_interrupted_run_cancels_its_job(plane: Any) -> None:
    takes_jobs(plane)
    serve_log(plane, b"hello\n")
    plane.on("GET", "/jobs/k3v9q2", Reply(a_job()))

    def cancelled(_: Any) -> Any:
        plane.on("GET", "/jobs/k3v9q2", Reply(a_job(state="cancelled", exit_code=143)))
        return Reply(a_job(state="stopping"))

    plane.on("POST", "/jobs/k3v9q2/cancel", cancelled)
    command = [sys.executable, "-m", "dovetail.cli", "run", "sleep", "600"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "hello\n"
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=DEADLINE)
    assert process.returncode == 130
    assert "cancelling k3v9q2" in told
    assert len(plane.of("/jobs/k3v9q2/cancel")) == 1


def test_a_second_interrupt_stops_waiting_for_the_job(plane: Any) -> None:
    takes_jobs(plane)
    serve_log(plane, b"hello\n")
    plane.on("GET", "/jobs/k3v9q2", Reply(a_job()))
    plane.on("POST", "/jobs/k3v9q2/cancel", Reply(a_job(state="stopping")))
    command = [sys.executable, "-m", "dovetail.cli", "run", "sleep", "600"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "hello\n"
        process.send_signal(signal.SIGINT)
        until = time.monotonic() + DEADLINE
        while not plane.of("/jobs/k3v9q2/cancel"):
            assert time.monotonic() < until
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=DEADLINE)
    assert process.returncode == 130
    assert "no longer waiting for" in told


@pytest.mark.parametrize("verb", ["submit", "run", "plan"])
@pytest.mark.parametrize("time", ["30", "1.5", "0", "soon", "-5m", "2x", ""])
def test_no_hint_about_time_leads_to_another_error(dove: Dove, plane: Any, verb: str, time: str) -> None:
    """What it advises to write is taken."""
    takes_jobs(plane)
    plane.on("POST", "/plan", Reply({"fits": True}))
    plane.on("GET", "/jobs/k3v9q2", Reply(a_job(state="completed", exit_code=0)))
    serve_log(plane, b"")
    result = dove(f"{verb} --gpus 1 --time", time, "--", "true")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--time: " in result.stderr
    assert not plane.asked
    for better in (
        result.stderr.partition("write ")[2].replace(" for minutes", "").replace(",", " or").split(" or ")
    ):
        if better.strip():
            assert dove(f"{verb} --gpus 1 --time", better.strip(), "--", "true").exit_code == 0


@pytest.mark.parametrize(("typed", "sent"), [("50%", 0.5), ("0.5", 0.5), ("12.5%", 0.125), ("1", 1.0)])
def test_a_share_is_a_fraction_or_a_percentage(dove: Dove, plane: Any, typed: str, sent: object) -> None:
    takes_jobs(plane)
    assert dove(f"submit --gpu-share {typed} -- true").exit_code == 0
    assert plane.asked[0].body["gpu_share"] == sent


# An amount without its unit, and what to type instead: Slurm, SkyPilot and others read them differently.
BARE = {
    "submit --time 2 -- true": "--time: 2 has no unit; write 2s, 2m or 2h",
    "run -t 30 -- true": "--time: 30 has no unit; write 30s, 30m or 30h",
    "plan --expected 90 -- true": "--expected: 90 has no unit; write 90s, 90m or 90h",
    "submit --grace 120 -- true": "--grace: 120 has no unit; write 120s, 120m or 120h",
    "submit --checkpoint-every 20 -- true": "--checkpoint-every: 20 has no unit; write 20s, 20m or 20h",
    "submit --begin +2 -- true": "--begin: 2 has no unit; write 2s, 2m or 2h",
    "submit --mem 32 -- true": "--memory: 32 has no unit; write 32G or 32M",
    "submit --gpu-share 50 -- true": "--gpu-share: 50 of a GPU has no unit; write 50% or 0.5",
    "submit --gpu-share 500 -- true": "--gpu-share: '500' is not a share of a GPU; write 50% or 0.5",
    "simulate five.csv --cluster 1x8 --policy fifo --until 100": "--until: 100 has no unit; write 100s",
    "simulate five.csv --cluster 1x8 --policy srtf --restart-cost 30": "--restart-cost: 30 has no unit",
    "compare five.csv --cluster 1x8 --policies srtf,sjf --restart-cost 30": "--restart-cost: 30 has no unit",
    "token create ann --expires 90": "--expires: 90 has no unit; write 90s, 90m or 90h",
    "up --output-limit 1000": "--output-limit 1000: not a size; write 1GiB",
}


@pytest.mark.parametrize("command", BARE)
def test_an_amount_without_a_unit_is_refused_everywhere_alike(dove: Dove, plane: Any, command: str) -> None:
    result = dove(command)
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert BARE[command] in result.stderr
    assert (result.stderr.count("\n"), plane.asked) == (1, [])


def test_paths_of_this_machine_are_not_sent_through_a_tunnel(
    dove: Dove, plane: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    takes_jobs(plane)
    monkeypatch.setenv("DOVETAIL_URL", plane.url)
    monkeypatch.setenv("DOVETAIL_TOKEN", "mine")
    result = dove("submit -- true")  # the state folder says that it is here
    assert plane.asked[-1].body["workdir"] == str(folder)
    assert result.stderr == ""
    monkeypatch.setenv("DOVETAIL_STATE", str(folder / "none"))
    (folder / "job.yaml").write_text("run: 'true'\n")
    for command in ("submit -- true", "submit job.yaml", "run --detach true"):
        result = dove(command)
        assert result.exit_code == 0
        assert not {"workdir", "env"} & set(plane.asked[-1].body)
        assert "may be a tunnel" in result.stderr
    result = dove("submit --workdir /data -- true")
    assert plane.asked[-1].body["workdir"] == "/data"
    assert result.stderr == ""
    asked = len(plane.asked)
    result = dove("submit --workdir runs -- true")
    assert result.exit_code == 2
    assert "another machine" in result.stderr
    assert len(plane.asked) == asked


def test_plan_says_where_and_when(dove: Dove, plane: Any) -> None:
    answer = {
        "fits": True,
        "starts_at": {"low": None, "likely": "2020-01-01T00:00:00Z", "high": None},
        "placement": [{"node": "n0", "gpus": 4}],
        "preempts": ["m8x0aa"],
        "preempts_others": 2,
        "cost": None,
    }
    plane.on("POST", "/plan", Reply(answer))
    said = dove("plan --gpus A100:4 --time 2h").stdout
    assert said.startswith("it would start now on n0\n")
    assert "it would preempt m8x0aa and 2 jobs of other users" in said
    assert json.loads(dove("plan --gpus 4 --json").stdout) == answer


# --- the cluster -----------------------------------------------------------------------------------


def test_nodes_and_gpus(dove: Dove, plane: Any) -> None:
    nodes = [
        {
            "name": f"gpu0{i}",
            "state": "up" if i else "drained",
            "type": "A100",
            "gpus": 4,
            "free": i,
            "reason": "",
        }
        | {"cpus": 8.0, "memory": 1 << 36, "jobs": ["k3v9q2"], "others": 1}
        for i in range(3)
    ]
    plane.on("GET", "/nodes", Reply({"items": nodes, "next": None}))
    said = dove("nodes").stdout.splitlines()
    assert said[0] == "3 nodes, 3 of 12 GPUs free, 1 node out of service"
    assert said[3].split() == ["gpu00", "drained", "A100", "4", "0", "2", "-"]
    assert dove("nodes gpu[01-02] -o name").stdout == "gpu01\ngpu02\n"
    gpus = [
        {
            "node": "gpu00",
            "index": 0,
            "type": "A100",
            "state": "allocated",
            "used": 1.0,
            "job": "k3v9q2",
            "jobs": [],
        },
        {"node": "gpu00", "index": 1, "type": "A100", "state": "idle", "used": 0.0, "job": None, "jobs": []},
    ]
    plane.on("GET", "/gpus", Reply({"items": gpus, "next": None}))
    assert dove("gpus").stdout.startswith("1 of 2 GPUs free (1 A100)")
    assert len(json.loads(dove("gpus --free --json").stdout)["gpus"]) == 1


def test_an_error_for_one_name_does_not_stop_the_others(dove: Dove, plane: Any) -> None:
    plane.on("POST", "/nodes/n0/drain", Reply({}))
    plane.on("POST", "/nodes/n9/drain", problem(404, "no node has this name that this token may see"))
    result = dove("drain n9 n0")
    assert (result.stdout, result.exit_code) == ("n0 is draining\n", 2)
    assert (
        result.stderr == "error: no node that this token may see is named n9; see them with dovetail nodes\n"
    )
    plane.on("POST", "/jobs/a/hold", Reply(a_job("a", state="held", reason="JobHeldUser")))
    plane.on("POST", "/jobs/x/hold", problem(404, "no job has the id 'x' that this token may see"))
    result = dove("hold x a")
    assert (result.stdout, result.exit_code) == ("a is held, JobHeldUser\n", 2)
    assert "has the id x; see" in result.stderr


@pytest.mark.parametrize("verb", ["drain", "node drain"])
def test_ranges_of_nodes_are_drained(dove: Dove, plane: Any, verb: str) -> None:
    for name in ("gpu08", "gpu09", "gpu10", "n0"):
        plane.on("POST", f"/nodes/{name}/drain", Reply({}))
        plane.on("POST", f"/nodes/{name}/resume", Reply({}))
    result = dove(f"{verb} gpu[08-10],n0 --reason", "new driver")
    assert result.stdout.splitlines()[0] == "gpu08 is draining"
    assert [asked.body for asked in plane.asked] == [{"reason": "new driver"}] * 4
    assert dove(f"{verb.replace('drain', 'resume')} n0").stdout == "n0 accepts jobs again\n"


def test_shares_history_and_report(dove: Dove, plane: Any) -> None:
    share: dict[str, Any] = {
        "tenant": "research",
        "weight": 1.0,
        "quota": 8,
        "borrow": None,
        "limit": None,
        "parent": "",
    }
    share |= {"used": 10.0, "borrowed": 2.0, "running": 3, "pending": 1}
    plane.on("GET", "/shares", Reply({"items": [share], "total": {"gpus": 16, "used": 10.0}}))
    assert dove("shares").stdout.startswith("10 of 16 GPUs in use")
    listed(plane, a_job(state="failed", exit_code=1, ended_at="2026-11-15T12:31:00Z"), path="/history")
    said = dove("history --since 2026-11-01 --mine").stdout
    assert said.startswith("1 job has ended, 0.067 GPU h")
    assert "30 min" in said
    assert plane.asked[-1].query["since"].endswith("Z")
    usage = {"key": "ann", "gpu_hours": 12.5, "lost_gpu_hours": 0.5, "jobs": 3, "wait": {"mean": 60.0}}
    plane.on("GET", "/report", Reply({"by": "user", "items": [usage], "total": usage}))
    said = dove("report --by user --last-month").stdout
    assert said.startswith("12.5 GPU h by 3 jobs that ran or still run\n")
    query = plane.asked[-1].query
    assert query["by"] == "user"
    assert query["since"] < query["until"]
    assert dove("report --by team").exit_code == 0
    assert plane.asked[-1].query["by"] == "tenant"
    assert "cost" not in said
    priced = {"by": "month", "currency": "EUR", "items": [{**usage, "cost": 1234.5}], "total": usage}
    plane.on("GET", "/report", Reply(priced))
    said = dove("report --by month").stdout
    assert "cost (EUR)" in said
    assert "1,234.50" in said


def test_open_shows_the_page_without_showing_the_token(
    dove: Dove, plane: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert dove("open --print").stdout == f"{plane.url}/#token={TOKEN}\n"
    opened: list[tuple[str, str, int]] = []

    def browser(url: str) -> bool:
        file = Path(url.removeprefix("file://"))
        opened.append((url, file.read_text(), file.stat().st_mode & 0o077))
        return True

    monkeypatch.setattr("webbrowser.open", browser)
    monkeypatch.setattr("dovetail.cli.open.LEFT", 0.0)
    said = dove("open")
    ((url, text, others),) = opened
    assert (said.exit_code, others) == (0, 0)
    assert TOKEN not in said.output + url
    assert f"url={plane.url}/#token={TOKEN}" in text
    assert not Path(url.removeprefix("file://")).exists()
    monkeypatch.setattr("webbrowser.open", lambda url: False)
    refused = dove("open")
    assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1)
    assert TOKEN not in refused.output


def test_a_token_is_printed_once_and_alone(dove: Dove, plane: Any) -> None:
    plane.on("POST", "/tokens", Reply({"id": "t4k9", "token": "dt_new"}, 201))
    result = dove("token create alice --tenant research --expires 90d")
    assert result.stdout == "dt_new\n"
    assert "t4k9" in result.stderr
    body = {"name": "alice", "tenant": "research", "user": "alice", "role": "user", "expires_in": 7_776_000.0}
    assert plane.asked[0].body == body
    token: dict[str, Any] = {
        "id": "t4k9",
        "name": "alice",
        "tenant": "research",
        "user": "alice",
        "role": "user",
    }
    token |= {"created_at": "2026-11-15T12:00:00Z", "expires_at": None, "revoked_at": None}
    plane.on("GET", "/tokens", Reply({"items": [token], "next": None}))
    assert "never" in dove("token list").stdout
    plane.on("DELETE", "/tokens/t4k9", Reply(b"", 204))
    assert dove("token revoke t4k9").stdout == "t4k9 revoked\n"


def test_the_policy_is_shown_and_switched(dove: Dove, plane: Any) -> None:
    plane.on("GET", "/policy", Reply({"name": "fifo", "options": {"discipline": "skip"}}))
    plane.on("PUT", "/policy", Reply({"name": "tiresias-l", "options": {"quantum": 60.0}}))
    said = dove("policy").stdout
    assert said.startswith("fifo with discipline=skip\n")
    assert "dovetail policy default" in said
    said = dove("policy tiresias-l --set quantum=60").stdout
    assert said == "now tiresias-l with quantum=60; it was fifo with discipline=skip\n"
    assert plane.asked[-1].body == {"name": "tiresias-l", "options": {"quantum": 60.0}}
    dove("policy only-the-plane-knows --set a=b")
    assert plane.asked[-1].body == {"name": "only-the-plane-knows", "options": {"a": "b"}}


def test_a_policy_that_fails_is_named_with_the_one_that_decides_instead(dove: Dove, plane: Any) -> None:
    listed(plane, a_job(state="pending", letter="PD", reason="Resources", placement=[], started_at=None))
    stand_in = {"policy": "kueue", "options": {}, "reason": "KeyError: 'x'\x1b"}
    stand_in["retry_at"] = "2126-11-15T12:00:00Z"
    plane.on("GET", "/policy", Reply({"name": "mine", "options": {}, "stand_in": stand_in}))
    told = "mine fails (KeyError: 'x'?): kueue decides instead; mine is tried again in "
    assert dove("policy").stdout.startswith(f"mine\n{told}")
    assert dove("ps").stderr.startswith(f"note: {told}")
    assert dove("ps -o json").stderr == "", "programs ask for the policy itself"


def test_changed_options_of_the_same_policy_are_listed(dove: Dove, plane: Any) -> None:
    usual = {"name": "kueue", "options": {"whole": True, "score": "pack"}}
    plane.on("GET", "/policy", Reply({**usual, "default": True}))
    said = dove("policy").stdout
    assert said.startswith("kueue with whole=true, score=pack\n")
    rows = {line.split()[0]: line.split()[1:] for line in said.splitlines() if line.startswith("  ")}
    assert (rows["whole"], rows["preempt"]) == (["true", "false"], ["true", "true"])
    assert "this is the default of a new plane" in said
    plane.on("PUT", "/policy", Reply({"name": "kueue", "options": {}}))
    assert dove("policy kueue").stdout == "now kueue; changed: score pack -> spread, whole true -> false\n"
    plane.on("PUT", "/policy", Reply(usual))
    assert dove("policy default").stdout == "unchanged: kueue with whole=true, score=pack\n"
    assert plane.asked[-1].body == {"name": "default", "options": {}}


def test_teams_get_their_quotas(dove: Dove, plane: Any) -> None:
    plane.on("PUT", "/tenants/research", Reply({"name": "research"}))
    plane.on("DELETE", "/tenants/research", Reply({}))
    assert "research is set" in dove("tenant set research --quota 6 --parent lab --borrow 2").stdout
    assert plane.asked[0].body == {"quota": 6, "borrow": 2, "parent": "lab"}, "what is not named stays"
    dove("tenant set research --quota none --account root --allow-root")
    assert plane.asked.pop().body == {"quota": None, "account": "root", "allow_root": True}
    assert "is not a number of GPUs" in dove("tenant set research --quota -1").stderr
    assert "no quota" in dove("tenant drop research").stdout
    assert plane.asked[1].method == "DELETE"


# --- stopping a plane ------------------------------------------------------------------------------


@pytest.fixture
def process(plane: Any, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """What `down` takes for the plane of the state folder."""
    from dovetail.control.serve import _started

    with subprocess.Popen(["sleep", "600"]) as made:
        address = {"url": plane.url, "token": TOKEN, "pid": made.pid, "started": _started(made.pid)}
        (folder / "state" / "address.json").write_text(json.dumps(address))
        reaper = threading.Thread(target=made.wait)
        reaper.start()
        yield made
        made.kill()
        reaper.join()


def test_down_is_for_the_plane_of_the_state_folder(
    dove: Dove, plane: Any, folder: Path, process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment may name another plane and another token."""
    monkeypatch.setenv("DOVETAIL_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("DOVETAIL_TOKEN", "another-token")
    plane.on(
        "GET",
        "/jobs",
        [
            Reply({"items": [a_job("a"), a_job("b")], "next": None}),
            Reply({"items": [a_job("b", state="stopping"), a_job("c")], "next": None}),
            Reply({"items": [], "next": None}),
        ],
    )
    plane.on("POST", "/jobs/cancel", lambda asked: Reply({"count": len(asked.body["ids"]), "missing": []}))
    result = dove("down --cancel")
    assert result.stdout == f"the plane on {folder / 'state'} has stopped; 3 jobs cancelled\n"
    assert {asked.headers["authorization"] for asked in plane.asked} == {f"Bearer {TOKEN}"}
    assert [asked.body["ids"] for asked in plane.of("/jobs/cancel")] == [["a", "b"], ["c"]]
    assert process.wait(DEADLINE) == -signal.SIGTERM
    assert result.stderr == "note: DOVETAIL_URL is http://127.0.0.1:9; that plane was not stopped\n"


def test_down_names_the_jobs_that_do_not_stop(
    dove: Dove, plane: Any, process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dovetail.cli.up.STOPPING", 0.2)
    listed(plane, a_job("a", state="stopping"))
    plane.on("POST", "/jobs/cancel", Reply({"count": 1, "missing": []}))
    assert "1 job cancelled, 1 job still stopping after 0.2 s: a\n" in dove("down --cancel").stdout
    assert process.wait(DEADLINE) == -signal.SIGTERM


def test_down_leaves_the_jobs_alone(dove: Dove, plane: Any, process: subprocess.Popen[bytes]) -> None:
    assert dove("down").stdout.endswith("has stopped; its jobs keep running\n")
    assert plane.asked == []
    assert process.wait(DEADLINE) == -signal.SIGTERM
    result = dove("down")
    assert (result.exit_code, result.stdout) == (1, "")  # as of ps and the others
    assert "no plane runs" in result.stderr
