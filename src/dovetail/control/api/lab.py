"""The Lab: what a policy does, on a few jobs, on a shipped trace, or on the live queue.

Nothing here changes anything. All but the simplest is worked out in processes of their own (`control.lab`),
at most two at once and one for each token; of the token's rate, a question takes `COST` requests.
"""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool

from dovetail.control.api.auth import Call, Learning, Viewing, document
from dovetail.control.api.documents import Document, Moment
from dovetail.control.api.openapi import body, problems
from dovetail.control.api.problems import Refusal
from dovetail.control.lab import questions
from dovetail.control.lab.placement import placed
from dovetail.control.lab.pool import Broken, Busy, Pool
from dovetail.control.lab.traces import listed
from dovetail.control.plane_state import CoreSnapshot
from dovetail.control.questions import core_snapshot
from dovetail.core.journal import header_line

COST = 5.0
JSON = "application/json"
QUICK, USUAL, LONG = 5.0, 10.0, 30.0  # seconds of CPU


# --- what is answered --------------------------------------------------------------------------------


class PolicyOption(Document):
    name: str
    type: str = Field(description="As a person would write its values.")
    default: Any
    choices: list[Any] | None = Field(description="What it must be one of; null: anything of its type.")
    help: str


class PolicyItem(Document):
    name: str
    title: str
    year: int | None
    summary: str
    options: list[PolicyOption]


class PolicyList(Document):
    items: list[PolicyItem]


class TraceItem(Document):
    name: str
    jobs: int
    gpus: int = Field(description="Of the suggested cluster.")
    cluster: str = Field(description="One on which there is a queue, but not for ever.")
    about: str


class TraceList(Document):
    items: list[TraceItem]


class LabMetrics(Document):
    """Times are seconds; of the jobs that finished."""

    jobs: int
    finished: int
    jct_mean: float = Field(description="From submission to finish.")
    jct_p50: float
    jct_p99: float
    wait_mean: float = Field(description="Time from submission on in which the jobs did not run.")
    first_start_mean: float = Field(description="From submission to the first start.")
    makespan: float = Field(description="From the first submission to the last finish.")
    utilization: float = Field(description="Of the GPU time there was, the part that was held.")
    preemptions: int
    rho_mean: float | None = Field(description="Finish-time fairness: above 1, worse than an equal share.")
    rho_max: float | None
    jain: float | None = Field(description="Jain's index over tenants; null: no tenants competed.")
    share_error: float | None
    lost_gpu_hours: float | None


class Ran(Document):
    id: str
    submit: float
    start: float | None
    finish: float | None
    jct: float | None
    wait: float = Field(description="Time not running, until the job ends or the run does.")
    preemptions: int


class Held(Document):
    """A job held these devices from one time to another."""

    job: str
    start: float
    end: float
    devices: list[tuple[str, int]] = Field(description="Node and number.")
    milli: int = Field(description="Of each device, in thousandths.")


Series = Annotated[list[tuple[float, float, int]], Field(description="Time, GPUs in use, jobs waiting.")]


class Simulated(Document):
    jobs: list[Ran]
    stretches: list[Held]
    more: int = Field(description="How many further stretches were left out.")
    metrics: LabMetrics
    series: Series
    stalled: list[str] = Field(description="Jobs that held GPUs to the end and made no progress.")


class Compared(Document):
    policy: str
    label: str = Field(description="With the options that were set.")
    gpus: int
    metrics: LabMetrics
    cdf: list[tuple[float, float]] = Field(
        description="Completion time, and the share of jobs that took no longer."
    )
    series: Series
    notes: list[str]
    stalled: list[str]


class Assigned(Document):
    assignment: list[int | None] = Field(description="The place of a type for each job; null: none.")
    total: float


class ByHand(Document):
    total: float
    throughput: list[float]
    normalised: list[float]
    problem: str | None = Field(description="What it takes more of than there is.")


class Shared(Document):
    """By job; normalised is against the equal share: its GPUs spread over the types as these are there."""

    shares: list[list[float]] = Field(description="Of a job's time, by type.")
    devices: list[list[float]] = Field(description="The same as GPUs held on average.")
    throughput: list[float]
    normalised: list[float]
    equal_share: list[float]
    total: float
    least: float = Field(description="The smallest that is normalised.")
    optimum: Assigned = Field(description="The most in total with every job on one type, or on none.")
    yours: ByHand | None


class FrontierPoint(Document):
    weight: float
    total: float
    least: float
    throughput: list[float]
    normalised: list[float]
    shares: list[list[float]] = Field(description="GPUs that each job holds, by type.")


class FloorPoint(Document):
    """The largest total in which no job has less than the floor."""

    floor: float
    total: float
    least: float
    throughput: list[float]
    normalised: list[float]
    shares: list[list[float]] = Field(description="GPUs that each job holds, by type.")


class FrontierEnd(Document):
    total: float
    least: float


class FrontierLine(Document):
    """A weight w asks for the most of (1-w) x total / most total + w x least / largest least."""

    points: list[FrontierPoint] = Field(description="By weight, the smallest first.")
    floors: list[FloorPoint] = Field(description="By floor, the smallest first.")
    most: FrontierEnd
    fairest: FrontierEnd
    equal_share: list[float]


class Link(Document):
    name: str
    bandwidth: float = Field(description="GB/s.")
    transfer_ms: float
    step_ms: float
    slowdown: float = Field(description="This step over that of the fastest link listed.")


class Placed(Document):
    links: list[Link]


class Outcome(Document):
    """Seconds from now; over the jobs of one's own tenant (an admin's: all) that both futures know of."""

    waiting: int = Field(description="Jobs that wait at first.")
    mean_wait: float | None = Field(
        description="Time not running until they end, of the jobs that wait in one of the futures."
    )
    mean_first_start_after: float | None = Field(description="Until the jobs that wait at first start.")
    mean_finish: float | None
    last_finish: float | None
    preemptions: int
    utilization: float | None = Field(
        description="Of the GPU time up to the last finish, held by these jobs."
    )
    left_out: int = Field(description="Jobs that such a cluster could never hold.")
    complete: bool = Field(description="False: it would have taken too long to see them all end.")


class Foreseen(Document):
    """As it is, and as it would be."""

    id: str
    name: str
    starts: tuple[Moment | None, Moment | None]
    ends: tuple[Moment | None, Moment | None]


class Futures(Document):
    at: Moment
    policy: tuple[str, str]
    gpus: tuple[int, int]
    now: Outcome
    then: Outcome
    jobs: list[Foreseen] = Field(description="Those that wait first; at most 500.")
    more: int = Field(description="How many further jobs were left out of the list.")


# --- asking -------------------------------------------------------------------------------------------


class Lab:
    """The pool of a plane, and what never changes while it runs."""

    def __init__(self) -> None:
        self.pool = Pool()
        self._policies = b""

    def policies(self, owner: str) -> bytes:
        if not self._policies:
            self._policies = self.pool.ask(owner, "policies", {}, LONG)
        return self._policies


@asynccontextmanager
async def _open(app: FastAPI) -> AsyncIterator[None]:
    app.state.lab = lab = Lab()
    try:
        yield
    finally:
        await run_in_threadpool(lab.pool.close)


router = APIRouter(tags=["lab"], lifespan=_open)


async def _lab(request: Request) -> Lab:
    found: Lab = request.app.state.lab
    return found


AtLab = Annotated[Lab, Depends(_lab)]


def _pay(call: Call) -> None:
    if wait := call.wiring.rates.take(call.caller.token, COST):
        raise Refusal(
            "too-many",
            "too many questions to the Lab at once",
            headers={"Retry-After": str(max(1, math.ceil(wait)))},
        )


def _asked(
    lab: Lab, call: Call, kind: str, question: Mapping[str, Any] | Iterable[bytes], cpu: float
) -> Response:
    with _refusing():
        return Response(lab.pool.ask(call.caller.token, kind, question, cpu), media_type=JSON)


@contextmanager
def _refusing() -> Iterator[None]:
    """What keeps the Lab from answering, as refusals."""
    try:
        yield
    except Busy as error:
        raise Refusal("too-many", str(error), headers={"Retry-After": "2"}) from None
    except Broken as error:
        raise Refusal("unavailable", str(error), headers={"Retry-After": "2"}) from None


def _worked_out(lab: Lab, call: Call, kind: str, model: type[BaseModel], cpu: float) -> Response:
    asked = call.read(model)
    _pay(call)
    return _asked(lab, call, kind, asked.model_dump(mode="json", by_alias=True), cpu)


@router.get("/policies", operation_id="list_policies", summary="Policies, and what can be set about them",
            response_model=PolicyList, responses=problems())  # fmt: skip
def list_policies(call: Learning, lab: AtLab) -> Response:
    with _refusing():
        return Response(lab.policies(call.caller.token), media_type=JSON)


@router.get("/traces", operation_id="list_traces", summary="The traces that come with Dovetail",
            response_model=TraceList, responses=problems())  # fmt: skip
def list_traces(call: Viewing, lab: AtLab) -> Response:
    lab.pool.warm()
    return document({"items": listed()})


@router.post(
    "/lab/simulate",
    operation_id="lab_simulate",
    summary="A few jobs on a small cluster under a policy",
    response_model=Simulated,
    responses=problems(415),
    openapi_extra=body(questions.Simulate),
)
def lab_simulate(call: Learning, lab: AtLab) -> Response:
    """By the same core and policies that run the cluster. Times are seconds."""
    return _worked_out(lab, call, "simulate", questions.Simulate, USUAL)


@router.post(
    "/lab/compare",
    operation_id="lab_compare",
    summary="What a policy is worth on a trace",
    response_model=Compared,
    responses=problems(415),
    openapi_extra=body(questions.Compare),
)
def lab_compare(call: Learning, lab: AtLab) -> Response:
    """One policy; ask once for each. Jobs that the cluster could never hold are left out, as a note says."""
    return _worked_out(lab, call, "compare", questions.Compare, LONG)


@router.post(
    "/lab/throughput",
    operation_id="lab_throughput",
    summary="Which job on which type of GPU",
    response_model=Shared,
    responses=problems(415),
    openapi_extra=body(questions.Throughput),
)
def lab_throughput(call: Learning, lab: AtLab) -> Response:
    """Time shares for an objective, the best assignment, and what one made by hand is worth."""
    return _worked_out(lab, call, "throughput", questions.Throughput, QUICK)


@router.post(
    "/lab/frontier",
    operation_id="lab_frontier",
    summary="Fairness against throughput",
    response_model=FrontierLine,
    responses=problems(415),
    openapi_extra=body(questions.Frontier),
)
def lab_frontier(call: Learning, lab: AtLab) -> Response:
    """For each weight of fairness, or floor of the worst-off job, the best split of the GPUs.

    A job may hold a mix of types.
    """
    return _worked_out(lab, call, "frontier", questions.Frontier, USUAL)


@router.post(
    "/lab/placement",
    operation_id="lab_placement",
    summary="What a link costs a step of training",
    response_model=Placed,
    responses=problems(415),
    openapi_extra=body(questions.Placement),
)
def lab_placement(call: Viewing) -> Response:
    return document(placed(call.read(questions.Placement)))


@router.post(
    "/lab/what-if",
    operation_id="lab_whatif",
    summary="The live queue under another policy, or on another cluster",
    response_model=Futures,
    responses=problems(415),
    openapi_extra=body(questions.WhatIf),
)
def lab_whatif(call: Learning, lab: AtLab) -> Response:
    """Nothing is changed. The core is run forward twice, as it is and as asked, with every estimate true."""
    asked = call.read(questions.WhatIf)
    _pay(call)
    standing = core_snapshot(call.plane)
    everything = call.caller.role == "admin"
    parts = _pieces(asked, standing, None if everything else call.caller.tenant)
    with _refusing():
        found = json.loads(lab.pool.ask(call.caller.token, "what-if", parts, LONG))
    for job in found["jobs"]:
        job["name"] = standing.names.get(job["id"], "")
    return document(found)


def _pieces(asked: questions.WhatIf, standing: CoreSnapshot, tenant: str | None) -> Iterator[bytes]:
    """The question job by job: to write a large one at once would keep the loop from its turn."""
    taken = dict(standing.taken)
    jobs = taken.pop("jobs")
    rest = {
        "asked": asked.model_dump(mode="json", by_alias=True),
        "tenant": tenant,
        "header": header_line(standing.header),
        "snapshot": taken,
    }
    yield json.dumps(rest).removesuffix("}}").encode() + b',"jobs":['
    for number, job in enumerate(jobs):
        yield (b"," if number else b"") + json.dumps(job).encode()
    yield b"]}}"
