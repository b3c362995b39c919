"""Tiresias: short jobs overtake long ones without knowing their durations."""

from __future__ import annotations

from typing import Any

import pytest

from dovetail.model.job import Job
from dovetail.sim.run import Run
from dovetail.testing.build import Checkpoint, Profile, cluster, job, run
from dovetail.testing.claims import claim, tells_apart

ONE = cluster(nodes=1, gpus=1)
EIGHT = cluster(nodes=1, gpus=8)

LONG_THEN_SHORT = [
    job("long", gpus=8, hours=10),
    *[job(f"short{i}", gpus=8, minutes=5, at=600) for i in range(20)],
]


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


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
