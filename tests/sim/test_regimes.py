"""Regimes: the rate of a job changes where one part of its work ends and the next begins."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.core.core import Core, Step
from dovetail.core.journal import job_from_json, job_to_json
from dovetail.model.event import PROGRESSED
from dovetail.model.job import Checkpoint, Job, Profile, Traits
from dovetail.model.units import SECOND
from dovetail.policies.registry import POLICIES
from dovetail.sim.world import Incident
from dovetail.testing.build import cluster, job, run
from dovetail.testing.invariants import watched
from dovetail.testing.strategies import Scene, scenes
from dovetail.testing.suite import searched

FASTER = Profile(regimes=((0.5, 1.0), (0.5, 4.0)))


def test_the_second_half_takes_a_quarter() -> None:
    told: list[tuple[int, float]] = []

    def keep(core: Core, step: Step) -> None:
        told.extend((event[0] // SECOND, event[4][1]) for event in step.events if event[1] == PROGRESSED)

    result = run([job("x", seconds=800, profile=FASTER)], cluster(gpus=1), "fifo", on_step=keep)
    assert result.jct() == [500.0]
    assert told == [(400, 4.0)]  # the core hears of it when it happens


def test_a_regime_multiplies_what_the_devices_give() -> None:
    half = replace(FASTER, speeds={"V100": 0.5})
    result = run([job("x", seconds=800, profile=half)], cluster(gpus=1, type="V100"), "fifo")
    assert result.jct() == [1_000.0]


def test_a_stop_keeps_the_regime() -> None:
    """The job is preempted for 40 s, 50 s into the fast half: 50 s of it are left."""
    jobs = [job("x", seconds=800, profile=FASTER), job("short", seconds=40, at=450)]
    result = run(jobs, cluster(gpus=1), "srtf")
    assert result.finish("short") == 490.0
    assert result.finish("x") == 540.0


@pytest.mark.parametrize(("every", "done"), [(300, 550.0), (350, 650.0)])
def test_a_job_that_restarts_in_its_slow_half_is_slow_again(every: int, done: float) -> None:
    """Its node fails after 604 s of work, and is back at 500 s: 600 s were saved, or only 350."""
    traits = Traits(profile=FASTER, checkpoint=Checkpoint(every=every * SECOND))
    gone = [Incident("n0", 451 * SECOND, 500 * SECOND)]
    result = run([job("x", seconds=800, traits=traits)], cluster(gpus=1), "fifo", incidents=gone)
    assert result.jct() == [done]


def test_a_job_reads_back_with_its_regimes() -> None:
    before = job("x", seconds=8, profile=FASTER)
    after = job_from_json(job_to_json(before))
    assert after == before
    assert hash(after.traits) == hash(before.traits)
    with pytest.raises(ValueError, match="above 0"):
        Profile(regimes=((0.5, 0.0),))


PARTS = st.lists(
    st.tuples(st.sampled_from((1, 2, 5)), st.sampled_from((0.5, 1.0, 2.0, 4.0))), min_size=1, max_size=3
)


@pytest.mark.parametrize("name", ["fifo", "srtf", "tiresias-l"])
@given(scene=scenes(lossy=True, most=8), regimes=st.lists(PARTS, min_size=8, max_size=8))
@searched(25)
def test_progress_is_the_integral_of_speed(
    name: str, scene: Scene, regimes: list[list[tuple[int, float]]]
) -> None:
    """The audit, which keeps its own books, agrees at every step."""
    jobs = tuple(_with(made, parts) for made, parts in zip(scene.jobs, regimes, strict=False))
    result = watched(POLICIES.make(name), scene.cluster, jobs, incidents=scene.incidents)
    assert set(result.audit.ended) == {made.id for made in jobs}


def _with(made: Job, parts: list[tuple[int, float]]) -> Job:
    profile = made.traits.profile or Profile()
    return replace(made, traits=replace(made.traits, profile=replace(profile, regimes=tuple(parts))))
