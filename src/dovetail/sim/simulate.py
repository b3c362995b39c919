"""Play events in order: the same inputs give the same steps, byte for byte."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heappop

from dovetail.core.core import Core, Step
from dovetail.model.event import SUBMITTED, Event
from dovetail.model.job import Job
from dovetail.sim.world import World


def simulate(core: Core, world: World, jobs: Iterable[Job], until: int | None = None) -> Iterator[Step]:
    """One step for each moment at which the core wants to hear something.

    `jobs` come in order of arrival. All that is due at one instant is handed over at once, so that the
    policy is asked when everything of that instant is known.
    """
    heap, holds, perform, handle = world.heap, world.holds, world.perform, core.handle
    rounds = core.policy.quantum is not None
    arrivals = iter(jobs)
    upcoming = next(arrivals, None)
    while True:
        time: int | None = heap[0][0] if heap else None
        if upcoming is not None and (time is None or upcoming.arrived_at < time):
            time = upcoming.arrived_at
        now = core.wake(time) if rounds and time is not None else time
        alarm = core.alarm
        if alarm is not None and (now is None or alarm < now):
            now = alarm
        if now is None or (until is not None and now > until):
            return
        events: list[Event] = []
        while heap and heap[0][0] <= now:
            event = heappop(heap)
            if holds(event):
                events.append(event)
        while upcoming is not None and upcoming.arrived_at <= now:
            world.submit(upcoming)
            events.append((upcoming.arrived_at, SUBMITTED, upcoming.id, 0, upcoming))
            upcoming = next(arrivals, None)
        if not events and now != alarm:
            continue
        step = handle(now, events)
        for action in step.actions:
            perform(now, action)
        yield step
