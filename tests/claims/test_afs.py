"""AFS: elastic shares, by length and by how well a job scales."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

import pytest

from dovetail.mechanisms.allocate.sizes import Allocate
from dovetail.mechanisms.order.keys import arrival
from dovetail.mechanisms.place.placement import scattered
from dovetail.mechanisms.resize.resizing import elastic, rigid
from dovetail.model.grant import devices_of
from dovetail.model.job import Job
from dovetail.model.view import JobTable, Policy, View
from dovetail.policies import afs as afs_module
from dovetail.policies.composed import Composed
from dovetail.sim.run import Run
from dovetail.testing.build import SECOND, Checkpoint, Profile, cluster, job, run
from dovetail.testing.claims import claim, tells_apart
from dovetail.testing.mutants import mutant

AFS = "dovetail.policies.afs"


def by_arrival(table: JobTable) -> afs_module.Ends:
    return lambda job, speed: job


MUTANTS = (
    mutant(
        "afs",
        "pairwise comparison",
        "the job that ends first gets every GPU that is left",
        killed_by="test_a_job_that_scales_gets_the_gpu_that_a_short_one_cannot_use",
        replace={f"{AFS}:_gains": lambda now, then: ((then - now) / now, 0.0)},
    ),
    mutant(
        "afs",
        "pairwise comparison",
        "the gain of the longer job counts against its present speed",
        killed_by="test_of_two_jobs_that_scale_the_shorter_gets_the_gpu",
        replace={f"{AFS}:_gains": lambda now, then: ((then - now) / now, (then - now) / now)},
    ),
    mutant(
        "afs",
        "shortest first",
        "jobs without a GPU get one in the order of arrival",
        killed_by="test_with_fewer_gpus_than_jobs_the_shortest_run",
        replace={f"{AFS}:_shortest_first": lambda table, ends: list(range(len(table)))},
    ),
    mutant(
        "afs",
        "shortest first",
        "the job that arrived first is taken to end first",
        killed_by="test_of_two_jobs_that_scale_the_shorter_gets_the_gpu",
        replace={f"{AFS}:_by_length": by_arrival},
    ),
    mutant(
        "afs",
        "elastic jobs",
        "running jobs keep the size with which they started",
        killed_by="test_gpus_go_to_newcomers_and_come_back_without_a_restart",
        replace={f"{AFS}:elastic": rigid},
    ),
    mutant(
        "afs",
        "unknown lengths",
        "the declared length is used",
        killed_by="test_without_lengths_no_length_matters",
        replace={f"{AFS}:_by_service": afs_module._by_length},
    ),
    mutant(
        "afs",
        "unknown lengths",
        "the job that arrived first is taken to end first",
        killed_by="test_without_lengths_the_job_with_less_service_goes_first",
        replace={f"{AFS}:_by_service": by_arrival},
    ),
)

LINEAR = {n: float(n) for n in range(1, 17)}


def scaling(name: str, curve: Mapping[int, float], *, minutes: float, at: float = 0.0, gpus: int = 1) -> Job:
    profile = Profile(curve=dict(curve))
    checkpoint = Checkpoint(resize=SECOND, save=10 * SECOND, restore=30 * SECOND)
    return job(
        name, gpus=gpus, minutes=minutes, at=at, least=1, most=16, profile=profile, checkpoint=checkpoint
    )


def sizes(result: Run, at: float) -> dict[str, int]:
    """GPUs of each job at a time."""
    now = round(at * SECOND)
    return {s.job: devices_of(s.spots) for s in result.stretches if s.start <= now < s.end}


def dealt(better: Callable[[JobTable, list[int], int], float]) -> Allocate:
    """GPUs one by one to the job with the largest value, the first to arrive among equals: baselines."""

    def allocate(view: View) -> dict[str, int]:
        table = view.table()
        tasks = [0] * len(table)
        for _ in range(view.room.free_gpus + int(table.held.sum()) // 1_000):
            open_to_more = [i for i, count in enumerate(tasks) if count < table.most[i]]
            if open_to_more:
                tasks[max(open_to_more, key=lambda i: (better(table, tasks, i), -i))] += 1
        return {job.id: count for job, count in zip(table.jobs, tasks, strict=True)}

    return allocate


def elastic_by(allocate: Allocate) -> Policy:
    return Composed(order=arrival, allocate=allocate, place=scattered, resize=elastic)


def even() -> Policy:
    """The same number of GPUs for each job."""
    return elastic_by(dealt(lambda table, tasks, i: -tasks[i]))


def greedy() -> Policy:
    """The most throughput of all jobs together."""

    def gain(table: JobTable, tasks: list[int], i: int) -> float:
        speeds, n = table.speeds[i], tasks[i]
        return float((speeds[n + 1] - speeds[n]) / speeds[1])

    return elastic_by(dealt(gain))


THREE = cluster(nodes=1, gpus=3)


@claim("afs", "a GPU that would make the shorter job 5 % faster and the longer one twice as fast goes to it")
def test_a_job_that_scales_gets_the_gpu_that_a_short_one_cannot_use() -> None:
    jobs = [scaling("a", {1: 1.0, 2: 1.05, 3: 1.06}, minutes=10), scaling("b", LINEAR, minutes=20)]

    def check(result: Run) -> None:
        assert sizes(result, 0) == {"a": 1, "b": 2}

    tells_apart(check, run(jobs, THREE, "afs"), run(jobs, THREE, even()))


@claim(
    "afs", "of two jobs that would run nearly twice as fast, the shorter gets the GPU: 1/2 is not above 0.9"
)
def test_of_two_jobs_that_scale_the_shorter_gets_the_gpu() -> None:
    jobs = [scaling("b", LINEAR, minutes=20), scaling("a", {1: 1.0, 2: 1.9, 3: 2.8}, minutes=10)]

    def check(result: Run) -> None:
        assert sizes(result, 0) == {"a": 2, "b": 1}

    tells_apart(check, run(jobs, THREE, "afs"), run(jobs, THREE, greedy()))


@claim("afs", "with fewer GPUs than jobs the shortest run")
def test_with_fewer_gpus_than_jobs_the_shortest_run() -> None:
    lengths = {"long": 60, "middle": 20, "short": 10, "shortest": 5}
    jobs = [scaling(name, LINEAR, minutes=minutes) for name, minutes in lengths.items()]

    def check(result: Run) -> None:
        assert sizes(result, 0).keys() == {"middle", "short", "shortest"}

    tells_apart(check, run(jobs, THREE, "afs"), run(jobs, THREE, "fifo"))


@claim("afs", "a lone job has all GPUs, gives some to a newcomer and gets them back, without a restart")
def test_gpus_go_to_newcomers_and_come_back_without_a_restart() -> None:
    jobs = [scaling("old", LINEAR, minutes=80), scaling("new", LINEAR, minutes=8, at=300)]
    on = cluster(nodes=1, gpus=8)

    def check(result: Run) -> None:
        assert sizes(result, 299) == {"old": 8}
        both = sizes(result, 310)
        assert both.keys() == {"old", "new"}
        assert sum(both.values()) == 8
        assert sizes(result, result.finish("new") + 10) == {"old": 8}
        assert result.preemptions == 0

    tells_apart(check, run(jobs, on, "afs"), run(jobs, on, "srtf"))


def trace(seed: int, gap: float = 520.0) -> list[Job]:
    """60 jobs on 16 GPUs whose speed on n GPUs is n to the power of 0.4 to 0.95."""
    luck, at, jobs = random.Random(seed), 0.0, list[Job]()
    for number in range(60):
        at += luck.expovariate(1 / gap)
        power = luck.uniform(0.4, 0.95)
        curve = {n: n**power for n in range(1, 17)}
        gpus, minutes = luck.choice((1, 2, 4, 8)), 1 + luck.expovariate(1 / 30)
        jobs.append(scaling(f"j{number}", curve, minutes=minutes, at=at, gpus=gpus))
    return jobs


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


@lru_cache
def means(policy: str, gap: float = 520.0, lengths: str = "", traces: int = 20) -> list[float]:
    """The mean JCT of each trace."""
    made: str | Policy = {"even": even, "greedy": greedy}.get(policy, lambda: policy)()
    on, options = cluster(nodes=2, gpus=8), {"lengths": lengths} if lengths else {}
    return [mean(run(trace(seed, gap), on, made, until=None, **options).jct()) for seed in range(traces)]


def below(ours: Sequence[float], theirs: Sequence[float]) -> int:
    return sum(a < b for a, b in zip(ours, theirs, strict=True))


@claim(
    "afs",
    "its mean JCT is below those of srtf, least attained service, even shares and the most throughput, "
    "at light, medium and heavy load",
)
@pytest.mark.parametrize(
    "gap", [520.0, *(pytest.param(gap, marks=pytest.mark.long) for gap in (400.0, 800.0))]
)
def test_mean_jct_is_the_lowest_of_five(gap: float) -> None:
    others = [means(name, gap) for name in ("srtf", "tiresias-l", "even", "greedy")]

    def check(found: list[float]) -> None:
        for theirs in others:
            assert mean(found) < mean(theirs)
            assert below(found, theirs) >= 15

    for theirs in others:
        tells_apart(check, means("afs", gap), theirs)


@claim("afs", "without lengths its mean JCT is less than half of that of least attained service")
def test_without_lengths_the_mean_jct_is_below_least_attained_service() -> None:
    las = means("tiresias-l", traces=10)

    def check(found: list[float]) -> None:
        assert mean(found) < mean(las) / 2
        assert below(found, las) == 10

    tells_apart(check, means("afs", lengths="unknown", traces=10), means("srtf", traces=10))


@claim("afs", "without lengths the job that has received less service is taken to end first")
def test_without_lengths_the_job_with_less_service_goes_first() -> None:
    """After an hour of three GPUs `old` is in the second queue; both scale alike, and 3 GPUs are dealt."""
    jobs = [scaling("old", LINEAR, minutes=600), scaling("new", LINEAR, minutes=600, at=3_700)]

    def check(result: Run) -> None:
        assert sizes(result, 3_710) == {"old": 1, "new": 2}

    tells_apart(check, run(jobs, THREE, "afs", lengths="unknown"), run(jobs, THREE, even()))


@claim("afs", "without lengths the schedule does not depend on what jobs declare")
def test_without_lengths_no_length_matters() -> None:
    on, jobs = cluster(nodes=2, gpus=8), trace(3)
    luck = random.Random(1)
    wrong = [replace(each, estimate=round(each.estimate * luck.uniform(0.2, 5))) for each in jobs]

    def check(lengths: str) -> None:
        told, mistold = (run(made, on, "afs", lengths=lengths).jct() for made in (jobs, wrong))
        assert told == mistold

    tells_apart(check, "unknown", "known")
