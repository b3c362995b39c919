"""Elastic scaling with batch size: GPUs and batch by the largest sum of speed-ups."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from tests.claims.elastic_parts import sizes_at

from dovetail.core.core import Core, Step
from dovetail.mechanisms.allocate.sizes import Left
from dovetail.mechanisms.estimate.throughput import samples_by_tasks
from dovetail.model.action import Resize, Start
from dovetail.model.cluster import Cluster
from dovetail.model.goodput import Goodput, StepTime
from dovetail.model.job import Job
from dovetail.model.view import JobView, View
from dovetail.policies import vaibhav as vaibhav_module
from dovetail.sim.run import Run
from dovetail.solve.largest_sum import Floats, Ints
from dovetail.testing.build import HOUR, SECOND, Checkpoint, Profile, cluster, job, run
from dovetail.testing.claims import claim, tells_apart
from dovetail.testing.mutants import mutant

VAIBHAV = "dovetail.policies.vaibhav"


def by_largest_gain(values: Floats, capacity: int) -> Ints:
    """In place of the dynamic program: one GPU at a time where it adds most."""
    shares: Ints = np.isfinite(values).argmax(axis=1)
    while shares.sum() < capacity:
        after = np.minimum(shares + 1, values.shape[1] - 1)
        jobs = np.arange(len(shares))
        gains = np.nan_to_num(values[jobs, after] - values[jobs, shares], neginf=0.0)
        if gains.max() <= 0:
            break
        shares[gains.argmax()] += 1
    return shares


def even(values: Floats, capacity: int) -> Ints:
    """In place of the dynamic program: as many for each job, or as near as it runs with."""
    sizes = np.abs(np.arange(values.shape[1]) - capacity // len(values))
    shares: Ints = np.where(np.isfinite(values), sizes, 1_000).argmin(axis=1)
    return shares


def all_that_fit(view: View, left: Left) -> list[JobView]:
    """In place of admission in order: jobs that do not fit are passed over."""
    jobs = sorted([*view.running.values(), *view.queue], key=lambda job: (job.spots is None, job.seq))
    found = []
    for each in jobs:
        if each.spots or left.fits(each, vaibhav_module.least_tasks(each)):
            left.take(each, vaibhav_module.least_tasks(each))
            found.append(each)
    return found


def as_at_first(view: View, job: JobView, sizes: Sequence[int], *, fixed: bool) -> list[float] | None:
    """In place of the best batch for each number of GPUs: that of the reference run."""
    return samples_by_tasks(view, job, sizes, fixed=True)


MUTANTS = (
    mutant(
        "vaibhav",
        "dynamic program",
        "every job has as many GPUs",
        killed_by="test_gpus_go_where_the_sum_of_speed_ups_is_largest",
        replace={f"{VAIBHAV}:largest_sum": even},
    ),
    mutant(
        "vaibhav",
        "dynamic program",
        "GPUs go one by one to the largest gain",
        killed_by="test_a_job_may_gain_by_its_third_gpu_what_it_does_not_by_its_second",
        replace={f"{VAIBHAV}:largest_sum": by_largest_gain},
    ),
    mutant(
        "vaibhav",
        "best batch for each size",
        "the first batch counts for speed-ups",
        killed_by="test_a_job_whose_batch_may_grow_scales",
        replace={f"{VAIBHAV}:samples_by_tasks": as_at_first},
    ),
    mutant(
        "vaibhav",
        "best batch for each size",
        "batches stay as submitted",
        killed_by="test_a_job_whose_batch_may_grow_scales",
        options={"batch": "fixed"},
    ),
    mutant(
        "vaibhav",
        "best batch for each size",
        "jobs are not told their batch",
        killed_by="test_a_job_whose_batch_may_grow_scales",
        replace={f"{VAIBHAV}:set_batches": lambda plan, jobs, batch: None},
    ),
    mutant(
        "vaibhav",
        "speed-up",
        "samples a second count, not the speed-up",
        killed_by="test_speed_ups_count_and_not_samples",
        replace={f"{VAIBHAV}:speed_ups": lambda speeds, least: np.array(speeds)},
    ),
    mutant(
        "vaibhav",
        "admission",
        "a job waits until what it asked for is free",
        killed_by="test_a_job_is_admitted_while_all_jobs_have_their_least",
        replace={f"{VAIBHAV}:least_tasks": lambda job: job.shape.tasks},
    ),
    mutant(
        "vaibhav",
        "admission",
        "jobs that do not fit are passed over",
        killed_by="test_no_job_overtakes_another",
        replace={f"{VAIBHAV}:admitted": all_that_fit},
    ),
    mutant(
        "vaibhav",
        "most GPUs of a job",
        "a job may have all",
        killed_by="test_a_job_has_at_most_ten_gpus",
        options={"most_gpus": 64},
    ),
)

FOUR = cluster(nodes=1, gpus=4)
EQUAL_WORTH = ((1.0, 1e18),)  # a noise scale at which a sample is worth the same in any batch
# A sample takes 1 ms. On 2 GPUs and more, an exchange follows that takes as long as 32 samples.
STEP = StepTime(0.0, 0.001, node_sync=0.032, network_sync=0.032)


def curved(name: str, *speeds: float) -> Job:
    """Speeds with 1, 2, 3 ... GPUs."""
    curve = dict(enumerate(speeds, start=1))
    return job(name, minutes=60, least=1, most=len(speeds), profile=Profile(curve=curve))


def training(
    name: str,
    *,
    most_batch: int,
    step: StepTime = STEP,
    batch: int = 32,
    gpus: int = 1,
    least: int = 1,
    most: int = 4,
    minutes: float = 60.0,
    at: float = 0.0,
) -> Job:
    profile = Profile(goodput=Goodput({"": step}, batch, most_batch, noise_scale=EQUAL_WORTH))
    pause = Checkpoint(resize=10 * SECOND)
    limits: dict[str, Any] = {"least": least, "most": most, "checkpoint": pause, "profile": profile}
    return job(name, gpus=gpus, minutes=minutes, at=at, **limits)


def batches_at_start(jobs: Sequence[Job], on: Cluster, **options: str) -> dict[str, int | None]:
    """The batch with which each job starts."""
    found = dict[str, int | None]()

    def note(_: Core, step: Step) -> None:
        for action in step.actions:
            if isinstance(action, Start | Resize):
                found.setdefault(action.job, action.terms.batch)

    run(jobs, on, "vaibhav", on_step=note, until=1, **dict[str, Any](options))
    return found


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


@claim("vaibhav", "speed-ups 1, 1.9, 2.7, 3.4 and 1, 1.2, 1.3, 1.35 on 4 GPUs: 3 and 1, which sum to 3.7")
def test_gpus_go_where_the_sum_of_speed_ups_is_largest() -> None:
    well, badly = (1.0, 1.9, 2.7, 3.4), (1.0, 1.2, 1.3, 1.35)
    jobs = [curved("well", *well), curved("badly", *badly)]

    def check(result: Run) -> None:
        gpus = sizes_at(result, 10)
        assert gpus == {"well": 3, "badly": 1}
        assert well[gpus["well"] - 1] + badly[gpus["badly"] - 1] == 3.7

    tells_apart(check, run(jobs, FOUR, "vaibhav"), run(jobs, FOUR, "dorm"))


@claim("vaibhav", "speed-ups 1, 1.1, 3 and 1, 1.5, 1.8 on 4 GPUs: 3 and 1, though the second gains less")
def test_a_job_may_gain_by_its_third_gpu_what_it_does_not_by_its_second() -> None:
    jobs = [curved("late", 1.0, 1.1, 3.0), curved("early", 1.0, 1.5, 1.8)]

    def check(result: Run) -> None:
        assert sizes_at(result, 10) == {"late": 3, "early": 1}

    tells_apart(check, run(jobs, FOUR, "vaibhav"), run(jobs, FOUR, "elan"))


@claim("vaibhav", "a job scales on 4 GPUs at batch 3,200, and not at all at the batch 32 it came with")
def test_a_job_whose_batch_may_grow_scales() -> None:
    """32 samples take 32 ms on one GPU, 48 ms on two; 3,200 take 3.2 s on one GPU and 0.832 s on four."""
    jobs = [training("lone", most_batch=3_200)]

    def check(found: tuple[Run, dict[str, int | None]]) -> None:
        result, batches = found
        assert sizes_at(result, 10) == {"lone": 4}
        assert batches == {"lone": 3_200}
        assert abs(result.finish("lone") - 3_600 * 0.832 / 3.2) < 0.01

    elastic = run(jobs, FOUR, "vaibhav"), batches_at_start(jobs, FOUR)
    fixed = run(jobs, FOUR, "vaibhav", batch="fixed"), batches_at_start(jobs, FOUR, batch="fixed")
    tells_apart(check, elastic, fixed)


@claim("vaibhav", "of two equal jobs, the GPUs go to the one whose batch may grow")
def test_gpus_go_to_the_job_whose_batch_may_grow() -> None:
    jobs = [training("stays", most_batch=32), training("grows", most_batch=3_200)]

    def check(result: Run) -> None:
        assert sizes_at(result, 10) == {"stays": 1, "grows": 3}

    tells_apart(check, run(jobs, FOUR, "vaibhav"), run(jobs, FOUR, "vaibhav", batch="fixed"))


@claim("vaibhav", "a job with 100 times the samples a second that scales worse gets no more than one GPU")
def test_speed_ups_count_and_not_samples() -> None:
    """3,200 samples take 32 ms on one GPU and 24 ms on two: 1.3 times as fast, the other is 1.96 times."""
    light = StepTime(0.0, 0.00001, node_sync=0.008, network_sync=0.008)
    jobs = [training("light", most_batch=3_200, step=light), training("heavy", most_batch=3_200)]

    def check(result: Run) -> None:
        assert sizes_at(result, 10) == {"light": 1, "heavy": 3}

    tells_apart(check, run(jobs, FOUR, "vaibhav"), run(jobs, FOUR, "wang"))


@claim("vaibhav", "a job starts at once if all jobs, running ones too, can have their least")
def test_a_job_is_admitted_while_all_jobs_have_their_least() -> None:
    jobs = [training(name, most_batch=3_200, gpus=4, least=2, at=60 * n) for n, name in enumerate("ab")]

    def check(result: Run) -> None:
        assert sizes_at(result, 50) == {"a": 4}
        assert sizes_at(result, 70) == {"a": 2, "b": 2}
        assert sizes_at(result, result.finish("a") + 1) == {"b": 4}

    tells_apart(check, run(jobs, FOUR, "vaibhav"), run(jobs, FOUR, "fifo"))


@claim("vaibhav", "jobs that cannot all have their least wait in order of arrival; none overtakes another")
def test_no_job_overtakes_another() -> None:
    jobs = [job("old", gpus=2, minutes=20), job("wide", gpus=3, minutes=10, at=10)]
    jobs += [job("narrow", gpus=1, minutes=10, at=20)]

    def check(result: Run) -> None:
        assert result.start("wide") == result.start("narrow") == 1_200

    tells_apart(check, run(jobs, FOUR, "vaibhav"), run(jobs, FOUR, "afs"))


@claim("vaibhav", "a lone job that scales linearly has 10 of 16 GPUs")
def test_a_job_has_at_most_ten_gpus() -> None:
    jobs, on = [curved("lone", *range(1, 17))], cluster(nodes=1, gpus=16)

    def check(result: Run) -> None:
        assert sizes_at(result, 10) == {"lone": 10}

    tells_apart(check, run(jobs, on, "vaibhav"), run(jobs, on, "elan"))


SEEDS = range(200, 210)
HORIZON = 6.0  # hours


def trace(seed: int) -> list[Job]:
    """120 jobs within 6 hours: as they were submitted they are 1.5 times what 16 GPUs can do."""
    luck, jobs = random.Random(seed), list[Job]()
    for number in range(120):
        step = StepTime(
            luck.uniform(0.01, 0.03),
            luck.uniform(0.0005, 0.002),
            node_sync=luck.uniform(0.01, 0.04),
            network_sync=luck.uniform(0.02, 0.08),
        )
        batch, asked = luck.choice((16, 32, 64)), luck.choice((1, 2, 4))
        made = training(
            f"j{number}",
            step=step,
            batch=batch,
            most_batch=batch * luck.choice((4, 8, 16)),
            gpus=asked,
            least=max(1, asked // 2),
            most=16,
            minutes=1 + luck.expovariate(1 / 30),
            at=luck.uniform(0, HORIZON * 3_600),
        )
        jobs.append(made)
    return jobs


@lru_cache
def runs(batch: str) -> list[Run]:
    return [run(trace(seed), cluster(nodes=2, gpus=8), "vaibhav", batch=batch) for seed in SEEDS]


@claim("vaibhav", "at high load more jobs are completed in 6 hours than with fixed batches")
def test_more_jobs_are_completed_in_a_horizon() -> None:
    def done(results: list[Run]) -> list[int]:
        return [sum(at <= HORIZON * HOUR for at in result.jobs.finish) for result in results]

    fixed = done(runs("fixed"))

    def check(found: list[int]) -> None:
        assert mean(found) > mean(fixed)
        assert sum(ours > theirs for ours, theirs in zip(found, fixed, strict=True)) >= 9

    tells_apart(check, done(runs("elastic")), fixed)


@claim("vaibhav", "at high load the mean completion time is shorter than with fixed batches")
def test_jobs_end_earlier_than_with_fixed_batches() -> None:
    def jct(results: list[Run]) -> list[float]:
        return [mean(result.jct()) for result in results]

    fixed = jct(runs("fixed"))

    def check(found: list[float]) -> None:
        assert mean(found) < mean(fixed)
        assert sum(ours < theirs for ours, theirs in zip(found, fixed, strict=True)) >= 9

    tells_apart(check, jct(runs("elastic")), fixed)
