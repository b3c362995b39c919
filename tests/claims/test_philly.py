"""Philly: locality is given up in time, shares are restored, and each delay has its name."""

from __future__ import annotations

from random import Random

import pytest

from dovetail.mechanisms.quota.tenant_quota import guarantees
from dovetail.model.cluster import Cluster, Tenant
from dovetail.model.job import Job
from dovetail.policies.philly.queueing_delays import QueueingDelays
from dovetail.sim.run import Run
from dovetail.testing.build import Checkpoint, Profile, cluster, job, run
from dovetail.testing.claims import claim, tells_apart

MINUTE = 60.0
TWO = cluster(nodes=2, gpus=8)
QUOTAS = [Tenant("A", quota=8), Tenant("B", quota=8)]


def four_free_on_each(split: float) -> list[Job]:
    """From 100 s on; the node of `a2` empties an hour later, and a gang of eight wants one whole."""
    return [
        job("a1", gpus=4, seconds=100),
        job("a2", gpus=4, seconds=3700),
        job("b1", gpus=4, seconds=100),
        job("b2", gpus=4, seconds=9000),
        job("gang", gpus=8, minutes=50, at=100, profile=Profile(split=split)),
    ]


def measured(jobs: list[Job], on: Cluster, policy: str, **options: float) -> tuple[Run, QueueingDelays]:
    delays = QueueingDelays(guarantees(on))
    result = run(jobs, on, policy, on_step=lambda core, step: delays.watch(core), **options)
    return result, delays


@claim("philly", "a gang that finds no whole node starts split after some retries instead of waiting for one")
def test_locality_is_relaxed() -> None:
    jobs = four_free_on_each(split=2.0)

    def check(result: Run) -> None:
        assert result.wait("gang") == [6 * MINUTE]  # three retries, two minutes apart
        assert result.jct("gang") == [106 * MINUTE]

    packed = run(jobs, TWO, "fifo")  # strict locality
    tells_apart(check, run(jobs, TWO, "philly"), packed)
    assert packed.wait("gang") == [60 * MINUTE]
    assert packed.jct("gang") == [110 * MINUTE]


@claim("philly", "relaxed locality has a price: a gang that is three times slower when split finishes later")
def test_relaxing_can_cost() -> None:
    jobs = four_free_on_each(split=3.0)

    def check(result: Run) -> None:
        assert result.wait("gang") == [6 * MINUTE]  # it waits less,
        assert [round(jct, 3) for jct in result.jct("gang")] == [156 * MINUTE]  # and yet ends later

    packed = run(jobs, TWO, "fifo")
    tells_apart(check, run(jobs, TWO, "philly"), packed)
    assert packed.jct("gang") == [110 * MINUTE]


def test_each_delay_has_its_name() -> None:
    """Queueing delay is fair-share delay plus fragmentation delay: a measure, so no baseline can fail it.

    A holds its 8 GPUs and 4 borrowed ones; its next job waits for its share, B's for a whole node.
    """
    on = cluster(nodes=2, gpus=8, tenants=QUOTAS)
    jobs = [
        job("a1", gpus=8, seconds=1000, tenant="A"),
        job("a2", gpus=4, seconds=1000, tenant="A"),
        job("a3", gpus=8, seconds=10, at=100, tenant="A"),
        job("b", gpus=8, seconds=10, at=100, tenant="B"),
    ]
    result, delays = measured(jobs, on, "philly", preempt_above=1.0)
    assert result.wait("b") == [900.0]
    assert delays.fragmentation == {"b": 900_000_000}
    assert delays.fair_share == {"a3": 900_000_000}


@pytest.mark.parametrize("seed", range(5))
def test_the_delays_add_up(seed: int) -> None:
    rng = Random(seed)
    on = cluster(nodes=3, gpus=4, racks=3, tenants=[Tenant("A", quota=4), Tenant("B", quota=8)])
    jobs = [
        job(
            f"j{i}",
            gpus=rng.choice([1, 2, 4, 6]),
            seconds=rng.choice([50, 300, 2000]),
            at=30 * i,
            tenant=rng.choice("AB"),
        )
        for i in range(50)
    ]
    result, delays = measured(jobs, on, "philly")
    assert result.finished == 50
    delay = dict(zip(result.jobs.id, result.first_start(), strict=True))  # the paper's queueing delay
    for name, before_first_start in delay.items():
        parts = delays.fair_share.get(name, 0) + delays.fragmentation.get(name, 0)
        assert parts == before_first_start * 1e6
    assert sum(delays.fair_share.values()) > 0
    assert sum(delays.fragmentation.values()) > 0


@claim(
    "philly",
    "a virtual cluster below its quota gets it back: the newest jobs of those above quota are stopped",
)
def test_shares_are_restored() -> None:
    on = cluster(nodes=2, gpus=8, tenants=QUOTAS)
    saved = Checkpoint(restore=5_000_000)
    jobs = [job(f"a{i}", gpus=4, hours=2, at=i, tenant="A", checkpoint=saved) for i in range(4)]
    jobs.append(job("b", gpus=8, hours=1, at=600, tenant="B"))

    def check(result: Run) -> None:
        assert result.start("b") == 600
        stops = dict(zip(result.jobs.id, result.jobs.stops, strict=True))
        assert stops == {"a0": 0, "a1": 0, "a2": 1, "a3": 1, "b": 0}

    ours = run(jobs, on, "philly")
    tells_apart(check, ours, run(jobs, on, "philly", preempt_above=1.0))
    assert ours.finish("a2") == 600 + 3600 + 5 + 7200 - 598  # saved, and restored in 5 s


def test_a_busy_cluster_only() -> None:
    """At 8 of 16 in use no job is stopped, though B is below its quota and finds no whole node."""
    on = cluster(nodes=2, gpus=8, tenants=[Tenant("A", quota=4), Tenant("B", quota=12)])
    jobs = [
        job("a1", gpus=4, seconds=900, tenant="A"),
        job("a2", gpus=4, seconds=100, tenant="A"),
        job("a3", gpus=4, seconds=900, tenant="A"),
        job("b", gpus=8, seconds=10, at=150, tenant="B"),
    ]
    result = run(jobs, on, "philly", relax_after=100)
    assert sum(result.jobs.stops) == 0
    assert result.start("b") == 900


@claim(
    "philly",
    "a failed job is tried again, but not one that fails as soon as it runs: its user must fix it",
)
def test_fast_failures_are_not_retried() -> None:
    jobs = [
        job("typo", hours=1, fails_after=5, retries=3),
        job("flaky", hours=1, fails_after=600, retries=3),
    ]
    starts = {"philly": dict[str, int](), "fifo": dict[str, int]()}
    for policy, count in starts.items():
        for stretch in run(jobs, TWO, policy).stretches:
            count[stretch.job] = count.get(stretch.job, 0) + 1

    def check(count: dict[str, int]) -> None:
        assert count == {"typo": 1, "flaky": 4}

    tells_apart(check, starts["philly"], starts["fifo"])
    assert starts["fifo"] == {"typo": 4, "flaky": 4}


def test_borrowing_has_an_end() -> None:
    on = cluster(nodes=2, gpus=8, tenants=[Tenant("A", quota=8, borrow=4), Tenant("B", quota=8)])
    jobs = [job(f"a{i}", gpus=4, seconds=100, tenant="A") for i in range(4)]
    result = run(jobs, on, "philly")
    assert [result.start(f"a{i}") for i in range(4)] == [0, 0, 0, 100]
