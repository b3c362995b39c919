"""Waiting time and time to first start of simulated jobs."""

from __future__ import annotations

import pytest
from hypothesis import given

from dovetail.model.job import Checkpoint
from dovetail.model.units import SECOND
from dovetail.policies.registry import POLICIES
from dovetail.sim.outcomes import NEVER
from dovetail.sim.run import run as sim_run
from dovetail.testing.build import Incident, cluster, job, run
from dovetail.testing.strategies import Scene, scenes
from dovetail.testing.suite import searched

ONE = cluster(nodes=1, gpus=1)
PREEMPTING = ("srtf", "tiresias-l", "gavel", "priority", "themis", "philly")


def test_time_after_a_preemption_counts() -> None:
    result = run([job("long", hours=10), job("short", hours=6, at=60)], ONE, "srtf")
    assert result.wait("long") == [6 * 3600]
    assert result.first_start("long") == [0]
    assert result.wait("short") == result.first_start("short") == [0]


def test_saving_and_restoring_on_devices_is_no_waiting() -> None:
    slow = Checkpoint(save=40 * SECOND, restore=30 * SECOND, on_stop=True)
    jobs = [job("long", seconds=1000, checkpoint=slow), job("short", seconds=100, at=200)]
    result = run(jobs, ONE, "srtf")
    # 200 s of work, 40 s to save, 100 s behind the short job, 30 s to restore, 800 s of work
    assert result.jct("long") == [1170]
    assert result.wait("long") == [100]
    assert result.wait("short") == [40], "it waits while the long one saves"


def test_a_job_waits_between_its_attempts_and_no_longer_once_it_has_failed() -> None:
    jobs = [
        job("fails", seconds=100, fails_after=50, retries=1),
        job("next", seconds=300, at=10),
        job("last", seconds=1000, at=20),
    ]
    result = run(jobs, ONE, "fifo")
    assert result.jobs.end == {"fails": "failed"}
    ended = result.jobs.ended_at["fails"] / 1e6
    assert result.until / 1e6 > ended, "the run goes on after the job has failed"
    assert result.wait("fails") == [ended - 100], "two attempts of 50 s"


def test_a_run_that_is_cut_off_counts_the_wait_so_far() -> None:
    jobs = [job("runs", hours=1), job("queued", hours=1, at=600), job("new", hours=1, at=1800)]
    result = run(jobs, ONE, "fifo", until=1800)
    assert result.wait() == [0, 1200, 0]
    assert result.first_start() == [0]


def test_a_run_that_is_cut_off_while_a_job_saves_has_no_negative_wait() -> None:
    slow = Checkpoint(save=400 * SECOND, on_stop=True)
    jobs = [job("long", seconds=1000, checkpoint=slow), job("short", seconds=100, at=200)]
    assert run(jobs, ONE, "srtf", until=300).wait("long") == [0]


def test_a_job_of_a_lost_node_waits_again() -> None:
    lost = [Incident("n0", at=100 * SECOND, back_at=700 * SECOND)]
    result = sim_run([job("a", seconds=300)], ONE, POLICIES.make("fifo"), incidents=lost)
    assert result.first_start() == [0]
    assert result.wait() == [600]


@pytest.mark.parametrize("name", PREEMPTING)
@given(scene=scenes(lossy=True, most=15))
@searched(40)
def test_waiting_is_all_the_time_without_devices(name: str, scene: Scene) -> None:
    """Against another record of the same run: the time spans in which each job held devices."""
    made = sim_run(scene.jobs, scene.cluster, POLICIES.make(name), incidents=scene.incidents, trace=True)
    held = dict.fromkeys(made.jobs.id, 0)
    for one in made.stretches:
        held[one.job] += one.end - one.start
    for number, spec in enumerate(made.jobs.job):
        finish = made.jobs.finish[number]
        end = made.jobs.ended_at.get(spec.id, made.until) if finish == NEVER else finish
        assert made.jobs.wait(made.until)[number] == end - spec.arrived_at - held[spec.id]
        if made.jobs.start[number] != NEVER:
            assert made.jobs.first_start[number] <= made.jobs.wait(made.until)[number]
