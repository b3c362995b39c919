"""The policy of a new plane: no job is starved by small jobs, by urgent jobs or by its own tenant."""

from __future__ import annotations

from typing import Any

from dovetail.model.cluster import Tenant, parse_cluster
from dovetail.model.job import Job
from dovetail.model.units import GIB
from dovetail.sim.run import Run
from dovetail.testing.build import Shape, cluster, job, run
from dovetail.testing.claims import claim, tells_apart
from dovetail.testing.mutants import mutant

HOUR = 3600.0
TWO_BY_FOUR = cluster(nodes=2, gpus=4)


def gpus_alone(use: Any, shape: Shape) -> int:
    """Tasks that fit a node if its CPUs and its memory did not count."""
    free = sum(1 for held in use._devices if not held)
    return min(shape.tasks, free // shape.each)


MUTANTS = (
    mutant(
        "dovetail",
        "the promise of room",
        "no job is promised a start",
        killed_by="test_small_jobs_do_not_starve_a_gang",
        replace={"dovetail.policies.dovetail:promise_of_room": lambda view, plan, job: None},
    ),
    mutant(
        "dovetail",
        "every resource is promised",
        "GPUs alone are promised",
        killed_by="test_small_jobs_do_not_starve_a_job_of_many_cpus",
        replace={"dovetail.mechanisms.queue.promises:NodeUse.tasks": gpus_alone},
    ),
    mutant(
        "dovetail",
        "the promise of quota",
        "no job is promised its quota",
        killed_by="test_a_tenant_does_not_starve_its_own_gang",
        replace={"dovetail.policies.dovetail:promise_of_quota": lambda view, plan, job, over: None},
    ),
    mutant(
        "dovetail",
        "aging",
        "a job that waits does not rise",
        killed_by="test_urgent_jobs_do_not_starve_a_normal_one",
        options={"aging": 0.0},
    ),
    mutant(
        "dovetail",
        "reclaiming a quota",
        "borrowers run to their end",
        killed_by="test_a_quota_is_taken_back",
        options={"reclaim": False},
    ),
    mutant(
        "dovetail",
        "preemption inside a tenant",
        "jobs of lower priority run to their end",
        killed_by="test_a_job_evicts_lower_priorities_of_its_own_tenant_alone",
        options={"preempt": False},
    ),
)


def flood(tenant: str = "", **more: Any) -> list[Job]:
    """Eight jobs of one GPU that run, a gang of two whole nodes, and forty jobs of one GPU behind it."""
    running = [job(f"r{i}", hours=1 + i / 8, tenant=tenant) for i in range(8)]
    wide = job("wide", shape=Shape(2, 4), hours=1, at=60, tenant=tenant)
    small = [job(f"s{i}", hours=1, at=120 + i, tenant=tenant, **more) for i in range(40)]
    return [*running, wide, *small]


@claim("dovetail", "a gang of two nodes starts before the forty small jobs that were submitted after it")
def test_small_jobs_do_not_starve_a_gang() -> None:
    def check(result: Run) -> None:
        assert result.start("wide") == (1 + 7 / 8) * HOUR, "when the last of the running jobs has ended"
        assert result.start("s39") > result.start("wide")

    plain = run(flood(), TWO_BY_FOUR, "kueue", whole=True, score="pack")
    tells_apart(check, run(flood(), TWO_BY_FOUR, "dovetail"), plain)


@claim("dovetail", "estimates of a minute for jobs that run an hour do not keep a gang waiting")
def test_short_estimates_do_not_starve_a_gang() -> None:
    jobs = flood(estimate=60.0)

    def check(result: Run) -> None:
        assert result.start("wide") < 4 * HOUR

    tells_apart(check, run(jobs, TWO_BY_FOUR, "dovetail"), run(jobs, TWO_BY_FOUR, "fifo", discipline="skip"))


@claim("dovetail", "CPUs and memory are promised too: a job that needs a whole machine gets it")
def test_small_jobs_do_not_starve_a_job_of_many_cpus() -> None:
    on = cluster(nodes=1, gpus=8, cpus=16_000, memory=64 * GIB)
    jobs = [job(f"r{i}", shape=Shape(1, 1, cpus=4_000), hours=1 + i / 4) for i in range(4)]
    jobs += [job("wide", shape=Shape(1, 1, cpus=16_000), hours=1, at=60)]
    jobs += [job(f"s{i}", shape=Shape(1, 1, cpus=4_000), hours=1, at=120 + i) for i in range(40)]

    def check(result: Run) -> None:
        assert result.start("wide") == 1.75 * HOUR

    tells_apart(check, run(jobs, on, "dovetail"), run(jobs, on, "backfill"))


@claim("dovetail", "a job that waits ages: a stream of urgent jobs delays it by hours, not for ever")
def test_urgent_jobs_do_not_starve_a_normal_one() -> None:
    on = cluster(nodes=1, gpus=1)
    jobs = [job("normal", hours=1, at=1)]
    jobs += [job(f"u{i}", hours=1, at=i * HOUR, priority=100) for i in range(200)]

    def check(result: Run) -> None:
        assert 20 * HOUR < result.start("normal") <= 22 * HOUR

    tells_apart(check, run(jobs, on, "dovetail"), run(jobs, on, "dovetail", aging=0.0))


@claim("dovetail", "a tenant's own small jobs do not starve its gang, also if a quota is what is short")
def test_a_tenant_does_not_starve_its_own_gang() -> None:
    on = cluster(nodes=4, gpus=4, tenants=[Tenant("a", quota=8)])
    jobs = flood("a")

    def check(result: Run) -> None:
        assert result.start("wide") == (1 + 7 / 8) * HOUR

    tells_apart(check, run(jobs, on, "dovetail"), run(jobs, on, "kueue", whole=True, score="pack"))


@claim("dovetail", "the owner of a quota evicts borrowers at once")
def test_a_quota_is_taken_back() -> None:
    tenants = [Tenant("lab"), Tenant("a", parent="lab", quota=4), Tenant("b", parent="lab", quota=4)]
    on = cluster(nodes=2, gpus=4, tenants=tenants)
    jobs = [job(f"b{i}", gpus=2, hours=10, tenant="b") for i in range(4)]
    jobs += [job("a", shape=Shape(1, 4), hours=1, at=60, tenant="a")]

    def check(result: Run) -> None:
        assert result.start("a") == 60.0

    tells_apart(check, run(jobs, on, "dovetail"), run(jobs, on, "backfill"))


def test_jobs_within_a_quota_go_first() -> None:
    on = cluster(nodes=1, gpus=2, tenants=[Tenant("a", quota=1)])
    jobs = [job(f"r{i}", hours=1 + i, tenant="x") for i in range(2)]
    jobs += [job("x", hours=1, at=60, tenant="x"), job("a", hours=1, at=61, tenant="a")]
    jobs += [job("a2", hours=1, at=62, tenant="a")]  # beyond the quota once `a` runs
    found = run(jobs, on, "dovetail")
    assert [found.start(name) for name in ("a", "x", "a2")] == [HOUR, 2 * HOUR, 2 * HOUR]


def test_holes_before_a_promised_start_are_filled() -> None:
    jobs = [job("r", gpus=6, hours=10), job("wide", gpus=8, hours=1)]
    jobs += [job("short", gpus=2, hours=4, at=60), job("long", gpus=2, hours=12, at=60)]
    found = run(jobs, cluster(nodes=1, gpus=8), "dovetail")
    assert [found.start(name) for name in ("short", "wide", "long")] == [60.0, 10 * HOUR, 11 * HOUR]


def test_spare_devices_of_a_promised_node_are_used() -> None:
    jobs = [job("r", gpus=5, hours=10), job("wide", gpus=6, hours=1), job("long", gpus=2, hours=99, at=60)]
    found = run(jobs, cluster(nodes=1, gpus=8), "dovetail")
    assert (found.start("long"), found.start("wide")) == (60.0, 10 * HOUR)


@claim("dovetail", "an urgent job evicts lower priorities of its own tenant, and of no other tenant")
def test_a_job_evicts_lower_priorities_of_its_own_tenant_alone() -> None:
    jobs = [job("mine", gpus=2, hours=9, tenant="a"), job("theirs", gpus=2, hours=9, tenant="b")]
    jobs += [job("urgent", gpus=2, hours=1, at=60, tenant="a", priority=100)]
    jobs += [job("more", gpus=2, hours=1, at=61, tenant="a", priority=100)]

    def found(policy: str) -> Run:
        return run(jobs, cluster(nodes=1, gpus=4), policy)

    def check(found: Run) -> None:
        assert (found.start("urgent"), found.start("more")) == (60.0, HOUR + 60.0)
        assert found.finish("theirs") == 9 * HOUR

    tells_apart(check, found("dovetail"), found("backfill"))


def test_a_node_of_another_type_is_not_promised() -> None:
    on = parse_cluster("1x4:A100,1x4:V100")
    jobs = [job("r0", gpus=4, hours=1, types=["A100"]), job("r1", gpus=4, hours=5, types=["V100"])]
    jobs += [job("wide", shape=Shape(1, 4, types=("V100",)), hours=1, at=60)]
    jobs += [job("a", gpus=1, hours=50, at=120)]
    found = run(jobs, on, "dovetail")
    assert (found.start("a"), found.start("wide")) == (HOUR, 5 * HOUR)
