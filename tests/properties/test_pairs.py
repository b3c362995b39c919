"""The rules of every policy, for a policy that lets two jobs run on the same devices.

The random worlds of the suite name no models. Here every job has one of two models, with measured speeds of
pairs. Nodes are small, so that many jobs wait.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.model.cluster import Cluster
from dovetail.model.job import Job, Profile
from dovetail.policies.gavel import gavel
from dovetail.testing.invariants import watched
from dovetail.testing.strategies import Scene, clusters, incidents, traces
from dovetail.testing.suite import (
    Make,
    does_not_mind_names,
    forks_alike,
    keeps_every_rule,
    leaves_no_trace,
    may_be_told_later,
    repeats_itself,
    replays,
    searched,
    wakes_alike,
)

SPEEDS = {"light": {"light": 0.9, "heavy": 0.8}, "heavy": {"light": 0.7, "heavy": 0.0}}
TYPES = ("gpu", "V100", "A100")


def _measured(job: Job, number: int) -> Job:
    model = "light" if number % 3 else "heavy"
    profile = replace(job.traits.profile or Profile(), beside=dict.fromkeys(TYPES, SPEEDS[model]))
    return replace(job, model=model, traits=replace(job.traits, profile=profile))


@st.composite
def worlds(draw: st.DrawFn, *, most: int = 15, plain: bool = False, lossy: bool = False) -> Scene:
    drawn = draw(clusters(bounded=not plain))
    nodes = tuple(replace(node, gpus=min(node.gpus, 2)) for node in drawn.nodes[:2])
    cluster = Cluster(nodes, drawn.links)
    jobs = enumerate(draw(traces(cluster, most=most, plain=plain)))
    made = tuple(_measured(job, number) for number, job in jobs)
    return Scene(cluster, made, draw(incidents(cluster)) if lossy else ())


POLICIES: dict[str, Make] = {
    "max-min": partial(gavel, packed=True, round=60.0),
    "max-min, vertex": partial(gavel, packed=True, solver="vertex", round=60.0),
    "fifo": partial(gavel, packed=True, objective="fifo"),
}
every_objective = pytest.mark.parametrize("name", POLICIES)


def test_there_are_pairs() -> None:
    """Otherwise the tests below would test nothing."""
    pairs = 0

    @given(scene=worlds(plain=True, most=12))
    @searched(30)
    def count(scene: Scene) -> None:
        nonlocal pairs
        result = watched(POLICIES["max-min"](), scene.cluster, scene.jobs)
        pairs += sum(1 for step in result.steps for a in step.actions if any(s[2] == 500 for s in _spots(a)))

    count()
    assert pairs > 10


def _spots(action: object) -> tuple[tuple[int, ...], ...]:
    return getattr(action, "spots", ())


@every_objective
@given(scene=worlds(most=15))
@searched(15)
def test_every_rule_holds(name: str, scene: Scene) -> None:
    keeps_every_rule(POLICIES[name], scene)


@every_objective
@given(scene=worlds(plain=True, most=12, lossy=True))
@searched(15)
def test_every_rule_holds_for_plain_gangs_when_nodes_go(name: str, scene: Scene) -> None:
    keeps_every_rule(POLICIES[name], scene)


@every_objective
@given(scene=worlds(lossy=True, most=12), at=st.integers(1, 30))
@searched(6)
def test_the_past_and_the_future_are_the_same(name: str, scene: Scene, at: int) -> None:
    make = POLICIES[name]
    repeats_itself(make, scene)
    replays(make, scene)
    may_be_told_later(make, scene)
    leaves_no_trace(make, scene)
    forks_alike(make, scene, at)
    wakes_alike(make, scene, at)


@every_objective
@given(scene=worlds(most=12))
@searched(6)
def test_names_do_not_matter(name: str, scene: Scene) -> None:
    does_not_mind_names(POLICIES[name], scene)
