"""The capacity scheduler: guarantees, borrowing, and what is not taken back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from dovetail.mechanisms.order.keys import shortest
from dovetail.mechanisms.preempt.reclaim import reclaim
from dovetail.mechanisms.quota.tenant_quota import guarantees
from dovetail.model.cluster import Tenant
from dovetail.model.view import JobView, Plan
from dovetail.policies.yarn import Capacity, yarn_cs
from dovetail.sim.run import Run
from dovetail.testing.build import Profile, cluster, job, run
from dovetail.testing.claims import claim, tells_apart
from dovetail.testing.mutants import mutant

QUARTERS = cluster(nodes=1, gpus=8, tenants=[Tenant("A", quota=2), Tenant("B", quota=6)])
EIGHT = cluster(nodes=1, gpus=8)
# A alone fills the cluster; its jobs end one by one, 100 s apart, and more of them wait.
A_JOBS = [job(f"a{i}", seconds=100 + 100 * i, tenant="A") for i in range(8)]
A_MORE = [job(f"late{i}", seconds=2_000, at=10, tenant="A") for i in range(4)]
B_JOBS = [job(f"b{i}", seconds=2_000, at=20, tenant="B") for i in range(8)]


def used(this: Any, job: JobView) -> tuple[int, ...]:
    return tuple(this.plan.used.get(name, 0) for name in reversed(this.view.cluster.line(job.tenant)))


def leaf(this: Any, job: JobView) -> tuple[float, int]:
    given = this.given.get(job.tenant, float("inf"))
    return this.plan.used.get(job.tenant, 0) / given, this.place_of.get(job.tenant, -1)


def shortest_first(**options: Any) -> Capacity:
    made = yarn_cs(**options)
    assert isinstance(made, Capacity)
    return replace(made, order=shortest)


def reclaim_from_the_guarantee(
    plan: Plan,
    job: JobView,
    others: Iterable[JobView],
    may_leave: Callable[[JobView], bool],
    fits: Callable[[], bool],
) -> Sequence[JobView]:
    given = guarantees(plan.room.cluster)
    return reclaim(plan, job, others, lambda o: plan.used.get(o.tenant, 0) >= given[o.tenant], fits)


YARN = "dovetail.policies.yarn"
MUTANTS = (
    mutant(
        "yarn-cs",
        "used over guaranteed",
        "the first to arrive goes first, of any queue",
        killed_by="test_guarantee_is_restored_as_jobs_end",
        replace={f"{YARN}:_Pass._rank": lambda self, job: 0},
    ),
    mutant(
        "yarn-cs",
        "used over guaranteed",
        "the queue that uses least goes first, whatever its guarantee",
        killed_by="test_guarantee_is_restored_as_jobs_end",
        replace={f"{YARN}:_Pass._rank": used},
    ),
    mutant(
        "yarn-cs",
        "borrowing",
        "a queue stays within its guarantee",
        killed_by="test_guarantee_is_restored_as_jobs_end",
        replace={f"{YARN}:ceilings": lambda cluster, given: given},
    ),
    mutant(
        "yarn-cs",
        "borrowing",
        "queues borrow while a job within its guarantee waits",
        killed_by="test_gang_within_guarantee_is_not_starved",
        replace={f"{YARN}:_Pass._borrows": lambda self, job, load: False},
    ),
    mutant(
        "yarn-cs",
        "maximum capacity",
        "a queue borrows without an end",
        killed_by="test_maximum_capacity",
        replace={f"{YARN}:ceilings": lambda cluster, given: dict.fromkeys(given, float("inf"))},
    ),
    mutant(
        "yarn-cs",
        "a tree of queues",
        "each queue is compared with all others, wherever it stands",
        killed_by="test_idle_capacity_goes_to_siblings_first",
        replace={f"{YARN}:_Pass._rank": leaf},
    ),
    mutant(
        "yarn-cs",
        "user limit",
        "one user may hold the whole cluster",
        killed_by="test_user_limit_factor",
        options={"user_limit_factor": float("inf")},
    ),
    mutant(
        "yarn-cs",
        "first come, first served",
        "a job that does not fit is passed over",
        killed_by="test_first_come_first_served_inside_a_queue",
        options={"discipline": "skip"},
    ),
    mutant(
        "yarn-cs",
        "first come, first served",
        "the shortest goes first",
        killed_by="test_first_come_first_served_inside_a_queue",
        factory=shortest_first,
    ),
    mutant(
        "yarn-cs",
        "preemption",
        "no job is preempted",
        killed_by="test_inter_queue_preemption",
        options={"preempt": False},
    ),
    mutant(
        "yarn-cs",
        "preemption",
        "the earliest jobs are preempted",
        killed_by="test_inter_queue_preemption",
        replace={f"{YARN}:latest_first": lambda job: (job.priority, job.started_at, job.seq)},
    ),
    mutant(
        "yarn-cs",
        "preemption",
        "a queue that holds just its guarantee loses a job too",
        killed_by="test_preemption_spares_queues_within_their_guarantee",
        replace={f"{YARN}:reclaim": reclaim_from_the_guarantee},
    ),
    mutant(
        "yarn-cs",
        "locality delay",
        "a gang is split at once",
        killed_by="test_locality_delay",
        options={"locality_delay": 0},
    ),
    mutant(
        "yarn-cs",
        "locality delay",
        "a gang is never split",
        killed_by="test_locality_delay",
        options={"locality_delay": 1_000_000},
    ),
)


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


@claim(
    "yarn-cs", "preemption takes from queues above their guarantee, however late the jobs of others started"
)
def test_preemption_spares_queues_within_their_guarantee() -> None:
    thirds = cluster(
        nodes=1, gpus=8, tenants=[Tenant("A", quota=2), Tenant("B", quota=3), Tenant("C", quota=3)]
    )
    jobs = [job(f"c{i}", seconds=1_000, tenant="C") for i in range(6)]  # three of them borrowed
    jobs += [job(f"a{i}", seconds=1_000, at=5, tenant="A") for i in range(2)]
    jobs += [job("b", seconds=1_000, at=10, tenant="B")]

    def check(result: Run) -> None:
        stops = dict(zip(result.jobs.id, result.jobs.stops, strict=True))
        assert result.start("b") == 10
        assert [name for name, count in stops.items() if count] == ["c5"]

    tells_apart(check, run(jobs, thirds, "yarn-cs", preempt=True), run(jobs, thirds, "yarn-cs"))


@claim("yarn-cs", "inside a queue no job overtakes another, though it is short and a GPU is free for it")
def test_first_come_first_served_inside_a_queue() -> None:
    jobs = [
        job("running", gpus=6, seconds=100, tenant="B"),
        job("wide", gpus=4, seconds=100, at=1, tenant="B"),
        job("small", gpus=1, seconds=10, at=2, tenant="B"),
    ]

    def check(result: Run) -> None:
        assert (result.start("wide"), result.start("small")) == (100, 100)

    tells_apart(check, run(jobs, QUARTERS, "yarn-cs"), run(jobs, QUARTERS, "yarn-cs", discipline="skip"))


@claim("yarn-cs", "a queue does not exceed its maximum capacity, however idle the cluster is")
def test_maximum_capacity() -> None:
    capped = cluster(nodes=1, gpus=8, tenants=[Tenant("A", quota=2, borrow=1), Tenant("B", quota=6)])
    jobs = [job(f"j{i}", seconds=10, tenant="A") for i in range(6)]

    def check(result: Run) -> None:
        assert [result.start(f"j{i}") for i in range(6)] == [0, 0, 0, 10, 10, 10]

    tells_apart(check, run(jobs, capped, "yarn-cs"), run(jobs, QUARTERS, "yarn-cs"))


@claim(
    "yarn-cs", "what a queue leaves idle goes to its siblings before it goes to other branches of the tree"
)
def test_idle_capacity_goes_to_siblings_first() -> None:
    tree = [Tenant("x", quota=4), Tenant("y", quota=4)]
    tree += [Tenant("x1", parent="x", quota=2), Tenant("x2", parent="x", quota=2)]
    flat = [Tenant("x1", quota=2), Tenant("x2", quota=2), Tenant("y", quota=4)]
    jobs = [job(f"{queue}.{i}", seconds=100, tenant=queue) for queue in ("y", "x1") for i in range(8)]

    def check(result: Run) -> None:
        first = [name for name, start in zip(result.jobs.id, result.jobs.start, strict=True) if start == 0]
        assert [sum(name.startswith(queue) for name in first) for queue in ("x1", "y")] == [4, 4]

    in_tree = run(jobs, cluster(nodes=1, gpus=8, tenants=tree), "yarn-cs")
    tells_apart(check, in_tree, run(jobs, cluster(nodes=1, gpus=8, tenants=flat), "yarn-cs"))


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
    assert (hasty.start("wide"), hasty.finish("wide")) == (25, 225)  # apart, at half the speed
    tells_apart(check, patient, hasty)
