"""Moving jobs away from a node, and the GPU-time fraction that a job has received."""

from __future__ import annotations

import pytest

from dovetail.core.active import ActiveJob
from dovetail.mechanisms.quota.gpu_fraction import Period, ahead, lasts
from dovetail.model.cluster import Cluster, GpuType, Node
from dovetail.model.grant import FULL
from dovetail.model.units import SECOND
from dovetail.testing.build import Profile, cluster, job, run

WIDE = job("wide", gpus=4, hours=1, at=1200, profile=Profile(split=2.0))


def test_no_job_moves_if_none_has_a_place_elsewhere() -> None:
    """Each of the two runs on one type only: moving the other one would be undone."""
    types = Cluster((Node("n0", 4, GpuType("a")), Node("n1", 4, GpuType("b"))))
    jobs = [job(name, gpus=2, hours=1, types=(name,)) for name in "ab"]
    result = run([*jobs, WIDE], types, "singularity")
    assert result.preemptions == 0
    assert result.finish("a") == result.finish("b") == 3600


def test_the_smallest_job_that_is_enough_moves() -> None:
    """Of jobs with 1 and 2 GPUs on each of two nodes, those with 1 fit elsewhere; one of them is enough."""
    jobs = [job(f"{name}{node}", gpus=gpus, hours=1) for node in "01" for name, gpus in (("s", 1), ("m", 2))]
    short = [job(f"x{node}", gpus=1, seconds=1000) for node in "01"]
    jobs = [*jobs[:2], short[0], *jobs[2:], short[1]]
    narrow = job("new", gpus=2, hours=1, at=1200, profile=Profile(split=2.0))
    result = run([*jobs, narrow], cluster(nodes=2, gpus=4), "singularity")
    stops = dict(zip(result.jobs.id, result.jobs.stops, strict=True))
    assert sorted(name for name, count in stops.items() if count) in (["s0"], ["s1"])
    assert result.start("new") == 1200


def test_what_a_job_received_is_counted_from_the_period_on() -> None:
    """2 of 4 GPUs for 100 s, from its arrival on; then the period counts, which began after 60 s."""
    made = ActiveJob(job("a", gpus=4, hours=1, least=2), 0, 0)
    made.begin(0, ((0, 0b11, 1000, 0, 0),), FULL, 2000)
    now = 100 * SECOND
    assert ahead(Period(), made, 0.25, now) == (200 - 100) * SECOND
    later = Period(60 * SECOND, {"a": 120 * SECOND})
    assert ahead(later, made, 0.25, now) == (80 - 40) * SECOND
    assert lasts(Period(), made, 0.25, 2000, now) == float("inf")
    assert lasts(Period(), made, 0.75, 2000, now) == pytest.approx((200 - 300) * SECOND)
