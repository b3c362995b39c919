"""Rounds by owed time, where a job cannot simply be picked."""

from __future__ import annotations

import pytest

from dovetail.model.cluster import Cluster, GpuType, Node, Tenant
from dovetail.model.job import Shape, Traits
from dovetail.model.units import SECOND
from dovetail.policies.registry import POLICIES
from dovetail.sim.run import Run
from dovetail.sim.run import run as sim_run
from dovetail.sim.world import Incident
from dovetail.testing.build import cluster, job, run

ROUND = 360.0


def time_of(result: Run, name: str) -> float:
    return sum(each.end - each.start for each in result.stretches if each.job == name) / 1e6


@pytest.mark.parametrize("policy", ["gavel", "pop"])
def test_devices_of_jobs_beyond_a_limit_are_not_left_idle(policy: str) -> None:
    """Tenant a may hold one GPU, and has four jobs; the other GPU is for tenant b in every round."""
    on = cluster(nodes=1, gpus=2, tenants=[Tenant("a", limit=1), Tenant("b")])
    jobs = [job(f"a{i}", hours=10, tenant="a", priority=3) for i in range(4)]
    jobs += [job("b0", hours=10, tenant="b")]
    result = run(jobs, on, policy, until=20 * ROUND)
    assert result.utilization == pytest.approx(1.0)
    assert time_of(result, "b0") == 20 * ROUND


def test_a_limit_of_an_ancestor_counts_for_a_round() -> None:
    tenants = [Tenant("all", limit=1), Tenant("a", parent="all"), Tenant("b", parent="all"), Tenant("c")]
    on = cluster(nodes=1, gpus=2, tenants=tenants)
    jobs = [job(f"{name}0", hours=10, tenant=name) for name in "abc"]
    result = run(jobs, on, "gavel", until=20 * ROUND)
    assert time_of(result, "c0") == 20 * ROUND
    assert time_of(result, "a0") + time_of(result, "b0") == 20 * ROUND


def test_a_wide_job_is_not_kept_waiting_by_jobs_that_cannot_be_stopped() -> None:
    """Single jobs that are not preemptible arrive all the time; the wide job starts once four have ended."""
    fixed = Traits(preemptible=False)
    jobs = [job(f"s{i}", seconds=4 * ROUND, at=ROUND * i, traits=fixed) for i in range(60)]
    jobs += [job("wide", gpus=4, hours=1, at=1.0)]
    result = run(jobs, cluster(nodes=1, gpus=4), "gavel", until=60 * ROUND)
    assert result.start("wide") <= 16 * ROUND


def test_jobs_make_room_for_tasks_of_several_gpus() -> None:
    """Two single jobs, one on each node, would keep a task of four GPUs waiting for ever."""
    fixed = Traits(preemptible=False)
    jobs = [
        job("blocker", gpus=3, seconds=2 * ROUND, traits=fixed),
        job("x", hours=10),
        job("blocker2", gpus=3, seconds=2 * ROUND, traits=fixed),
        job("y", hours=10),
        job("task", shape=Shape(1, 4), hours=10, at=1.0),
    ]
    result = run(jobs, cluster(nodes=2, gpus=4), "gavel", until=30 * ROUND)
    assert time_of(result, "task") >= 20 * ROUND


def test_a_job_stays_on_its_type_while_no_other_job_wants_the_room() -> None:
    nodes = (Node("a", 4, GpuType("A")), Node("b", 4, GpuType("B")))
    jobs = [job(f"j{i}", hours=2) for i in range(3)]
    assert run(jobs, Cluster(nodes), "gavel").preemptions == 0


@pytest.mark.parametrize("carry_over", [True, False])
def test_a_type_may_go_and_come_back(carry_over: bool) -> None:
    """First one of two types is lost, with the job that ran on it, then the other one too."""
    nodes = (Node("a", 1, GpuType("A")), Node("b", 1, GpuType("B")))
    lost = [
        Incident("a", at=500 * SECOND, back_at=2_000 * SECOND),
        Incident("b", at=1_000 * SECOND, back_at=1_500 * SECOND),
    ]
    jobs = [job(f"j{i}", hours=1) for i in range(3)]
    made = POLICIES.make("gavel", carry_over=carry_over)
    result = sim_run(jobs, Cluster(nodes), made, incidents=lost)
    assert result.finished == 3


def test_gangs_that_do_not_fit_together_share_the_loss() -> None:
    """Gangs of 12 and 8 of 16 GPUs have shares of 2/3 and 1, and never run together: each gets half or so."""
    jobs = [job("twelve", gpus=12, hours=1000), job("eight", gpus=8, hours=1000)]
    result = run(jobs, cluster(nodes=2, gpus=8), "gavel", until=100 * ROUND)
    assert time_of(result, "twelve") >= 30 * ROUND
    assert time_of(result, "eight") >= 30 * ROUND
    # What could not be had is forgotten: a new job does not pay for it.
    jobs += [job("small", gpus=8, hours=1000, at=100 * ROUND)]
    later = run(jobs, cluster(nodes=2, gpus=8), "gavel", until=120 * ROUND)
    assert time_of(later, "small") >= 5 * ROUND
