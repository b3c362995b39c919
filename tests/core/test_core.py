"""The core alone, with events as a live engine may send them: late, duplicated or crossing an action."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from dovetail.core.core import Core, Step
from dovetail.core.snapshot import restored, snapshot
from dovetail.mechanisms.order.keys import arrival
from dovetail.model.action import Start, Stop
from dovetail.model.cluster import Cluster, GpuType, Node, parse_cluster
from dovetail.model.errors import DovetailError, NeverFits, PlanError, PolicyError
from dovetail.model.event import (
    CANCELLED,
    DRAINED,
    FAILED,
    FINISHED,
    NODE_LOST,
    PROGRESSED,
    STOPPED,
    SUBMITTED,
    Event,
)
from dovetail.model.grant import Spots, Terms
from dovetail.model.job import Checkpoint, Job, Traits
from dovetail.model.units import SECOND
from dovetail.model.view import JobView, Order, Plan, Reservation, View
from dovetail.policies.registry import POLICIES
from dovetail.testing.build import cluster, job
from dovetail.testing.invariants import broken_rules, picture

ON_0: Spots = ((0, 0b1, 1000, 0, 0),)
ON_1: Spots = ((1, 0b1, 1000, 0, 0),)
TWO_NODES = cluster(nodes=2, gpus=1)


@dataclass(frozen=True)
class Scripted:
    """A policy that is one function."""

    script: Callable[[View], Plan]
    order: Order = arrival
    group: None = None
    quantum: int | None = None

    def decide(self, view: View) -> Plan:
        return self.script(view)


def fill(view: View) -> Plan:
    plan = view.draft()
    for waits in sorted(view.queue, key=lambda j: j.seq):
        plan.start(waits)
    return plan


def told(core: Core, at: float, *events: tuple[int, str, int, object]) -> Step:
    """Give the core events of one time; its indexes must stay correct, whatever the events."""
    now = round(at * SECOND)
    step = core.handle(now, [(now, kind, subject, epoch, fact) for kind, subject, epoch, fact in events])
    assert broken_rules(core) == []
    return step


def submitted(made: Job) -> tuple[int, str, int, object]:
    return (SUBMITTED, made.id, 0, made)


def moves_at_10(view: View) -> Plan:
    plan = fill(view)
    mine = view.running.get("a")
    if view.now == 10 * SECOND and mine is not None and mine.epoch == 1:
        plan.shift(mine, ON_1)
    elif view.now < 10 * SECOND:
        plan.review_at = 10 * SECOND
    return plan


def moves_when_slow(view: View) -> Plan:
    plan = fill(view)
    mine = view.running.get("a")
    if mine is not None and mine.rate < 1:
        plan.shift(mine, ON_1)
    return plan


def test_a_job_that_is_moved_at_the_instant_of_its_start_starts_anew() -> None:
    """Its measured rate was that of the old placement, and a restart takes time."""
    core = Core(TWO_NODES, Scripted(moves_when_slow))
    told(core, 0, submitted(job("a", seconds=100, traits=Traits(checkpoint=Checkpoint(restore=7 * SECOND)))))
    assert isinstance(told(core, 0, (PROGRESSED, "a", 1, (0, 0.5))).actions[0], Stop)
    assert told(core, 0, (STOPPED, "a", 1, 0)).actions == [Start("a", 2, ON_1, core.jobs["a"].terms)]
    assert core.jobs["a"].done_at(17 * SECOND) == 10 * SECOND


def test_an_event_of_an_earlier_start_is_dropped() -> None:
    core = Core(TWO_NODES, Scripted(moves_at_10))
    told(core, 0, submitted(job("a", seconds=100)))
    assert isinstance(told(core, 10).actions[0], Stop)
    assert told(core, 12, (STOPPED, "a", 1, 10 * SECOND)).actions == [
        Start("a", 2, ON_1, core.jobs["a"].terms)
    ]
    told(core, 13, (FINISHED, "a", 1, None), (FAILED, "a", 1, ("late", 0)))
    assert core.jobs["a"].spots == ON_1
    told(core, 14, (FINISHED, "nobody", 1, None), (STOPPED, "nobody", 1, 0), (CANCELLED, "nobody", 0, None))


def test_a_job_may_end_while_it_is_told_to_move() -> None:
    """The stop and the finish cross: the job is over, and does not start on the devices it was to move to."""
    core = Core(TWO_NODES, Scripted(moves_at_10))
    told(core, 0, submitted(job("a", seconds=10)))
    told(core, 10)
    step = told(core, 11, (FINISHED, "a", 1, None))
    assert step.actions == []
    assert core.jobs == {}
    assert core.room.free_gpus == 2
    assert told(core, 12, (STOPPED, "a", 1, 0)).actions == []


def test_a_job_may_fail_while_it_is_told_to_move() -> None:
    core = Core(TWO_NODES, Scripted(moves_at_10))
    told(core, 0, submitted(job("a", seconds=10, traits=Traits(retries=1))))
    told(core, 10)
    step = told(core, 11, (FAILED, "a", 1, ("exit 1", 3 * SECOND)))
    assert [(a.job, a.epoch) for a in step.actions if isinstance(a, Start)] == [("a", 2)]
    assert core.jobs["a"].done == 3 * SECOND


@pytest.mark.parametrize("kind", [STOPPED, FAILED])
def test_a_job_that_waits_again_after_a_failure_is_promoted_as_after_a_stop(kind: int) -> None:
    core = Core(parse_cluster("1x4"), POLICIES.make("tiresias-l", promote=1.0))
    told(core, 0, submitted(job("a", gpus=4, hours=100, traits=Traits(retries=3))))
    while core.jobs["a"].stage == 0:
        assert core.alarm is not None
        core.handle(core.alarm, [])
    told(core, core.now / SECOND + 60, (DRAINED, core.cluster.nodes[0].name, 0, "no restart here"))
    fact: object = 0 if kind == STOPPED else ("failed", 0)
    told(core, core.now / SECOND + 60, (kind, "a", 1, fact))
    waits = core.jobs["a"]
    assert waits.filed is not None
    assert waits.timer is not None
    assert core.alarm is not None


def test_a_job_may_be_submitted_and_cancelled_in_one_step() -> None:
    """At the end of a round, arrivals that fit start by a standing order, after the other events."""
    core = Core(parse_cluster("1x4"), POLICIES.make("tiresias-l"))
    told(core, 0, submitted(job("a", gpus=1, hours=1)))
    core.handle(60 * SECOND, [])
    kept, gone = job("b", gpus=1, hours=1, at=120), job("c", gpus=1, hours=1, at=120)
    step = told(core, 120, submitted(kept), submitted(gone), (CANCELLED, "c", 0, None))
    assert "c" not in core.jobs
    assert [action.job for action in step.actions if isinstance(action, Start)] == ["b"]


def test_a_job_that_arrives_and_is_cancelled_before_a_decision_is_not_new_to_the_policy() -> None:
    """Whether the policy is asked depends on the number of arrivals: it must be the same after a restart."""
    core = Core(parse_cluster("1x4"), POLICIES.make("fifo"))
    told(core, 0, submitted(job("a", gpus=4, hours=1)))
    told(core, 1, submitted(job("b", gpus=4, hours=1)))
    told(core, 2, submitted(job("c", gpus=4, hours=1)))
    told(core, 3, (CANCELLED, "c", 0, None))
    assert "c" not in [arrived.id for arrived in core.arrived]
    taken = snapshot(core)
    assert snapshot(restored(taken, core.cluster, core.policy, core.seed)) == taken


def test_a_job_that_moves_may_be_cancelled() -> None:
    core = Core(TWO_NODES, Scripted(moves_at_10))
    told(core, 0, submitted(job("a", seconds=100)))
    told(core, 10)
    assert told(core, 11, (CANCELLED, "a", 0, None)).actions == []  # it was told to stop already
    assert told(core, 12, (STOPPED, "a", 1, 10)).actions == []
    assert core.room.free_gpus == 2


def test_lost_nodes_name_their_jobs_in_order_of_arrival() -> None:
    """Dry runs in between must not change the order of the actions: it is part of the journal."""

    def swaps(view: View) -> Plan:
        plan = fill(view)
        first = view.running.get("a")
        if first is not None and view.changed:
            plan.stop(first)
            plan.start(first, ON_0)
        return plan

    core = Core(cluster(nodes=1, gpus=2), Scripted(swaps))
    told(core, 0, submitted(job("a", seconds=100)), submitted(job("b", seconds=100)))
    core.notes()
    assert list(core.running) == ["a", "b"]
    stops = told(core, 5, (NODE_LOST, "n0", 0, "failed")).actions
    assert [a.job for a in stops if isinstance(a, Stop)] == ["a", "b"]


def test_a_job_that_was_granted_devices_and_never_started_has_waited_all_the_time() -> None:
    def changes_its_mind(view: View) -> Plan:
        plan = view.draft()
        for waits in sorted(view.queue, key=lambda j: j.seq):
            if plan.start(waits) and waits.id == "b":
                plan.stop(waits)
        return plan

    core = Core(TWO_NODES, Scripted(changes_its_mind))
    told(core, 0, submitted(job("b", seconds=100)))
    told(core, 5, submitted(job("a", seconds=100)))
    assert core.jobs["b"].waiting_since == 0
    assert core.jobs["b"].epoch == 0


def test_a_job_that_a_plan_stops_and_puts_back_is_unchanged() -> None:
    """A restart would cost time to restore and move its expected end; neither may happen."""
    order = Order(arrival.key, lambda j, now: (j.ends_at(now),))

    def nervous(view: View) -> Plan:
        plan = fill(view)
        for runs in list(view.running.values()):
            if runs.spots is not None and runs.started_at < view.now:
                before, terms = runs.spots, runs.terms
                plan.stop(runs)
                plan.start(runs, before, terms)
        return plan

    core = Core(cluster(nodes=1, gpus=1), Scripted(nervous, order))
    costly = Traits(checkpoint=Checkpoint(restore=30 * SECOND))
    told(core, 0, submitted(job("a", seconds=100, traits=costly)))
    before = core.departures.picture()
    assert told(core, 5, submitted(job("b", seconds=1))).actions == []
    assert core.departures.picture() == before
    assert core.jobs["a"].done_at(50 * SECOND) == 50 * SECOND


@pytest.mark.parametrize(
    "wrong",
    [
        lambda view, plan, a: plan.start(a) and plan.start(a),
        lambda view, plan, a: plan.stop(a),
        lambda view, plan, a: plan.shift(a, ON_0),
        lambda view, plan, a: plan.start(a, ((0, 0b10, 1000, 0, 0),)),  # no such device
        lambda view, plan, a: plan.start(a, (*ON_0, *ON_0)),
        lambda view, plan, a: plan.start(a, ((0, 0b1, 600, 0, 0), (0, 0b1, 600, 0, 0))),
        lambda view, plan, a: plan.start(a, (*ON_0, *ON_1)),  # two devices for a rigid job of one
        lambda view, plan, a: plan.start(a, ((2, 0b1, 1000, 0, 0),)),  # a type that it does not accept
        lambda view, plan, a: plan.reserve(a, Reservation(view.now - 1, None)),
        lambda view, plan, a: plan.hold("x", ON_0, view.now),
        lambda view, plan, a: plan.release("x"),
        lambda view, plan, a: setattr(plan, "review_at", view.now),
        lambda view, plan, a: plan.start(a, ON_0) and plan.power(0, False),
    ],
)
def test_a_plan_that_cannot_be_is_refused(wrong: Callable[[View, Plan, JobView], object]) -> None:
    def script(view: View) -> Plan:
        plan = view.draft()
        for waits in list(view.queue):
            wrong(view, plan, waits)
        return plan

    nodes = (Node("n0", 1), Node("n1", 1), Node("n2", 1, GpuType("other")))
    core = Core(Cluster(nodes), Scripted(script))
    with pytest.raises(PolicyError) as raised:
        core.handle(SECOND, [(SECOND, SUBMITTED, "a", 0, job("a", seconds=10, types=["gpu"]))])
    assert isinstance(raised.value.__cause__, PlanError)
    assert broken_rules(core) == []
    assert list(core.queue) == [core.jobs["a"]]


def test_a_plan_that_raises_half_way_leaves_no_trace() -> None:
    def breaks(view: View) -> Plan:
        plan = fill(view)
        raise PlanError("a bug in this policy")
        return plan

    core = Core(TWO_NODES, Scripted(breaks))
    with pytest.raises(PolicyError, match="a bug in this policy"):
        core.handle(0, [(0, SUBMITTED, "a", 0, job("a", seconds=10))])
    assert broken_rules(core) == []
    assert core.running == {}
    with pytest.raises(PolicyError, match="a bug in this policy"):
        core.notes()
    assert core.running == {}


def test_invalid_calls_are_refused() -> None:
    core = Core(TWO_NODES, Scripted(fill))
    told(core, 5)
    with pytest.raises(ValueError, match="time went back"):
        core.handle(0, [])
    with pytest.raises(NeverFits, match="job big asks for 3 GPUs"):
        core.handle(6 * SECOND, [(6 * SECOND, SUBMITTED, "big", 0, job("big", gpus=3, seconds=1))])
    assert issubclass(PlanError, DovetailError)


def test_a_fork_goes_its_own_way() -> None:
    core = Core(TWO_NODES, Scripted(fill))
    told(core, 0, *(submitted(job(name, seconds=100)) for name in "abc"))
    before, twin = picture(core), core.fork()
    assert picture(twin) == before
    done: Event = (SECOND, FINISHED, "a", 1, None)
    assert [a.job for a in twin.handle(SECOND, [done]).actions if isinstance(a, Start)] == ["c"]
    assert picture(core) == before


def test_stopped_and_started_in_place_on_other_terms_is_a_resize() -> None:
    """The engine gets a `Resize`, so there is no restore, whatever the draft did in between."""

    def slows_down(view: View) -> Plan:
        plan = fill(view)
        mine = view.running.get("a")
        if mine is not None and mine.terms.clock == 1.0 and view.now == 10 * SECOND:
            before = mine.spots
            plan.stop(mine)
            plan.start(mine, before, Terms(clock=0.5))
        return plan

    core = Core(TWO_NODES, Scripted(slows_down))
    costly = Traits(checkpoint=Checkpoint(restore=30 * SECOND))
    told(core, 0, submitted(job("a", seconds=100, traits=costly)))
    step = told(core, 10, submitted(job("b", seconds=100)))
    assert [type(action).__name__ for action in step.actions] == ["Resize", "Start"]
    mine = core.jobs["a"]
    assert (mine.started_at, mine.live_at, mine.waiting_since) == (0, 10 * SECOND, 0)


def test_a_job_that_awaits_devices_and_gets_others_starts_from_then() -> None:
    """It awaited a stopping job for ten seconds; that time is no progress."""

    def thinks_again(view: View) -> Plan:
        plan = view.draft()
        heir = next((j for j in (*view.queue, *view.running.values()) if j.id == "heir"), None)
        if view.now == 0:
            return fill(view)
        if view.now == 10 * SECOND and heir is not None:
            plan.stop(view.running["victim"])
            plan.start(heir, ON_0)
            plan.review_at = 20 * SECOND
        elif view.now == 20 * SECOND and heir is not None:
            plan.shift(heir, ON_1)
        return plan

    core = Core(TWO_NODES, Scripted(thinks_again))
    told(core, 0, submitted(job("victim", seconds=100)))
    told(core, 10, submitted(job("heir", seconds=100)))
    assert [type(action).__name__ for action in told(core, 20).actions] == ["Start"]
    heir = core.jobs["heir"]
    assert (heir.started_at, heir.done_at(25 * SECOND)) == (20 * SECOND, 5 * SECOND)
    assert heir.executed_at(25 * SECOND) == heir.service_at(25 * SECOND) == 5 * SECOND


def test_a_job_past_its_estimate_keeps_its_place_through_a_dry_run_and_a_fork() -> None:
    """Its expected end was computed at its start; a dry run must not compute it again."""

    def shuffles(view: View) -> Plan:
        plan = fill(view)
        for runs in list(view.running.values()):
            if runs.started_at < view.now:
                plan.stop(runs)
        return plan

    order = Order(arrival.key, lambda j, now: (j.ends_at(now),))
    core = Core(TWO_NODES, Scripted(shuffles, order))
    told(core, 0, submitted(job("late", seconds=100, estimate=10)))
    core.now = 50 * SECOND
    before = picture(core)
    core.notes()
    assert picture(core) == before
    assert picture(core.fork()) == before


def test_a_resize_that_pauses_moves_the_expected_end() -> None:
    def grows(view: View) -> Plan:
        plan = fill(view)
        mine = view.running.get("a")
        if mine is not None and view.now == 10 * SECOND:
            plan.shift(mine, ((0, 0b11, 1000, 0, 0),))
        return plan

    order = Order(arrival.key, lambda j, now: (j.ends_at(now),))
    core = Core(cluster(nodes=1, gpus=2), Scripted(grows, order))
    elastic = Traits(most=2, checkpoint=Checkpoint(resize=5 * SECOND))
    told(core, 0, submitted(job("a", seconds=100, traits=elastic)))
    told(core, 10, submitted(job("b", seconds=1, gpus=2)))
    assert core.departures.picture()[0][0][0] == (105 * SECOND,)
