"""Play events in order: the same inputs give the same steps, byte for byte."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heappop

from dovetail.core.core import Core, Step
from dovetail.core.hearing import hear
from dovetail.model.action import Action, Start
from dovetail.model.errors import PlanError, PolicyError
from dovetail.model.event import FINISHED, SUBMITTED, Event
from dovetail.model.job import Job
from dovetail.sim.world import World

FOREVER = 1 << 62
ENDLESS = 1_000  # steps at one instant in which no job arrives or ends


def simulate(
    core: Core, world: World, jobs: Iterable[Job], until: int | None = None, *, every_step: bool = True
) -> Iterator[Step]:
    """One step for each instant at which something happens; with a round-based policy, for each such round.

    `jobs` are in order of arrival. All events of one instant are applied before the policy is asked. Without
    `every_step`, events that need no decision make no step: the same decisions in fewer steps.
    """
    if every_step or until is not None or core.policy.quantum is not None:
        return _steps(core, world, jobs, until)
    return _decisive_steps(core, world, jobs)


def _steps(core: Core, world: World, jobs: Iterable[Job], until: int | None) -> Iterator[Step]:
    heap, holds, submit, handle = world.heap, world.holds, world.submit, core.handle
    start, perform, wake = world.start, world.perform, core.attention.wake
    rounds = core.policy.quantum is not None
    last, counted = -1, (-1, 0)
    arrivals = iter(jobs)
    upcoming = next(arrivals, None)
    arrives = upcoming.arrived_at if upcoming is not None else FOREVER
    while True:
        time = heap[0][0] if heap else FOREVER
        now = arrives if arrives < time else time
        if rounds and now != FOREVER:
            now = wake(now)
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
            time = heap[0][0] if heap else FOREVER
        while arrives <= now and upcoming is not None:
            submit(upcoming)
            events.append((arrives, SUBMITTED, upcoming.id, 0, upcoming))
            upcoming = next(arrivals, None)
            arrives = upcoming.arrived_at if upcoming is not None else FOREVER
        if not events and now != alarm:
            continue
        step = handle(now, events)
        if now != last:
            last = now
        else:
            counted = _counted(step, counted)
        for action in step[4]:
            if type(action) is Start:
                start(now, action)
            else:
                perform(now, action)
        yield step


def _decisive_steps(core: Core, world: World, jobs: Iterable[Job]) -> Iterator[Step]:
    """Only the steps from which actions may follow; the core hears of all other events by `hear`."""
    heap, holds, submit = world.heap, world.holds, world.submit
    start, perform = world.start, world.perform
    arrivals = iter(jobs)
    upcoming = next(arrivals, None)
    arrives = upcoming.arrived_at if upcoming is not None else FOREVER
    time = heap[0][0] if heap else FOREVER
    alarm = FOREVER
    last, counted = -1, (-1, 0)
    owed = False  # the core heard an event of this instant, and may still have to decide
    step: Step | None
    while True:
        if alarm < time and alarm < arrives:
            now, step = alarm, core.handle(alarm, [])
        elif time <= arrives:
            if time == FOREVER:
                return
            now, event = time, heappop(heap)
            true = holds(event)  # this may add events of neighbours at the same instant
            time = heap[0][0] if heap else FOREVER
            more = time == now or arrives == now  # noqa: PLR1714  # a tuple takes twice as long
            if true:
                owed = more
                step = hear(core, event, more)
            elif owed and not more:
                owed = False
                step = core.handle(now, [])
            else:
                continue
        elif upcoming is not None:
            now, job = arrives, upcoming
            upcoming = next(arrivals, None)
            arrives = upcoming.arrived_at if upcoming is not None else FOREVER
            submit(job)
            step = hear(core, (now, SUBMITTED, job.id, 0, job), arrives == now)
        if step is None:
            continue
        if now != last:
            last = now
        else:
            counted = _counted(step, counted)
        for action in step[4]:
            if type(action) is Start:
                start(now, action)
            else:
                perform(now, action)
        time = heap[0][0] if heap else FOREVER
        alarm = FOREVER if core.alarm is None else core.alarm
        yield step


def _counted(step: Step, counted: tuple[int, int]) -> tuple[int, int]:
    """The instant, and its steps but the first in which no job arrived or ended, with this one.

    A policy that resizes jobs back and forth would go on for ever where a resize takes no time.
    """
    again = counted[1] if counted[0] == step.now else 0
    if any(event[1] in (SUBMITTED, FINISHED) for event in step.events):
        return step.now, again
    if again >= ENDLESS:
        last = ", ".join(map(_in_short, step.actions[:3])) or "none"
        cause = PlanError(
            f"it decided {again:,} times at this instant, and no job arrived or ended meanwhile. The last"
            f" actions: {last}. What a policy gives a job must not depend on what the job has at the moment,"
            " or it comes to no end"
        )
        raise PolicyError(step, cause) from cause
    return step.now, again + 1


def _in_short(action: Action) -> str:
    return f"{type(action).__name__} {getattr(action, 'job', '')}".rstrip()
