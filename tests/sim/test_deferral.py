"""What the core defers may be told later only if nothing would have come of it."""

from __future__ import annotations

from dovetail.policies.table import POLICIES
from dovetail.sim.run import run
from dovetail.testing.build import cluster, job


def test_an_arrival_that_goes_before_a_stuck_head_is_heard_at_once() -> None:
    """Under a strict order that is not by arrival, a newcomer may be the new head, and may fit."""
    jobs = [
        job("long", gpus=2, seconds=1000),
        job("wide", gpus=4, seconds=100, at=1),
        job("short", gpus=1, seconds=10, at=2),
    ]
    result = run(jobs, cluster(nodes=1, gpus=4), POLICIES.make("sjf", discipline="strict"))
    assert result.start("short") == 2
    assert result.start("wide") == 1000
