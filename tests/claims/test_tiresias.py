"""Tiresias: short jobs overtake long ones without knowing their durations."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from dovetail.mechanisms.order.attained_service import attained_service
from dovetail.mechanisms.queue.discipline import skip
from dovetail.model.job import Job
from dovetail.model.view import JobView, Order
from dovetail.policies.tiresias.gittins_index import Indices
from dovetail.sim.run import Run
from dovetail.testing.build import Checkpoint, Profile, cluster, job, run
from dovetail.testing.claims import claim, tells_apart
from dovetail.testing.mutants import mutant

ONE = cluster(nodes=1, gpus=1)
EIGHT = cluster(nodes=1, gpus=8)

LONG_THEN_SHORT = [
    job("long", gpus=8, hours=10),
    *[job(f"short{i}", gpus=8, minutes=5, at=600) for i in range(20)],
]


FINE = [500.0 * step for step in range(1, 7)]


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def last_in_first_out(*args: Any, **options: Any) -> Order:
    def key(job: JobView, now: int) -> int:
        return (job.stage << 64) - job.stage_since

    def yields(job: JobView, now: int) -> int:
        return -((((job.stage << 64) - job.stage_since) << 32) - job.seq)

    return replace(attained_service(*args, **options), key=key, yields=yields, limit=yields)


def rank_by_time(index: Indices, job: JobView, now: int) -> tuple[int, float, int]:
    return (job.stage, -index.at(job.service_at(now) // job.gpus), job.stage_since)


def rank_by_least_index(index: Indices, job: JobView, now: int) -> tuple[int, float, int]:
    return (job.stage, index.at(job.service_at(now)), job.stage_since)


TIRESIAS = "dovetail.policies.tiresias.policy"
MUTANTS = (
    mutant(
        "tiresias-l",
        "attained service",
        "jobs are never demoted",
        killed_by="test_short_jobs_do_not_wait_for_a_long_one",
        options={"thresholds": []},
    ),
    mutant(
        "tiresias-l",
        "GPUs count",
        "time alone counts",
        killed_by="test_demotion_comes_at_the_threshold_of_gpu_time",
        options={"service": "time"},
    ),
    mutant(
        "tiresias-l",
        "few queues",
        "a queue for every 500 GPU-seconds",
        killed_by="test_jobs_of_one_queue_do_not_preempt_each_other",
        options={"thresholds": FINE},
    ),
    mutant(
        "tiresias-l",
        "order of entry inside a queue",
        "the last to enter goes first",
        killed_by="test_demotion_comes_at_the_threshold_of_gpu_time",
        replace={f"{TIRESIAS}:attained_service": last_in_first_out},
    ),
    mutant(
        "tiresias-l",
        "preemption",
        "running jobs are left alone",
        killed_by="test_short_jobs_do_not_wait_for_a_long_one",
        replace={f"{TIRESIAS}:preemptive": lambda order: skip},
    ),
    mutant(
        "tiresias-l",
        "promotion",
        "a job that waits stays where it is",
        killed_by="test_promotion_bounds_the_wait",
        options={"promote": None},
    ),
    mutant(
        "tiresias-l",
        "placement by tensor skew",
        "every job waits for one node",
        killed_by="test_skewed_models_are_consolidated_and_others_scattered",
        options={"placement": "packed"},
    ),
    mutant(
        "tiresias-l",
        "placement by tensor skew",
        "every job takes any free GPUs",
        killed_by="test_skewed_models_are_consolidated_and_others_scattered",
        options={"placement": "scattered"},
    ),
    mutant(
        "tiresias-l",
        "sticky queues",
        "a queue forgets its order",
        killed_by="test_sticky_queues_keep_running_jobs",
        options={"queue_order": "entry"},
    ),
    mutant(
        "tiresias-g",
        "the index",
        "all jobs have the same index",
        killed_by="test_the_distribution_tells_a_long_job_early",
        replace={f"{TIRESIAS}:Indices.at": lambda self, attained: 0.0},
    ),
    mutant(
        "tiresias-g",
        "the index",
        "the smallest index goes first",
        killed_by="test_the_distribution_tells_a_long_job_early",
        replace={f"{TIRESIAS}:index_rank": rank_by_least_index},
    ),
    mutant(
        "tiresias-g",
        "two dimensions",
        "time counts, not GPU-time",
        killed_by="test_the_index_counts_gpu_time",
        replace={f"{TIRESIAS}:index_rank": rank_by_time},
    ),
    mutant(
        "tiresias-g",
        "the best horizon",
        "the index looks 3250 GPU-seconds ahead",
        killed_by="test_a_job_that_may_end_soon_goes_before_one_that_surely_ends_later",
        options={"horizon": 3250.0},
    ),
    mutant(
        "tiresias-g",
        "queues before the index",
        "the index alone counts",
        killed_by="test_queues_come_before_the_index",
        options={"thresholds": []},
    ),
    mutant(
        "tiresias-g",
        "learning",
        "jobs that end teach nothing",
        killed_by="test_the_distribution_is_learned_from_finished_jobs",
        replace={f"{TIRESIAS}:with_ended": lambda known, *_: known},
    ),
)


@pytest.mark.parametrize(("gpus", "demoted_at"), [(8, 406.25), (1, 3250.0)])
@claim(
    "tiresias-l",
    "GPU-time counts: at a threshold of 3250 an 8-GPU job is demoted after 406.25 s, a 1-GPU job after 3250",
)
def test_demotion_comes_at_the_threshold_of_gpu_time(gpus: int, demoted_at: float) -> None:
    jobs = [job("old", gpus=gpus, hours=10), job("new", gpus=gpus, minutes=1, at=100)]
    on = cluster(nodes=1, gpus=gpus)

    def check(result: Run) -> None:
        # The newcomer waits in the same queue until the old job leaves it, and takes its place that instant.
        assert result.start("new") == demoted_at

    tells_apart(check, run(jobs, on, "tiresias-l", quantum=None), run(jobs, on, "fifo"))


@claim(
    "tiresias-l",
    "mean JCT at least 5 times below fifo: short jobs do not wait for a long one that arrived before",
)
def test_short_jobs_do_not_wait_for_a_long_one() -> None:
    fifo = run(LONG_THEN_SHORT, EIGHT, "fifo")
    bound = mean(fifo.jct()) / 5

    def check(result: Run) -> None:
        assert mean(result.jct()) < bound

    ours = run(LONG_THEN_SHORT, EIGHT, "tiresias-l")
    tells_apart(check, ours, fifo)
    assert round(mean(ours.jct()) / 60) == 83  # minutes, without switch cost
    assert round(mean(fifo.jct()) / 60) == 640
    assert ours.jct("long") == [36_000 + 20 * 300]  # its own time and the short jobs', to the second


@claim("tiresias-l", "the long job pays for the short ones' time and its own switches, and for no more")
def test_the_long_job_pays_no_more_than_the_short_ones_took() -> None:
    second = 1_000_000
    costly = Checkpoint(save=10 * second, restore=20 * second)
    jobs = [job("long", gpus=8, hours=10, checkpoint=costly), *LONG_THEN_SHORT[1:]]
    shorts, switches = 20 * 300, 10 + 20

    def check(result: Run) -> None:
        (long,) = result.jct("long")
        assert long <= 36_000 + shorts + switches
        assert max(result.jct("short*")) <= shorts + switches

    one_at_a_time: dict[str, Any] = {"thresholds": [3250.0], "quantum": None}
    tells_apart(check, run(jobs, EIGHT, "tiresias-l", **one_at_a_time), run(jobs, EIGHT, "fifo"))


def stream(until: float) -> list[Job]:
    """A long job, and short ones back to back that would keep it out for ever."""
    short = [job(f"short{i:03}", seconds=300, at=4000 + 300 * i) for i in range(int(until / 300))]
    return [job("long", hours=40), *short]


def worst_wait(result: Run, name: str) -> float:
    """The longest that a job waited, over what it had run by then."""
    stretches = sorted((s.start, s.end) for s in result.stretches if s.job == name)
    executed, worst = 0, 0.0
    for (start, end), (again, _) in zip(stretches, [*stretches[1:], (result.until, 0)], strict=True):
        executed += end - start
        worst = max(worst, (again - end) / executed)
    return worst


@claim("tiresias-l", "jobs of one queue do not preempt each other: two equal jobs run one after the other")
def test_jobs_of_one_queue_do_not_preempt_each_other() -> None:
    jobs = [job(f"{i}", seconds=3000) for i in range(2)]  # below the threshold of 3250

    def check(result: Run) -> None:
        assert result.jct() == [3000, 6000]
        assert result.preemptions == 0

    fine = run(jobs, ONE, "tiresias-l", thresholds=FINE)
    tells_apart(check, run(jobs, ONE, "tiresias-l"), fine)


@claim(
    "tiresias-l",
    "promotion bounds the wait of a job relative to its run time; without it the wait has no bound",
)
def test_promotion_bounds_the_wait() -> None:
    day = 86_400.0

    def watched(promote: float | None, until: float) -> Run:
        return run(stream(until), ONE, "tiresias-l", promote=promote, until=until)

    def check(result: Run) -> None:
        # It waits `promote` times what it ran, and then for jobs of the first queue before it: at most what
        # it ran itself, for only then did they gather, and one short job.
        assert worst_wait(result, "long") <= 4.0 + 1.0 + 0.2

    tells_apart(check, watched(4.0, 2 * day), watched(None, 2 * day))
    check(watched(4.0, 8 * day))
    assert worst_wait(watched(None, 8 * day), "long") > 3.9 * worst_wait(watched(None, 2 * day), "long")


@claim("tiresias-l", "only models with skewed tensors wait for one node; others take any free GPUs at once")
def test_skewed_models_are_consolidated_and_others_scattered() -> None:
    two = cluster(nodes=2, gpus=4)
    hour = [job(f"half{i}", gpus=2, hours=1) for i in range(2)]
    spread = [job("left", gpus=3, hours=1), job("right", gpus=3, hours=1)]
    vgg, resnet = Profile(skewed=True, split=2.0), Profile(skewed=False)

    def jobs(profile: Profile) -> list[Job]:
        return [*spread, job("new", gpus=2, minutes=10, at=60, profile=profile)]

    def check(placement: str) -> None:
        options: dict[str, Any] = {"placement": placement, "thresholds": [1e9]}
        assert run(jobs(vgg), two, "tiresias-l", **options).jct("new") == [3600 - 60 + 600]
        assert run(jobs(resnet), two, "tiresias-l", **options).jct("new") == [600]

    tells_apart(check, "skew", "packed")
    tells_apart(check, "skew", "scattered")
    assert run(hour, two, "tiresias-l").jct() == [3600, 3600]


@claim("tiresias-l", "in a sticky queue a waiting job never preempts a running job of the same queue")
def test_sticky_queues_keep_running_jobs() -> None:
    jobs = [
        job("wide", gpus=2, hours=2),  # in the lower queue from 300 s on
        job("narrow", gpus=1, hours=1, at=400),  # and this one, behind it, from 1000 s on
        job("young", gpus=1, seconds=300, at=2000),  # displaces `wide`, so that `narrow` fits beside it
    ]
    two = cluster(nodes=1, gpus=2)
    options: dict[str, Any] = {"thresholds": [600.0], "quantum": None}

    def check(result: Run) -> None:
        assert result.finish("narrow") == 2000 + 3600 - 600  # it runs on when `young` is gone

    sticky = run(jobs, two, "tiresias-l", queue_order="sticky", **options)
    tells_apart(check, sticky, run(jobs, two, "tiresias-l", queue_order="entry", **options))
    assert sticky.finished == 3


SIZES = [1000.0] * 9 + [3000.0]  # nine of ten need 1000 GPU-seconds, one 3000: all below the threshold


@claim("tiresias-g", "knowing how GPU-times are distributed, it sees a long job before any threshold does")
def test_the_distribution_tells_a_long_job_early() -> None:
    jobs = [job("long", seconds=3000), *[job(f"short{i}", seconds=1000, at=500) for i in range(3)]]

    def check(result: Run) -> None:
        # Past 1000 s a job can only be a long one, 2000 s from its end: the others go first.
        assert [result.start(f"short{i}") for i in range(3)] == [1000, 2000, 3000]
        assert result.jct("long") == [3000 + 3 * 1000]

    ours = run(jobs, ONE, "tiresias-g", samples=SIZES, quantum=None)
    tells_apart(check, ours, run(jobs, ONE, "tiresias-l", quantum=None))
    assert mean(ours.jct()) < mean(run(jobs, ONE, "tiresias-l", quantum=None).jct())


@pytest.mark.parametrize("gpus", [1, 4])
@claim(
    "tiresias-g",
    "GPU-time counts: a job shows itself as a long one after 1000 s on one GPU, after 250 s on four",
)
def test_the_index_counts_gpu_time(gpus: int) -> None:
    jobs = [
        job("long", gpus=gpus, seconds=3000 / gpus),
        *[job(f"short{i}", gpus=gpus, seconds=1000 / gpus, at=100) for i in range(3)],
    ]
    on = cluster(nodes=1, gpus=gpus)

    def check(result: Run) -> None:
        assert [result.start(f"short{i}") for i in range(3)] == [1000 / gpus, 2000 / gpus, 3000 / gpus]

    ours = run(jobs, on, "tiresias-g", samples=SIZES, quantum=None)
    tells_apart(check, ours, run(jobs, on, "tiresias-l", quantum=None))


@claim(
    "tiresias-g",
    "a new job that may end in 100 s goes before one that surely ends in 1200, and no longer when it did not",
)
def test_a_job_that_may_end_soon_goes_before_one_that_surely_ends_later() -> None:
    sizes = [100.0] * 10 + [1800.0] + [3000.0] * 9
    jobs = [
        job("old", seconds=3000),
        job("short", seconds=100, at=1800),
        job("long", seconds=3000, at=1800),
    ]

    def check(result: Run) -> None:
        # New jobs have index (1/2) / 100, `old` has 1 / 1200, and `long` after its first 100 s 1 / 2780.
        assert [result.start(name) for name in ("short", "long")] == [1800, 1900]
        assert result.finish("old") == 3200

    ours = run(jobs, ONE, "tiresias-g", samples=sizes, quantum=None)
    tells_apart(check, ours, run(jobs, ONE, "tiresias-g", samples=sizes, horizon=3250.0, quantum=None))


@claim("tiresias-g", "queues come first: past the threshold a job is preempted though its index is larger")
def test_queues_come_before_the_index() -> None:
    jobs = [job("old", seconds=5000), job("new", seconds=1000, at=100)]

    def check(result: Run) -> None:
        assert result.start("new") == 3250

    options: dict[str, Any] = {"samples": [5000.0], "quantum": None}  # the nearer to 5000, the larger
    tells_apart(
        check, run(jobs, ONE, "tiresias-g", **options), run(jobs, ONE, "tiresias-g", thresholds=[], **options)
    )


def bimodal(seed: int) -> list[Job]:
    """Eight of ten jobs need 200 GPU-seconds, two 3000, on 1 to 4 GPUs: full load for 8 GPUs."""
    rng = Random(seed)
    jobs, now = list[Job](), 0.0
    for i in range(60):
        gpus, service = rng.choice([1, 1, 2, 4]), rng.choice([200] * 4 + [3000])
        jobs.append(job(f"{i:02}", gpus=gpus, seconds=service / gpus, at=now))
        now += rng.expovariate(8 / 760)
    return jobs


@claim("tiresias-g", "knowing the distribution lowers the mean JCT where no threshold tells long from short")
def test_the_distribution_lowers_the_mean() -> None:
    sizes = [200.0] * 4 + [3000.0]

    def means(policy: str, **options: Any) -> list[float]:
        return [mean(run(bimodal(seed), EIGHT, policy, **options).jct()) for seed in range(10)]

    least_service = means("tiresias-l")

    def check(found: list[float]) -> None:
        assert mean(found) < mean(least_service)
        assert sum(ours < las for ours, las in zip(found, least_service, strict=True)) >= 8

    tells_apart(check, means("tiresias-g", samples=sizes), least_service)


@claim("tiresias-g", "the distribution can be learned from the jobs that ended")
def test_the_distribution_is_learned_from_finished_jobs() -> None:
    past = [job(f"past{i}", seconds=size, at=4000 * i) for i, size in enumerate(SIZES)]
    jobs = [
        *past,
        job("long", seconds=3000, at=50_000),
        *[job(f"short{i}", seconds=1000, at=50_500) for i in range(3)],
    ]

    def check(result: Run) -> None:
        assert [result.start(f"short{i}") - 50_000 for i in range(3)] == [1000, 2000, 3000]

    unlearned = run(jobs[len(past) :], ONE, "tiresias-g", quantum=None)
    tells_apart(check, run(jobs, ONE, "tiresias-g", quantum=None), unlearned)


@pytest.mark.parametrize("policy", ["tiresias-l", "tiresias-g"])
@pytest.mark.parametrize("select", ["fit", "count"])
@pytest.mark.parametrize("promote", [None, 2.0])
def test_every_job_finishes(policy: str, select: str, promote: float | None) -> None:
    jobs = [
        job(f"{i:02}", gpus=1 + (7 * i) % 12, minutes=1 + (i * i) % 90, at=120.0 * (i % 25))
        for i in range(60)
    ]
    result = run(jobs, cluster(nodes=3, gpus=4), policy, select=select, promote=promote)
    assert result.finished == 60
