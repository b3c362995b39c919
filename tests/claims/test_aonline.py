"""A_online: maximum-weight admission by exponential prices, on GPU types that the schedule chooses."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import combinations
from typing import Any

import numpy as np
from tests.claims.priced_parts import flat, stream, worth

from dovetail.model.cluster import Cluster
from dovetail.model.grant import nodes_of
from dovetail.model.job import Job
from dovetail.model.units import HOUR
from dovetail.model.view import JobView
from dovetail.policies.oasis import priced
from dovetail.policies.priced_admission import PricedAdmission, value_of
from dovetail.sim.run import Run
from dovetail.testing.build import Profile, cluster, run
from dovetail.testing.claims import claim, tells_apart
from dovetail.testing.mutants import mutant

PRICED = "dovetail.policies.priced_admission"
AONLINE = "dovetail.policies.aonline"


def all_types_alike(*args: Any, **named: Any) -> PricedAdmission:
    return priced(*args, **{**named, "by_type": False})


def whenever(patience: float) -> Any:
    return lambda job, ends, slot: np.full(len(ends), value_of(job, slot))


def equal_worth(job: JobView) -> float:
    return 3.0


MUTANTS = (
    mutant(
        "aonline",
        "prices",
        "prices do not rise",
        killed_by="test_room_is_kept_for_heavier_jobs",
        replace={f"{PRICED}:prices": flat},
    ),
    mutant(
        "aonline",
        "admission",
        "every job with a schedule is admitted",
        killed_by="test_the_weight_is_within_the_competitive_ratio",
        replace={f"{PRICED}:worth_its_price": lambda found: True},
    ),
    mutant(
        "aonline",
        "weight",
        "all jobs weigh the same",
        killed_by="test_room_is_kept_for_heavier_jobs",
        replace={f"{PRICED}:worth_of": equal_worth},
    ),
    mutant(
        "aonline",
        "weight",
        "a job has its weight whenever it ends",
        killed_by="test_a_job_that_would_be_late_weighs_nothing",
        replace={f"{AONLINE}:weight": whenever},
    ),
    mutant(
        "aonline",
        "GPU types",
        "all types count with the speed of the slowest",
        killed_by="test_a_schedule_chooses_the_gpu_type",
        replace={f"{AONLINE}:priced": all_types_alike},
    ),
)

FREE: dict[str, Any] = {"low": 1e-9, "high": 1e-9}  # FIFO admission: every job that has a schedule


def played(jobs: Sequence[Job], on: Cluster, policy: str = "aonline", **options: Any) -> Run:
    slot = {} if policy == "fifo" else {"slot": 3_600.0}
    return run(jobs, on, policy, **slot, **options)


def in_time(result: Run) -> set[str]:
    """The jobs that ended before their deadlines."""
    return {j.id for j in result.jobs.job if j.deadline and result.finish(j.id) * 1_000_000 <= j.deadline}


def total(result: Run) -> float:
    """The weight of jobs that ended before their deadlines."""
    met = in_time(result)
    return sum(j.priority * j.shape.gpus * j.work / HOUR for j in result.jobs.job if j.id in met)


@claim("aonline", "4 jobs of weight 3, then 2 of 12, on 4 GPUs: two of the first and both others")
def test_room_is_kept_for_heavier_jobs() -> None:
    jobs = [worth(f"low{i}", 3) for i in range(4)] + [worth(f"high{i}", 12) for i in range(2)]
    on = cluster(gpus=4)

    def check(result: Run) -> None:
        assert total(result) == 30
        assert in_time(result) == {"low0", "low1", "high0", "high1"}

    tells_apart(check, played(jobs, on, low=1.0, high=16.0), played(jobs, on, "fifo"))


@claim(
    "aonline",
    "a schedule chooses the GPU type: the fast one for the job that needs it",
)
def test_a_schedule_chooses_the_gpu_type() -> None:
    """2 hours of work, due in 1.5: only an A100 does it in time. The other job is as fast on a V100."""
    nodes = (*cluster(nodes=1, gpus=2, type="A100").nodes, *cluster(nodes=1, gpus=2, type="V100").nodes)
    on = Cluster(tuple(replace(node, name=f"n{i}") for i, node in enumerate(nodes)))
    steep = Profile(speeds={"A100": 2.0, "V100": 1.0})
    even = Profile(speeds={"A100": 1.0, "V100": 1.0})
    jobs = [worth("steep", 12, hours=2, profile=steep), worth("even", 12, profile=even)]

    def check(result: Run) -> None:
        assert in_time(result) == {"steep", "even"}
        assert {s.job: nodes_of(s.spots) for s in result.stretches} == {"steep": {0}, "even": {1}}

    prices: dict[str, Any] = {"low": 1.0, "high": 16.0}
    tells_apart(check, played(jobs, on, **prices), played(jobs, on, "oasis", critical=50.0, **prices))


@claim("aonline", "a job that would be late weighs nothing: it is not admitted, and the next one is in time")
def test_a_job_that_would_be_late_weighs_nothing() -> None:
    jobs = [worth("first", 12), worth("late", 12), worth("next", 12, due=2.5)]
    on = cluster(gpus=1)

    def check(result: Run) -> None:
        assert in_time(result) == {"first", "next"}
        assert result.finished == 2

    tells_apart(check, played(jobs, on, low=1.0, high=16.0), played(jobs, on, "fifo"))


SLOTS, GPUS, HEAVIEST = 3, 2, 12


def instance(seed: int) -> list[Job]:
    """10 jobs of one GPU, 1 or 2 slots long, due in 3 slots or fewer; the later ones weigh more."""
    luck = random.Random(seed)
    weights = [luck.randint(1, 2) for _ in range(6)] + [luck.randint(6, HEAVIEST) for _ in range(4)]
    jobs = []
    for number, weight in enumerate(weights):
        hours = luck.randint(1, 2)
        due = luck.randint(hours, SLOTS)
        jobs.append(worth(f"j{number}", weight, hours=hours, due=due + 0.5))
    return jobs


def optimum(jobs: Sequence[Job]) -> float:
    """The largest weight of jobs that all have their slots, by trying all."""
    best = {(0,) * SLOTS: 0.0}
    for each in jobs:
        hours, due = each.work // HOUR, (each.deadline or 0) // HOUR
        for used, weight in list(best.items()):
            for slots in combinations(range(due), hours):
                more = tuple(count + (slot in slots) for slot, count in enumerate(used))
                if max(more) <= GPUS:
                    best[more] = max(best.get(more, 0.0), weight + each.priority * hours)
    return max(best.values())


def ratio(low: float, high: float) -> float:
    """Twice the growth of the dual for each unit of weight, of jobs of one GPU."""
    return float(2 * GPUS * ((high / low) ** (1 / GPUS) - 1))


@claim("aonline", "20 small streams: at least 1/ratio of the best weight, with ratio 2 C ((U/L)^(1/C) - 1)")
def test_the_weight_is_within_the_competitive_ratio() -> None:
    """U is the largest weight of a job, and L is what makes an empty cluster cost half of the optimum."""
    bounds = list[tuple[float, float]]()
    ours, admit_all = list[float](), list[float]()
    for seed in range(200, 220):
        jobs, on = instance(seed), cluster(gpus=GPUS)
        best = optimum(jobs)
        low, high = best / (2 * GPUS * SLOTS), 2.0 * HEAVIEST
        bounds.append((best, ratio(low, high)))
        ours.append(total(played(jobs, on, low=low, high=high)))
        admit_all.append(total(played(jobs, on, **FREE)))

    def check(found: list[float]) -> None:
        for (best, of), weight in zip(bounds, found, strict=True):
            assert weight <= best
            assert of * weight >= best

    tells_apart(check, ours, admit_all)


@claim("aonline", "20 small streams, light jobs first: at least the weight of FIFO admission in each")
def test_the_weight_is_above_that_of_fifo_admission() -> None:
    """L and U are the lightest weight of a slot, and the heaviest of a job."""
    small, on = [instance(seed) for seed in range(200, 220)], cluster(gpus=GPUS)
    admit_all = [total(played(jobs, on, **FREE)) for jobs in small]

    def check(found: list[float]) -> None:
        assert sum(found) > sum(admit_all)
        assert all(a >= b for a, b in zip(found, admit_all, strict=True))

    ours = [total(played(jobs, on, low=1.0, high=2.0 * HEAVIEST)) for jobs in small]
    tells_apart(check, ours, [total(played(jobs, on, "fifo")) for jobs in small])


@lru_cache
def weights(policy: str) -> list[float]:
    return [total(played(stream(seed), cluster(nodes=2, gpus=4), policy)) for seed in range(20)]


@claim("aonline", "20 overloaded streams of elastic jobs: more weight in time than under fifo in each")
def test_more_weight_ends_in_time_than_under_fifo() -> None:
    fifo = weights("fifo")

    def check(found: list[float]) -> None:
        assert all(a > b for a, b in zip(found, fifo, strict=True))

    tells_apart(check, weights("aonline"), fifo)
