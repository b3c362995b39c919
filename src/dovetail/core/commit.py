"""From a draft to actions: check the whole plan, then enact it.

`check` looks at the whole plan and changes nothing. A plan that passes is enacted without further checks, so
a plan is enacted whole or not at all. One more call of the policy is needed: the time at which a job changes
its place in the order (`Order.until`). It is made before the plan is enacted, while the draft can still be
rolled back.
"""

from __future__ import annotations

from typing import cast

from dovetail.core.active import (
    GRANTED,
    GROWING,
    PHASE,
    RUNNING,
    RUNS_ON,
    SPOTS,
    TERMS,
    WAITING_SINCE,
    ActiveJob,
    Saved,
)
from dovetail.core.draft import Draft, More
from dovetail.core.state import State, timer_past
from dovetail.model.action import Action, SetPower, Stop
from dovetail.model.errors import PlanError
from dovetail.model.grant import Spots, resizes, within


def check(state: State, plan: object, draft: Draft | None) -> Draft:
    """The plan that a policy returned, if it can be enacted whole; raises PlanError otherwise."""
    if plan is not draft or draft is None:
        what = (
            "a draft that is not its last"
            if isinstance(plan, Draft)
            else f"{type(plan).__name__}, not a plan"
        )
        raise PlanError(f"the policy returned {what}; return what the last call of view.draft() gave")
    review_at = draft.review_at
    if review_at is not None:
        if type(review_at) is not int:
            raise PlanError(f"a review at {review_at!r} is not a time in whole microseconds")
        if review_at <= state.now:
            raise PlanError(f"a review at {review_at} is not after now, {state.now}")
    if draft.more is not None:
        _check_answers(state, draft.more)
        _check_nodes(state, draft)
    return draft


def _check_answers(state: State, more: More) -> None:
    refused: set[str] = set()
    for answer in more.answers:
        if answer.job in refused:
            raise PlanError(f"job {answer.job} is answered again after it was refused")
        if answer.answer == "refused":
            if state.jobs[answer.job].filed is None:
                raise PlanError(f"job {answer.job} cannot be refused: it is running")
            refused.add(answer.job)


def _check_nodes(state: State, draft: Draft) -> None:
    """A node goes only when it is empty, also of jobs that this plan or an earlier one stops."""
    assert draft.more is not None
    for action in draft.more.node_actions:
        if action.on if isinstance(action, SetPower) else action.keep:
            continue
        node = state.cluster.number[action.node]
        held = [job.spots for job in state.running.values()]
        held += [saved[SPOTS] for saved in draft.touched.values() if not isinstance(saved, int)]
        if state.stopping.holds_on(node) or any(node == spot[0] for spots in held for spot in spots or ()):
            what = "switched off" if isinstance(action, SetPower) else "given back"
            raise PlanError(f"node {action.node} cannot be {what}: it is in use")


def timers(state: State, draft: Draft) -> list[tuple[ActiveJob, int | None]]:
    """When the place of each job that the draft touched changes by itself, as its policy's order says."""
    until, now = state.order.until, state.now
    assert until is not None
    found = []
    for job, saved in draft.touched.items():
        if job.spots is None:
            if isinstance(saved, int):
                continue  # it waited and still waits
        elif not isinstance(saved, int) and saved[SPOTS] == job.spots and saved[TERMS] == job.terms:
            continue  # stopped and started again where it was
        at = until(job, now)
        if at is not None and at <= now:
            raise timer_past(job, at, now)
        found.append((job, at))
    return found


def arm(state: State, found: list[tuple[ActiveJob, int | None]]) -> None:
    """Set the timers of a plan that was enacted; a job that is only granted is armed when it starts."""
    set_timer = state.timers.set
    for job, at in found:
        if job.phase is GRANTED:
            continue
        if at is None:
            job.timer = None
        else:
            set_timer(job, at)


def enact(state: State, draft: Draft, actions: list[Action]) -> dict[str, tuple[str, ...]]:
    """Stop jobs, then shrink jobs, then grow and start jobs. Both wait until their devices are free.

    Returns the jobs that were stopped, each with the jobs that were started in its place: the one that the
    plan stopped it for, or else those that wait for what it held.
    """
    stopping = state.stopping
    stopped: dict[str, tuple[str, ...]] = {}
    starting: list[ActiveJob] = []
    growing: list[tuple[ActiveJob, Saved, Spots]] = []
    for job, saved in draft.touched.items():
        new = job.spots
        if isinstance(saved, int):  # the job was waiting, since this time
            if new is not None:
                starting.append(job)
            else:
                job.waiting_since = saved
            continue
        old: Spots = saved[SPOTS]
        if old == new and saved[TERMS] == job.terms:
            number = job.start_number
            job.restore(saved)  # stopped and started again where it was: nothing happened
            job.start_number = number
            state.touch(job)
            continue
        job.awaiting = None
        if saved[PHASE] is GRANTED:  # not started: only the grant changes
            if new is None:
                job.waiting_since = saved[WAITING_SINCE]
            else:
                starting.append(job)
            continue
        if saved[PHASE] is GROWING:
            old = saved[RUNS_ON]
        if new is None or not resizes(old, new):
            job.stops += 1
            job.suspend(old)
            stopping.hold(job.id, old)
            stopped[job.id] = ()
            actions.append(Stop(job.id, job.epoch, "preempted" if new is None else "moved"))
            if new is not None:
                job.runs_on = None
                state.begin_anew(job)
                starting.append(job)
        elif new == old and saved[PHASE] is GROWING and saved[TERMS] == job.terms:
            _regrant(state, job, saved)  # it does not grow after all; the engine never heard of it
        elif within(new, old):
            if not within(old, new):
                stopping.hold(job.id, old)
            _regrant(state, job, saved)
            state.issue_resize(job, old, actions)
        else:
            growing.append((job, saved, old))
    by_node = stopping.by_node()
    for job, saved, old in growing:
        _regrant(state, job, saved)
        if blockers := stopping.blockers(job, by_node):  # it grows when they have released its devices
            job.runs_on = old
            stopping.wait(job, blockers, GROWING)
        else:
            state.issue_resize(job, old, actions)
    for job in starting:
        if blockers := stopping.blockers(job, by_node):
            stopping.wait(job, blockers, GRANTED)
            for name in blockers:
                if name in stopped and name != job.id:
                    stopped[name] += (job.id,)
        else:
            state.start_granted(job, actions)
    if draft.stopped_for:
        begun = set(starting)
        for job, other in draft.stopped_for.items():
            if job.id in stopped and other in begun:
                stopped[job.id] = (other.id,)
    return stopped


def _regrant(state: State, job: ActiveJob, saved: Saved) -> None:
    """Give a running job other spots or terms. Its service and work count on without a stop."""
    state.leave(job)
    spots, terms, held = job.spots, job.terms, job.held
    job.restore(saved)
    job.settle(state.now)
    job.spots, job.terms, job.held = spots, terms, held
    job.runs_on = None
    job.enter(RUNNING)
    state.enter(job)


def enact_more(state: State, more: More, actions: list[Action]) -> None:
    """Enact the answers, reservations, holds and node actions of a plan."""
    for answer in more.answers:
        actions.append(answer)
        job = state.jobs[answer.job]
        if answer.answer == "refused":
            state.queue.remove(job)
            state.forget(job)
        elif answer.answer == "accepted":
            job.promise = answer.value
        elif answer.answer == "demoted":
            job.priority = cast("int", answer.value)
            if job.filed is not None:
                state.queue.remove(job)
                state.queue.push(job, state.now)
            else:
                state.touch(job)
    for job_id, reservation in more.calendar.items():
        if reservation is None or job_id not in state.jobs or state.jobs[job_id].filed is None:
            state.calendar.pop(job_id, None)
        else:
            state.calendar[job_id] = reservation
    for owner, kept in more.holds.items():
        if kept is None:
            del state.holds[owner]
        else:
            state.holds[owner] = kept
            state.attention.clocked = True
    for action in more.node_actions:
        actions.append(action)
        leaves = not action.on if isinstance(action, SetPower) else not action.keep
        if leaves:
            node = state.cluster.number[action.node]
            state.closed[node] = "switched off" if isinstance(action, SetPower) else "given back"
