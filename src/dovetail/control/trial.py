"""Would a job start if this were done? The change is tried on a copy of the core, by the plane's own policy.

A trial does what the plane would do with the same commands: one decision for each, and a job that is told to
stop has stopped before the next one. Nothing else happens meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from dovetail.control.standing import Standing
from dovetail.core.core import Core
from dovetail.core.record import rebuilt, take_apart
from dovetail.model.action import Start, Stop
from dovetail.model.cluster import Tenant, with_tenants
from dovetail.model.event import CANCELLED, NODE_JOINED, PRIORITISED, STOPPED, SUBMITTED, Event
from dovetail.model.grant import devices_of
from dovetail.model.job import Job, least_devices

MOST_STEPS = 50  # after one command: stops, and what follows from them

Change = Callable[[int], Event]  # a command as an event at this time


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a change would do."""

    starts: bool
    stopped: tuple[str, ...] = ()  # jobs that are preempted for it


NO = Outcome(False)


class Trial:
    """Copies of the core as it is now.

    `core` is one of them, to look at and not to change. `pause` is called before each of the others is made.
    """

    def __init__(self, standing: Standing, core: Core, now: int, pause: Callable[[], object]) -> None:
        self._standing = standing
        self._now = max(now, standing.record.now)
        self._pause = pause
        self.core = core

    def outcome(
        self, job: str, changes: Sequence[Change], tenants: Mapping[str, Tenant] | None = None
    ) -> Outcome:
        """Whether a job starts once these commands were given, one after the other.

        With `tenants` the core goes on with these first, as it does in the plane.
        """
        try:
            return self._tried(job, changes, tenants)
        except Exception:  # a policy may fail on any state: then nothing can be promised
            return NO

    def _tried(self, job: str, changes: Sequence[Change], tenants: Mapping[str, Tenant] | None) -> Outcome:
        self._pause()
        standing = self._standing
        cluster = standing.cluster if tenants is None else with_tenants(standing.cluster, tenants.values())
        core = rebuilt(Core(cluster, standing.policy, standing.seed, standing.estimator), standing.record)
        try:
            return self._played(core, job, changes, tenants is not None)
        finally:
            take_apart(core)

    def _played(self, core: Core, job: str, changes: Sequence[Change], others: bool) -> Outcome:
        """What happens in this core, which has `others` than its old tenants or not."""
        core.changed = core.changed or others
        now = self._now
        starts, stopped = False, list[str]()
        for change in changes or (None,):
            events: list[Event] = [] if change is None else [change(now)]
            for _ in range(MOST_STEPS):
                step = core.handle(now, events)
                now += 1
                starts = starts or any(
                    isinstance(action, Start) and action.job == job and _is_whole(core, action)
                    for action in step.actions
                )
                stops = [action for action in step.actions if isinstance(action, Stop)]
                stopped += [stop.job for stop in stops if stop.why != "cancelled"]
                events = [_stopped(core, stop, now) for stop in stops]
                if not events:
                    break
        running = core.running.get(job)
        return Outcome(starts and running is not None and running.started, tuple(stopped))


def _is_whole(core: Core, action: Start) -> bool:
    job = core.jobs[action.job]
    return devices_of(action.spots) >= least_devices(job.shape, job.traits)


def _stopped(core: Core, stop: Stop, now: int) -> Event:
    job = core.jobs.get(stop.job)
    return now, STOPPED, stop.job, stop.epoch, 0 if job is None else job.done


def submitted(job: Job, epoch: int = 0) -> Change:
    """A job enters the queue; one that was held may have run before."""
    return lambda now: (now, SUBMITTED, job.id, epoch, replace(job, arrived_at=now))


def cancelled(job: str) -> Change:
    return lambda now: (now, CANCELLED, job, 0, None)


def resumed(node: str) -> Change:
    return lambda now: (now, NODE_JOINED, node, 0, None)


def prioritised(job: str, priority: int) -> Change:
    return lambda now: (now, PRIORITISED, job, 0, priority)
