"""Dominant resource fairness on the published example and on GPUs."""

from __future__ import annotations

from dovetail.mechanisms.fair.dominant_share import NOTHING, Holdings, Vector
from dovetail.model.cluster import Tenant
from dovetail.model.units import GIB
from dovetail.policies.classic import fifo
from dovetail.sim.run import Run
from dovetail.testing.build import Shape, cluster, job, run
from dovetail.testing.claims import claim, tells_apart
from dovetail.testing.mutants import mutant

DOMINANT = "dovetail.mechanisms.fair.dominant_share:dominant"


def gpus_alone(amount: Vector, total: Vector) -> float:
    return amount[0] / total[0] if total[0] else 0.0


def sum_of_parts(amount: Vector, total: Vector) -> float:
    return sum(part / whole for part, whole in zip(amount, total, strict=True) if whole)


def without_weight(holdings: Holdings, name: str) -> float:
    most = [part / whole for part, whole in zip(holdings.of(name), holdings.total, strict=True) if whole]
    return max(most, default=0.0)


MUTANTS = (
    mutant(
        "drf",
        "the smallest share goes first",
        "the first to arrive goes first",
        killed_by="test_published_example",
        factory=lambda **_: fifo(discipline="skip"),
    ),
    mutant(
        "drf",
        "the smallest share goes first",
        "what starts in a decision counts only in the next",
        killed_by="test_published_example",
        replace={"dovetail.policies.drf:held": lambda spots: NOTHING},
    ),
    mutant(
        "drf",
        "the dominant resource",
        "GPUs alone count",
        killed_by="test_dominant_resource_decides",
        replace={DOMINANT: gpus_alone},
    ),
    mutant(
        "drf",
        "the dominant resource",
        "the shares of all resources are added up (asset fairness)",
        killed_by="test_sharing_incentive",
        replace={DOMINANT: sum_of_parts},
    ),
    mutant(
        "drf",
        "weights",
        "all tenants have the same weight",
        killed_by="test_weights",
        replace={"dovetail.mechanisms.fair.dominant_share:Holdings.dominant": without_weight},
    ),
    mutant(
        "drf",
        "shares of tenants",
        "users have equal shares, whatever their tenant",
        killed_by="test_users_add_no_share",
        options={"by": "user"},
    ),
)


def started_at_once(result: Run, prefix: str) -> int:
    jobs = result.jobs
    return sum(
        1 for name, start in zip(jobs.id, jobs.start, strict=True) if name.startswith(prefix) and start == 0
    )


@claim("drf", "9 CPU and 18 GB: A (1 CPU, 4 GB) gets three tasks, B (3 CPU, 1 GB) two, both shares 2/3")
def test_published_example() -> None:
    machine = cluster(nodes=1, gpus=0, cpus=9_000, memory=18 * GIB)
    a, b = Shape(1, 0, cpus=1_000, memory=4 * GIB), Shape(1, 0, cpus=3_000, memory=GIB)
    jobs = [job(f"a{i}", shape=a, hours=1, tenant="A") for i in range(8)]
    jobs += [job(f"b{i}", shape=b, hours=1, tenant="B") for i in range(8)]

    def check(result: Run) -> None:
        assert (started_at_once(result, "a"), started_at_once(result, "b")) == (3, 2)
        assert result.finished == 16

    tells_apart(check, run(jobs, machine, "drf"), run(jobs, machine, "fifo", discipline="skip"))


@claim("drf", "a tenant has what half of the cluster would give it: 15 tasks of 1 CPU and 1 GB, of 30 and 30")
def test_sharing_incentive() -> None:
    """The paper's example against asset fairness, which gives 6 tasks and 12: less than half to B."""
    machine = cluster(nodes=1, gpus=0, cpus=30_000, memory=30 * GIB)
    a, b = Shape(1, 0, cpus=1_000, memory=3 * GIB), Shape(1, 0, cpus=1_000, memory=GIB)
    jobs = [job(f"a{i}", shape=a, hours=1, tenant="A") for i in range(20)]
    jobs += [job(f"b{i}", shape=b, hours=1, tenant="B") for i in range(20)]

    def check(result: Run) -> None:
        assert (started_at_once(result, "a"), started_at_once(result, "b")) == (5, 15)

    tells_apart(check, run(jobs, machine, "drf"), run(jobs, machine, "fifo", discipline="skip"))


@claim("drf", "weights scale the shares: with weight 3 against 1 a tenant gets three GPUs of four")
def test_weights() -> None:
    jobs = [job(f"{name}{i}", hours=1, tenant=name) for i in range(8) for name in ("a", "b")]

    def check(result: Run) -> None:
        assert (started_at_once(result, "a"), started_at_once(result, "b")) == (6, 2)

    weighted = cluster(nodes=1, gpus=8, tenants=[Tenant("a", weight=3.0), Tenant("b")])
    tells_apart(check, run(jobs, weighted, "drf"), run(jobs, cluster(nodes=1, gpus=8), "drf"))


@claim("drf", "the share is the tenant's: with four users it gets no more than another with one")
def test_users_add_no_share() -> None:
    jobs = [job(f"many{i}", hours=1, tenant="many", user=f"u{i % 4}") for i in range(8)]
    jobs += [job(f"one{i}", hours=1, tenant="one", user="v") for i in range(8)]

    def check(result: Run) -> None:
        assert (started_at_once(result, "many"), started_at_once(result, "one")) == (4, 4)

    eight = cluster(nodes=1, gpus=8)
    tells_apart(check, run(jobs, eight, "drf"), run(jobs, eight, "drf", by="user"))


@claim(
    "drf",
    "the dominant resource counts: a tenant that uses most CPU is limited by its CPU share, not by GPUs",
)
def test_dominant_resource_decides() -> None:
    jobs = [job(f"cpu{i}", shape=Shape(1, 1, cpus=6_000), hours=1, tenant="cpu") for i in range(8)]
    jobs += [job(f"gpu{i}", shape=Shape(1, 1, cpus=1_000), hours=1, tenant="gpu") for i in range(8)]

    def check(result: Run) -> None:  # 18 of 32 cores against 5 of 8 GPUs: 0.56 and 0.63
        assert (started_at_once(result, "cpu"), started_at_once(result, "gpu")) == (3, 5)

    # Where CPU has no bound only GPUs count, and both get four.
    by_gpus = run(jobs, cluster(nodes=1, gpus=8), "drf")
    tells_apart(check, run(jobs, cluster(nodes=1, gpus=8, cpus=32_000), "drf"), by_gpus)
    assert (started_at_once(by_gpus, "cpu"), started_at_once(by_gpus, "gpu")) == (4, 4)
