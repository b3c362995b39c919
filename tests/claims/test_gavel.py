"""Gavel: which type a job runs on matters as much as for how long."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from dovetail.mechanisms.objective import share_objectives as objectives
from dovetail.mechanisms.rounds import owed_time
from dovetail.mechanisms.rounds.time_share_rounds import RoundState
from dovetail.model.cluster import Cluster, GpuType, Node, Tenant
from dovetail.model.errors import BadOption
from dovetail.model.job import Job, Traits
from dovetail.model.view import JobView, Policy, View
from dovetail.policies.gavel import gavel
from dovetail.sim.run import Run
from dovetail.solve import time_share_lp
from dovetail.solve.partitioned import solved
from dovetail.solve.time_shares import IntVector, Matrix, Shares, Solution, Vector
from dovetail.testing.build import Checkpoint, Profile, cluster, job, run
from dovetail.testing.claims import claim, tells_apart
from dovetail.testing.mutants import mutant
from dovetail.traces.profiles import load_throughputs

HOUR = 3600.0
TYPES = ("K80", "P100", "V100")
THREE = {"A": (10.0, 30.0, 80.0), "B": (50.0, 65.0, 70.0), "C": (20.0, 55.0, 60.0)}  # steps a second


def forced(**options: Any) -> Callable[..., Policy]:
    """Gavel with these options whatever a claim asks for, unless they are refused beside what it asks for."""

    def made(**asked: Any) -> Policy:
        try:
            return gavel(**{**asked, **options})
        except BadOption:
            return gavel(**asked)

    return made


def equal_parts(shares: Shares, *_: Any, **__: Any) -> Solution:
    return Solution(objectives.equal_parts(shares), 0.0)


def gangs_count_once(shares: Shares, weight: Vector) -> Vector:
    return objectives.proportional(shares) * weight


def nothing_counted(state: RoundState, view: View, jobs: Sequence[JobView], length: int) -> RoundState:
    return replace(owed_time.CARRIED_OVER.counted(state, view, jobs, length), owed={})


def by_size(
    share: Matrix, owed: Matrix, line: Sequence[tuple[JobView, Any]], jobs: int, length: int
) -> Vector:
    return np.array([float(job.gpus) for job, _ in line])


def without_deadlines(shares: Shares, price: Vector, floor: Vector) -> Matrix:
    return time_share_lp.ratio(shares, 1.0 / shares.speed.max(axis=1), price).x


def in_one_block(kinds: Any, parts: int, seed: int, pieces: Any = 1) -> list[IntVector]:
    """Jobs in their order, not at random: neighbours are alike."""
    many = np.broadcast_to(np.asarray(pieces, dtype=np.intp), np.shape(kinds))
    return [np.unique(rows) for rows in np.array_split(np.repeat(np.arange(len(many)), many), parts)]


RULE, POLICY = "dovetail.policies.gavel.policy:CARRIED_OVER", "dovetail.policies.gavel.policy"
OBJECTIVES = "dovetail.mechanisms.objective.share_objectives"
MUTANTS = (
    mutant(
        "gavel",
        "speeds by type",
        "all types count alike",
        killed_by="test_the_sum_of_throughputs_is_the_best_there_is",
        factory=forced(aware=False),
    ),
    mutant(
        "gavel",
        "speeds by type",
        "measured speeds are not learnt",
        killed_by="test_speeds_are_learnt_from_running_jobs",
        replace={
            "dovetail.mechanisms.estimate.measured_speeds:MeasuredSpeeds.observed": lambda self, view: self
        },
    ),
    mutant(
        "gavel",
        "max-sum",
        "an equal part of every type",
        killed_by="test_the_sum_of_throughputs_is_the_best_there_is",
        replace={f"{OBJECTIVES}:max_sum": equal_parts},
    ),
    mutant(
        "gavel",
        "max-min",
        "an equal part of every type",
        killed_by="test_the_worst_off_does_better_than_with_an_equal_share",
        replace={f"{OBJECTIVES}:max_min": equal_parts},
    ),
    mutant(
        "gavel",
        "max-min",
        "weights are ignored",
        killed_by="test_a_weight_counts",
        replace={f"{POLICY}:_weight": lambda jobs: np.ones(len(jobs))},
    ),
    mutant(
        "gavel",
        "max-min",
        "a gang counts as one GPU",
        killed_by="test_gpu_time_is_divided_not_time",
        replace={f"{OBJECTIVES}:fair_scale": gangs_count_once},
    ),
    mutant(
        "gavel",
        "makespan",
        "max-min instead",
        killed_by="test_the_longest_job_is_not_kept_waiting",
        factory=forced(objective="max-min"),
    ),
    mutant(
        "gavel",
        "finish-time",
        "an equal part of every type",
        killed_by="test_every_job_ends_before_it_would_on_a_private_part",
        factory=forced(objective="isolated"),
    ),
    mutant(
        "gavel",
        "finish-time",
        "time that has passed is ignored",
        killed_by="test_a_job_that_was_kept_waiting_gets_more",
        replace={
            f"{POLICY}:_ages": lambda view, jobs, isolated, work: (
                np.zeros(len(jobs)),
                work,
                np.array([kept.work / kept.speed for kept in isolated.values()]),
            )
        },
    ),
    mutant(
        "gavel",
        "cost",
        "prices are ignored",
        killed_by="test_deadlines_are_met_at_the_least_cost",
        replace={f"{POLICY}:_prices": lambda view, ways: np.ones(len(ways))},
    ),
    mutant(
        "gavel",
        "cost",
        "deadlines are ignored",
        killed_by="test_deadlines_are_met_at_the_least_cost",
        replace={f"{OBJECTIVES}:cheapest": without_deadlines},
    ),
    mutant(
        "gavel",
        "cost",
        "idle devices are used whatever they cost",
        killed_by="test_deadlines_are_met_at_the_least_cost",
        replace={f"{POLICY}:Gavel._lends": True},
    ),
    mutant(
        "gavel",
        "fifo and sjf",
        "sjf by arrival",
        killed_by="test_the_shortest_job_goes_first",
        factory=forced(objective="fifo"),
    ),
    mutant(
        "gavel",
        "fifo and sjf",
        "fifo by length",
        killed_by="test_the_first_job_goes_first",
        factory=forced(objective="sjf"),
    ),
    mutant(
        "gavel",
        "hierarchy",
        "tenants do not count",
        killed_by="test_a_hierarchy_is_fair_between_divisions_first",
        factory=forced(hierarchy="none"),
    ),
    mutant(
        "gavel",
        "hierarchy",
        "fair inside a tenant that wants fifo",
        killed_by="test_a_tenant_may_have_its_jobs_in_order",
        factory=forced(hierarchy="fair"),
    ),
    mutant(
        "gavel",
        "water filling",
        "only the worst-off job counts",
        killed_by="test_water_filling_is_fair_above_the_worst_off",
        factory=forced(water_filling=False),
    ),
    mutant(
        "gavel",
        "rounds",
        "time received is not counted",
        killed_by="test_rounds_make_the_shares_true",
        replace={RULE: replace(owed_time.CARRIED_OVER, counted=nothing_counted)},
    ),
    mutant(
        "gavel",
        "rounds",
        "time received is forgotten with new shares",
        killed_by="test_shares_come_true_though_jobs_arrive",
        factory=forced(carry_over=False),
    ),
    mutant(
        "gavel",
        "rounds",
        "small gangs go first",
        killed_by="test_shares_come_true_though_jobs_arrive",
        replace={"dovetail.mechanisms.rounds.owed_time:_due": by_size},
    ),
    mutant(
        "gavel",
        "space sharing",
        "no two jobs share devices",
        killed_by="test_packed_jobs_share_a_gpu",
        factory=forced(packed=False),
    ),
    mutant(
        "gavel",
        "space sharing",
        "a pair is taken to be as fast as two jobs alone",
        killed_by="test_a_pair_that_gets_less_done_than_one_alone_is_left_apart",
        replace={"dovetail.policies.gavel.pair_speeds:speed_beside": lambda job, other, way: 1.0},
    ),
    mutant(
        "pop",
        "sub-problems",
        "the whole problem at once",
        killed_by="test_jobs_are_divided_over_the_subproblems",
        options={"subproblems": 1},
    ),
    mutant(
        "pop",
        "at random, kind by kind",
        "neighbours go to the same sub-problem",
        killed_by="test_large_subproblems_are_near_the_whole",
        replace={"dovetail.solve.partitioned:split": in_one_block},
    ),
    mutant(
        "pop",
        "large jobs are divided",
        "every job is in one sub-problem",
        killed_by="test_a_gang_wider_than_a_subproblem_is_divided",
        replace={
            "dovetail.solve.partitioned:_pieces": lambda shares, parts: np.ones(
                len(shares.speed), dtype=np.intp
            )
        },
    ),
    mutant(
        "pop",
        "sub-problems",
        "one for each job",
        killed_by="test_jobs_are_divided_over_the_subproblems",
        options={"subproblems": 10_000, "least_jobs": 1},
    ),
)


def gpus(counts: Sequence[int], types: Sequence[str] = TYPES, tenants: Sequence[Tenant] = ()) -> Cluster:
    nodes = [
        Node(f"{kind}-{i}", 1, GpuType(kind)) for kind, n in zip(types, counts, strict=True) for i in range(n)
    ]
    return Cluster(tuple(nodes), tenants={tenant.name: tenant for tenant in tenants})


def model(
    name: str, speeds: Sequence[float], hours: float, types: Sequence[str] = TYPES, **more: object
) -> Job:
    """Hours on the last type."""
    last = speeds[-1]
    relative = {kind: speed / last for kind, speed in zip(types, speeds, strict=True)}
    profile = Profile(speeds=relative, pace=last)
    return job(name, hours=hours, model=name, profile=profile, **more)  # type: ignore[arg-type]


def held(result: Run) -> dict[tuple[str, str], float]:
    """Seconds by job and type; 0 for a job that was never there."""
    found = defaultdict[tuple[str, str], float](float)
    for stretch in result.stretches:
        kind = result.cluster.nodes[stretch.spots[0][0]].type.name
        found[stretch.job, kind] += (stretch.end - stretch.start) / 1e6
    return found


@claim("gavel", "of 2 K80, 1 P100 and 1 V100 the best use is 185 steps a second; blind to types, 135")
def test_the_sum_of_throughputs_is_the_best_there_is() -> None:
    jobs = [model(name, speeds, hours=1) for name, speeds in THREE.items()]

    def total(result: Run) -> float:
        first = held(result)
        return sum(speed for name, speeds in THREE.items() for kind, speed in zip(TYPES, speeds, strict=True)
                   if (name, kind) in first)  # fmt: skip

    def check(result: Run) -> None:
        assert total(result) == pytest.approx(185)

    on, minutes = gpus([2, 1, 1]), 300.0
    ours = run(jobs, on, "gavel", objective="max-sum", until=minutes)
    tells_apart(check, ours, run(jobs, on, "gavel", objective="max-sum", aware=False, until=minutes))
    round_robin = [job(name, hours=1, types=[kind]) for name, kind in zip(THREE, TYPES, strict=True)]
    assert total(run(round_robin, on, "fifo", until=minutes)) == pytest.approx(135)


@claim(
    "gavel", "every job gets 90/79 of the throughput of an equal share of all types; blind to types it gets 1"
)
def test_the_worst_off_does_better_than_with_an_equal_share() -> None:
    on, horizon = gpus([2, 1, 1]), 100 * 360.0
    share = np.array([2, 1, 1]) / 4
    normal = {name: float(np.array(speeds) @ share) for name, speeds in THREE.items()}
    # As much work as each job can do by the horizon according to the bound.
    jobs = [
        model(name, speeds, hours=horizon / HOUR * normal[name] * 90 / 79 / speeds[-1])
        for name, speeds in THREE.items()
    ]

    def check(result: Run) -> None:
        assert max(result.jct()) <= 1.02 * horizon

    tells_apart(check, run(jobs, on, "gavel"), run(jobs, on, "gavel", aware=False))


@claim("gavel", "a job of priority 1 has weight 2: twice the time of a job of priority 0")
def test_a_weight_counts() -> None:
    jobs = [job("light", hours=100), job("heavy", hours=100, priority=1)]

    def check(result: Run) -> None:
        times = held(result)
        assert times["heavy", "V100"] / sum(times.values()) == pytest.approx(2 / 3, abs=0.02)

    on, until = gpus([1], ("V100",)), 99 * 360.0
    equal = [job("light", hours=100), job("heavy", hours=100)]
    tells_apart(check, run(jobs, on, "gavel", until=until), run(equal, on, "gavel", until=until))


@claim(
    "gavel", "GPU-time is divided equally: of two GPUs, a gang of two gets a third of the time, singles two"
)
def test_gpu_time_is_divided_not_time() -> None:
    jobs = [job("gang", gpus=2, hours=100), job("a", hours=100), job("b", hours=100)]

    def check(result: Run) -> None:
        times = held(result)
        share = [times[name, "V100"] / (99 * 360) for name in ("gang", "a", "b")]
        assert share == pytest.approx([1 / 3, 2 / 3, 2 / 3], abs=0.02)

    on, until = gpus([2], ("V100",)), 99 * 360.0
    tells_apart(check, run(jobs, on, "gavel", until=until), run(jobs, on, "tiresias-l", until=until))


@claim("gavel", "after a hundred rounds every job has had its share of each type to within 5 %")
def test_rounds_make_the_shares_true() -> None:
    on, rounds = gpus([2, 1, 1]), 100
    jobs = [model(name, speeds, hours=1000) for name, speeds in THREE.items()]
    shares = Shares(np.array(list(THREE.values())), np.ones(3), np.array([2.0, 1.0, 1.0]))
    dealt = objectives.max_min(shares, np.ones(3)).x

    def check(result: Run) -> None:
        got = held(result)
        received = [[got.get((name, kind), 0.0) / (360 * rounds) for kind in TYPES] for name in THREE]
        assert np.abs(np.array(received) - dealt).max() < 0.05

    until = 360.0 * rounds
    tells_apart(check, run(jobs, on, "gavel", until=until), run(jobs, on, "gavel", aware=False, until=until))


WIDE_SHARE = 16 / 26 / 16  # 26 jobs divide 16 GPUs; the wide one is 16 GPUs wide


@claim(
    "gavel",
    "with an arrival in each of 104 rounds, a 16-GPU job beside 25 single ones gets its 3.8 % of the time",
)
def test_shares_come_true_though_jobs_arrive() -> None:
    rounds, length = 104, 360.0  # four turns of the wide job
    old = [job("wide", gpus=16, hours=1000), *[job(f"s{i}", hours=1000) for i in range(24)]]
    coming = [job(f"a{i}", seconds=0.9 * length, at=length * (i + 0.9)) for i in range(rounds)]

    def check(result: Run) -> None:
        times = {name: time / (rounds * length) for (name, _), time in held(result).items()}
        assert times.get("wide", 0.0) == pytest.approx(WIDE_SHARE, abs=1 / rounds)
        assert min(times[f"s{i}"] for i in range(24)) >= 0.9 * 16 / 26

    on, until = cluster(nodes=2, gpus=8), rounds * length
    ours = run([*old, *coming], on, "gavel", until=until)
    tells_apart(check, ours, run([*old, *coming], on, "gavel", carry_over=False, until=until))


@claim("gavel", "where types differ by the same factor for every job, max-min is a plain fair share of time")
def test_with_one_factor_for_all_it_is_a_fair_share() -> None:
    on = gpus([1, 1], ("K80", "V100"))
    alike = [
        model(name, (25.0 * k, 100.0 * k), hours=1000, types=("K80", "V100"))
        for k, name in ((1, "a"), (7, "b"), (3, "c"))
    ]
    other = [alike[0], model("b", (90.0, 100.0), hours=1000, types=("K80", "V100")), alike[2]]

    def check(result: Run) -> None:
        times = held(result)
        on_fast = [times.get((name, "V100"), 0.0) for name in "abc"]
        assert max(on_fast) - min(on_fast) <= 360.0

    until = 99 * 360.0
    # The baseline is the same policy on jobs of which one hardly minds the slow type: it gets most of that.
    tells_apart(check, run(alike, on, "gavel", until=until), run(other, on, "gavel", until=until))


def stream(seed: int, count: int, between: float, *, paired: bool = False) -> list[Job]:
    """Jobs of Gavel's models, lengths as in its generator, arriving at random."""
    dice, table = random.Random(seed), load_throughputs("gavel")
    models = [name for name in table.models() if table.single(name, 1, "V100")]
    jobs, at = [], 0.0
    for i in range(count):
        name = dice.choice(models)
        minutes = 10 ** (dice.uniform(1.5, 3) if dice.random() < 0.8 else dice.uniform(3, 4))
        speeds = [table.single(name, 1, kind) or 0.0 for kind in TYPES]
        made = model(str(i), speeds, hours=minutes / 60, at=at)
        jobs.append(measured(made, name, models) if paired else made)
        at += dice.expovariate(1 / between) if between else 0.0
    return jobs


def measured(made: Job, name: str, models: Sequence[str]) -> Job:
    """A job that knows its speed beside jobs of these models."""
    profile, table = made.traits.profile, load_throughputs("gavel")
    assert profile is not None
    pairs = {kind: {other: table.pair(name, other, 1, kind) for other in models} for kind in TYPES}
    together = {
        kind: {other: pair[0] / profile.pace for other, pair in row.items() if pair is not None}
        for kind, row in pairs.items()
    }
    return replace(made, model=name, traits=replace(made.traits, profile=replace(profile, beside=together)))


def gains(blind: Sequence[float], ours: Sequence[float]) -> list[float]:
    return [before / after for before, after in zip(blind, ours, strict=True)]


SEEDS = range(10)


@claim(
    "gavel",
    "knowing the types shortens mean completion at high load at least 1.4 times under max-min (ten streams)",
)
def test_aware_beats_agnostic_on_a_continuous_trace() -> None:
    on = gpus([2, 2, 2])
    streams = [stream(seed, count=40, between=9000.0) for seed in SEEDS]

    def means(aware: bool) -> list[float]:
        runs = [run(jobs, on, "gavel", aware=aware, round=7200.0, solver="vertex") for jobs in streams]
        return [float(np.mean(result.jct()[10:])) for result in runs]  # once the cluster has filled up

    blind = means(aware=False)

    def check(ours: list[float]) -> None:
        gain = gains(blind, ours)
        assert np.mean(gain) >= 1.4
        assert sum(each > 1 for each in gain) >= 9

    tells_apart(check, means(aware=True), blind)


@claim("gavel", "knowing the types shortens the makespan of a batch by at least 1.2 times (ten batches)")
def test_aware_beats_agnostic_on_a_batch() -> None:
    on = gpus([2, 2, 2])
    batches = [stream(seed, count=30, between=0.0) for seed in SEEDS]

    def makespans(aware: bool) -> list[float]:
        options: dict[str, Any] = {"objective": "makespan", "round": 7200.0, "solver": "vertex"}
        return [run(jobs, on, "gavel", aware=aware, **options).makespan for jobs in batches]

    blind = makespans(aware=False)

    def check(ours: list[float]) -> None:
        gain = gains(blind, ours)
        assert np.mean(gain) >= 1.2
        assert sum(each > 1 for each in gain) >= 9

    tells_apart(check, makespans(aware=True), blind)


@claim(
    "gavel", "makespan: the longest job of a batch runs all the time, and four short ones share the other GPU"
)
def test_the_longest_job_is_not_kept_waiting() -> None:
    jobs = [job(f"short{i}", hours=1) for i in range(4)] + [job("long", hours=4)]

    def check(result: Run) -> None:
        assert max(result.jct()) <= 1.05 * 4 * HOUR  # Gavel searches for the makespan to within 5 %

    on = gpus([2], ("V100",))
    tells_apart(check, run(jobs, on, "gavel", objective="makespan"), run(jobs, on, "gavel"))


@claim(
    "gavel",
    "finish-time: four jobs on a V100 and a K80 end in 0.83 of the time that a quarter of both would take",
)
def test_every_job_ends_before_it_would_on_a_private_part() -> None:
    types, alone = ("K80", "V100"), 20.0  # hours on a quarter of both
    eight, flat = (1.0, 8.0), (5.0, 7.0)  # steps a second
    jobs = [
        model(f"{name}{i}", speeds, hours=alone * sum(speeds) / 4 / speeds[1], types=types)
        for name, speeds in (("eight", eight), ("flat", flat))
        for i in range(2)
    ]
    # The flat ones have the K80 and b of the V100 each: (1/2 - b) / (9/32) = (5/14 + b) / (3/7).
    b = (16 / 9 - 5 / 6) / (32 / 9 + 7 / 3)
    best = (1 / 2 - b) / (9 / 32)

    def check(result: Run) -> None:
        assert max(result.jct()) <= 1.03 * alone * HOUR / best

    on = gpus([1, 1], types)
    ours = run(jobs, on, "gavel", objective="finish-time")
    tells_apart(check, ours, run(jobs, on, "gavel", objective="isolated"))


@claim(
    "gavel",
    "finish-time: a job that was kept waiting for ten hours gets 71 % of the GPU beside a new one, not half",
)
def test_a_job_that_was_kept_waiting_gets_more() -> None:
    jobs = [
        job("first", hours=10, traits=Traits(preemptible=False)),
        job("old", hours=5),
        job("new", hours=5, at=10 * HOUR),
    ]

    def check(result: Run) -> None:
        # With x for the old job, (10 + 5 / x) / 10 = (5 / (1 - x)) / 10 at x = 1 / sqrt(2).
        assert result.finish("old") <= 10 * HOUR + 5 * HOUR * math.sqrt(2) + 360

    on = gpus([1], ("V100",))
    tells_apart(check, run(jobs, on, "gavel", objective="finish-time"), run(jobs, on, "gavel"))


@claim("gavel", "sjf: the job with the least time left goes first")
def test_the_shortest_job_goes_first() -> None:
    jobs = [job("long", hours=3), job("short", hours=1)]

    def check(result: Run) -> None:
        assert (result.finish("short"), result.finish("long")) == (HOUR, 4 * HOUR)

    on = gpus([1], ("V100",))
    tells_apart(check, run(jobs, on, "gavel", objective="sjf"), run(jobs, on, "gavel", objective="fifo"))


@claim("gavel", "fifo: jobs run in order of arrival, each on the fastest type with room")
def test_the_first_job_goes_first() -> None:
    types = ("K80", "V100")
    jobs = [
        model("long", (1.0, 4.0), hours=3, types=types),
        model("short", (1.0, 4.0), hours=1, types=types),
    ]

    def check(result: Run) -> None:
        assert (result.finish("long"), held(result).get(("short", "K80"))) == (3 * HOUR, 3 * HOUR)
        assert result.finish("short") == 3.25 * HOUR  # the last quarter on the V100

    on = gpus([1, 1], types)
    tells_apart(check, run(jobs, on, "gavel", objective="fifo"), run(jobs, on, "gavel", objective="sjf"))


@claim("gavel", "speeds that were not declared are learnt from running jobs: each goes where it is fast")
def test_speeds_are_learnt_from_running_jobs() -> None:
    types = ("K80", "V100")
    jobs = [
        model("flat", (50.0, 70.0), hours=1000, types=types),
        model("steep", (10.0, 80.0), hours=1000, types=types),
    ]

    def check(result: Run) -> None:
        assert held(result).get(("steep", "V100"), 0.0) >= 0.9 * 100 * 360.0

    on, until = gpus([1, 1], types), 100 * 360.0
    options: dict[str, Any] = {"objective": "max-sum", "until": until}
    ours = run(jobs, on, "gavel", speeds="measured", **options)
    tells_apart(check, ours, run(jobs, on, "gavel", aware=False, **options))


@claim("gavel", "shares go down the tree of tenants: a division's weight counts, however many jobs it has")
def test_a_hierarchy_is_fair_between_divisions_first() -> None:
    tenants = [Tenant("research", weight=2.0), Tenant("product", weight=1.0)]
    on = gpus([3], ("V100",), tenants)
    jobs = [
        *[job(f"r{i}", hours=100, tenant="research") for i in range(3)],
        *[job(f"p{i}", hours=100, tenant="product") for i in range(9)],
    ]

    def check(result: Run) -> None:
        had = held(result)
        research = sum(time for (name, _), time in had.items() if name.startswith("r"))
        assert research / sum(had.values()) == pytest.approx(2 / 3, abs=0.03)

    until = 100 * 360.0
    tells_apart(
        check, run(jobs, on, "gavel", hierarchy="fair", until=until), run(jobs, on, "gavel", until=until)
    )


@claim(
    "gavel",
    "inside a tenant jobs may go in order: with half of a GPU, its first job ends before its second starts",
)
def test_a_tenant_may_have_its_jobs_in_order() -> None:
    tenants = [Tenant("a"), Tenant("b")]
    on = gpus([1], ("V100",), tenants)
    jobs = [job("first", hours=1, tenant="a"), job("second", hours=1, tenant="a")]
    jobs += [job("other", hours=100, tenant="b")]

    def check(result: Run) -> None:
        assert result.finish("first") <= 2 * HOUR + 360
        assert result.start("second") >= result.finish("first")
        assert result.finish("second") <= 4 * HOUR + 720

    ours = run(jobs, on, "gavel", hierarchy="fifo", until=5 * HOUR)
    tells_apart(check, ours, run(jobs, on, "gavel", hierarchy="fair", until=5 * HOUR))


@claim(
    "gavel",
    "water filling: jobs above the worst-off one divide what is left by weight, here a V100 by 2 to 1",
)
def test_water_filling_is_fair_above_the_worst_off() -> None:
    types = ("K80", "V100")
    jobs = [job(f"slow{i}", hours=1000, types=["K80"]) for i in range(4)]
    jobs += [job("light", hours=1000, types=["V100"]), job("heavy", hours=1000, types=["V100"], priority=1)]

    def check(result: Run) -> None:
        times = held(result)
        assert times["light", "V100"] > 0
        assert times["heavy", "V100"] == pytest.approx(2 * times["light", "V100"], rel=0.05)

    on, until = gpus([1, 1], types), 99 * 360.0
    options: dict[str, Any] = {"solver": "vertex", "until": until}
    tells_apart(
        check, run(jobs, on, "gavel", water_filling=True, **options), run(jobs, on, "gavel", **options)
    )


@claim(
    "gavel",
    "deadlines are met at the least cost: a V100 at ten times the price runs only what a K80 would end late",
)
def test_deadlines_are_met_at_the_least_cost() -> None:
    types = ("K80", "V100")
    on = Cluster((Node("k", 1, GpuType("K80"), price=1.0), Node("v", 1, GpuType("V100"), price=10.0)))
    jobs = [  # a V100 is four times as fast
        model("urgent", (1.0, 4.0), hours=4, types=types, deadline=5 * HOUR),
        model("patient", (1.0, 4.0), hours=1, types=types, deadline=100 * HOUR),
    ]
    # In 5 h the urgent job needs v h of the V100 and 5 - v of the K80: v + (5 - v) / 4 = 4, so v = 11 / 3.
    least = 10 * 11 / 3 + 4 / 3 + 4  # the patient job has the K80 for 4 h

    def check(result: Run) -> None:
        times = held(result)
        spent = sum({"K80": 1.0, "V100": 10.0}[kind] * time for (_, kind), time in times.items()) / HOUR
        assert result.finish("urgent") <= 5 * HOUR
        assert result.finish("patient") <= 100 * HOUR
        assert spent <= 1.03 * least

    tells_apart(check, run(jobs, on, "gavel", objective="cost"), run(jobs, on, "gavel"))


def beside(name: str, speed: float, hours: float, use: float = 1.0, models: str = "ab") -> Job:
    """A job on a V100 that runs at this speed with any other of these models on the same GPU."""
    together = {"V100": dict.fromkeys(models, speed)}
    return job(name, hours=hours, model=name[0], profile=Profile(use=use, beside=together))


@claim(
    "gavel", "two jobs that keep 80 % of their speed on one GPU end after 1.25 h together, not 2 h in turns"
)
def test_packed_jobs_share_a_gpu() -> None:
    on, jobs = gpus([1], ("V100",)), [beside("a", 0.8, hours=1), beside("b", 0.8, hours=1)]

    def check(result: Run) -> None:
        assert result.jct() == pytest.approx([1.25 * HOUR, 1.25 * HOUR])

    alone = run(jobs, on, "gavel")
    tells_apart(check, run(jobs, on, "gavel", packed=True), alone)
    assert max(alone.jct()) == pytest.approx(2 * HOUR)
    for objective in ("max-sum", "makespan", "finish-time"):
        check(run(jobs, on, "gavel", packed=True, objective=objective))


@claim(
    "gavel",
    "a pair that gets less done than one job alone is left apart: at 40 % each two hours, not two and a half",
)
def test_a_pair_that_gets_less_done_than_one_alone_is_left_apart() -> None:
    on = gpus([1], ("V100",))

    def check(result: Run) -> None:
        assert max(result.jct()) == pytest.approx(2 * HOUR)
        assert {spot[2] for stretch in result.stretches for spot in stretch.spots} == {1000}

    def at(speed: float) -> Run:
        jobs = [beside(name, speed, hours=1) for name in "ab"]
        return run(jobs, on, "gavel", packed=True, solver="vertex")

    tells_apart(check, at(0.4), at(0.8))  # the baseline are jobs that are worth pairing


@claim("gavel", "space sharing nearly doubles the utilisation of GPUs where a job alone uses 35 % of one")
def test_packed_jobs_use_more_of_a_gpu() -> None:
    on, use = gpus([2], ("V100",)), 0.35
    jobs = [beside(f"{'ab'[i % 2]}{i}", 0.95, hours=2, use=use) for i in range(8)]

    def check(result: Run) -> None:
        makespan = max(result.finish(name) for name in result.jobs.id)
        assert len(jobs) * 2 * HOUR * use / (2 * makespan) >= 0.6

    tells_apart(check, run(jobs, on, "gavel", packed=True), run(jobs, on, "gavel"))


@claim(
    "gavel",
    "space sharing shortens mean completion of batches of measured models at least 1.15 times (ten batches)",
)
def test_packed_beats_alone_on_measured_models() -> None:
    on = gpus([2, 2, 2])
    batches = [stream(seed, count=30, between=0.0, paired=True) for seed in SEEDS]

    def means(packed: bool) -> list[float]:
        runs = [run(jobs, on, "gavel", packed=packed, round=7200.0, solver="vertex") for jobs in batches]
        return [float(np.mean(result.jct())) for result in runs]

    alone = means(packed=False)

    def check(ours: list[float]) -> None:
        gain = gains(alone, ours)
        assert np.mean(gain) >= 1.15
        assert sum(each > 1 for each in gain) >= 9

    tells_apart(check, means(packed=True), alone)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"objective": "cost"}, "not cost"),
        ({"objective": "sjf"}, "not sjf"),
        ({"aware": False}, "aware=true"),
        ({"water_filling": True}, "water_filling"),
        ({"speeds": "measured"}, "declared"),
        ({"objective": "finish-time", "solver": "vertex"}, "solver=centre"),
    ],
)
def test_packed_is_refused_where_jobs_cannot_share_devices(options: dict[str, Any], why: str) -> None:
    with pytest.raises(BadOption, match=why):
        gavel(packed=True, **options)


@cache
def crowd(n: int) -> tuple[Shares, Vector]:
    """Jobs that differ, in order of how much faster the last type is for them."""
    dice = np.random.default_rng(0)
    speed = dice.uniform(1, 4, (n, 3)) * np.arange(1, 4)
    speed = speed[np.argsort(speed[:, 2] / speed[:, 0])]
    capacity = n / 3 * np.array([3, 2, 1]) / 6
    return Shares(speed, np.ones(n), capacity), speed @ (capacity / capacity.sum())


class Solved:
    """What was solved: the level that all rows reach, and how much work the solver had."""

    def __init__(self, jobs: int, parts: int) -> None:
        shares, scale = crowd(jobs)
        self.programs: list[tuple[int, int]] = []  # rows, and steps of the simplex method
        run_ = time_share_lp.Solver._run

        def counted(solver: Any, *arguments: Any) -> Any:
            found = run_(solver, *arguments)
            self.programs.append((solver._highs.getNumRow(), solver._highs.getInfo().simplex_iteration_count))
            return found

        def level(part: Shares, rows: IntVector) -> Solution:
            return time_share_lp.level(part, scale[rows])

        with patch.object(time_share_lp.Solver, "_run", counted):
            found = solved(shares, parts, level, seed=0)
        assert (shares.used(found.x) <= shares.capacity * (1 + 1e-9)).all()
        self.level = float((shares.reach(found.x) / scale).min())

    @property
    def work(self) -> int:
        """A step of the simplex method takes time by the number of rows."""
        return sum(rows * steps for rows, steps in self.programs)


@cache
def whole() -> Solved:
    return Solved(2_000, 1)


@claim("pop", "eight sub-problems of 2,000 jobs come within 3 % of the whole; 400 of five jobs each do not")
def test_large_subproblems_are_near_the_whole() -> None:
    def check(found: Solved) -> None:
        assert found.level >= 0.97 * whole().level

    tells_apart(check, Solved(2_000, 8), Solved(2_000, 400))


@claim(
    "pop",
    "eight sub-problems of 2,000 jobs, one after another, take the solver less than a third of the work",
)
def test_subproblems_are_less_work() -> None:
    def check(found: Solved) -> None:
        assert found.work < whole().work / 3

    tells_apart(check, Solved(2_000, 8), whole())


@claim("pop", "240 jobs are divided over eight sub-problems, none larger than 30 jobs")
def test_jobs_are_divided_over_the_subproblems() -> None:
    dice = random.Random(0)
    speeds = [(dice.uniform(1, 10), dice.uniform(1, 10), 10.0) for _ in range(240)]
    jobs = [model(f"j{i}", row, hours=10) for i, row in enumerate(speeds)]

    def rows(policy: str, **options: Any) -> list[int]:
        """The jobs in each problem that is solved for the first round."""
        asked, solve = list[int](), objectives.max_min

        def counted(shares: Shares, *arguments: Any, **more: Any) -> Solution:
            asked.append(len(shares.size))
            return solve(shares, *arguments, **more)

        with patch.object(objectives, "max_min", counted):
            run(jobs, gpus([30, 30, 20]), policy, until=1.0, **options)
        return asked

    def check(asked: list[int]) -> None:
        assert asked == [30] * 8

    tells_apart(check, rows("pop"), rows("gavel", solver="vertex"))


@claim(
    "pop", "a gang twice as wide as a sub-problem is divided over two: it may run more than half of the time"
)
def test_a_gang_wider_than_a_subproblem_is_divided() -> None:
    shares = Shares(np.ones((8, 1)), np.array([16.0] + [1.0] * 7), np.array([64.0]))  # 8 GPUs in each part
    scale = objectives.fair_scale(shares, np.ones(8))

    def share(*, divide: bool) -> float:
        def level(part: Shares, rows: IntVector) -> Solution:
            return time_share_lp.level(part, scale[rows], spare=True)

        return float(solved(shares, 8, level, seed=0, divide=divide).x[0, 0])

    def check(wide: float) -> None:
        assert wide > 0.5

    tells_apart(check, share(divide=True), share(divide=False))


@claim("pop", "in rounds it does what gavel does: jobs go where they are fast (mean completion, ten batches)")
def test_pop_is_gavel_in_subproblems() -> None:
    on = gpus([2, 2, 2])
    batches = [stream(seed, count=30, between=0.0) for seed in SEEDS]

    def means(aware: bool) -> list[float]:
        options: dict[str, Any] = {"subproblems": 2, "least_jobs": 10, "round": 7200.0}
        return [float(np.mean(run(jobs, on, "pop", aware=aware, **options).jct())) for jobs in batches]

    blind = means(aware=False)

    def check(ours: list[float]) -> None:
        gain = gains(blind, ours)
        assert np.mean(gain) >= 1.15
        assert sum(each > 1 for each in gain) >= 9

    tells_apart(check, means(aware=True), blind)


def test_a_job_that_saves_nothing_when_stopped_runs_until_its_next_checkpoint() -> None:
    """Else two of them would take turns for ever on one GPU."""
    hour = 3_600_000_000
    jobs = [job(name, hours=2, checkpoint=Checkpoint(every=hour, on_stop=False)) for name in "ab"]
    result = run(jobs, gpus([1], ("V100",)), "gavel")
    assert sorted(result.jct()) == [3 * HOUR, 4 * HOUR]
