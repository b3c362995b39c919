"""The core passes over an event without asking the policy only if the policy would have changed nothing.

One trace is simulated in three ways, which must give the same starts, finishes and stops: with a step for
every event, as a journal needs it; with a step only where the core cannot prove that asking would change
nothing, as in a run without a journal; and with a policy that is asked at every event.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import pytest
from tests.wrapped_policy import Wrapped

from dovetail.core.attention import NEVER
from dovetail.core.core import Core, Step
from dovetail.core.draft import Draft
from dovetail.model.cluster import parse_cluster
from dovetail.model.view import Plan, Policy, View
from dovetail.policies.registry import POLICIES
from dovetail.sim.run import run
from dovetail.testing.build import job
from dovetail.testing.coincidences import Coincidence, coincidence
from dovetail.traces import generate

Fates = list[tuple[int, int, int]]
SLOW = {"allox", "dorm", "gandiva-fair", "gavel", "pop", "shockwave", "themis"}  # a solver at each round


@dataclass
class Restless(Wrapped):
    """A policy that never rests, and so is asked at every event."""

    def decide(self, view: View) -> Plan:
        plan = cast("Draft", self.inner.decide(view))
        plan.rests, plan.starts_arrivals = False, NEVER
        return plan


def fates(scene: Coincidence, policy: Policy, *, every_step: bool) -> Fates:
    """First start, finish and number of stops of each job."""
    ends = run(scene.jobs, scene.cluster, policy, on_step=_look if every_step else None).jobs
    return list(zip(ends.start, ends.finish, ends.stops, strict=True))


def _look(core: Core, step: Step) -> None:
    """A run that is watched has a step for every event."""


def compare(name: str, seed: int) -> None:
    scene = coincidence(seed, most=12 if name in SLOW else 40)
    asked = fates(scene, Restless(POLICIES.make(name)), every_step=True)
    told = fates(scene, POLICIES.make(name), every_step=True)
    assert told == asked, f"resting changes a decision, seed {seed}, {scene}"
    heard = fates(scene, POLICIES.make(name), every_step=False)
    assert heard == told, f"an event passed that the policy had to hear of, seed {seed}, {scene}"


@pytest.mark.parametrize("name", POLICIES.names())
def test_hearing_less_changes_nothing(name: str) -> None:
    for seed in range(4 if name in SLOW else 25):
        compare(name, seed)


@pytest.mark.long
@pytest.mark.parametrize("name", POLICIES.names())
def test_hearing_less_changes_nothing_on_ten_thousand_traces(name: str) -> None:
    """Over all policies: 470 traces each, and 40 for those that call a solver at each round."""
    for seed in range(1_000, 1_040 if name in SLOW else 1_470):
        compare(name, seed)


def test_a_finish_and_an_arrival_at_one_instant() -> None:
    """At 16 s the widest job ends and the last one arrives: the job behind the widest must start then."""
    rows = [
        (1, 1, 5),
        (2, 2, 8),
        (3, 2, 3),
        (4, 1, 8),
        (6, 1, 2),
        (6, 4, 1),
        (7, 8, 8),
        (9, 1, 2),
        (9, 16, 1),
        (14, 2, 3),
        (16, 1, 1),
    ]
    jobs = [job(f"j{i}", at=at, gpus=gpus, seconds=s) for i, (at, gpus, s) in enumerate(rows)]
    result = run(jobs, parse_cluster("2x8"), POLICIES.make("fifo"))
    assert result.finished == len(jobs)
    assert result.start("j9") == result.start("j10") == 16


def test_a_finish_with_an_empty_queue_is_still_a_change_for_an_arrival_of_its_instant() -> None:
    """A preemptive policy lets a preempted job preempt others only if something else changed, too."""
    compare("priority", 1_074)


def test_a_long_trace_ends_alike_both_ways() -> None:
    jobs = generate("philly", 20_000, 400, 0.95, 1).jobs[:5_000]
    scene = Coincidence(parse_cluster("50x8"), tuple(jobs))
    for name in ("fifo", "sjf", "srtf", "backfill"):
        both = [fates(scene, POLICIES.make(name), every_step=way) for way in (True, False)]
        assert both[0] == both[1], name
