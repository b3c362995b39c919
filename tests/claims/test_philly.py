"""Philly: locality is given up in time, shares are restored, and each delay has its name."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from random import Random
from typing import Any

import pytest

from dovetail.mechanisms.order.round_robin import round_robin
from dovetail.mechanisms.place.locality import ANYWHERE
from dovetail.mechanisms.preempt.reclaim import reclaim
from dovetail.mechanisms.quota.tenant_quota import guarantees
from dovetail.model.cluster import Cluster, Tenant
from dovetail.model.job import Job
from dovetail.model.view import JobView, Plan, View
from dovetail.policies.philly.policy import VirtualClusters
from dovetail.policies.philly.queueing_delays import QueueingDelays
from dovetail.sim.run import Run
from dovetail.testing.build import Checkpoint, Profile, cluster, job, run
from dovetail.testing.claims import claim, tells_apart
from dovetail.testing.mutants import mutant

MINUTE = 60.0
TWO = cluster(nodes=2, gpus=8)
QUOTAS = [Tenant("A", quota=8), Tenant("B", quota=8)]


def in_order_of_arrival(
    view: View, part: Callable[[JobView], float], *, without: Collection[str]
) -> Iterator[JobView]:
    return round_robin(view, lambda job: 0, without=without)


def fewest_gpus_first(
    view: View, part: Callable[[JobView], float], *, without: Collection[str]
) -> Iterator[JobView]:
    quota = guarantees(view.cluster)
    return round_robin(view, lambda job: part(job) * quota.get(job.tenant, 1.0), without=without)


def blocked_by_the_first(
    view: View, part: Callable[[JobView], float], *, without: Collection[str]
) -> Iterator[JobView]:
    return round_robin(view, part, without=without, strict=True)


def earliest_stopped(
    plan: Plan,
    job: JobView,
    others: Sequence[JobView],
    may_leave: Callable[[JobView], bool],
    fits: Callable[[], bool],
) -> Sequence[JobView]:
    return reclaim(plan, job, others[::-1], may_leave, fits)


def anyone_stopped(
    plan: Plan,
    job: JobView,
    others: Sequence[JobView],
    may_leave: Callable[[JobView], bool],
    fits: Callable[[], bool],
) -> Sequence[JobView]:
    return reclaim(plan, job, others, lambda other: True, fits)


take_back = VirtualClusters._take_back


def taken_back_for_any_job(
    self: VirtualClusters, plan: Plan, quota: Mapping[str, float], newest: Any, job: JobView, fits: Any
) -> Sequence[JobView]:
    return take_back(self, plan, {**quota, job.tenant: float("inf")}, newest, job, fits)


def at_once_anywhere(waited: int, best: int, delays: Sequence[int]) -> tuple[int, int | None]:
    return (best, delays[0] - waited) if waited < delays[0] else (ANYWHERE, None)


PHILLY = "dovetail.policies.philly.policy"
MUTANTS = (
    mutant(
        "philly",
        "relaxed locality",
        "a gang waits for one node for ever",
        killed_by="test_locality_is_relaxed",
        options={"relax_after": 10**6},
    ),
    mutant(
        "philly",
        "relaxed locality",
        "a gang is split at once",
        killed_by="test_locality_is_relaxed",
        options={"relax_after": 0},
    ),
    mutant(
        "philly",
        "relaxed locality",
        "after the first retries any place will do",
        killed_by="test_locality_is_relaxed_level_by_level",
        replace={"dovetail.mechanisms.place.locality:accepted_level": at_once_anywhere},
    ),
    mutant(
        "philly",
        "order of virtual clusters",
        "the first to arrive goes first, of any virtual cluster",
        killed_by="test_idle_gpus_are_shared_by_quota",
        replace={f"{PHILLY}:round_robin": in_order_of_arrival},
    ),
    mutant(
        "philly",
        "order of virtual clusters",
        "the virtual cluster with the fewest GPUs goes first, whatever its quota",
        killed_by="test_idle_gpus_are_shared_by_quota",
        replace={f"{PHILLY}:round_robin": fewest_gpus_first},
    ),
    mutant(
        "philly",
        "overtaking",
        "a job that does not fit blocks its virtual cluster",
        killed_by="test_a_job_that_does_not_fit_is_overtaken",
        replace={f"{PHILLY}:round_robin": blocked_by_the_first},
    ),
    mutant(
        "philly",
        "idle GPUs for all",
        "a virtual cluster stays within its quota",
        killed_by="test_shares_are_restored",
        replace={f"{PHILLY}:ceilings": lambda cluster, given: given},
    ),
    mutant(
        "philly",
        "preemption",
        "no job is stopped",
        killed_by="test_shares_are_restored",
        options={"preempt_above": 1.0},
    ),
    mutant(
        "philly",
        "preemption",
        "the earliest jobs are stopped",
        killed_by="test_shares_are_restored",
        replace={f"{PHILLY}:reclaim": earliest_stopped},
    ),
    mutant(
        "philly",
        "preemption",
        "virtual clusters within their quota lose jobs too",
        killed_by="test_only_borrowed_gpus_are_taken_back",
        replace={f"{PHILLY}:reclaim": anyone_stopped},
    ),
    mutant(
        "philly",
        "preemption",
        "jobs are stopped for a job above quota too",
        killed_by="test_only_borrowed_gpus_are_taken_back",
        replace={f"{PHILLY}:VirtualClusters._take_back": taken_back_for_any_job},
    ),
    mutant(
        "philly",
        "preemption in a busy cluster only",
        "jobs are stopped in a half-empty cluster too",
        killed_by="test_a_busy_cluster_only",
        options={"preempt_above": 0.0},
    ),
    mutant(
        "philly",
        "retries",
        "a job that fails as soon as it runs is tried again",
        killed_by="test_fast_failures_are_not_retried",
        options={"fast_failure": 0.0},
    ),
    mutant(
        "philly",
        "retries",
        "no failed job is tried again",
        killed_by="test_fast_failures_are_not_retried",
        options={"fast_failure": 1e9},
    ),
)


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


@claim("philly", "locality is relaxed one level at a time: one node, then one rack, then any place")
def test_locality_is_relaxed_level_by_level() -> None:
    jobs = four_free_on_each(split=2.0)

    def check(result: Run) -> None:
        assert result.wait("gang") == [12 * MINUTE]  # three retries for each level

    racks = cluster(nodes=2, gpus=8, racks=2)
    tells_apart(check, run(jobs, racks, "philly"), run(jobs, racks, "fifo"))


@claim("philly", "idle GPUs go to the virtual cluster that holds the least of its quota")
def test_idle_gpus_are_shared_by_quota() -> None:
    on = cluster(nodes=1, gpus=8, tenants=[Tenant("A", quota=2), Tenant("B", quota=6)])
    jobs = [job(f"{tenant}{i}", hours=1, tenant=tenant) for tenant in "AB" for i in range(8)]

    def check(result: Run) -> None:
        starts = zip(result.jobs.id, result.first_start(), strict=True)
        assert sorted(name for name, start in starts if start == 0) == [
            *(f"A{i}" for i in range(2)),
            *(f"B{i}" for i in range(6)),
        ]

    tells_apart(check, run(jobs, on, "philly"), run(jobs, on, "fifo"))


@claim("philly", "a job that does not fit is overtaken by a later one of its virtual cluster that fits")
def test_a_job_that_does_not_fit_is_overtaken() -> None:
    jobs = [
        job("runs", gpus=4, hours=1),
        job("wide", gpus=8, hours=1, at=60),
        job("small", gpus=2, hours=1, at=120),
    ]

    def check(result: Run) -> None:
        assert result.start("small") == 120

    one = cluster(nodes=1, gpus=8)
    tells_apart(check, run(jobs, one, "philly"), run(jobs, one, "fifo"))


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


@claim(
    "philly",
    "only borrowed GPUs are taken back, and only for a job within its quota",
)
def test_only_borrowed_gpus_are_taken_back() -> None:
    quotas = [Tenant("A", quota=4), Tenant("B", quota=4), Tenant("C", quota=8)]
    on = cluster(nodes=2, gpus=8, tenants=quotas)
    jobs = [
        *[job(f"a{i}", gpus=4, hours=2, at=i, tenant="A") for i in range(2)],  # the second borrows
        *[job(f"c{i}", gpus=4, hours=2, at=2 + i, tenant="C") for i in range(2)],  # newer, and within quota
        job("c2", gpus=4, hours=2, at=300, tenant="C"),  # above quota
        job("b", gpus=4, hours=1, at=600, tenant="B"),  # within quota
    ]

    def check(result: Run) -> None:
        assert result.start("b") == 600
        assert result.start("c2") > 3600
        stopped = [name for name, stops in zip(result.jobs.id, result.jobs.stops, strict=True) if stops]
        assert stopped == ["a1"]

    tells_apart(check, run(jobs, on, "philly"), run(jobs, on, "fifo"))


@claim(
    "philly",
    "in a cluster that is not busy no job is stopped, though a virtual cluster below quota finds no node",
)
def test_a_busy_cluster_only() -> None:
    """8 of 16 GPUs are in use, and B wants a whole node."""
    on = cluster(nodes=2, gpus=8, tenants=[Tenant("A", quota=4), Tenant("B", quota=12)])
    jobs = [
        job("a1", gpus=4, seconds=900, tenant="A"),
        job("a2", gpus=4, seconds=100, tenant="A"),
        job("a3", gpus=4, seconds=900, tenant="A"),
        job("b", gpus=8, seconds=10, at=150, tenant="B"),
    ]

    def check(result: Run) -> None:
        assert sum(result.jobs.stops) == 0
        assert result.start("b") == 900

    busy_or_not = run(jobs, on, "philly", relax_after=100, preempt_above=0.0)
    tells_apart(check, run(jobs, on, "philly", relax_after=100), busy_or_not)


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
