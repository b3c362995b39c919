"""What answers look like, for the OpenAPI description. Times are ISO 8601 in UTC, durations are seconds.

Handlers build plain values; the tests hold them against these models.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from dovetail.control.forms import PRIORITY
from dovetail.control.states import State

Moment = Annotated[str, Field(json_schema_extra={"format": "date-time"})]
StateWord = Literal[
    "pending",
    "held",
    "running",
    "stopping",
    "completed",
    "failed",
    "cancelled",
    "timeout",
    "node-failed",
    "out-of-memory",
    "refused",
]
assert set(StateWord.__args__) == {state.value for state in State}  # type: ignore[attr-defined]

NAME = r"^[A-Za-z0-9][A-Za-z0-9._@-]*$"
Name = Annotated[str, Field(min_length=1, max_length=64, pattern=NAME)]
Text = Annotated[str, Field(max_length=500, pattern=r"^[^\u0000-\u0008\u000a-\u001f\u007f]*$")]
Role = Literal["viewer", "user", "admin"]


class Answer(BaseModel):
    model_config = ConfigDict(extra="forbid", json_schema_serialization_defaults_required=True)


class Asked(BaseModel):
    model_config = ConfigDict(extra="forbid")


# --- problems ---------------------------------------------------------------------------------------


class FieldProblem(BaseModel):
    model_config = ConfigDict(extra="forbid")

    pointer: str = Field(
        description="A JSON pointer into the body, or where a parameter stands: query/limit."
    )
    detail: str
    line: int | None = Field(default=None, description="Of a YAML body, where it is known.")


class Problem(BaseModel):
    """RFC 9457."""

    model_config = ConfigDict(extra="allow")

    type: str = Field(description="/problems/NAME", examples=["/problems/never-fits"])
    title: str
    status: int
    detail: str
    errors: list[FieldProblem] = Field(default=[], description="What is wrong, place by place.")
    leader: str | None = Field(default=None, description="The address of the plane that leads.")
    reason: str = Field(default="", description="Why a job can never fit.")


# --- jobs -------------------------------------------------------------------------------------------


class Part(BaseModel):
    """What is held on one node."""

    node: str
    devices: list[int]
    share: int | None = Field(default=None, description="Of each device, in thousandths; nothing: all.")


class Member(Answer):
    id: str
    index: int


class Span(Answer):
    low: Moment | None
    likely: Moment | None
    high: Moment | None


class Members(Answer):
    """The array that a job stands for in a folded list."""

    count: int
    states: dict[StateWord, int]
    first_started_at: Moment | None


class Job(Answer):
    """A job; in lists long texts are cut and a placement shows its first nodes only."""

    id: str
    name: str
    state: StateWord
    letter: str = Field(description="The state as squeue abbreviates it.")
    reason: str = Field(description="Why it waits, in a word.")
    kind: str
    tenant: str
    user: str
    model: str
    priority: int
    gpus: int = Field(description="Devices it is on.")
    gpu_share: float | None = Field(
        description="Of each of them, so much is its own: 0.5 is a half; null without GPUs."
    )
    nodes: int
    cpus: float | None = Field(description="Cores on each node; null: none were asked for.")
    memory: int | None = Field(description="Bytes on each node; null: none were asked for.")
    gpu_types: list[str] = Field(description="Any of these; none: any.")
    time_limit: float | None
    submitted_at: Moment
    begin_at: Moment | None = Field(description="Not before, if it asked for that.")
    eligible_at: Moment | None = Field(
        description="Since when only resources kept it from its first start; null: something else does."
    )
    started_at: Moment | None = Field(description="Its last start.")
    first_started_at: Moment | None
    ended_at: Moment | None
    waited: float | None = Field(
        description="From when it could have started to its first start; null before that."
    )
    took: float = Field(description="That it ran, over all attempts that have ended.")
    placement: list[Part]
    attempt: int = Field(description="How often it was started.")
    restarts: int
    exit_code: int | None
    cause: str = Field(description="How the last attempt ended: exited, stopped, timeout, oom, lost ...")
    detail: str = Field(description="The same for people.")
    array: Member | None
    members: Members | None = Field(description="In a folded list: the whole array it stands for.")
    dependency: str | None
    output: str | None = Field(description="Its first output file; only in the answer about one job.")
    progress: dict[str, Any] | None = Field(description="Its last report.")
    gpu_seconds: float = Field(description="GPUs held times seconds, over all attempts that have ended.")
    lost_gpu_seconds: float = Field(
        description="Of these, work that was not saved and had to be done again, whether it was told to stop "
        "or failed and was tried again."
    )
    ends_at: Span | None = Field(
        description="When it is expected to end; only in the answer about one job, and while it runs."
    )


class JobPage(Answer):
    items: list[Job]
    next: str | None = Field(description="The cursor of the next page.")


class Array(Answer):
    """All members of an array at a glance."""

    id: str
    count: int
    states: dict[StateWord, int]
    name: str
    tenant: str
    user: str
    submitted_at: Moment
    first_started_at: Moment | None
    ended_at: Moment | None
    gpu_seconds: float
    lost_gpu_seconds: float
    acted: int | None = Field(default=None, description="After a deed: to how many it made a difference.")


class Submitted(Answer):
    id: str
    ids: list[str] = Field(description="The first hundred.")
    count: int
    array: bool
    notes: list[str] = Field(description="What one may have meant otherwise, a line each.")


class Holder(Answer):
    job: str | None = Field(description="null: jobs of other tenants, taken together.")
    tenant: str | None
    gpus: float
    ends_at: Moment | None


class Ahead(Answer):
    own: int
    others: bool


class Why(Answer):
    job: str
    state: StateWord
    reason: str
    sentence: str
    holders: list[Holder]
    remedy: str
    starts_at: Span | None
    ends_at: Span | None = Field(description="When it is expected to end, whether it waits or runs.")
    begin_at: Moment | None = Field(description="Not before, if it asked for that.")
    ahead: Ahead


class Place(Answer):
    node: str
    gpus: float


class Plan(Answer):
    fits: bool = Field(description="False: not as things are, for nodes it needs are out of use.")
    starts_at: Span | None
    ends_at: Span | None = Field(description="If it said how long it takes.")
    placement: list[Place]
    preempts: list[str] = Field(description="Jobs that this token may see.")
    preempts_others: int = Field(description="How many more.")
    cost: float | None
    notes: list[str] = Field(description="What else there is to know, a line each.")
    detail: str = Field(description="Why it does not fit as things are; empty if it does.")


class Attempt(Answer):
    attempt: int
    placement: list[Part]
    gpu_types: list[str]
    started_at: Moment
    ended_at: Moment | None
    exit_code: int | None
    cause: str
    detail: str


class AttemptPage(Answer):
    items: list[Attempt]
    next: str | None


class Reports(Answer):
    items: list[dict[str, Any]] = Field(description="The last ones, oldest first.")


class Priority(Asked):
    priority: Annotated[int, PRIORITY]


def _without_default(schema: dict[str, Any]) -> None:
    """Neither has one: what counts is which of them is given."""
    schema.pop("default", None)


class CancelMany(Asked):
    """Either all my own jobs, or these."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"oneOf": [{"required": ["mine"]}, {"required": ["ids"]}]}
    )

    mine: Literal[True] = Field(default=True, json_schema_extra=_without_default)
    ids: list[Annotated[str, Field(max_length=40)]] = Field(
        default=[], max_length=1_000, json_schema_extra=_without_default
    )


class Cancelled(Answer):
    """Of each list the first thousand; who had been told to stop before is in none."""

    count: int
    cancelled: list[str]
    already_over: list[str] = Field(description="Jobs that had ended before, and stay as they are.")
    unknown: list[str] = Field(description="Ids of which there is no job that this token may see.")


# --- the cluster ------------------------------------------------------------------------------------


class Node(Answer):
    name: str
    type: str
    gpus: int
    free: float = Field(description="GPUs, whole ones.")
    state: Literal["up", "drained", "lost", "off"]
    reason: str
    cpus: float
    memory: int = Field(description="Bytes.")
    jobs: list[str] = Field(description="Those that this token may see.")
    others: int = Field(description="How many more jobs run there.")


class NodePage(Answer):
    items: list[Node]
    next: str | None


class OnDevice(Answer):
    """A job on a device, and how much of it is its own."""

    job: str
    milli: int = Field(description="Thousandths of the device.")


class Gpu(Answer):
    node: str
    index: int
    type: str
    state: Literal["idle", "shared", "allocated", "drained", "lost", "off"]
    used: float = Field(description="0 to 1.")
    used_milli: int = Field(description="The same in thousandths.")
    job: str | None = Field(description="The first that this token may see.")
    jobs: list[str] = Field(description="All that this token may see, at most twenty.")
    shares: list[OnDevice] = Field(description="The same jobs, each with its part.")
    others: int = Field(description="How many more jobs are on it.")


class GpuPage(Answer):
    items: list[Gpu]
    next: str | None


class Drain(Asked):
    reason: Text = ""


class Share(Answer):
    tenant: str
    parent: str
    weight: float
    quota: int | None = Field(description="GPUs that are its own.")
    borrow: int | None = Field(description="GPUs it may have beyond; null: no bound.")
    limit: int | None = Field(description="GPUs it never exceeds.")
    used: float
    borrowed: float
    running: int
    pending: int
    fair: float = Field(
        description="GPUs it would have if all that have work shared by weight, each its own quota first."
    )


class ShareTotal(Answer):
    gpus: int
    used: float


class Shares(Answer):
    items: list[Share]
    total: ShareTotal


class TenantSettings(Asked):
    """What is left out is as for a new tenant."""

    weight: float = Field(default=1.0, gt=0, le=1e6)
    quota: int | None = Field(default=None, ge=0, le=1_000_000)
    borrow: int | None = Field(default=None, ge=0, le=1_000_000)
    limit: int | None = Field(default=None, ge=0, le=1_000_000)
    parent: str = Field(default="", max_length=64, pattern=r"^([A-Za-z0-9][A-Za-z0-9._@-]*)?$")
    account: str = Field(
        default="",
        max_length=64,
        pattern=r"^([a-z_][a-z0-9_-]*)?$",
        description="The UNIX account its jobs run as.",
    )


class Tenant(TenantSettings):
    name: str


class Wait(Answer):
    mean: float | None
    p50: float | None
    p90: float | None


Cost = Annotated[
    float | None, Field(description="By the prices of now; null: something that was used has no price.")
]


class Usage(Answer):
    key: str
    gpu_hours: float
    lost_gpu_hours: float
    jobs: int
    cost: Cost
    wait: Wait


class UsageTotal(Answer):
    gpu_hours: float
    lost_gpu_hours: float
    jobs: int
    cost: Cost


ReportKey = Literal["tenant", "user", "type", "day", "month", "model"]


class Report(Answer):
    by: ReportKey
    since: Moment
    until: Moment
    currency: str
    items: list[Usage]
    more: int = Field(description="How many lines were left out.")
    total: UsageTotal
    unpriced: list[str] = Field(description="Types that were used and have no price, if others have one.")


class Series(Answer):
    name: str
    used: list[float] = Field(description="GPUs, the mean over each bin.")


class UsageOverTime(Answer):
    since: Moment
    until: Moment
    step: float = Field(description="Of a bin; the last one may be shorter.")
    capacity: int = Field(description="GPUs there are now.")
    series: list[Series] = Field(description="The largest first; what is too much is in one of others.")
    waiting: list[float] = Field(description="Jobs that waited for nothing but resources.")
    asked: list[float] = Field(description="GPUs they asked for.")


class PriceTable(Answer):
    currency: str
    per_gpu_hour: dict[str, float] = Field(description="By type of GPU.")


class PriceSettings(Asked):
    """All prices: what is left out has none."""

    currency: str = Field(
        default="USD", min_length=1, max_length=16, pattern=r"^[^\u0000-\u001f\u007f]*$", examples=["EUR"]
    )
    per_gpu_hour: dict[
        Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]*$")],
        Annotated[float, Field(ge=0, le=1e6)],
    ] = Field(default={}, max_length=200)


class Policy(Answer):
    name: str
    options: dict[str, Any] = Field(description="Those that were set.")
    in_force: dict[str, Any] = Field(description="All of them, with what holds where none was set.")
    default: bool = Field(description="Whether it is what a new plane begins with.")


class PolicyChoice(Asked):
    name: str = Field(min_length=1, max_length=100)
    options: dict[str, Any] = Field(default={}, max_length=100)


class Speed(Answer):
    model: str
    gpu_type: str
    gpus: int
    steps_per_second: float
    reports: int
    at: Moment


class SpeedPage(Answer):
    items: list[Speed]
    next: str | None


# --- accounts and the plane itself ------------------------------------------------------------------


class NewToken(Asked):
    name: Text = Field(default="", description="For people: where it is used.")
    tenant: str = Field(default="", max_length=64, pattern=r"^([A-Za-z0-9][A-Za-z0-9._@-]*)?$")
    user: str = Field(default="", max_length=64, pattern=r"^([A-Za-z0-9][A-Za-z0-9._@-]*)?$")
    role: Role = "user"
    expires_in: float | None = Field(default=None, gt=0, le=1e10, description="Seconds; nothing: never.")


class MadeToken(Answer):
    id: str
    token: str = Field(description="It is shown this once.")


class Token(Answer):
    id: str
    name: str
    tenant: str
    user: str
    role: Role
    created_at: Moment
    expires_at: Moment | None
    revoked_at: Moment | None


class TokenPage(Answer):
    items: list[Token]
    next: str | None


class OwnToken(Answer):
    name: str
    expires_at: Moment | None = Field(description="On the wall's clock, whatever the plane's is.")


class Me(Answer):
    """Who asks, and what the plane is."""

    user: str
    tenant: str
    role: Role
    token: OwnToken
    version: str
    now: Moment = Field(description="The plane's time; with a scale above 1 it runs faster than the wall's.")
    policy: str
    virtual: bool = Field(description="The GPUs are pretended.")
    scale: float
    gpus: int
    nodes: int


class Step(Answer):
    number: int
    era: int
    time: Moment
    line: str = Field(description="As the journal holds it, JSON.")
    cut: bool = Field(description="The line was too long and is not whole.")


class StepPage(Answer):
    items: list[Step]
    next: str | None = Field(description="The number to ask for next, as `after`.")


class Health(Answer):
    status: Literal["ok", "trouble", "standby"]
    role: Literal["leader", "follower"]
    version: str


class Version(Answer):
    version: str
    api: str
