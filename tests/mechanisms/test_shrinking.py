"""Starting a job on devices that running jobs give up."""

from __future__ import annotations

import pytest

from dovetail.model.cluster import Cluster, GpuType, Node
from dovetail.model.grant import devices_of
from dovetail.model.job import Job
from dovetail.sim.run import Run
from dovetail.testing.build import SECOND, Profile, cluster, job, run

CURVE = Profile(curve={n: float(n) for n in range(1, 9)})
TYPES = Cluster((Node("slow", 4, GpuType("slow")), Node("fast", 4, GpuType("fast"))))

policies = pytest.mark.parametrize("policy", ["dragon", "wang"])


def elastic(name: str, type: str, minutes: float) -> Job:
    return job(name, gpus=4, minutes=minutes, types=(type,), least=1, most=4, profile=CURVE)


def sizes(result: Run, at: float) -> dict[str, int]:
    now = round(at * SECOND)
    return {s.job: devices_of(s.spots) for s in result.stretches if s.start <= now < s.end}


@policies
def test_a_job_of_another_type_gets_its_devices_back(policy: str) -> None:
    """The job on `slow` is the first to be asked: it started first, and has least to lose."""
    jobs = [elastic("slow", "slow", 60), elastic("fast", "fast", 600)]
    jobs += [job("new", gpus=2, minutes=5, at=60, types=("fast",))]
    result = run(jobs, TYPES, policy)
    assert sizes(result, 100) == {"slow": 4, "fast": 2, "new": 2}


@policies
def test_no_job_shrinks_for_one_that_cannot_start(policy: str) -> None:
    jobs = [elastic("slow", "slow", 60), job("rigid", gpus=4, minutes=60, types=("fast",))]
    jobs += [job("new", gpus=2, minutes=5, at=60, types=("fast",))]
    result = run(jobs, TYPES, policy)
    assert sizes(result, 100) == {"slow": 4, "rigid": 4}
    assert [s.start for s in result.stretches if s.job == "slow"] == [0]


@policies
def test_no_job_gives_up_more_than_it_can_spare(policy: str) -> None:
    jobs = [job("old", gpus=4, minutes=60, least=3, most=4, profile=CURVE)]
    jobs += [job("new", gpus=2, minutes=5, at=60)]
    result = run(jobs, cluster(nodes=1, gpus=4), policy)
    assert sizes(result, 100) == {"old": 4}
    assert result.start("new") == 3_600
