"""Jobs: submit, list, ask, act.

A caller that may not see a job gets the same answer as for a job that does not exist, after the same work.
Within a tenant every token of the role user may act on every job, as a team shares its queue.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import APIRouter, Header, Query
from fastapi.responses import Response

from dovetail.client.job_request import JobFileError
from dovetail.client.jobyaml import read_yaml
from dovetail.control import commands, questions, submission
from dovetail.control.api.auth import Call, Planning, Studying, Using, Viewing, document, finite
from dovetail.control.api.documents import (
    Array,
    AttemptPage,
    Cancelled,
    CancelMany,
    Job,
    JobPage,
    Plan,
    Priority,
    Reports,
    Submitted,
    Why,
)
from dovetail.control.api.openapi import Cursor, JobId, Limit, body, problems
from dovetail.control.api.problems import MOST_ERRORS, Refusal, invalid, not_found
from dovetail.control.arrays import expand_array
from dovetail.control.clock import iso
from dovetail.control.forecast import Window, end_of_waiting
from dovetail.control.job_document import Json, job_document
from dovetail.control.job_program import NOTHING as NO_PROGRAM
from dovetail.control.job_program import program_document
from dovetail.control.lists import Filter
from dovetail.control.problems import RequestError
from dovetail.control.request import JobRequest, parse_request
from dovetail.control.states import State
from dovetail.control.why import MOST_NAMED
from dovetail.core.shortage import CPUS
from dovetail.model.errors import InputError
from dovetail.model.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from dovetail.control.forecast import Forecast
    from dovetail.control.remedies import Remedy
    from dovetail.control.tokens import Caller
    from dovetail.control.why import Holder
    from dovetail.core.shortage import Shortage

router = APIRouter(tags=["jobs"])

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MOST_IDS = 1_000  # in one list of an answer
YAML_TYPES = ("application/yaml", "application/x-yaml", "text/yaml", "text/x-yaml")
WORD = r"^[^\u0000]*$"
Word = Annotated[str | None, Query(max_length=200, pattern=WORD)]
Since = Annotated[datetime | None, Query(description="ISO 8601; UTC unless it says otherwise.")]
States = Annotated[
    str | None,
    Query(
        max_length=200,
        description="One state or several, comma between: pending,running.",
        pattern=rf"^({'|'.join(State)})(,({'|'.join(State)}))*$",
    ),
]
Tasks = Annotated[
    str | None,
    Query(max_length=2_000, description="Of an array only these members: 3-7 or 1,5.", examples=["3-7"]),
]


def micros_of(moment: datetime | None) -> int | None:
    if moment is None:
        return None
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return max(0, (aware - EPOCH) // timedelta(microseconds=1))


def named(call: Call, id: str) -> Any:
    """The row of a job that the caller sees."""
    row = call.lookup.job(call.caller, id) if _plausible(id) else None
    if row is None:
        if _plausible(id) and (found := call.lookup.array(call.caller, id)) is not None:
            raise Refusal(
                "conflict", f"{id} is an array of {found['count']}; name one of its jobs, such as {id}_0"
            )
        raise not_found("job has the id", id)
    return row


def _plausible(id: str) -> bool:
    return id.isascii() and id.replace("_", "").isalnum()


# --- asking -----------------------------------------------------------------------------------------


@router.post(
    "/jobs",
    operation_id="submit_job",
    summary="Submit a job, or an array of them",
    status_code=201,
    response_model=Submitted,
    responses=problems(415),
    openapi_extra=body(JobRequest, types=("application/json", "application/yaml")),
)
def submit_job(
    call: Using,
    idempotency_key: Annotated[
        str | None,
        Header(
            min_length=1,
            max_length=255,
            pattern=r"^[!-~]([ -~]*[!-~])?$",
            description="The same key with the same body is one submission, however often it is sent.",
        ),
    ] = None,
) -> Response:
    """Answered when it is on record. What could never fit is refused, with the reason."""
    value, request, notes = asked_job(call)
    made = submission.submit(call.plane, call.caller, request, value, idempotency_key)
    found = {
        "id": made.id,
        "ids": list(made.ids),
        "count": made.count,
        "array": made.array,
        "notes": [*notes, *made.notes],
    }
    return document(found, 201, {"Location": f"/api/v1/jobs/{made.id}"})


def asked_job(call: Call) -> tuple[Json, JobRequest, list[str]]:
    """The job of a body, JSON or YAML: as it was said, as it was understood, and what of it does nothing."""
    if call.kind not in YAML_TYPES:
        value = call.json(instead=" or application/yaml")
        return value, parse_request(value), []
    try:
        file = read_yaml(call.body.decode(), "the body", sent=True)
    except UnicodeDecodeError:
        raise invalid("", "the body is not UTF-8 text") from None
    except JobFileError as error:
        raise _wrong_yaml(error) from None
    try:
        request = parse_request(dict(file))
    except RequestError as error:
        errors = [
            {"pointer": p.pointer, "detail": p.detail[:500], "line": file.line_of(p.pointer)}
            for p in error.problems[:MOST_ERRORS]
        ]
        raise Refusal("invalid", str(error)[:1_000], errors=errors) from None
    ignored = [f"line {one.line}: {one.what} is ignored: {one.why}" for one in file.ignored]
    return dict(file), request, ignored[:20]


def _wrong_yaml(error: JobFileError) -> Refusal:
    where = "" if error.line is None else f"line {error.line}"
    if where and error.column is not None:
        where += f", column {error.column}"
    detail = f"{where}: {error.problem}" if where else error.problem
    found = {"pointer": "", "detail": detail[:500], "line": error.line}
    return Refusal("invalid", detail[:1_000], errors=[found])


@router.get("/jobs", operation_id="list_jobs", summary="Jobs, newest first", response_model=JobPage,
            responses=problems())  # fmt: skip
def list_jobs(
    call: Viewing,
    *,
    state: States = None,
    active: Annotated[
        bool | None, Query(description="Only those that are not over; false: the others.")
    ] = None,
    mine: Annotated[bool, Query(description="Only those of the token's own user.")] = False,
    user: Word = None,
    tenant: Word = None,
    name: Annotated[str | None, Query(max_length=200, pattern=WORD, description="`*` is anything.")] = None,
    array: Annotated[str | None, Query(max_length=40, pattern=WORD)] = None,
    since: Since = None,
    fold: Annotated[bool, Query(description="One item for an array: its newest member.")] = False,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Response:
    wanted = Filter(
        states=tuple(state.split(",")) if state else (),
        active=active,
        user=user,
        tenant=tenant,
        name=name,
        array=array,
        since=micros_of(since),
    )
    listed = call.lists.folded if fold else call.lists.jobs
    page = listed(call.caller, own(call, wanted, mine), cursor, limit)
    _say_why(call, page.items)
    return document(page.document())


def _say_why(call: Call, jobs: Sequence[Json]) -> None:
    """A reason for each waiting job; a job that the policy did not reach is behind others (Priority)."""
    waiting = [job for job in jobs if job["state"] == State.PENDING and not job["reason"]]
    if waiting:
        words = questions.reasons(call.plane)
        for job in waiting:
            job["reason"] = words.get(job["id"], "Priority")


def own(call: Call, wanted: Filter, mine: bool) -> Filter:
    """The filter, for one's own jobs only if so wanted: those of the user, in every tenant the token sees."""
    if not mine:
        return wanted
    if wanted.user not in (None, call.caller.user):
        raise invalid("query/mine", "mine and another user; leave one out")
    return replace(wanted, user=call.caller.user)


@router.post(
    "/jobs/cancel",
    operation_id="cancel_jobs",
    summary="Cancel many",
    response_model=Cancelled,
    responses=problems(415),
    openapi_extra=body(CancelMany),
)
def cancel_jobs(call: Using) -> Response:
    """Those that are over stay as they are. Of each list the first thousand are named."""
    wanted = call.read(CancelMany)
    if len(wanted.model_fields_set) != 1:
        raise invalid("", "give either mine or ids")
    unknown: list[str] = []
    if "mine" in wanted.model_fields_set:
        ids = call.lookup.active_of(call.caller)
    else:
        found = call.lookup.found(call.caller, [id for id in wanted.ids if _plausible(id)])
        unknown = [id for id in dict.fromkeys(wanted.ids) if id not in found]
        ids = list(dict.fromkeys(job for jobs in found.values() for job in jobs))
    done = commands.cancel(call.plane, ids) if ids else []
    acted = set(done)
    over = call.lookup.over((id for id in ids if id not in acted), MOST_IDS)
    return document(
        {"count": len(done), "cancelled": done[:MOST_IDS], "already_over": over, "unknown": unknown}
    )


@router.get("/jobs/{id}", operation_id="get_job", summary="One job, or the summary of an array",
            response_model=Job | Array, responses=problems(404))  # fmt: skip
def get_job(call: Viewing, id: JobId) -> Response:
    return document(_shown(call, id))


def _shown(call: Call, id: str) -> Json:
    row = call.lookup.job(call.caller, id) if _plausible(id) else None
    if row is None:
        return _array(call, id)
    found = job_document(row, call.plane.clock.now(), whole=True) | _program(call, row.request)
    if row.epoch:
        files = call.plane.engine.logs(row.id, row.epoch)
        found["output"] = str(files[0]) if files else None
    if row.state == State.RUNNING:
        found["ends_at"] = span(questions.ends_at(call.plane, row.id))
    if not State(row.state).final:
        found["promised_by"] = iso(questions.promised_by(call.plane, row.id))
    return found


def _array(call: Call, id: str) -> Json:
    found = call.lookup.array(call.caller, id) if _plausible(id) else None
    if found is None:
        raise not_found("job has the id", id)
    return found | _program(call, id)


def _program(call: Call, request: str) -> Json:
    stored = call.plane.store.requests([request]).get(request)
    return NO_PROGRAM if stored is None else program_document(stored.body)


@router.get("/arrays/{id}", operation_id="get_array", summary="The summary of an array",
            response_model=Array, responses=problems(404))  # fmt: skip
def get_array(call: Viewing, id: JobId) -> Response:
    return document(_array(call, id))


@router.get("/jobs/{id}/why", operation_id="explain_job", summary="Why it waits, and until when",
            response_model=Why, responses=problems(404, 409))  # fmt: skip
def explain_job(call: Studying, id: JobId) -> Response:
    """What keeps it waiting, which jobs hold what it needs, what would help. Others' jobs are counted."""
    row = named(call, id)
    if State(row.state).final:
        return document(_why_over(row, call.plane.clock.now()))
    try:
        found = questions.why(call.plane, row.id, call.caller)
    except InputError:
        return document(_why_over(named(call, id), call.plane.clock.now()))  # it has ended meanwhile
    return document(
        {
            "job": row.id,
            "state": str(found.state),
            "reason": found.reason,
            "sentence": found.sentence,
            "short": [_short(one) for one in found.short],
            "rule": found.rule,
            "behind": found.behind,
            "holders": holder_rows(call.caller, found.holders),
            "remedy": found.remedy,
            "remedies": [_remedy(one) for one in found.remedies],
            "remedies_in": math.ceil(found.remedies_in) or None,
            "assumed": found.assumed,
            "estimate": None if found.estimate is None else found.estimate / SECOND,
            "estimate_source": found.estimate_source,
            "starts_at": span(found.starts_at),
            "ends_at": span(found.ends_at),
            "begin_at": iso(row.begin_at),
            "ahead": {"own": found.ahead, "others": found.ahead_others},
            "preempted_by": found.preempted_by,
        }
    )


def _why_over(row: Any, now: int) -> Json:
    """The answer for a job that has ended."""
    job = job_document(row, now)
    told = f": {job['detail']}" if job["detail"] else ""
    return {
        "job": row.id,
        "state": row.state,
        "reason": "",
        "sentence": f"{row.id} is over: {row.state}{told}",
        "short": [],
        "rule": "",
        "behind": None,
        "holders": [],
        "remedy": "",
        "remedies": [],
        "remedies_in": None,
        "assumed": "",
        "estimate": None,
        "estimate_source": None,
        "starts_at": None,
        "ends_at": None,
        "begin_at": iso(row.begin_at),
        "ahead": {"own": 0, "others": False},
        "preempted_by": [],
    }


def holder_rows(caller: Caller, holders: Sequence[Holder]) -> list[Json]:
    """The jobs that hold what is short: those that the caller may see by name, as far as there is room."""
    seen = [one for one in holders if caller.sees(one.tenant)]
    found = [
        _holder([one], job=one.job, tenant=one.tenant, ends_at=iso(one.ends_at), estimate=one.estimate)
        for one in seen[:MOST_NAMED]
    ]
    if more := seen[MOST_NAMED:]:
        found.append(_holder(more))
    if hidden := [one for one in holders if not caller.sees(one.tenant)]:
        found.append(_holder(hidden, hidden=True))
    return found


def _holder(jobs: Sequence[Holder], **told: Any) -> Json:
    return {
        "job": None,
        "tenant": None,
        "jobs": len(jobs),
        "hidden": False,
        "gpus": sum(one.gpus for one in jobs),
        "cpus": sum(one.cpus for one in jobs),
        "memory": sum(one.memory for one in jobs),
        "ends_at": None,
        "estimate": None,
    } | told


def _short(one: Shortage) -> Json:
    size = 1_000 if one.resource == CPUS else 1
    asked, free, most = (float(value) / size for value in (one.each, one.free, one.most))
    return {"resource": one.resource, "asked": asked, "free": free, "most": most, "node": one.node}


def _remedy(one: Remedy) -> Json:
    """Preempted jobs may be of other tenants: they are counted."""
    return asdict(one) | {"at": iso(one.at), "preempts": len(one.preempts)}


def span(found: Window | None) -> Json | None:
    if found is None:
        return None
    low, likely, high = found
    return {"low": iso(low), "likely": iso(likely), "high": iso(high)}


@router.post(
    "/plan",
    operation_id="plan_job",
    summary="Where and about when a job would start, without submitting it",
    response_model=Plan,
    responses=problems(415),
    openapi_extra=body(JobRequest, types=("application/json", "application/yaml")),
)
def plan_job(call: Planning) -> Response:
    _, request, notes = asked_job(call)
    found = questions.forecast(call.plane, call.caller, request)
    seen = [job for job, tenant in found.preempts if call.caller.sees(tenant)]
    return document(
        {
            "fits": found.fits,
            "starts_at": span(found.starts_at),
            "ends_at": span(_end(request, found)),
            "placement": [{"node": node, "gpus": gpus} for node, gpus in found.placement[:1_000]],
            "preempts": seen[:1_000],
            "preempts_others": len(found.preempts) - len(seen),
            "cost": _cost(call, request, found),
            "notes": [*notes, *found.notes][:20],
            "promised_by": iso(found.promised_by),
            "refused": found.refused[:500],
            "detail": "" if found.fits else " ".join(n[:1].upper() + n[1:] for n in found.notes)[:2_000],
        }
    )


def _end(request: JobRequest, found: Forecast) -> Window | None:
    if found.starts_at is None or not (request.expected or request.time):
        return None
    return end_of_waiting(found.starts_at, request.estimate, request.time)


def _cost(call: Call, request: JobRequest, found: Forecast) -> float | None:
    """By the prices that are set, or else by those of the nodes, for as long as it is said to take."""
    prices = call.wiring.prices.now()
    if not prices.per_gpu_hour or not (request.expected or request.time):
        return found.cost
    cluster = call.plane.cluster
    hours: dict[str, float] = {}
    for node, gpus in found.placement:
        kind = cluster.nodes[cluster.number[node]].type.name
        hours[kind] = hours.get(kind, 0.0) + gpus * found.hours
    return prices.cost(hours) if found.placement else None


@router.get("/jobs/{id}/attempts", operation_id="list_attempts", summary="Its starts, the last one first",
            response_model=AttemptPage, responses=problems(404, 409))  # fmt: skip
def list_attempts(call: Viewing, id: JobId, limit: Limit = 100, cursor: Cursor = None) -> Response:
    return document(call.lists.attempts(call.caller, named(call, id).id, cursor, limit).document())


@router.get("/jobs/{id}/reports", operation_id="list_reports", summary="What it last said of its progress",
            response_model=Reports, responses=problems(404, 409))  # fmt: skip
def list_reports(
    call: Viewing,
    id: JobId,
    attempt: Annotated[int | None, Query(ge=1, le=1_000_000, description="Nothing: the last.")] = None,
    limit: Limit = 20,
    spread: Annotated[
        bool, Query(description="From all of the attempt, evenly, instead of the last ones.")
    ] = False,
) -> Response:
    row = named(call, id)
    epoch = attempt or row.epoch
    kept = Thinned(limit) if spread else deque[Any](maxlen=limit)
    offset = 0
    while epoch and epoch <= row.epoch:
        found, next_offset = call.plane.engine.reports(row.id, epoch, offset)
        kept.extend(found)
        if next_offset == offset:
            break
        offset = next_offset
    return document({"items": _small(list(kept))})


class Thinned:
    """A sample of a stream: at most `most` items, evenly spaced, and the last one.

    >>> kept = Thinned(4)
    >>> kept.extend(range(10))
    >>> list(kept)
    [0, 4, 8, 9]
    """

    def __init__(self, most: int) -> None:
        self._most, self._step, self._count = most, 1, 0
        self._kept: list[Any] = []
        self._last: list[Any] = []

    def extend(self, more: Iterable[Any]) -> None:
        for one in more:
            if self._count % self._step == 0:
                self._kept.append(one)
                if len(self._kept) >= max(2, self._most):
                    self._kept, self._step = self._kept[::2], 2 * self._step
            self._count += 1
            self._last = [one]

    def __iter__(self) -> Iterator[Any]:
        known = self._kept if self._kept[-1:] == self._last else [*self._kept, *self._last]
        return iter(known[-self._most :])


def _small(reports: list[Any]) -> list[Any]:
    """The last ones that fit into an answer; null stands for numbers that JSON does not have."""
    room, kept = 100_000, []
    for said in reversed(reports):
        try:
            report = finite(said)
            room -= len(json.dumps(report))
        except RecursionError:  # nested too deeply to be shown
            continue
        if room < 0:
            break
        kept.append(report)
    return kept[::-1]


# --- acting -----------------------------------------------------------------------------------------


def _members(call: Call, id: str, tasks: str | None) -> list[str]:
    chosen: Collection[int] | None = None
    if tasks is not None:
        try:
            chosen = frozenset(expand_array(tasks)[0])
        except ValueError as error:
            raise invalid("query/tasks", str(error)) from None
    ids = call.lookup.members(call.caller, id, chosen) if _plausible(id) else []
    if not ids:
        if tasks is not None and _plausible(id) and call.lookup.members(call.caller, id, None) == [id]:
            raise invalid("query/tasks", f"{id} is one job, not an array; leave the members out")
        raise not_found("job has the id" if tasks is None else f"array with the members {tasks[:40]}", id)
    return ids


def _after(call: Call, id: str, ids: list[str], done: list[str]) -> Response:
    if ids == [id]:
        return document(_shown(call, id))
    return document({**_array(call, id), "acted": len(done)})


def _act(call: Call, verb: str, id: str, tasks: str | None) -> Response:
    ids = _members(call, id, tasks)
    done = commands.TO_JOBS[verb](call.plane, ids)
    if not done and verb != "cancel":
        state = call.lookup.job(call.caller, ids[0])
        at = f"{ids[0]} is {state.state}" if state is not None else ids[0]
        raise Refusal("conflict", f"nothing to {verb}: {at}")
    return _after(call, id, ids, done)


def _verb(verb: Literal["cancel", "hold", "release", "requeue"], words: str) -> None:
    """One route for each verb, all alike."""

    def act(call: Using, id: JobId, tasks: Tasks = None) -> Response:
        return _act(call, verb, id, tasks)

    statuses = (404,) if verb == "cancel" else (404, 409)
    router.post(
        f"/jobs/{{id}}/{verb}",
        operation_id=f"{verb}_job",
        summary=words,
        response_model=Job | Array,
        responses=problems(*statuses),
    )(act)


_verb("cancel", "End it; one that is over stays as it is, and is shown so")
_verb("hold", "Keep it from the queue; one that runs is stopped first")
_verb("release", "Let it into the queue again")
_verb("requeue", "Stop it, and let it wait for its turn again")


@router.post(
    "/jobs/{id}/priority",
    operation_id="set_job_priority",
    summary="More goes first",
    response_model=Job | Array,
    responses=problems(404, 409, 415),
    openapi_extra=body(Priority),
)
def set_job_priority(call: Using, id: JobId, tasks: Tasks = None) -> Response:
    wanted = call.read(Priority).priority
    ids = _members(call, id, tasks)
    done = commands.set_priority(call.plane, call.caller, ids, wanted)
    if not done and (row := call.lookup.job(call.caller, ids[0])) is not None and State(row.state).final:
        raise Refusal("conflict", f"{ids[0]} is over: {row.state}")
    return _after(call, id, ids, done)
