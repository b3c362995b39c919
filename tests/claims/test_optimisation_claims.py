"""Shockwave: a market that plans ahead."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from statistics import mean

import pytest

from dovetail.model.job import Job, Profile, Traits
from dovetail.model.profile_arithmetic import regime_at
from dovetail.model.units import HOUR, SECOND
from dovetail.policies.gavel import gavel
from dovetail.policies.shockwave.regimes import Forecast, ahead, behind, time_of
from dovetail.sim.run import Run
from dovetail.testing.build import cluster, job, run
from dovetail.testing.claims import claim, tells_apart

FASTER = Profile(regimes=((0.5, 1.0), (0.5, 4.0)))  # four times as fast after half its epochs


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


@claim(
    "shockwave",
    "no job finishes late though X becomes four times as fast; with its present speed assumed, rho is 1.4",
)
@pytest.mark.parametrize(("hours", "baseline"), [(3, "makespan"), (5, "srtf")])
def test_a_job_that_speeds_up_makes_no_job_late(hours: float, baseline: str) -> None:
    """X declares 8 h and takes 5. For the makespan it gets too much; srtf passes over it as longer."""
    jobs = [job("x", hours=8, profile=FASTER), job("y", hours=hours)]
    one = cluster(gpus=1)

    def check(result: Run) -> None:
        assert max(rhos(result, jobs, 1)) < 1.05
        assert result.makespan <= (5 + hours) * HOUR

    ours = run(jobs, one, "shockwave")
    rival = run(jobs, one, "srtf" if baseline == "srtf" else gavel(objective="makespan", round=120.0))
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
