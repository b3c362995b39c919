"""The slots of a composed policy, one by one and together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.core.core import Core, Step
from dovetail.mechanisms.allocate.sizes import Sizes
from dovetail.mechanisms.estimate.measured_speeds import MeasuredSpeeds
from dovetail.mechanisms.order.keys import arrival, shortest
from dovetail.mechanisms.place.placement import Placement, scattered
from dovetail.mechanisms.queue.discipline import skip, strict
from dovetail.mechanisms.resize.resizing import elastic
from dovetail.model.action import Resize, Start, Stop
from dovetail.model.chance import chance
from dovetail.model.cluster import parse_cluster
from dovetail.model.errors import PolicyError
from dovetail.model.estimate import task_range
from dovetail.model.grant import devices_of
from dovetail.model.job import Checkpoint, Job, Profile, Traits
from dovetail.model.units import SECOND
from dovetail.model.view import JobView, Plan, View
from dovetail.policies.composed import Composed
from dovetail.sim.run import Run
from dovetail.testing.build import cluster, job, run
from dovetail.testing.invariants import watched
from dovetail.testing.strategies import Scene, scenes
from dovetail.testing.suite import forks_alike, leaves_no_trace, repeats_itself, replays, searched

ELASTIC = Traits(least=1, most=8)
ONE_NODE = cluster(nodes=1, gpus=8)


def even(view: View) -> dict[str, int]:
    """Every job gets an equal part of the cluster, as far as it can use it."""
    jobs = sorted([*view.running.values(), *view.queue], key=lambda mine: mine.seq)
    part = view.cluster.gpus // max(len(jobs), 1)
    sizes = {}
    for mine in jobs:
        least, most = task_range(mine.shape, mine.traits)
        sizes[mine.id] = min(most, part) if part >= least else 0
    return sizes


def actions(jobs: list[Job], policy: Composed, **world: Any) -> tuple[Run, list[tuple[float, str, str, int]]]:
    """What was done when: (second, verb, job, GPUs)."""
    done: list[tuple[float, str, str, int]] = []

    def note(core: Core, step: Step) -> None:
        for action in step.actions:
            assert isinstance(action, Start | Stop | Resize)
            held = 0 if isinstance(action, Stop) else devices_of(action.spots)
            done.append((step.now / SECOND, type(action).__name__, action.job, held))

    return run(jobs, ONE_NODE, policy, on_step=note, **world), done


def test_without_slots_jobs_are_served_as_they_asked() -> None:
    asked = []

    def serve(view: View, place: Placement) -> Plan:
        asked.append(place)
        return skip(view, place)

    run([job("a")], ONE_NODE, Composed(order=arrival, serve=serve, place=scattered))
    assert set(asked) == {scattered}


def test_a_policy_with_slots_has_no_discipline_of_its_own() -> None:
    with pytest.raises(ValueError, match="cannot have serve too"):
        Composed(order=arrival, serve=strict, allocate=even)
    made = Composed(order=arrival, allocate=even, resize=elastic)
    assert replace(made, place=scattered).allocate is even


def test_allocate_alone_sizes_jobs_when_they_start() -> None:
    jobs = [job("a", gpus=4, seconds=100, traits=ELASTIC), job("b", gpus=4, at=10, seconds=100)]
    _, done = actions(jobs, Composed(order=arrival, allocate=even))
    assert done == [(0, "Start", "a", 8), (50, "Start", "b", 4)]


def test_with_resize_running_jobs_grow_and_shrink() -> None:
    jobs = [job(name, gpus=4, seconds=100, at=at, traits=ELASTIC) for name, at in (("a", 0), ("b", 10))]
    result, done = actions(jobs, Composed(order=arrival, allocate=even, resize=elastic))
    assert done == [
        (0, "Start", "a", 8),
        (10, "Resize", "a", 4),
        (10, "Start", "b", 4),
        (90, "Resize", "b", 8),
    ]
    assert result.jct("a") == [90.0]
    assert result.preemptions == 0


def test_a_job_without_a_share_waits_and_one_that_loses_it_stops() -> None:
    def newest(view: View) -> dict[str, int]:
        jobs = [*view.running.values(), *view.queue]
        last = max((mine.seq for mine in jobs), default=0)
        return {mine.id: mine.shape.tasks if mine.seq == last else 0 for mine in jobs}

    jobs = [job("a", gpus=4, seconds=100), job("b", gpus=4, at=10, seconds=10)]
    _, done = actions(jobs, Composed(order=arrival, allocate=newest))
    assert done == [(0, "Start", "a", 4), (10, "Stop", "a", 0), (10, "Start", "b", 4), (20, "Start", "a", 4)]
    kept = [job("a", gpus=4, seconds=100, preemptible=False), jobs[1]]
    assert ("Stop", "a") not in [
        row[1:3] for row in actions(kept, Composed(order=arrival, allocate=newest))[1]
    ]


def test_a_size_that_a_job_does_not_take_is_a_mistake() -> None:
    def nine(view: View) -> dict[str, int]:
        return {mine.id: 9 for mine in view.queue}

    with pytest.raises(PolicyError, match="job a runs with 1 to 8 tasks, not 9"):
        run([job("a", traits=ELASTIC)], ONE_NODE, Composed(order=arrival, allocate=nine))


def test_a_job_starts_smaller_if_its_share_does_not_fit_together() -> None:
    def all_of_it(view: View) -> dict[str, int]:
        return {mine.id: min(8, task_range(mine.shape, mine.traits)[1]) for mine in view.queue}

    jobs = [job("rigid", gpus=3, seconds=100), job("a", gpus=1, at=1, seconds=10, traits=ELASTIC)]
    _, done = actions(jobs, Composed(order=arrival, allocate=all_of_it))
    assert done[1] == (1, "Start", "a", 5)


def test_no_job_restarts_in_order_to_grow() -> None:
    """When one job shrinks and another grows, the second waits until the devices are free."""

    def swapped(view: View) -> dict[str, int]:
        large, small = ("a", "b") if view.now < 10 * SECOND else ("b", "a")
        return {large: 6, small: 2}

    traits = replace(ELASTIC, checkpoint=Checkpoint(save=5 * SECOND, restore=60 * SECOND))
    jobs = [job(name, gpus=4, seconds=1_000, traits=traits) for name in "ab"]
    jobs.append(job("tick", gpus=1, at=10, seconds=1))
    result, done = actions(jobs, Composed(order=arrival, allocate=swapped, resize=elastic))
    assert done[:2] == [(0, "Start", "a", 6), (0, "Start", "b", 2)]
    assert (10, "Resize", "a", 2) in done
    assert any(row[1:] == ("Resize", "b", 6) for row in done)
    assert result.preemptions == 0


def test_a_job_without_gpus_does_not_grow() -> None:
    policy = Composed(order=arrival, allocate=even, place=scattered, resize=elastic)
    jobs = [job("cpu", gpus=0, minutes=2, traits=ELASTIC), job("gpu", minutes=1, at=30)]
    assert run(jobs, ONE_NODE, policy).finished == 2


def test_waiting_jobs_start_in_order() -> None:
    def all_as_asked(view: View) -> Sizes:
        return {}

    jobs = [job("first", gpus=8, seconds=10), *(job(f"{n}", gpus=8, at=1, seconds=n) for n in (30, 10, 20))]
    _, done = actions(jobs, Composed(order=shortest, allocate=all_as_asked))
    assert [row[2] for row in done] == ["first", "10", "20", "30"]


def test_share_is_asked_for_jobs_without_free_devices() -> None:
    def halves(view: View, plan: Plan, mine: JobView) -> bool:
        host = next(iter(view.running.values()))
        half = tuple((node, devices, 500, 0, 0) for node, devices, *_ in host.spots or ())
        return plan.shift(host, half) and plan.start(mine, half)

    profile = Profile(use=0.4)
    jobs = [job(name, gpus=8, seconds=100, profile=profile) for name in "ab"]
    result, _ = actions(jobs, Composed(order=arrival, share=halves))
    assert result.jct() == [100.0, 100.0]  # both at once


def test_an_estimator_of_its_own_learns_and_is_kept_in_memory() -> None:
    seen: list[float] = []

    def look(view: View) -> dict[str, int]:
        seen.extend(view.speed(mine, type="K80").speed for mine in view.queue)
        assert view.memory is None or isinstance(view.memory, MeasuredSpeeds)
        return {}

    slow = Profile(speeds={"K80": 0.25})
    jobs = [job(f"j{at}", seconds=10, at=at, model="lm", profile=slow) for at in (0, 20, 30)]
    run(jobs, parse_cluster("1x1:K80"), Composed(order=arrival, allocate=look, estimate=MeasuredSpeeds()))
    declared = parse_cluster("1x1:K80").type_speeds["K80"]
    assert seen[0] == declared  # nothing was measured yet
    assert seen[-1] == 0.25


def at_random(view: View) -> dict[str, int]:
    """Any size that a job takes, or none; calm after a while, so that all jobs end."""
    luck, sizes = chance(view), {}
    for mine in sorted([*view.running.values(), *view.queue], key=lambda mine: mine.seq):
        if view.number > 60:
            sizes[mine.id] = mine.shape.tasks
        elif luck.random() < 0.8:
            sizes[mine.id] = luck.choice((0, luck.randint(*task_range(mine.shape, mine.traits))))
    return sizes


def makers() -> st.SearchStrategy[Callable[[], Composed]]:
    def make(quantum: int | None, loose: bool) -> Callable[[], Composed]:
        options: dict[str, Any] = {"place": scattered} if loose else {}
        return lambda: Composed(order=arrival, allocate=at_random, resize=elastic, quantum=quantum, **options)

    return st.builds(make, st.sampled_from((None, None, 60 * SECOND)), st.booleans())


@given(make=makers(), scene=scenes(lossy=True, most=12), seed=st.integers(0, 1_000))
@searched(80)
def test_random_sizes_break_no_rule(make: Callable[[], Composed], scene: Scene, seed: int) -> None:
    watched(make(), scene.cluster, scene.jobs, incidents=scene.incidents, seed=seed)


@given(make=makers(), scene=scenes(lossy=True, most=12), at=st.integers(1, 40))
@searched(25)
def test_random_sizes_fork_replay_and_leave_no_trace(
    make: Callable[[], Composed], scene: Scene, at: int
) -> None:
    repeats_itself(make, scene)
    replays(make, scene)
    forks_alike(make, scene, at)
    leaves_no_trace(make, scene)
