"""The policy of a new plane, on a real one: small jobs do not starve a wide gang."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from tests.control.harness import PATIENCE, commanded, eventually

from dovetail import Client

ASSUMED = timedelta(hours=1)  # the estimate of a job that gives none


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    with commanded(tmp_path, "--virtual", "2x4:A100") as found:
        yield found


def test_a_gang_starts_before_the_small_jobs_that_came_after_it(client: Client, tmp_path: Path) -> None:
    """Eight jobs run, each until its own file is there; a gang waits; forty small jobs are behind it."""
    files = [tmp_path / f"go{number}" for number in range(8)]
    running = [
        client.submit({"run": f"until [ -e {file} ]; do sleep 0.05; done", "resources": {"gpus": 1}})
        for file in files
    ]
    eventually(lambda: all(job.refresh().state == "running" for job in running), "the first eight")
    gang = client.submit({"name": "gang", "nodes": 2, "resources": {"gpus": 4}, "run": "true"})
    small = client.submit({"run": "sleep 0.1", "resources": {"gpus": 1}, "array": "0-39"})
    members = [f"{small.id}_{number}" for number in range(40)]
    for job, file in zip(running, files, strict=True):
        assert gang.refresh().state == "pending"
        file.touch()
        job.wait(PATIENCE)
    done = gang.wait(PATIENCE)
    assert done.state == "completed"
    eventually(lambda: not list(client.jobs(active=True)), "the end of all")
    starts = [client.job_info(name).started_at for name in members]
    assert done.started_at is not None
    ended = [client.job_info(job.id) for job in running]
    longest = max(one.ended_at - one.started_at for one in ended if one.ended_at and one.started_at)
    assert done.started_at - done.submitted_at <= ASSUMED + longest, "the bound E + L, with no job before it"
    assert done.started_at < min(start for start in starts if start is not None)
