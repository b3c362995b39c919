"""Delay scheduling: a little patience buys a good place, too much or too little costs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from dovetail.core.room import Room
from dovetail.mechanisms.place.locality import (
    ANYWHERE,
    NODE,
    RACK,
    Localities,
    LocalityWaits,
    start_with_locality,
)
from dovetail.model.grant import nodes_of
from dovetail.model.job import Job, gang
from dovetail.model.view import JobView, Plan, View
from dovetail.sim.run import Run
from dovetail.testing.build import Profile, cluster, job, run
from dovetail.testing.claims import claim, tells_apart
from dovetail.testing.mutants import mutant

TWO = cluster(nodes=2, gpus=4)


def up_to_the_first_that_waits(jobs: Iterable[JobView]) -> Iterator[JobView]:
    for first in jobs:
        yield first
        if first.spots is None:
            return


def blocked(view: View, plan: Plan, jobs: Iterable[JobView], *rest: Any) -> LocalityWaits:
    return start_with_locality(view, plan, up_to_the_first_that_waits(jobs), *rest)


def all_time_counts(*args: Any) -> LocalityWaits:
    return start_with_locality(*args, count_all=True)


START = "dovetail.policies.delay:start_with_locality"
MUTANTS = (
    mutant(
        "delay-scheduling",
        "a wait for locality",
        "a gang is split at once",
        killed_by="test_a_short_wait_for_locality_pays",
        options={"d_node": 0.0},
    ),
    mutant(
        "delay-scheduling",
        "the wait is bounded",
        "a gang waits for one node for ever",
        killed_by="test_the_wait_for_locality_is_bounded",
        options={"d_node": 1e9},
    ),
    mutant(
        "delay-scheduling",
        "other jobs pass",
        "a job that waits for locality blocks the queue",
        killed_by="test_others_pass_meanwhile",
        replace={START: blocked},
    ),
    mutant(
        "delay-scheduling",
        "declined places count",
        "all time counts, without a free place too",
        killed_by="test_time_without_free_devices_does_not_count",
        replace={START: all_time_counts},
    ),
    mutant(
        "delay-scheduling",
        "levels of locality",
        "after one node any place will do",
        killed_by="test_a_second_delay_before_the_rack_is_given_up",
        options={"d_rack": 0.0},
    ),
)


def three_free_on_each(frees_at: float) -> list[Job]:
    """From 100 s on three GPUs are free on each node; a gang of four runs half as fast when split."""
    return [
        job("fill a", gpus=3, seconds=100),
        job("stays", gpus=1, seconds=1000),
        job("fill b", gpus=3, seconds=100),
        job("leaves", gpus=1, seconds=100 + frees_at),
        job("gang", gpus=4, seconds=10, at=100, profile=Profile(split=2.0)),
    ]


@claim("delay-scheduling", "waiting 6 s for a node that empties after 5 s ends the job at 15 s, not at 20 s")
def test_a_short_wait_for_locality_pays() -> None:
    def check(result: Run) -> None:
        assert result.jct("gang") == [15.0]

    jobs = three_free_on_each(5)
    patient = run(jobs, TWO, "delay-scheduling", d_node=6.0)
    hasty = run(jobs, TWO, "delay-scheduling", d_node=0.0)
    tells_apart(check, patient, hasty)
    assert hasty.jct("gang") == [20.0]


@claim(
    "delay-scheduling",
    "the wait for locality is bounded: the job starts split after 6 s, later than without the wait",
)
def test_the_wait_for_locality_is_bounded() -> None:
    def check(result: Run) -> None:
        assert result.wait("gang") == [6.0]
        assert result.jct("gang") == [26.0]

    jobs = three_free_on_each(12)
    relaxed = run(jobs, TWO, "delay-scheduling", d_node=6.0)
    tells_apart(check, relaxed, run(jobs, TWO, "fifo"))  # packed and patient for ever: 22 s
    assert run(jobs, TWO, "fifo").jct("gang") == [22.0]
    assert run(jobs, TWO, "delay-scheduling", d_node=0.0).jct("gang") == [20.0]


@claim("delay-scheduling", "a job that waits for a local place delays no other: a later job starts at once")
def test_others_pass_meanwhile() -> None:
    jobs = [*three_free_on_each(12), job("later", gpus=2, seconds=3, at=101)]

    def check(result: Run) -> None:
        assert result.start("later") == 101

    tells_apart(check, run(jobs, TWO, "delay-scheduling", d_node=6.0), run(jobs, TWO, "fifo"))


@claim("delay-scheduling", "only time in which the job declines a free place counts as its wait for locality")
def test_time_without_free_devices_does_not_count() -> None:
    """Until 103 s there are not even four GPUs to decline, so patience begins then."""
    jobs = three_free_on_each(30)
    jobs[2] = job("fill b", gpus=3, seconds=103)

    def check(result: Run) -> None:
        assert result.wait("gang") == [9.0]

    all_time = run(jobs, TWO, "philly", back_off=6.0, relax_after=1)
    tells_apart(check, run(jobs, TWO, "delay-scheduling", d_node=6.0), all_time)


def test_from_a_node_to_a_rack_to_anywhere() -> None:
    """Two racks of two nodes, one GPU free on each node."""
    racks = cluster(nodes=4, gpus=2, racks=2)
    room = Room(racks)
    for node in range(4):
        room.take(((node, 1, 1000, 0, 0),))
    places = Localities(room)
    assert places.place(gang(2), NODE) is None
    assert nodes_of(places.place(gang(2), RACK) or ()) == {0, 1}
    assert places.best(gang(3)) == RACK
    assert places.place(gang(3), RACK) is None
    assert places.place(gang(3), ANYWHERE) is not None
    assert places.best(gang(5)) == ANYWHERE


@claim("delay-scheduling", "locality is given up level by level: one node after 6 s, one rack after 4 s more")
def test_a_second_delay_before_the_rack_is_given_up() -> None:
    racks = cluster(nodes=2, gpus=4, racks=2)

    def after(**delays: float) -> Run:
        return run(three_free_on_each(100), racks, "delay-scheduling", **delays)

    def check(result: Run) -> None:
        assert result.wait("gang") == [10.0]

    tells_apart(check, after(d_node=6.0, d_rack=4.0), after(d_node=6.0, d_rack=0.0))
