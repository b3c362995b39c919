"""Elan: elastic FIFO and backfill, with jobs that are resized in a second."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import pytest
from tests.claims.elastic_parts import in_order_of_arrival, only_grown, sizes_at, stopped_first

from dovetail.mechanisms.queue.future_capacity import FOREVER
from dovetail.model.job import Job
from dovetail.policies import elan as elan_module
from dovetail.sim.run import Run
from dovetail.testing.build import SECOND, Checkpoint, Profile, cluster, job, run
from dovetail.testing.claims import claim, tells_apart
from dovetail.testing.mutants import mutant

ELAN = "dovetail.policies.elan"

MUTANTS = (
    mutant(
        "elan",
        "admission at the least",
        "a job waits until what it asked for can be free",
        killed_by="test_a_job_starts_as_soon_as_its_least_can_be_free",
        replace={f"{ELAN}:_least": lambda job: job.shape.tasks},
    ),
    mutant(
        "elan",
        "GPUs are given back",
        "a job keeps what it grew to while others wait",
        killed_by="test_a_job_starts_as_soon_as_its_least_can_be_free",
        replace={f"{ELAN}:elastic": only_grown},
    ),
    mutant(
        "elan",
        "growth",
        "running jobs do not grow",
        killed_by="test_idle_gpus_go_where_they_add_most_speed",
        replace={f"{ELAN}:dealt": lambda *_: {}},
    ),
    mutant(
        "elan",
        "growth",
        "idle GPUs go to the job that arrived first",
        killed_by="test_idle_gpus_go_where_they_add_most_speed",
        replace={f"{ELAN}:dealt": in_order_of_arrival},
    ),
    mutant(
        "elan",
        "resizing without a stop",
        "a job is stopped and started again with another size",
        killed_by="test_a_job_that_is_resized_pauses_for_a_second",
        replace={f"{ELAN}:elastic": stopped_first},
    ),
    mutant(
        "elan",
        "order of arrival",
        "jobs behind the first that waits are started",
        killed_by="test_no_job_overtakes_another",
        options={"queue": "backfill"},
    ),
    mutant(
        "elan",
        "backfill",
        "no job overtakes another",
        killed_by="test_jobs_behind_the_first_start_if_its_latest_start_stays",
        options={"queue": "fifo"},
    ),
    mutant(
        "elan",
        "backfill",
        "every job that fits is started",
        killed_by="test_jobs_behind_the_first_start_if_its_latest_start_stays",
        replace={f"{ELAN}:_reservation": lambda *_: (FOREVER, 0)},
    ),
    mutant(
        "elan",
        "backfill",
        "GPUs that the first does not need are kept for it",
        killed_by="test_jobs_behind_the_first_start_if_its_latest_start_stays",
        replace={
            f"{ELAN}:_reservation": lambda *known, found=elan_module._reservation: (found(*known)[0], 0)
        },
    ),
    mutant(
        "elan",
        "backfill",
        "running jobs are taken to keep all their GPUs",
        killed_by="test_a_reservation_counts_on_no_gpu_that_may_be_taken_back",
        replace={f"{ELAN}:_end": lambda view, job: job.ends_at(view.now)},
    ),
)

EIGHT = cluster(nodes=1, gpus=8)
SEEDS = range(100, 110)
LINEAR, WELL, BADLY = 1.0, 0.95, 0.4  # powers: the speed on n GPUs is n to such a power


def pausing(seconds: float) -> Checkpoint:
    """A resize takes so long."""
    return Checkpoint(resize=round(seconds * SECOND), save=10 * SECOND, restore=30 * SECOND)


def scaling(
    name: str, power: float, *, gpus: int, least: int, minutes: float, at: float = 0.0, pause: float = 1.0
) -> Job:
    limits: dict[str, Any] = {"least": least, "most": 16, "checkpoint": pausing(pause)}
    profile = Profile(curve={n: n**power for n in range(1, 17)})
    return job(name, gpus=gpus, minutes=minutes, at=at, profile=profile, **limits)


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


@claim("elan", "a job that asks for all GPUs starts at once on those that a running job has beyond its least")
def test_a_job_starts_as_soon_as_its_least_can_be_free() -> None:
    jobs = [scaling(name, WELL, gpus=8, least=4, minutes=30, at=60.0 * n) for n, name in enumerate("ab")]

    def check(result: Run) -> None:
        assert sizes_at(result, 50) == {"a": 8}
        assert result.start("b") == 60
        assert sizes_at(result, 70) == {"a": 4, "b": 4}
        assert sizes_at(result, result.finish("a") + 10) == {"b": 8}
        assert result.preemptions == 0

    tells_apart(check, run(jobs, EIGHT, "elan"), run(jobs, EIGHT, "fifo"))


@claim("elan", "idle GPUs go to the job of speed n^0.95, then to that of n^0.4 when it is alone")
def test_idle_gpus_go_where_they_add_most_speed() -> None:
    jobs = [scaling("badly", BADLY, gpus=2, least=1, minutes=60)]
    jobs += [scaling("well", WELL, gpus=2, least=1, minutes=30)]

    def check(result: Run) -> None:
        assert sizes_at(result, 10) == {"badly": 1, "well": 7}
        assert sizes_at(result, result.finish("well") + 10) == {"badly": 8}

    tells_apart(check, run(jobs, EIGHT, "elan"), run(jobs, EIGHT, "fifo"))


@claim("elan", "a job that shrinks for a newcomer and grows again makes no progress for 2 s in all")
def test_a_job_that_is_resized_pauses_for_a_second() -> None:
    """Twice its speed for 300 s, then as asked for 599 s: 1201 s of 2400 are left, at twice its speed."""

    def resized(pause: float) -> Run:
        old = scaling("old", LINEAR, gpus=4, least=4, minutes=40, pause=pause)
        return run([old, job("new", gpus=4, minutes=10, at=300)], EIGHT, "elan")

    def check(result: Run) -> None:
        assert sizes_at(result, 200) == sizes_at(result, 1000) == {"old": 8}
        assert result.finish("old") == 300 + (1 + 599) + (1 + 600.5)

    tells_apart(check, resized(1.0), resized(60.0))


@claim(
    "elan", "growing for a minute at a time ends a job earlier than at a fixed size; at 60 s a resize later"
)
def test_growing_for_a_minute_pays_off() -> None:
    """Every second minute a short job has half of the cluster. A job of fixed size takes an hour."""

    def beside_short_jobs(pause: float, policy: str = "elan") -> float:
        long = scaling("long", LINEAR, gpus=4, least=4, minutes=60, pause=pause)
        short = [job(f"s{n}", gpus=4, minutes=1, at=120.0 * n) for n in range(60)]
        return run([long, *short], EIGHT, policy).finish("long")

    fixed = beside_short_jobs(60, "fifo")

    def check(finish: float) -> None:
        assert finish < fixed

    tells_apart(check, beside_short_jobs(1), beside_short_jobs(60))


def queue_of_rigid_jobs() -> list[Job]:
    """`first` waits for `old`, which ends after 20 min at the latest, and leaves 2 of 8 GPUs then."""
    old = scaling("old", LINEAR, gpus=8, least=4, minutes=10)
    waiting = [job("first", gpus=6, minutes=10, at=10), job("short", gpus=4, minutes=5, at=20)]
    return [old, *waiting, job("wide", gpus=4, hours=1, at=30), job("narrow", gpus=2, hours=1, at=40)]


@claim("elan", "elastic FIFO: a short job that would fit does not overtake the first in the queue")
def test_no_job_overtakes_another() -> None:
    jobs = queue_of_rigid_jobs()

    def check(result: Run) -> None:
        starts = [result.start(name) for name in ("old", "first", "short", "wide", "narrow")]
        assert starts == sorted(starts)

    tells_apart(check, run(jobs, EIGHT, "elan"), run(jobs, EIGHT, "afs"))


@claim(
    "elan",
    "elastic backfill: a job starts if it ends before the latest start of the first, or leaves it enough",
)
def test_jobs_behind_the_first_start_if_its_latest_start_stays() -> None:
    jobs = queue_of_rigid_jobs()

    def check(result: Run) -> None:
        assert result.start("short") == 20
        assert result.start("narrow") == result.finish("short")
        assert result.start("first") == result.finish("old") < 1200
        assert result.start("wide") >= result.finish("first")

    ours, rigid = run(jobs, EIGHT, "elan", queue="backfill"), run(jobs, EIGHT, "backfill")
    tells_apart(check, ours, rigid)


@claim("elan", "elastic backfill: a job that ends before a running one with its least does not wait for it")
def test_a_reservation_counts_on_no_gpu_that_may_be_taken_back() -> None:
    """`old` would end after 10 min with 8 GPUs, and after 20 min with its 4: `filler` takes 15 min."""
    jobs = [scaling("old", LINEAR, gpus=8, least=4, minutes=10), job("first", gpus=8, minutes=10, at=10)]
    jobs += [job("filler", gpus=4, minutes=15, at=20)]

    def check(result: Run) -> None:
        assert result.start("filler") == 20
        assert result.start("first") < 1210

    ours, rigid = run(jobs, EIGHT, "elan", queue="backfill"), run(jobs, EIGHT, "backfill")
    tells_apart(check, ours, rigid)


def trace(seed: int, pause: float) -> list[Job]:
    """40 jobs of speed n^0.4 to n^0.95; with what they ask for they load 16 GPUs fully."""
    luck, at, jobs = random.Random(seed), 0.0, list[Job]()
    for number in range(40):
        at += luck.expovariate(1 / 436)
        power, gpus, minutes = (
            luck.uniform(0.4, 0.95),
            luck.choice((1, 2, 4, 8)),
            1 + luck.expovariate(1 / 30),
        )
        least = max(1, gpus // 2)
        made = scaling(f"j{number}", power, gpus=gpus, least=least, minutes=minutes, at=at, pause=pause)
        jobs.append(made)
    return jobs


@lru_cache
def runs(policy: str, pause: float = 1.0, **options: str) -> list[Run]:
    on = cluster(nodes=2, gpus=8)
    return [run(trace(seed, pause), on, policy, **dict[str, Any](options)) for seed in SEEDS]


def minutes(results: Sequence[Run], waiting: bool = False) -> list[float]:
    """The mean JCT of each trace, or the mean time in the queue."""
    return [mean(result.wait() if waiting else result.jct()) / 60 for result in results]


@claim("elan", "pending time is down by over 40 %, and mean JCT by over 20 %, for FIFO and for backfill")
@pytest.mark.parametrize("queue", ["fifo", "backfill"])
def test_jobs_wait_less_and_end_earlier_than_without_elasticity(queue: str) -> None:
    rigid = runs(queue)

    def check(found: list[Run]) -> None:
        assert mean(minutes(found, waiting=True)) < 0.6 * mean(minutes(rigid, waiting=True))
        assert mean(minutes(found)) < 0.8 * mean(minutes(rigid))
        won = [ours < theirs for ours, theirs in zip(minutes(found), minutes(rigid), strict=True)]
        assert sum(won) >= 9

    tells_apart(check, runs("elan", queue=queue), rigid)


@claim("elan", "what it gains over FIFO is less with 60 s a resize than with 1 s")
def test_the_gain_shrinks_where_a_resize_takes_long() -> None:
    fifo = minutes(runs("fifo"))
    slow = minutes(runs("elan", 60.0))

    def check(found: list[float]) -> None:
        gains, slow_gains = ([f - e for f, e in zip(fifo, each, strict=True)] for each in (found, slow))
        assert mean(gains) > mean(slow_gains)
        assert sum(a > b for a, b in zip(gains, slow_gains, strict=True)) >= 9

    tells_apart(check, minutes(runs("elan")), slow)


@claim("elan", "no job waits while running jobs have enough beyond their least for the first in the queue")
def test_no_job_waits_for_gpus_that_can_be_given_back() -> None:
    def check(results: list[Run]) -> None:
        for seed, result in zip(SEEDS, results, strict=True):
            jobs = trace(seed, 1.0)
            for moment in {result.finish(each.id) for each in jobs} | {
                each.arrived_at / 1e6 for each in jobs
            }:
                waiting = [each for each in jobs if each.arrived_at / 1e6 <= moment < result.start(each.id)]
                busy = [each for each in jobs if result.start(each.id) <= moment < result.finish(each.id)]
                kept = sum(each.traits.least or 0 for each in (*busy, *waiting[:1]))
                assert not waiting or kept > 16

    tells_apart(check, runs("elan"), runs("fifo"))
