"""Shockwave: a market of the next rounds, by a forecast of how jobs change their speed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from random import Random
from statistics import mean
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from dovetail.model.job import Job, Profile, Traits
from dovetail.model.profile_arithmetic import regime_at
from dovetail.model.units import HOUR, SECOND
from dovetail.model.view import JobView, Policy, View
from dovetail.policies.gavel import gavel
from dovetail.policies.shockwave.policy import JobForecast, Shockwave, Types, WindowPlan
from dovetail.policies.shockwave.regimes import Forecast, Stretch, ahead, behind, time_of
from dovetail.sim.run import Run
from dovetail.testing.build import cluster, job, run
from dovetail.testing.claims import claim, tells_apart
from dovetail.testing.mutants import mutant


def faster(after: float) -> Profile:
    """Four times as fast after this part of its epochs."""
    return Profile(regimes=((after, 1.0), (1 - after, 4.0)))


FASTER = faster(0.5)
with_contention = Shockwave._with_contention


def as_at_first(profile: Profile | None, done: float, whole: float, forecast: Forecast) -> list[Stretch]:
    """Equal parts of the work in all regimes, however much of it was seen."""
    if profile is None or not profile.regimes:
        return ahead(profile, done, whole, forecast)
    speeds = {speed: whole / len(profile.regimes) for _, speed in profile.regimes}
    for work, speed in behind(profile, done, whole):
        speeds[speed] = max(speeds[speed] - work, 0.0)
    scale = (whole - done) / (sum(speeds.values()) or 1.0)
    return [(work * scale, speed) for speed, work in speeds.items() if work > 0]


def present_contention(
    self: Shockwave, view: View, window: WindowPlan, jobs: Sequence[JobView], types: Types
) -> WindowPlan:
    found = with_contention(self, view, window, jobs, types)
    felt = {id: (found.contention * time, time) for id, (_, time) in found.experienced.items()}
    return replace(found, experienced=felt)


def sum_of_progress(part: npt.ArrayLike) -> npt.NDArray[np.float64]:
    return np.asarray(part, dtype=np.float64)


def no_round(self: Shockwave, seen: JobForecast, contention: float) -> int:
    return 0


POLICY = "dovetail.policies.shockwave.policy"
MUTANTS = (
    mutant(
        "shockwave",
        "forecast by the posterior",
        "all that is left goes at the present speed",
        killed_by="test_the_forecast_says_which_job_is_the_longest",
        options={"forecast": "constant"},
    ),
    mutant(
        "shockwave",
        "forecast by the posterior",
        "regimes have equal parts, whatever was seen of them",
        killed_by="test_the_forecast_learns_from_the_epochs_seen",
        replace={f"{POLICY}:ahead": as_at_first},
    ),
    mutant(
        "shockwave",
        "finish-time fairness",
        "no job is sure of a round",
        killed_by="test_a_short_job_ends_as_on_its_fair_share",
        replace={f"{POLICY}:Shockwave._fair_rounds": no_round},
    ),
    mutant(
        "shockwave",
        "finish-time fairness",
        "the contention at present counts for all of a job's life",
        killed_by="test_the_contention_over_all_its_life_counts",
        replace={f"{POLICY}:Shockwave._with_contention": present_contention},
    ),
    mutant(
        "shockwave",
        "the latest jobs first",
        "the least late come first",
        killed_by="test_the_latest_jobs_come_first",
        replace={f"{POLICY}:_lateness": lambda seen: -seen.rho},
    ),
    mutant(
        "shockwave",
        "the latest jobs first",
        "the first to arrive come first",
        killed_by="test_the_latest_jobs_come_first",
        replace={f"{POLICY}:_lateness": lambda seen: 0.0},
    ),
    mutant(
        "shockwave",
        "Nash social welfare",
        "the sum of progress, not of its logarithms",
        killed_by="test_the_product_of_progress_is_largest",
        replace={f"{POLICY}:log_progress": sum_of_progress},
    ),
    mutant(
        "shockwave",
        "makespan",
        "the longest job costs nothing",
        killed_by="test_the_longest_job_is_not_left_for_last",
        options={"makespan": 0.0},
    ),
    mutant(
        "shockwave",
        "window",
        "one round at a time",
        killed_by="test_a_job_that_is_due_soon_is_seen_in_time",
        options={"window": 1},
    ),
    mutant(
        "shockwave",
        "planning again",
        "a plan is kept when a job changes its speed",
        killed_by="test_a_change_of_speed_is_planned_for",
        replace={f"{POLICY}:present_speed": lambda job, now: 1.0},
    ),
)

ONE = cluster(gpus=1)


def alone(one: Job) -> float:
    """Seconds it takes by itself."""
    return time_of(ahead(one.traits.profile, 0, one.work, "declared")) / SECOND


def rhos(result: Run, jobs: list[Job], gpus: int) -> list[float]:
    """Completion time over the time alone times how often the devices were asked for in the meantime."""
    life = {one.id: (one.arrived_at / SECOND, result.finish(one.id)) for one in jobs}
    moments = sorted({moment for span in life.values() for moment in span})
    crowd = [
        max(1.0, sum(one.shape.gpus for one in jobs if life[one.id][0] <= a and life[one.id][1] >= b) / gpus)
        for a, b in pairwise(moments)
    ]
    found = []
    for one in jobs:
        came, went = life[one.id]
        felt = sum(
            c * (b - a) for c, (a, b) in zip(crowd, pairwise(moments), strict=True) if came <= a and b <= went
        )
        found.append((went - came) ** 2 / (alone(one) * felt))
    return found


# Rounds of an hour, four of them in a window: what the bounds of fairness leave over can be counted by hand.


def by_the_hour(jobs: Sequence[Job], gpus: int, policy: str | Policy = "shockwave", **options: Any) -> Run:
    mine = {"round": 3600.0, "window": 4} if policy == "shockwave" else {}
    return run(jobs, cluster(gpus=gpus), policy, **{**mine, **options})


def ends_within(hours: float, result: Run) -> None:
    assert result.makespan <= hours * HOUR


def nobody_is_late(jobs: list[Job], result: Run, gpus: int = 1, most: float = 1.0) -> None:
    assert max(rhos(result, jobs, gpus)) <= most


@claim("shockwave", "the forecast says which job is the longest: all end in 7 h, at present speeds in 8 h")
def test_the_forecast_says_which_job_is_the_longest() -> None:
    """X declares 8 h and takes 5; Y takes 7 and Z 1. In 7 h only if Y always runs: X waits for Z's hour.

    At present speeds X seems the longest, and Y waits. Then X is done at 5 h and Y at 8 h.
    """
    jobs = [job("x", hours=8, profile=FASTER), job("y", hours=7), job("z", hours=1)]

    def check(result: Run) -> None:
        ends_within(7, result)
        nobody_is_late(jobs, result, 2, 1.2)

    ours = by_the_hour(jobs, 2)
    tells_apart(check, ours, by_the_hour(jobs, 2, forecast="constant"))
    tells_apart(check, ours, by_the_hour(jobs, 2, gavel(objective="finish-time", round=3600.0)))
    tells_apart(check, ours, by_the_hour(jobs, 2, gavel(objective="makespan", round=3600.0)))  # Z waits 5 h


@claim("shockwave", "the forecast learns: the more epochs were slow, the more of the rest are taken to be")
def test_the_forecast_learns_from_the_epochs_seen() -> None:
    """X takes 6.5 h: it is slow for three quarters, not for half. When Y and Z come it has 3.5 h left.

    12.5 h of work for two GPUs, of which one was idle for 3 h: no rounds of an hour end before 8 h. For that
    Y and Z may not take both GPUs, nor may Z wait for both others. By equal parts X would have 2 h left, by
    what was seen 2.8 h.
    """
    jobs = [job("x", hours=8, profile=faster(0.75))]
    jobs += [job("y", hours=2, at=3 * 3600), job("z", hours=4, at=3 * 3600)]

    def check(result: Run) -> None:
        ends_within(8, result)

    tells_apart(check, by_the_hour(jobs, 2), by_the_hour(jobs, 2, "srtf"))


@claim("shockwave", "a short job ends as on its fair share, though for the makespan the long one goes first")
def test_a_short_job_ends_as_on_its_fair_share() -> None:
    jobs = [job("long", hours=8), job("short", hours=1)]

    def check(result: Run) -> None:
        nobody_is_late(jobs, result)

    rival = gavel(objective="makespan", round=120.0)
    tells_apart(check, run(jobs, ONE, "shockwave"), run(jobs, ONE, rival))
    assert run(jobs, ONE, "shockwave").finish("short") <= 2 * 3600  # half of the GPU


@claim("shockwave", "a fair share is by the contention over all of a job's life, and every job has its own")
def test_the_contention_over_all_its_life_counts() -> None:
    """Two jobs on one GPU, then three, then two again."""
    jobs = [job("a", hours=3), job("b", hours=6), job("c", hours=8, at=3600)]

    def check(result: Run) -> None:
        nobody_is_late(jobs, result)

    tells_apart(check, by_the_hour(jobs, 1), by_the_hour(jobs, 1, "srtf"))


@claim(
    "shockwave", "if not all can end in time the latest jobs go first: worst rho 1.1, first come first 2.0"
)
def test_the_latest_jobs_come_first() -> None:
    """Three jobs wait for one that cannot be stopped; two hours late are more for 2 h than for 4 h."""
    jobs = [job("first", hours=2, traits=Traits(preemptible=False)), job("a", hours=2, at=60)]
    jobs += [job("b", hours=4, at=3660), job("c", hours=2, at=3660)]

    def check(result: Run) -> None:
        nobody_is_late(jobs, result, most=1.2)

    tells_apart(check, by_the_hour(jobs, 1), by_the_hour(jobs, 1, "fifo"))


@claim("shockwave", "rounds to spare go where the product of all progress grows most: to the long job too")
def test_the_product_of_progress_is_largest() -> None:
    """Each of three jobs is due one of four rounds. The fourth goes to the one that did least: the longest.

    The largest sum of progress would give it to the shortest, and again: then b ends later than is fair. The
    makespan does not count here; it would favour the longest as well.
    """
    jobs = [job("a", hours=2), job("b", hours=3), job("c", hours=8)]

    def check(result: Run) -> None:
        nobody_is_late(jobs, result)

    tells_apart(check, by_the_hour(jobs, 1, makespan=0.0), by_the_hour(jobs, 1, "srtf"))


@claim("shockwave", "rounds to spare go to the longest job: 10 h of work on two GPUs end in 5 h, not in 6 h")
def test_the_longest_job_is_not_left_for_last() -> None:
    jobs = [job("a", hours=1), job("b", hours=4), job("c", hours=5)]

    def check(result: Run) -> None:
        ends_within(5, result)
        nobody_is_late(jobs, result, 2, 1.2)

    ours = by_the_hour(jobs, 2)
    tells_apart(check, ours, by_the_hour(jobs, 2, gavel(objective="finish-time", round=3600.0)))
    tells_apart(check, ours, by_the_hour(jobs, 2, gavel(objective="makespan", round=3600.0)))


@claim("shockwave", "a job that is due within the window gets its rounds; round by round it would end late")
def test_a_job_that_is_due_soon_is_seen_in_time() -> None:
    """Two jobs of 1 h are due after 3 h: the long job must give way at once, not when it is too late."""
    jobs = [job("a", hours=1), job("b", hours=1), job("c", hours=8)]

    def check(result: Run) -> None:
        nobody_is_late(jobs, result)

    tells_apart(check, by_the_hour(jobs, 1), by_the_hour(jobs, 1, window=1))


@claim("shockwave", "when a job changes its speed the rounds are planned again: all end in 4 h, not in 5 h")
def test_a_change_of_speed_is_planned_for() -> None:
    """X is fast after an eighth of its epochs, not after half: it takes 2.75 h, and 5 h were expected.

    7.75 h of work on two GPUs take four rounds. X had the first one as the longest; then Z is longer.
    """
    jobs = [job("x", hours=8, profile=faster(1 / 8)), job("y", hours=2), job("z", hours=3)]

    def check(result: Run) -> None:
        ends_within(4, result)

    tells_apart(check, by_the_hour(jobs, 2), by_the_hour(jobs, 2, "srtf"))


@claim(
    "shockwave",
    "no job finishes late though X becomes four times as fast; with its present speed assumed, rho is 1.4",
)
@pytest.mark.parametrize(("hours", "baseline"), [(3, "makespan"), (5, "srtf")])
def test_a_job_that_speeds_up_makes_no_job_late(hours: float, baseline: str) -> None:
    """X declares 8 h and takes 5. For the makespan it gets too much; srtf passes over it as longer."""
    jobs = [job("x", hours=8, profile=FASTER), job("y", hours=hours)]

    def check(result: Run) -> None:
        assert max(rhos(result, jobs, 1)) < 1.05
        assert result.makespan <= (5 + hours) * HOUR

    ours = run(jobs, ONE, "shockwave")
    rival = run(jobs, ONE, "srtf" if baseline == "srtf" else gavel(objective="makespan", round=120.0))
    tells_apart(check, ours, rival)
    assert max(rhos(rival, jobs, 1)) > 1.2


def mixture(seed: int) -> list[Job]:
    """Sixteen jobs at 1.2 times what four GPUs can do; half of them speed up."""
    luck, now, jobs = Random(seed), 0.0, []
    for i in range(16):
        speeds_up, hours, gpus = luck.random() < 0.5, luck.choice((1, 2, 4, 8)), luck.choice((1, 1, 2))
        work, traits = (hours, Traits(profile=FASTER)) if speeds_up else (0.625 * hours, Traits())
        jobs.append(job(f"j{i}", hours=work, gpus=gpus, at=now, traits=traits))
        now += luck.expovariate(1) * 3600 * 3.75 * 0.625 * (4 / 3) / (4 * 1.2)
    return jobs


@claim(
    "shockwave",
    "the worst finish-time fairness is better than under a policy for that alone, and all end sooner",
)
def test_fair_and_efficient() -> None:
    traces, four = [mixture(seed) for seed in range(10)], cluster(gpus=4)
    ours = [run(jobs, four, "shockwave") for jobs in traces]
    rival = [run(jobs, four, gavel(objective="finish-time", round=120.0)) for jobs in traces]

    def worst(results: list[Run]) -> list[float]:
        return [max(rhos(result, jobs, 4)) for result, jobs in zip(results, traces, strict=True)]

    def check(results: list[Run]) -> None:
        assert mean(worst(results)) < 1.15

    tells_apart(check, ours, rival)
    assert sum(a < b for a, b in zip(worst(ours), worst(rival), strict=True)) >= 9
    assert mean(r.makespan for r in ours) < mean(r.makespan for r in rival)


@claim(
    "shockwave",
    "the remaining time of a job is forecast: 10 % off on average, where today's speed is 30 % off",
)
def test_the_remaining_time_of_a_job_is_forecast() -> None:
    def errors(profile: Profile, forecast: Forecast) -> float:
        true = time_of(ahead(profile, 0, 1e6, "declared"))
        points = [1e6 * i / 20 for i in range(20)]
        seen = [time_of(behind(profile, p, 1e6)) + time_of(ahead(profile, p, 1e6, forecast)) for p in points]
        return mean(abs(time - true) / true for time in seen)

    def check(forecast: Forecast) -> None:
        assert errors(FASTER, forecast) < 0.15

    ours: Forecast = "posterior"
    baseline: Forecast = "constant"
    tells_apart(check, ours, baseline)
    luck, better = Random(0), 0
    for _ in range(200):  # whatever the regimes are
        drawn = Profile(regimes=tuple((luck.gammavariate(1, 1), speed) for speed in (1.0, 2.0, 4.0)))
        better += errors(drawn, "posterior") < errors(drawn, "constant")
    assert better > 120
    assert regime_at(FASTER, 0, 100) == (1.0, 50)
