"""Optimus: time to convergence predicted from reported losses, and workers where they save most of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dovetail.core.core import Core, Step
from dovetail.mechanisms.estimate.convergence import predicted_epochs
from dovetail.mechanisms.place.placement import scattered
from dovetail.model.cluster import Cluster
from dovetail.model.estimate import Declared, Estimate
from dovetail.model.grant import devices_of, nodes_of
from dovetail.model.job import Arch, Job, Shape
from dovetail.model.loss import LossCurve, epochs_to_converge
from dovetail.model.server_speed import ServerSpeed
from dovetail.model.view import JobView, Order
from dovetail.policies.optimus import Memory, Optimus, optimus, sizes_for
from dovetail.sim.run import Run
from dovetail.solve.loss_fit import _with_floor
from dovetail.testing.build import SECOND, Profile, cluster, job, run
from dovetail.testing.claims import claim, tells_apart
from dovetail.testing.mutants import mutant

OPTIMUS = "dovetail.policies.optimus"
ESTIMATE = "dovetail.mechanisms.estimate"
SIXTEEN, THREE = cluster(nodes=2, gpus=8), cluster(nodes=1, gpus=3)
THRESHOLD, PATIENCE = 0.01, 3


def without_floor(points: Sequence[tuple[int, float]], threshold: float, patience: int) -> int:
    """The epochs in all by the best curve that falls to 0."""
    epochs, losses = np.array([row[0] for row in points]), np.array([row[1] for row in points])
    _, _, slope, start = _with_floor(epochs.astype(float), losses, 0.0)
    return epochs_to_converge(LossCurve(slope, max(start, 1e-9)), threshold, patience)


def as_asked(view: Any, jobs: Sequence[JobView], gain: Any) -> dict[str, int]:
    """Jobs start with what they ask for, and the rest is dealt."""
    sizes = sizes_for(view, jobs, gain)
    free, asked = view.cluster.gpus, dict[str, int]()
    for each in sorted(jobs, key=lambda job: job.seq):
        asked[each.id] = each.shape.tasks if each.shape.tasks <= free else 0
        free -= asked[each.id]
    return {**sizes, **asked}


def by_speed(self: Optimus, view: Any, losses: Any) -> dict[str, float]:
    """The same work for all jobs: the gain is of speed, not of the time that is left."""
    return {job.id: 1e9 for job in view.table().jobs}


MUTANTS = (
    mutant(
        "optimus",
        "loss",
        "losses are ignored, and the declared durations count",
        killed_by="test_the_job_with_ten_times_the_epochs_gets_more_workers",
        replace={f"{OPTIMUS}:predicted_epochs": lambda *_: None},
    ),
    mutant(
        "optimus",
        "time left",
        "what counts is the gain of speed, whatever is left to do",
        killed_by="test_the_job_with_ten_times_the_epochs_gets_more_workers",
        replace={f"{OPTIMUS}:Optimus.remaining": by_speed},
    ),
    mutant(
        "optimus",
        "loss",
        "the curve that is fitted falls to 0",
        killed_by="test_epochs_are_predicted_within_a_fifth",
        replace={f"{ESTIMATE}.convergence:_predicted": without_floor},
    ),
    mutant(
        "optimus",
        "a worker each",
        "jobs start with as many workers as they ask for",
        killed_by="test_every_active_job_has_a_worker",
        replace={f"{OPTIMUS}:sizes_for": as_asked},
    ),
    mutant(
        "optimus",
        "early phase",
        "rough predictions count like good ones",
        killed_by="test_a_rough_prediction_counts_a_little_less",
        options={"early": 1.0},
    ),
    mutant(
        "optimus",
        "early phase",
        "rough predictions count half",
        killed_by="test_a_rough_prediction_counts_a_little_less",
        options={"early": 0.5},
    ),
    mutant(
        "optimus",
        "speed model",
        "speeds are taken as they are estimated, not fitted",
        killed_by="test_a_fitted_speed_finds_the_number_of_workers",
        replace={f"{ESTIMATE}.server_speeds:fits": lambda job: False},
    ),
    mutant(
        "optimus",
        "speed model",
        "rates measured in the course of training are ignored",
        killed_by="test_measured_rates_correct_the_sample_runs",
        replace={f"{ESTIMATE}.server_speeds:_measured": lambda view, job: None},
    ),
    mutant(
        "optimus",
        "dominant resource",
        "gains are counted per GPU",
        killed_by="test_gains_count_per_dominant_resource",
        replace={f"{OPTIMUS}:dominant": lambda amount, total: amount[0] / total[0]},
    ),
    mutant(
        "optimus",
        "placement",
        "nodes are filled one after the other",
        killed_by="test_workers_are_spread_evenly",
        factory=lambda **options: replace(optimus(**options), place=scattered),
    ),
    mutant(
        "optimus",
        "placement",
        "jobs are placed in order of arrival",
        killed_by="test_the_smallest_job_is_placed_first",
        replace={f"{OPTIMUS}:smallest_first": lambda sizes: Order(key=lambda job, now: job.arrived_at)},
    ),
)


def training(name: str, curve: LossCurve, *, epoch: float, declared: float, **more: Any) -> Job:
    """A job that trains until its loss hardly falls; an epoch takes so many minutes on what it asks for."""
    epochs = epochs_to_converge(curve, THRESHOLD, PATIENCE)
    profile = Profile(curve={n: n**0.8 for n in range(1, 17)}, loss=curve)
    options: dict[str, Any] = {"gpus": 8, "least": 1, "most": 16, **more}
    made = job(name, minutes=epochs * epoch, profile=profile, **options)
    traits = replace(made.traits, epochs=epochs)
    return replace(made, estimate=round(declared * 60) * SECOND, traits=traits)


def sizes(result: Run, at: float) -> dict[str, int]:
    """GPUs of each job at a time."""
    now = round(at * SECOND)
    return {s.job: devices_of(s.spots) for s in result.stretches if s.start <= now < s.end}


def nodes(result: Run, at: float) -> dict[str, list[int]]:
    """GPUs on each node of each job at a time."""
    now = round(at * SECOND)
    held = {s.job: s.spots for s in result.stretches if s.start <= now < s.end}
    return {
        name: sorted(sum(s[1].bit_count() for s in spots if s[0] == node) for node in nodes_of(spots))
        for name, spots in held.items()
    }


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


@claim("optimus", "of two jobs with the same speeds the one with ten times the epochs left gets more workers")
def test_the_job_with_ten_times_the_epochs_gets_more_workers() -> None:
    """102 epochs and 11, of 6 minutes on 8 GPUs; both declare 5 hours. Only their losses tell them apart."""
    long, short = LossCurve(1.0), LossCurve(1.0, floor=1.0)
    jobs = [training("long", long, epoch=6, declared=300), training("short", short, epoch=6, declared=300)]
    fair = run(jobs, SIXTEEN, "drf")

    def check(result: Run) -> None:
        held = sizes(result, 3_000)
        assert held["long"] >= 3 * held["short"] > 0
        assert mean(result.jct()) < 0.8 * mean(fair.jct())

    tells_apart(check, run(jobs, SIXTEEN, "optimus"), fair)


CURVES = (
    LossCurve(1.0),
    LossCurve(0.2, 0.5, 0.1),
    LossCurve(0.05, 0.3, 0.2),
    LossCurve(0.5, 0.2, 0.3),
)


@claim(
    "optimus", "after half of the training the epochs in all are predicted within 20 % on noise-free losses"
)
def test_epochs_are_predicted_within_a_fifth() -> None:
    for curve in CURVES:
        made = training("x", curve, epoch=10, declared=10, most=8)
        true, found = made.traits.epochs, list[int]()

        def keep(core: Core, step: Step, true: int = true, found: list[int] = found) -> None:
            if isinstance(core.memory, Memory):
                points = core.memory.losses.get("x", ())
                if points and true <= 2 * points[-1].epoch:
                    found.append(predicted_epochs(points, THRESHOLD, PATIENCE) or 0)

        def check(predicted: float, true: int = true) -> None:
            assert abs(predicted - true) <= 0.2 * true

        run([made], cluster(nodes=1, gpus=8), "optimus", on_step=keep)
        assert len(found) > 1
        for each in found:
            tells_apart(check, each, made.estimate / (10 * 60 * SECOND))


@claim("optimus", "every active job has at least one worker, whatever other jobs would gain")
def test_every_active_job_has_a_worker() -> None:
    """Twelve jobs that ask for 8 of 16 GPUs; the first ones are much longer."""
    curves = {n: n**0.9 for n in range(1, 17)}
    jobs = [
        job(f"j{i}", gpus=8, minutes=600 if i < 2 else 60, least=1, most=16, profile=Profile(curve=curves))
        for i in range(12)
    ]

    def check(result: Run) -> None:
        for at in range(1, 3_600, 600):
            assert set(sizes(result, at)) == {each.id for each in jobs}

    tells_apart(check, run(jobs, SIXTEEN, "optimus"), run(jobs, SIXTEEN, "drf"))


@claim("optimus", "the gain of a job whose prediction is still rough counts 5 % less, and no more than that")
def test_a_rough_prediction_counts_a_little_less() -> None:
    """The third GPU goes to the job that does not report; if the other has 10 % more to do, to that one."""
    curve = {1: 1.0, 2: 1.8}

    def held(policy: str, minutes: float) -> dict[str, int]:
        jobs = [
            job("reports", minutes=minutes, least=1, most=2, profile=Profile(curve=curve)),
            job("declares", minutes=100, least=1, most=2, profile=Profile(curve=curve)),
        ]
        jobs[0] = replace(jobs[0], traits=replace(jobs[0].traits, epochs=10))
        return sizes(run(jobs, THREE, policy), 1)

    def check(policy: str) -> None:
        assert held(policy, 100) == {"reports": 1, "declares": 2}
        assert held(policy, 110) == {"reports": 2, "declares": 1}

    tells_apart(check, "optimus", "edl")


class SmallRuns(Declared):
    """Right for up to `known` tasks; beyond, each task is taken to be worth as much as before."""

    def __init__(self, known: int) -> None:
        self.known = known

    def estimate(
        self, cluster: Cluster, job: JobView, tasks: int, type: str, nodes: int | None, batch: int | None
    ) -> Estimate:
        known = min(tasks, self.known)
        found = super().estimate(cluster, job, known, type, nodes, batch)
        return found._replace(speed=found.speed * tasks / known)


def over_servers(minutes: float) -> Job:
    """A synchronous step takes 36/u + 1 + u seconds with u workers and u servers: 6 of each are best."""
    profile = Profile(server_speed=ServerSpeed((36.0, 0.5, 0.5, 0.5, 0.5)))
    made = job("x", gpus=4, minutes=minutes, least=1, most=16, profile=profile)
    return replace(made, traits=replace(made.traits, arch=Arch.PARAMETER_SERVER))


@claim("optimus", "a speed model fitted to runs on 1, 2 and 4 workers finds the number that is fastest, 6")
def test_a_fitted_speed_finds_the_number_of_workers() -> None:
    made = over_servers(100)

    def check(result: Run) -> None:
        assert sizes(result, 1) == {"x": 6}
        assert result.jct()[0] == pytest.approx(100 * 60 * 13 / 14, rel=0.11)

    ours, theirs = (run([made], SIXTEEN, name, estimator=SmallRuns(4)) for name in ("optimus", "edl"))
    tells_apart(check, ours, theirs)


@claim("optimus", "where the sample runs mislead, rates measured in training correct the model")
def test_measured_rates_correct_the_sample_runs() -> None:
    """By its sample runs the job scales linearly; it starts on all 16 GPUs, where it is slower than on 4."""
    made = over_servers(300)

    def check(result: Run) -> None:
        assert sizes(result, 1) == {"x": 16}
        assert sizes(result, 601) == {"x": 6}

    ours, theirs = (run([made], SIXTEEN, name, estimator=SmallRuns(1)) for name in ("optimus", "edl"))
    tells_apart(check, ours, theirs)


@claim("optimus", "gains are counted per unit of the dominant resource of a worker")
def test_gains_count_per_dominant_resource() -> None:
    """`heavy` takes 12 of 32 cores a worker, `light` a quarter of the GPUs: 1.2 / 0.375 < 1 / 0.25."""
    on = cluster(nodes=1, gpus=4, cpus=32_000)
    curve = Profile(curve={1: 1.0, 2: 1.9})
    jobs = [
        job("heavy", minutes=120, least=1, most=2, shape=Shape(cpus=12_000), profile=curve),
        job("light", minutes=100, least=1, most=2, shape=Shape(cpus=1_000), profile=curve),
        job("fixed", gpus=1, minutes=300),
    ]

    def check(result: Run) -> None:
        assert sizes(result, 1) == {"heavy": 1, "light": 2, "fixed": 1}

    tells_apart(check, run(jobs, on, "optimus"), run(jobs, on, "edl"))


@claim("optimus", "a job runs on the fewest nodes that hold it, with the same number of workers on each")
def test_workers_are_spread_evenly() -> None:
    jobs = [job("wide", gpus=6, minutes=10), job("narrow", gpus=4, minutes=10)]
    on = cluster(nodes=3, gpus=4)

    def check(result: Run) -> None:
        assert nodes(result, 1) == {"wide": [3, 3], "narrow": [4]}

    tells_apart(check, run(jobs, on, "optimus"), run(jobs, on, "edl"))


@claim("optimus", "the smallest job is placed first, so that it needs the fewest nodes")
def test_the_smallest_job_is_placed_first() -> None:
    jobs = [job("large", gpus=10, minutes=10), job("small", gpus=6, minutes=10)]

    def check(result: Run) -> None:
        assert nodes(result, 1)["small"] == [6]

    tells_apart(check, run(jobs, SIXTEEN, "optimus"), run(jobs, SIXTEEN, "kueue"))
