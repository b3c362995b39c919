"""Rules that hold for every policy in the table, on random small worlds.

The table is read when the tests are collected, so a new policy is tested from its first day. A policy that
breaks a rule by its published behaviour is listed with the reason in `dovetail.testing.invariants.WAIVED`.
The build runs this file once more on twice as many worlds.
"""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.core.core import Core, Step
from dovetail.model.action import Start
from dovetail.policies.registry import POLICIES
from dovetail.testing.invariants import watched
from dovetail.testing.strategies import Scene, scenes
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

every_policy = pytest.mark.parametrize("name", POLICIES.names())


def maker(name: str) -> Make:
    return partial(POLICIES.make, name)


@every_policy
@given(scene=scenes())
@searched(12)
def test_every_rule_holds(name: str, scene: Scene) -> None:
    keeps_every_rule(maker(name), scene, name)


@every_policy
@given(scene=scenes(plain=True, most=12))
@searched(8)
def test_every_rule_holds_for_plain_gangs(name: str, scene: Scene) -> None:
    keeps_every_rule(maker(name), scene, name)


@every_policy
@given(scene=scenes(lossy=True, most=15))
@searched(8)
def test_what_is_deferred_changes_nothing(name: str, scene: Scene) -> None:
    may_be_told_later(maker(name), scene)


@every_policy
@given(scene=scenes(lossy=True, most=15))
@searched(8)
def test_every_rule_holds_when_nodes_go(name: str, scene: Scene) -> None:
    keeps_every_rule(maker(name), scene, name)


@every_policy
@given(scene=scenes(lossy=True, most=15))
@searched(3)
def test_same_inputs_same_journal(name: str, scene: Scene) -> None:
    repeats_itself(maker(name), scene)
    replays(maker(name), scene)


@every_policy
@given(scene=scenes(most=15))
@searched(3)
def test_names_do_not_matter(name: str, scene: Scene) -> None:
    does_not_mind_names(maker(name), scene)


@every_policy
@given(scene=scenes(lossy=True, most=15))
@searched(5)
def test_an_abandoned_draft_leaves_no_trace(name: str, scene: Scene) -> None:
    leaves_no_trace(maker(name), scene)


@every_policy
@given(scene=scenes(lossy=True, most=15), at=st.integers(1, 30))
@searched(5)
def test_a_fork_has_the_same_future(name: str, scene: Scene, at: int) -> None:
    forks_alike(maker(name), scene, at)


@every_policy
@given(scene=scenes(lossy=True, most=15), at=st.integers(1, 30))
@searched(5)
def test_a_snapshot_has_the_same_future(name: str, scene: Scene, at: int) -> None:
    wakes_alike(maker(name), scene, at)


@given(scene=scenes(plain=True, exact=True))
@searched(60)
def test_easy_never_delays_its_head(scene: Scene) -> None:
    """With true estimates the first in the queue starts no later than it was first told."""
    promised: dict[str, int] = {}

    def keep(core: Core, step: Step) -> None:
        for action in step.actions:
            if isinstance(action, Start) and action.job in promised:
                assert step.now <= promised[action.job], f"{action.job} was promised {promised[action.job]}"
        for job, reservation in core.calendar.items():
            promised.setdefault(job, reservation.start)

    watched(POLICIES.make("backfill"), scene.cluster, scene.jobs, on_step=keep)
