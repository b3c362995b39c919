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
    assert lines[5].split()[:4] == ["first", "start", "0.30", "h"]
    assert result.stderr == ""


def test_json_is_one_object_and_nothing_else(dove: Dove) -> None:
    said = json.loads(dove(f"{SIMULATE} --json").stdout)
    assert {
        *(
            "policy",
            "jobs",
            "finished",
            "jct",
            "wait",
            "first_start",
            "makespan",
            "utilization",
            "preemptions",
        ),
        *("lost_gpu_seconds", "decisions", "cpu_seconds"),
    } <= set(said)
    assert set(said["jct"]) == set(said["wait"]) == set(said["first_start"]) == SPREAD
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
    shown = ("submit", "start", "finish", "jct", "wait", "first_start", "preemptions")
    assert {name: eve[name] for name in shown} == {
        "submit": "0",
        "start": "3600",
        "finish": "4500",
        "jct": "4500",
        "wait": "3600",
        "first_start": "3600",
        "preemptions": "0",
    }


def test_columns_of_events_that_did_not_happen_are_empty(dove: Dove, folder: Path) -> None:
    result = dove(f"{SIMULATE} --jobs-out jobs.csv --until 20m")
    assert "unfinished" in result.stdout
    with (folder / "jobs.csv").open() as text:
        eve = list(csv.DictReader(text))[-1]
    assert (eve["id"], eve["start"], eve["finish"], eve["jct"], eve["end"]) == ("Eve", "", "", "", "")


def test_restart_cost_is_paid_at_each_restart(dove: Dove, folder: Path) -> None:
    (folder / "two.csv").write_text("id,submit,gpus,duration\nlong,0,8,1000\nshort,100,8,100\n")
    command = "simulate two.csv --cluster 1x8 --policy srtf --json"
    free, paid = (json.loads(dove(command + more).stdout) for more in ("", " --restart-cost 30s"))
    assert (free["makespan"], free["preemptions"], free["lost_gpu_seconds"]) == (1100, 1, 0)
    assert (paid["makespan"], paid["preemptions"], paid["lost_gpu_seconds"]) == (1130, 1, 30 * 8)


def test_suspend_cost_is_paid_where_the_job_resumes_in_place(dove: Dove, folder: Path) -> None:
    (folder / "two.csv").write_text("id,submit,gpus,duration\nlong,0,8,1000\nshort,100,8,100\n")
    command = "simulate two.csv --cluster 1x8 --policy srtf --json --restart-cost 30s --suspend-cost 2s"
    found = json.loads(dove(command).stdout)
    assert (found["makespan"], found["preemptions"], found["lost_gpu_seconds"]) == (1102, 1, 2 * 8)


def test_head_takes_the_first_jobs(dove: Dove) -> None:
    assert json.loads(dove(f"{SIMULATE} --head 2 --json").stdout)["jobs"] == 2


def test_jobs_that_never_fit_can_be_dropped(dove: Dove) -> None:
    result = dove("simulate five.csv --cluster 1x2 --policy fifo --drop-unfit --json")
    assert json.loads(result.stdout)["jobs"] == 4
    assert result.stderr == "note: 1 job dropped: it can never fit on 1x2\n"


def test_a_generated_trace_depends_on_its_seed(dove: Dove) -> None:
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


def test_a_deadlock_is_reported(dove: Dove, folder: Path) -> None:
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
    assert step.stdout.startswith("step 2 at t=1800 s (30 min): 1 event; the policy decided, 1 action\n")
    assert "the replay agrees with the journal" in step.stdout
    assert "start Dave on n0 (2)" in step.stdout

    for question in (
        "explain run.jsonl Nobody",
        "explain run.jsonl Carol --at 5",
        "replay run.jsonl --at 99",
    ):
        result = dove(question)
        assert result.exit_code == 2
        assert result.stderr.startswith("error: run.jsonl: ")


def test_the_wait_after_a_preemption_is_in_every_form_of_answer(dove: Dove, folder: Path) -> None:
    (folder / "two.csv").write_text("id,submit,gpus,duration\nlong,0,8,36000\nshort,60,8,21600\n")
    command = "simulate two.csv --cluster 1x8 --policy srtf"

    lines = dove(f"{command} --journal run.jsonl --jobs-out jobs.csv --report run.html").stdout.splitlines()
    assert lines[4].split()[-2:] == ["6.00", "h"], "the longest wait"
    assert lines[5].split()[-2:] == ["0", "h"], "the longest time to first start"

    said = json.loads(dove(f"{command} --json").stdout)
    assert (said["wait"]["max"], said["first_start"]["max"]) == (21_600, 0)

    with (folder / "jobs.csv").open() as text:
        long = next(csv.DictReader(text))
    assert (long["wait"], long["first_start"], long["start"]) == ("21600", "0", "0")

    assert "long: 8 GPUs, waited 6 h, done after 16 h" in (folder / "run.html").read_text()
    assert dove("explain run.jsonl long").stdout.startswith("long waited 6 h: Resources")

    table = dove("compare two.csv --cluster 1x8 --policies srtf,fifo --json").stdout
    srtf = json.loads(table)["policies"][0]["figures"]
    assert (srtf["wait_mean"]["mean"], srtf["first_start_mean"]["mean"]) == (10_800, 0)


def test_explain_says_that_a_job_still_waits_at_the_end_of_the_journal(dove: Dove, folder: Path) -> None:
    (folder / "two.csv").write_text("id,submit,gpus,duration\nlong,0,8,36000\nshort,60,8,21600\n")
    dove("simulate two.csv --cluster 1x8 --policy srtf --until 1h --journal run.jsonl")
    told = dove("explain run.jsonl long").stdout
    assert told.startswith("long waited 0 s and still waits at the end of the journal: Resources")


def test_output_files_are_complete_or_absent(dove: Dove, folder: Path) -> None:
    result = dove(f"{SIMULATE} --journal run.jsonl.gz --report run.html --jobs-out jobs.csv.gz")
    assert result.exit_code == 0
    names = {path.name for path in folder.iterdir()}
    assert names == {"five.csv", "run.jsonl.gz", "run.html", "jobs.csv.gz"}
    assert dove("replay run.jsonl.gz --at 1").exit_code == 0


def test_an_elastic_job_runs_with_what_the_cluster_has(dove: Dove, folder: Path) -> None:
    """A job of 16 GPUs that accepts 4 is not too large for 8; one that needs 12 is."""
    trace = folder / "wide.csv"
    trace.write_text("id,submit,gpus,duration,min_gpus\na,0,16,100,4\n")
    done = dove("simulate wide.csv --cluster 1x8 --policy fifo --json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["jct"]["mean"] == 200.0
    trace.write_text("id,submit,gpus,duration,min_gpus\na,0,16,100,12\n")
    done = dove("simulate wide.csv --cluster 1x8 --policy fifo")
    assert done.exit_code == 2
    assert "asks for 16 GPUs, which can never fit" in done.output
