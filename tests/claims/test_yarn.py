"""The capacity scheduler: guarantees, borrowing, and what is not taken back."""

from __future__ import annotations

from dovetail.model.cluster import Tenant
from dovetail.sim.run import Run
from dovetail.testing.build import Profile, cluster, job, run
from dovetail.testing.claims import claim, tells_apart

QUARTERS = cluster(nodes=1, gpus=8, tenants=[Tenant("A", quota=2), Tenant("B", quota=6)])
EIGHT = cluster(nodes=1, gpus=8)
# A alone fills the cluster; its jobs end one by one, 100 s apart, and more of them wait.
A_JOBS = [job(f"a{i}", seconds=100 + 100 * i, tenant="A") for i in range(8)]
A_MORE = [job(f"late{i}", seconds=2_000, at=10, tenant="A") for i in range(4)]
B_JOBS = [job(f"b{i}", seconds=2_000, at=20, tenant="B") for i in range(8)]


@claim(
    "yarn-cs",
    "a queue may use the whole idle cluster, but gets nothing new until the others have their guarantee",
)
def test_guarantee_is_restored_as_jobs_end() -> None:
    def check(result: Run) -> None:
        assert all(result.start(f"a{i}") == 0 for i in range(8))  # A borrows all eight
        assert [result.start(f"b{i}") for i in range(6)] == [100, 200, 300, 400, 500, 600]
        assert min(result.start(f"late{i}") for i in range(4)) >= 700  # A is down to 2 at 600, to 1 at 700
        assert result.preemptions == 0

    jobs = A_JOBS + A_MORE + B_JOBS
    tells_apart(check, run(jobs, QUARTERS, "yarn-cs"), run(jobs, EIGHT, "fifo"))


@claim(
    "yarn-cs",
    "while a gang within its queue's guarantee waits for room, no queue borrows what falls free",
)
def test_gang_within_guarantee_is_not_starved() -> None:
    gang = job("gang", gpus=4, seconds=100, at=20, tenant="B")

    def check(result: Run) -> None:
        assert result.start("gang") == 400
        assert min(result.start(f"late{i}") for i in range(4)) >= 500

    jobs = [*A_JOBS, *A_MORE, gang]
    tells_apart(check, run(jobs, QUARTERS, "yarn-cs"), run(jobs, EIGHT, "fifo", discipline="skip"))


@claim("yarn-cs", "one user of a queue stays within its guarantee by default, however idle the cluster is")
def test_user_limit_factor() -> None:
    jobs = [job(f"j{i}", seconds=100, tenant="A", user="ann") for i in range(6)]

    def check(result: Run) -> None:
        assert [result.start(f"j{i}") for i in range(6)] == [0, 0, 100, 100, 200, 200]

    tells_apart(check, run(jobs, QUARTERS, "yarn-cs"), run(jobs, QUARTERS, "yarn-cs", user_limit_factor=4.0))


@claim("yarn-cs", "with preemption the guarantee holds at once, and no queue falls below its own")
def test_inter_queue_preemption() -> None:
    def check(result: Run) -> None:
        assert all(result.start(f"b{i}") == 20 for i in range(6))
        assert result.preemptions == 6
        assert result.finish("a0") == 100  # the earliest two stay
        assert result.finish("a1") == 200

    tells_apart(
        check,
        run(A_JOBS + B_JOBS, QUARTERS, "yarn-cs", preempt=True),
        run(A_JOBS + B_JOBS, QUARTERS, "yarn-cs"),
    )


def test_maximum_capacity() -> None:
    capped = cluster(nodes=1, gpus=8, tenants=[Tenant("A", quota=2, borrow=1), Tenant("B", quota=6)])
    result = run([job(f"j{i}", seconds=10, tenant="A") for i in range(6)], capped, "yarn-cs")
    assert [result.start(f"j{i}") for i in range(6)] == [0, 0, 0, 10, 10, 10]


def test_queues_in_a_tree() -> None:
    tenants = [
        Tenant("x", weight=1.0),
        Tenant("y", weight=1.0),
        Tenant("x1", parent="x", weight=3.0),
        Tenant("x2", parent="x", weight=1.0),
    ]
    jobs = [job(f"{t}.{i}", seconds=100, tenant=t) for t in ("x1", "x2", "y") for i in range(8)]
    result = run(jobs, cluster(nodes=1, gpus=8, tenants=tenants), "yarn-cs")
    first = [name for name, start in zip(result.jobs.id, result.jobs.start, strict=True) if start == 0]
    assert [sum(name.startswith(t + ".") for name in first) for t in ("x1", "x2", "y")] == [3, 1, 4]


@claim("yarn-cs", "a gang declines to be split, for as long as its missed offers allow")
def test_locality_delay() -> None:
    two = cluster(nodes=2, gpus=4)
    jobs = [
        job("a", gpus=3, seconds=5),  # the first node, with "c"
        job("b", gpus=3, seconds=50),  # the second
        job("c", gpus=1, seconds=1_000),
        job("wide", gpus=4, seconds=100, at=1, profile=Profile(split=2.0)),
    ]  # from 5 s on three GPUs of one node and one of the other are free, from 50 s on all of the second

    def check(result: Run) -> None:
        assert result.start("wide") == 50  # together, on the second node
        assert result.finish("wide") == 150

    patient = run(jobs, two, "yarn-cs", locality_delay=200)  # 100 s with two nodes
    hasty = run(jobs, two, "yarn-cs")  # 20 s
    tells_apart(check, patient, hasty)
    assert (hasty.start("wide"), hasty.finish("wide")) == (25, 225)  # apart, at half the speed
