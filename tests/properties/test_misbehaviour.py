"""Whatever a policy does wrong, the state stays as it was, and all jobs still end.

Every policy is wrapped in one that misbehaves at random: it raises before, within and after its decision,
returns rubbish, drafts twice, uses a draft that is closed, plans the impossible. After each failure the
indexes of the core must equal its state, and the state must be that from before the decision. Then the policy
is asked again; about every second time it decides correctly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import pytest
from tests.wrapped_policy import Wrapped

from dovetail.core.core import Core, Step
from dovetail.model.action import Action
from dovetail.model.errors import PolicyError
from dovetail.model.event import Event
from dovetail.model.view import Plan, Policy, View
from dovetail.policies.registry import POLICIES
from dovetail.sim.simulate import simulate
from dovetail.sim.world import World
from dovetail.testing.coincidences import Draws, coincidence
from dovetail.testing.invariants import FINISHES, WHOLE_GANGS, broken_rules, picture, waived


class Misbehaviour(Exception):
    """A policy's own mistake."""


def _raises_first(inner: Policy, view: View, draws: Draws) -> Plan:
    raise Misbehaviour


def _raises_last(inner: Policy, view: View, draws: Draws) -> Plan:
    inner.decide(view)
    raise Misbehaviour


def _returns_rubbish(inner: Policy, view: View, draws: Draws) -> Plan:
    inner.decide(view)
    return cast("Plan", draws.of((None, 0, "plan", object())))


def _drafts_twice(inner: Policy, view: View, draws: Draws) -> Plan:
    first = inner.decide(view)
    second = view.draft()
    for job in list(view.queue)[:3]:
        second.start(job)
    return first


def _uses_a_closed_draft(inner: Policy, view: View, draws: Draws) -> Plan:
    first = inner.decide(view)
    view.draft()
    for job in list(view.running.values())[:1] or list(view.queue)[:1]:
        (first.stop if job.spots else first.start)(job)
    return first


def _reviews_the_past(inner: Policy, view: View, draws: Draws) -> Plan:
    plan = inner.decide(view)
    plan.review_at = draws.of((view.now, view.now - 1, -1))
    return plan


def _refuses_a_running_job(inner: Policy, view: View, draws: Draws) -> Plan:
    plan = inner.decide(view)
    for job in list(view.running.values())[:1]:
        plan.refuse(job, "too late")
        return plan
    raise Misbehaviour


def _stops_twice(inner: Policy, view: View, draws: Draws) -> Plan:
    plan = inner.decide(view)
    for job in list(view.running.values())[:2]:
        plan.stop(job)
        plan.stop(job)
    raise Misbehaviour


def _shuffles_and_raises(inner: Policy, view: View, draws: Draws) -> Plan:
    """Make many edits of all kinds, then raise."""
    plan = inner.decide(view)
    for job in list(view.running.values())[: 1 + draws.below(3)]:
        before = job.spots
        plan.stop(job)
        if draws.below(2):
            plan.start(job, before)
    for job in list(view.queue)[: draws.below(4)]:
        plan.start(job)
    if draws.below(2) and (free := plan.room.free_on(0)):
        plan.hold("mine", ((0, free & -free, 1000, 0, 0),), view.now + 1)
    raise Misbehaviour


def _takes_what_is_not_there(inner: Policy, view: View, draws: Draws) -> Plan:
    plan = inner.decide(view)
    waiting = list(view.queue)
    rubbish: Any = draws.of(
        (
            ((0, 1 << 60, 1000, 0, 0),),
            ((99, 1, 1000, 0, 0),),
            ((-1, 1, 1000, 0, 0),),
            ((0, 0.5, 1000, 0, 0),),
            ((0, 1, 1000, 0),),
            ("spots",),
            7,
        )
    )
    if waiting:
        plan.start(waiting[draws.below(len(waiting))], rubbish)
    raise Misbehaviour


WRONGS: tuple[Callable[[Policy, View, Draws], Plan], ...] = (
    _raises_first,
    _raises_last,
    _returns_rubbish,
    _drafts_twice,
    _uses_a_closed_draft,
    _reviews_the_past,
    _refuses_a_running_job,
    _stops_twice,
    _shuffles_and_raises,
    _takes_what_is_not_there,
)


@dataclass
class Unruly(Wrapped):
    """A policy that does something wrong before about every second decision."""

    draws: Draws
    before: object = None
    wrong: bool = False  # this time
    wrongs: int = 0

    def decide(self, view: View) -> Plan:
        self.wrong = False
        if self.draws.below(2):
            return self.inner.decide(view)
        self.before = still(cast("Core", view))
        way = self.draws.of(WRONGS)
        self.wrongs += 1
        self.wrong = True
        return way(self.inner, view, self.draws)


def still(core: Core) -> object:
    """The state without the time at which the policy is asked next."""
    *facts, _, memory = picture(core)
    return (*facts, memory)


class Patient(Core):
    """A core that checks its state after a failed decision and asks the policy again."""

    waives: tuple[str, ...] = ()

    def handle(self, now: int, events: list[Event], *, failure: str = "") -> Step:
        policy = cast("Unruly", self.policy)
        told: list[Action] = []
        left = events
        while True:
            failed: PolicyError | None = None
            try:
                step = super().handle(now, left)
            except PolicyError as error:
                failed = error
            if failed is not None:
                assert still(self) == policy.before, failed
                assert broken_rules(self, self.waives) == [], failed
                told += failed.step.actions
                left = []
                continue
            assert not (policy.wrong and step.decided), "a wrong plan was enacted"
            assert broken_rules(self, self.waives) == []
            return Step(step.number, now, events, step.decided, told + step.actions)


def play(name: str, seed: int, most: int) -> Unruly:
    """Simulate a trace to its end under an unruly policy."""
    scene = coincidence(seed, most=most)
    policy = Unruly(POLICIES.make(name), Draws(seed + 1))
    core = Patient(scene.cluster, policy)
    rules = waived(policy.inner, name)
    core.waives = (WHOLE_GANGS,) if WHOLE_GANGS in rules else ()
    world = World(scene.cluster)
    for _ in simulate(core, world, scene.jobs):
        pass
    if FINISHES not in rules:
        assert not core.jobs, f"{sorted(core.jobs)} never ended, seed {seed}, {scene}"
    return policy


@pytest.mark.long
@pytest.mark.parametrize("name", POLICIES.names())
def test_ten_thousand_misbehaviours_leave_no_trace(name: str) -> None:
    """Over all 28 policies: at least 360 each."""
    wrongs, seed = 0, 1_000
    while wrongs < 360:
        wrongs += play(name, seed, most=20).wrongs
        seed += 1


@pytest.mark.parametrize("name", POLICIES.names())
def test_misbehaviour_leaves_no_trace(name: str) -> None:
    policies = [play(name, seed, most=12) for seed in range(6)]
    assert sum(policy.wrongs for policy in policies) > 20
