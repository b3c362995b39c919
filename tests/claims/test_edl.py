"""EDL with Elastic Tiresias: running jobs shrink for pending jobs and grow on idle GPUs, without a stop."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from tests.claims.elastic_parts import in_order_of_arrival, sizes_at, stopped_first

from dovetail.mechanisms.allocate.marginal_gain import Surplus
from dovetail.mechanisms.resize.resizing import rigid
from dovetail.model.job import Job
from dovetail.sim.run import Run
from dovetail.testing.build import SECOND, Checkpoint, Profile, cluster, job, run
from dovetail.testing.claims import claim, tells_apart
from dovetail.testing.mutants import mutant

EDL = "dovetail.policies.edl"


MUTANTS = (
    mutant(
        "edl",
        "compaction",
        "running jobs keep what they asked for",
        killed_by="test_running_jobs_halve_so_that_a_pending_one_starts",
        options={"floor": 1.0},
    ),
    mutant(
        "edl",
        "compaction",
        "running jobs shrink to one GPU",
        killed_by="test_running_jobs_halve_so_that_a_pending_one_starts",
        options={"floor": 0.01},
    ),
    mutant(
        "edl",
        "compaction",
        "the job that arrived last shrinks, whatever it loses",
        killed_by="test_the_job_that_loses_least_shrinks",
        replace={f"{EDL}:Surplus": lambda gain, *more: Surplus(lambda job, tasks: 0.0, *more)},
    ),
    mutant(
        "edl",
        "queues of attained service",
        "jobs of all queues shrink alike",
        killed_by="test_jobs_of_the_last_queue_shrink_first",
        replace={f"{EDL}:_last_queue_first": lambda job: 0},
    ),
    mutant(
        "edl",
        "queues of attained service",
        "jobs rank by arrival",
        killed_by="test_jobs_of_the_last_queue_shrink_first",
        replace={f"{EDL}:_rank": lambda job: (True, job.arrived_at, 0)},
    ),
    mutant(
        "edl",
        "expansion",
        "running jobs do not grow",
        killed_by="test_idle_gpus_go_where_they_add_most_speed",
        replace={f"{EDL}:dealt": lambda *_: {}},
    ),
    mutant(
        "edl",
        "expansion",
        "idle GPUs go to the job that arrived first",
        killed_by="test_idle_gpus_go_where_they_add_most_speed",
        replace={f"{EDL}:dealt": in_order_of_arrival},
    ),
    mutant(
        "edl",
        "resizing without a stop",
        "a job is stopped and started again with another size",
        killed_by="test_a_job_that_is_resized_pauses_for_a_second",
        replace={f"{EDL}:elastic": stopped_first},
    ),
    mutant(
        "edl",
        "resizing without a stop",
        "running jobs keep the size with which they started",
        killed_by="test_growing_for_a_minute_pays_off",
        replace={f"{EDL}:elastic": rigid},
    ),
)

STOP_FREE = Checkpoint(resize=SECOND, shrink=0, save=10 * SECOND, restore=30 * SECOND)
RESTART = Checkpoint(save=10 * SECOND, restore=30 * SECOND)
EIGHT = cluster(nodes=1, gpus=8)
LINEAR, WELL, BADLY = 1.0, 0.95, 0.4  # powers: the speed on n GPUs is n to such a power


def scaling(
    name: str, power: float, *, gpus: int, minutes: float, at: float = 0.0, resize: Checkpoint = STOP_FREE
) -> Job:
    """A job for 1 to 16 GPUs."""
    limits: dict[str, Any] = {"least": 1, "most": 16, "checkpoint": resize}
    profile = Profile(curve={n: n**power for n in range(1, 17)})
    return job(name, gpus=gpus, minutes=minutes, at=at, profile=profile, **limits)


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


@claim(
    "edl", "a running job gives half of its GPUs to a pending job, which starts at once; a third job waits"
)
def test_running_jobs_halve_so_that_a_pending_one_starts() -> None:
    jobs = [scaling(name, LINEAR, gpus=8, minutes=30, at=60.0 * n) for n, name in enumerate("abc")]

    def check(result: Run) -> None:
        assert result.start("b") == 60
        assert sizes_at(result, 170) == {"a": 4, "b": 4}

    tells_apart(check, run(jobs, EIGHT, "edl"), run(jobs, EIGHT, "tiresias-l"))


@claim("edl", "of two running jobs the one shrinks whose last GPUs add least: n^0.4, not n^0.95")
def test_the_job_that_loses_least_shrinks() -> None:
    jobs = [scaling("badly", BADLY, gpus=4, minutes=30), scaling("well", WELL, gpus=4, minutes=30)]
    jobs += [scaling("new", WELL, gpus=4, minutes=30, at=60)]

    def check(result: Run) -> None:
        assert sizes_at(result, 70) == {"badly": 2, "well": 4, "new": 2}

    tells_apart(check, run(jobs, EIGHT, "edl"), run(jobs, EIGHT, "tiresias-l"))


@claim("edl", "jobs that had 3250 GPU-seconds shrink before a job that has just come, though it scales worse")
def test_jobs_of_the_last_queue_shrink_first() -> None:
    """Both old jobs are demoted after 812.5 s of 4 GPUs; the new one preempts neither."""
    jobs = [scaling(name, WELL, gpus=4, minutes=60) for name in ("old", "older")]
    jobs += [scaling("new", BADLY, gpus=4, minutes=30, at=900)]

    def check(result: Run) -> None:
        assert sizes_at(result, 890) == {"old": 4, "older": 4}
        assert sizes_at(result, 910) == {"old": 2, "older": 2, "new": 4}
        assert result.preemptions == 0

    tells_apart(check, run(jobs, EIGHT, "edl"), run(jobs, EIGHT, "tiresias-l"))


@claim("edl", "idle GPUs go to the job of speed n^0.95, then to that of n^0.4 when it is alone")
def test_idle_gpus_go_where_they_add_most_speed() -> None:
    jobs = [scaling("badly", BADLY, gpus=2, minutes=60), scaling("well", WELL, gpus=2, minutes=30)]

    def check(result: Run) -> None:
        assert sizes_at(result, 10) == {"badly": 2, "well": 6}
        assert sizes_at(result, result.finish("well") + 70) == {"badly": 8}

    tells_apart(check, run(jobs, EIGHT, "edl"), run(jobs, EIGHT, "tiresias-l"))


@claim("edl", "a job that shrinks for a newcomer and grows again makes no progress for 1 s in all")
def test_a_job_that_is_resized_pauses_for_a_second() -> None:
    """Twice its speed for 300 s and as asked for 600 s: 1200 s of 2400 are left, at twice its speed."""

    def resized(by: Checkpoint) -> Run:
        old = scaling("old", LINEAR, gpus=4, minutes=40, resize=by)
        jobs = [job("new", gpus=4, minutes=10, at=300)]
        return run([old, *jobs], EIGHT, "edl")

    def check(result: Run) -> None:
        assert sizes_at(result, 200) == sizes_at(result, 1000) == {"old": 8}
        assert result.start("new") == 300
        assert result.finish("old") == 300 + 600 + 1 + 600

    tells_apart(check, resized(STOP_FREE), resized(RESTART))


@claim("edl", "growing for a minute at a time pays off; with restarts of 40 s it would not")
def test_growing_for_a_minute_pays_off() -> None:
    """Every second minute a short job has half of the cluster. A job of fixed size takes an hour."""

    def beside_short_jobs(by: Checkpoint) -> Run:
        long = scaling("long", LINEAR, gpus=4, minutes=60, resize=by)
        short = [job(f"s{n}", gpus=4, minutes=1, at=120.0 * n) for n in range(60)]
        return run([long, *short], EIGHT, "edl")

    def check(result: Run) -> None:
        assert result.finish("long") < 0.7 * 3600

    tells_apart(check, beside_short_jobs(STOP_FREE), beside_short_jobs(RESTART))


def trace(seed: int, resize: Checkpoint) -> list[Job]:
    """40 jobs of speed n^0.4 to n^0.95; with what they ask for they load 16 GPUs fully."""
    luck, at, jobs = random.Random(seed), 0.0, list[Job]()
    for number in range(40):
        at += luck.expovariate(1 / 436)
        power, gpus, minutes = (
            luck.uniform(0.4, 0.95),
            luck.choice((1, 2, 4, 8)),
            1 + luck.expovariate(1 / 30),
        )
        jobs.append(scaling(f"j{number}", power, gpus=gpus, minutes=minutes, at=at, resize=resize))
    return jobs


@lru_cache
def means(policy: str, resize: Checkpoint = STOP_FREE) -> list[float]:
    """The mean JCT of each trace, in minutes."""
    on = cluster(nodes=2, gpus=8)
    return [mean(run(trace(seed, resize), on, policy).jct()) / 60 for seed in range(100, 112)]


def check_below(found: Sequence[float], others: Sequence[float]) -> None:
    assert mean(found) < mean(others)
    assert sum(ours < theirs for ours, theirs in zip(found, others, strict=True)) >= 10


@claim("edl", "at load 1 its mean JCT is below that of tiresias-l, whose queues it has")
def test_mean_jct_is_below_that_of_tiresias() -> None:
    tiresias = means("tiresias-l")
    tells_apart(lambda found: check_below(found, tiresias), means("edl"), tiresias)


@claim("edl", "the same decisions with restarts of 40 s give a larger mean JCT than with pauses of 1 s")
def test_mean_jct_is_below_that_with_restarts() -> None:
    restarts = means("edl", RESTART)
    tells_apart(lambda found: check_below(found, restarts), means("edl"), restarts)
