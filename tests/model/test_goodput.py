"""Goodput: step times, efficiency, the batch that a job sets, and how truth and estimate read them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.core.active import ActiveJob
from dovetail.core.core import Core, Step
from dovetail.core.fitting import fitting
from dovetail.core.journal import job_from_json, job_to_json
from dovetail.core.room import Room
from dovetail.core.snapshot import restored, snapshot
from dovetail.model.cluster import Cluster, GpuType, Node, parse_cluster
from dovetail.model.estimate import ASSUMED, DECLARED, IMPOSSIBLE, KNOWN, Estimate, speed_of, task_range
from dovetail.model.event import PROGRESSED
from dovetail.model.goodput import (
    Goodput,
    StepTime,
    best_batch,
    efficiency,
    goodput,
    noise_at,
    relative_speed,
    step_time,
)
from dovetail.model.grant import FULL, Terms, nodes_of
from dovetail.model.job import Job, Profile, Traits, gang
from dovetail.model.units import SECOND
from dovetail.policies.classic import fifo
from dovetail.policies.registry import POLICIES
from dovetail.sim.true_speed import ProfiledSpeed
from dovetail.testing.build import cluster, job, run
from dovetail.testing.invariants import watched
from dovetail.testing.strategies import Scene, goodputs, scenes
from dovetail.testing.suite import searched

STEP = StepTime(0.1, 0.002, node_sync=0.05, node_sync_more=0.01, network_sync=0.2, network_sync_more=0.03)
PLAIN = Goodput({"": STEP}, 100)


def adaptive(**more: Any) -> Goodput:
    return Goodput(**{"steps": {"": STEP}, "batch": 100, "most_batch": 10_000, **more})


# -- the parts


def test_efficiencies_of_the_paper() -> None:
    assert efficiency(512, 128, 1000) == pytest.approx(0.746, abs=5e-4)
    assert efficiency(2048, 128, 1000) == pytest.approx(0.370, abs=5e-4)
    assert efficiency(128, 128, 0) == 1.0


def test_a_step_computes_and_exchanges_gradients() -> None:
    assert step_time(PLAIN, "", 1, False, 100) == pytest.approx(0.1 + 0.2)  # nothing to exchange
    assert step_time(PLAIN, "", 2, False, 100) == pytest.approx(0.1 + 0.1 + 0.05)
    assert step_time(PLAIN, "", 4, False, 100) == pytest.approx(0.1 + 0.05 + 0.05 + 2 * 0.01)
    assert step_time(PLAIN, "", 4, True, 100) == pytest.approx(0.1 + 0.05 + 0.2 + 2 * 0.03)


def test_computation_and_exchange_overlap() -> None:
    two = Goodput({"": replace(STEP, overlap=2.0)}, 100)
    assert step_time(two, "", 2, False, 100) == pytest.approx(math.hypot(0.2, 0.05))
    ten = Goodput({"": replace(STEP, overlap=10.0)}, 100)
    assert step_time(ten, "", 2, False, 100) == pytest.approx(0.2, rel=1e-6)


def test_a_batch_that_a_gpu_cannot_hold_takes_several_passes_and_one_exchange() -> None:
    small = Goodput({"": STEP}, 100, most_local=25)
    assert step_time(small, "", 2, False, 100) == pytest.approx(2 * (0.1 + 0.05) + 0.05)
    assert step_time(small, "", 4, False, 100) == step_time(PLAIN, "", 4, False, 100)


def test_more_gpus_than_samples_are_of_no_use() -> None:
    one = Goodput({"": StepTime(0.1, 0.01)}, 4)
    assert step_time(one, "", 8, False, 4) == step_time(one, "", 4, False, 4)


def test_the_noise_scale_is_piecewise_over_the_work() -> None:
    model = adaptive(noise_scale=((1, 10), (3, 1000)))
    assert noise_at(model, 0, 100) == (10.0, 25)
    assert noise_at(model, 25, 100) == (1000.0, 100)
    assert noise_at(PLAIN, 7, 100) == (0.0, 100)


# -- the batch that the job sets


@given(model=goodputs(), gpus=st.sampled_from((1, 2, 3, 8)), across=st.booleans(), noise=st.floats(0, 1e4))
@searched(200)
def test_the_batch_of_the_agent_is_the_best_of_all(
    model: Goodput, gpus: int, across: bool, noise: float
) -> None:
    """By trying every batch that takes no more passes than the first one."""
    batch, found = best_batch(model, "", gpus, across, noise)
    passes = -(-model.batch // (gpus * model.most_local)) if model.most_local else 1
    most = min(max(model.batch, model.most_batch), passes * gpus * (model.most_local or 10_000))
    every = [goodput(model, "", gpus, across, size, noise) for size in range(model.batch, most + 1)]
    assert model.batch <= batch <= most
    assert found == pytest.approx(max(every), rel=1e-8)


def test_a_job_whose_gradient_has_no_noise_keeps_its_batch() -> None:
    assert {best_batch(adaptive(), "", gpus, gpus > 4, 0.0)[0] for gpus in range(1, 33)} == {100}


def test_with_more_noise_and_with_more_gpus_the_batch_is_larger() -> None:
    model = adaptive()
    by_noise = [best_batch(model, "", 4, False, noise)[0] for noise in (0, 100, 1_000, 10_000)]
    by_gpus = [best_batch(model, "", gpus, False, 1_000)[0] for gpus in (1, 2, 4, 8)]
    assert by_noise == sorted(set(by_noise))
    assert by_gpus == sorted(set(by_gpus))


def test_the_limits_of_the_batch_hold() -> None:
    assert best_batch(adaptive(most_batch=150), "", 8, False, 1e6)[0] == 150
    assert best_batch(adaptive(most_local=40), "", 8, False, 1e6)[0] == 320
    assert best_batch(adaptive(most_local=40), "", 1, False, 1e6)[0] == 120  # three passes: 100 needs them
    assert best_batch(PLAIN, "", 8, False, 1e6)[0] == 100
    assert goodput(adaptive(), "", 1, False, 99, 0.0) == goodput(PLAIN, "", 1, False, 101, 0.0) == 0.0


def test_speed_is_relative_to_the_reference_run() -> None:
    model = adaptive(noise_scale=((1, 1000),))
    assert relative_speed(model, "", (2, False), (2, False), None, 100) == 1.0
    best, found = best_batch(model, "", 4, False, 1000)
    speed = relative_speed(model, "", (4, False), (2, False), None, None)
    assert speed == found / goodput(model, "", 2, False, 100, 1000)
    assert speed == relative_speed(model, "", (4, False), (2, False), 1000.0, best)
    assert relative_speed(model, "", (4, False), (2, False), 0.0, None) < speed  # less noise


def test_values_that_cannot_be() -> None:
    for figures in ({}, {"compute": -1.0, "sample": 2.0}, {"compute": 1.0, "overlap": 0.5}):
        with pytest.raises(ValueError, match=r"."):
            StepTime(**figures)
    wrong: list[dict[str, Any]] = [{"batch": 0}, {"most_batch": 50}, {"reference": "K80"}]
    for more in (*wrong, {"noise_scale": ((0, 1),)}):
        with pytest.raises(ValueError, match=r"."):
            adaptive(**more)
    with pytest.raises(ValueError, match="goodput says what curve, batch would say"):
        Profile(goodput=PLAIN, curve={1: 1.0}, batch=32)


# -- what a policy is told


def seen(made: Job, noise: float | None = None) -> ActiveJob:
    active = ActiveJob(made, 0, 0)
    active.noise_scale = noise
    return active


def test_the_view_answers_by_tasks_type_nodes_and_batch() -> None:
    on = parse_cluster("2x4:V100,2x4:K80")
    fast = replace(STEP, compute=0.05, sample=0.001)
    model = adaptive(steps={"V100": fast, "K80": STEP}, reference="V100", noise_scale=((1, 500), (1, 2000)))
    made = job("a", gpus=2, least=1, most=8, profile=Profile(goodput=model))

    def speed(noise: float | None = None, **asked: Any) -> Estimate:
        return speed_of(DECLARED, on, seen(made, noise), **asked)

    assert speed(batch=100) == (1.0, KNOWN)
    assert speed(type="K80", batch=100) == (
        goodput(model, "K80", 2, False, 100, 0) / goodput(model, "V100", 2, False, 100, 0),
        KNOWN,
    )
    assert speed(tasks=4, nodes=2).speed < speed(tasks=4).speed
    assert speed(tasks=8) == speed(tasks=8, nodes=2)  # more than a node has
    assert speed(2000.0) > speed(500.0) == speed()  # as reported; before that as it begins
    assert speed(tasks=9) == IMPOSSIBLE
    assert speed(batch=99).speed == 0.0


def test_a_type_without_figures_scales_from_the_reference() -> None:
    on = Cluster((Node("a", 1, GpuType("A", speed=2.0)), Node("b", 1, GpuType("B", speed=1.0))))
    made = seen(job("a", profile=Profile(goodput=PLAIN, speeds={"B": 0.5})))
    assert speed_of(DECLARED, on, made, type="A") == (2.0, ASSUMED)
    assert speed_of(DECLARED, on, made, type="B") == (0.5, KNOWN)


def test_a_curve_may_differ_by_type() -> None:
    on = parse_cluster("2x4:V100,2x4:K80")
    profile = Profile(
        speeds={"V100": 1.0, "K80": 0.25}, curve={1: 1.0, 4: 4.0}, curves={"V100": {1: 1.0, 4: 2.0}}
    )
    made = job("a", gpus=1, least=1, most=4, profile=profile)
    assert [speed_of(DECLARED, on, seen(made), tasks=4, type=kind) for kind in ("V100", "K80")] == [
        (2.0, KNOWN),
        (1.0, KNOWN),
    ]
    truth = ProfiledSpeed(on)
    both = ((0, 0b11, 1000, 0, 0), (2, 0b11, 1000, 0, 0))
    assert truth.rate(made.shape, made.traits, ((0, 0b1111, 1000, 0, 0),)) == 2.0
    assert truth.rate(made.shape, made.traits, both) == 1.0  # the slowest of its types


@given(
    scene=scenes(most=3), model=goodputs(), noise=st.none() | st.sampled_from((0.0, 800.0)), data=st.data()
)
@searched(100)
def test_a_right_model_declares_the_true_speed_of_a_job_alone(
    scene: Scene, model: Goodput, noise: float | None, data: st.DataObject
) -> None:
    made = with_model(data.draw(st.sampled_from(scene.jobs)), model)
    tasks = data.draw(st.integers(*task_range(made.shape, made.traits)))
    batch = data.draw(st.sampled_from((None, model.batch, model.batch + 3)))
    if made.shape.slice or made.shape.milli < 1_000 or not made.shape.each:
        return
    spots = Room(scene.cluster).anywhere(made.shape.of(tasks))
    if spots is None:
        return
    truth = ProfiledSpeed(scene.cluster).rate(made.shape, made.traits, spots, Terms(batch), (), noise)
    active = seen(made, noise)
    active.begin(0, spots, FULL, 0)
    found = speed_of(DECLARED, scene.cluster, active, tasks=tasks, nodes=len(nodes_of(spots)), batch=batch)
    assert found.speed == truth


def with_model(made: Job, model: Goodput) -> Job:
    old = made.traits.profile or Profile()
    profile = Profile(speeds=old.speeds, use=old.use, hurt=old.hurt, goodput=model)
    return replace(made, traits=replace(made.traits, profile=profile))


# -- in the simulator


def test_a_job_gets_faster_as_its_noise_grows_and_reports_it() -> None:
    told: list[tuple[float, ...]] = []

    def keep(core: Core, step: Step) -> None:
        told.extend((event[0] / SECOND, *event[4]) for event in step.events if event[1] == PROGRESSED)
        if "x" in core.jobs and step.now:
            assert core.jobs["x"].noise_scale == told[-1][3]

    model = adaptive(noise_scale=((1, 0), (1, 2_000)))
    faster = relative_speed(model, "", (4, False), (4, False), 2_000.0, None)
    made = job("x", gpus=4, seconds=800, profile=Profile(goodput=model))
    result = run([made], cluster(gpus=4), "fifo", on_step=keep)
    assert faster > 1.5
    assert result.jct() == [pytest.approx(400 + 400 / faster, abs=1e-5)]
    assert told == [(0.0, 0, 1.0, 0.0), (400.0, 400 * SECOND, faster, 2_000.0)]


def test_terms_may_set_the_batch() -> None:
    model = adaptive(noise_scale=((1, 1_000),))
    profile = Profile(goodput=model)
    spots = ((0, 0b1111, 1000, 0, 0),)
    rate = ProfiledSpeed(cluster(gpus=4)).rate(gang(4), Traits(profile=profile), spots, Terms(batch=400))
    assert rate == relative_speed(model, "", (4, False), (4, False), None, 400)


@pytest.mark.parametrize("name", ["fifo", "srtf", "afs"])
@given(scene=scenes(lossy=True, most=8), models=st.lists(goodputs(), min_size=8, max_size=8))
@searched(20)
def test_progress_is_the_integral_of_speed(name: str, scene: Scene, models: list[Goodput]) -> None:
    """The audit, which keeps its own books, agrees at every step."""
    jobs = tuple(with_model(made, model) for made, model in zip(scene.jobs, models, strict=False))
    result = watched(POLICIES.make(name), scene.cluster, jobs, incidents=scene.incidents)
    assert set(result.audit.ended) == {made.id for made in jobs}


def test_a_job_that_asks_for_more_than_the_cluster_has_keeps_its_work() -> None:
    """Its work is counted in seconds of a smaller, slower reference run."""
    model = adaptive(noise_scale=((1, 1_000),))
    made = job("x", gpus=8, seconds=1_000, least=1, most=8, profile=Profile(goodput=model))
    on = cluster(gpus=4)
    smaller = fitting(Room(on), made)
    assert smaller is not None
    assert smaller.shape.gpus == 4
    slower = goodput(model, "", 8, True, 100, 0) / goodput(model, "", 4, False, 100, 0)
    assert smaller.work == pytest.approx(1_000 * SECOND * slower, abs=1)


# -- written and read


def test_a_job_reads_back_with_its_model() -> None:
    steps = {"V100": STEP, "K80": replace(STEP, overlap=3.0)}
    model = adaptive(steps=steps, reference="V100", noise_scale=((1, 5), (2, 50)), most_local=64)
    for profile in (Profile(goodput=model), Profile(curves={"V100": {1: 1.0, 2: 1.5}})):
        before = job("x", seconds=8, profile=profile)
        after = job_from_json(job_to_json(before))
        assert after == before
        assert hash(after.traits) == hash(before.traits)


def test_a_snapshot_keeps_what_a_job_reported() -> None:
    on = cluster(gpus=4)
    taken: list[float | None] = []

    def keep(core: Core, step: Step) -> None:
        now = snapshot(core)
        taken.extend(one.noise_scale for one in restored(now, on, fifo()).jobs.values())
        for kept in now["jobs"]:
            del kept["state"]["noise_scale"]  # as earlier releases wrote it
        restored(now, on, fifo())

    run([job("x", seconds=8, profile=Profile(goodput=adaptive()))], on, "fifo", on_step=keep)
    assert 0.0 in taken
