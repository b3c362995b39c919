"""Dorm: partitions that are resized, for the largest use within bounds on fairness and on resizing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from dovetail.core.core import Core, Step
from dovetail.model.action import Resize, Stop
from dovetail.model.cluster import Cluster, Node
from dovetail.model.job import Job, Profile, Shape, Traits
from dovetail.model.units import SECOND
from dovetail.model.view import Plan, View
from dovetail.policies.dorm.containers import dominant_shares
from dovetail.policies.dorm.policy import Dorm
from dovetail.sim.run import Run
from dovetail.solve.containers import IntMatrix, Partition, divided
from dovetail.testing.build import job, run
from dovetail.testing.claims import claim, tells_apart
from dovetail.testing.mutants import mutant

Vector = npt.NDArray[np.float64]

NODE: dict[str, Any] = {"gpus": 4, "cpus": 24_000}
THREE = Cluster(tuple(Node(f"n{i}", **NODE, partitions=frozenset({f"p{i}"})) for i in range(3)))
CORES = {"a": 2, "b": 10, "c": 4}  # of one container, which has one GPU


def app(id: str, tasks: int = 1, *, elastic: bool = True, partition: str = "", at: float = 0.0) -> Job:
    shape = Shape(tasks, 1, cpus=1_000 * CORES[id], partition=partition)
    traits = Traits(least=1, most=12, profile=Profile()) if elastic else Traits(profile=Profile())
    return job(id, shape=shape, hours=10, at=at, traits=traits)


def held(result: Run, at: float) -> dict[str, int]:
    """Containers of each at one moment."""
    now = round(at * SECOND)
    return {
        part.job: sum(spot[1].bit_count() for spot in part.spots)
        for part in result.stretches
        if part.start <= now < part.end
    }


def use(count: dict[str, int]) -> float:
    """Parts of all GPUs and of all cores in use, added up."""
    return sum(count.values()) / 12 + sum(CORES[id] * n for id, n in count.items()) / 72


def loss(count: dict[str, int]) -> float:
    """How far dominant shares are from the fair ones, added up."""
    part = np.array([[1 / 12, CORES[id] / 72] for id in CORES])
    fair = dominant_shares(part, np.full(3, 12.0))
    return float(np.abs(np.array([count.get(id, 0) for id in CORES]) * part.max(axis=1) - fair).sum())


def with_the_least(asked: Partition) -> IntMatrix:
    return divided(replace(asked, most=asked.least))


def by_gpus_alone(asked: Partition) -> IntMatrix:
    total = np.array([asked.total[0], np.inf, np.inf])
    return divided(replace(asked, total=total))


def equal_shares(part: npt.NDArray[np.float64], most: Vector) -> Vector:
    return np.full(len(part), 1 / len(part))


def equal_containers(part: npt.NDArray[np.float64], most: Vector) -> Vector:
    """Equally many containers, as many as fit, by their dominant shares."""
    return np.asarray(part.max(axis=1) / part.sum(axis=0).max())


decide = Dorm.decide


def at_arrivals_alone(self: Dorm, view: View) -> Plan:
    if len(view.queue):
        return decide(self, view)
    plan = view.draft()
    plan.memory = view.memory
    return plan


DORM = "dovetail.policies.dorm.policy"
MUTANTS = (
    mutant(
        "dorm",
        "utilisation",
        "an application has its least number of containers",
        killed_by="test_more_is_used_than_by_an_equal_partition",
        replace={f"{DORM}:divided": with_the_least},
    ),
    mutant(
        "dorm",
        "utilisation",
        "the use of GPUs alone counts",
        killed_by="test_the_use_of_all_resources_counts",
        replace={f"{DORM}:divided": by_gpus_alone},
    ),
    mutant(
        "dorm",
        "bound on the loss of fairness",
        "utilisation alone counts",
        killed_by="test_the_loss_of_fairness_is_bounded",
        options={"theta1": 10.0},
    ),
    mutant(
        "dorm",
        "dominant shares",
        "the fair share is the same number of containers",
        killed_by="test_the_fair_shares_are_dominant_shares",
        replace={f"{DORM}:dominant_shares": equal_containers},
    ),
    mutant(
        "dorm",
        "dominant shares",
        "the fair share is an equal part of the cluster",
        killed_by="test_the_fair_shares_are_dominant_shares",
        replace={f"{DORM}:dominant_shares": equal_shares},
    ),
    mutant(
        "dorm",
        "bound on resizing",
        "any application may be resized",
        killed_by="test_few_are_resized_at_one_decision",
        options={"theta2": 1.0},
    ),
    mutant(
        "dorm",
        "resizing",
        "no application is resized",
        killed_by="test_what_an_application_leaves_goes_to_the_others",
        options={"theta2": 0.0},
    ),
    mutant(
        "dorm",
        "resizing",
        "applications are resized at arrivals, not at ends",
        killed_by="test_what_an_application_leaves_goes_to_the_others",
        replace={f"{DORM}:Dorm.decide": at_arrivals_alone},
    ),
    mutant(
        "dorm",
        "least containers",
        "an application waits where others use more",
        killed_by="test_every_application_has_its_least",
        replace={"dovetail.solve.containers:RUN": 0.0},
    ),
)


@claim(
    "dorm",
    "more is in use than with a third of the cluster for each, and shares stay near the fair ones",
)
def test_more_is_used_than_by_an_equal_partition() -> None:
    ours = run([app(id) for id in CORES], THREE, "dorm")
    thirds = {"a": (4, "p0"), "b": (2, "p1"), "c": (4, "p2")}  # as many containers as a node holds
    static = run([app(id, n, elastic=False, partition=p) for id, (n, p) in thirds.items()], THREE, "fifo")

    def check(result: Run) -> None:
        assert use(held(result, 60)) > 1.45

    tells_apart(check, ours, static)
    assert use(held(ours, 60)) >= 1.9
    assert use(held(static, 60)) == pytest.approx(10 / 12 + 44 / 72)
    assert loss(held(ours, 60)) <= 0.1 * 2 * 3


@claim("dorm", "the loss of fairness stays within theta1 x 2m, which use alone would break")
def test_the_loss_of_fairness_is_bounded() -> None:
    def check(result: Run) -> None:
        assert loss(held(result, 60)) <= 0.05 * 2 * 3

    jobs = [app(id) for id in CORES]
    tells_apart(check, run(jobs, THREE, "dorm", theta1=0.05), run(jobs, THREE, "dorm", theta1=10.0))


def disturbed(theta2: float) -> tuple[Run, list[str]]:
    """A has the cluster to itself; B and C come later. Who was resized."""
    seen: list[str] = []

    def keep(core: Core, step: Step) -> None:
        seen.extend(action.job for action in step.actions if isinstance(action, Resize | Stop))

    jobs = [app("a"), app("b", at=600), app("c", at=900)]
    return run(jobs, THREE, "dorm", theta2=theta2, on_step=keep), seen


@claim(
    "dorm",
    "with theta2 = 0 no running application is ever resized; with theta2 = 1 at least as much is in use",
)
def test_resizing_is_bounded() -> None:
    def untouched(case: tuple[Run, list[str]]) -> None:
        assert case[1] == []

    def well_used(case: tuple[Run, list[str]]) -> None:
        assert use(held(case[0], 1_000)) > 1.5

    never, always = disturbed(0.0), disturbed(1.0)
    tells_apart(untouched, never, always)
    tells_apart(well_used, always, never)


def two_apps(cores: tuple[int, int], on: Cluster, policy: str = "dorm", **options: float) -> dict[str, int]:
    """Containers of a and b, each with one GPU and so many cores, once both are there."""
    jobs = [
        job(id, shape=Shape(1, 1, cpus=1_000 * n), hours=10, traits=ELASTIC)
        for id, n in zip("ab", cores, strict=True)
    ]
    return held(run(jobs, on, policy, **options), 60)


ELASTIC = Traits(least=1, most=12, profile=Profile())


@claim("dorm", "the use of all resources counts: a GPU is left idle where more cores are used for it")
def test_the_use_of_all_resources_counts() -> None:
    """On 10 GPUs and 64 cores: 9 GPUs and 62 cores are more than 10 GPUs and 44 cores."""
    on = Cluster((Node("n", gpus=10, cpus=64_000),))
    jobs = [
        job("a", shape=Shape(1, 3, cpus=2_000), hours=10, traits=ELASTIC),
        job("b", shape=Shape(1, 2, cpus=20_000), hours=10, traits=ELASTIC),
    ]

    def check(result: Run) -> None:
        assert held(result, 60) == {"a": 1 * 3, "b": 3 * 2}  # GPUs

    tells_apart(check, run(jobs, on, "dorm", theta1=10.0), run(jobs, on, "dorm", theta1=0.0))


@claim("dorm", "with theta1 = 0 shares are those of dominant resource fairness, though another use is larger")
def test_the_fair_shares_are_dominant_shares() -> None:
    """Six tenths of the GPUs for a and, with 36 of 60 cores, six tenths of the cores for b."""
    on = Cluster((Node("n", gpus=10, cpus=60_000),))

    def check(count: dict[str, int]) -> None:
        assert count == {"a": 6, "b": 4}

    tells_apart(check, two_apps((2, 9), on, theta1=0.0), two_apps((2, 9), on, theta1=10.0))


@claim("dorm", "every application has its least containers, though the others would use more without it")
def test_every_application_has_its_least() -> None:
    on = Cluster((Node("n", gpus=10, cpus=100_000),))

    def check(count: dict[str, int]) -> None:
        assert count == {"b": 9, "a": 1}

    all_for_b = [
        job("b", shape=Shape(10, 1, cpus=10_000), hours=10),
        job("a", shape=Shape(1, 1, cpus=2_000), hours=10),
    ]
    tells_apart(check, two_apps((2, 10), on, theta1=10.0), held(run(all_for_b, on, "fifo"), 60))


@claim("dorm", "what an application leaves when it ends goes to the others")
def test_what_an_application_leaves_goes_to_the_others() -> None:
    on = Cluster((Node("n", gpus=8),))
    jobs = [
        job(id, shape=Shape(1, 1), hours=hours, traits=ELASTIC) for id, hours in (("short", 1), ("long", 100))
    ]

    def check(result: Run) -> None:
        assert held(result, 60) == {"short": 4, "long": 4}
        assert held(result, result.finish("short") + 600) == {"long": 8}

    ours = run(jobs, on, "dorm", theta1=0.0)
    tells_apart(check, ours, run(jobs, on, "dorm", theta1=0.0, theta2=0.0))


@claim("dorm", "with theta2 = 0.1 and four running at most one is resized at one decision")
def test_few_are_resized_at_one_decision() -> None:
    on = Cluster((Node("n", gpus=12),))
    jobs = [job(f"{i}", shape=Shape(1, 1), hours=100, at=600.0 * i, traits=ELASTIC) for i in range(5)]

    def most_resized(theta2: float) -> int:
        counts = [0]

        def count(core: Core, step: Step) -> None:
            counts.append(len({each.job for each in step.actions if isinstance(each, Resize | Stop)}))

        run(jobs, on, "dorm", theta1=0.0, theta2=theta2, until=3600, on_step=count)
        return max(counts)

    def check(most: int) -> None:
        assert most == 1

    tells_apart(check, most_resized(0.1), most_resized(1.0))
