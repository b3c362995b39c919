"""A core that starts arrivals without asking the policy decides as one that asks at every event."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import pytest
from hypothesis import given
from tests.wrapped_policy import Wrapped

from dovetail.core.attention import NEVER
from dovetail.core.draft import Draft
from dovetail.core.journal import step_line
from dovetail.model.view import Plan, Policy, View
from dovetail.policies.registry import POLICIES
from dovetail.sim.run import run
from dovetail.testing.build import cluster, job
from dovetail.testing.invariants import watched
from dovetail.testing.strategies import Scene, scenes
from dovetail.testing.suite import searched
from dovetail.traces import generate


@dataclass
class Unwelcoming(Wrapped):
    """A policy that is asked at every arrival."""

    def decide(self, view: View) -> Plan:
        plan = self.inner.decide(view)
        cast("Draft", plan).starts_arrivals = NEVER
        return plan


@pytest.mark.parametrize("name", POLICIES.names())
@given(scene=scenes())
@searched(25)
def test_a_standing_order_is_what_the_policy_would_do(name: str, scene: Scene) -> None:
    """The same journal with and without: also in rounds, where newcomers start before the policy is asked."""

    def lines(policy: Policy) -> list[str]:
        result = watched(policy, scene.cluster, scene.jobs, incidents=scene.incidents, check=False)
        return [step_line(step) for step in result.steps]

    assert lines(POLICIES.make(name)) == lines(Unwelcoming(POLICIES.make(name)))


def test_on_a_full_cluster_too_a_standing_order_is_what_the_policy_would_do() -> None:
    """Two arrivals of one shape, of which one fits and the next preempts a job: rare in small worlds."""
    jobs = generate("philly", 20_000, 400, 0.95, 3).jobs[:4_000]

    def ends(policy: Policy) -> list[list[int]]:
        outcomes = run(jobs, cluster(nodes=50, gpus=8), policy).jobs
        return [list(outcomes.start), list(outcomes.finish), list(outcomes.stops)]

    assert ends(POLICIES.make("tiresias-l")) == ends(Unwelcoming(POLICIES.make("tiresias-l")))


def test_a_newcomer_does_not_pass_a_strict_queue() -> None:
    """Fifo starts arrivals while no job waits; a small job behind a wide one that does not fit must wait."""
    jobs = [
        job("long", gpus=2, seconds=1000),
        job("wide", gpus=4, seconds=100, at=1),
        job("small", gpus=1, seconds=10, at=2),
    ]
    assert run(jobs, cluster(nodes=1, gpus=4), POLICIES.make("fifo")).start("small") == 1100
    assert run(jobs, cluster(nodes=1, gpus=4), POLICIES.make("sjf")).start("small") == 2


def test_newcomers_of_one_instant_start_in_order() -> None:
    """Each fits alone: the shorter job starts first, though it arrives second."""
    jobs = [job("longer", gpus=3, seconds=100, at=1), job("shorter", gpus=3, seconds=50, at=1)]
    result = run(jobs, cluster(nodes=1, gpus=4), POLICIES.make("sjf"))
    assert (result.start("shorter"), result.start("longer")) == (1, 51)


def test_an_arrival_that_goes_before_a_stuck_head_is_heard_at_once() -> None:
    """Under a strict order that is not by arrival, a job that arrives may become the head, and may fit."""
    jobs = [
        job("long", gpus=2, seconds=1000),
        job("wide", gpus=4, seconds=100, at=1),
        job("short", gpus=1, seconds=10, at=2),
    ]
    result = run(jobs, cluster(nodes=1, gpus=4), POLICIES.make("sjf", discipline="strict"))
    assert result.start("short") == 2
    assert result.start("wide") == 1000
