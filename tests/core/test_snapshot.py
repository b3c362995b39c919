"""A snapshot loaded under another policy, or on another cluster, keeps every job."""

from __future__ import annotations

import json

import pytest

from dovetail.core.core import Core
from dovetail.core.snapshot import moved_to, snapshot
from dovetail.model.action import Start
from dovetail.model.cluster import Cluster, parse_cluster
from dovetail.model.event import STOPPED, SUBMITTED
from dovetail.model.job import gang
from dovetail.model.units import HOUR, MINUTE
from dovetail.policies.registry import POLICIES
from dovetail.sim.simulate import simulate
from dovetail.sim.world import World
from dovetail.testing.build import job
from dovetail.testing.invariants import ACCEPTS, FINISHES, waived

NAMES = POLICIES.names()


def put_away(core: Core) -> dict[str, object]:
    taken: dict[str, object] = json.loads(json.dumps(snapshot(core)))
    return taken


@pytest.mark.parametrize(("before", "after"), list(zip(NAMES, NAMES[1:] + NAMES[:1], strict=True)))
def test_a_policy_is_switched_in_mid_run(before: str, after: str) -> None:
    cluster = parse_cluster("3x4")
    jobs = [job(f"j{i}", gpus=1 + i % 4, minutes=7 + 13 * i % 50, at=120 * i) for i in range(30)]
    core, world = Core(cluster, POLICIES.make(before)), World(cluster)
    left = iter(jobs)
    told = []

    def listed() -> object:
        for item in left:
            told.append(item)
            yield item

    for step in simulate(core, world, listed()):  # type: ignore[arg-type]
        if step.now > 20 * MINUTE:
            break
    running = {job.id for job in core.running.values() if job.awaiting is None}  # the others await devices
    core, stops = moved_to(put_away(core), cluster, POLICIES.make(after))
    assert set(core.running) | {stop.job for stop in stops} >= running
    for stop in stops:
        world.perform(core.now, stop)
    rest = [told[-1]] if told[-1].id not in core.jobs and told[-1].arrived_at > core.now else []
    for _ in simulate(core, world, [*rest, *left]):
        pass
    ended = [name for name, at in zip(world.outcomes.id, world.outcomes.finish, strict=False) if at >= 0]
    refused = [name for name, how in world.outcomes.end.items() if how == "refused"]
    waives = waived(POLICIES.make(after), after) | waived(POLICIES.make(before), before)
    assert not refused or ACCEPTS in waives
    ended += refused
    if FINISHES not in waived(POLICIES.make(after), after):
        assert sorted(ended) == sorted(item.id for item in jobs)
        assert not core.jobs
    assert {*ended, *core.jobs} == {item.id for item in jobs}


def smaller(cluster: Cluster) -> Cluster:
    return Cluster(cluster.nodes[1:])


def test_a_job_of_a_removed_node_starts_again_once_its_old_attempt_has_ended() -> None:
    cluster = parse_cluster("2x4")
    core = Core(cluster, POLICIES.make("fifo"))
    specs = [job("a", gpus=4, hours=1), job("b", gpus=4, hours=1), job("wide", gpus=8, hours=1)]
    core.handle(0, [(0, SUBMITTED, spec.id, 0, spec) for spec in specs])
    moved, stops = moved_to(put_away(core), smaller(cluster), POLICIES.make("fifo"))
    assert set(moved.jobs) == {"a", "b"}  # eight GPUs are not there any more
    assert [spots for spots in (moved.jobs["a"].spots, moved.jobs["b"].spots) if spots] == [
        ((0, 0b1111, 1000, 0, 0),)
    ]
    gone = next(name for name in "ab" if moved.jobs[name].spots is None)
    assert [stop.job for stop in stops] == [gone]
    stayed = "b" if gone == "a" else "a"
    step = moved.handle(HOUR, [(HOUR, 0, stayed, 1, None)])
    assert step.actions == []  # its old attempt still runs
    step = moved.handle(HOUR, [(HOUR, STOPPED, gone, 1, 0)])
    assert [type(action) for action in step.actions] == [Start]
    assert step.actions[0].epoch == 2  # type: ignore[union-attr]


def test_a_job_that_comes_again_goes_on_counting_its_starts() -> None:
    core = Core(parse_cluster("1x4"), POLICIES.make("fifo"))
    spec = job("again", gpus=1, hours=1)
    step = core.handle(0, [(0, SUBMITTED, spec.id, 3, spec)])
    assert [action.epoch for action in step.actions if isinstance(action, Start)] == [4]
    assert spec.shape is gang(1)
