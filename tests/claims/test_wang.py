"""Non-intrusive elastic scheduling (Wang et al.): jobs start at once, GPUs follow the remaining times."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from dovetail.mechanisms.resize.resizing import held_tasks
from dovetail.mechanisms.resize.shrinking import start_by_shrinking
from dovetail.model.cluster import Cluster
from dovetail.model.estimate import Declared, Estimate
from dovetail.model.grant import Spots, devices_of
from dovetail.model.job import Job
from dovetail.model.units import WHOLE
from dovetail.model.view import JobView, View
from dovetail.policies.wang import Elastic, Seen, dealt, loss
from dovetail.sim.run import Run
from dovetail.testing.build import SECOND, Checkpoint, Profile, cluster, job, run
from dovetail.testing.claims import claim, tells_apart
from dovetail.testing.mutants import mutant

WANG = "dovetail.policies.wang"


def as_declared(view: View, rates: dict[str, Seen]) -> dict[str, list[float]]:
    """The declared length, whatever part of it is done."""
    table = view.table()
    return {
        each.id: [each.estimate / speed if speed > 0 else float("inf") for speed in row]
        for each, row in zip(table.jobs, table.speeds.tolist(), strict=True)
    }


def newest_first(jobs: Iterable[Elastic], free: int) -> list[tuple[JobView, int]]:
    """The job that arrived last gets what it can use, then the one before it."""
    found = []
    for row in sorted(jobs, key=lambda row: -row.job.seq):
        more = min(free, row.most - row.tasks)
        free -= more
        found.append((row.job, row.tasks + more))
    return [(each, tasks) for each, tasks in found if tasks > held_tasks(each)]


def most_lost(row: Elastic, lacks: int) -> tuple[float, int]:
    lost, fewer = loss(row, lacks)
    return -lost, fewer


def without_early_initialisation(checkpoint: Checkpoint, before: Spots, after: Spots) -> int:
    assert checkpoint.resize is not None
    return checkpoint.resize


MUTANTS = (
    mutant(
        "wang",
        "admission",
        "running jobs give up no GPUs",
        killed_by="test_every_job_starts_at_once",
        replace={f"{WANG}:start_by_shrinking": lambda *_: False},
    ),
    mutant(
        "wang",
        "admission",
        "a newcomer takes as many GPUs as it asked for",
        killed_by="test_the_job_that_scales_badly_gives_up_gpus",
        replace={
            f"{WANG}:start_by_shrinking": lambda plan, new, tasks, *rest: start_by_shrinking(
                plan, new, new.shape.tasks, *rest
            )
        },
    ),
    mutant(
        "wang",
        "smallest loss",
        "the job that loses most gives up GPUs",
        killed_by="test_the_job_that_scales_badly_gives_up_gpus",
        replace={f"{WANG}:loss": most_lost},
    ),
    mutant(
        "wang",
        "smallest loss",
        "the job with the most GPUs gives them up",
        killed_by="test_the_job_that_scales_badly_gives_up_gpus",
        replace={f"{WANG}:loss": lambda row, lacks: (-row.tasks, min(row.tasks - row.least, lacks))},
    ),
    mutant(
        "wang",
        "progress",
        "the declared length counts, not what is left",
        killed_by="test_the_job_that_is_nearly_done_gives_up_gpus",
        replace={f"{WANG}:remaining_times": as_declared},
    ),
    mutant(
        "wang",
        "measured rate",
        "jobs are taken to run as fast as estimated",
        killed_by="test_measured_rates_correct_estimated_speeds",
        replace={f"{WANG}:slower_than_told": lambda speeds, rate: 1.0},
    ),
    mutant(
        "wang",
        "growth",
        "running jobs do not grow",
        killed_by="test_freed_gpus_go_where_they_save_most_time",
        replace={f"{WANG}:_grow": lambda *_: None},
    ),
    mutant(
        "wang",
        "growth",
        "free GPUs go to the job that arrived last",
        killed_by="test_freed_gpus_go_where_they_save_most_time",
        replace={f"{WANG}:dealt": newest_first},
    ),
    mutant(
        "wang",
        "restarts count",
        "a resize is taken to cost nothing",
        killed_by="test_a_job_is_not_restarted_for_less_than_the_restart_takes",
        replace={
            f"{WANG}:dealt": lambda jobs, free: dealt([row._replace(restart=0) for row in jobs], free),
        },
    ),
    mutant(
        "wang",
        "early initialisation",
        "a job that shrinks pauses as long as one that grows",
        killed_by="test_early_initialisation_makes_pauses_shorter",
        replace={"dovetail.model.job:Checkpoint.pause": without_early_initialisation},
    ),
)

SIDECAR = Checkpoint(save=20 * SECOND, restore=40 * SECOND, resize=15 * SECOND, shrink=5 * SECOND)
SIXTEEN = cluster(nodes=2, gpus=8)
EIGHT = cluster(nodes=1, gpus=8)


def scaling(name: str, power: float, *, minutes: float, at: float = 0.0, gpus: int = 4, **more: Any) -> Job:
    """A job whose speed on n GPUs is n to some power; a side-car restarts its process to resize it."""
    limits: dict[str, Any] = {"least": 1, "most": 16, "checkpoint": SIDECAR, **more}
    profile = limits.pop("profile", None) or Profile(curve={n: n**power for n in range(1, 17)})
    return job(name, gpus=gpus, minutes=minutes, at=at, profile=profile, **limits)


def sizes(result: Run, at: float) -> dict[str, int]:
    """GPUs of each job at a time."""
    now = round(at * SECOND)
    return {s.job: devices_of(s.spots) for s in result.stretches if s.start <= now < s.end}


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


@claim(
    "wang",
    "four elastic jobs that arrive 5 minutes apart on 16 GPUs all start at once, and end earlier on average",
)
def test_every_job_starts_at_once() -> None:
    """They ask for 8, 4, 4 and 8 GPUs: with fixed numbers the fourth has to wait for the first."""
    asked = (8, 4, 4, 8)
    jobs = [scaling(f"j{i}", 0.9, minutes=60, at=300 * i, gpus=gpus) for i, gpus in enumerate(asked)]
    default = run(jobs, SIXTEEN, "k8s-default")

    def check(result: Run) -> None:
        assert max(result.first_start()) < 20
        assert result.preemptions == 0
        assert mean(result.jct()) < 0.95 * mean(default.jct())
        assert result.makespan < 0.8 * default.makespan

    tells_apart(check, run(jobs, SIXTEEN, "wang"), default)


@claim("wang", "a newcomer gets the GPU of the job that loses least by it: of speed n^0.3, not n^0.95")
def test_the_job_that_scales_badly_gives_up_gpus() -> None:
    """Both have an hour to go. One GPU less costs 13 % of that on 3 GPUs, and 24 % on 5."""
    jobs = [scaling("well", 0.95, minutes=60, gpus=5, most=5)]
    jobs += [scaling("badly", 0.3, minutes=60, gpus=3, most=3)]
    jobs += [scaling("new", 0.9, minutes=10, at=60)]

    def check(result: Run) -> None:
        assert sizes(result, 59) == {"well": 5, "badly": 3}
        assert sizes(result, 61) == {"well": 5, "badly": 2, "new": 1}

    tells_apart(check, run(jobs, EIGHT, "wang"), run(jobs, EIGHT, "afs"))


@claim("wang", "of two equal jobs the one that has made more progress gives up GPUs for a newcomer")
def test_the_job_that_is_nearly_done_gives_up_gpus() -> None:
    """One GPU less costs `old` 44 % of the 10 minutes left, and `young` 22 % of 50."""
    jobs = [scaling("old", 0.9, minutes=60, gpus=3, most=3)]
    jobs += [scaling("young", 0.9, minutes=60, at=2_400, gpus=5, most=5)]
    jobs += [scaling("new", 0.9, minutes=10, at=3_000)]

    def check(result: Run) -> None:
        assert sizes(result, 2_999) == {"old": 3, "young": 5}
        assert sizes(result, 3_001) == {"old": 2, "young": 5, "new": 1}

    tells_apart(check, run(jobs, EIGHT, "wang"), run(jobs, EIGHT, "marble"))


class Optimistic(Declared):
    """Takes every job for as fast as its reference run, whatever its profile says of the GPU type."""

    def estimate(
        self, cluster: Cluster, job: JobView, tasks: int, type: str, nodes: int | None, batch: int | None
    ) -> Estimate:
        found = super().estimate(cluster, job, tasks, type, nodes, batch)
        profile = job.traits.profile
        return found if profile is None else found._replace(speed=found.speed / profile.speeds["gpu"])


@claim("wang", "a job that runs four times slower than estimated gets the freed GPUs, by its measured rate")
def test_measured_rates_correct_estimated_speeds() -> None:
    """By the estimate `fast` has more work left than `slow`."""
    curve = {n: n**0.9 for n in range(1, 17)}
    fast, slow = Profile(curve=curve, speeds={"gpu": 1.0}), Profile(curve=curve, speeds={"gpu": 0.25})
    first = job("first", gpus=4, minutes=10, profile=fast)
    jobs = [first, scaling("fast", 0, minutes=60, gpus=2, profile=fast, most=6, least=2)]
    jobs += [scaling("slow", 0, minutes=40, gpus=2, profile=slow, most=6, least=2)]

    def check(result: Run) -> None:
        both = sizes(result, 700)
        assert both.keys() == {"fast", "slow"}
        assert both["slow"] > both["fast"]

    ours, theirs = (run(jobs, EIGHT, name, estimator=Optimistic()) for name in ("wang", "marble"))
    tells_apart(check, ours, theirs)


@claim(
    "wang",
    "freed GPUs go to the job whose remaining time they shorten most, though another one speeds up more",
)
def test_freed_gpus_go_where_they_save_most_time() -> None:
    """One more GPU makes `short` 96 % faster and `long` 62 %: it saves 5 minutes of 10, or 44 of 115."""
    jobs = [job("first", gpus=1, minutes=5), scaling("long", 0.7, minutes=120, gpus=1, most=2)]
    jobs += [scaling("short", 0.97, minutes=15, gpus=1, most=2)]
    on = cluster(nodes=1, gpus=3)

    def check(result: Run) -> None:
        assert sizes(result, 299) == {"first": 1, "long": 1, "short": 1}
        assert sizes(result, 301) == {"long": 2, "short": 1}

    tells_apart(check, run(jobs, on, "wang"), run(jobs, on, "afs"))


@claim("wang", "a job that needs 20 s more is not restarted, in 15 s, to save 10 s; one with an hour left is")
def test_a_job_is_not_restarted_for_less_than_the_restart_takes() -> None:
    jobs = [job("first", gpus=4, minutes=10), scaling("ending", 1.0, minutes=10 + 1 / 3, least=4, most=8)]

    def check(result: Run) -> None:
        assert sizes(result, 601) == {"ending": 4}
        assert result.finish("ending") == 620

    tells_apart(check, run(jobs, EIGHT, "wang"), run(jobs, EIGHT, "afs"))
    longer = [jobs[0], scaling("hour", 1.0, minutes=60, least=4, most=8)]
    assert sizes(run(longer, EIGHT, "wang"), 601) == {"hour": 8}


@claim("wang", "with early initialisation pauses are shorter than without, and than by kill and requeue")
def test_early_initialisation_makes_pauses_shorter() -> None:
    """The job pauses 5 s on 7 GPUs, 5 s on 6, then as it grows 15 s on 7 and 15 s on 8: 290 GPU-seconds."""

    def check(checkpoint: Checkpoint) -> None:
        jobs = [scaling("old", 1.0, minutes=60, checkpoint=checkpoint)]
        jobs += [job("one", minutes=2, at=300), job("two", minutes=2, at=360)]
        result = run(jobs, EIGHT, "wang")
        assert [sizes(result, at)["old"] for at in (299, 301, 361, 421, 481)] == [8, 7, 6, 7, 8]
        assert result.lost == 290 * WHOLE * SECOND

    without = Checkpoint(resize=15 * SECOND)
    kill_and_requeue = Checkpoint(save=20 * SECOND, restore=40 * SECOND)
    for other in (without, kill_and_requeue):
        tells_apart(check, SIDECAR, other)


def trace(seed: int) -> list[Job]:
    """40 jobs of speed n^0.4 to n^0.95 that ask for 1 to 8 GPUs; as asked they load 16 GPUs fully."""
    luck, at, jobs = random.Random(seed), 0.0, list[Job]()
    for number in range(40):
        at += luck.expovariate(1 / 436)
        power, gpus = luck.uniform(0.4, 0.95), luck.choice((1, 2, 4, 8))
        minutes = 1 + luck.expovariate(1 / 30)
        jobs.append(scaling(f"j{number}", power, minutes=minutes, at=at, gpus=gpus))
    return jobs


@lru_cache
def runs(policy: str) -> list[tuple[float, float]]:
    """The mean JCT and the makespan of each trace, in minutes."""
    options: dict[str, Any] = {"discipline": "skip"} if policy == "fifo" else {}
    found = [run(trace(seed), SIXTEEN, policy, **options) for seed in range(100, 112)]
    return [(mean(result.jct()) / 60, result.makespan / SECOND / 60) for result in found]


@claim("wang", "mean JCT and makespan are below those of fixed numbers of GPUs, where jobs that fit overtake")
def test_mean_jct_and_makespan_are_below_those_of_fixed_sizes() -> None:
    """Default Kubernetes with one pod for each job: a pod that does not fit keeps no other one waiting."""
    fixed = runs("fifo")

    def check(found: list[tuple[float, float]]) -> None:
        for figure, bound in enumerate((0.8, 0.9)):
            pairs = [(ours[figure], theirs[figure]) for ours, theirs in zip(found, fixed, strict=True)]
            assert sum(ours for ours, _ in pairs) < bound * sum(theirs for _, theirs in pairs)
            assert sum(ours < theirs for ours, theirs in pairs) >= 10

    tells_apart(check, runs("wang"), fixed)
