"""Questions to a plane that runs, answered from the state of one moment.

Slow work (a forecast) is done on the thread of the caller, on a copy of the core: the loop goes on. Questions
that cost the loop more than a few milliseconds are marked as slow, so that it does others first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from dovetail.control import preemptions
from dovetail.control.cluster_state import NodeState, Overview, cluster_overview, node_states
from dovetail.control.forecast import Forecast, Forecasts, Standing, Window, end_of_waiting
from dovetail.control.limits import Amounts, Limit, Scope
from dovetail.control.plane import Plane
from dovetail.control.plane_state import CoreSnapshot, PlaneState
from dovetail.control.request import JobRequest
from dovetail.control.states import State
from dovetail.control.submission import checked_job, tenant_of
from dovetail.control.tenant_shares import ShareState, tenant_shares
from dovetail.control.tokens import Caller
from dovetail.control.why import OutOfUse, Why, expected_end, explained, out_of_use, says_how_long
from dovetail.core.journal import Header
from dovetail.core.snapshot import to_json
from dovetail.model.errors import InputError
from dovetail.model.job import Job


class LimitState(NamedTuple):
    """Limits as a caller sees them."""

    own: list[tuple[Limit, int | None]]  # with the jobs that count against it
    rows: list[tuple[Scope, Amounts]]


class _Waiting(NamedTuple):
    """A job of which the answer is known but for when it starts."""

    answer: Why
    forecasts: Forecasts
    standing: Standing | None  # None: the last forecast is still good
    remaining: int | None  # of its run time, if its user told how long it takes
    time_limit: int | None


def why(plane: Plane, job: str, visible: Callable[[str], bool] = lambda tenant: True) -> Why:
    """What a job waits for, which jobs hold it, what would help, and when the job may start.

    `visible` tells whether jobs of a tenant may be named to the caller.
    """

    def run(state: PlaneState, now: int) -> _Waiting:
        ledger = state.ledger
        record = ledger.index.records.get(job)
        if record is None:
            raise InputError(f"job {job} is over: it waits for nothing; see dovetail describe {job}")
        answer = explained(ledger, record, now, visible, state.quotas.too_much)
        answer.ends_at = expected_end(ledger, record, now)
        if named := preemptions.for_which_jobs(record.preempted_by, visible):
            answer.sentence = f"{answer.sentence} It was preempted for {named}."
            answer.preempted_by = preemptions.told(record.preempted_by, visible)
        active = ledger.core.jobs.get(job)
        known = active is not None and says_how_long(ledger, record)
        remaining = active.remaining_at(now) if known and active is not None else None
        if answer.state == State.PENDING and state.deciding.failure is not None:
            answer.sentence = f"{answer.sentence} ({state.deciding.sentence}.)"
        standing = None if answer.never else state.forecasts.core_for(ledger.core, job)
        return _Waiting(answer, state.forecasts, standing, remaining, record.time_limit)

    answer, forecasts, standing, remaining, limit = plane.ask(run, slow=True)
    if answer.state == State.PENDING and not answer.never:
        answer.starts_at = forecasts.starts_at(standing, job)
        if answer.starts_at is not None and remaining is not None:
            answer.ends_at = end_of_waiting(answer.starts_at, remaining, limit)
    return answer


def ends_at(plane: Plane, job: str) -> Window | None:
    """When a running job is expected to end."""

    def run(state: PlaneState, now: int) -> Window | None:
        record = state.ledger.index.records.get(job)
        return None if record is None else expected_end(state.ledger, record, now)

    return plane.ask(run)


def reasons(plane: Plane) -> Mapping[str, str]:
    """Why each waiting job waits, in one word; jobs that the policy did not look at are left out."""

    def run(state: PlaneState, now: int) -> Mapping[str, str]:
        number = state.ledger.core.number
        if state.reasons[0] != number:
            state.reasons = (number, {note.job: note.word for note in state.ledger.notes()})
        return state.reasons[1]

    return plane.ask(run)


def forecast(plane: Plane, caller: Caller, request: JobRequest) -> Forecast:
    """Where and when a job would start if it were submitted now."""
    tenant = tenant_of(caller, request)

    def run(state: PlaneState, now: int) -> tuple[Forecasts, Standing, Job, OutOfUse | None, str]:
        job = checked_job(state, caller, tenant, request, "this-job", now)
        core = state.ledger.core
        closed = out_of_use(core, job.shape)
        return state.forecasts, state.forecasts.standing(core), job, closed, state.deciding.sentence

    forecasts, standing, job, closed, failure = plane.ask(run, slow=True)
    notes = [failure] if failure else []
    notes += [closed.sentence, closed.remedy("")] if closed is not None else []
    if closed is not None and closed.needed:
        return Forecast(fits=False, starts_at=None, notes=notes)
    found = forecasts.of_new(standing, job, plane.clock.now())
    found.notes = [note for note in notes if note]
    return found


def nodes(plane: Plane) -> list[NodeState]:
    return plane.ask(lambda state, now: node_states(state.ledger.core))


def overview(plane: Plane) -> Overview:
    """Nodes, the jobs on them, and how many jobs wait, at one moment."""

    def run(state: PlaneState, now: int) -> Overview:
        deciding = state.deciding
        return cluster_overview(state.ledger, deciding.chosen.name, deciding.sentence, now)

    return plane.ask(run)


def shares(plane: Plane) -> list[ShareState]:
    return plane.ask(lambda state, now: tenant_shares(state.ledger, state.accounts.of_tenant))


def limits(plane: Plane, caller: Caller) -> LimitState:
    """The limits of a caller, with what counts against them, and all that are set as far as it may see."""

    def run(state: PlaneState, now: int) -> LimitState:
        own = state.limits.in_force(caller, caller.tenant) if caller.may("user") else []
        count = state.ledger.index.active_of
        used = [count(*_counted(limit, caller)) if limit.what == "jobs" else None for limit in own]
        mine = {("role", caller.role), ("tenant", caller.tenant), ("user", caller.user)}
        shown = [(scope, amounts) for scope, amounts in state.limits.all() if caller.admin or scope in mine]
        return LimitState(list(zip(own, used, strict=True)), shown)

    return plane.ask(run)


def _counted(limit: Limit, caller: Caller) -> tuple[str, str]:
    return ("tenant", limit.name) if limit.kind == "tenant" else ("user", caller.user)


def core_snapshot(plane: Plane) -> CoreSnapshot:
    """The state of the core, to be run forward elsewhere."""

    def run(state: PlaneState, now: int) -> tuple[Standing, int, Header, dict[str, str]]:
        core = state.ledger.core
        standing = state.forecasts.standing(core)
        alarm = standing.record.promises.alarm
        due = now if alarm is None else min(now, alarm)
        names = {record.id: record.name for record in state.ledger.index if record.id in core.jobs}
        return standing, due, state.header, names

    standing, due, header, names = plane.ask(run, slow=True)
    taken = to_json(standing.record)
    taken["now"] = max(standing.record.now, due)  # the last step may be long ago
    return CoreSnapshot(taken, header, names)
