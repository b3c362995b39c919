"""Whatever decides in the simulator decides here too, and may be exchanged while jobs run."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy as sa

from dovetail.control import commands, submission, tables
from dovetail.control.plane import Plane
from dovetail.control.request import parse_request
from dovetail.control.serve import Wanted, plane_up
from dovetail.control.tokens import Caller
from dovetail.policies.registry import POLICIES

ANN = Caller("ann", "team", "ann", "user")


def submit(plane: Plane, gpus: int, run: str = "sleep 0.1", nodes: int = 1, **more: object) -> str:
    body = {"run": run, "nodes": nodes, "resources": {"gpus": gpus}, "time": "1h", **more}
    return submission.submit(plane, ANN, parse_request(body), body).id


def states(plane: Plane) -> dict[str, str]:
    with plane.store.reading() as connection:
        rows = connection.execute(sa.select(tables.jobs.c.id, tables.jobs.c.state))
        return {row.id: row.state for row in rows}


def until(met: Callable[[], bool], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not met():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.05)


@pytest.mark.parametrize("name", POLICIES.names())
def test_it_runs_jobs_to_their_end(name: str, tmp_path: Path) -> None:
    wanted = Wanted(folder=tmp_path / "state", policy=name, virtual="2x2", scale=60.0)
    with plane_up(wanted) as up:
        for gpus, nodes in ((1, 1), (2, 1), (1, 2), (1, 1)):
            submit(up.plane, gpus, nodes=nodes)
        until(lambda: set(states(up.plane).values()) == {"completed"})


def test_switching_through_all_of_them_keeps_every_job(tmp_path: Path) -> None:
    gate = tmp_path / "go"
    wait = f"until [ -e {gate} ]; do sleep 0.05; done"
    with plane_up(Wanted(folder=tmp_path / "state", policy="fifo", virtual="2x2")) as up:
        plane = up.plane
        # No policy may displace these for a newcomer, as some would by right: only a switch could stop them.
        jobs = [submit(plane, 2, wait, preemptible=False), submit(plane, 1, wait, preemptible=False)]
        until(lambda: list(states(plane).values()) == ["running", "running"])
        for name in POLICIES.names():
            commands.switch_policy(plane, name, {})
            assert plane.policy[0] == name
            jobs.append(submit(plane, 1 + len(jobs) % 2, "sleep 0.05"))
            assert set(jobs) == set(states(plane))
        commands.switch_policy(plane, "fifo", {})
        kept = states(plane)
        assert kept[jobs[0]] == kept[jobs[1]] == "running"  # nobody was stopped for it
        gate.touch()
        until(lambda: set(states(plane).values()) == {"completed"})
    with plane_up(Wanted(folder=tmp_path / "state", virtual="2x2")) as up:  # the choice is remembered
        assert up.plane.policy[0] == "fifo"
