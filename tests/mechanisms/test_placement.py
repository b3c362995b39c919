"""Placements: what they promise is true, and a promise is all that the fast paths ask for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import pytest

from dovetail.core.room import Room
from dovetail.mechanisms.order.keys import arrival, expected_end, shortest_remaining
from dovetail.mechanisms.place.first_fit import first_fit
from dovetail.mechanisms.place.placement import Placement, packed, scattered
from dovetail.mechanisms.place.pods import spread, stacked
from dovetail.mechanisms.place.tensor_skew import by_tensor_skew
from dovetail.mechanisms.preempt.displacement import preemptive
from dovetail.mechanisms.queue.discipline import skip, strict
from dovetail.mechanisms.queue.easy_backfill import duration_class, easy
from dovetail.model import view as model
from dovetail.model.grant import Spots
from dovetail.model.job import Job, Profile, gang
from dovetail.model.view import JobView, Plan, View
from dovetail.policies.composed import Composed
from dovetail.sim.run import Run
from dovetail.testing.build import cluster, job, run

ON = cluster(nodes=4, gpus=8)
SRTF = shortest_remaining()


def on_fewest_nodes(room: model.Room, job: JobView) -> Spots | None:
    """What `packed` does, written anew."""
    return room.best(job.shape)


def on_few_nodes_if_skewed(room: model.Room, job: JobView) -> Spots | None:
    """What `by_tensor_skew` does, written anew."""
    return room.best(job.shape) if is_skewed(job) else room.anywhere(job.shape)


def is_skewed(job: JobView) -> bool:
    return job.traits.profile is None or job.traits.profile.skewed


def composed(serve: str, place: Placement) -> Composed:
    if serve == "easy":
        return Composed(order=expected_end(arrival), serve=easy(arrival), place=place, group=duration_class)
    if serve == "preemptive":
        return Composed(order=SRTF, serve=preemptive(SRTF), place=place)
    return Composed(order=arrival, serve=strict if serve == "strict" else skip, place=place)


def busy_trace(seed: int) -> list[Job]:
    """More work than the cluster holds, so that most jobs wait."""
    draw = Random(seed)
    return [
        job(
            f"j{i}",
            gpus=draw.choice((1, 1, 2, 4, 8, 12, 16)),
            seconds=draw.randrange(60, 4_000),
            at=draw.randrange(0, 20_000),
            profile=Profile(skewed=draw.random() < 0.5),
        )
        for i in range(250)
    ]


def outcome(result: Run) -> tuple[list[int | None], list[int], int, int]:
    return list(result.jobs.start), list(result.jobs.finish), result.decisions, result.steps


@pytest.mark.parametrize("serve", ["strict", "skip", "easy", "preemptive"])
def test_a_placement_that_says_it_packs_takes_the_fast_path(serve: str) -> None:
    """The same starts and finishes, and the policy is asked as rarely as with `packed`."""
    jobs = busy_trace(7)
    fast = outcome(run(jobs, ON, composed(serve, packed)))
    mine = outcome(run(jobs, ON, composed(serve, Placement(on_fewest_nodes, packs=True))))
    assert mine == fast


@pytest.mark.parametrize("serve", ["strict", "skip"])
def test_without_the_promise_the_same_jobs_start_after_more_decisions(serve: str) -> None:
    """So the test above can fail: without the promise the fast path is not taken."""
    jobs = busy_trace(7)
    starts, finishes, decisions, _ = outcome(run(jobs, ON, composed(serve, packed)))
    slow = outcome(run(jobs, ON, composed(serve, Placement(on_fewest_nodes))))
    assert slow[:2] == (starts, finishes)
    assert slow[2] > decisions


def test_without_the_promise_preemption_needs_more_decisions() -> None:
    jobs = busy_trace(7)
    fast = run(jobs, ON, composed("preemptive", packed))
    slow = run(jobs, ON, composed("preemptive", Placement(on_fewest_nodes)))
    assert slow.decisions > fast.decisions
    assert slow.finished == fast.finished == len(jobs)


@dataclass
class CountingPolicy:
    """A composed policy, with the number of calls to its placement's `find`."""

    inner: Composed
    calls: list[int] = field(default_factory=lambda: [0])

    @classmethod
    def of(cls, place: Placement) -> CountingPolicy:
        calls = [0]

        def find(room: model.Room, job: JobView) -> Spots | None:
            calls[0] += 1
            return place.find(room, job)

        return cls(composed("preemptive", Placement(find, place.packs, place.packs_if_free)), calls)

    @property
    def order(self) -> model.Order:
        return self.inner.order

    @property
    def group(self) -> None:
        return None

    @property
    def quantum(self) -> None:
        return None

    def decide(self, view: View) -> Plan:
        return self.inner.decide(view)


def test_a_placement_that_packs_some_jobs_is_served_from_the_index_for_these() -> None:
    jobs = busy_trace(11)
    theirs = CountingPolicy.of(by_tensor_skew)
    mine = CountingPolicy.of(Placement(on_few_nodes_if_skewed, packs=is_skewed, packs_if_free=True))
    silent = CountingPolicy.of(Placement(on_few_nodes_if_skewed))
    expected, found, _ = (outcome(run(jobs, ON, policy)) for policy in (theirs, mine, silent))
    assert found == expected
    assert mine.calls == theirs.calls
    assert silent.calls[0] > 1.5 * mine.calls[0]


def random_room(draw: Random) -> Room:
    room = Room(ON)
    for _ in range(draw.randrange(0, 20)):
        spots = room.anywhere(gang(draw.choice((1, 1, 2, 3, 5))))
        if spots is not None:
            room.take(spots)
    return room


@dataclass(frozen=True)
class Asking:
    """A job as far as a placement looks at it."""

    shape: object
    traits: object


@pytest.mark.parametrize(
    "place", [packed, scattered, by_tensor_skew], ids=["packed", "scattered", "tensor-skew"]
)
def test_the_promises_of_built_in_placements_are_true(place: Placement) -> None:
    draw = Random(3)
    agreed = 0
    for _ in range(400):
        room = random_room(draw)
        wanted = job(
            "x", gpus=draw.choice((1, 2, 4, 7, 8, 9, 16)), profile=Profile(skewed=draw.random() < 0.5)
        )
        asking: JobView = Asking(wanted.shape, wanted.traits)  # type: ignore[assignment]
        best, found = room.best(wanted.shape), place.find(room, asking)
        if place.packs_job(asking):
            assert found == best
        if place.prefers_packed and best is not None:
            assert found == best
        agreed += found == best
    assert agreed > 100


@pytest.mark.parametrize("place", [first_fit, spread, stacked], ids=["first-fit", "spread", "stacked"])
def test_placements_that_do_not_pack_promise_nothing(place: Placement) -> None:
    assert not place.always_packs
    assert not place.prefers_packed
    assert place.packs is False


def test_packing_always_means_packing_if_free() -> None:
    find: Callable[[model.Room, JobView], Spots | None] = on_fewest_nodes
    assert Placement(find, packs=True).prefers_packed
    assert not Placement(find, packs=is_skewed).prefers_packed
