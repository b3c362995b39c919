"""What each kind of event changes.

Events are facts: they are applied whatever the policy decides. An event of an earlier start of a job
(an older epoch) is dropped. Actions that follow from events alone, such as the start of a job that was
granted devices and waited for their release, are appended to `actions`.
"""

from __future__ import annotations

from collections.abc import Callable

from dovetail.core.active import ENDED, GRANTED, GROWING, RUNNING, ActiveJob
from dovetail.core.state import State
from dovetail.model.action import Action, Stop
from dovetail.model.event import (
    CANCELLED,
    DRAINED,
    FAILED,
    NODE_JOINED,
    NODE_LOST,
    PRICED,
    PRIORITISED,
    PROGRESSED,
    RESIZED,
    STOPPED,
    Event,
)
from dovetail.model.job import Job
from dovetail.model.loss import LossPoint

Apply = Callable[[State, Event, list[Action]], None]


def apply(state: State, event: Event, actions: list[Action]) -> None:
    """Apply one event to the state. `submitted` and `finished` are called directly: most events are these."""
    try:
        change = _CHANGES[event[1]]
    except KeyError:
        raise ValueError(f"no event has the kind {event[1]}") from None
    change(state, event, actions)


def submitted(state: State, spec: Job, epoch: int) -> ActiveJob:
    """A job waits from now on."""
    job = state.admit(spec, epoch)
    state.queue.push(job, state.now)
    state.arrived.append(job)
    return job


def finished(state: State, job_id: str, epoch: int, actions: list[Action]) -> None:
    """A job has done its work."""
    job = state.jobs.get(job_id)
    if job is None or job.epoch != epoch:
        return  # of an earlier start
    if job.phase is RUNNING and not state.stopping.held:  # most jobs end here
        state.leave(job)
        state.room.give(job.spots)  # type: ignore[arg-type]  # a running job has spots
        del state.jobs[job_id]
        job.phase = ENDED
        job.timer = None
        if state.calendar:
            state.calendar.pop(job_id, None)
        state.changed = True
        return
    _withdraw(state, job)
    state.changed = True
    state.release(job_id, actions)


def _withdraw(state: State, job: ActiveJob) -> None:
    """A job ends, wherever it is: also in the queue, if it was told to stop and ended first."""
    if job.filed is not None:
        state.queue.remove(job)
    elif job.spots is not None:
        state.leave(job)
        state.room.give(job.spots)
    state.forget(job)


def _failed(state: State, event: Event, actions: list[Action]) -> None:
    """A job has failed: it waits again if it has retries left, and ends otherwise."""
    _, _, job_id, epoch, (_, kept) = event
    job = state.jobs.get(job_id)
    if job is None or job.epoch != epoch:
        return
    if job.fails < job.traits.retries:
        waits, outdated = job.filed is not None, job.done != kept
        if not waits:
            spots = job.spots
            assert spots is not None
            state.leave(job)
            state.room.give(spots)
            job.end(event[0])
        job.awaiting = job.suspended_on = None
        job.fails += 1
        job.done = kept
        if not waits:
            state.enqueue(job)
        elif outdated:  # its key may depend on the work that is left
            state.refile(job)
        if state.order.until is not None:
            state.arm(job)
    else:
        _withdraw(state, job)
    state.changed = True
    state.release(job_id, actions)


def _stopped(state: State, event: Event, actions: list[Action]) -> None:
    """A job has released its devices; `kept` is the work that the next attempt resumes from."""
    _, _, job_id, epoch, kept = event
    job = state.jobs.get(job_id)
    if job is not None and job.epoch == epoch:
        if job.phase is RUNNING or job.phase is GROWING:  # the core did not ask: devices taken from outside
            state.vacate(job)
            job.awaiting = None
            job.stops += 1
            job.suspended_on = None
            state.enqueue(job)
            state.changed = True
            if state.order.until is not None:
                state.arm(job)
        if job.done != kept:
            job.done = kept
            if job.filed is not None or job.phase is GRANTED:  # its key may depend on the work that is left
                state.refile(job)
    state.release(job_id, actions)


def _resized(state: State, event: Event, actions: list[Action]) -> None:
    """A job has released the devices that it was told to give up.

    If it was told to stop since, its devices are released when it has stopped, not now.
    """
    job = state.jobs.get(event[2])
    if job is not None and job.epoch == event[3] and job.started:
        state.release(job.id, actions)


def _progressed(state: State, event: Event, actions: list[Action]) -> None:
    """A running job has done this work, and goes on at this rate."""
    time, _, job_id, epoch, fact = event
    job = state.jobs.get(job_id)
    if job is None or job.epoch != epoch or not (job.phase is RUNNING or job.phase is GROWING):
        return
    job.settle(time)
    job.done, job.rate = fact[0], fact[1]
    if len(fact) > 2 and fact[2] is not None:
        job.noise_scale = fact[2]
    if len(fact) > 3:
        job.loss = LossPoint(fact[3], fact[4], fact[0])
    state.touch(job)
    if state.order.until is not None:
        state.arm(job)
    state.changed = True


def _cancelled(state: State, event: Event, actions: list[Action]) -> None:
    """A user has cancelled a job, or it is held: the core forgets it."""
    time, _, job_id, _, _ = event
    job = state.jobs.get(job_id)
    if job is None:
        return
    if job.filed is not None:
        state.queue.remove(job)
    elif job.spots is not None:
        runs_on = job.now_on if job.started else None
        state.leave(job)
        state.room.give(job.spots)
        job.end(time)
        if runs_on is not None:
            state.stopping.hold(job_id, runs_on)
            actions.append(Stop(job_id, job.epoch, "cancelled"))
    state.forget(job)
    state.changed = True


def _prioritised(state: State, event: Event, actions: list[Action]) -> None:
    """A job has another priority."""
    job = state.jobs.get(event[2])
    if job is None:
        return
    job.priority = event[4]
    state.refile(job)
    state.changed = True
    state.attention.rests = False


def _priced(state: State, event: Event, actions: list[Action]) -> None:
    """The price of a node has changed."""
    state.prices[state.cluster.number[event[2]]] = event[4]
    state.changed = True


def _drained(state: State, event: Event, actions: list[Action]) -> None:
    """A node accepts no new jobs; the jobs on it go on."""
    node = state.cluster.number[event[2]]
    state.closed[node] = str(event[4])
    state.room.close(node)
    state.departures.touch(node)
    state.changed = True


def _node_lost(state: State, event: Event, actions: list[Action]) -> None:
    """A node is lost: the jobs on it wait again. A job that was about to grow onto it goes on as it is."""
    _drained(state, event, actions)
    node = state.cluster.number[event[2]]
    there = [job for job in state.running.values() if any(node == spot[0] for spot in job.spots or ())]
    for job in state.jobs.values():
        if job.suspended_on is not None and any(node == spot[0] for spot in job.suspended_on):
            job.suspended_on = None
    for job in sorted(there, key=lambda job: job.seq):
        runs_on = job.now_on if job.started else None
        if runs_on is not None and all(node != spot[0] for spot in runs_on):
            state.stop_growing(job)
            continue
        job.suspended_on = None
        state.vacate(job)
        job.stops += 1
        if runs_on is not None:
            state.stopping.hold(job.id, runs_on)
            actions.append(Stop(job.id, job.epoch, "node lost"))
        job.awaiting = None
        state.enqueue(job)
        if state.order.until is not None:
            state.arm(job)


def _node_joined(state: State, event: Event, actions: list[Action]) -> None:
    """A node accepts jobs, for the first time or again."""
    node = state.cluster.number[event[2]]
    state.closed.pop(node, None)
    state.room.open(node)
    state.departures.touch(node)
    state.changed = True


_CHANGES: dict[int, Apply] = {
    FAILED: _failed,
    STOPPED: _stopped,
    RESIZED: _resized,
    PROGRESSED: _progressed,
    NODE_LOST: _node_lost,
    NODE_JOINED: _node_joined,
    DRAINED: _drained,
    PRICED: _priced,
    CANCELLED: _cancelled,
    PRIORITISED: _prioritised,
}


# -- times that were known beforehand


def ring(state: State) -> None:
    """Apply what is due by now: a review, changes of place in the order, holds that end."""
    now, attention = state.now, state.attention
    if attention.review_at is not None and attention.review_at <= now:
        attention.review_at = None
        state.changed = True
        attention.rests = False
    timers = state.timers
    while (at := timers.first()) is not None and at <= now:
        _change_place(state, timers.pop()[2], at)
    if state.holds:
        for owner in [owner for owner, (_, until) in state.holds.items() if until <= now]:
            spots = state.holds.pop(owner)[0]
            state.room.give(spots)
            state.departures.touched(spots)
            state.changed = True


def _change_place(state: State, job: ActiveJob, at: int) -> None:
    """A job's place in the order changes by itself, at the time that `Order.until` gave."""
    order = state.order
    if order.stage is not None:
        job.stage = order.stage(job, at)
    job.stage_since = at
    if job.spots is None:
        job.forgiven = job.service
    state.refile(job)
    state.arm(job)
    state.changed = True
