"""Play events in order: the same inputs give the same steps, byte for byte."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heappop

from dovetail.core.core import ARRIVALS, DEPARTURES, Core, Step
from dovetail.model.event import FINISHED, SUBMITTED, Event
from dovetail.model.job import Job
from dovetail.sim.world import World

FOREVER = 1 << 62


def simulate(
    core: Core, world: World, jobs: Iterable[Job], until: int | None = None, *, every_step: bool = True
) -> Iterator[Step]:
    """One step for each moment at which the core wants to hear something.

    `jobs` come in order of arrival. All that is due at one instant is handed over at once, so that the
    policy is asked when everything of that instant is known. Unless `every_step` is wanted, what the core
    defers is told together with what comes next: the same decisions in fewer steps.
    """
    heap, holds, submit, perform, handle = world.heap, world.holds, world.submit, world.perform, core.handle
    rounds = core.policy.quantum is not None
    arrivals = iter(jobs)
    upcoming = next(arrivals, None)
    arrives = upcoming.arrived_at if upcoming is not None else FOREVER
    plainly = not rounds and until is None
    while True:
        time = heap[0][0] if heap else FOREVER
        now = arrives if arrives < time else time
        merging = False
        if not plainly:
            if rounds and now != FOREVER:
                now = core.wake(now)
        elif not every_step:
            defers = core.defers
            if defers == DEPARTURES:
                if upcoming is not None:
                    now, merging = arrives, True
            elif defers == ARRIVALS and heap:
                now = time
        alarm = core.alarm
        if alarm is not None and alarm < now:
            now = alarm
        if now == FOREVER or (until is not None and now > until):
            return
        events: list[Event] = []
        while time <= now:
            event = heappop(heap)
            if holds(event):
                events.append(event)
                if merging and event[1] != FINISHED:
                    now = event[0]
            time = heap[0][0] if heap else FOREVER
        while arrives <= now and upcoming is not None:
            submit(upcoming)
            events.append((arrives, SUBMITTED, upcoming.id, 0, upcoming))
            upcoming = next(arrivals, None)
            arrives = upcoming.arrived_at if upcoming is not None else FOREVER
        if not events and now != alarm:
            continue
        step = handle(now, events)
        for action in step.actions:
            perform(now, action)
        yield step
