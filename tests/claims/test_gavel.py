"""Gavel: which type a job runs on matters as much as for how long."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dovetail.mechanisms.objective import share_objectives as objectives
from dovetail.model.cluster import Cluster, GpuType, Node, Tenant
from dovetail.model.errors import BadOption
from dovetail.model.job import Job
from dovetail.policies.gavel import gavel
from dovetail.sim.run import Run
from dovetail.solve import time_share_lp
from dovetail.solve.partitioned import solved
from dovetail.solve.time_shares import Shares
from dovetail.testing.build import Checkpoint, Profile, job, run
from dovetail.testing.claims import claim, tells_apart
from dovetail.traces.profiles import load_throughputs

HOUR = 3600.0
TYPES = ("K80", "P100", "V100")
THREE = {"A": (10.0, 30.0, 80.0), "B": (50.0, 65.0, 70.0), "C": (20.0, 55.0, 60.0)}  # steps a second


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
    """Seconds by job and type."""
    found: dict[tuple[str, str], float] = {}
    for stretch in result.stretches:
        kind = result.cluster.nodes[stretch.spots[0][0]].type.name
        found[stretch.job, kind] = found.get((stretch.job, kind), 0.0) + (stretch.end - stretch.start) / 1e6
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


@claim("gavel", "knowing the types shortens mean completion at high load by at least 1.4 times under max-min")
def test_aware_beats_agnostic_on_a_continuous_trace() -> None:
    on = gpus([3, 3, 3])
    traces = [stream(seed, count=160, between=6000.0) for seed in (0, 1)]

    def mean(aware: bool) -> float:
        runs = [run(jobs, on, "gavel", aware=aware, round=1800.0, solver="vertex") for jobs in traces]
        return float(np.mean([result.jct()[40:] for result in runs]))  # once the cluster has filled up

    blind = mean(aware=False)

    def check(ours: float) -> None:
        assert ours <= blind / 1.4

    tells_apart(check, mean(aware=True), blind)


@claim("gavel", "knowing the types shortens the makespan of a batch by at least 1.2 times")
def test_aware_beats_agnostic_on_a_batch() -> None:
    jobs, on = stream(seed=1, count=60, between=0.0), gpus([4, 4, 4])
    blind = run(jobs, on, "gavel", objective="makespan", aware=False, round=1800.0, solver="vertex")

    def check(result: Run) -> None:
        assert result.makespan <= blind.makespan / 1.2

    tells_apart(check, run(jobs, on, "gavel", objective="makespan", round=1800.0, solver="vertex"), blind)


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
    "deadlines are met at the least cost: expensive GPUs are used only where cheap ones would be late",
)
def test_cost_keeps_deadlines() -> None:
    nodes = (Node("k", 1, GpuType("K80"), price=1.0), Node("v", 1, GpuType("V100"), price=10.0))
    on = Cluster(nodes)
    jobs = [
        model("urgent", (1.0, 4.0), hours=4, types=("K80", "V100"), deadline=5 * HOUR),
        model("patient", (1.0, 4.0), hours=1, types=("K80", "V100"), deadline=100 * HOUR),
    ]

    def check(result: Run) -> None:
        assert result.finish("urgent") <= 5 * HOUR

    ours = run(jobs, on, "gavel", objective="cost")
    tells_apart(check, ours, run(jobs, on, "gavel", objective="max-min", aware=False))


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


def test_a_pair_that_gets_less_done_than_one_alone_is_left_apart() -> None:
    on, jobs = gpus([1], ("V100",)), [beside("a", 0.4, hours=1), beside("b", 0.4, hours=1)]
    packed = run(jobs, on, "gavel", packed=True, solver="vertex")
    assert max(packed.jct()) == pytest.approx(2 * HOUR)  # at 40 % each it would be 2.5 hours
    assert {spot[2] for stretch in packed.stretches for spot in stretch.spots} == {1000}


@claim("gavel", "space sharing nearly doubles the utilisation of GPUs where a job alone uses 35 % of one")
def test_packed_jobs_use_more_of_a_gpu() -> None:
    on, use = gpus([2], ("V100",)), 0.35
    jobs = [beside(f"{'ab'[i % 2]}{i}", 0.95, hours=2, use=use) for i in range(8)]

    def check(result: Run) -> None:
        makespan = max(result.finish(name) for name in result.jobs.id)
        assert len(jobs) * 2 * HOUR * use / (2 * makespan) >= 0.6

    tells_apart(check, run(jobs, on, "gavel", packed=True), run(jobs, on, "gavel"))


@claim(
    "gavel", "space sharing shortens mean completion of a batch of its measured models by at least 1.15 times"
)
def test_packed_beats_alone_on_measured_models() -> None:
    on = gpus([3, 3, 3])
    batches = [stream(seed, count=60, between=0.0, paired=True) for seed in (0, 1)]

    def mean(packed: bool) -> float:
        runs = [run(jobs, on, "gavel", packed=packed, round=1800.0, solver="vertex") for jobs in batches]
        return float(np.mean([result.jct() for result in runs]))

    alone = mean(packed=False)

    def check(ours: float) -> None:
        assert ours <= alone / 1.15

    tells_apart(check, mean(packed=True), alone)


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


def crowd(n: int) -> tuple[Shares, np.ndarray]:
    dice = np.random.default_rng(0)
    speed = dice.uniform(1, 4, (n, 3)) * np.arange(1, 4)
    capacity = n / 3 * np.array([3, 2, 1]) / 6
    return Shares(speed, np.ones(n), capacity), speed @ (capacity / capacity.sum())


@claim(
    "pop", "eight sub-problems of 2,000 jobs come within 3 % of the whole; one per job gives the equal share"
)
def test_large_subproblems_are_near_the_whole() -> None:
    shares, scale = crowd(2_000)
    best = time_share_lp.level(shares, scale).value

    def reached(parts: int) -> float:
        found = solved(shares, parts, lambda part, rows: time_share_lp.level(part, scale[rows]), seed=0)
        assert (shares.used(found.x) <= shares.capacity * (1 + 1e-9)).all()
        return float((shares.reach(found.x) / scale).min()) / best

    def check(quality: float) -> None:
        assert quality >= 0.97

    tells_apart(check, reached(8), reached(len(scale)))


@claim("pop", "in rounds it does what gavel does: jobs go where they are fast")
def test_pop_is_gavel_in_subproblems() -> None:
    jobs, on = stream(seed=2, count=60, between=0.0), gpus([4, 4, 4])
    blind = run(jobs, on, "pop", subproblems=2, round=1800.0, aware=False)

    def check(result: Run) -> None:
        assert np.mean(result.jct()) <= np.mean(blind.jct()) / 1.15

    tells_apart(check, run(jobs, on, "pop", subproblems=2, round=1800.0), blind)


def test_a_job_that_saves_nothing_when_stopped_runs_until_its_next_checkpoint() -> None:
    """Else two of them would take turns for ever on one GPU."""
    hour = 3_600_000_000
    jobs = [job(name, hours=2, checkpoint=Checkpoint(every=hour, on_stop=False)) for name in "ab"]
    result = run(jobs, gpus([1], ("V100",)), "gavel")
    assert sorted(result.jct()) == [3 * HOUR, 4 * HOUR]
