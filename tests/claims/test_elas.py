"""E-LAS: what a job has had, read together with how far that brought it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from dovetail.mechanisms.place.placement import Placement, scattered
from dovetail.mechanisms.preempt.full_ranking import by_fit
from dovetail.model.job import Job
from dovetail.model.view import JobView, Plan, View
from dovetail.policies.composed import Composed
from dovetail.policies.elas import e_las, epochs_done, extrapolated_service
from dovetail.sim.run import Run
from dovetail.testing.build import HOUR, SECOND, Checkpoint, Incident, cluster, job, run
from dovetail.testing.claims import claim, tells_apart
from dovetail.testing.mutants import mutant

SAVES = Checkpoint(every=SECOND)
ONE = cluster(nodes=1, gpus=1)


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def by_progress(job: JobView, now: int) -> float:
    return 1.0 - epochs_done(job, now) / max(1, job.traits.epochs)


def by_time(job: JobView, now: int) -> float:
    return extrapolated_service(job, now) / job.gpus


def last_without_epochs(job: JobView, now: int) -> float:
    return extrapolated_service(job, now) if epochs_done(job, now) else float("inf")


def running_first(view: View, place: Placement, jobs: Sequence[JobView]) -> Plan:
    return by_fit(view, place, sorted(jobs, key=lambda job: job.spots is None))


def split_at_once(**options: Any) -> Composed:
    made = e_las(**options)
    assert isinstance(made, Composed)
    return replace(made, place=scattered)


KEY = "dovetail.policies.elas:extrapolated_service"
MUTANTS = (
    mutant(
        "e-las",
        "progress",
        "attained service alone counts",
        killed_by="test_reported_epochs_lower_the_mean",
        replace={KEY: lambda job, now: job.service_at(now)},
    ),
    mutant(
        "e-las",
        "attained service",
        "progress alone counts",
        killed_by="test_service_and_gpus_count_beside_progress",
        replace={KEY: by_progress},
    ),
    mutant(
        "e-las",
        "attained service",
        "time counts, not GPU-time",
        killed_by="test_service_and_gpus_count_beside_progress",
        replace={KEY: by_time},
    ),
    mutant(
        "e-las",
        "service before the first epoch",
        "a job without an epoch goes last",
        killed_by="test_jobs_without_epochs_are_ranked_by_service",
        replace={KEY: last_without_epochs},
    ),
    mutant(
        "e-las",
        "preemption",
        "running jobs are left alone",
        killed_by="test_jobs_without_epochs_are_ranked_by_service",
        replace={"dovetail.policies.elas:by_fit": running_first},
    ),
    mutant(
        "e-las",
        "hysteresis",
        "any difference preempts",
        killed_by="test_nearly_equal_jobs_do_not_preempt_each_other",
        options={"hysteresis": 0.0},
    ),
    mutant(
        "e-las",
        "consolidation",
        "a job that fits on a node is split",
        killed_by="test_a_job_that_fits_on_a_node_is_not_split",
        factory=split_at_once,
    ),
)


@claim(
    "e-las",
    "a job at 90 % after 4 h goes before one at 5 % after 1 h; by service alone the order is the reverse",
)
def test_progress_outweighs_service() -> None:
    jobs = [
        job("X", gpus=8, hours=4 / 0.9, epochs=100, checkpoint=SAVES),
        job("Y", gpus=8, hours=20, at=3 * 3600, epochs=100, checkpoint=SAVES),
    ]
    # At 4 h the second node is lost, and with it Y's place: one of the two must wait.
    world: dict[str, Any] = {"incidents": [Incident("n1", 4 * HOUR)]}
    two = cluster(nodes=2, gpus=8)

    def check(result: Run) -> None:
        assert result.jct("X") == [4 / 0.9 * 3600]  # never displaced

    least_service = run(jobs, two, "tiresias-l", thresholds=[8 * 2 * 3600.0], **world)
    tells_apart(check, run(jobs, two, "e-las", **world), least_service)


@claim(
    "e-las",
    "remaining GPU-time counts: 3 GPU-hours at 25 % go before 8 GPU-hours at 50 %",
)
def test_service_and_gpus_count_beside_progress() -> None:
    jobs = [
        job("wide", gpus=8, hours=2, epochs=100, checkpoint=SAVES),
        job("narrow", gpus=1, hours=4, epochs=100, checkpoint=SAVES),
    ]
    # At 1 h the node of `narrow` is lost. By progress or by time `wide` would go on: 1 h against 3 h.
    world: dict[str, Any] = {"incidents": [Incident("n1", HOUR)]}
    two = cluster(nodes=2, gpus=8)

    def check(result: Run) -> None:
        assert result.jct("narrow") == [4 * 3600]

    tells_apart(check, run(jobs, two, "e-las", **world), run(jobs, two, "srtf", **world))


@claim("e-las", "a waiting job preempts a running one only if it ranks lower by more than a tenth")
def test_nearly_equal_jobs_do_not_preempt_each_other() -> None:
    jobs = [job(f"{i}", hours=4) for i in range(2)]  # without epochs: the waiting job has less service

    def check(result: Run) -> None:
        assert result.preemptions < 60  # in 480 periods

    tells_apart(check, run(jobs, ONE, "e-las"), run(jobs, ONE, "e-las", hysteresis=0.0))


def trace(seed: int) -> list[Job]:
    """Log-normal lengths over 1 to 8 GPUs, epochs reported, offered at the full load of 16 GPUs."""
    rng = random.Random(seed)
    jobs, now = list[Job](), 0.0
    for i in range(60):
        gpus, seconds = rng.choice([1, 1, 2, 4, 8]), min(rng.lognormvariate(7.5, 1.4), 2e5)
        jobs.append(job(f"{i:03}", gpus=gpus, seconds=seconds, at=now, epochs=rng.randrange(10, 100)))
        now += rng.expovariate(16 / (3.2 * 4800))
    return jobs


@lru_cache
def means(policy: str, *, epochs: bool = True) -> list[float]:
    """The mean JCT of each trace; without `epochs` the jobs report none."""
    two = cluster(nodes=2, gpus=8)

    def reported(job: Job) -> Job:
        return job if epochs else replace(job, traits=replace(job.traits, epochs=0))

    return [mean(run(map(reported, trace(seed)), two, policy).jct()) for seed in range(10)]


def below(ours: list[float], theirs: list[float]) -> int:
    return sum(a < b for a, b in zip(ours, theirs, strict=True))


@claim("e-las", "mean JCT below tiresias-l on traces of jobs that report epochs")
def test_mean_jct_is_below_least_attained_service() -> None:
    ours, las = means("e-las"), means("tiresias-l")

    def check(pair: tuple[list[float], list[float]]) -> None:
        assert mean(pair[0]) < 0.9 * mean(pair[1])
        assert below(*pair) >= 8

    tells_apart(check, (ours, las), (las, ours))


@claim("e-las", "reported epochs lower the mean JCT: the same jobs are slower if service alone ranks them")
def test_reported_epochs_lower_the_mean() -> None:
    service_alone = means("e-las", epochs=False)

    def check(found: list[float]) -> None:
        assert mean(found) < mean(service_alone)
        assert below(found, service_alone) >= 8

    tells_apart(check, means("e-las"), service_alone)


@claim("e-las", "before its first epoch ends a job ranks by its service: a new one goes before one that ran")
def test_jobs_without_epochs_are_ranked_by_service() -> None:
    jobs = [job("old", hours=2), job("new", minutes=5, at=1800)]

    def check(result: Run) -> None:
        assert result.jct("new") == [300]
        assert result.jct("old") == [7200 + 300]

    tells_apart(check, run(jobs, ONE, "e-las"), run(jobs, ONE, "fifo"))


@claim("e-las", "a job that fits on a node waits for one instead of being split")
def test_a_job_that_fits_on_a_node_is_not_split() -> None:
    jobs = [
        job("left", gpus=3, hours=1, preemptible=False),
        job("right", gpus=3, hours=1, preemptible=False),
        job("pair", gpus=2, minutes=10, at=60),
    ]

    def check(result: Run) -> None:
        assert result.start("pair") == 3600  # until then one GPU is free on each node

    two = cluster(nodes=2, gpus=4)
    tells_apart(check, run(jobs, two, "e-las"), run(jobs, two, "tiresias-l", placement="scattered"))
