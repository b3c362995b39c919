"""Leases: renewed in place, taken from the last job in line, never from a job that would lose its work."""

from __future__ import annotations

import pytest

from dovetail.model.cluster import Tenant, parse_cluster
from dovetail.testing.build import Checkpoint, Profile, cluster, job, run

SECOND = 1_000_000
LEASED = ["themis", "astraea", "gandiva-fair"]


@pytest.mark.parametrize("policy", ["astraea", "gandiva-fair"])
def test_a_lease_that_is_renewed_costs_nothing(policy: str) -> None:
    """It has its share of three GPUs all the time, and others alternate beside it: no stop, no checkpoint."""
    on = cluster(nodes=1, gpus=4, tenants=[Tenant("a", weight=3.0), Tenant("b")])
    jobs = [
        job("a", gpus=3, hours=10, tenant="a", checkpoint=Checkpoint(save=60 * SECOND)),
        *[job(f"b{i}", hours=2, tenant="b") for i in range(2)],
    ]
    result = run(jobs, on, policy)
    assert len([s for s in result.stretches if s.job == "a"]) == 1
    assert len([s for s in result.stretches if s.job == "b0"]) > 1


@pytest.mark.parametrize("policy", LEASED)
@pytest.mark.parametrize("every", [None, 30.0, 7200.0])
def test_a_job_that_saves_nothing_when_stopped_runs_until_its_next_checkpoint(
    policy: str, every: float | None
) -> None:
    """Two jobs that lose what they did, and one GPU: in leases shorter than a save neither would ever end."""
    lossy = Checkpoint(every=None if every is None else int(every * SECOND), on_stop=False)
    jobs = [job(name, hours=3, checkpoint=lossy) for name in ("a", "b")]
    result = run(jobs, cluster(nodes=1, gpus=1), policy, until=40 * 3600)
    assert result.finished == 2


@pytest.mark.parametrize("policy", LEASED)
def test_a_job_that_is_not_preemptible_is_not_stopped(policy: str) -> None:
    jobs = [
        job("fixed", gpus=2, hours=5, preemptible=False),
        *[job(f"j{i}", gpus=2, hours=1) for i in range(3)],
    ]
    result = run(jobs, cluster(nodes=1, gpus=2), policy)
    assert len([s for s in result.stretches if s.job == "fixed"]) == 1
    assert result.finished == 4


@pytest.mark.parametrize("policy", LEASED)
def test_no_job_runs_on_a_type_on_which_its_speed_is_zero(policy: str) -> None:
    """A type on which a job has speed 0 is as if it were not there, though it be all that is free."""
    nowhere = Profile(speeds={"K80": 0.0, "V100": 1.0})
    jobs = [job(f"j{i}", hours=1, profile=nowhere) for i in range(4)]
    result = run(jobs, parse_cluster("1x2:K80,1x2:V100"), policy)
    assert {s.spots[0][0] for s in result.stretches} == {1}
    assert result.makespan == 2 * 3600 * SECOND


@pytest.mark.parametrize("policy", LEASED)
def test_devices_do_not_wait_for_the_end_of_a_lease(policy: str) -> None:
    jobs = [
        job("a", gpus=2, seconds=100),
        job("b", gpus=2, seconds=100),
        job("c", gpus=2, seconds=100, at=150),
    ]
    result = run(jobs, cluster(nodes=1, gpus=2), policy)
    assert result.makespan == 300 * SECOND


@pytest.mark.parametrize("policy", LEASED)
def test_while_no_job_waits_running_jobs_are_left_alone(policy: str) -> None:
    """While no job waits, the end of a lease changes nothing."""
    result = run([job("a", hours=100)], cluster(nodes=1, gpus=2), policy)
    assert result.steps <= 3
