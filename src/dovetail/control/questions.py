"""Questions to a plane that runs, answered from the state of one moment.

Slow work (a forecast) is done on the thread of the caller, on a copy of the core: the loop goes on. Questions
that cost the loop more than a few milliseconds are marked as slow, so that it does others first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from dovetail.control import preemptions
from dovetail.control.cluster_state import NodeState, Overview, cluster_overview, node_states
from dovetail.control.forecast import Forecast, Forecasts, Window, end_of_waiting
from dovetail.control.job_index import ARRAY_LIMIT, BEGIN, DEPENDENCY
from dovetail.control.ledger import Ledger
from dovetail.control.limits import Amounts, AskedFor, Limit, Limits, OverLimit, Scope
from dovetail.control.plane import Plane
from dovetail.control.plane_state import CoreSnapshot, PlaneState
from dovetail.control.records import Record
from dovetail.control.remedies import NEW, Case, Remedy, resume_for
from dovetail.control.remedy_answers import RemedyAnswers
from dovetail.control.request import JobRequest
from dovetail.control.run_times import source_of, told
from dovetail.control.standing import Standing
from dovetail.control.states import State
from dovetail.control.submission import checked_job, tenant_of
from dovetail.control.tenant_shares import ShareState, tenant_shares
from dovetail.control.tokens import Caller
from dovetail.control.why import (
    OutOfUse,
    Rights,
    Why,
    case_of,
    expected_end,
    explained,
    out_of_use,
    says_how_long,
)
from dovetail.core.journal import Header
from dovetail.core.snapshot import to_json
from dovetail.model.errors import InputError
from dovetail.model.job import Job

LONGEST_STALE = 1.0  # seconds that a state which is slow to record serves for remedies
MOST_PRIORITY = 1_000  # that is proposed: urgent
WAIT = "wait: it starts then, if the jobs that run end as estimated"


class LimitState(NamedTuple):
    """Limits as a caller sees them."""

    own: list[tuple[Limit, int | None]]  # with the jobs that count against it
    rows: list[tuple[Scope, Amounts]]


class _Waiting(NamedTuple):
    """A job of which the answer is known but for when it starts, and what would help."""

    answer: Why
    forecasts: Forecasts
    remedies: RemedyAnswers
    ahead: Standing | None  # to look ahead from; None: the last forecast is still good
    standing: Standing | None  # to try remedies on
    case: Case | None
    now: int
    settled: bool  # no held job enters the queue by itself, so the forecast knows all jobs
    remaining: int | None  # of its run time, if it is known how long it takes
    time_limit: int | None


def why(plane: Plane, job: str, caller: Caller) -> Why:
    """What a job waits for, which jobs hold it, what would help, and when the job may start.

    Jobs of tenants that the caller does not see are not named.
    """

    def run(state: PlaneState, now: int) -> _Waiting:
        ledger = state.ledger
        record = ledger.index.records.get(job)
        if record is None:
            raise InputError(f"job {job} is over: it waits for nothing; see dovetail describe {job}")
        answer = explained(ledger, record, now, caller.sees, state.quotas.too_much)
        answer.ends_at = expected_end(ledger, record, now)
        if named := preemptions.for_which_jobs(record.preempted_by, caller.sees):
            answer.sentence = f"{answer.sentence} It was preempted for {named}."
            answer.preempted_by = preemptions.told(record.preempted_by, caller.sees)
        active = ledger.core.jobs.get(job)
        known = active is not None and says_how_long(ledger, record)
        remaining = active.remaining_at(now) if known and active is not None else None
        if answer.state == State.PENDING and state.deciding.failure is not None:
            answer.sentence = f"{answer.sentence} ({state.deciding.sentence}.)"
        ahead = None if answer.never else state.forecasts.core_for(ledger.core, job)
        case = case_of(ledger, record, now, _rights(state, caller, record))
        standing = None if case is None else state.forecasts.standing(ledger.core, longest=LONGEST_STALE)
        return _Waiting(
            answer,
            state.forecasts,
            state.remedies,
            ahead,
            standing,
            case,
            now,
            _is_settled(ledger),
            remaining,
            record.time_limit,
        )

    found = plane.ask(run, slow=True)
    answer = found.answer
    if answer.state == State.PENDING and not answer.never:
        answer.starts_at = found.forecasts.starts_at(found.ahead, job, found.now)
        if answer.starts_at is not None and found.remaining is not None:
            answer.ends_at = end_of_waiting(answer.starts_at, found.remaining, found.time_limit)
    if found.case is not None and found.standing is not None:
        answer.remedies, answer.remedies_in = found.remedies.of(
            found.forecasts, caller.token, found.standing, found.now, found.case
        )
        likely = answer.starts_at.likely if answer.starts_at is not None else None
        current = found.forecasts.is_current(found.standing.record.number)
        if likely is not None and current and found.settled:
            answer.remedies.append(Remedy(kind="wait", text=WAIT, at=likely))
    return answer


def _is_settled(ledger: Ledger) -> bool:
    comes = (BEGIN, DEPENDENCY, ARRAY_LIMIT)
    return not any(record.state is State.HELD and record.reason in comes for record in ledger.index)


def _rights(state: PlaneState, caller: Caller, record: Record) -> Rights:
    """What the caller may do about a waiting job, by its role and by the limits of now."""
    limits = Limits({scope: dict(amounts) for scope, amounts in state.limits.rows.items()})
    count = state.ledger.index.active_of
    active = {owner: count(*owner) - 1 for owner in (("user", caller.user), ("tenant", record.tenant))}

    def may_submit(request: JobRequest, job: Job) -> bool:
        """Whether a request in place of this job is within the limits."""
        wanted = AskedFor(request.priority, job.shape.load, request.time, 1)
        try:
            limits.check_job(caller, record.tenant, wanted, lambda *owner: active[owner])
        except OverLimit:
            return False
        return True

    priority = next(one.most for one in limits.in_force(caller, record.tenant) if one.what == "priority")
    return Rights(
        acts=caller.may("user"),
        owns=lambda other: other.user == caller.user and caller.sees(other.tenant),
        may_submit=may_submit,
        most_priority=MOST_PRIORITY if priority is None else min(priority, MOST_PRIORITY),
        sees=caller.sees,
    )


def ends_at(plane: Plane, job: str) -> Window | None:
    """When a running job is expected to end."""

    def run(state: PlaneState, now: int) -> Window | None:
        record = state.ledger.index.records.get(job)
        return None if record is None else expected_end(state.ledger, record, now)

    return plane.ask(run)


def promised_by(plane: Plane, job: str) -> int | None:
    """The moment by which the policy has promised the end of a job; None if it has promised nothing."""

    def run(state: PlaneState, now: int) -> int | None:
        active = state.ledger.core.jobs.get(job)
        return None if active is None else active.promise

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
        job = checked_job(state, caller, tenant, request, NEW, now)
        core = state.ledger.core
        closed = out_of_use(core, job.shape)
        return state.forecasts, state.forecasts.standing(core), job, closed, state.deciding.sentence

    forecasts, standing, job, closed, failure = plane.ask(run, slow=True)
    now = plane.clock.now()
    notes = [failure] if failure else []
    notes += [told(source_of(request, job.estimate), job.estimate)]
    if closed is not None:
        back = forecasts.tried(lambda trial: resume_for(trial, job), standing, now)
        notes += [closed.sentence, "" if back is None else back.text]
    notes = [note for note in notes if note]
    if closed is not None and closed.needed:
        return Forecast(fits=False, starts_at=None, notes=notes)
    found = forecasts.of_new(standing, job, now)
    found.notes = [f"the policy would refuse it: {found.refused}"] if found.refused else notes
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
