"""E-LAS: what a job has had, read together with how far that brought it."""

from __future__ import annotations

import random
from typing import Any

from dovetail.model.job import Job
from dovetail.sim.run import Run
from dovetail.testing.build import HOUR, SECOND, Checkpoint, Incident, cluster, job, run
from dovetail.testing.claims import claim, tells_apart

SAVES = Checkpoint(every=SECOND)


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


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


@claim("e-las", "a waiting job preempts a running one only if it ranks lower by more than a tenth")
def test_nearly_equal_jobs_do_not_preempt_each_other() -> None:
    one = cluster(nodes=1, gpus=1)
    jobs = [job(f"{i}", hours=4) for i in range(2)]  # without epochs: the waiting job has less service

    def check(result: Run) -> None:
        assert result.preemptions < 60  # in 480 periods

    tells_apart(check, run(jobs, one, "e-las"), run(jobs, one, "e-las", hysteresis=0.0))


def trace(seed: int) -> list[Job]:
    """Log-normal lengths over 1 to 8 GPUs, epochs reported, offered at the full load of 32 GPUs."""
    rng = random.Random(seed)
    jobs, now = list[Job](), 0.0
    for i in range(150):
        gpus, seconds = rng.choice([1, 1, 2, 4, 8]), min(rng.lognormvariate(7.5, 1.4), 2e5)
        jobs.append(job(f"{i:03}", gpus=gpus, seconds=seconds, at=now, epochs=rng.randrange(10, 100)))
        now += rng.expovariate(32 / (3.2 * 4800))
    return jobs


@claim("e-las", "mean JCT at or below tiresias-l on traces of jobs that report epochs")
def test_mean_jct_is_below_least_attained_service() -> None:
    four = cluster(nodes=4, gpus=8)
    runs = [(run(jobs, four, "e-las"), run(jobs, four, "tiresias-l")) for jobs in map(trace, range(10))]
    means = [(mean(ours.jct()), mean(las.jct())) for ours, las in runs]

    def check(pairs: list[tuple[float, float]]) -> None:
        assert sum(ours for ours, _ in pairs) < 0.9 * sum(las for _, las in pairs)
        assert sum(ours < las for ours, las in pairs) >= 8

    tells_apart(check, means, [(las, ours) for ours, las in means])


def test_jobs_without_epochs_are_ranked_by_service() -> None:
    one = cluster(nodes=1, gpus=1)
    jobs = [job("old", hours=2), job("new", minutes=5, at=1800)]
    result = run(jobs, one, "e-las")
    assert result.jct("new") == [300]
    assert result.finished == 2
