"""Under the policy of a new plane every job starts within a bound, however wrong the estimates are.

A job that fits the empty cluster starts within (n + 1) x (E + L): n jobs go before it and start meanwhile, E
is the longest estimate and L the longest time for which a job really runs. With quotas it is
(n + 1) x (2 E + 3 L), for jobs that the quota of their tenant can hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.core.core import Core, Step
from dovetail.core.room import Room
from dovetail.mechanisms.quota.tenant_quota import nominal
from dovetail.model.action import Start
from dovetail.model.cluster import KNOWN_TYPES, Cluster, Node, Tenant
from dovetail.model.job import Job, Shape, Traits
from dovetail.model.units import GIB, HOUR, MINUTE, WHOLE
from dovetail.policies.registry import POLICIES
from dovetail.sim.run import run
from dovetail.testing.suite import searched

AGING = 5.0
seeds = st.integers(0, 2**32)


def nodes_of(dice: Random) -> tuple[Node, ...]:
    odd = dice.random() < 0.4
    return tuple(
        Node(
            f"n{i}",
            dice.choice([2, 4, 4, 8]),
            KNOWN_TYPES[dice.choice(["A100", "V100"]) if odd else "A100"],
            cpus=dice.choice([4, 8, 16]) * 1_000,
            memory=dice.choice([8, 16, 32]) * GIB,
        )
        for i in range(dice.randint(1, 4))
    )


def tenants_of(dice: Random, gpus: int) -> dict[str, Tenant]:
    mine = dice.randint(0, gpus)
    if dice.random() < 0.5:
        listed = [
            Tenant("lab"),
            Tenant("a", parent="lab", quota=mine, borrow=dice.choice([None, 0, 2])),
            Tenant("b", parent="lab", quota=gpus - mine, limit=dice.choice([None, None, max(gpus // 2, 1)])),
        ]
    else:
        listed = [Tenant("a", quota=mine), Tenant("b", limit=dice.randint(1, gpus))]
        listed += [Tenant("c", quota=dice.randint(0, gpus))] * dice.randint(0, 1)
    return {tenant.name: tenant for tenant in listed}


def shapes(dice: Random, cluster: Cluster) -> Iterator[Shape]:
    """Mostly small ones, and now and then a wide one: whole GPUs, parts of GPUs, CPU and memory."""
    empty = Room(cluster)
    while True:
        kind = dice.random()
        if kind < 0.06:
            shape = Shape(
                dice.randint(1, 4),
                dice.choice([1, 2, 4, 4, 8]),
                types=dice.choice([(), (), ("A100",)]),
                cpus=dice.choice([0, 0, 1_000, 4_000]),
                memory=dice.choice([0, 0, 8 * GIB]),
            )
        elif kind < 0.2:
            cpus, memory = dice.choice([1_000, 3_000]), dice.choice([0, 2 * GIB])
            shape = Shape(dice.randint(1, 2), 0, cpus=cpus, memory=memory)
        elif kind < 0.34:
            shape = Shape(1, 1, dice.choice([250, 500]), cpus=dice.choice([0, 1_000]))
        else:
            shape = Shape(
                dice.choice([1, 1, 1, 2]),
                dice.choice([1, 1, 1, 2]),
                types=dice.choice([(), (), ("V100",)]),
                cpus=dice.choice([0, 1_000, 2_000]),
                memory=dice.choice([0, 0, GIB]),
            )
        if empty.anywhere(shape) is not None:
            yield shape


def world(seed: int, *, quotas: bool = False) -> tuple[Cluster, list[Job]]:
    """A busy cluster, with estimates that are right, assumed, or far too short."""
    dice = Random(seed)
    nodes = nodes_of(dice)
    tenants = tenants_of(dice, sum(node.gpus for node in nodes)) if quotas else {}
    cluster = Cluster(nodes, tenants=tenants)
    some_shape = shapes(dice, cluster)
    shortest, longest = dice.choice([(1.0, 1.0), (0.1, 1.0), (1.0, 8.0), (0.2, 8.0)])
    gap, priorities = dice.choice([2, 5, 15]), dice.choice([(0,), (0,), (0, 100), (-100, 0, 100, 1_000)])
    names = [*tenants, "x"] if quotas else ["", "u"]
    jobs, at = [], 0
    for number in range(dice.randint(40, 120)):
        at += int(dice.expovariate(1 / gap) * MINUTE) + 1
        work = int(dice.uniform(shortest, longest) * HOUR)
        estimate = dice.choice([HOUR, HOUR, work, work // 3, 2 * work])
        traits = Traits(preemptible=dice.random() < 0.7)
        jobs.append(
            Job(
                f"j{number}",
                at,
                next(some_shape),
                work,
                estimate,
                tenant=dice.choice(names),
                priority=dice.choice(priorities),
                traits=traits,
            )
        )
    return cluster, jobs


def late(
    cluster: Cluster,
    jobs: list[Job],
    bound: Callable[[int, int, int], int],
    policy: str = "dovetail",
    **options: Any,
) -> dict[str, str]:
    """The jobs that did not start within the bound, which is made from n, E and L."""
    starts: list[tuple[int, str]] = []

    def keep(core: Core, step: Step) -> None:
        starts.extend((step.now, action.job) for action in step.actions if isinstance(action, Start))

    run(jobs, cluster, POLICIES.make(policy, **options), on_step=keep)
    first: dict[str, int] = {}
    for at, name in starts:
        first.setdefault(name, at)
    place = {
        job.id: (job.arrived_at - round(job.priority * HOUR / AGING), number)
        for number, job in enumerate(jobs)
    }
    estimate, runs = max(job.estimate for job in jobs), max(job.work for job in jobs)
    found = {}
    for job in jobs:
        begun = first.get(job.id)
        if begun is None:
            found[job.id] = "it never started"
            continue
        before = sum(
            1
            for at, name in starts
            if job.arrived_at <= at <= begun and name != job.id and place[name] < place[job.id]
        )
        most = bound(before, estimate, runs)
        if begun - job.arrived_at > most:
            waited = (begun - job.arrived_at) / HOUR
            found[job.id] = f"it waited {waited:.2f} h, and the bound is {most / HOUR:.2f} h; {job.shape}"
    return found


def plain(n: int, estimate: int, runs: int) -> int:
    return (n + 1) * (estimate + runs)


def with_quotas(n: int, estimate: int, runs: int) -> int:
    return (n + 1) * (2 * estimate + 3 * runs)


@given(seed=seeds)
@searched(60)
def test_every_job_starts_within_the_bound(seed: int) -> None:
    assert late(*world(seed), plain) == {}


@given(seed=seeds)
@searched(40)
def test_jobs_within_their_quota_start_within_the_bound(seed: int) -> None:
    cluster, jobs = world(seed, quotas=True)
    quota = nominal(cluster)

    def is_covered(job: Job) -> bool:
        tenant = cluster.tenants.get(job.tenant)
        if tenant is None or tenant.quota is None or job.shape.load > quota[job.tenant]:
            return False
        return tenant.limit is None or job.shape.load <= tenant.limit * WHOLE

    found = late(cluster, jobs, with_quotas)
    assert {job.id: found[job.id] for job in jobs if is_covered(job) and job.id in found} == {}


@pytest.mark.parametrize(
    ("policy", "options"), [("kueue", {"whole": True, "score": "pack"}), ("backfill", {})]
)
def test_other_policies_break_the_bound_in_these_worlds(policy: str, options: dict[str, Any]) -> None:
    """The worlds are hard enough: without promises, and with promises of whole GPUs alone, jobs starve."""
    assert any(late(*world(seed), plain, policy, **options) for seed in (36, 55))
