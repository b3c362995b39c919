"""A preempted job says for which job, as far as its owner may know."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.control import harness
from tests.control import test_api as api
from tests.control.test_api import Live, gpus
from tests.control.test_policy_failures import up

from dovetail.control import preemptions


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    """A plane with four GPUs under the policy `priority`."""
    with api.living(tmp_path / "plane", api.FAST, virtual="1x4:A100") as made:
        yield made


def preempted(live: Live, by: str, **more: object) -> tuple[str, str]:
    """A job of ann on all GPUs, and the job of another user that it was preempted for."""
    victim = live.submit("ann", **gpus(4), time="1h")
    live.until(victim, "running")
    other = live.submit(by, **gpus(2), time="1h", priority="high", name="the-other-job", **more)
    live.until(other, "running")
    live.until(victim, "pending")
    return victim, other


def ended(live: Live, job: str, user: str) -> Any:
    """The first attempt of a job."""
    return next(a for a in live.get(f"jobs/{job}/attempts", user)["items"] if a["attempt"] == 1)


def stopped(live: Live, job: str) -> bool:
    return ended(live, job, "ann")["ended_at"] is not None


@pytest.mark.parametrize("reader", ["ann", "eve", "admin"])
def test_a_job_of_the_own_tenant_is_named(live: Live, reader: str) -> None:
    victim, other = preempted(live, "abe")
    named = [{"job": other, "user": "abe", "tenant": "red", "higher_priority": True}]
    why = live.get(f"jobs/{victim}/why", reader)
    assert why["preempted_by"] == named
    assert why["sentence"].endswith(f"It was preempted for job {other} of abe.")
    attempt = ended(live, victim, reader)
    assert attempt["preempted_by"] == named
    assert attempt["detail"].endswith(f"it made way for job {other} of abe")


def test_a_job_of_another_tenant_is_named_to_admins_only(live: Live) -> None:
    victim, other = preempted(live, "bob")
    unnamed = [{"job": None, "user": None, "tenant": None, "higher_priority": True}]
    told = "a job of another tenant with higher priority"
    for reader in ("ann", "eve"):
        why, attempt = live.get(f"jobs/{victim}/why", reader), ended(live, victim, reader)
        assert (why["preempted_by"], attempt["preempted_by"]) == (unnamed, unnamed)
        assert why["sentence"].endswith(f"It was preempted for {told}.")
        assert attempt["detail"].endswith(f"it made way for {told}")
        for path in ("", "/why", "/attempts"):
            text = live.ask("GET", f"jobs/{victim}{path}", reader).text
            assert not any(word in text for word in (other, "bob", "blue", "the-other-job")), path
    why, attempt = live.get(f"jobs/{victim}/why"), ended(live, victim, "admin")
    assert [one["job"] for one in (*why["preempted_by"], *attempt["preempted_by"])] == [other, other]
    assert why["sentence"].endswith(f"It was preempted for job {other} of bob.")


def test_it_is_told_while_the_job_stops_and_not_after_it_has_started_again(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[str, int]] = []
    monkeypatch.setattr(live.engine, "stop", lambda job, epoch, why, grace: told.append((job, epoch)))
    victim = live.submit("ann", **gpus(4), time="1h")
    live.until(victim, "running")
    other = live.submit("abe", **gpus(4), time="1h", priority="high")
    live.until(victim, "stopping")
    assert f"It was preempted for job {other} of abe." in live.get(f"jobs/{victim}/why")["sentence"]
    api.eventually(lambda: (victim, 1) in told)
    live.engine.end(victim, 1, 143, "stopped")
    live.until(other, "running")
    live.engine.end(other)
    live.until(victim, "running")
    assert live.get(f"jobs/{victim}/why")["preempted_by"] == []
    assert ended(live, victim, "ann")["preempted_by"][0]["job"] == other
    assert live.get(f"jobs/{victim}/attempts")["items"][0]["preempted_by"] == []


def test_jobs_that_were_stopped_by_their_users_made_way_for_none(live: Live) -> None:
    for verb in ("requeue", "hold", "cancel"):
        job = live.submit("ann", **gpus(1), time="1h")
        live.until(job, "running")
        assert live.ask("POST", f"jobs/{job}/{verb}", "ann").status == 200
        api.eventually(partial(stopped, live, job))
        assert ended(live, job, "ann")["preempted_by"] == []


def one(job: str, tenant: str = "red", *, higher: bool = True) -> dict[str, Any]:
    return {"job": job, "tenant": tenant, "user": "abe", "higher_priority": higher}


@pytest.mark.parametrize(
    ("by", "sentence"),
    [
        (None, ""),
        ([], ""),
        ([one("a"), one("b")], "job a of abe and job b of abe"),
        ([one(name) for name in "abcdef"], "job a of abe, job b of abe, job c of abe and 3 more"),
        ([one("a"), one("x", "blue", higher=False)], "job a of abe and a job of another tenant"),
        ([one("x", "blue"), one("y", "green", higher=False)], "a job of another tenant"),
    ],
)
def test_several_jobs_are_told_in_one_sentence(by: Any, sentence: str) -> None:
    assert preemptions.for_which_jobs(by, lambda tenant: tenant == "red") == sentence


def dovetail(folder: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "dovetail.cli", *words, "--state", str(folder / "state")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_command_line_says_it_also_after_a_crash(tmp_path: Path) -> None:
    """Real jobs: it is on record before the job has stopped, and survives the plane."""
    with up(tmp_path, "--policy", "priority") as (client, plane):
        victim = client.submit({"run": "sleep 600", "resources": {"gpus": 2}, "nodes": 2, "time": "1h"}).id
        harness.eventually(lambda: client.job_info(victim).state == "running", "a start")
        body = {"run": "sleep 600", "resources": {"gpus": 2}, "nodes": 2, "time": "1h", "priority": "high"}
        other = client.submit(body).id
        harness.eventually(lambda: client.job_info(other).state == "running", "the other start")
        user = client.job_info(other).user
        plane.send_signal(signal.SIGKILL)
        plane.wait()
    with up(tmp_path) as (client, _):
        assert f"It was preempted for job {other} of {user}." in dovetail(tmp_path, "why", victim)
        described = dovetail(tmp_path, "describe", victim)
        assert f"(preempted); it made way for job {other} of {user}" in described
        client.cancel(victim, other)
        harness.eventually(lambda: not list(client.jobs(active=True)), "the end of all jobs")
