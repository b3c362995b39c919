"""Pods without gangs, and the two ways to have gangs on Kubernetes."""

from __future__ import annotations

import pytest

from dovetail.model.cluster import Tenant
from dovetail.model.grant import nodes_of
from dovetail.sim.run import Run
from dovetail.testing.build import Profile, Shape, cluster, job, run
from dovetail.testing.claims import claim, tells_apart

FOUR = cluster(nodes=1, gpus=4)
TWO_GANGS = [job("first", gpus=4, seconds=100), job("second", gpus=4, seconds=100)]


def both_finish(result: Run) -> None:
    assert result.stalled == []
    assert sorted(result.jct()) == [100, 200]


@claim("k8s-default", "without gangs two jobs can each hold half of what both need, for ever")
def test_deadlock() -> None:
    def check(result: Run) -> None:
        assert result.finished == 0
        assert result.stalled == ["first", "second"]
        halves = [sum(spot[1].bit_count() for spot in stretch.spots) for stretch in result.stretches[-2:]]
        assert halves == [2, 2]

    tells_apart(check, run(TWO_GANGS, FOUR, "k8s-default"), run(TWO_GANGS, FOUR, "volcano"))


@pytest.mark.parametrize("system", ["volcano", "kueue"])
@claim("volcano", "a gang gets all its pods or none: one of the two runs, then the other")
@claim("kueue", "a workload is admitted whole: one of the two runs, then the other")
def test_gangs_end_the_deadlock(system: str) -> None:
    tells_apart(both_finish, run(TWO_GANGS, FOUR, system), run(TWO_GANGS, FOUR, "k8s-default"))


@claim(
    "k8s-default",
    "spreading eight single-GPU pods over eight nodes leaves no node empty; packing leaves seven",
)
def test_spread_leaves_no_empty_node() -> None:
    jobs = [job(f"pod{i}", hours=1) for i in range(8)]

    def check(result: Run) -> None:
        used = set().union(*(nodes_of(stretch.spots) for stretch in result.stretches))
        assert len(used) == 8

    eight = cluster(nodes=8, gpus=8)
    packed = run(jobs, eight, "k8s-default", score="pack")
    tells_apart(check, run(jobs, eight, "k8s-default"), packed)
    assert {node for stretch in packed.stretches for node in nodes_of(stretch.spots)} == {0}


@claim(
    "k8s-default", "pods of higher priority evict single pods, and leave the rest of a gang idle on its GPUs"
)
def test_eviction_breaks_gangs() -> None:
    jobs = [job("gang", gpus=4, seconds=100), job("urgent", gpus=1, seconds=50, at=10, priority=5)]

    def check(result: Run) -> None:
        assert result.start("urgent") == 10
        assert result.finish("gang") == 150  # it stood still while a pod was missing
        held = max(s.end for s in result.stretches if s.job == "gang" and len(s.spots) and s.end <= 60e6)
        assert held == 60e6  # but kept the other three

    tells_apart(check, run(jobs, FOUR, "k8s-default"), run(jobs, FOUR, "k8s-default", preempt=False))


def test_back_off_delays_the_retry() -> None:
    jobs = [job("holder", gpus=4, seconds=1.2), job("one", at=0.1, seconds=1), job("two", at=0.9, seconds=1)]
    result = run(jobs, FOUR, "k8s-default", backoff=1.0)
    assert result.start("one") == 1.2  # failed at 0.1, back-off over at 1.1
    assert result.start("two") == 1.9  # failed at 0.9: room at 1.2, but its back-off ends at 1.9


@claim("volcano", "with fewer pods than all a job starts early and grows as GPUs fall free")
def test_elastic_gang_grows() -> None:
    jobs = [
        job("holder", gpus=2, seconds=100),
        job("elastic", gpus=4, seconds=200, at=0.5, least=2, profile=Profile()),
    ]

    def check(result: Run) -> None:
        assert result.start("elastic") == 1  # the next session
        # Two pods of four for 99 s do 49.5 s of the work; four do the rest from 100 s on.
        assert result.finish("elastic") == pytest.approx(250.5)

    rigid = [jobs[0], job("elastic", gpus=4, seconds=200, at=0.5, profile=Profile())]
    tells_apart(check, run(jobs, FOUR, "volcano"), run(rigid, FOUR, "volcano"))


@claim("volcano", "pods beyond a gang are evicted for a queue below its share; gangs are not broken")
def test_reclaim_takes_surplus_only() -> None:
    tenants = [Tenant("A"), Tenant("B")]
    jobs = [
        job("grown", gpus=8, seconds=800, tenant="A", least=4, profile=Profile()),
        job("entitled", gpus=4, seconds=100, at=10, tenant="B"),
    ]

    def check(result: Run) -> None:
        assert result.start("entitled") == 10
        assert result.preemptions == 0
        assert result.finish("grown") == pytest.approx(850)  # half speed for 100 s

    eight = cluster(nodes=1, gpus=8, tenants=tenants)
    tells_apart(check, run(jobs, eight, "volcano"), run(jobs, eight, "volcano", reclaim=False))


@claim("volcano", "queues get what their weights deserve: six GPUs of eight for weight three against one")
def test_queue_weights() -> None:
    jobs = [job(f"{name}{i}", seconds=100, tenant=name) for i in range(8) for name in ("a", "b")]

    def check(result: Run) -> None:
        first = [name for name, start in zip(result.jobs.id, result.jobs.start, strict=True) if start == 0]
        assert sum(name.startswith("a") for name in first) == 6

    weighted = cluster(nodes=1, gpus=8, tenants=[Tenant("a", weight=3.0), Tenant("b")])
    tells_apart(check, run(jobs, weighted, "volcano"), run(jobs, cluster(nodes=1, gpus=8), "volcano"))


COHORT = [Tenant("all"), Tenant("A", parent="all", quota=4), Tenant("B", parent="all", quota=4)]
SHARED = cluster(nodes=1, gpus=8, tenants=COHORT)
BORROWERS = [job(f"a{i}", gpus=2, seconds=1_000, at=i, tenant="A") for i in range(4)]
OWNER = job("b", gpus=4, seconds=100, at=10, tenant="B")


@claim(
    "kueue", "borrowed quota is reclaimed, the latest job first, and no queue within its quota loses a job"
)
def test_reclaim_of_borrowed_quota() -> None:
    def check(result: Run) -> None:
        assert [result.start(f"a{i}") for i in range(4)] == [0, 1, 2, 3]  # A borrows four of B's
        assert result.start("b") == 10
        stops = dict(zip(result.jobs.id, result.jobs.stops, strict=True))
        assert stops == {"a0": 0, "a1": 0, "a2": 1, "a3": 1, "b": 0}
        assert result.finished == 5

    jobs = [*BORROWERS, OWNER]
    off = run(jobs, SHARED, "kueue", reclaim=False)
    tells_apart(check, run(jobs, SHARED, "kueue"), off)
    assert off.start("b") == 1_001  # it waits until two of A's are done
    assert off.preemptions == 0


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

    tells_apart(check, run(jobs, alone, "kueue", strategy="strict"), run(jobs, alone, "kueue"))


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
