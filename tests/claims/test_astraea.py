"""ASTRAEA: every tenant, and every job of it, receives the same part of what it deserves in the long run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest

from dovetail.model.cluster import Cluster, Tenant
from dovetail.model.grant import load_of
from dovetail.model.job import Job
from dovetail.model.view import JobView
from dovetail.policies.astraea.long_term_fairness import (
    Account,
    Accounts,
    Request,
    Requests,
    lease_order,
    with_shares,
)
from dovetail.sim.run import Run
from dovetail.testing.build import cluster, job, run
from dovetail.testing.claims import claim, tells_apart
from dovetail.testing.mutants import mutant

HOUR = 3600.0
DAY = 24 * HOUR
LEASE = 600.0
EIGHT = cluster(nodes=1, gpus=8, tenants=[Tenant("A"), Tenant("B")])


def one_tenant(jobs: Iterable[JobView], speeds: Mapping[str, Any]) -> Requests:
    return {"": [Request(job.id, job.shape.load, tuple(speeds[job.id])) for job in jobs]}


def by_arrival(
    accounts: Accounts,
    requests: Requests,
    room: Mapping[str, int],
    lease: int,
    given: Mapping[str, float] | None = None,
) -> list[str]:
    alike = Accounts(accounts.at, accounts.tenants, dict.fromkeys(accounts.jobs, Account()))
    return lease_order(alike, requests, room, lease, given)


def as_asked(accounts: Accounts, requests: Requests, *args: Any) -> Accounts:
    found = with_shares(accounts, requests, *args)
    loads = {request.id: float(request.load) for mine in requests.values() for request in mine}
    jobs = {id: account._replace(share=loads[id]) for id, account in found.jobs.items()}
    return Accounts(found.at, found.tenants, jobs)


def unweighted(
    accounts: Accounts, requests: Requests, amount: float, weights: Mapping[str, float], limits: Any
) -> Accounts:
    return with_shares(accounts, requests, amount, dict.fromkeys(weights, 1.0), limits)


def without_charge(
    accounts: Accounts,
    requests: Requests,
    room: Mapping[str, int],
    lease: int,
    given: Mapping[str, float] | None = None,
) -> list[str]:
    """One tenant after the other, each with all its jobs."""
    tenants = sorted(requests, key=lambda name: accounts.tenants[name].fairness(lease))
    return [
        id for name in tenants for id in lease_order(accounts, {name: requests[name]}, room, lease, given)
    ]


def received(account: Account, time: int = 0, given: float = 0.0) -> float:
    return account.had + given * time


def all_running(jobs: Iterable[JobView], now: int, *, lease_over: bool) -> list[JobView]:
    return [job for job in jobs if job.spots is not None]


ASTRAEA = "dovetail.policies.astraea.policy"
LTGF = "dovetail.policies.astraea.long_term_fairness"
MUTANTS = (
    mutant(
        "astraea",
        "fairness of tenants",
        "all jobs are of one tenant",
        killed_by="test_splitting_gains_nothing",
        replace={f"{ASTRAEA}:_requests": one_tenant},
    ),
    mutant(
        "astraea",
        "fairness of tenants",
        "weights do not count",
        killed_by="test_tenants_receive_by_weight",
        replace={f"{ASTRAEA}:with_shares": unweighted},
    ),
    mutant(
        "astraea",
        "fairness of jobs",
        "a tenant's jobs go in order of arrival",
        killed_by="test_jobs_of_a_tenant_receive_the_same",
        replace={f"{ASTRAEA}:lease_order": by_arrival},
    ),
    mutant(
        "astraea",
        "fairness of jobs",
        "a job deserves what it asks for",
        killed_by="test_jobs_of_a_tenant_receive_the_same",
        replace={f"{ASTRAEA}:with_shares": as_asked},
    ),
    mutant(
        "astraea",
        "the long term",
        "what was received is forgotten at every decision",
        killed_by="test_jobs_of_a_tenant_receive_the_same",
        replace={f"{ASTRAEA}:accrued": lambda accounts, now: Accounts(now)},
    ),
    mutant(
        "astraea",
        "deserved since the arrival",
        "received GPU-time alone counts",
        killed_by="test_a_late_tenant_receives_its_share_from_then_on",
        replace={f"{LTGF}:Account.fairness": received},
    ),
    mutant(
        "astraea",
        "charged for each job",
        "the first tenant starts all its jobs",
        killed_by="test_tenants_run_side_by_side",
        replace={f"{ASTRAEA}:lease_order": without_charge},
    ),
    mutant(
        "astraea",
        "leases end",
        "a running job keeps its devices",
        killed_by="test_jobs_of_a_tenant_receive_the_same",
        replace={f"{ASTRAEA}:staying": all_running},
    ),
)


def seen(jobs: Sequence[Job], on: Cluster, policy: str, until: float, **options: Any) -> Run:
    """What a policy does up to a time; something comes then, so that all is counted up to it."""
    return run([*jobs, job("the end", seconds=1, at=until)], on, policy, until=until, **options)


def gpu_time(result: Run, prefix: str, since: float = 0.0) -> float:
    """GPU-seconds that jobs of a name had from a time on."""
    had = sum(
        max(min(s.end, result.until) - max(s.start, since * 1e6), 0) * load_of(s.spots)
        for s in result.stretches
        if s.job.startswith(prefix)
    )
    return had / 1e9


TWO_TENANTS = cluster(nodes=2, gpus=8, tenants=[Tenant("A"), Tenant("B")])


@claim(
    "astraea",
    "one tenant floods the cluster with gangs: over a day both receive the same part of what they deserve",
)
def test_a_flood_of_gangs_takes_nothing_from_others() -> None:
    """A could always use all 16 GPUs, B 4: they deserve 12 and 4. A's gangs take 8 or 16 at a time."""
    flood = [job(f"A{i}", gpus=8, hours=3, tenant="A", at=max(0, i - 20) * 600) for i in range(160)]
    few = [job(f"B{i}", hours=30, tenant="B", at=300 + i) for i in range(4)]

    def ltgf(result: Run) -> tuple[float, float]:
        return gpu_time(result, "A") / (12 * DAY), gpu_time(result, "B") / (4 * DAY)

    def check(result: Run) -> None:
        parts = ltgf(result)
        assert min(parts) / max(parts) >= 0.8

    ours = seen([*flood, *few], TWO_TENANTS, "astraea", DAY)
    for other in ("tiresias-l", "fifo"):
        theirs = seen([*flood, *few], TWO_TENANTS, other, DAY)
        tells_apart(check, ours, theirs)
        assert min(ltgf(theirs)) / max(ltgf(theirs)) < 0.1
    # Sixteen for A in a fifth of the leases, eight in the others beside four for B: there is no more.
    assert ltgf(ours) == pytest.approx((0.8, 0.8), rel=0.01)


def tenants_day(policy: str, count: int, gpus: int) -> float:
    """What tenant A has in a day with so many jobs of so many GPUs, beside B with eight jobs of two."""
    mine = [job(f"A{i}", gpus=gpus, hours=30, tenant="A") for i in range(count)]
    others = [job(f"B{i}", gpus=2, hours=30, tenant="B") for i in range(8)]
    line = [each for pair in zip(mine, others, strict=False) for each in pair]
    line += [*mine[len(others) :], *others[len(mine) :]]
    return gpu_time(seen(line, TWO_TENANTS, policy, DAY), "A") / HOUR


@claim("astraea", "a tenant gains nothing by asking for more GPUs a job")
def test_asking_for_more_gains_nothing() -> None:
    def check(policy: str) -> None:
        honest = tenants_day(policy, 4, 4)
        assert max(tenants_day(policy, 4, gpus) for gpus in (8, 16)) <= 1.02 * honest

    tells_apart(check, "astraea", "tiresias-l")
    tells_apart(check, "astraea", "fifo")
    assert tenants_day("astraea", 4, 16) == tenants_day("astraea", 4, 4) == 192


@claim("astraea", "a tenant gains nothing by splitting its jobs, where fairness between jobs rewards it")
def test_splitting_gains_nothing() -> None:
    def check(policy: str) -> None:
        honest = tenants_day(policy, 4, 4)
        assert max(tenants_day(policy, count, gpus) for count, gpus in ((8, 2), (16, 1))) <= 1.02 * honest

    tells_apart(check, "astraea", "themis")
    assert tenants_day("astraea", 16, 1) == 192


@claim("astraea", "inside a tenant every job receives the same GPU-time, whatever it asks for")
def test_jobs_of_a_tenant_receive_the_same() -> None:
    """8 GPUs: the wide job runs alone in a third of the leases, the two others together in the rest."""
    jobs = [
        job("wide", gpus=8, hours=30, tenant="A"),
        *(job(f"half{i}", gpus=4, hours=30, tenant="A") for i in range(2)),
    ]

    def check(result: Run) -> None:
        had = [gpu_time(result, name) / HOUR for name in ("wide", "half0", "half1")]
        assert had == pytest.approx([64, 64, 64], abs=8 * LEASE / HOUR)  # a lease more or less

    tells_apart(check, seen(jobs, EIGHT, "astraea", DAY), seen(jobs, EIGHT, "fifo", DAY))


@claim("astraea", "tenants receive GPU-time by weight")
def test_tenants_receive_by_weight() -> None:
    on = cluster(nodes=1, gpus=8, tenants=[Tenant("A", weight=3.0), Tenant("B")])
    jobs = [job(f"{tenant}{i}", gpus=8, hours=30, tenant=tenant) for i in range(2) for tenant in "AB"]

    def check(result: Run) -> None:
        had = [gpu_time(result, tenant) / HOUR for tenant in "AB"]
        assert had == pytest.approx([144, 48], abs=8 * LEASE / HOUR)

    tells_apart(check, seen(jobs, on, "astraea", DAY), seen(jobs, on, "tiresias-l", DAY))


@claim("astraea", "a tenant that comes 12 hours later receives its half from then on, and nothing for before")
def test_a_late_tenant_receives_its_share_from_then_on() -> None:
    jobs = [
        *(job(f"A{i}", gpus=8, hours=30, tenant="A") for i in range(2)),
        *(job(f"B{i}", gpus=8, hours=30, tenant="B", at=DAY / 2) for i in range(2)),
    ]

    def check(result: Run) -> None:
        had = [gpu_time(result, tenant, since=DAY / 2) / HOUR for tenant in "AB"]
        assert had == pytest.approx([48, 48], abs=8 * LEASE / HOUR)

    tells_apart(check, seen(jobs, EIGHT, "astraea", DAY), seen(jobs, EIGHT, "tiresias-l", DAY))


@claim("astraea", "where jobs are small both tenants hold their half in every lease")
def test_tenants_run_side_by_side() -> None:
    jobs = [job(f"{tenant}{i}", hours=30, tenant=tenant) for tenant in "AB" for i in range(8)]

    def check(result: Run) -> None:
        for lease in range(1, 18):
            at = (lease + 0.5) * LEASE * 1e6
            now = [s for s in result.stretches if s.start <= at < s.end]
            assert sum(s.job.startswith("A") for s in now) == len(now) / 2 == 4

    tells_apart(check, seen(jobs, EIGHT, "astraea", 3 * HOUR), seen(jobs, EIGHT, "fifo", 3 * HOUR))
