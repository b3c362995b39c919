"""A policy that does at random anything a policy may do: a rule that it cannot break, no policy breaks.

It starts, stops, moves, grows, shrinks, holds, reserves, promises and demotes by `model.chance`, while nodes
fail, come back and are drained and users cancel. After some decisions it starts jobs in order only, so that
every job must end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from dovetail.model.chance import chance
from dovetail.model.estimate import task_range
from dovetail.model.event import CANCELLED, DRAINED, NODE_JOINED, Event
from dovetail.model.grant import Spots, Terms
from dovetail.model.units import SECOND
from dovetail.model.view import JobView, Order, Plan, Reservation, View
from dovetail.testing.invariants import picture, watched
from dovetail.testing.strategies import Scene, scenes
from dovetail.testing.suite import forks_alike, leaves_no_trace, repeats_itself, replays, searched

CALM = 60  # decisions after which it starts jobs in order


def _key(job: JobView, now: int) -> tuple[int, int]:
    return (-job.priority, job.arrived_at)


def _yields(job: JobView, now: int) -> tuple[int, ...]:
    return (-job.ends_at(now),)


RANKED = Order(_key, _yields)


@dataclass(frozen=True)
class Chaos:
    """A policy that decides at random."""

    order: Order = RANKED
    group: Callable[[JobView], str] | None = None
    quantum: int | None = None

    def decide(self, view: View) -> Plan:
        plan = view.draft()
        luck = chance(view)
        if view.number > CALM:
            for owner in view.holds:
                plan.release(owner)
            while (first := view.queue.head()) is not None and plan.start(first):
                pass
            return plan
        for _ in range(luck.randint(1, 6)):
            luck.choice((_start, _start, _start, _stop, _shift, _resize, _hold, _book))(view, plan, luck)
        plan.memory = view.number
        plan.review_at = view.now + luck.randint(1, 100) * SECOND
        return plan


def _some(jobs: list[JobView], luck: Random) -> JobView | None:
    return luck.choice(sorted(jobs, key=lambda j: j.seq)) if jobs else None


def _start(view: View, plan: Plan, luck: Random) -> None:
    job = _some(list(view.queue), luck)
    if job is not None:
        spots = luck.choice((plan.room.best, plan.room.anywhere))(job.shape)
        if spots is not None:
            plan.start(job, spots, Terms(clock=luck.choice((1.0, 1.0, 0.5))))


def _stop(view: View, plan: Plan, luck: Random) -> None:
    job = _some(list(view.running.values()), luck)
    if job is not None:
        before = job.spots
        plan.stop(job)
        if luck.random() < 0.3 and all(plan.room.is_open(spot[0]) for spot in before or ()):
            plan.start(job, before, job.terms)  # stopped and put back


def _shift(view: View, plan: Plan, luck: Random) -> None:
    """Grow or shrink in place, move, or change the terms."""
    job = _some(list(view.running.values()), luck)
    if job is None or job.spots is None or not all(plan.room.is_open(spot[0]) for spot in job.spots):
        return
    spots: Spots | None = job.spots
    roll = luck.random()
    if roll < 0.4 and job.traits.elastic and job.shape.plain and len(job.spots) == 1:
        node, devices, *_ = job.spots[0]
        most = max(job.traits.most or 0, job.shape.tasks)
        if luck.random() < 0.5 and devices.bit_count() > (job.traits.least or job.shape.tasks):
            devices &= devices - 1
        elif devices.bit_count() < most and (free := plan.room.free_on(node)):
            devices |= free & -free
        spots = ((node, devices, 1000, 0, 0),)
    elif roll < 0.7:
        spots = plan.room.anywhere(job.shape)
    if spots is not None:
        plan.shift(job, spots, Terms(clock=luck.choice((1.0, 0.5))))


def _resize(view: View, plan: Plan, luck: Random) -> None:
    """Any number of tasks that the job accepts. If there is no room for them, nothing changes."""
    job = _some(list(view.running.values()), luck)
    if job is not None:
        before = picture(view)  # type: ignore[arg-type]  # the core itself, handed out as a view
        if plan.resize(job, luck.randint(*task_range(job.shape, job.traits))):
            assert job.spots is not None
        else:
            assert picture(view) == before  # type: ignore[arg-type]


def _hold(view: View, plan: Plan, luck: Random) -> None:
    owner = f"hold{view.number}.{luck.random()}"
    node = luck.randrange(len(view.cluster.nodes))
    free = plan.room.free_on(node)
    if free and owner not in view.holds and luck.random() < 0.5:
        plan.hold(owner, ((node, free & -free, 1000, 0, 0),), view.now + luck.randint(1, 50) * SECOND)
    elif view.holds and luck.random() < 0.2 and luck.random() < 0.5:
        plan.memory = None


def _book(view: View, plan: Plan, luck: Random) -> None:
    job = _some(list(view.queue), luck)
    if job is None:
        return
    plan.reserve(job, Reservation(view.now + SECOND, None, ((0, 1),)))
    if luck.random() < 0.5:
        plan.accept(job, view.now + job.estimate)
    elif luck.random() < 0.5:
        plan.demote(job, luck.randint(0, 2), "at random")


@st.composite
def befalls(draw: st.DrawFn, scene: Scene) -> list[Event]:
    """Users cancel; nodes are drained for a while."""
    events: list[Event] = []
    for job in scene.jobs:
        if draw(st.integers(0, 9)) == 0:
            events.append((job.arrived_at + draw(st.integers(0, 500)) * SECOND, CANCELLED, job.id, 0, None))
    if draw(st.booleans()):
        node, begun = draw(st.sampled_from(scene.cluster.nodes)).name, draw(st.integers(1, 500))
        events.append((begun * SECOND, DRAINED, node, 0, "maintenance"))
        events.append(((begun + 2_000) * SECOND, NODE_JOINED, node, 0, None))
    return events


def makers() -> st.SearchStrategy[Callable[[], Chaos]]:
    quanta = st.sampled_from((None, None, 60 * SECOND))
    groups = st.sampled_from((None, lambda job: job.tenant))
    return st.builds(lambda quantum, group: partial(Chaos, quantum=quantum, group=group), quanta, groups)


@given(make=makers(), data=st.data(), scene=scenes(lossy=True, most=12), seed=st.integers(0, 1_000))
@searched(150)
def test_chaos_breaks_no_rule(
    make: Callable[[], Chaos], data: st.DataObject, scene: Scene, seed: int
) -> None:
    events = data.draw(befalls(scene))
    result = watched(make(), scene.cluster, scene.jobs, incidents=scene.incidents, events=events, seed=seed)
    assert set(result.audit.ended) == {job.id for job in scene.jobs}
    assert not result.core.holds
    assert result.core.room.free_gpus == scene.cluster.gpus


@given(make=makers(), scene=scenes(lossy=True, most=12), at=st.integers(1, 40))
@searched(40)
def test_chaos_forks_replays_and_leaves_no_trace(make: Callable[[], Chaos], scene: Scene, at: int) -> None:
    repeats_itself(make, scene)
    replays(make, scene)
    forks_alike(make, scene, at)
    leaves_no_trace(make, scene)


@given(make=makers(), scene=scenes(most=12))
@searched(20)
def test_no_alarm_rings_twice(make: Callable[[], Chaos], scene: Scene) -> None:
    """Between two steps at one instant something must have happened: else they would go on for ever."""
    steps = watched(make(), scene.cluster, scene.jobs, check=False).steps
    for before, after in pairwise(steps):
        assert after.now > before.now or after.events
