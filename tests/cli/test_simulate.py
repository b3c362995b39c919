"""`dovetail simulate`: the textbook example, in each form of answer."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

Dove = Callable[..., Result]
SIMULATE = "simulate five.csv --cluster 1x8 --policy fifo"
SPREAD = {"mean", "p50", "p90", "p99", "max"}


def test_the_first_line_is_the_answer(dove: Dove) -> None:
    result = dove(SIMULATE)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0].startswith("fifo: 5 jobs on 8 GPUs, 6 h simulated in ")
    assert lines[2].split() == ["mean", "p50", "p90", "p99", "max"]
    assert lines[3].split()[:3] == ["completion", "2.45", "h"]
    assert lines[4].split()[:3] == ["waiting", "0.30", "h"]
    assert result.stderr == ""


def test_json_is_one_object_and_nothing_else(dove: Dove) -> None:
    said = json.loads(dove(f"{SIMULATE} --json").stdout)
    assert {
        *("policy", "jobs", "finished", "jct", "wait", "makespan", "utilization", "preemptions"),
        *("lost_gpu_seconds", "decisions", "cpu_seconds"),
    } <= set(said)
    assert set(said["jct"]) == set(said["wait"]) == SPREAD
    assert (said["policy"], said["jobs"], said["finished"]) == ("fifo", 5, 5)
    assert said["jct"]["mean"] == 2.45 * 3600
    assert said["makespan"] == 6 * 3600
    assert said["utilization"] == pytest.approx((24 + 2 + 0.5 + 6 + 0.25) / 48)


def test_options_reach_the_policy(dove: Dove) -> None:
    said = json.loads(dove(f"{SIMULATE} --set discipline=skip --json").stdout)
    assert said["options"] == {"discipline": "skip"}
    assert said["jct"]["mean"] == 2.25 * 3600


def test_jobs_out_has_a_row_for_each_job(dove: Dove, folder: Path) -> None:
    dove(f"{SIMULATE} --jobs-out jobs.csv")
    with (folder / "jobs.csv").open() as text:
        rows = {row["id"]: row for row in csv.DictReader(text)}
    assert list(rows) == ["Alice", "Bob", "Carol", "Dave", "Eve"]
    eve = rows["Eve"]
    assert {name: eve[name] for name in ("submit", "start", "finish", "jct", "wait", "preemptions")} == {
        "submit": "0",
        "start": "3600",
        "finish": "4500",
        "jct": "4500",
        "wait": "3600",
        "preemptions": "0",
    }


def test_what_never_happened_is_left_empty(dove: Dove, folder: Path) -> None:
    result = dove(f"{SIMULATE} --jobs-out jobs.csv --until 20m")
    assert "unfinished" in result.stdout
    with (folder / "jobs.csv").open() as text:
        eve = list(csv.DictReader(text))[-1]
    assert (eve["id"], eve["start"], eve["finish"], eve["jct"], eve["end"]) == ("Eve", "", "", "", "")


def test_a_restart_costs_what_was_said(dove: Dove, folder: Path) -> None:
    (folder / "two.csv").write_text("id,submit,gpus,duration\nlong,0,8,1000\nshort,100,8,100\n")
    command = "simulate two.csv --cluster 1x8 --policy srtf --json"
    free, paid = (json.loads(dove(command + more).stdout) for more in ("", " --restart-cost 30"))
    assert (free["makespan"], free["preemptions"], free["lost_gpu_seconds"]) == (1100, 1, 0)
    assert (paid["makespan"], paid["preemptions"], paid["lost_gpu_seconds"]) == (1130, 1, 30 * 8)


def test_head_takes_the_first_jobs(dove: Dove) -> None:
    assert json.loads(dove(f"{SIMULATE} --head 2 --json").stdout)["jobs"] == 2


def test_unfit_jobs_can_be_left_out(dove: Dove) -> None:
    result = dove("simulate five.csv --cluster 1x2 --policy fifo --drop-unfit --json")
    assert json.loads(result.stdout)["jobs"] == 4
    assert result.stderr == "note: 1 job left out: 1x2 could never hold it\n"


def test_a_made_up_trace_follows_its_seed(dove: Dove) -> None:
    command = "simulate --like philly --jobs 50 --load 0.5 --cluster 2x8 --policy fifo --json --seed"
    first, again, other = (json.loads(dove(f"{command} {seed}").stdout)["jct"] for seed in (1, 1, 2))
    assert first == again != other


def test_a_published_trace_takes_the_types_there_are(dove: Dove, folder: Path) -> None:
    (folder / "spot.csv").write_text(
        "job_name,organization,gpu_model,cpu_request,gpu_request,worker_num,submit_time,duration,job_type\n"
        "a,x,A10,4,1,1,0,60,HP\n"
    )
    result = dove("simulate spot.csv --cluster 1x8 --policy fifo --json")
    assert result.exit_code == 0
    assert "take any GPU type" in result.stderr


def test_a_deadlock_is_told_plainly(dove: Dove, folder: Path) -> None:
    (folder / "gangs.csv").write_text("id,submit,gpus,duration\na,0,8,100\nb,0,8,100\n")
    result = dove("simulate gangs.csv --cluster 2x4 --policy k8s-default --jobs-out jobs.csv")
    assert result.exit_code == 1
    assert result.stdout.startswith("k8s-default: deadlock, 0 of 2 jobs")
    assert "deadlock under k8s-default: 2 jobs (a, b) hold 8 GPUs" in result.stderr
    assert (folder / "jobs.csv").exists(), "what was found out is kept"


def test_a_journal_answers_why(dove: Dove, folder: Path) -> None:
    said = dove(f"{SIMULATE} --journal run.jsonl").stdout
    assert said.splitlines()[-1] == "why did a job wait?  dovetail explain run.jsonl Eve"

    why = dove("explain run.jsonl Eve")
    assert why.exit_code == 0
    assert why.stdout.startswith("Eve waited 1 h: ")
    assert "Dave" in why.stdout

    at_first = dove("explain run.jsonl Eve --at 1")
    assert at_first.stdout.startswith("Eve: Priority")

    step = dove("replay run.jsonl --at 2")
    assert step.exit_code == 0
    assert step.stdout.startswith("step 2 at t=1800 s (30 min): 1 event, decided, 1 action")
    assert "start Dave on n0 (2)" in step.stdout

    for question in (
        "explain run.jsonl Nobody",
        "explain run.jsonl Carol --at 5",
        "replay run.jsonl --at 99",
    ):
        result = dove(question)
        assert result.exit_code == 2
        assert result.stderr.startswith("error: run.jsonl: ")


def test_outputs_are_whole_or_absent(dove: Dove, folder: Path) -> None:
    result = dove(f"{SIMULATE} --journal run.jsonl.gz --report run.html --jobs-out jobs.csv.gz")
    assert result.exit_code == 0
    names = {path.name for path in folder.iterdir()}
    assert names == {"five.csv", "run.jsonl.gz", "run.html", "jobs.csv.gz"}
    assert dove("replay run.jsonl.gz --at 1").exit_code == 0
