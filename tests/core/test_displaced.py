"""Which start displaced a stopped job: as the plan says, or by the devices that it gave away."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from tests.golden.journals import WORLDS

from dovetail.core.core import Core, Step
from dovetail.mechanisms.order.keys import arrival
from dovetail.model.action import Start, Stop
from dovetail.model.cluster import Cluster, GpuType, Node, Tenant
from dovetail.model.errors import PolicyError
from dovetail.model.event import FINISHED, STOPPED, SUBMITTED, Event
from dovetail.model.job import Job
from dovetail.model.units import HOUR, SECOND
from dovetail.model.view import Order, Plan, Policy, View
from dovetail.policies.registry import POLICIES
from dovetail.sim.run import run
from dovetail.testing.build import cluster, job
from dovetail.testing.invariants import broken_rules


@dataclass(frozen=True)
class Scripted:
    """A policy that is one function."""

    script: Callable[[View], Plan]
    order: Order = arrival
    group: None = None
    quantum: int | None = None

    def decide(self, view: View) -> Plan:
        return self.script(view)


def arrive(core: Core, at: int, *jobs: Job) -> Step:
    events: list[Event] = [(at * SECOND, SUBMITTED, one.id, 0, one) for one in jobs]
    return core.handle(at * SECOND, events)


def replaces(*, told: str | None) -> Policy:
    """Waiting jobs take the place of all that run; `told` names the job that the plan says it is for."""

    def script(view: View) -> Plan:
        plan = view.draft()
        waiting = sorted(view.queue, key=lambda one: one.seq)
        by = next((one for one in waiting if one.id == told), None)
        if waiting:
            for other in list(view.running.values()):
                plan.stop(other, by=by)
        for one in waiting:
            plan.start(one)
        return plan

    return Scripted(script)


def test_a_job_of_higher_priority_is_named_in_that_step_only() -> None:
    core = Core(cluster(gpus=2), POLICIES.make("priority"))
    arrive(core, 0, job("low", gpus=2, hours=1), job("behind", gpus=2, hours=1))
    assert core.displaced == {}
    step = arrive(core, 5, job("high", gpus=1, hours=1, priority=9))
    assert Stop("low", 1, "preempted") in step.actions
    assert core.displaced == {"low": ("high",)}
    core.handle(6 * SECOND, [(6 * SECOND, STOPPED, "low", 1, 0)])
    assert core.displaced == {}


def test_a_job_that_starts_elsewhere_is_named_if_the_quota_was_lent() -> None:
    """Its GPUs are of another type and free: only the quota was in use, so no device tells it."""
    tenants = [Tenant("lab"), Tenant("owner", "lab", quota=1), Tenant("guest", "lab", quota=1)]
    nodes = (Node("n0", 2, GpuType("A")), Node("n1", 2, GpuType("B")))
    core = Core(Cluster(nodes, tenants={one.name: one for one in tenants}), POLICIES.make("kueue"))
    arrive(core, 0, job("lent-0", hours=1, tenant="guest", types=["A"]))
    arrive(core, 1, job("lent-1", hours=1, tenant="guest", types=["A"]))
    step = arrive(core, 2, job("mine", hours=1, tenant="owner", types=["B"]))
    stop, start = step.actions
    assert isinstance(stop, Stop)
    assert isinstance(start, Start)  # at once: it waits for no device of the other
    assert core.displaced == {"lent-1": ("mine",)}


@pytest.mark.parametrize("told", [None, "later"])
def test_a_plan_that_names_no_start_of_its_own_is_read_by_its_devices(told: str | None) -> None:
    core = Core(cluster(gpus=2), replaces(told=told))
    arrive(core, 0, job("both", gpus=2, hours=1))
    arrive(core, 1, job("first", hours=1), job("second", hours=1), job("later", gpus=2, hours=1))
    assert core.displaced == {"both": ("first", "second")}


def test_what_a_plan_says_counts_before_its_devices() -> None:
    core = Core(cluster(gpus=2), replaces(told="second"))
    arrive(core, 0, job("both", gpus=2, hours=1))
    arrive(core, 1, job("first", hours=1), job("second", hours=1))
    assert core.displaced == {"both": ("second",)}


def test_a_job_that_is_only_stopped_makes_way_for_none() -> None:
    def stops(view: View) -> Plan:
        plan = view.draft()
        for one in list(view.running.values()):
            plan.stop(one)
        for one in list(view.queue):
            if not one.epoch:
                plan.start(one)
        plan.review_at = view.now + SECOND
        return plan

    core = Core(cluster(gpus=1), Scripted(stops))
    arrive(core, 0, job("a", hours=1))
    core.handle(SECOND, [])
    assert core.displaced == {"a": ()}


@pytest.mark.parametrize("by", ["high", ["high"], object()])
def test_only_an_active_job_can_be_named(by: object) -> None:
    def names(view: View) -> Plan:
        plan = view.draft()
        for one in list(view.running.values()):
            plan.stop(one, by=by)  # type: ignore[arg-type]
        for one in list(view.queue):
            plan.start(one)
        return plan

    core = Core(cluster(gpus=1), Scripted(names))
    arrive(core, 0, job("a", hours=1))
    with pytest.raises(PolicyError, match="job a cannot make way for"):
        arrive(core, 1, job("b", hours=1))
    assert (core.displaced, list(core.running)) == ({}, ["a"])
    assert broken_rules(core) == []


@pytest.mark.parametrize(
    "name", ["priority", "srtf", "tiresias-l", "kueue", "volcano", "k8s-default", "gandiva-fair"]
)
@pytest.mark.parametrize("world", ["plain", "stormy"])
def test_every_stop_of_a_plan_is_explained_by_its_starts(name: str, world: str) -> None:
    """The keys are the plan's stops, the values hold devices since this step; a replay finds the same."""
    made = WORLDS[world]()
    found: list[tuple[Step, dict[str, tuple[str, ...]]]] = []

    def look(core: Core, step: Step) -> None:
        displaced = dict(core.displaced)
        stops = {a.job for a in step.actions if isinstance(a, Stop) and a.why in ("preempted", "moved")}
        assert displaced.keys() == stops
        started = {a.job for a in step.actions if isinstance(a, Start)}
        for job_id, others in displaced.items():
            assert job_id not in others
            for other in others:
                holder = core.jobs[other]
                assert holder.spots is not None
                assert other in started or holder.awaiting is not None
        found.append((step, displaced))

    run(
        made.jobs,
        made.cluster,
        POLICIES.make(name),
        incidents=made.incidents,
        until=30 * 24 * HOUR,
        on_step=look,
    )
    assert any(others for _, displaced in found for others in displaced.values()), "no job was displaced"
    again = Core(made.cluster, POLICIES.make(name))
    for step, displaced in found:
        again.number = step.number - 1
        again.handle(step.now, step.events)
        assert again.displaced == displaced
    assert any(event[1] == FINISHED for step, _ in found for event in step.events)
