from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from tests.control.harness import eventually

from dovetail.control import commands, questions, tables
from dovetail.control.demo import JOBS as DEMO_JOBS
from dovetail.control.demo import MOST_LEFT, check_room, start_demo
from dovetail.control.plane import Plane
from dovetail.control.serve import Wanted, plane_up
from dovetail.control.states import State
from dovetail.model.cluster import parse_cluster
from dovetail.model.errors import InputError

PATIENCE = 240.0
JOBS = len(DEMO_JOBS) + 5  # an array of six among them


def rows_of(plane: Plane) -> list[Any]:
    with plane.store.reading() as connection:
        return list(connection.execute(sa.select(tables.jobs).order_by(tables.jobs.c.seq)))


@pytest.mark.slow(43)
def test_a_round_of_the_demo_shows_what_it_promises(tmp_path: Path) -> None:
    with plane_up(Wanted(folder=tmp_path / "state", virtual="2x4:A100", port=0)) as up:
        start_demo(up)
        until = time.monotonic() + PATIENCE
        while len(rows := rows_of(up.plane)[:JOBS]) < JOBS or not all(State(row.state).final for row in rows):
            assert time.monotonic() < until, [(row.name, row.state, row.reason) for row in rows]
            time.sleep(0.2)
        preempted = sum(up.plane.statistics.preemptions.values())
        shares = {share.tenant: share for share in questions.shares(up.plane)}
        with up.plane.store.reading() as connection:
            attempts = connection.execute(sa.select(tables.attempts)).all()

    assert [(row.name, row.state) for row in rows if row.state != State.COMPLETED] == []
    assert preempted >= 2
    jobs = {row.name: row for row in rows if row.array is None}
    assert jobs["pretrain"].restarts >= 1  # it had borrowed, and the owner came
    assert jobs["explore"].restarts >= 1  # it was in the way of a higher priority
    assert jobs["finetune"].restarts == jobs["hotfix"].restarts == 0
    assert jobs["finetune"].started_at < jobs["pretrain"].started_at  # the second time
    assert jobs["evaluate"].first_started_at >= jobs["pretrain"].ended_at
    first = next(a for a in attempts if a.job == jobs["pretrain"].id and a.epoch == 1)
    assert first.placement.count('"node"') == 2
    assert (shares["research"].quota, shares["product"].quota) == (4, 4)
    sweep = sorted(
        [(row.started_at, 1) for row in rows if row.array] + [(row.ended_at, -1) for row in rows if row.array]
    )
    running = peak = 0
    for _, change in sweep:
        running += change
        peak = max(peak, running)
    assert peak == 2


def test_a_cluster_that_is_too_small_is_told_so() -> None:
    for enough in ("2x4:A100", "1x8:H100", "64x8"):
        check_room(parse_cluster(enough))
    for small in ("1x4:A100", "8x1", "4x2", "1x5:A100,1x3:V100"):
        with pytest.raises(InputError, match="the demo needs 8 GPUs"):
            check_room(parse_cluster(small))


def test_jobs_arrive_until_the_plane_stops(tmp_path: Path) -> None:
    """Four rounds, twenty times as fast. However slow the machine is, the queue does not grow."""
    with plane_up(Wanted(folder=tmp_path / "state", virtual="2x4:A100", port=0)) as up:
        thread = start_demo(up, pace=20.0)
        until = time.monotonic() + PATIENCE
        most = 0
        while len(rows := rows_of(up.plane)) < 4 * JOBS:
            assert time.monotonic() < until, [(row.name, row.state, row.reason) for row in rows]
            assert thread.is_alive()
            most = max(most, sum(not State(row.state).final for row in rows))
            time.sleep(0.05)
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert most <= MOST_LEFT + JOBS
    starts = [row for row in rows if row.name == "pretrain"][:4]
    assert [row.tenant for row in starts] == ["research", "product", "research", "product"]
    evaluations = [row for row in rows if row.name == "evaluate"][:4]
    for pretrain, evaluate in zip(starts, evaluations, strict=True):  # each waits for that of its own round
        assert evaluate.dependency == f"afterok:{pretrain.id}"


@pytest.mark.skipif(os.geteuid() != 0, reason="a plane of another account runs all jobs under that account")
def test_the_demo_runs_on_a_plane_of_root(tmp_path: Path) -> None:
    """The tenants of the demo have no account, and their users may not run jobs as root."""
    told: list[str] = []
    with plane_up(Wanted(folder=tmp_path / "state", virtual="2x4:A100", port=0, allow_root=False)) as up:
        start_demo(up, pace=20.0, ended_early=told.append)

        def completed() -> bool:
            return told != [] or any(row.state == State.COMPLETED for row in rows_of(up.plane))

        eventually(completed, "the end of a job")
    assert told == []


def test_a_demo_that_ends_early_says_why(tmp_path: Path) -> None:
    told: list[str] = []
    with plane_up(Wanted(folder=tmp_path / "state", virtual="2x4:A100", port=0)) as up:
        commands.set_limits(up.plane, ("role", "admin"), {"gpus": 1})
        start_demo(up, pace=20.0, ended_early=told.append).join(PATIENCE)
    assert len(told) == 1
    assert "the limit of role admin is 1" in told[0]
