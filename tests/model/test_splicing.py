"""Splicing: n workers on n/k GPUs, at 1/k of the speed and a little less (docs/decisions/0050)."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dovetail.core.fitting import fitting
from dovetail.core.room import Room
from dovetail.model.cluster import parse_cluster
from dovetail.model.errors import DovetailError
from dovetail.model.estimate import declared_speed, task_range
from dovetail.model.goodput import Goodput, StepTime
from dovetail.model.job import Job, Profile, Shape, Traits, gang
from dovetail.model.splicing import spliced, workers
from dovetail.sim.true_speed import ProfiledSpeed
from dovetail.testing.build import job
from dovetail.traces.formats import load_trace

ON = parse_cluster("1x8")
STEEP = Profile(curve={1: 1.0, 2: 1.9, 4: 3.6, 8: 4.0})
EXCHANGING = Profile(compute=0.1, gradient=1e9)


def rates(made: Job, tasks: int) -> tuple[float, float]:
    """The true speed and the estimate of so many tasks on one node."""
    spots = Room(ON).best(made.shape.of(tasks))
    assert spots is not None
    kind = ON.nodes[0].type.name
    return (
        ProfiledSpeed(ON).rate(made.shape, made.traits, spots),
        declared_speed(ON, made.shape, made.traits, tasks, kind).speed,
    )


def both(speed: float) -> object:
    """The truth and the estimate agree."""
    return pytest.approx((speed, speed))


@pytest.mark.parametrize("profile", [None, Profile(), STEEP, EXCHANGING])
@pytest.mark.parametrize(("tasks", "speed"), [(8, 1.0), (4, 0.49), (3, 0.98 / 3), (2, 0.245), (1, 0.1225)])
def test_workers_take_turns_whatever_the_curve_says(
    profile: Profile | None, tasks: int, speed: float
) -> None:
    made = job("a", gpus=8, splice=0.02, profile=profile)
    assert rates(made, tasks) == both(speed)


def test_a_rigid_job_stays_rigid_and_an_elastic_one_follows_its_curve() -> None:
    assert task_range(gang(8), Traits()) == (8, 8)
    assert task_range(gang(8), Traits(splice=0.0)) == (1, 8)
    assert task_range(gang(8), Traits(splice=0.0, least=2)) == (2, 8)
    by_curve = job("a", gpus=8, least=1, profile=STEEP)
    assert rates(by_curve, 4) == both(0.9)


def test_with_as_many_workers_as_it_may_have_gpus_a_job_is_faster_on_more() -> None:
    """It asks for 4 GPUs, on which its 8 workers take turns: with 8 they do not."""
    made = job("a", gpus=4, most=8, splice=0.02)
    assert workers(made.shape, made.traits) == 8
    assert rates(made, 8) == both(2 / 0.98)
    assert rates(made, 2) == both(0.5)


def test_the_goodput_of_a_spliced_job_is_that_of_its_workers() -> None:
    """A smaller world would lose less to its network; a spliced one has the steps of the whole."""
    step = StepTime(0.05, 0.001, 0.1, 0.02, 0.4, 0.1, 2.0)
    model = Goodput(
        steps={"gpu": step}, reference="gpu", batch=128, most_batch=4096, noise_scale=((1.0, 1000.0),)
    )
    made = job("a", gpus=8, splice=0.0, profile=Profile(goodput=model))
    whole = rates(made, 8)[0]
    assert rates(made, 4) == both(whole / 2)
    elastic = replace(made, traits=replace(made.traits, splice=None))
    assert rates(elastic, 4)[0] > 0.51 * whole


def test_a_job_wider_than_the_cluster_keeps_its_workers() -> None:
    wide = job("a", gpus=16, minutes=10, splice=0.1)
    smaller = fitting(Room(ON), wide)
    assert smaller is not None
    assert (smaller.shape.gpus, workers(smaller.shape, smaller.traits)) == (8, 16)
    told = spliced(smaller.shape, smaller.traits, 4), spliced(wide.shape, wide.traits, 4)
    assert smaller.work / told[0] == pytest.approx(wide.work / told[1])


@pytest.mark.parametrize("wrong", [-0.1, 1.0])
def test_what_it_costs_is_a_part_of_the_speed(wrong: float) -> None:
    with pytest.raises(ValueError, match="splice is a part of the speed"):
        Traits(splice=wrong)


def test_a_trace_says_which_jobs_can_be_spliced(tmp_path: Path) -> None:
    row = {"id": "a", "submit": 0, "gpus": 4, "duration": 60, "traits": {"splice": 0.03, "most": 8}}
    file = tmp_path / "t.jsonl"
    file.write_text(json.dumps(row) + "\n")
    (made,) = load_trace(str(file)).jobs
    assert made.traits == Traits(splice=0.03, least=1, most=8)
    file.write_text(json.dumps({**row, "traits": {"splice": 2}}) + "\n")
    with pytest.raises(DovetailError, match="splice is a part of the speed"):
        load_trace(str(file))


def test_a_job_without_gpus_is_not_spliced() -> None:
    shape = Shape(2, 0, cpus=1000)
    assert ProfiledSpeed(ON).rate(shape, Traits(splice=0.1), ((0, 0, 0, 2000, 0),)) == 1.0
