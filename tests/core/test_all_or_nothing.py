"""A plan is enacted whole or not at all, and what events alone cause is never lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from dovetail.core.active import LEGAL, ActiveJob, IllegalPhase, Phase
from dovetail.core.core import Core
from dovetail.core.journal import parse_step, step_line
from dovetail.core.memory import from_plain, to_plain
from dovetail.core.snapshot import snapshot
from dovetail.mechanisms.order.keys import arrival
from dovetail.model.action import Start, Stop
from dovetail.model.errors import InputError, PlanError, PolicyError
from dovetail.model.event import FINISHED, STOPPED, SUBMITTED, Event
from dovetail.model.grant import FULL, Spots
from dovetail.model.job import Job
from dovetail.model.units import SECOND
from dovetail.model.view import JobView, Order, Plan, View
from dovetail.testing.build import cluster, job
from dovetail.testing.invariants import broken_rules, picture

ON_0: Spots = ((0, 0b1, 1000, 0, 0),)
ONE_NODE = cluster(nodes=1, gpus=2)


@dataclass
class Scripted:
    """A policy that is one function, which a test may replace during a run."""

    script: Callable[[View], Plan]
    order: Order = arrival
    group: None = None
    quantum: int | None = None
    asked: int = field(default=0)

    def decide(self, view: View) -> Plan:
        self.asked += 1
        return self.script(view)


def fill(view: View) -> Plan:
    plan = view.draft()
    for waits in sorted(view.queue, key=lambda j: j.seq):
        plan.start(waits)
    return plan


def arrives(made: Job, at: int = 0) -> Event:
    return (at * SECOND, SUBMITTED, made.id, 0, made)


def test_a_policy_that_raises_before_it_drafts_does_not_undo_the_decision_before() -> None:
    def raises(view: View) -> Plan:
        raise ZeroDivisionError("not today")

    policy = Scripted(fill)
    core = Core(ONE_NODE, policy)
    core.handle(0, [arrives(job("a", seconds=100))])
    policy.script = raises
    with pytest.raises(PolicyError, match="step 2, t=5 s: ZeroDivisionError: not today") as raised:
        core.handle(5 * SECOND, [arrives(job("b", seconds=100), 5)])
    assert isinstance(raised.value.__cause__, ZeroDivisionError)
    assert list(core.running) == ["a"]
    assert core.room.free_gpus == 1
    assert broken_rules(core) == []
    policy.script = fill
    assert [a.job for a in core.handle(5 * SECOND, []).actions if isinstance(a, Start)] == ["b"]


@pytest.mark.parametrize("review_at", [5 * SECOND, 4 * SECOND, 1e9, "soon", True])
def test_a_review_that_cannot_be_voids_the_whole_plan(review_at: object) -> None:
    def reviews(view: View) -> Plan:
        plan = fill(view)
        plan.review_at = review_at  # type: ignore[assignment]
        plan.memory = "new"
        return plan

    core = Core(ONE_NODE, Scripted(reviews))
    with pytest.raises(PolicyError):
        core.handle(5 * SECOND, [arrives(job("a", seconds=100), 5)])
    assert core.running == {}
    assert core.jobs["a"].epoch == 0
    assert core.memory is None
    assert core.decisions == 0
    assert broken_rules(core) == []


def test_of_two_drafts_the_first_is_void_when_the_second_is_asked_for() -> None:
    def returns_the_first(view: View) -> Plan:
        first = view.draft()
        second = view.draft()
        for waits in list(view.queue):
            second.start(waits)
        return first

    def returns_the_second(view: View) -> Plan:
        for waits in list(view.queue)[:1]:
            view.draft().start(waits)
        return fill(view)

    policy = Scripted(returns_the_first)
    core = Core(ONE_NODE, policy)
    with pytest.raises(PolicyError, match="a draft that is not its last"):
        core.handle(0, [arrives(job("a", seconds=100))])
    assert core.running == {}
    assert broken_rules(core) == []
    policy.script = returns_the_second
    assert len(core.handle(0, []).actions) == 1
    assert broken_rules(core) == []


def test_what_a_handover_caused_is_told_though_the_policy_then_raises() -> None:
    """`b` was granted the devices of `a`. When `a` has stopped, `b` starts, even if the policy raises."""

    def preempts(view: View) -> Plan:
        plan = view.draft()
        if view.now == 10 * SECOND:
            plan.stop(view.running["a"])
            second = next(waits for waits in view.queue if waits.id == "b")
            plan.start(second, ((0, 0b11, 1000, 0, 0),))
        elif view.now < 10 * SECOND:
            plan = fill(view)
        return plan

    def raises(view: View) -> Plan:
        raise RuntimeError("out of ideas")

    policy = Scripted(preempts)
    core = Core(ONE_NODE, policy)
    core.handle(0, [arrives(job("a", gpus=2, seconds=100))])
    step = core.handle(10 * SECOND, [arrives(job("b", gpus=2, seconds=100), 10)])
    assert [type(action) for action in step.actions] == [Stop]
    policy.script = raises
    more = arrives(job("c", seconds=1), 12)
    with pytest.raises(PolicyError) as raised:
        core.handle(12 * SECOND, [(12 * SECOND, STOPPED, "a", 1, 0), more])
    told = raised.value.step
    assert told.actions == [Start("b", 1, ((0, 0b11, 1000, 0, 0),), FULL)]
    assert not told.decided
    assert core.jobs["b"].phase is Phase.RUNNING
    assert broken_rules(core) == []
    # The step can be recorded and replayed without the policy.
    assert parse_step(step_line(told)) == told
    assert told.failure == "RuntimeError: out of ideas"


def test_a_step_at_which_the_policy_failed_is_replayed_without_it() -> None:
    def raises(view: View) -> Plan:
        raise RuntimeError("out of ideas")

    failed = Core(ONE_NODE, Scripted(raises))
    with pytest.raises(PolicyError) as raised:
        failed.handle(0, [arrives(job("a", seconds=100))])
    policy = Scripted(fill)
    again = Core(ONE_NODE, policy)
    step = raised.value.step
    assert again.handle(step.now, step.events, failure=step.failure) == step
    assert policy.asked == 0
    assert picture(again) == picture(failed)


def test_an_interrupt_loses_nothing_either() -> None:
    def interrupted(view: View) -> Plan:
        fill(view)
        raise KeyboardInterrupt

    policy = Scripted(interrupted)
    core = Core(ONE_NODE, policy)
    with pytest.raises(KeyboardInterrupt):
        core.handle(0, [arrives(job("a", seconds=100))])
    assert core.running == {}
    assert broken_rules(core) == []
    policy.script = fill
    assert len(core.handle(0, []).actions) == 1


@pytest.mark.parametrize(
    "wrong",
    [
        lambda view, plan, job: plan.refuse(job, "no") or plan.start(job),  # refused, and yet started
        lambda view, plan, job: plan.refuse(job, "no") or plan.refuse(job, "no"),
        lambda view, plan, job: plan.demote(job, "low", "?"),
        lambda view, plan, job: plan.accept(job, 1.5),
        lambda view, plan, job: plan.start(job, ((0, 1, 1000, 0, 0), ("n", 1, 1000, 0, 0))),
        lambda view, plan, job: plan.start(job, ((-1, 1, 1000, 0, 0),)),
        lambda view, plan, job: plan.start(job, ((0, 1, 1000, -1, 0),)),
        lambda view, plan, job: plan.start(job, ((0, 1, 1000, "x", 0),)),
        lambda view, plan, job: plan.start(job, ((0, 1, 0, 0, 0),)),  # devices, and no share of them
        lambda view, plan, job: plan.start(job, list(ON_0)),
        lambda view, plan, job: plan.start(job, (list(ON_0[0]),)),
        lambda view, plan, job: plan.start(job, ()),
        lambda view, plan, job: plan.start(job) and plan.shift(job, ()),
        lambda view, plan, job: plan.start(job, ON_0) and plan.rent(0, keep=False),
        lambda view, plan, job: plan.start(job, ON_0, "terms"),
        lambda view, plan, job: plan.start(None),
        lambda view, plan, job: plan.hold("x", [(0, 1, 1000, 0, 0), "?"], view.now + 1),
        lambda view, plan, job: plan.hold("x", ON_0, 1e12),
        lambda view, plan, job: plan.reserve(job, "tomorrow"),
        lambda view, plan, job: plan.power(7, False),
        lambda view, plan, job: (view.draft(), plan.start(job)),  # the first draft is closed by then
    ],
)
def test_rubbish_in_a_plan_is_refused_and_leaves_no_trace(
    wrong: Callable[[View, Plan, JobView], object],
) -> None:
    before: list[object] = []

    def script(view: View) -> Plan:
        before.append(picture(view))  # type: ignore[arg-type]
        plan = view.draft()
        for waits in list(view.queue):
            wrong(view, plan, waits)
        return plan

    core = Core(ONE_NODE, Scripted(script))
    with pytest.raises(PolicyError):
        core.handle(SECOND, [arrives(job("a", seconds=10), 1)])
    assert picture(core) == before[0]
    assert broken_rules(core) == []


@pytest.mark.parametrize("plan", [None, 7, "plan", object()])
def test_a_plan_must_be_a_draft_of_this_decision(plan: object) -> None:
    core = Core(ONE_NODE, Scripted(lambda view: plan))  # type: ignore[arg-type, return-value]
    with pytest.raises(PolicyError, match=f"the policy returned {type(plan).__name__}"):
        core.handle(0, [arrives(job("a", seconds=10))])
    assert broken_rules(core) == []


def test_a_draft_kept_beyond_its_decision_is_closed() -> None:
    kept: list[Plan] = []

    def keeps(view: View) -> Plan:
        kept.append(fill(view))
        return kept[-1]

    core = Core(ONE_NODE, Scripted(keeps))
    core.handle(0, [arrives(job("a", seconds=100))])
    with pytest.raises(PlanError, match="committed or abandoned"):
        kept[0].stop(core.jobs["a"])
    assert list(core.running) == ["a"]


@pytest.mark.parametrize(
    "leave", [lambda plan: plan.power(0, on=False), lambda plan: plan.rent(0, keep=False)]
)
def test_a_node_goes_only_when_its_jobs_have_stopped(leave: Callable[[Plan], None]) -> None:
    def stops(view: View) -> Plan:
        plan = view.draft()
        for runs in list(view.running.values()):
            plan.stop(runs)
        leave(plan)
        return plan

    policy = Scripted(fill)
    core = Core(ONE_NODE, policy)
    core.handle(0, [arrives(job("a", seconds=100))])
    policy.script = stops
    with pytest.raises(PolicyError, match="it is in use"):
        core.handle(SECOND, [arrives(job("b", seconds=100), 1)])
    assert list(core.running) == ["a"]
    assert broken_rules(core) == []


def test_a_question_changes_nothing_that_a_snapshot_would_tell() -> None:
    """`notes` lets the policy decide and rolls that back: a waiting job looks as before."""
    policy = Scripted(lambda view: view.draft())
    core = Core(ONE_NODE, policy)
    core.handle(0, [arrives(job("a", seconds=100))])
    before = snapshot(core)
    policy.script = fill
    core.now = 9 * SECOND
    core.notes()
    assert {**snapshot(core), "now": before["now"]} == before


def test_an_order_that_changes_in_the_past_voids_the_plan() -> None:
    order = Order(arrival.key, until=lambda j, now: now if j.spots else None)
    core = Core(ONE_NODE, Scripted(fill, order))
    with pytest.raises(PolicyError, match="not after now"):
        core.handle(0, [arrives(job("a", seconds=100))])
    assert core.running == {}
    assert broken_rules(core) == []


def test_a_phase_that_cannot_follow_says_so_with_the_last_events() -> None:
    core = Core(ONE_NODE, Scripted(fill))
    core.handle(0, [arrives(job("a", seconds=100))])
    running = core.jobs["a"]
    core.handle(100 * SECOND, [(100 * SECOND, FINISHED, "a", 1, None)])
    with pytest.raises(IllegalPhase, match="job a cannot go from ENDED to RUNNING"):
        running.begin(0, ON_0, FULL, 1000)
    core.jobs["a"] = running  # as a bug might leave it
    running.epoch, running.spots = 1, None
    with pytest.raises(IllegalPhase, match=r"ENDED.*SUBMITTED of start 0 at 0; FINISHED of start 1"):
        core.handle(101 * SECOND, [(101 * SECOND, FINISHED, "a", 1, None)])


def test_every_phase_has_its_transitions() -> None:
    made = ActiveJob(job("a", seconds=1), 0, 1)
    for phase in Phase:
        for then in Phase:
            made.phase = phase
            if then in LEGAL[phase]:
                made.enter(then)
                assert made.phase is then
            else:
                with pytest.raises(IllegalPhase):
                    made.enter(then)


@dataclass(frozen=True)
class Deep:
    """Something a policy may remember."""

    by: dict[tuple[str, int], float]
    last: Phase = Phase.WAITING
    inner: tuple[object, ...] = ()


def test_a_memory_comes_back_as_it_was() -> None:
    memory = Deep({("a", 1): 0.1}, Phase.RUNNING, (frozenset({"x", "y"}), [1, None, True], {2: (3,)}))
    assert from_plain(to_plain(memory)) == memory
    with pytest.raises(PlanError, match="keeps a function in its memory"):
        to_plain({"a": lambda: None})
    with pytest.raises(InputError, match="os:system"):
        from_plain({"type": "os:system", "items": ["true"]})
    with pytest.raises(InputError, match="Popen"):
        from_plain({"type": "subprocess:Popen", "items": [["true"]]})
