"""Every part of the model has its effect: one small world for each, with numbers that can be checked by hand.

Policies here are tiny scripts. They follow the contract of `Policy` and inherit from nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from dovetail.core.core import Core, Step
from dovetail.mechanisms.order.keys import arrival
from dovetail.model.action import Answer, Rent, Resize, SetPower, Start, Stop
from dovetail.model.cluster import Cluster, GpuType, Links, Node, Tenant
from dovetail.model.event import CANCELLED, DRAINED, PRICED, STOPPED, Event
from dovetail.model.grant import Terms
from dovetail.model.job import Arch, Checkpoint, Job, Kind, Profile, Role, Shape, Traits, gang
from dovetail.model.units import GIB, HOUR, MINUTE, SECOND, WHOLE
from dovetail.model.view import JobView, Order, Plan, Reservation, View
from dovetail.sim.run import Run
from dovetail.sim.run import run as sim_run
from dovetail.sim.world import Incident, World
from dovetail.testing.build import cluster, job, run
from dovetail.testing.invariants import Watched, watched

ONE = cluster(nodes=1, gpus=1)
TWO = cluster(nodes=1, gpus=2)
FOUR = cluster(nodes=1, gpus=4)
PAIR = cluster(nodes=2, gpus=2)
HALF = Shape(milli=500)


@dataclass(frozen=True)
class Scripted:
    """A policy that is one function; jobs are in order of arrival."""

    script: Callable[[View], Plan]
    order: Order = arrival
    group: None = None
    quantum: int | None = None

    def decide(self, view: View) -> Plan:
        return self.script(view)


def fill(view: View) -> Plan:
    """Start what fits, in order of arrival; it never rests, and so is asked every time."""
    plan = view.draft()
    for waits in sorted(view.queue, key=lambda j: j.seq):
        plan.start(waits)
    return plan


def in_order(view: View) -> Plan:
    """Start jobs in the order of the policy, until one does not fit."""
    plan = view.draft()
    while (first := view.queue.head()) is not None and plan.start(first):
        pass
    return plan


def waiting(view: View, name: str) -> JobView | None:
    return next((j for j in view.queue if j.id == name), None)


def at(seconds: float) -> int:
    return round(seconds * SECOND)


def take_turns(view: View) -> Plan:
    """Jobs in the queue replace the running jobs."""
    plan = view.draft()
    for newcomer in sorted(view.queue, key=lambda j: j.seq):
        if view.arrived and newcomer in view.arrived and not plan.start(newcomer) and not newcomer.epoch:
            for other in list(view.running.values()):
                plan.stop(other)
            plan.start(newcomer)
    if not view.running:
        for newcomer in sorted(view.queue, key=lambda j: j.seq):
            plan.start(newcomer)
    return plan


def watch(policy: Scripted, on: Cluster, *jobs: Job, events: tuple[Event, ...] = ()) -> Watched:
    return watched(policy, on, jobs, events=events)


# -- speed


def test_speed_depends_on_the_type() -> None:
    profile = Profile(speeds={"V100": 0.5, "A100": 2.0})
    mixed = Cluster((Node("n0", 1, GpuType("V100")), Node("n1", 1, GpuType("A100"))))
    slow = run([job("j", seconds=100, types=["V100"], profile=profile)], mixed, "fifo")
    fast = run([job("j", seconds=100, types=["A100"], profile=profile)], mixed, "fifo")
    assert (slow.finish("j"), fast.finish("j")) == (200, 50)


def test_a_type_has_a_speed_for_those_without_a_profile() -> None:
    slow = Cluster((Node("n0", 1, GpuType("K80", speed=0.25)),))
    assert run([job("j", seconds=100)], slow, "fifo").finish("j") == 400


def test_a_split_placement_is_slower() -> None:
    fillers = [job("left", seconds=50), job("right", seconds=50, gpus=2)]
    spread = job("j", gpus=2, seconds=100, at=1, profile=Profile(split=1.5))
    three = Cluster((Node("n0", 2), Node("n1", 3)))
    together = run([*fillers, spread], three, "fifo", placement="packed")
    apart = run([*fillers, spread], three, "fifo", placement="scattered")
    assert (together.start("j"), together.finish("j")) == (50, 150)
    assert [apart.start("j"), apart.finish("j")] == pytest.approx([1, 151])


def test_the_network_slows_a_gang_that_spans_racks() -> None:
    profile = Profile(compute=0.1, gradient=1e9)
    links = Links(node=10e9, socket=10e9, cluster=1e9)
    jobs = [job("j", gpus=2, seconds=100, profile=profile)]
    near = run(jobs, cluster(nodes=2, gpus=2, racks=2, links=links), "fifo")
    far = run(jobs, cluster(nodes=2, gpus=1, racks=2, links=replace(links, rack=10e9)), "fifo")
    assert near.finish("j") == 100
    # A step is 0.1 s of computing and 1 GB of ring: 0.1 + 0.1 s in the reference, 0.1 + 1 s across racks.
    assert far.finish("j") == pytest.approx(100 * 1.1 / 0.2)


def test_neighbours_slow_each_other_and_recover() -> None:
    """Two jobs that each want a whole GPU share one: half the speed until one leaves."""
    half = Traits(profile=Profile(use=0.5, hurt=0.2))
    result = run(
        [job("a", shape=HALF, seconds=80, traits=half), job("b", shape=HALF, seconds=40, traits=half)],
        ONE,
        "fifo",
    )
    # Each hurts the other by a fifth: b needs 40 / 0.8 = 50 s; a has 40 s left then, at full speed.
    assert (result.finish("b"), result.finish("a")) == (50, 90)


def test_two_jobs_that_were_measured_together_run_as_measured() -> None:
    """Both asked for the whole GPU. A job that is alone on its half again has all of the GPU's time."""

    def pair(view: View) -> Plan:
        plan = view.draft()
        for waits in sorted(view.queue, key=lambda j: j.seq):
            plan.start(waits, ((0, 1, 500, 0, 0),))
        return plan

    fast, slow = ({"gpu": {"slow": 0.9}}, {"gpu": {"fast": 0.5}})
    jobs = [
        job("a", model="fast", seconds=90, profile=Profile(beside=fast)),
        job("b", model="slow", seconds=90, profile=Profile(beside=slow)),
    ]
    result = watched(Scripted(pair), ONE, jobs)
    # a ends at 90 / 0.9; b has done half as much by then, and goes on alone.
    assert result.times() == {"a": (0, at(100)), "b": (0, at(140))}


def test_a_neighbour_without_a_profile_slows_a_job_too() -> None:
    """It is taken to use all the device time (`World._rated`)."""
    felt = job("felt", shape=HALF, seconds=100, profile=Profile(use=0.5))
    result = run([job("plain", shape=HALF, seconds=1_000), felt], ONE, "fifo")
    assert result.finish("felt") == pytest.approx(150)


def test_the_core_learns_a_neighbours_speed_after_a_resize() -> None:
    """In the world a job that grows leaves its devices and comes back; its neighbour is as slow as before."""
    shares = Traits(profile=Profile(use=0.5, hurt=0.5), least=1, most=2)

    def grow(view: View) -> Plan:
        plan = fill(view)
        if view.now == at(10) and len(view.running["grows"].spots or ()) == 1:
            plan.shift(view.running["grows"], ((0, 0b11, 500, 0, 0),))
        if view.now < at(10):
            plan.review_at = at(10)
        return plan

    rates: dict[int, float] = {}

    def look(core: Core, step: Step) -> None:
        if "stays" in core.running:
            rates[step.now] = core.running["stays"].rate

    jobs = [
        job("grows", shape=HALF, seconds=100, traits=shares),
        job("stays", shape=HALF, seconds=100, traits=shares),
    ]
    run(jobs, TWO, Scripted(grow), on_step=look)
    assert rates[at(10)] == 0.5


def test_a_slice_is_a_part_of_a_device() -> None:
    """Seven 1g slices fit an A100, an eighth waits; a job that could use more is slower on a slice."""
    a100 = cluster(nodes=1, gpus=1, type="A100")
    traits = Traits(profile=Profile(use=0.25))
    jobs = [job(f"s{i}", shape=Shape(slice="1g"), seconds=10, traits=traits) for i in range(8)]
    result = run(jobs, a100, "fifo")
    assert [result.start(f"s{i}") for i in range(7)] == [0] * 7
    assert (
        result.start("s7") >= 20 - 1e-6
    )  # half of what it could use: an eighth of the memory, a quarter wanted
    assert run(jobs[:1], a100, "fifo").finish("s0") == 20


def test_a_slice_needs_a_device_that_can_be_cut() -> None:
    mixed = Cluster((Node("n0", 1), Node("n1", 1, GpuType("A100", sliceable=True))))
    result = run([job("s", shape=Shape(slice="3g"), seconds=10)], mixed, "fifo")
    assert result.stretches[0].spots == ((1, 1, -0b1111_0000, 0, 0),)


def test_slices_over_two_devices_are_placed_by_packed_policies_too() -> None:
    """Three 3g slices need two A100s; with one A100 on each node the job must be split."""
    result = run(
        [job("s", shape=Shape(tasks=3, slice="3g"), seconds=10)],
        cluster(nodes=2, gpus=1, type="A100"),
        "fifo",
    )
    assert result.start("s") == 0


def test_halves_over_two_devices_are_placed_by_packed_policies_too() -> None:
    result = run([job("h", shape=Shape(tasks=2, milli=500), seconds=10)], cluster(nodes=2, gpus=1), "fifo")
    assert result.start("h") == 0


def test_terms_change_the_speed() -> None:
    """Batch, clock and guard are part of a grant."""
    profile = Profile(batch=32, batch_cost=0.5)
    speeds = {
        Terms(): 1.0,
        Terms(clock=0.5): 0.5,
        Terms(batch=64): 2 / 1.5,  # twice the samples in one and a half times the time
        Terms(guard=0.25): 0.25,
    }
    for terms, speed in speeds.items():

        def on_terms(view: View, terms: Terms = terms) -> Plan:
            plan = view.draft()
            for waits in list(view.queue):
                plan.start(waits, None, terms)
            return plan

        result = run([job("j", seconds=100, profile=profile)], ONE, Scripted(on_terms))
        assert result.finish("j") == pytest.approx(100 / speed)


def test_a_guarded_neighbour_slows_no_job() -> None:
    def guard(view: View) -> Plan:
        plan = view.draft()
        for waits in sorted(view.queue, key=lambda j: j.seq):
            plan.start(waits, None, Terms(guard=0.1) if waits.id == "low" else Terms())
        return plan

    shares = Traits(profile=Profile(use=0.5, hurt=0.5))
    jobs = [job(name, shape=HALF, seconds=10, traits=shares) for name in ("high", "low")]
    result = run(jobs, ONE, Scripted(guard))
    assert (result.finish("high"), result.finish("low")) == (10, 100)


def test_terms_can_change_under_way() -> None:
    def slow_down(view: View) -> Plan:
        plan = fill(view)
        if view.now == at(10) and view.running["j"].terms.clock == 1.0:
            plan.shift(view.running["j"], view.running["j"].spots or (), Terms(clock=0.5))
        elif view.now < at(10):
            plan.review_at = at(10)
        return plan

    assert run([job("j", seconds=20, profile=Profile())], ONE, Scripted(slow_down)).finish("j") == 30


# -- elastic jobs and gangs


def test_an_elastic_job_grows_and_shrinks_and_pays_for_it() -> None:
    """Alone the job takes four GPUs; a job that arrives gets two of them. Each resize pauses it for 2 s."""

    def stretch(view: View) -> Plan:
        plan = view.draft()
        elastic = view.running.get("elastic")
        for waits in sorted(view.queue, key=lambda j: j.seq):
            if waits.traits.elastic:
                plan.start(waits, ((0, 0b1111, 1000, 0, 0),))
            elif not plan.start(waits) and elastic is not None:
                plan.shift(elastic, ((0, 0b0011, 1000, 0, 0),))
                plan.start(waits)
        if len(view.running) == 1 and elastic is not None and elastic.held < 4_000:
            plan.shift(elastic, ((0, 0b1111, 1000, 0, 0),))
        return plan

    traits = Traits(least=1, most=4, profile=Profile(), checkpoint=Checkpoint(resize=2 * SECOND))
    jobs = [job("elastic", gpus=2, seconds=100, traits=traits), job("rigid", gpus=2, seconds=10, at=22)]
    result = watched(Scripted(stretch), FOUR, jobs)
    resizes = [(s.now, a) for s in result.steps for a in s.actions if isinstance(a, Resize)]
    assert [now for now, _ in resizes] == [at(22), at(32)]
    # 22 s at twice the speed, 8 s at the asked-for one, then twice again: 100 - 44 - 8 = 48 in 24 s.
    assert result.times()["elastic"][1] == at(22 + 10 + 2 + 24)
    assert result.times()["rigid"] == (at(22), at(32))


@pytest.mark.parametrize(
    ("costs", "shrinking", "growing"),
    [
        (Checkpoint(save=3 * SECOND, restore=4 * SECOND), 7, 7),  # nothing said: it is stopped and restarted
        (Checkpoint(save=3 * SECOND, restore=4 * SECOND, resize=2 * SECOND), 2, 2),
        (Checkpoint(save=3 * SECOND, restore=4 * SECOND, resize=2 * SECOND, shrink=0), 0, 2),
        (Checkpoint(save=3 * SECOND, restore=4 * SECOND, shrink=1 * SECOND), 1, 7),
        (Checkpoint(), 0, 0),
    ],
)
def test_growing_and_shrinking_pause_a_job_for_what_it_says(
    costs: Checkpoint, shrinking: int, growing: int
) -> None:
    """It has four GPUs for 20 s, two for 20 s, another batch size meanwhile, and then four again."""

    def script(view: View) -> Plan:
        plan = view.draft()
        mine = view.running.get("j")
        for waits in list(view.queue):
            plan.start(waits, ((0, 0b1111, 1000, 0, 0),))
        if mine is None:
            pass
        elif view.now == at(20):
            plan.shift(mine, ((0, 0b0011, 1000, 0, 0),))
        elif view.now == at(30):
            plan.shift(mine, ((0, 0b0011, 1000, 0, 0),), Terms(batch=64))
        elif view.now == at(40):
            plan.shift(mine, ((0, 0b1111, 1000, 0, 0),))
        plan.review_at = next((t for t in (at(20), at(30), at(40)) if t > view.now), None)
        return plan

    traits = Traits(least=1, most=4, profile=Profile(), checkpoint=costs)
    result = watched(Scripted(script), FOUR, [job("j", gpus=4, seconds=100, traits=traits)])
    done = 20 + (20 - shrinking) / 2
    assert result.times()["j"][1] == at(40 + growing + 100 - done)


def test_an_elastic_job_without_a_profile_is_slower_on_less() -> None:
    """Half the GPUs cannot do the whole work in the same time."""

    def on_half(view: View) -> Plan:
        plan = view.draft()
        for waits in list(view.queue):
            plan.start(waits, ((0, 0b1, 1000, 0, 0),))
        return plan

    result = run([job("j", gpus=2, seconds=10, least=1)], TWO, Scripted(on_half))
    assert result.finish("j") == 20


def test_a_resize_does_not_cut_a_restore_short() -> None:
    """The job starts again at 11 and restores until 41; after a resize at 12 it still computes from 41 on."""
    traits = Traits(least=1, most=2, profile=Profile(), checkpoint=Checkpoint(restore=30 * SECOND, resize=0))

    def script(view: View) -> Plan:
        plan = view.draft()
        mine = view.running.get("j")
        if view.now == 0 and mine is None:
            plan.start(next(iter(view.queue)))
        elif view.now == at(10) and mine is not None and mine.epoch == 1:
            plan.stop(mine)
        elif (again := waiting(view, "j")) is not None:
            plan.start(again)
        elif view.now == at(12) and mine is not None and mine.held == 1_000:
            plan.shift(mine, ((0, 0b11, 1000, 0, 0),))
        plan.review_at = next((t for t in (at(10), at(11), at(12)) if t > view.now), None)
        return plan

    result = watched(Scripted(script), TWO, [job("j", seconds=50, traits=traits)])
    assert result.times()["j"][1] == at(41 + 20)


@pytest.mark.parametrize("where", [((0, 0b1, 1000, 0, 0),), ((0, 0b1, 1000, 0, 0), (1, 0b1, 1000, 0, 0))])
def test_a_partial_gang_makes_no_progress(where: tuple[tuple[int, int, int, int, int], ...]) -> None:
    """Whether its tasks are on one node or on several."""

    def some(view: View) -> Plan:
        plan = view.draft()
        for waits in list(view.queue):
            plan.start(waits, where)
        return plan

    result = run([job("gang", gpus=4, seconds=10)], cluster(nodes=2, gpus=4), Scripted(some))
    assert result.finish("gang") == float("inf")
    assert result.stalled == ["gang"]


def test_a_partial_gang_runs_once_it_is_whole() -> None:
    def by_and_by(view: View) -> Plan:
        plan = view.draft()
        for waits in list(view.queue):
            plan.start(waits, ((0, 0b01, 1000, 0, 0),))
        mine = view.running.get("gang")
        if mine is not None and view.now >= at(5) and mine.held == 1_000:
            plan.shift(mine, ((0, 0b11, 1000, 0, 0),))
        elif view.now < at(5):
            plan.review_at = at(5)
        return plan

    assert run([job("gang", gpus=2, seconds=10)], TWO, Scripted(by_and_by)).finish("gang") == 15


# -- stops and what they cost


def test_a_stop_loses_the_work_since_the_last_save() -> None:
    """The job saves each 30 s of work and not when stopped: of 50 s done at the stop, 20 are done again."""
    costs = Checkpoint(every=30 * SECOND, on_stop=False)
    jobs = [job("victim", seconds=100, checkpoint=costs), job("newcomer", seconds=10, at=50)]
    result = run(jobs, ONE, Scripted(take_turns))
    assert result.finish("newcomer") == 60
    assert result.finish("victim") == 60 + 70
    assert result.lost == 20 * SECOND * WHOLE
    assert result.preemptions == 1


def test_a_stop_without_any_save_loses_everything() -> None:
    jobs = [
        job("victim", seconds=100, checkpoint=Checkpoint(on_stop=False)),
        job("newcomer", seconds=10, at=50),
    ]
    assert run(jobs, ONE, Scripted(take_turns)).finish("victim") == 60 + 100


def test_a_graceful_stop_pays_to_save_and_to_come_back() -> None:
    """No work is lost, but the job holds its devices for 5 s of saving and 7 s of restoring."""
    costs = Checkpoint(save=5 * SECOND, restore=7 * SECOND)
    jobs = [job("victim", seconds=100, checkpoint=costs), job("newcomer", seconds=10, at=50)]
    result = run(jobs, ONE, Scripted(take_turns))
    assert result.start("newcomer") == 55
    assert result.finish("newcomer") == 65
    assert result.finish("victim") == 65 + 7 + 50
    assert result.lost == 12 * SECOND * WHOLE


def test_a_stopping_job_keeps_its_devices_until_it_has_stopped() -> None:
    """The next job starts in the step of the STOPPED event, and no stop comes after a start."""
    costs = Checkpoint(save=5 * SECOND)
    jobs = (job("victim", gpus=2, seconds=100, checkpoint=costs), job("heir", gpus=1, seconds=10, at=50))
    result = watch(Scripted(take_turns), TWO, *jobs)
    stop = next(s for s in result.steps if any(isinstance(a, Stop) for a in s.actions))
    start = next(s for s in result.steps if any(isinstance(a, Start) and a.job == "heir" for a in s.actions))
    assert (stop.now, start.now) == (at(50), at(55))
    assert [e[1] for e in start.events] == [STOPPED]
    assert not any(isinstance(a, Start) for a in stop.actions)


def test_a_stopping_job_keeps_its_cpus_too() -> None:
    """The next job is on another device, but needs the CPU that the stopping job still uses."""
    bound = Cluster((Node("n0", 2, cpus=8_000),))
    costs = Traits(checkpoint=Checkpoint(save=5 * SECOND))
    jobs = (
        job("victim", shape=gang(1, cpus=8_000), seconds=100, traits=costs),
        job("heir", shape=gang(1, cpus=8_000), seconds=10, at=50),
    )

    def other_device(view: View) -> Plan:
        plan = view.draft()
        heir = waiting(view, "heir")
        if heir is not None and not heir.epoch and "victim" in view.running:
            plan.stop(view.running["victim"])
            plan.start(heir, ((0, 0b10, 1000, 8_000, 0),))
        elif not view.running:
            return fill(view)
        return plan

    result = watch(Scripted(other_device), bound, *jobs)
    assert result.times()["heir"][0] == at(55)


def test_jobs_can_swap_devices() -> None:
    def swap(view: View) -> Plan:
        plan = fill(view)
        a, b = view.running.get("a"), view.running.get("b")
        if view.now == at(10) and a and b and a.epoch == b.epoch == 1 and a.spots and b.spots:
            here, there = a.spots, b.spots
            plan.stop(a)
            plan.stop(b)
            plan.start(a, there)
            plan.start(b, here)
        elif view.now < at(10):
            plan.review_at = at(10)
        return plan

    saves = Traits(checkpoint=Checkpoint(save=3 * SECOND))
    jobs = (job("a", seconds=20, traits=saves), job("b", seconds=30, traits=Traits()))
    result = watch(Scripted(swap), TWO, *jobs)
    # b has stopped at once but must wait for a's device; a may not start before it has stopped itself.
    assert result.times() == {"a": (0, at(23)), "b": (0, at(33))}


def test_a_job_moves_in_one_plan() -> None:
    def move(view: View) -> Plan:
        plan = fill(view)
        mine = view.running.get("j")
        if view.now == at(10) and mine and mine.epoch == 1:
            plan.shift(mine, ((1, 0b1, 1000, 0, 0),))
        elif view.now < at(10):
            plan.review_at = at(10)
        return plan

    costs = Checkpoint(save=2 * SECOND, restore=3 * SECOND)
    result = run([job("j", seconds=20, checkpoint=costs)], PAIR, Scripted(move))
    assert result.finish("j") == 10 + 2 + 3 + 10
    assert [s.spots[0][0] for s in result.stretches] == [0, 1]


# -- nodes that are lost


def test_a_node_dies_under_a_gang() -> None:
    """At 50 s one of its two nodes fails: 20 s of work are lost; the other node is free at once."""
    costs = Checkpoint(every=30 * SECOND, restore=5 * SECOND)
    jobs = [job("gang", gpus=4, seconds=100, checkpoint=costs), job("small", gpus=2, seconds=10, at=45)]
    result = run(jobs, PAIR, "fifo", discipline="skip", incidents=[Incident("n1", at(50), at(200))])
    assert (result.start("small"), result.finish("small")) == (50, 60)
    assert result.finish("gang") == 200 + 5 + 70
    assert result.preemptions == 1
    assert result.lost == 4 * (20 + 5) * SECOND * WHOLE


def test_a_death_does_not_undo_an_earlier_save() -> None:
    """The job saved 40 s of work when it was stopped; when its node fails at 60 s of work, 40 s are kept."""
    jobs = [job("j", seconds=100), job("newcomer", seconds=10, at=40)]
    result = run(jobs, ONE, Scripted(take_turns), incidents=[Incident("n0", at(70), at(80))])
    assert result.finish("newcomer") == 50
    assert result.finish("j") == 80 + 60


def test_a_spot_node_is_taken_away_and_comes_back() -> None:
    spot = Cluster((Node("steady", 1), Node("spot", 1, spot=True, price=1.0)))
    jobs = [job("a", seconds=100), job("b", seconds=100)]
    result = run(jobs, spot, "fifo", incidents=[Incident("spot", at(30), at(50), "reclaimed")])
    assert result.finish("a") == 100
    assert result.finish("b") == 50 + 100  # nothing was saved: there was no notice
    where = {s.job: s.spots[0][0] for s in result.stretches}
    assert where == {"a": 0, "b": 1}


def test_a_node_that_never_comes_back() -> None:
    result = run([job("a", seconds=10), job("b", seconds=10)], TWO, "fifo", incidents=[Incident("n0", at(5))])
    assert result.finished == 0
    assert result.waiting == ["a", "b"]


def test_a_node_dies_while_a_gang_waits_for_it() -> None:
    """A job that awaits the devices of a stopping job loses its node before it starts: it waits again."""
    saves = Traits(checkpoint=Checkpoint(save=20 * SECOND))
    jobs = (job("victim", seconds=100, traits=saves), job("heir", seconds=10, at=50))
    result = watched(Scripted(take_turns), ONE, jobs, incidents=[Incident("n0", at(60), at(100))])
    assert result.audit.ended == {"victim": "finished", "heir": "finished"}


def test_a_dead_gang_makes_no_progress_until_the_next_round() -> None:
    """A node fails at 65 s and the round ends at 120 s: the gang stops, and its neighbour has full speed."""
    gang_of_halves = Traits(profile=Profile(use=0.5, hurt=0.5), checkpoint=Checkpoint(every=SECOND))
    jobs = (
        job("gang", shape=Shape(tasks=2, milli=500), seconds=200, traits=gang_of_halves),
        job("neighbour", shape=HALF, seconds=35, traits=Traits(profile=Profile(use=0.5, hurt=0.5))),
    )

    def side_by_side(view: View) -> Plan:
        plan = view.draft()
        for waits in sorted(view.queue, key=lambda j: j.seq):
            halves = ((0, 1, 500, 0, 0), (1, 1, 500, 0, 0))
            if all(plan.room.is_open(node) for node in (0, 1)):
                plan.start(waits, halves if waits.id == "gang" else halves[:1])
        return plan

    loss = Incident("n1", at(65), at(1_000))
    result = watched(Scripted(side_by_side, quantum=MINUTE), cluster(nodes=2, gpus=1), jobs, incidents=[loss])
    kept = next(e[4] for s in result.steps for e in s.events if e[1] == STOPPED)
    assert kept == at(32)  # 65 s at half speed, saved each second
    assert result.times()["neighbour"][1] == at(67.5)


def test_a_drained_node_takes_no_new_work_and_keeps_the_old() -> None:
    drained: Event = (at(10), DRAINED, "n0", 0, "maintenance")
    jobs = (job("old", gpus=2, seconds=100), job("new", gpus=2, seconds=10, at=20))
    result = watch(Scripted(fill), PAIR, *jobs, events=(drained,))
    assert result.times() == {"old": (0, at(100)), "new": (at(20), at(30))}
    assert result.core.closed == {0: "maintenance"}
    starts = [a for s in result.steps for a in s.actions if isinstance(a, Start)]
    assert [a.spots[0][0] for a in starts] == [0, 1]


@pytest.mark.parametrize("policy", ["srsf", "srtf", "priority"])
def test_a_dry_run_may_stop_and_put_back_a_job_on_a_drained_node(policy: str) -> None:
    """A shorter job arrives: the job on the drained node is tried as a victim, in vain, and stays."""
    drained: Event = (at(10), DRAINED, "n0", 0, "maintenance")
    jobs = [
        job("old", shape=gang(2, cpus=2_000), seconds=100, priority=0),
        job("new", shape=gang(2, cpus=2_000), seconds=10, at=20, priority=1),
    ]
    from dovetail.policies.registry import POLICIES

    result = watched(POLICIES.make(policy), TWO, jobs, events=[drained])
    assert result.audit.ended == {"old": "finished"}
    assert [j.id for j in result.core.queue] == ["new"]


# -- other resources


def test_cpus_and_memory_bind() -> None:
    node = Cluster((Node("n0", 8, cpus=4_000, memory=64 * GIB),))
    cpu = [job(f"j{i}", shape=gang(1, cpus=2_000), seconds=10) for i in range(3)]
    assert [run(cpu, node, "fifo").start(f"j{i}") for i in range(3)] == [0, 0, 10]
    memory = [job(f"j{i}", shape=gang(1, memory=40 * GIB), seconds=10) for i in range(2)]
    assert [run(memory, node, "fifo").start(f"j{i}") for i in range(2)] == [0, 10]


def test_a_gang_bound_by_cpus_is_spread_over_the_nodes_that_have_them() -> None:
    """The node with the most GPUs has the fewest cores: packed must not begin with it and give up."""
    uneven = Cluster((Node("wide", 8, cpus=1_000), Node("n1", 4, cpus=4_000), Node("n2", 4, cpus=4_000)))
    result = run([job("j", shape=gang(8, cpus=8_000), seconds=10)], uneven, "fifo")
    assert result.start("j") == 0


def test_fewer_cpus_than_the_loader_needs_are_slower() -> None:
    profile = Profile(cpus=4_000)
    result = run([job("j", shape=gang(1, cpus=1_000), seconds=10, profile=profile)], ONE, "fifo")
    assert result.finish("j") == 40


def test_parameter_servers_take_cpu_beside_the_workers() -> None:
    """Two workers and two servers of four cores each fill the node's eight: a second job waits."""
    shape = Shape(tasks=2, roles=(Role("ps", 2, cpus=4_000),))
    traits = Traits(arch=Arch.PARAMETER_SERVER, profile=Profile(servers=2))
    node = Cluster((Node("n0", 8, cpus=8_000),))
    jobs = [job(name, shape=shape, seconds=10, traits=traits) for name in "ab"]
    result = run(jobs, node, "fifo")
    assert (result.start("a"), result.start("b")) == (0, 10)
    spots = result.stretches[0].spots
    assert sum(cores for _, devices, _, cores, _ in spots if not devices) == 8_000


def test_fewer_servers_are_slower() -> None:
    traits = Traits(arch=Arch.PARAMETER_SERVER, profile=Profile(servers=2))
    shape = Shape(tasks=2, roles=(Role("ps", 1, cpus=1_000),))
    assert run([job("j", shape=shape, seconds=10, traits=traits)], TWO, "fifo").finish("j") == 20


def test_a_partition_is_kept_to() -> None:
    nodes = Cluster((Node("n0", 1), Node("n1", 1, partitions=frozenset({"debug"}))))
    jobs = [job(f"j{i}", shape=Shape(partition="debug"), seconds=10) for i in range(2)]
    result = run(jobs, nodes, "fifo")
    assert [result.start("j0"), result.start("j1")] == [0, 10]


# -- tenants, users and kinds of jobs


def test_a_tenants_limit_holds_in_the_whole_tree() -> None:
    """Each team may have three GPUs, both together four; the machine has eight."""
    teams = [Tenant("lab", limit=4), Tenant("red", "lab", limit=3), Tenant("blue", "lab", limit=3)]
    eight = cluster(nodes=1, gpus=8, tenants=teams)
    jobs = [job(f"red{i}", tenant="red", seconds=10) for i in range(4)]
    jobs += [job(f"blue{i}", tenant="blue", seconds=10, gpus=2 - i) for i in range(2)]
    jobs += [job("other", tenant="guest", gpus=4, seconds=10)]

    def whoever_may(view: View) -> Plan:
        plan = view.draft()
        for waits in sorted(view.queue, key=lambda j: j.seq):
            plan.start(waits)
        return plan

    result = watched(Scripted(whoever_may), eight, jobs)
    starts = {name: begun // SECOND for name, (begun, _) in result.times().items()}
    assert starts == {"red0": 0, "red1": 0, "red2": 0, "blue1": 0, "other": 0, "red3": 10, "blue0": 10}


def test_priorities_reach_the_order() -> None:
    jobs = [
        job("running", seconds=10),
        job("low", seconds=10, at=1),
        job("high", seconds=10, at=2, priority=5),
    ]
    result = run(jobs, ONE, "priority", preempt=False)
    assert (result.start("high"), result.start("low")) == (10, 20)


def test_deadlines_are_kept_in_the_outcomes() -> None:
    jobs = [
        job("tight", seconds=10, deadline=5),
        job("loose", seconds=10, deadline=50),
        job("none", seconds=1),
    ]
    outcomes = run(jobs, ONE, "fifo").jobs
    missed = [
        name
        for name, deadline, finish in zip(outcomes.id, outcomes.deadline, outcomes.finish, strict=True)
        if deadline != -1 and finish > deadline
    ]
    assert missed == ["tight"]


def test_kinds_of_work_reach_the_policy() -> None:
    """Replicas first, then training, then trials: a policy can tell them apart."""
    rank = {Kind.SERVICE: 0, Kind.TRAIN: 1, Kind.TRIAL: 2}
    by_kind = Order(lambda j, now: rank[j.traits.kind])
    jobs = [job("first", seconds=5)]
    jobs += [
        job(kind.value, seconds=10, at=1, kind=kind, group="g")
        for kind in (Kind.TRIAL, Kind.TRAIN, Kind.SERVICE)
    ]
    result = run(jobs, ONE, Scripted(in_order, by_kind))
    assert [result.start(k) for k in ("service", "train", "trial")] == [5, 15, 25]


def test_a_service_runs_until_it_is_told_to_stop() -> None:
    replica = job("replica", hours=1_000, kind=Kind.SERVICE)
    stop: Event = (at(100), CANCELLED, "replica", 0, None)
    result = watch(Scripted(fill), ONE, replica, job("next", seconds=10, at=1), events=(stop,))
    assert result.times()["next"] == (at(100), at(110))
    assert result.audit.ended["replica"] == "cancelled"


# -- failures and cancellation


def test_a_failed_job_is_tried_again_as_often_as_it_may() -> None:
    crash = job("crash", seconds=100, fails_after=10, retries=2)
    result = run([crash, job("next", seconds=5)], ONE, "fifo", discipline="strict")
    assert result.jobs.end == {"crash": "failed"}
    assert result.finish("crash") == float("inf")
    assert sum(s.end - s.start for s in result.stretches if s.job == "crash") == at(30)
    assert result.finish("next") == 35


def test_a_retry_goes_on_from_the_last_save() -> None:
    """The world and the core agree on what a crash leaves of the work."""
    crash = job("crash", seconds=100, fails_after=50, retries=1, checkpoint=Checkpoint(every=20 * SECOND))
    result = watched(Scripted(fill), ONE, [crash])
    assert result.audit.ended == {"crash": "failed"}
    assert result.steps[-1].now == at(50 + 10)


def test_core_and_world_agree_after_a_stop_and_a_crash() -> None:
    """The job is stopped with 40 s done, fails at 50 s of work and is tried again."""
    jobs = [job("crash", seconds=100, fails_after=50, retries=1), job("newcomer", seconds=10, at=40)]
    watched(Scripted(take_turns), ONE, jobs)


def test_a_cancelled_job_goes_wherever_it_is() -> None:
    saves = Traits(checkpoint=Checkpoint(save=5 * SECOND))
    jobs = (
        job("runs", seconds=100, traits=saves),
        job("waits", seconds=100, at=1),
        job("next", seconds=10, at=2),
    )
    gone: tuple[Event, ...] = ((at(10), CANCELLED, "waits", 0, None), (at(20), CANCELLED, "runs", 0, None))
    result = watch(Scripted(fill), ONE, *jobs, events=gone)
    assert result.times()["next"] == (at(25), at(35))  # it keeps its device while it saves
    assert result.audit.ended == {"waits": "cancelled", "runs": "cancelled", "next": "finished"}


def test_a_job_that_awaits_devices_may_be_cancelled() -> None:
    saves = Traits(checkpoint=Checkpoint(save=20 * SECOND))
    jobs = (job("victim", seconds=100, traits=saves), job("heir", seconds=10, at=50))
    gone: Event = (at(60), CANCELLED, "heir", 0, None)
    result = watch(Scripted(take_turns), ONE, *jobs, events=(gone,))
    assert result.audit.ended == {"heir": "cancelled", "victim": "finished"}


# -- answers, the calendar and holds


def test_a_job_can_be_refused() -> None:
    def admit(view: View) -> Plan:
        for waits in sorted(view.arrived, key=lambda j: j.seq):
            if waits.deadline is not None and view.now + waits.estimate > waits.deadline:
                plan = view.draft()
                plan.refuse(waits, "it cannot be done in time")
                return plan
        return fill(view)

    jobs = [job("late", seconds=100, deadline=50), job("fine", seconds=10, at=1)]
    result = watched(Scripted(admit), ONE, jobs)
    answers = [a for s in result.steps for a in s.actions if isinstance(a, Answer)]
    assert answers == [Answer("late", "refused", None, "it cannot be done in time")]
    assert "late" not in result.core.jobs
    assert result.times() == {"fine": (at(1), at(11))}
    assert run(jobs, ONE, Scripted(admit)).jobs.end == {"late": "refused"}


def test_a_promise_is_kept_with_the_job() -> None:
    promises: dict[str, int | None] = {}

    def promise(view: View) -> Plan:
        promises.update({j.id: j.promise for j in view.running.values()})
        plan = fill(view)
        for newcomer in view.arrived:
            plan.accept(newcomer, view.now + newcomer.estimate)
        return plan

    result = watched(Scripted(promise), ONE, [job("j", seconds=10), job("k", seconds=10, at=5)])
    assert promises["j"] == at(10)
    assert Answer("j", "accepted", at(10), "") in result.steps[0].actions


def test_a_demoted_job_is_ranked_anew() -> None:
    by_priority = Order(lambda j, now: -j.priority)

    def demote(view: View) -> Plan:
        plan = view.draft()
        for newcomer in view.arrived:
            if newcomer.user == "greedy" and newcomer.priority and newcomer.spots is None:
                plan.demote(newcomer, 0, "over its share")
        if not view.running and (first := view.queue.head()) is not None:
            plan.start(first)
        return plan

    jobs = [
        job("running", seconds=10),
        job("greedy", seconds=10, at=1, priority=9, user="greedy"),
        job("modest", seconds=10, at=2, priority=1),
    ]
    result = run(jobs, ONE, Scripted(demote, by_priority))
    assert (result.start("modest"), result.start("greedy")) == (10, 20)


def test_a_demoted_runner_yields_by_its_new_priority() -> None:
    order = Order(lambda j, now: (-j.priority,), lambda j, now: (j.priority, -j.seq))

    def demote(view: View) -> Plan:
        plan = fill(view)
        mine = view.running.get("a")
        if mine is not None and view.now == at(5) and mine.priority:
            plan.demote(mine, 0, "over its share")
        elif view.now < at(5):
            plan.review_at = at(5)
        return plan

    watched(Scripted(demote, order), ONE, [job("a", seconds=10, priority=9)])  # its exit is checked each step


def test_reservations_survive_and_vanish_on_start() -> None:
    seen: dict[int, list[str]] = {}

    def book(view: View) -> Plan:
        seen[view.now // SECOND] = sorted(view.calendar)
        plan = fill(view)
        for waits in view.queue:
            if waits.id not in view.calendar:
                plan.reserve(waits, Reservation(view.now + MINUTE, None, ((0, 1),)))
        return plan

    jobs = [job("a", seconds=10), job("b", seconds=10, at=1), job("c", seconds=5, at=2)]
    result = watched(Scripted(book), ONE, jobs)
    assert seen == {0: [], 1: [], 2: ["b"], 10: ["b", "c"], 20: ["c"], 25: []}
    assert result.core.calendar == {}


def test_a_job_that_starts_loses_its_reservation() -> None:
    def both(view: View) -> Plan:
        plan = view.draft()
        for waits in list(view.queue):
            plan.reserve(waits, Reservation(view.now, None, ((0, 1),)))
            plan.start(waits)
        return plan

    assert watched(Scripted(both), ONE, [job("a", seconds=10)]).core.calendar == {}


def test_a_hold_keeps_devices_free_until_it_expires() -> None:
    def keep_one_back(view: View) -> Plan:
        plan = view.draft()
        if view.now == 0 and not view.holds:
            plan.hold("offer", ((0, 0b01, 1000, 0, 0),), at(30))
        for waits in sorted(view.queue, key=lambda j: j.seq):
            plan.start(waits)
        return plan

    result = watched(Scripted(keep_one_back), TWO, [job("a", seconds=100), job("b", seconds=10)])
    assert result.times() == {"a": (0, at(100)), "b": (at(30), at(40))}


def test_a_hold_can_be_released() -> None:
    def offer(view: View) -> Plan:
        plan = view.draft()
        if not view.holds and view.now == 0:
            plan.hold("offer", ((0, 0b1, 1000, 0, 0),), at(30))
        elif view.now == at(5):
            plan.release("offer")
        for waits in sorted(view.queue, key=lambda j: j.seq):
            plan.start(waits)
        return plan

    result = watched(Scripted(offer), ONE, [job("a", seconds=10), job("b", seconds=10, at=5)])
    assert result.times() == {"a": (at(5), at(15)), "b": (at(15), at(25))}


# -- actions on nodes


def power_save(view: View) -> Plan:
    """Idle nodes are switched off; when something waits they are switched on again."""
    plan = fill(view)
    sleeping = view.memory if isinstance(view.memory, frozenset) else frozenset()
    busy = {spot[0] for j in view.running.values() for spot in j.spots or ()}
    if len(view.queue):
        for node in sorted(sleeping):
            plan.power(node, True)
        plan.memory = frozenset()
    else:
        idle = [n for n in range(len(view.cluster.nodes)) if n not in busy and view.room.is_open(n)]
        for node in idle:
            plan.power(node, False)
        plan.memory = sleeping | frozenset(idle)
    return plan


def test_idle_nodes_are_switched_off_and_on_again() -> None:
    """The second job finds a node that is off, and waits five minutes until it has booted."""
    jobs = [job("a", gpus=2, minutes=1), job("b", gpus=2, minutes=1, at=30)]
    result = watched(Scripted(power_save), PAIR, jobs)
    switched = [
        (s.now // SECOND, a.node, a.on) for s in result.steps for a in s.actions if isinstance(a, SetPower)
    ]
    assert switched[:2] == [(0, "n1", False), (30, "n1", True)]
    # At one minute the first node falls free, long before the second has booted.
    assert result.times()["b"] == (at(60), at(120))

    alone = watched(Scripted(power_save), ONE, [job("a", seconds=10), job("b", seconds=10, at=100)])
    assert alone.times()["b"] == (at(100) + 5 * MINUTE, at(110) + 5 * MINUTE)


def test_a_node_in_use_cannot_be_switched_off() -> None:
    from dovetail.model.errors import PolicyError

    def careless(view: View) -> Plan:
        plan = fill(view)
        plan.power(0, False)
        return plan

    with pytest.raises(PolicyError, match="in use"):
        watched(Scripted(careless), ONE, [job("a", seconds=10)])


def test_no_job_is_started_on_a_node_that_the_same_plan_switches_off() -> None:
    def off_first(view: View) -> Plan:
        plan = view.draft()
        if not view.running and view.room.is_open(0):
            plan.power(0, False)
        for waits in list(view.queue):
            plan.start(waits)
        return plan

    result = watched(Scripted(off_first), PAIR, [job("a", seconds=10)])
    start = next(a for s in result.steps for a in s.actions if isinstance(a, Start))
    assert start.spots[0][0] == 1


def test_a_node_is_rented_when_something_waits_and_given_back() -> None:
    """The second node is on the market: closed at first, taken when a job waits, given back when idle."""

    def market(view: View) -> Plan:
        plan = fill(view)
        used = {spot[0] for j in view.running.values() for spot in j.spots or ()}
        if view.number == 1:
            plan.rent(1, False)
        elif len(view.queue) and not view.room.is_open(1) and view.memory is None:
            plan.rent(1, True)
            plan.memory = "asked"
        elif not len(view.queue) and view.room.is_open(1) and 1 not in used:
            plan.rent(1, False)
            plan.memory = None
        return plan

    jobs = [job("a", gpus=2, hours=1), job("b", gpus=2, minutes=1, at=60)]
    result = watched(Scripted(market), PAIR, jobs)
    rents = [(s.now, a.keep) for s in result.steps for a in s.actions if isinstance(a, Rent)]
    assert rents == [(0, False), (at(60), True), (at(60) + 6 * MINUTE, False)]
    assert result.times()["b"] == (at(60) + 5 * MINUTE, at(60) + 6 * MINUTE)


def test_prices_reach_the_policy() -> None:
    """Wait for a good price: an hour of the node costs 3 at first and 1 from minute ten on."""

    def frugal(view: View) -> Plan:
        return fill(view) if view.prices[0] <= 2.0 else view.draft()

    dear = Cluster((Node("n0", 1, price=3.0),))
    cheaper: Event = (10 * MINUTE, PRICED, "n0", 0, 1.0)
    result = watch(Scripted(frugal), dear, job("j", seconds=10), events=(cheaper,))
    assert result.times()["j"][0] == 10 * MINUTE


# -- rounds


def test_with_a_quantum_decisions_fall_on_its_multiples() -> None:
    jobs = [job("a", seconds=90, at=1), job("b", seconds=10, at=2)]
    result = run(jobs, ONE, Scripted(fill, quantum=MINUTE))
    assert (result.start("a"), result.finish("a")) == (60, 150)
    assert (result.start("b"), result.finish("b")) == (180, 190)


def test_a_review_comes_when_it_was_asked_for() -> None:
    times: list[int] = []

    def clockwork(view: View) -> Plan:
        times.append(view.now)
        plan = fill(view)
        plan.review_at = view.now + at(3) if view.running or len(view.queue) else None
        return plan

    run([job("a", seconds=8)], ONE, Scripted(clockwork))
    assert times == [0, at(3), at(6), at(8)]


def test_a_run_can_be_cut_short() -> None:
    world = World(ONE)
    assert world.lost == 0
    result: Run = sim_run([job("a", hours=2)], ONE, Scripted(fill), until=HOUR)
    assert result.finished == 0
