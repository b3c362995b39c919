"""What a run is worth, on runs small enough to check by hand."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail.bench.metrics import metrics, size_name, spread, water_filled
from dovetail.model.cluster import Tenant
from dovetail.testing.build import cluster, job, run

ONE = cluster(nodes=1, gpus=1)


def test_times_are_seconds() -> None:
    found = metrics(run([job("a", seconds=30), job("b", seconds=10)], ONE, "fifo"))
    assert (found.jct.mean, found.jct.p50, found.jct.max) == (35, 35, 40)
    assert (found.wait.mean, found.wait.max) == (15, 30)
    assert found.first_start == found.wait, "no job was preempted"
    assert (found.makespan, found.utilization, found.finished) == (40, 1.0, 2)


def test_a_job_that_was_preempted_for_six_hours_has_waited_six_hours() -> None:
    jobs = [job("long", hours=10, tenant="x"), job("short", hours=6, at=60, tenant="y")]
    found = metrics(run(jobs, ONE, "srtf"))
    assert (found.wait.max, found.wait.mean) == (6 * 3600, 3 * 3600)
    assert (found.first_start.max, found.preemptions) == (0, 1), "both started when they arrived"
    assert {group.name: (group.wait.max, group.first_start.max) for group in found.by_tenant} == {
        "x": (6 * 3600, 0),
        "y": (0, 0),
    }
    assert [(group.wait.max, group.first_start.max) for group in found.by_size] == [(6 * 3600, 0)]


def test_percentiles_interpolate_linearly() -> None:
    values = np.arange(101.0)
    found = spread(values)
    assert (found.p50, found.p90, found.p99, found.max) == (50, 90, 99, 100)
    assert spread(np.array([])).max == 0


def test_lost_time_is_in_gpu_seconds() -> None:
    from dovetail.model.job import Checkpoint
    from dovetail.model.units import SECOND

    slow = Checkpoint(restore=30 * SECOND)
    jobs = [job("long", gpus=4, seconds=1000, checkpoint=slow), job("short", gpus=4, seconds=10, at=100)]
    found = metrics(run(jobs, cluster(nodes=1, gpus=4), "srtf"))
    assert (found.preemptions, found.lost_gpu_seconds) == (1, 120)


def test_sizes_and_tenants_have_tables_of_their_own() -> None:
    jobs = [job("a", gpus=1, seconds=10, tenant="x"), job("b", gpus=6, seconds=20, tenant="y")]
    jobs += [job("c", gpus=8, seconds=30, tenant="y", at=100)]
    found = metrics(run(jobs, cluster(nodes=1, gpus=8), "fifo"))
    assert [(group.name, group.jobs) for group in found.by_size] == [("1", 1), ("5-8", 2)]
    assert [(group.name, group.jct.mean) for group in found.by_tenant] == [("y", 25), ("x", 10)]
    assert [size_name(number) for number in (-1, 0, 1, 2, 3, 7)] == [
        "no GPU",
        "1",
        "2",
        "3-4",
        "5-8",
        "65-128",
    ]


def test_rho_compares_with_an_equal_share() -> None:
    """Two equal jobs one after the other: each would take 20 s on its half; they take 10 and 20."""
    found = metrics(run([job("a", seconds=10), job("b", seconds=10)], ONE, "fifo"))
    # a: n = 2 throughout, alone 20 s, so 0.5; b: n = 2 then 1, 1.5 on average, alone 15 s, so 20/15
    assert found.fairness.rho.max == pytest.approx(20 / 15)
    assert found.fairness.rho.mean == pytest.approx((0.5 + 20 / 15) / 2)


def test_a_tenant_without_its_share_lowers_fairness() -> None:
    jobs = [job("a", gpus=4, hours=1, tenant="red"), job("b", gpus=4, hours=1, tenant="blue")]
    found = metrics(run(jobs, cluster(nodes=1, gpus=4), "fifo")).fairness
    # for the contended hour each was due two GPUs: red held four, blue none
    assert found.share_error == pytest.approx(0.5, abs=0.01)
    assert found.jain == pytest.approx(0.5, abs=0.01)


def test_a_share_is_proportional_to_the_weight() -> None:
    tenants = [Tenant("red", weight=3), Tenant("blue")]
    jobs = [job(f"r{i}", hours=1, tenant="red") for i in range(6)]
    jobs = [*jobs[:3], job("b", hours=1, tenant="blue"), *jobs[3:]]
    found = metrics(run(jobs, cluster(nodes=1, gpus=4, tenants=tenants), "fifo")).fairness
    assert found.share_error == pytest.approx(0, abs=0.01)
    assert found.jain == pytest.approx(1, abs=0.01)


def test_fairness_between_tenants_needs_contention() -> None:
    alone = metrics(run([job("a", seconds=10, tenant="red")], ONE, "fifo")).fairness
    calm = [job("a", seconds=10, tenant="red"), job("b", seconds=10, tenant="blue")]
    together = metrics(run(calm, cluster(nodes=1, gpus=2), "fifo")).fairness
    assert (alone.jain, alone.share_error, together.jain) == (None, None, None)


def test_water_is_filled_up_to_what_is_asked() -> None:
    asked = np.array([[1.0, 9.0], [9.0, 9.0], [9.0, 0.0]])
    filled = water_filled(np, asked, np.array([1.0, 1.0, 2.0]), 10.0)
    assert filled[:, 0] == pytest.approx([1, 3, 6])
    assert filled[:, 1] == pytest.approx([5, 5, 0])


def test_deadlines_cost_and_energy() -> None:
    jobs = [job("a", hours=1, deadline=3600), job("b", hours=1, deadline=3600), job("c", hours=1, at=7200)]
    costly = cluster(nodes=2, gpus=1, price=3.0, idle_watts=100.0, gpu_watts=200.0)
    found = metrics(run(jobs[:1] + jobs[1:], costly, "fifo"))
    assert (found.deadlines, found.missed) == (2, 0)
    assert found.cost == pytest.approx(2 * 3.0 * 3)
    assert found.energy_kwh == pytest.approx((200 * 3 + 200 * 3) / 1000)
    late = metrics(run(jobs[:2], ONE, "fifo"))
    assert (late.deadlines, late.missed, late.cost, late.energy_kwh) == (2, 1, None, None)


def test_a_run_without_finished_jobs_has_figures_too() -> None:
    found = metrics(run([job("a", hours=1)], ONE, "fifo", until=10))
    assert (found.jobs, found.finished, found.jct.mean, found.makespan) == (1, 0, 0, 0)


def test_a_job_that_never_starts_waits_to_the_end_of_the_run() -> None:
    jobs = [job("a", hours=1), job("b", hours=1, at=600), job("c", hours=1, at=1800)]
    found = metrics(run(jobs, ONE, "fifo", until=1800))
    assert (found.wait.max, found.wait.mean) == (1200, 400)
    assert found.first_start.max == 0, "of the one job that started"
