"""Pollux: GPUs and batches by goodput, found by a genetic search on jobs and nodes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from dovetail.model.cluster import Cluster
from dovetail.model.estimate import Declared, Estimate, declared_speed
from dovetail.model.goodput import Goodput, StepTime, best_batch, noise_at, relative_speed
from dovetail.model.grant import Spots, devices_of, nodes_of
from dovetail.model.job import Job, Traits, gang
from dovetail.model.view import JobView
from dovetail.sim.run import Run
from dovetail.testing.build import SECOND, Checkpoint, Profile, cluster, job, run
from dovetail.testing.claims import claim, tells_apart
from dovetail.testing.mutants import mutant

POLLUX = "dovetail.policies.pollux"
SEARCH = "dovetail.solve.allocation_search"
MODEL = "dovetail.model.goodput"


def as_it_began(
    self: Declared,
    cluster: Cluster,
    job: JobView,
    tasks: int,
    type: str,
    nodes: int | None,
    batch: int | None,
) -> Estimate:
    return declared_speed(cluster, job.shape, job.traits, tasks, type, nodes, batch, None)


MUTANTS = (
    mutant(
        "pollux",
        "statistical efficiency",
        "a sample is worth the same in any batch",
        killed_by="test_without_noise_the_batch_stays_and_others_get_the_gpus",
        replace={
            f"{MODEL}:useful_slope": lambda batch, noise: 1.0,
            f"{MODEL}:efficiency": lambda batch, first, noise: 1.0,
        },
    ),
    mutant(
        "pollux",
        "noise measured online",
        "the noise scale with which training began counts",
        killed_by="test_as_the_noise_grows_batch_and_gpus_grow",
        replace={"dovetail.model.estimate:Declared.estimate": as_it_began},
    ),
    mutant(
        "pollux",
        "power mean of speed-ups",
        "the sum of speed-ups counts",
        killed_by="test_a_job_that_scales_badly_is_not_left_behind",
        options={"power": 1.0},
    ),
    mutant(
        "pollux",
        "genetic search",
        "no generations: jobs keep what they started with",
        killed_by="test_a_job_has_at_most_twice_what_it_had",
        options={"generations": 0},
    ),
    mutant(
        "pollux",
        "growth by two",
        "a job may have any number of GPUs at once",
        killed_by="test_a_job_has_at_most_twice_what_it_had",
        replace={f"{POLLUX}:_twice": lambda had, gpus: gpus},
    ),
    mutant(
        "pollux",
        "cost of reallocation",
        "a reallocation costs nothing",
        killed_by="test_a_small_gain_is_not_worth_a_restart",
        options={"delta": 0.0},
    ),
    mutant(
        "pollux",
        "one spanning job a node",
        "jobs that span nodes share them",
        killed_by="test_jobs_that_span_nodes_share_none",
        replace={f"{SEARCH}:alone_on_its_nodes": lambda spanning, place: spanning | ~spanning},
    ),
)

RESTART = Checkpoint(restore=30 * SECOND)
# A pass takes 20 ms and 0.5 ms a sample; the exchange takes 20 ms in a node and 40 ms across nodes.
STEP = StepTime(0.02, 0.0005, node_sync=0.02, network_sync=0.04, overlap=2.0)


def training(
    name: str,
    *noise: float,
    step: StepTime = STEP,
    batch: int = 32,
    most_batch: int = 8_192,
    gpus: int = 16,
    minutes: float = 60,
    at: float = 0.0,
) -> Job:
    """An elastic job that sets its batch; its noise scale changes in equal parts of its work."""
    model = Goodput({"": step}, batch, most_batch, noise_scale=tuple((1, scale) for scale in noise))
    traits = Traits(least=1, most=16, checkpoint=RESTART, profile=Profile(goodput=model))
    return job(name, gpus=gpus, minutes=minutes, at=at, traits=traits)


def held(result: Run, at: float) -> dict[str, Spots]:
    """What each job holds at a time; a run that was cut short ends with its last event before that."""
    now, last = round(at * SECOND), max(s.end for s in result.stretches)
    return {s.job: s.spots for s in result.stretches if s.start <= now and (now < s.end or s.end == last)}


def sizes(result: Run, at: float) -> dict[str, int]:
    """GPUs of each job at a time."""
    return {name: devices_of(spots) for name, spots in held(result, at).items()}


def batches(made: Job, result: Run, noise: float) -> list[int]:
    """The batch that the agent of a job sets in each stretch, at this noise scale."""
    model = _model(made)
    had = [s.spots for s in result.stretches if s.job == made.id]
    return [best_batch(model, "", devices_of(s), len(nodes_of(s)) > 1, noise)[0] for s in had]


def _model(made: Job) -> Goodput:
    profile = made.traits.profile
    assert profile is not None
    assert profile.goodput is not None
    return profile.goodput


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


@claim("pollux", "a lone job that scales has 1 GPU, then twice as many in each round, up to all 16")
def test_a_job_has_at_most_twice_what_it_had() -> None:
    made = training("a", 1e5, minutes=600)

    def check(result: Run) -> None:
        assert [sizes(result, 60 * round + 1).get("a") for round in range(6)] == [1, 2, 4, 8, 16, 16]

    on = cluster(nodes=2, gpus=8)
    tells_apart(check, run([made], on, "pollux", until=400), run([made], on, "afs", until=400))


@claim("pollux", "as the gradient of a job gets noisier, it has more GPUs and a larger batch than before")
def test_as_the_noise_grows_batch_and_gpus_grow() -> None:
    """Both jobs begin alike; after an eighth of its work the noise of the first is 100 times as large."""
    jobs = [training("grows", 100, *[10_000] * 7, minutes=960), training("stays", 100, minutes=2_400)]
    on, model = cluster(nodes=1, gpus=8), _model(jobs[0])

    def check(result: Run) -> None:
        early, late = sizes(result, 1_200), sizes(result, 4_500)
        assert early.keys() == late.keys() == {"grows", "stays"}
        assert late["grows"] > early["grows"]
        assert late["stays"] < early["stays"]
        small, _ = best_batch(model, "", early["grows"], False, 100)
        large, _ = best_batch(model, "", late["grows"], False, 10_000)
        assert large > 4 * small

    fixed = [replace(made, shape=gang(4)) for made in jobs]
    tells_apart(check, run(jobs, on, "pollux", until=4_510), run(fixed, on, "tiresias-l", until=4_510))


class Throughput(Declared):
    """The most samples a second, whatever they are worth: what a throughput-based scheduler believes."""

    def estimate(
        self, cluster: Cluster, job: JobView, tasks: int, type: str, nodes: int | None, batch: int | None
    ) -> Estimate:
        return declared_speed(cluster, job.shape, job.traits, tasks, type, nodes, batch, 1e9)


@claim("pollux", "a job without noise keeps its batch, and GPUs go to a job that can use a larger one")
def test_without_noise_the_batch_stays_and_others_get_the_gpus() -> None:
    jobs = [training("quiet", 0, minutes=600), training("noisy", 5_000, minutes=600)]
    on = cluster(nodes=1, gpus=8)

    def check(found: tuple[Run, float]) -> None:
        result, believed = found
        assert set(batches(jobs[0], result, believed)) == {32}
        gpus = sizes(result, 1_800)
        assert gpus.keys() == {"quiet", "noisy"}
        assert gpus["noisy"] >= 2 * gpus["quiet"]

    by_throughput = run(jobs, on, "pollux", estimator=Throughput(), until=2_000)
    tells_apart(check, (run(jobs, on, "pollux", until=2_000), 0.0), (by_throughput, 1e9))


@claim("pollux", "of a job that scales and one that does not, each has most of the speed of a fair share")
def test_a_job_that_scales_badly_is_not_left_behind() -> None:
    """On 4 of the 8 GPUs the second is 1.6 times as fast as on one, the first 3.8 times."""
    good = training("good", 1e5, minutes=4_000)
    poor = training("poor", 60, minutes=4_000)
    on = cluster(nodes=1, gpus=8)

    def speed_up(made: Job, gpus: int) -> float:
        noise, _ = noise_at(_model(made), 0, 1)
        return relative_speed(_model(made), "", (gpus, False), (4, False), noise, None) / relative_speed(
            _model(made), "", (4, False), (4, False), noise, None
        )

    def check(result: Run) -> None:
        gpus = sizes(result, 6_000)
        assert gpus.keys() == {"good", "poor"}
        assert gpus["good"] > 4
        assert min(speed_up(made, gpus[made.id]) for made in (good, poor)) > 0.7

    jobs = [good, poor]
    ours, theirs = (run(jobs, on, "pollux", power=power, until=6_100) for power in (-1.0, 1.0))
    tells_apart(check, ours, theirs)


@claim("pollux", "a young job is reallocated for a gain of 40 %, and not for one of 2 %")
def test_a_small_gain_is_not_worth_a_restart() -> None:
    """With 2 GPUs the job is 1.4 times as fast as with one; with 3, 1.02 times as fast as with 2."""
    step = StepTime(0.01, 0.01, node_sync=0.0143, node_sync_more=0.012)
    made = training("a", 0, step=step, batch=8, most_batch=8, gpus=1, minutes=40)

    def check(result: Run) -> None:
        assert [sizes(result, at).get("a") for at in (1, 601, 1_201)] == [1, 2, 2]

    on = cluster(nodes=1, gpus=4)
    tells_apart(check, run([made], on, "pollux", until=1_300), run([made], on, "afs", until=1_300))


@claim("pollux", "no two jobs that span nodes have GPUs on the same node")
def test_jobs_that_span_nodes_share_none() -> None:
    """12 GPUs on 3 nodes, and two jobs that scale alike: 6 and 6 would share a node, 8 and 4 do not."""
    step = StepTime(0.02, 0.001)
    jobs = [training(name, 1e5, step=step, minutes=3_000) for name in "ab"]
    on = cluster(nodes=3, gpus=4)

    def check(result: Run) -> None:
        nodes = [nodes_of(spots) for spots in held(result, 1_200).values()]
        spanning = [each for each in nodes if len(each) > 1]
        assert len(nodes) == 2
        assert sum(map(len, spanning)) == len(set().union(*spanning))

    tells_apart(check, run(jobs, on, "pollux", until=1_300), run(jobs, on, "afs", until=1_300))


LOAD = 1.0


def badly_tuned(seed: int) -> list[Job]:
    """16 jobs that all ask for the 16 GPUs of the cluster; on these, one at a time, they are a load of 1."""
    luck, jobs, alone = random.Random(seed), list[Job](), 0.0
    for number in range(16):
        step = StepTime(
            luck.uniform(0.02, 0.06),
            luck.uniform(0.0005, 0.002),
            node_sync=luck.uniform(0.01, 0.03),
            network_sync=luck.uniform(0.03, 0.15),
            network_sync_more=luck.uniform(0, 0.005),
            overlap=luck.uniform(1, 4),
        )
        first, batch = luck.uniform(50, 500), luck.choice((32, 64, 128))
        noise = first, 5 * first, 20 * first
        minutes = min(240.0, 8 + luck.expovariate(1 / 32))
        made = training(f"j{number}", *noise, step=step, batch=batch, minutes=minutes)
        all16 = [relative_speed(_model(made), "", (16, True), (16, True), scale, None) for scale in noise]
        alone += minutes * 20 * sum(1 / speed for speed in all16)
        jobs.append(made)
    gaps = [luck.expovariate(1.0) for _ in jobs]
    at = [sum(gaps[:number]) / sum(gaps[:-1]) * alone / LOAD for number in range(len(jobs))]
    return [replace(made, arrived_at=round(time * SECOND)) for made, time in zip(jobs, at, strict=True)]


@lru_cache
def means(policy: str) -> list[float]:
    """The mean JCT of each trace."""
    on = cluster(nodes=4, gpus=4)
    return [mean(run(badly_tuned(seed), on, policy).jct()) for seed in range(40, 50)]


@claim("pollux", "where all jobs ask for 16 GPUs its mean JCT is more than 25 % below least attained service")
def test_badly_tuned_requests_do_not_matter() -> None:
    las, fcfs = means("tiresias-l"), means("fifo")

    def check(found: list[float]) -> None:
        assert mean(found) < 0.75 * mean(las)
        assert mean(found) < mean(fcfs)
        assert sum(ours < theirs for ours, theirs in zip(found, las, strict=True)) >= 9

    tells_apart(check, means("pollux"), las)
