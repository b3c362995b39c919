"""Preemption and tenants' limits: a tenant at its limit delays only its own jobs."""

from __future__ import annotations

from dovetail.model.cluster import Tenant
from dovetail.testing.build import cluster, job, run

TWO_GPUS = cluster(nodes=1, gpus=2, tenants=[Tenant("red", limit=1), Tenant("blue")])


def test_a_tenant_at_its_limit_does_not_delay_jobs_of_the_same_shape() -> None:
    jobs = [
        job("red-1", seconds=100, tenant="red", priority=2),
        job("red-2", seconds=100, tenant="red", priority=2, at=1),
        job("red-3", seconds=100, tenant="red", priority=2, at=1),
        job("blue", seconds=100, tenant="blue", at=1),
    ]
    result = run(jobs, TWO_GPUS, "priority")
    assert [result.start(j.id) for j in jobs] == [0, 100, 200, 1]


def test_no_job_is_preempted_for_a_job_that_may_not_start() -> None:
    jobs = [
        job("red-1", seconds=100, tenant="red", priority=2),
        job("blue", seconds=100, tenant="blue"),
        job("red-2", seconds=100, tenant="red", priority=1, at=1),
    ]
    result = run(jobs, TWO_GPUS, "priority")
    assert result.preemptions == 0
    assert [result.finish(j.id) for j in jobs] == [100, 100, 200]


def test_at_its_limit_a_tenant_may_preempt_its_own_jobs() -> None:
    jobs = [
        job("red-1", seconds=100, tenant="red"),
        job("blue", seconds=300, tenant="blue", priority=1),
        job("red-2", seconds=100, tenant="red", priority=2, at=10),
    ]
    result = run(jobs, TWO_GPUS, "priority")
    assert result.start("red-2") == 10
    assert result.finish("red-1") == 200
