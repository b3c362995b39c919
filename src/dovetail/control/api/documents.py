"""The documents that the API returns and accepts, for the OpenAPI description.

Those about jobs and nodes are defined in `client.documents`; their models are made from that definition.
Times are ISO 8601 in UTC, durations are seconds. Handlers build plain values; the tests check every answer
against these models.
"""

from __future__ import annotations

import types
import typing
from collections import abc
from dataclasses import is_dataclass
from datetime import datetime
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, create_model

from dovetail.client import documents
from dovetail.control.field_types import MOST_PRIORITY, MOST_SECONDS, PRIORITY
from dovetail.control.states import State

Moment = datetime
assert set(get_args(documents.StateWord)) == {state.value for state in State}

NAME = r"^[A-Za-z0-9][A-Za-z0-9._@-]*$"
Name = Annotated[str, Field(min_length=1, max_length=64, pattern=NAME)]
Text = Annotated[str, Field(max_length=500, pattern=r"^[^\u0000-\u0008\u000a-\u001f\u007f]*$")]
Role = Literal["viewer", "user", "admin"]


class Document(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Asked(BaseModel):
    model_config = ConfigDict(extra="forbid")


@cache
def response_model(kind: Any) -> Any:
    """The model of a document that `client.documents` defines: all its fields, and no others."""
    made: dict[str, Any] = {}
    for name, hint, meaning, missing in documents.fields_of(kind):
        default = None if missing else ...
        made[name] = (_modelled(hint), Field(default, description=meaning or None))
    return create_model(kind.__name__, __base__=Document, __doc__=kind.__doc__, **made)


def _modelled(hint: Any) -> Any:
    """A type with the documents in it as models."""
    if isinstance(hint, type) and is_dataclass(hint):
        return response_model(hint)
    if hint is datetime:
        return Moment
    inner = tuple(_modelled(one) for one in get_args(hint))
    match get_origin(hint):
        case abc.Sequence:
            return types.GenericAlias(list, inner)
        case abc.Mapping:
            return types.GenericAlias(dict, inner)
        case types.UnionType | typing.Union:
            return Union[inner]  # noqa: UP007
    return hint


Job = response_model(documents.Job)
Array = response_model(documents.Array)
JobAttempt = response_model(documents.JobAttempt)
Why = response_model(documents.Why)
Plan = response_model(documents.Plan)
Node = response_model(documents.Node)


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


class JobPage(Document):
    items: list[Job]  # type: ignore[valid-type]
    next: str | None = Field(description="The cursor of the next page.")


class Submitted(Document):
    id: str
    ids: list[str] = Field(description="The first hundred.")
    count: int
    array: bool
    notes: list[str] = Field(description="What may have been meant differently, a line each.")


class AttemptPage(Document):
    items: list[JobAttempt]  # type: ignore[valid-type]
    next: str | None


class Reports(Document):
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


class Cancelled(Document):
    """Of each list the first thousand; jobs that were already stopping are in none."""

    count: int
    cancelled: list[str]
    already_over: list[str] = Field(description="Jobs that had ended before, and stay as they are.")
    unknown: list[str] = Field(description="Ids of which there is no job that this token may see.")


# --- the cluster ------------------------------------------------------------------------------------


class NodePage(Document):
    items: list[Node]  # type: ignore[valid-type]
    next: str | None


class OnDevice(Document):
    """A job on a device, and how much of it is its own."""

    job: str
    milli: int = Field(description="Thousandths of the device.")


class Gpu(Document):
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


class GpuPage(Document):
    items: list[Gpu]
    next: str | None


class Drain(Asked):
    reason: Text = ""


class Share(Document):
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


class ShareTotal(Document):
    gpus: int
    used: float


class TenantShares(Document):
    items: list[Share]
    total: ShareTotal


class TenantLimits(Asked):
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


class TenantSettings(TenantLimits):
    """What is left out stays as it is; a new tenant has the defaults."""

    allow_root: bool = Field(default=False, description="Goes with the account root, which it allows.")


class Tenant(TenantLimits):
    name: str
    notes: list[str] = Field(description="Warnings about what was set, a line each.")


LimitKind = Literal["role", "tenant", "user"]
LimitWord = Literal["priority", "gpus", "time", "jobs"]


class LimitInForce(Document):
    """A limit of the caller."""

    what: LimitWord = Field(
        description="priority, gpus and time of one job; jobs that have not ended, of a user or a tenant."
    )
    most: float | None = Field(description="null: no limit.")
    kind: LimitKind | None = Field(description="For what it is set; null: nowhere.")
    name: str | None
    used: int | None = Field(description="Jobs that count against it.")


class LimitRow(Document):
    """What is set for a role, a tenant or a user."""

    kind: LimitKind
    name: str
    limits: dict[LimitWord, float | None] = Field(
        description="null: no limit. What is not there holds as it is set for the tenant or the role."
    )
    default: bool = Field(description="Whether it is what a new plane has.")


class LimitList(Document):
    own: list[LimitInForce] = Field(description="What the caller may ask for, for its own tenant.")
    items: list[LimitRow] = Field(description="Where limits are set, as far as this token may see.")
    more: int = Field(description="How many were left out.")


class LimitChange(LimitRow):
    notes: list[str] = Field(description="What may have been meant differently, a line each.")


class LimitSettings(Asked):
    """What is left out stays as it is; null is no limit."""

    priority: int | None = Field(default=None, ge=-MOST_PRIORITY, le=MOST_PRIORITY)
    gpus: int | None = Field(default=None, ge=0, le=1_000_000, description="Of one job.")
    time: float | None = Field(
        default=None, gt=0, le=MOST_SECONDS, description="Seconds: the time limit that a job must have."
    )
    jobs: int | None = Field(
        default=None, ge=0, le=100_000_000, description="That have not ended: of each user, or of a tenant."
    )


class Wait(Document):
    mean: float | None
    p50: float | None
    p90: float | None


Cost = Annotated[
    float | None, Field(description="By the prices of now; null: something that was used has no price.")
]


class Usage(Document):
    key: str
    gpu_hours: float
    lost_gpu_hours: float
    jobs: int
    cost: Cost
    wait: Wait = Field(
        description="Time eligible and not running, of the jobs that first started in between."
    )
    first_start_after: Wait = Field(description="Time from eligible to the first start, of the same jobs.")


class UsageTotal(Document):
    gpu_hours: float
    lost_gpu_hours: float
    jobs: int
    cost: Cost


class HistoryTotal(Document):
    jobs: int
    gpu_seconds: float = Field(description="GPUs held times seconds, over all attempts of these jobs.")
    lost_gpu_seconds: float


ReportKey = Literal["tenant", "user", "type", "day", "month", "model"]


class Report(Document):
    by: ReportKey
    since: Moment
    until: Moment
    currency: str
    items: list[Usage]
    more: int = Field(description="How many lines were left out.")
    total: UsageTotal
    unpriced: list[str] = Field(description="Types that were used and have no price, if others have one.")


class Series(Document):
    name: str
    used: list[float] = Field(description="GPUs, the mean over each bin.")


class UsageOverTime(Document):
    since: Moment
    until: Moment
    step: float = Field(description="Of a bin; the last one may be shorter.")
    capacity: int = Field(description="GPUs there are now.")
    series: list[Series] = Field(description="The largest first; what is too much is in one of others.")
    waiting: list[float] = Field(description="Jobs that waited for nothing but resources.")
    asked: list[float] = Field(description="GPUs they asked for.")


class PriceTable(Document):
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


class StandIn(Document):
    policy: str
    options: dict[str, Any]
    reason: str = Field(description="How the chosen policy failed.")
    failed_at: str
    retry_at: str = Field(description="When the chosen policy is tried again.")


class Policy(Document):
    name: str
    options: dict[str, Any] = Field(description="Those that were set.")
    in_force: dict[str, Any] = Field(description="All of them, with what holds where none was set.")
    default: bool = Field(description="Whether it is what a new plane begins with.")
    stand_in: StandIn | None = Field(description="The policy that decides while this one fails.")


class PolicyChoice(Asked):
    name: str = Field(
        min_length=1,
        max_length=4_200,
        description="Of a policy; default: that of a new plane; FILE.py:FUNCTION: the whole path of a file.",
    )
    options: dict[str, Any] = Field(default={}, max_length=100)


class Speed(Document):
    tenant: str = Field(description="Whose jobs measured it.")
    model: str
    gpu_type: str
    gpus: int
    steps_per_second: float
    reports: int
    at: Moment


class SpeedPage(Document):
    items: list[Speed]
    next: str | None


# --- accounts and the plane itself ------------------------------------------------------------------


class NewToken(Asked):
    name: Text = Field(default="", description="For people: where it is used.")
    tenant: str = Field(default="", max_length=64, pattern=r"^([A-Za-z0-9][A-Za-z0-9._@-]*)?$")
    user: str = Field(default="", max_length=64, pattern=r"^([A-Za-z0-9][A-Za-z0-9._@-]*)?$")
    role: Role = "user"
    expires_in: float | None = Field(default=None, gt=0, le=1e10, description="Seconds; nothing: never.")


class MadeToken(Document):
    id: str
    token: str = Field(description="It is shown this once.")


class Token(Document):
    id: str
    name: str
    tenant: str
    user: str
    role: Role
    created_at: Moment
    expires_at: Moment | None
    revoked_at: Moment | None


class TokenPage(Document):
    items: list[Token]
    next: str | None


class OwnToken(Document):
    name: str
    expires_at: Moment | None = Field(description="On the wall's clock, whatever the plane's is.")


class Me(Document):
    """The caller, and the plane."""

    user: str
    tenant: str
    role: Role
    tenants: list[str] = Field(description="Those that the token sees, the first thousand by name.")
    token: OwnToken
    version: str
    now: Moment = Field(description="The plane's time; with a scale above 1 it runs faster than the wall's.")
    policy: str
    virtual: bool = Field(description="The GPUs are emulated.")
    scale: float
    gpus: int
    nodes: int


class Step(Document):
    number: int
    era: int
    time: Moment
    line: str = Field(description="As the journal holds it, JSON.")
    cut: bool = Field(description="The line was too long and is not whole.")


class StepPage(Document):
    items: list[Step]
    next: str | None = Field(description="The number to ask for next, as `after`.")


class Health(Document):
    status: Literal["ok", "trouble", "standby"]
    role: Literal["leader", "follower"]
    version: str
    stand_in: bool = Field(description="Whether another policy decides because the chosen one fails.")
    reason: str = Field(description="Of the trouble, in one line.")


class Version(Document):
    version: str
    api: str
