"""Kueue: workloads are admitted whole, against quotas that a cohort shares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from dovetail.mechanisms.place.gpu_types import of_type
from dovetail.mechanisms.quota.tenant_quota import over_quota
from dovetail.model.cluster import Cluster, Tenant, parse_cluster
from dovetail.model.grant import nodes_of
from dovetail.model.job import Shape
from dovetail.policies.kubernetes import k8s_default
from dovetail.sim.run import Run
from dovetail.testing.build import cluster, job, run
from dovetail.testing.claims import claim, tells_apart
from dovetail.testing.mutants import mutant

FOUR = cluster(nodes=1, gpus=4)
COHORT = [Tenant("all"), Tenant("A", parent="all", quota=4), Tenant("B", parent="all", quota=4)]
SHARED = cluster(nodes=1, gpus=8, tenants=COHORT)
BORROWERS = [job(f"a{i}", gpus=2, seconds=1_000, at=i, tenant="A") for i in range(4)]
OWNER = job("b", gpus=4, seconds=100, at=10, tenant="B")


def of_its_own(
    cluster: Cluster, quota: Mapping[str, int], used: Mapping[str, int], tenant: str, load: int
) -> str | None:
    return tenant if used.get(tenant, 0) + load > quota.get(tenant, 0) else None


def without_borrowing_limits(
    cluster: Cluster, quota: Mapping[str, int], used: Mapping[str, int], tenant: str, load: int
) -> str | None:
    tenants = {name: replace(each, borrow=None) for name, each in cluster.tenants.items()}
    return over_quota(Cluster(cluster.nodes, cluster.links, tenants), quota, used, tenant, load)


def without_cohorts(
    cluster: Cluster, quota: Mapping[str, int], used: Mapping[str, int], tenant: str, load: int
) -> str | None:
    found = over_quota(cluster, quota, used, tenant, load)
    return found if found == tenant else None


def started_nothing_now(cycle: Any, queue: str) -> bool:
    """Any queue, but not one that has just evicted others: two queues would evict each other for ever."""
    view = cycle.view
    return all(job.tenant != queue or job.started_at != view.now for job in view.running.values())


def any_type(cluster: Cluster, shape: Shape) -> Sequence[Shape]:
    return (shape,)


def in_order_of_the_cluster(cluster: Cluster, shape: Shape) -> Sequence[Shape]:
    names = [kind.name for kind in cluster.types if not shape.types or kind.name in shape.types]
    return [of_type(shape, name) for name in names] if shape.each else (shape,)


KUEUE = "dovetail.policies.kueue"
PODS = "dovetail.mechanisms.place.pods"
MUTANTS = (
    mutant(
        "kueue",
        "admission of whole workloads",
        "pods are bound one by one",
        killed_by="test_gangs_end_the_deadlock",
        factory=lambda **_: k8s_default(),
    ),
    mutant(
        "kueue",
        "quota",
        "quotas are ignored",
        killed_by="test_quota_of_the_cohort",
        replace={f"{KUEUE}:over_quota": lambda *_: None},
    ),
    mutant(
        "kueue",
        "borrowing",
        "no queue borrows",
        killed_by="test_reclaim_of_borrowed_quota",
        replace={f"{KUEUE}:over_quota": of_its_own},
    ),
    mutant(
        "kueue",
        "borrowing",
        "borrowing limits are ignored",
        killed_by="test_borrowing_limit",
        replace={f"{KUEUE}:over_quota": without_borrowing_limits},
    ),
    mutant(
        "kueue",
        "borrowing",
        "queues borrow from outside their cohort",
        killed_by="test_quota_of_the_cohort",
        replace={f"{KUEUE}:over_quota": without_cohorts},
    ),
    mutant(
        "kueue",
        "queues within their quota go first",
        "the first to arrive goes first, of any queue",
        killed_by="test_queue_within_its_quota_goes_first",
        replace={f"{KUEUE}:_Cycle._rank": lambda self, job: 0},
    ),
    mutant(
        "kueue",
        "queues within their quota go first",
        "queues go by name",
        killed_by="test_queue_within_its_quota_goes_first",
        replace={f"{KUEUE}:_Cycle._rank": lambda self, job: job.tenant},
    ),
    mutant(
        "kueue",
        "reclaim",
        "no borrower is evicted",
        killed_by="test_reclaim_of_borrowed_quota",
        options={"reclaim": False},
    ),
    mutant(
        "kueue",
        "reclaim",
        "the earliest workload is evicted first",
        killed_by="test_reclaim_of_borrowed_quota",
        replace={f"{KUEUE}:latest_first": lambda job: (job.priority, job.started_at, job.seq)},
    ),
    mutant(
        "kueue",
        "reclaim",
        "workloads of queues within their quota are evicted too",
        killed_by="test_reclaim_spares_queues_within_their_quota",
        replace={f"{KUEUE}:_Cycle._borrows": started_nothing_now},
    ),
    mutant(
        "kueue",
        "preemption inside a queue",
        "no workload of lower priority is evicted",
        killed_by="test_preemption_inside_a_queue",
        options={"preempt": False},
    ),
    mutant(
        "kueue",
        "queueing strategies",
        "a strict queue passes over its head",
        killed_by="test_strategies",
        options={"strategy": "best-effort"},
    ),
    mutant(
        "kueue",
        "queueing strategies",
        "a best-effort queue waits behind its head",
        killed_by="test_strategies",
        options={"strategy": "strict"},
    ),
    mutant(
        "kueue",
        "ready timeout",
        "a workload waits for its pods for ever",
        killed_by="test_ready_timeout",
        options={"ready_timeout": 1e9},
    ),
    mutant(
        "kueue",
        "topology-aware scheduling",
        "a workload holds what it got",
        killed_by="test_whole_or_nothing",
        options={"whole": False},
    ),
    mutant(
        "kueue",
        "one flavour",
        "pods of a workload are on any GPU types",
        killed_by="test_one_flavour",
        replace={f"{KUEUE}:by_type": any_type, f"{PODS}:by_type": any_type},
    ),
    mutant(
        "kueue",
        "one flavour",
        "the missing pods of a workload are on any GPU types",
        killed_by="test_missing_pods_have_the_same_flavour",
        replace={f"{KUEUE}:of_type": lambda shape, kind: shape},
    ),
    mutant(
        "kueue",
        "order of flavours",
        "the GPU types are tried in the order of the cluster",
        killed_by="test_flavours_are_tried_in_the_order_of_the_request",
        replace={f"{KUEUE}:by_type": in_order_of_the_cluster, f"{PODS}:by_type": in_order_of_the_cluster},
    ),
)


def stops_of(result: Run) -> dict[str, int]:
    return dict(zip(result.jobs.id, result.jobs.stops, strict=True))


def types_of(result: Run, name: str) -> set[str]:
    """The GPU types that a job ever held."""
    nodes = result.cluster.nodes
    return {nodes[n].type.name for s in result.stretches if s.job == name for n in nodes_of(s.spots)}


@claim("kueue", "a workload is admitted whole: one of the two runs, then the other")
def test_gangs_end_the_deadlock() -> None:
    gangs = [job("first", gpus=4, seconds=100), job("second", gpus=4, seconds=100)]

    def check(result: Run) -> None:
        assert result.stalled == []
        assert sorted(result.jct()) == [100, 200]

    tells_apart(check, run(gangs, FOUR, "kueue"), run(gangs, FOUR, "k8s-default"))


@claim(
    "kueue", "borrowed quota is reclaimed, the latest job first, and no queue within its quota loses a job"
)
def test_reclaim_of_borrowed_quota() -> None:
    def check(result: Run) -> None:
        assert [result.start(f"a{i}") for i in range(4)] == [0, 1, 2, 3]  # A borrows four of B's
        assert result.start("b") == 10
        assert stops_of(result) == {"a0": 0, "a1": 0, "a2": 1, "a3": 1, "b": 0}
        assert result.finished == 5

    jobs = [*BORROWERS, OWNER]
    off = run(jobs, SHARED, "kueue", reclaim=False)
    tells_apart(check, run(jobs, SHARED, "kueue"), off)
    assert off.start("b") == 1_001  # it waits until two of A's are done
    assert off.preemptions == 0


@claim("kueue", "a queue within its quota loses no workload, though it was admitted last of all")
def test_reclaim_spares_queues_within_their_quota() -> None:
    tenants = [Tenant("all"), *(Tenant(n, parent="all", quota=q) for n, q in (("A", 2), ("B", 4), ("C", 2)))]
    jobs = [*BORROWERS[:3], job("c", gpus=2, seconds=1_000, at=5, tenant="C"), OWNER]

    def check(result: Run) -> None:
        assert result.start("b") == 10
        assert stops_of(result) == {"a0": 0, "a1": 1, "a2": 1, "c": 0, "b": 0}

    three = cluster(nodes=1, gpus=8, tenants=tenants)
    urgent = [*jobs[:-1], job("b", gpus=4, seconds=100, at=10, tenant="B", priority=5)]
    tells_apart(check, run(jobs, three, "kueue"), run(urgent, three, "priority"))


@claim("kueue", "a borrowing limit holds however idle the cohort is")
def test_borrowing_limit() -> None:
    limited = [COHORT[0], Tenant("A", parent="all", quota=4, borrow=2), COHORT[2]]

    def check(result: Run) -> None:
        assert result.start("a2") == 2
        assert result.start("a3") == 1_000

    tells_apart(
        check,
        run(BORROWERS, cluster(nodes=1, gpus=8, tenants=limited), "kueue"),
        run(BORROWERS, SHARED, "kueue"),
    )


@claim("kueue", "a queue borrows no more than its cohort leaves unused, however idle the cluster is")
def test_quota_of_the_cohort() -> None:
    jobs = [*BORROWERS, job("a4", gpus=2, seconds=1_000, at=4, tenant="A")]

    def check(result: Run) -> None:
        assert [result.start(f"a{i}") for i in range(5)] == [0, 1, 2, 3, 1_000]

    twelve = cluster(nodes=1, gpus=12, tenants=COHORT)
    tells_apart(check, run(jobs, twelve, "kueue"), run(jobs, twelve, "k8s-default"))


@claim(
    "kueue",
    "of two waiting workloads that of a queue within its quota is admitted first, though it came later",
)
def test_queue_within_its_quota_goes_first() -> None:
    jobs = [job(f"a{i}", gpus=2, seconds=end, tenant="A") for i, end in enumerate((1_000, 1_000, 100, 100))]
    jobs += [job("borrower", gpus=4, seconds=100, at=10, tenant="A")]
    jobs += [job("owner", gpus=4, seconds=100, at=20, tenant="B")]

    def check(result: Run) -> None:  # at 100 s four GPUs fall free, and A holds its quota
        assert (result.start("owner"), result.start("borrower")) == (100, 200)
        assert result.preemptions == 0

    # Without reclaim, by which the owner would get its quota even if it were admitted second.
    ours = run(jobs, SHARED, "kueue", reclaim=False)
    tells_apart(check, ours, run(jobs, SHARED, "fifo", discipline="skip"))


@claim(
    "kueue", "inside a queue a workload evicts those of lower priority, the latest first, and none of its own"
)
def test_preemption_inside_a_queue() -> None:
    alone = cluster(nodes=1, gpus=8, tenants=[Tenant("A", quota=4)])
    jobs = [job(f"low{i}", gpus=2, seconds=1_000, at=i, tenant="A") for i in range(2)]
    jobs += [job("equal", gpus=2, seconds=100, at=5, tenant="A")]
    jobs += [job("high", gpus=2, seconds=100, at=10, tenant="A", priority=5)]

    def check(result: Run) -> None:
        assert result.start("high") == 10
        assert stops_of(result) == {"low0": 0, "low1": 1, "equal": 0, "high": 0}
        assert result.start("equal") > 100

    tells_apart(check, run(jobs, alone, "kueue"), run(jobs, alone, "kueue", preempt=False))


@claim("kueue", "a strict queue waits behind its head; a best-effort queue passes over it")
def test_strategies() -> None:
    alone = cluster(nodes=1, gpus=8, tenants=[Tenant("A", quota=4)])
    jobs = [
        job("running", gpus=3, seconds=100, tenant="A"),
        job("head", gpus=2, seconds=100, at=1, tenant="A"),
        job("small", gpus=1, seconds=10, at=2, tenant="A"),
    ]

    def check(result: Run) -> None:
        assert result.start("small") >= result.start("head") == 100

    best_effort = run(jobs, alone, "kueue")
    assert (best_effort.start("small"), best_effort.start("head")) == (2, 100)
    tells_apart(check, run(jobs, alone, "kueue", strategy="strict"), best_effort)


@claim(
    "kueue",
    "a workload that cannot start all its pods is requeued after a timeout, and its GPUs serve others",
)
def test_ready_timeout() -> None:
    jobs = [
        job("n0", gpus=1, seconds=2_000),
        job("n1", gpus=1, seconds=2_000),
        job("pairs", shape=Shape(tasks=3, each=2), seconds=10, at=1),
        job("later", gpus=4, seconds=10, at=400),
    ]
    two = cluster(nodes=2, gpus=4)  # three GPUs are free on each: six, but only two pairs of three fit

    def check(result: Run) -> None:
        assert result.start("pairs") == 1
        assert result.start("later") == 400
        assert result.finished == 4

    tells_apart(check, run(jobs, two, "kueue"), run(jobs, two, "kueue", ready_timeout=100_000.0))


@claim("kueue", "under topology-aware scheduling a workload holds nothing until all of it has a place")
def test_whole_or_nothing() -> None:
    """Of four nodes one is free; five GPUs are, but no two nodes for the two halves of the wide job."""
    small = [job(f"small{i}", gpus=1, seconds=900) for i in range(3)]
    wide = job("wide", seconds=100, at=1, shape=Shape(tasks=2, each=2))
    late = job("late", seconds=50, at=2, shape=Shape(tasks=1, each=2))
    four = cluster(nodes=4, gpus=2)

    def check(result: Run) -> None:
        assert result.start("late") == 2  # no workload holds the free node while it waits for another

    jobs = [*small, wide, late]
    tells_apart(
        check,
        run(jobs, four, "kueue", whole=True),
        run(jobs, four, "kueue", ready_timeout=1000),
    )


@claim("kueue", "a workload has one flavour: with two GPUs free of each type it waits for four of one")
def test_one_flavour() -> None:
    jobs = [job("a", gpus=2, seconds=100, types=["A100"]), job("v", gpus=2, seconds=200, types=["V100"])]
    jobs += [job("gang", gpus=4, seconds=50, at=1)]
    mixed = parse_cluster("1x4:A100,1x4:V100")

    def check(result: Run) -> None:
        assert result.start("gang") == 100
        assert types_of(result, "gang") == {"A100"}

    tells_apart(check, run(jobs, mixed, "kueue"), run(jobs, mixed, "k8s-default"))


@claim("kueue", "the missing pods of a workload get the flavour of the others, though another one is free")
def test_missing_pods_have_the_same_flavour() -> None:
    """Six A100 are free, which is enough; but three on each of two nodes hold two pairs of three."""
    jobs = [job("a0", seconds=100, types=["A100"]), job("a1", seconds=200, types=["A100"])]
    jobs += [job("pairs", shape=Shape(tasks=3, each=2), seconds=10, at=1)]
    mixed = parse_cluster("2x4:A100,1x4:V100")

    def check(result: Run) -> None:
        assert (result.start("pairs"), result.finish("pairs")) == (1, 110)
        assert types_of(result, "pairs") == {"A100"}

    tells_apart(check, run(jobs, mixed, "kueue"), run(jobs, mixed, "k8s-default"))


@claim("kueue", "flavours are tried in the order of the request, and the next one when the first has no room")
def test_flavours_are_tried_in_the_order_of_the_request() -> None:
    jobs = [job(name, gpus=4, seconds=100, types=["V100", "A100"]) for name in ("first", "second")]
    mixed = parse_cluster("1x4:A100,1x4:V100")

    def check(result: Run) -> None:
        assert [types_of(result, name) for name in ("first", "second")] == [{"V100"}, {"A100"}]
        assert (result.start("first"), result.start("second")) == (0, 0)

    tells_apart(check, run(jobs, mixed, "kueue"), run(jobs, mixed, "k8s-default"))
