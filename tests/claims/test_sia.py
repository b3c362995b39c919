"""Sia: one configuration of GPUs for every job, adaptive or rigid, on a cluster of several types."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache

import numpy as np
from tests.claims.elastic_parts import sizes_at

from dovetail.mechanisms.place.whole_nodes import Masks, Wish
from dovetail.model.cluster import Cluster, parse_cluster
from dovetail.model.estimate import DECLARED, Declared, Estimate, declared_speed
from dovetail.model.goodput import Goodput, StepTime
from dovetail.model.grant import nodes_of
from dovetail.model.job import Job, Shape, Traits
from dovetail.model.view import JobView, View
from dovetail.policies.sia import worth
from dovetail.sim.run import Run
from dovetail.testing.build import SECOND, Checkpoint, Profile, cluster, job, run
from dovetail.testing.claims import claim, tells_apart
from dovetail.testing.mutants import mutant

SIA = "dovetail.policies.sia"
BOOTSTRAP = "dovetail.mechanisms.estimate.bootstrapped_speeds"


class Blind(Declared):
    """Every GPU is like those of the reference run: what a scheduler for equal GPUs believes."""

    def estimate(
        self, cluster: Cluster, job: JobView, tasks: int, type: str, nodes: int | None, batch: int | None
    ) -> Estimate:
        first = next(iter(cluster.type_speeds))
        return declared_speed(cluster, job.shape, job.traits, tasks, first, nodes, batch, job.noise_scale)


def as_submitted(shape: Shape, traits: Traits) -> tuple[int, int]:
    return shape.tasks, shape.tasks


def on_any_devices(free: Mapping[int, int], wishes: Iterable[Wish]) -> dict[str, Masks]:
    """Jobs that stay do; the others get any devices of their pool, over nodes that they share."""
    left, found = dict(free), dict[str, Masks]()
    for wish in sorted(wishes, key=lambda wish: not wish.stays):
        if wish.stays:
            made = dict(wish.held)
        else:
            bits = [(n, 1 << i) for n in wish.nodes for i in range(wish.each) if left[n] >> i & 1]
            made = {}
            for node, bit in bits[: wish.gpus]:
                made[node] = made.get(node, 0) | bit
        found[wish.name] = made
        for node, devices in made.items():
            left[node] &= ~devices
    return found


def never_learns(self: object, view: View) -> object:
    return self


MUTANTS = (
    mutant(
        "sia",
        "types",
        "all types are taken to be like the first",
        killed_by="test_the_fast_gpu_goes_to_the_job_that_gains_most",
        replace={f"{BOOTSTRAP}:DECLARED": Blind()},
    ),
    mutant(
        "sia",
        "adaptivity",
        "elastic jobs get what they ask for",
        killed_by="test_mixed_jobs_on_three_types_end_earlier",
        replace={
            "dovetail.mechanisms.allocate.configurations:task_range": as_submitted,
            "dovetail.mechanisms.resize.reallocations:task_range": as_submitted,
        },
    ),
    mutant(
        "sia",
        "rigid jobs",
        "there are powers of two and whole nodes only",
        killed_by="test_a_rigid_job_keeps_its_number_of_gpus",
        replace={f"{SIA}:own_sizes": lambda jobs: ()},
    ),
    mutant(
        "sia",
        "restart factor",
        "a restart costs nothing",
        killed_by="test_a_small_gain_is_not_worth_a_restart",
        options={"delta": 0.0},
    ),
    mutant(
        "sia",
        "growth by two",
        "a job may have any number of GPUs at once",
        killed_by="test_a_job_has_at_most_twice_what_it_had",
        replace={"dovetail.mechanisms.resize.reallocations:twice": lambda had: 1_000},
    ),
    mutant(
        "sia",
        "penalty of a job without GPUs",
        "it is less than the worst configuration costs",
        killed_by="test_a_job_runs_where_it_is_slow_rather_than_not_at_all",
        options={"penalty": 0.9},
    ),
    mutant(
        "sia",
        "power",
        "the sum of goodputs counts",
        killed_by="test_a_job_that_scales_badly_is_not_stopped",
        options={"power": 1.0},
    ),
    mutant(
        "sia",
        "placement",
        "any devices of the type are as good",
        killed_by="test_a_job_of_a_whole_node_gets_one",
        replace={f"{SIA}:arranged": on_any_devices},
    ),
    mutant(
        "sia",
        "bootstrapped speeds",
        "a job is taken to scale linearly whatever it has measured",
        killed_by="test_scaling_is_tried_once_and_then_known_for_all_types",
        replace={f"{BOOTSTRAP}:BootstrappedSpeeds.observed": never_learns},
    ),
    mutant(
        "sia",
        "scaling of other types",
        "a type on which a job has not run is taken to scale linearly",
        killed_by="test_scaling_is_tried_once_and_then_known_for_all_types",
        replace={f"{BOOTSTRAP}:known_on": lambda ran, type: ran if type in ran else {}},
    ),
)

RESTART = Checkpoint(restore=30 * SECOND)


def rigid(name: str, gpus: int = 1, minutes: float = 60, at: float = 0, **speeds: float) -> Job:
    traits = Traits(checkpoint=RESTART, profile=Profile(speeds=speeds) if speeds else None)
    return job(name, gpus=gpus, minutes=minutes, at=at, traits=traits)


def elastic(
    name: str, curve: Mapping[int, float], minutes: float, asks: int = 1, at: float = 0, **speeds: float
) -> Job:
    """A job with this speed-up by GPUs."""
    scaled = {gpus: speed / curve[asks] for gpus, speed in curve.items()}
    profile = Profile(curve=scaled, speeds=speeds)
    traits = Traits(least=1, most=max(curve), checkpoint=RESTART, profile=profile)
    return job(name, gpus=asks, minutes=minutes, at=at, traits=traits)


LINEAR = {gpus: float(gpus) for gpus in (1, 2, 4, 8, 16)}
POOR = {1: 1.0, 2: 1.3, 4: 1.5, 8: 1.6}
HARMED = {1: 1.0, 2: 0.4, 4: 0.2}


def kinds_of(result: Run, on: Cluster, name: str) -> list[str]:
    """The types on which a job ran, one after the other."""
    return [on.nodes[min(nodes_of(s.spots))].type.name for s in result.stretches if s.job == name]


@claim("sia", "T4 and A100, speeds (1, 4) and (1, 1.5): the first job gets the A100, for 1.5 and not 1.816")
def test_the_fast_gpu_goes_to_the_job_that_gains_most() -> None:
    on = parse_cluster("1x1:T4,1x1:A100")
    jobs = [rigid("a", T4=1, A100=4), rigid("b", T4=1, A100=1.5)]
    value, _ = worth(np.array([[1, 4], [1, 1.5]]), np.ones(2), np.ones((2, 2)), -0.5, 1.1)
    assert round(-value[0, 1] - value[1, 0], 3) == 1.5
    assert round(-value[0, 0] - value[1, 1], 3) == 1.816

    def check(result: Run) -> None:
        assert kinds_of(result, on, "a") == ["A100"]
        assert kinds_of(result, on, "b")[0] == "T4"

    tells_apart(check, run(jobs, on, "sia"), run(jobs, on, "fifo"))


@claim("sia", "a lone job that scales has 1 GPU, then twice as many in each round, up to all 16")
def test_a_job_has_at_most_twice_what_it_had() -> None:
    made, on = elastic("a", LINEAR, 6_000), cluster(nodes=2, gpus=8)

    def check(result: Run) -> None:
        assert [sizes_at(result, 60 * round + 1).get("a") for round in range(5)] == [1, 2, 4, 8, 16]

    tells_apart(check, run([made], on, "sia", until=400), run([made], on, "afs", until=400))


@claim("sia", "a rigid job of 3 GPUs has 3 whenever it runs, first on the slow type, later on the fast one")
def test_a_rigid_job_keeps_its_number_of_gpus() -> None:
    """Beside it, elastic jobs come and go; when the last of them ends, it moves to the A100."""
    on = parse_cluster("1x4:T4,1x4:A100")
    others = [elastic(f"e{n}", LINEAR, 60, asks=4, at=30 * n, T4=1, A100=6) for n in range(2)]

    def check(result: Run) -> None:
        found = [s for s in result.stretches if s.job == "r"]
        assert {sum(spot[1].bit_count() for spot in s.spots) for s in found} == {3}
        assert kinds_of(result, on, "r")[0] == "T4"
        assert kinds_of(result, on, "r")[-1] == "A100"

    same = rigid("r", gpus=3, minutes=600, at=1, T4=1, A100=2)
    grows = elastic("r", {n: float(n) for n in range(1, 5)}, 600, asks=3, at=1, T4=1, A100=2)
    tells_apart(
        check, run([*others, same], on, "sia", until=30_000), run([*others, grows], on, "sia", until=30_000)
    )


@claim("sia", "after ten minutes, a job moves to a type that is 2 times as fast, and not for 3 %")
def test_a_small_gain_is_not_worth_a_restart() -> None:
    on = parse_cluster("1x1:T4,1x1:A100")
    first = rigid("first", minutes=60, T4=1, A100=6)

    def moves(policy: str, gain: float) -> list[str]:
        """It arrives beside a job that leaves the faster GPU after ten minutes."""
        jobs = [first, rigid("a", minutes=14, at=1, T4=1, A100=gain)]
        return kinds_of(run(jobs, on, policy), on, "a")

    def check(found: tuple[list[str], list[str]]) -> None:
        little, much = found
        assert little == ["T4"]
        assert much == ["T4", "A100"]

    tells_apart(
        check,
        (moves("sia", 1.03), moves("sia", 2.0)),
        (moves("gavel", 1.03), moves("gavel", 2.0)),
    )


@claim("sia", "a job runs on GPUs where it is slow rather than not at all")
def test_a_job_runs_where_it_is_slow_rather_than_not_at_all() -> None:
    """The worst configuration of a job costs 1, and having none 1.1."""
    on = parse_cluster("1x1:T4,1x1:A100")
    jobs = [rigid("a", minutes=60, T4=1, A100=4), rigid("b", minutes=60, T4=1, A100=4)]

    def check(result: Run) -> None:
        assert sizes_at(result, 1) == {"a": 1, "b": 1}

    tells_apart(check, run(jobs, on, "sia"), run(jobs, on, "sia", penalty=0.9))


@claim("sia", "of a job that scales and one that does not, none is stopped for the other")
def test_a_job_that_scales_badly_is_not_stopped() -> None:
    jobs = [elastic("good", LINEAR, 120), elastic("poor", POOR, 120)]

    def check(result: Run) -> None:
        sizes = sizes_at(result, 900)
        assert sizes.keys() == {"good", "poor"}
        assert sizes["good"] >= 4

    on = cluster(nodes=1, gpus=8)
    both = [run(jobs, on, "sia", power=power) for power in (-0.5, 1.0)]
    tells_apart(check, *both)


@claim("sia", "a job of a whole node gets one, and a small job that is in its way is moved")
def test_a_job_of_a_whole_node_gets_one() -> None:
    """After five minutes each of two nodes of 4 GPUs has one busy GPU; then a job of 4 GPUs arrives."""
    short = [rigid(f"short{n}", minutes=5) for n in range(3)]
    jobs = [*short, rigid("x", minutes=120), rigid("y", minutes=120), rigid("wide", gpus=4, at=400)]
    on = cluster(nodes=2, gpus=4)

    def check(result: Run) -> None:
        (wide,) = [s for s in result.stretches if s.job == "wide"]
        assert len(nodes_of(wide.spots)) == 1
        assert wide.start <= 480 * SECOND

    tells_apart(check, run(jobs, on, "sia"), run(jobs, on, "fifo"))


@claim("sia", "a job that several GPUs slow down has two for a while, and never again on any type")
def test_scaling_is_tried_once_and_then_known_for_all_types() -> None:
    """It is twice as fast on an A100, of which both are in use for the first 40 minutes."""
    on = parse_cluster("1x2:T4,1x2:A100")
    busy = rigid("busy", gpus=2, minutes=240, T4=1, A100=6)
    made = elastic("a", HARMED, 240, at=1, T4=1, A100=2)

    def check(result: Run) -> None:
        found = [s for s in result.stretches if s.job == "a"]
        assert [sum(spot[1].bit_count() for spot in s.spots) for s in found] == [1, 2, 1, 1]
        assert kinds_of(result, on, "a") == ["T4", "T4", "T4", "A100"]

    ours, theirs = (run([busy, made], on, "sia", speeds=speeds) for speeds in ("bootstrapped", "declared"))
    tells_apart(check, ours, theirs)


TYPES = {"T4": 1.0, "V100": 2.0, "A100": 4.0}


def mixed(seed: int) -> list[Job]:
    """14 jobs, most of them adaptive, on 16 GPUs of three types; some gain little by a fast GPU."""
    luck, jobs = random.Random(seed), list[Job]()
    for number in range(14):
        gain = luck.uniform(0.3, 1.2)
        speeds = {kind: speed**gain for kind, speed in TYPES.items()}
        gpus, minutes = luck.choice((1, 2, 4)), min(90.0, 5 + luck.expovariate(1 / 25))
        if number % 4 == 3:
            jobs.append(rigid(f"j{number}", gpus, minutes, **speeds))
            continue
        steps = {
            kind: StepTime(0.03 / speed, 0.002 / speed, node_sync=0.01, network_sync=0.05, overlap=2.0)
            for kind, speed in speeds.items()
        }
        noise = tuple((1, scale * luck.uniform(0.5, 2)) for scale in (200, 1_000, 5_000))
        model = Goodput(steps, 64, 2_048, noise_scale=noise, reference="T4")
        traits = Traits(least=1, most=8, checkpoint=RESTART, profile=Profile(goodput=model))
        jobs.append(job(f"j{number}", gpus=gpus, minutes=minutes, traits=traits))
    at, found = 0.0, []
    for made in jobs:
        found.append(replace(made, arrived_at=round(at * SECOND)))
        at += luck.expovariate(1 / 120)
    return found


@lru_cache
def means(policy: str) -> list[float]:
    """The mean JCT of each trace; Pollux does not tell types apart, as in its paper."""
    on = parse_cluster("2x4:T4,1x4:V100,1x4:A100")
    estimator = Blind() if policy == "pollux" else DECLARED
    found = [run(mixed(seed), on, policy, estimator=estimator).jct() for seed in range(60, 70)]
    return [sum(jct) / len(jct) for jct in found]


@claim(
    "sia", "on three types, adaptive and rigid jobs end earlier than under gavel and a pollux blind to types"
)
def test_mixed_jobs_on_three_types_end_earlier() -> None:
    gavel, pollux = means("gavel"), means("pollux")

    def check(found: list[float]) -> None:
        for theirs in (gavel, pollux):
            assert sum(found) < 0.9 * sum(theirs)
            assert sum(a < b for a, b in zip(found, theirs, strict=True)) >= 8

    check(means("sia"))
    tells_apart(check, means("sia"), gavel)
    tells_apart(check, means("sia"), pollux)
