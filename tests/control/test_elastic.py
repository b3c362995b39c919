"""Elastic jobs on a real plane: what is asked, what is shown, and what a policy promises."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.control.harness import commanded, eventually
from typer.testing import CliRunner, Result

from dovetail.cli.main import app
from dovetail.control.commands import cancel
from dovetail.control.launching import shares_of
from dovetail.control.request import parse_request
from dovetail.control.serve import Wanted, plane_up
from dovetail.control.submission import submit
from dovetail.control.tokens import Caller
from dovetail.engines.contract import NodeShare
from dovetail.model.cluster import parse_cluster
from dovetail.model.grant import devices_of
from dovetail.model.job import gang


def dove(client: Any, *words: str) -> Result:
    return CliRunner(env={"DOVETAIL_STATE": str(client.connection.state)}).invoke(app, words)


REFUSED = {
    "8..2": "has the larger number first; write 2..8",
    "0..4": "is not a range of GPUs; write 2..8",
    "0.5..2": "is not a range of GPUs",
    "A100:4..2": "write 2..4",
    "5..9": "at least 5 GPUs, but the empty cluster has room for 4; ask for fewer, as in --gpus 1..4",
}


def test_an_elastic_job_runs_under_a_rigid_policy_with_the_most_that_there_are(tmp_path: Path) -> None:
    with commanded(tmp_path, "--virtual", "1x4:A100", "--policy", "fifo") as client:
        for text, said in REFUSED.items():
            result = dove(client, "submit", "--gpus", text, "--", "true")
            assert (result.exit_code, result.stdout) == (2, "")
            assert said in result.stderr
            assert result.stderr.count("\n") == 1
        result = dove(client, "submit", "--gpus", "2..4", "-N", "2", "--", "true")
        assert (result.exit_code, result.stdout) == (2, "")
        assert "2..4 GPUs are those of the whole job" in result.stderr
        assert list(client.jobs()) == [], "a refused request leaves nothing"
        submitted = dove(client, "submit", "--parsable", "--gpus", "2..8", "--", "sleep", "300")
        first = submitted.stdout.strip()
        assert "declares no checkpoint" in submitted.stderr
        second = dove(client, "submit", "--parsable", "--gpus", "A100:1..2", "--", "true").stdout.strip()
        job = client.job_info(first)
        assert (job.state, job.gpus, job.gpus_least, job.gpus_held) == ("running", 4, 2, 4.0)
        waits = client.job_info(second)
        assert (waits.state, waits.gpus, waits.gpus_least, waits.gpus_held) == ("pending", 2, 1, 0.0)
        listed = dove(client, "ps").stdout
        assert "4 of 2..4" in listed
        assert " 1..2 " in listed
        assert "1 running on 4 GPUs" in listed
        assert "2 to 4 GPUs, elastic" in dove(client, "describe", first).stdout
        assert "1 to 2 GPUs, elastic, A100" in dove(client, "describe", second).stdout
    with commanded(tmp_path, "--virtual", "1x4:A100", "--policy", "fifo") as client:
        again = client.job_info(first)
        assert (again.gpus, again.gpus_least) == (4, 2), "read back after a restart"


def test_a_promise_is_printed_and_a_refusal_is_an_error(tmp_path: Path) -> None:
    with commanded(tmp_path, "--virtual", "1x2:A100", "--policy", "elasticflow") as client:
        asked = ("--gpus", "1..2", "--grace", "5s", "--expected", "1h", "--", "sleep", "300")
        planned = dove(client, "plan", "--deadline", "+6h", *asked)
        assert planned.exit_code == 0
        assert "it would be promised to end by" in planned.stdout
        accepted = dove(client, "submit", "--deadline", "+6h", *asked)
        assert accepted.exit_code == 0
        assert "promised to end by" in accepted.stdout
        id = accepted.stdout.split()[1]
        promise = client.job_info(id).promised_by
        assert promise is not None
        for verb in ("plan", "submit", "run"):
            refused = dove(client, verb, "--deadline", "+10m", *asked)
            assert (refused.exit_code, refused.stdout) == (2, "")
            assert "its deadline cannot be met" in refused.stderr
            assert refused.stderr.count("\n") == 1
        assert [job.state for job in client.jobs(active=True)] == ["running"]


def test_an_elastic_job_is_one_task_on_each_node() -> None:
    cluster = parse_cluster("2x4:A100")
    names = {"n0": ("a", "b", "c", "d"), "n1": ("e", "f", "g", "h")}
    spots = ((0, 0b1010, 1000, 2_000, 0), (1, 0b0001, 1000, 1_000, 0))
    shape = gang(4, (), 4_000, 8)
    assert shares_of(spots, shape, cluster, names, elastic=True) == (
        NodeShare("n0", ("b", "d"), 2_000, 4),
        NodeShare("n1", ("e",), 1_000, 2),
    )
    assert [share.devices for share in shares_of(spots, shape, cluster, names)] == [("b",), ("d",), ("e",)]


@pytest.mark.parametrize("policy", ["fifo"])
def test_a_policy_that_promises_nothing_says_so(tmp_path: Path, policy: str) -> None:
    with commanded(tmp_path, "--virtual", "1x2:A100", "--policy", policy) as client:
        result = dove(client, "submit", "--deadline", "23:59", "--gpus", "1", "--", "true")
        assert result.exit_code == 0
        assert "does not promise" in result.stderr


STEPS = r"""
saved="$DOVETAIL_CHECKPOINT_DIR/step"
step=$(cat "$saved" 2>/dev/null || echo 0)
echo "on $NPROC_PER_NODE of $CUDA_VISIBLE_DEVICES"
trap 'echo $step > "$saved"; exit 0' TERM
while :; do step=$((step + 1)); echo "step $step"; sleep 0.05; done
"""


def test_an_elastic_job_grows_and_shrinks_and_loses_no_step(tmp_path: Path) -> None:
    with commanded(tmp_path, "--virtual", "1x4:A100", "--policy", "afs") as client:

        def held(job: str) -> float:
            return float(client.job_info(job).gpus_held)

        def output(job: str) -> str:
            return "".join(client.logs(job))

        def submitted(*words: str) -> str:
            return dove(client, "submit", "--parsable", "--grace", "20s", *words).stdout.strip()

        elastic = submitted("--gpus", "1..4", "--expected", "5h", "--wrap", STEPS)
        eventually(lambda: "on 4 of" in output(elastic), "the start on all GPUs")
        other = submitted("--gpus", "2", "--expected", "1h", "--", "sleep", "300")
        eventually(lambda: client.job_info(other).state == "running", "the other job")
        eventually(lambda: held(elastic) == 2, "fewer GPUs")
        assert "2 of 1..4" in dove(client, "ps").stdout
        eventually(lambda: "on 2 of" in output(elastic), "the start on two GPUs")
        client.cancel(other)
        eventually(lambda: held(elastic) == 4, "all GPUs again")
        eventually(lambda: output(elastic).count("on 4 of") == 2, "the start on all GPUs again")
        client.cancel(elastic)
        ended = eventually(lambda: (job := client.job_info(elastic)).done and job, "its end")
        assert (ended.attempt, ended.restarts, ended.lost_gpu_seconds) == (1, 0, 0.0)
        steps = [int(line.split()[1]) for line in output(elastic).splitlines() if line.startswith("step")]
        assert steps == list(range(1, len(steps) + 1)), "no step was lost, and none was done twice"
        assert 2 * ended.took < ended.gpu_seconds < 4 * ended.took
        total = client.connection.get("/report", {"by": "tenant"})["total"]["gpu_hours"]
        both = ended.gpu_seconds + client.job_info(other).gpu_seconds
        assert abs(total * 3600 - both) < 1.0, "the report counts what was held when"


def test_a_speed_is_measured_for_the_gpus_that_an_elastic_job_has(tmp_path: Path) -> None:
    wanted = Wanted(folder=tmp_path / "s", virtual="1x4:A100", port=1, policy="afs")
    with plane_up(wanted) as up:
        body = {
            "run": "sleep 60",
            "model": "bert",
            "resources": {"gpus": "1..4"},
            "checkpoint": {"grace": "1s"},
        }
        caller = Caller("t", "red", "ann", "user")
        ids = [submit(up.plane, caller, parse_request(body), body).id for _ in range(2)]

        def shared() -> list[int]:
            held: list[int] = up.plane.ask(lambda state, now: _held(state, ids))
            return held if len(held) == 2 and sum(held) == 4 else []

        _, gpus = eventually(shared)

        def report(state: Any, now: int) -> list[float]:
            record = state.ledger.index.records[ids[1]]
            state.reports._take(record, [{"steps_per_second": 5.0}], state.ledger, now)
            return [job.rate for job in state.ledger.core.jobs.values()]

        rates = up.plane.change(report)
        assert [(row["gpus"], row["rate"]) for row in up.plane.store.speeds()] == [(gpus, 5.0)]
        assert up.plane.ask(lambda state, now: [job.rate for job in state.ledger.core.jobs.values()]) == rates
        cancel(up.plane, ids)


def _held(state: Any, ids: list[str]) -> list[int]:
    jobs = [state.ledger.core.jobs.get(id) for id in ids]
    return [devices_of(job.spots or ()) for job in jobs if job is not None and job.started]
