"""A job that grows onto devices that another job is about to leave goes on meanwhile, and is then resized."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field

from dovetail.core.active import GROWING, RUNNING
from dovetail.core.core import Core
from dovetail.core.snapshot import moved_to, restored, snapshot
from dovetail.mechanisms.order.keys import arrival
from dovetail.model.action import Action, Resize, Start, Stop
from dovetail.model.cluster import parse_cluster
from dovetail.model.event import (
    CANCELLED,
    FAILED,
    FINISHED,
    NODE_LOST,
    PROGRESSED,
    RESIZED,
    STOPPED,
    SUBMITTED,
    Event,
)
from dovetail.model.grant import Spots, devices_of
from dovetail.model.job import Checkpoint, Job, Profile, Traits, gang
from dovetail.model.units import SECOND
from dovetail.model.view import Order, Plan, View
from dovetail.policies.classic import fifo
from dovetail.sim.forward import forward
from dovetail.sim.run import run
from dovetail.testing.invariants import broken_rules, picture

PAUSE = Checkpoint(save=5 * SECOND, restore=25 * SECOND, resize=1 * SECOND)
Script = Callable[[View, Plan], None]


@dataclass(frozen=True)
class Scripted:
    """Start what fits; at the times of the script, do what it says and nothing else."""

    script: dict[int, Script] = field(default_factory=dict)
    order: Order = arrival
    group: None = None
    quantum: int | None = None

    def decide(self, view: View) -> Plan:
        plan = view.draft()
        if act := self.script.get(view.now):
            act(view, plan)
        else:
            for waits in sorted(view.queue, key=lambda job: job.seq):
                plan.start(waits)
        plan.review_at = min((at for at in self.script if at > view.now), default=None)
        return plan


def sizes(**wanted: int) -> Script:
    """First the jobs that shrink, then those that grow, in one plan."""

    def act(view: View, plan: Plan) -> None:
        for name in sorted(wanted, key=lambda name: wanted[name] - tasks(view.running[name].spots)):
            assert plan.resize(view.running[name], wanted[name])

    return act


def tasks(held: Spots | None) -> int:
    return devices_of(held or ())


def elastic(name: str, gpus: int, work: int = 1_000, retries: int = 0) -> Job:
    traits = Traits(least=1, most=8, checkpoint=PAUSE, profile=Profile(), retries=retries)
    return Job(name, 0, gang(gpus), work * SECOND, work * SECOND, traits=traits)


def growing(spec: str = "1x8", **script: Script) -> Core:
    """Jobs a (6 GPUs) and b (2 GPUs) run; at 10 s a shrinks to 2 and b grows to 6."""
    acts = {10 * SECOND: sizes(a=2, b=6)} | {int(at[1:]) * SECOND: act for at, act in script.items()}
    core = Core(parse_cluster(spec), Scripted(acts))
    core.handle(0, [(0, SUBMITTED, job.id, 0, job) for job in (elastic("a", 6), elastic("b", 2))])
    step = core.handle(10 * SECOND, [])
    (shrunk,) = step.actions
    assert isinstance(shrunk, Resize)
    assert shrunk.job == "a"
    assert core.jobs["b"].phase is GROWING
    assert broken_rules(core) == []
    return core


def handled(core: Core, at: int, *events: Event) -> list[Action]:
    """The actions that follow."""
    found = list(core.handle(at * SECOND, list(events)).actions)
    assert broken_rules(core) == []
    return found


def test_growth_waits_for_the_other_job_and_stops_nobody() -> None:
    core = growing()
    b = core.jobs["b"]
    assert (tasks(b.spots), tasks(b.now_on), b.held) == (6, 2, 6_000)
    assert b.done_at(12 * SECOND) == 12 * SECOND  # it goes on
    assert b.service_at(12 * SECOND) == 2 * 12 * SECOND  # on the two devices that it has
    (grown,) = handled(core, 12, (12 * SECOND, RESIZED, "a", 1, None))
    assert grown == Resize("b", 1, b.spots or (), b.terms)
    assert b.phase is RUNNING
    assert (b.stops, b.epoch) == (0, 1)
    assert b.done_at(13 * SECOND) == 12 * SECOND  # the pause of a resize, and nothing else
    assert b.service_at(14 * SECOND) == (2 * 12 + 6 * 2) * SECOND


def test_the_simulator_charges_each_of_them_one_resize() -> None:
    """Before, the job that grows was stopped and started again: 5 s to save and 25 s to restore."""
    acts = {10 * SECOND: sizes(a=2, b=6)}
    jobs = [elastic("a", 6, 40), elastic("b", 2, 40)]
    result = run(jobs, parse_cluster("1x8"), Scripted(acts))
    assert result.preemptions == 0
    a, b = map(round, result.jct())
    assert a == 10 + 1 + 30 * 3  # a third of its devices, after a pause of 1 s
    assert b == 10 + 1 + 30 // 3


def test_a_job_that_ends_while_it_grows_leaves_nothing_behind() -> None:
    core = growing()
    assert handled(core, 11, (11 * SECOND, FINISHED, "b", 1, None)) == []
    assert handled(core, 12, (12 * SECOND, RESIZED, "a", 1, None)) == []
    assert core.room.free_gpus == 6


def test_a_failed_job_that_was_growing_starts_again_when_its_devices_are_free() -> None:
    acts = {10 * SECOND: sizes(a=2, b=6)}
    core = Core(parse_cluster("1x8"), Scripted(acts))
    jobs = (elastic("a", 6), elastic("b", 2, retries=1))
    core.handle(0, [(0, SUBMITTED, job.id, 0, job) for job in jobs])
    core.handle(10 * SECOND, [])
    assert handled(core, 11, (11 * SECOND, FAILED, "b", 1, ("exit 1", 0))) == []  # granted what a still has
    found = handled(core, 12, (12 * SECOND, RESIZED, "a", 1, None))
    assert found == [Start("b", 2, core.jobs["b"].spots or (), core.jobs["b"].terms)]
    assert tasks(core.jobs["b"].spots) == 2


def test_a_growing_job_that_is_preempted_is_stopped_where_it_runs() -> None:
    def stop(view: View, plan: Plan) -> None:
        plan.stop(view.running["b"])

    core = growing(t11=stop)
    runs_on = core.jobs["b"].now_on
    assert handled(core, 11) == [Stop("b", 1, "preempted")]
    assert core.stopping.held["b"] == runs_on
    handled(core, 12, (12 * SECOND, RESIZED, "a", 1, None))
    assert core.stopping.held.keys() == {"b"}
    assert handled(core, 13, (13 * SECOND, STOPPED, "b", 1, 11 * SECOND)) == []
    assert (core.stopping.held, core.jobs["b"].done) == ({}, 11 * SECOND)


def test_growth_that_is_taken_back_is_not_told_to_the_engine() -> None:
    core = growing(t11=sizes(b=2))
    before = core.jobs["b"].now_on
    assert handled(core, 11) == []
    b = core.jobs["b"]
    assert (b.phase, b.spots, b.held) == (RUNNING, before, 2_000)
    assert handled(core, 12, (12 * SECOND, RESIZED, "a", 1, None)) == []


def test_a_growing_job_may_be_granted_another_size() -> None:
    core = growing(t11=sizes(b=4))
    assert handled(core, 11) == []
    assert core.jobs["b"].phase is GROWING
    (grown,) = handled(core, 12, (12 * SECOND, RESIZED, "a", 1, None))
    assert isinstance(grown, Resize)
    assert tasks(grown.spots) == 4


def test_a_growing_job_that_shrinks_gives_up_devices_that_it_has() -> None:
    core = growing(t11=sizes(b=1))
    (shrunk,) = handled(core, 11)
    assert isinstance(shrunk, Resize)
    assert tasks(shrunk.spots) == 1
    assert core.stopping.held.keys() == {"a", "b"}


def test_a_job_that_shrinks_may_grow_back_before_it_has_shrunk() -> None:
    def back(view: View, plan: Plan) -> None:
        plan.resize(view.running["b"], 2)
        plan.resize(view.running["a"], 6)

    core = growing(t11=back)
    assert handled(core, 11) == []
    assert core.jobs["a"].phase is GROWING  # it waits for its own shrink
    (grown,) = handled(core, 12, (12 * SECOND, RESIZED, "a", 1, None))
    assert isinstance(grown, Resize)
    assert (grown.job, tasks(grown.spots)) == ("a", 6)


def test_cancel_and_progress_reach_a_growing_job() -> None:
    core = growing()
    handled(core, 11, (11 * SECOND, PROGRESSED, "b", 1, (5 * SECOND, 2.0)))
    assert core.jobs["b"].done_at(12 * SECOND) == 7 * SECOND
    runs_on = core.jobs["b"].now_on
    assert handled(core, 12, (12 * SECOND, CANCELLED, "b", 1, None)) == [Stop("b", 1, "cancelled")]
    assert core.stopping.held["b"] == runs_on


def test_a_lost_node_takes_only_the_growth_that_was_to_come() -> None:
    """Job b runs on its own node and was granted devices on another one, which is lost."""
    core = Core(parse_cluster("2x4"), Scripted({10 * SECOND: sizes(a=2, b=6)}))
    core.handle(0, [(0, SUBMITTED, job.id, 0, job) for job in (elastic("a", 4), elastic("b", 4))])
    core.handle(10 * SECOND, [])
    b = core.jobs["b"]
    assert b.phase is GROWING
    lost = next(iter({spot[0] for spot in b.spots or ()} - {spot[0] for spot in b.now_on}))
    handled(core, 11, (11 * SECOND, NODE_LOST, core.cluster.nodes[lost].name, 0, "failed"))
    assert (b.phase, tasks(b.spots), b.stops, b.epoch) == (RUNNING, 4, 0, 1)


def test_a_snapshot_of_a_growing_job_goes_on() -> None:
    core = growing()
    taken = json.loads(json.dumps(snapshot(core)))
    again = restored(taken, core.cluster, core.policy)
    assert picture(again) == picture(core)
    event: Event = (12 * SECOND, RESIZED, "a", 1, None)
    assert handled(again, 12, event) == handled(core, 12, event)
    for job in taken["jobs"]:  # as an earlier release wrote it
        if job["spec"]["id"] == "a":
            del job["state"]["runs_on"]
    assert restored(taken, core.cluster, core.policy).jobs["a"].runs_on is None


def test_another_policy_lets_a_growing_job_go_on_with_what_it_has() -> None:
    core = growing()
    other, stops = moved_to(snapshot(core), core.cluster, fifo())
    assert stops == []
    b = other.jobs["b"]
    assert (b.phase, tasks(b.spots), b.awaiting) == (RUNNING, 2, None)


def test_the_future_of_a_growing_job_is_simulated() -> None:
    core = growing()
    resized = [
        (step.now, action.job, tasks(action.spots))
        for step in forward(core)
        for action in step.actions
        if isinstance(action, Resize)
    ]
    assert [(job, size) for _, job, size in resized] == [("b", 6)]
    assert not core.jobs
