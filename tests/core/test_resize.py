"""`Plan.resize`: a running job with more or fewer tasks, near what it holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from dovetail.core.core import Core
from dovetail.core.resize import resized
from dovetail.core.room import Room
from dovetail.mechanisms.order.keys import arrival
from dovetail.model.action import Resize, Start
from dovetail.model.cluster import Cluster, GpuType, Node, Tenant, parse_cluster
from dovetail.model.errors import PlanError
from dovetail.model.event import (
    CANCELLED,
    DRAINED,
    NODE_JOINED,
    NODE_LOST,
    RESIZED,
    STOPPED,
    SUBMITTED,
    Event,
)
from dovetail.model.grant import Spots, Terms
from dovetail.model.job import Job, Role, Shape, Traits, gang
from dovetail.model.units import SECOND
from dovetail.model.view import JobView, Order, Plan, View
from dovetail.testing.build import cluster, job
from dovetail.testing.invariants import broken_rules, picture

ELASTIC = Traits(least=1, most=8)


@dataclass(frozen=True)
class Scripted:
    """A policy that is one function."""

    script: Callable[[View], Plan]
    order: Order = arrival
    group: None = None
    quantum: int | None = None

    def decide(self, view: View) -> Plan:
        return self.script(view)


def spots(*held: tuple[int, int]) -> Spots:
    return tuple((node, devices, 1000, 0, 0) for node, devices in held)


def after(
    room: Room,
    held: Spots,
    tasks: int,
    shape: Shape = gang(4),  # noqa: B008  # shapes are values
) -> Spots | None:
    """The spots of a job after a resize from these."""
    room.take(held)
    found = resized(room, shape, held, tasks)
    room.give(held)
    return found


def test_a_job_that_shrinks_keeps_its_devices_where_it_has_most() -> None:
    room = Room(parse_cluster("3x4"))
    held = spots((0, 0b0010), (1, 0b1111), (2, 0b0011))
    assert after(room, held, 7) == held
    assert after(room, held, 6) == spots((1, 0b1111), (2, 0b0011))
    assert after(room, held, 5) == spots((1, 0b1111), (2, 0b0001))
    assert after(room, held, 3) == spots((1, 0b0111))


def test_a_job_that_grows_takes_from_its_own_nodes_first() -> None:
    room = Room(parse_cluster("3x4"))
    held = spots((1, 0b0010))
    assert after(room, held, 3) == spots((1, 0b0111))
    room.take(spots((1, 0b1000)))
    assert after(room, held, 4) == spots((1, 0b0111), (0, 0b0001))


def test_growth_stays_in_the_rack_if_there_is_room() -> None:
    nodes = tuple(Node(f"n{i}", 2, rack=rack) for i, rack in enumerate(("left", "right", "right")))
    room = Room(Cluster(nodes))
    assert after(room, spots((2, 0b11)), 4) == spots((2, 0b11), (1, 0b11))
    room.take(spots((1, 0b11)))
    assert after(room, spots((2, 0b11)), 4) == spots((2, 0b11), (0, 0b11))


def test_growth_takes_devices_of_the_same_type() -> None:
    room = Room(parse_cluster("1x2:V100,1x4:A100,1x2:V100"))
    assert after(room, spots((0, 0b11)), 4) == spots((0, 0b11), (2, 0b11))
    assert after(room, spots((0, 0b11)), 5) is None


def test_tasks_of_several_gpus_with_cpus_stay_whole() -> None:
    room = Room(Cluster((Node("a", 5, cpus=3_000), Node("b", 4, cpus=4_000))))
    shape = Shape(tasks=1, each=2, cpus=1_000, roles=(Role("ps", 1, 1_000),))
    helper = (0, 0, 0, 1_000, 0)
    held: Spots = ((0, 0b11, 1000, 1_000, 0), helper)
    grown = after(room, held, 3, shape)
    assert grown == ((0, 0b1111, 1000, 2_000, 0), helper, (1, 0b0011, 1000, 1_000, 0))
    assert after(room, grown, 1, shape) == held


def test_a_job_that_shares_a_device_is_not_resized() -> None:
    room = Room(parse_cluster("1x4"))
    assert after(room, ((0, 0b1, 500, 0, 0),), 2) is None
    assert resized(room, Shape(each=0, cpus=1), ((0, 0, 0, 1, 0),), 2) is None


def on_review(script: Callable[[View, Plan, JobView], None]) -> Callable[[View], Plan]:
    """Start what fits; ten seconds in, do this to job a."""

    def decide(view: View) -> Plan:
        plan = view.draft()
        for waits in sorted(view.queue, key=lambda waits: waits.seq):
            plan.start(waits)
        if view.now == 10 * SECOND:
            script(view, plan, view.running["a"])
        elif view.now < 10 * SECOND:
            plan.review_at = 10 * SECOND
        return plan

    return decide


def told(on: Cluster, script: Callable[[View, Plan, JobView], None], *jobs: Job) -> Core:
    core = Core(on, Scripted(on_review(script)))
    core.handle(0, [(0, SUBMITTED, made.id, 0, made) for made in jobs])
    return core


def test_the_engine_is_told_to_resize_and_the_terms_stay() -> None:
    def script(view: View, plan: Plan, mine: JobView) -> None:
        assert plan.shift(mine, mine.spots or (), Terms(clock=0.5))
        assert plan.resize(mine, 4)
        assert mine.held == 4_000

    core = told(cluster(nodes=1, gpus=8), script, job("a", gpus=2, hours=1, traits=ELASTIC))
    assert core.handle(10 * SECOND, []).actions == [Resize("a", 1, spots((0, 0b1111)), Terms(clock=0.5))]
    assert broken_rules(core) == []


def test_a_resize_that_cannot_be_done_changes_nothing() -> None:
    tried: list[bool] = []

    def script(view: View, plan: Plan, mine: JobView) -> None:
        before = picture(view)  # type: ignore[arg-type]  # the core itself, handed out as a view
        tried.append(plan.resize(mine, 7))
        assert picture(view) == before  # type: ignore[arg-type]
        for tasks in (0, 9):
            with pytest.raises(PlanError, match="runs with 1 to 8 tasks"):
                plan.resize(mine, tasks)
        with pytest.raises(PlanError, match="runs with 2 to 2 tasks"):
            plan.resize(view.running["b"], 1)
        assert picture(view) == before  # type: ignore[arg-type]

    jobs = job("a", gpus=2, hours=1, traits=ELASTIC), job("b", gpus=2, hours=1)
    core = told(cluster(nodes=2, gpus=4), script, *jobs)
    assert core.handle(10 * SECOND, []).actions == []
    assert tried == [False]


def test_a_waiting_job_is_not_resized() -> None:
    def script(view: View, plan: Plan, mine: JobView) -> None:
        plan.stop(mine)
        with pytest.raises(PlanError, match="is not running"):
            plan.resize(mine, 1)

    core = told(cluster(nodes=1, gpus=8), script, job("a", gpus=2, hours=1, traits=ELASTIC))
    core.handle(10 * SECOND, [])


def test_the_limit_of_a_tenant_holds() -> None:
    tried: list[bool] = []

    def script(view: View, plan: Plan, mine: JobView) -> None:
        tried.extend(plan.resize(mine, tasks) for tasks in (4, 3))

    on = cluster(nodes=1, gpus=8, tenants=[Tenant("red", limit=3)])
    core = told(on, script, job("a", gpus=2, hours=1, tenant="red", traits=ELASTIC))
    core.handle(10 * SECOND, [])
    assert tried == [False, True]
    assert broken_rules(core) == []


def test_a_job_on_a_drained_node_may_shrink_there_and_does_not_grow() -> None:
    tried: list[bool] = []

    def script(view: View, plan: Plan, mine: JobView) -> None:
        tried.extend(plan.resize(mine, tasks) for tasks in (4, 1))

    core = told(cluster(nodes=2, gpus=4), script, job("a", gpus=2, hours=1, traits=ELASTIC))
    node = "n0" if core.jobs["a"].spots == spots((0, 0b11)) else "n1"
    core.handle(10 * SECOND, [(10 * SECOND, DRAINED, node, 0, "maintenance")])
    assert tried == [False, True]
    assert broken_rules(core) == []


def test_types_that_a_job_does_not_accept_are_not_taken() -> None:
    mixed = Cluster((Node("a", 2, GpuType("A")), Node("b", 4, GpuType("B"))))
    tried: list[bool] = []

    def script(view: View, plan: Plan, mine: JobView) -> None:
        tried.append(plan.resize(mine, 4))

    core = told(mixed, script, job("a", gpus=2, hours=1, types=["A"], traits=ELASTIC))
    core.handle(10 * SECOND, [])
    assert tried == [False]


def test_devices_of_a_first_shrink_stay_held_through_a_second() -> None:
    """Two shrinks, none confirmed yet: all devices of the first grant are kept until the engine confirms."""

    def shrinks(view: View) -> Plan:
        plan = view.draft()
        mine = view.running.get("a")
        if mine is None:
            for waits in list(view.queue):
                plan.start(waits)
        elif view.now <= 2 * SECOND:
            plan.resize(mine, 4 - view.now // SECOND)
        else:
            for waits in list(view.queue):
                plan.start(waits)
        plan.review_at = view.now + SECOND
        return plan

    core = Core(parse_cluster("1x4"), Scripted(shrinks))
    elastic = job("a", gpus=4, seconds=100, traits=Traits(least=1, most=4))
    core.handle(0, [(0, SUBMITTED, "a", 0, elastic)])
    for moment in (1, 2):
        (action,) = core.handle(moment * SECOND, []).actions
        assert isinstance(action, Resize)
    second = job("b", gpus=2, seconds=1, at=3)
    assert core.handle(3 * SECOND, [(3 * SECOND, SUBMITTED, "b", 0, second)]).actions == []
    assert core.stopping.held["a"] == ((0, 0b1111, 1000, 0, 0),)
    late = core.handle(4 * SECOND, [(4 * SECOND, RESIZED, "a", 7, None)])  # of another start: dropped
    assert late.actions == []
    done = core.handle(5 * SECOND, [(5 * SECOND, RESIZED, "a", 1, None)])
    assert [action.job for action in done.actions if isinstance(action, Start)] == ["b"]
    assert broken_rules(core) == []


@pytest.mark.parametrize("leaves", ["preempted", "cancelled", "node lost", "moved"])
def test_devices_of_a_shrink_stay_held_while_the_job_stops(leaves: str) -> None:
    """A job is told to stop before its shrink is confirmed: it still uses all its devices."""

    def script(view: View) -> Plan:
        plan = view.draft()
        mine = view.running.get("a")
        if view.now == 0:
            plan.start(next(iter(view.queue)), spots((0, 0b1111)))
        elif view.now == SECOND and mine is not None:
            plan.resize(mine, 2)
        elif view.now == 2 * SECOND and mine is not None and leaves == "preempted":
            plan.stop(mine)
        elif view.now == 2 * SECOND and mine is not None and leaves == "moved":
            plan.shift(mine, spots((1, 0b11)))
        elif view.now == 3 * SECOND:
            plan.start(next(waits for waits in view.queue if waits.id == "b"), spots((0, 0b1100)))
        plan.review_at = view.now + SECOND
        return plan

    core = Core(parse_cluster("2x4"), Scripted(script))
    core.handle(0, [(0, SUBMITTED, "a", 0, job("a", gpus=4, seconds=9, traits=Traits(least=1, most=4)))])
    core.handle(SECOND, [])
    events: list[Event] = []
    if leaves == "cancelled":
        events = [(2 * SECOND, CANCELLED, "a", 1, None)]
    elif leaves == "node lost":
        events = [(2 * SECOND, NODE_LOST, core.cluster.nodes[0].name, 0, "gone")]
    core.handle(2 * SECOND, events)
    if leaves == "node lost":
        core.handle(2 * SECOND, [(2 * SECOND, NODE_JOINED, core.cluster.nodes[0].name, 0, None)])
    late = core.handle(3 * SECOND, [(3 * SECOND, SUBMITTED, "b", 0, job("b", gpus=2, seconds=1, at=3))])
    assert [action for action in late.actions if isinstance(action, Start)] == []
    done = core.handle(4 * SECOND, [(4 * SECOND, STOPPED, "a", 1, 0)])
    assert "b" in [action.job for action in done.actions if isinstance(action, Start)]
    assert broken_rules(core) == []


def test_a_confirmed_resize_does_not_release_a_job_that_was_told_to_stop() -> None:
    def stops(view: View) -> Plan:
        plan = view.draft()
        mine = view.running.get("a")
        if view.now == 0:
            plan.start(next(iter(view.queue)))
        elif mine is not None and view.now == SECOND:
            plan.resize(mine, 1)
        elif mine is not None and view.now == 2 * SECOND:
            plan.stop(mine)
            plan.start(next(waits for waits in view.queue if waits.id == "b"))
        plan.review_at = view.now + SECOND
        return plan

    core = Core(parse_cluster("1x4"), Scripted(stops))
    core.handle(0, [(0, SUBMITTED, "a", 0, job("a", gpus=4, seconds=9, traits=Traits(least=1, most=4)))])
    core.handle(SECOND, [])
    core.handle(2 * SECOND, [(2 * SECOND, SUBMITTED, "b", 0, job("b", gpus=4, seconds=1, at=2))])
    assert core.handle(3 * SECOND, [(3 * SECOND, RESIZED, "a", 1, None)]).actions == []
    done = core.handle(4 * SECOND, [(4 * SECOND, STOPPED, "a", 1, 0)])
    assert [action.job for action in done.actions if isinstance(action, Start)] == ["b"]
