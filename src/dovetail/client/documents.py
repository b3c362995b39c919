"""The documents of the API about jobs and nodes, each defined once: name, type and meaning of every field.

Everything else follows from these classes: the response models and the OpenAPI description of the plane
(`control.api.documents`), the values that the client returns, and the types of the web page
(`dashboard/documents.d.ts`, generated). What the plane answers is checked against them in the tests.

A field has a default for a plane that is older than this client and does not send it. A newer plane may send
more: that is in `raw`. Times are moments in UTC, durations are seconds. Only the standard library is needed.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

Raw = Mapping[str, Any]
T = TypeVar("T")

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
ACTIVE = ("pending", "held", "running", "stopping")  # a job in any other state has ended


MAY_BE_MISSING = object()  # marks a field that a document may leave out
CLIENT_ONLY = object()  # marks a field that is not part of the document
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Document(Mapping[str, Any]):
    """A document with its fields as attributes; it reads as a mapping too."""

    __slots__ = ()

    def __getitem__(self, name: str) -> Any:
        if name not in _readers(type(self)):
            raise KeyError(name)
        return getattr(self, name)

    def __iter__(self) -> Iterator[str]:
        return iter(_readers(type(self)))

    def __len__(self) -> int:
        return len(_readers(type(self)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Part(Document):
    """What is held on one node."""

    node: str = ""
    devices: Sequence[int] = ()
    share: Annotated[int | None, "Of each device, in thousandths; nothing: all.", MAY_BE_MISSING] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Member(Document):
    """The place of a job in its array."""

    id: str = ""
    index: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Members(Document):
    """The array that a job stands for in a folded list."""

    count: int = 0
    states: Mapping[StateWord, int] = field(default_factory=dict)
    first_started_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Span(Document):
    """When something will probably happen."""

    low: datetime | None = None
    likely: datetime | None = None
    high: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Job(Document):
    """A job at one moment; in lists long texts are cut and a placement shows its first nodes only."""

    id: str = ""
    name: str = ""
    state: StateWord = "pending"
    letter: Annotated[str, "The state as squeue abbreviates it."] = ""
    reason: Annotated[str, "Why it waits, in a word."] = ""
    kind: str = ""
    tenant: str = ""
    user: str = ""
    model: str = ""
    priority: int = 0
    gpus: Annotated[int, "Devices it asks for; an elastic job: the most with which it runs."] = 0
    gpus_least: Annotated[
        int | None, "The fewest devices with which it runs, if it is elastic; null: it needs all."
    ] = None
    gpus_held: Annotated[float, "GPUs that it holds now; those of an elastic job change while it runs."] = 0.0
    gpu_share: Annotated[
        float | None, "The part of each device that it asks for: 0.5 is a half; null without GPUs."
    ] = None
    nodes: int = 0
    cpus: Annotated[float | None, "Cores on each node; null: none were asked for."] = None
    memory: Annotated[int | None, "Bytes on each node; null: none were asked for."] = None
    gpu_types: Annotated[Sequence[str], "Any of these; none: any."] = ()
    time_limit: float | None = None
    submitted_at: Annotated[datetime, "When it was submitted."] = EPOCH
    begin_at: Annotated[
        datetime | None, "The job does not start before this moment, if it asked for one."
    ] = None
    eligible_at: Annotated[
        datetime | None, "Since when only resources kept it from its first start; null: something else does."
    ] = None
    started_at: Annotated[datetime | None, "Its last start."] = None
    first_started_at: datetime | None = None
    ended_at: datetime | None = None
    waited: Annotated[
        float,
        "Seconds that it was eligible to run and did not run, so far; after preemptions too. "
        "Time held, before its begin time or behind dependencies does not count.",
    ] = 0.0
    waiting_since: Annotated[datetime | None, "When its present wait began; null: it does not wait."] = None
    first_start_after: Annotated[
        float | None, "Seconds from when it became eligible to its first start; null before that."
    ] = None
    took: Annotated[float, "Seconds that it ran so far, over all attempts."] = 0.0
    placement: Sequence[Part] = ()
    attempt: Annotated[int, "How often it was started."] = 0
    restarts: int = 0
    exit_code: int | None = None
    cause: Annotated[str, "How the last attempt ended: exited, stopped, timeout, oom, lost ..."] = ""
    detail: Annotated[str, "The same as a sentence."] = ""
    array: Member | None = None
    members: Annotated[Members | None, "In a folded list: the whole array that this job stands for."] = None
    dependency: str | None = None
    run: Annotated[
        str | None,
        "Shell text that it runs, secrets hidden; null: it has a command. This and the next four fields are "
        "only in the answer about one job.",
        MAY_BE_MISSING,
    ] = None
    command: Annotated[
        Sequence[str] | None,
        "The program and its arguments, secrets hidden; null: it has shell text.",
        MAY_BE_MISSING,
    ] = None
    setup: Annotated[str, "Shell text that each node runs first.", MAY_BE_MISSING] = ""
    workdir: Annotated[str, "Working directory; empty: a folder of the attempt.", MAY_BE_MISSING] = ""
    env: Annotated[Mapping[str, str], "Variables that it asked for, secrets hidden.", MAY_BE_MISSING] = field(
        default_factory=dict
    )
    output: Annotated[str | None, "Its first output file; only in the answer about one job."] = None
    progress: Annotated[
        Mapping[str, Any] | None,
        "The values it reported last: `step` is the last step it did, `checkpoint_step` the last it saved.",
    ] = None
    gpu_seconds: Annotated[float, "GPUs held times seconds so far, over all attempts."] = 0.0
    lost_gpu_seconds: Annotated[
        float,
        "Of these, work that was not saved and had to be done again, whether the job was told to stop "
        "or failed and was retried.",
    ] = 0.0
    ends_at: Annotated[
        Span | None, "When it is expected to end; only in the answer about one job, and while it runs."
    ] = None
    promised_by: Annotated[
        datetime | None,
        "When it has ended by, as the policy promised; only in the answer about one job, until it ends.",
    ] = None
    raw: Annotated[Raw, CLIENT_ONLY] = field(default_factory=dict, repr=False, compare=False)

    @property
    def done(self) -> bool:
        return self.state not in ACTIVE


@dataclass(frozen=True, slots=True, kw_only=True)
class Array(Document):
    """All members of an array at a glance."""

    id: str = ""
    count: int = 0
    states: Mapping[StateWord, int] = field(default_factory=dict)
    name: str = ""
    tenant: str = ""
    user: str = ""
    submitted_at: Annotated[datetime, "When its first member was submitted."] = EPOCH
    first_started_at: datetime | None = None
    ended_at: datetime | None = None
    gpu_seconds: Annotated[float, "GPUs held times seconds so far, over all members."] = 0.0
    lost_gpu_seconds: Annotated[float, "Of these, work that was not saved and had to be done again."] = 0.0
    gpus_held: Annotated[float, "GPUs that its members hold now."] = 0.0
    run: Annotated[str | None, "Shell text that each member runs; null: a command. Secrets are hidden."] = (
        None
    )
    command: Annotated[Sequence[str] | None, "The program and its arguments; null: shell text."] = None
    setup: Annotated[str, "Shell text that each node runs first."] = ""
    workdir: Annotated[str, "Working directory; empty: a folder of the attempt."] = ""
    env: Annotated[Mapping[str, str], "Variables that were asked for, secrets hidden."] = field(
        default_factory=dict
    )
    acted: Annotated[int | None, "After an action: how many members it changed.", MAY_BE_MISSING] = None
    raw: Annotated[Raw, CLIENT_ONLY] = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Preemptor(Document):
    """A job that another one was preempted for."""

    job: Annotated[str | None, "null: jobs of other tenants, taken together."] = None
    user: str | None = None
    tenant: str | None = None
    higher_priority: Annotated[bool, "Whether its priority was higher at that time."] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class JobAttempt(Document):
    """One start of a job."""

    attempt: int = 0
    placement: Sequence[Part] = ()
    gpu_types: Sequence[str] = ()
    waited: Annotated[float, "Seconds that the job waited for this start."] = 0.0
    started_at: Annotated[datetime, "When it was started."] = EPOCH
    ended_at: datetime | None = None
    took: Annotated[float, "Seconds that it ran so far."] = 0.0
    exit_code: int | None = None
    cause: str = ""
    detail: str = ""
    preempted_by: Annotated[Sequence[Preemptor], "The jobs that it made way for, as far as is known."] = ()


EstimateSource = Literal["given", "limit", "history", "assumed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder(Document):
    """A job that holds what a waiting job is short of."""

    job: Annotated[str | None, "null: jobs that are not listed, taken together."] = None
    tenant: str | None = None
    jobs: Annotated[int, "How many jobs this row stands for."] = 1
    hidden: Annotated[bool, "Whether these are jobs of tenants that this token does not see."] = False
    gpus: float = 0.0
    cpus: float = 0.0
    memory: Annotated[int, "Bytes."] = 0
    ends_at: datetime | None = None
    estimate: Annotated[EstimateSource | None, "What its end rests on."] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Short(Document):
    """A resource of which a job needs more than is free."""

    resource: Literal["gpus", "cpus", "memory"] = "gpus"
    asked: Annotated[float, "For each task: GPUs, cores or bytes."] = 0.0
    free: Annotated[float, "On all nodes that the job could use."] = 0.0
    most: Annotated[float, "On one of them."] = 0.0
    node: Annotated[str, "That one."] = ""


RemedyKind = Literal["release", "resubmit", "cancel", "priority", "resume", "tenant", "wait"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy(Document):
    """Something that lets the job start. The plane has tried it on a copy of its state."""

    kind: RemedyKind = "wait"
    text: Annotated[str, "The same in words."] = ""
    by: Literal["user", "admin"] = "user"
    ask: Annotated[
        Mapping[str, Any] | None,
        "resubmit: cancel the job, then submit its request with these keys in place of its own.",
    ] = None
    jobs: Annotated[Sequence[str], "cancel: these jobs."] = ()
    nodes: Annotated[Sequence[str], "resume: these nodes."] = ()
    tenant: Annotated[str | None, "tenant: which."] = None
    quota: Annotated[int | None, "tenant: its quota."] = None
    limit: Annotated[int | None, "tenant: its limit."] = None
    priority: Annotated[int | None, "priority: of the job."] = None
    at: Annotated[datetime | None, "wait: until then, if the jobs that run end as estimated."] = None
    preempts: Annotated[int, "How many running jobs are preempted for it."] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ahead(Document):
    """Jobs that the policy considers before this one."""

    own: Annotated[int, "Those that this token may see."] = 0
    others: Annotated[bool, "Whether there are more."] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Why(Document):
    """Why a job waits, which jobs hold what it needs, and what would let it start."""

    job: str = ""
    state: StateWord = "pending"
    reason: str = ""
    sentence: str = ""
    short: Annotated[Sequence[Short], "The resources that are short."] = ()
    rule: Annotated[str, "The rule of the policy that holds it back, if one does."] = ""
    behind: Annotated[str | None, "The job that it must not delay, if this token may see it."] = None
    holders: Annotated[Sequence[Holder], "The jobs that hold what is short, the first to end first."] = ()
    remedy: Annotated[str, "The remedies in words, but for waiting."] = ""
    remedies: Annotated[Sequence[Remedy], "What lets it start. Each was tried."] = ()
    remedies_in: Annotated[
        int | None,
        "Remedies were not tried: too many questions with this token. Ask again in so many seconds.",
    ] = None
    assumed: Annotated[str, "What the times rest on, where users gave no estimate."] = ""
    estimate: Annotated[float | None, "How long it is expected to run, in seconds."] = None
    estimate_source: EstimateSource | None = None
    starts_at: Span | None = None
    ends_at: Annotated[Span | None, "When it is expected to end, whether it waits or runs."] = None
    begin_at: Annotated[
        datetime | None, "The job does not start before this moment, if it asked for one."
    ] = None
    ahead: Ahead = field(default_factory=Ahead)
    preempted_by: Annotated[
        Sequence[Preemptor], "The jobs that it made way for, if it waits since it was preempted."
    ] = ()
    raw: Annotated[Raw, CLIENT_ONLY] = field(default_factory=dict, repr=False, compare=False)

    @property
    def starts(self) -> Span | None:
        return self.starts_at

    def __str__(self) -> str:
        return self.sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class Place(Document):
    """GPUs on one node of a plan."""

    node: str = ""
    gpus: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(Document):
    """Where and about when a job would start."""

    fits: Annotated[bool, "False: not now, because nodes that it needs are out of service, or refused."] = (
        True
    )
    starts_at: Span | None = None
    ends_at: Annotated[Span | None, "If it said how long it takes."] = None
    placement: Sequence[Place] = ()
    preempts: Annotated[Sequence[str], "Jobs that this token may see."] = ()
    preempts_others: Annotated[int, "How many more."] = 0
    cost: float | None = None
    notes: Annotated[Sequence[str], "What else there is to know, a line each."] = ()
    promised_by: Annotated[datetime | None, "The moment by which the policy would promise its end."] = None
    refused: Annotated[str, "Why the policy would refuse it; empty if it would not."] = ""
    detail: Annotated[str, "Why it does not fit now; empty if it does."] = ""
    raw: Annotated[Raw, CLIENT_ONLY] = field(default_factory=dict, repr=False, compare=False)

    @property
    def starts(self) -> Span | None:
        return self.starts_at

    @property
    def eta(self) -> datetime | None:
        """The likely start; None if it is not known."""
        return self.starts_at.likely if self.starts_at else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Node(Document):
    """A node and what is free on it."""

    name: str = ""
    type: str = ""
    gpus: int = 0
    free: Annotated[float, "GPUs, whole ones."] = 0.0
    state: Literal["up", "drained", "lost", "off"] = "up"
    reason: str = ""
    cpus: float = 0.0
    memory: Annotated[int, "Bytes."] = 0
    jobs: Annotated[Sequence[str], "Those that this token may see."] = ()
    others: Annotated[int, "How many more jobs run there."] = 0
    raw: Annotated[Raw, CLIENT_ONLY] = field(default_factory=dict, repr=False, compare=False)


# --- reading ----------------------------------------------------------------------------------------


def document_of(kind: Callable[..., T], raw: Raw) -> T:
    """The known fields of what the plane sent; moments become datetimes."""
    values = {name: read(raw[name]) for name, read in _readers(kind).items() if raw.get(name) is not None}
    if any(one.name == "raw" for one in fields(kind)):  # type: ignore[arg-type]
        values["raw"] = raw
    made: T = kind(**values)
    return made


def moment(text: object) -> Any:
    """An ISO 8601 moment as a datetime; any other value stays as it is."""
    if not isinstance(text, str):
        return text
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return text
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def fields_of(kind: Any) -> Iterator[tuple[str, Any, str, bool]]:
    """The fields of a document: name, type, meaning, and whether it may be missing."""
    hints = get_type_hints(kind, include_extras=True)
    for one in fields(kind):
        hint, *notes = get_args(hints[one.name]) if _annotated(hints[one.name]) else (hints[one.name],)
        if CLIENT_ONLY not in notes:
            meaning = next((note for note in notes if isinstance(note, str)), "")
            yield one.name, hint, meaning, MAY_BE_MISSING in notes


def _annotated(hint: Any) -> bool:
    return get_origin(hint) is Annotated


@cache
def _readers(kind: Any) -> dict[str, Callable[[Any], Any]]:
    """By field: what turns the JSON value into the Python value."""
    return {name: _reader(hint) for name, hint, _, _ in fields_of(kind)}


def _reader(hint: Any) -> Callable[[Any], Any]:
    if get_origin(hint) in (Union, types.UnionType):
        (hint,) = (one for one in get_args(hint) if one is not types.NoneType)
    if hint is datetime:
        return moment
    if isinstance(hint, type) and is_dataclass(hint):
        return lambda raw: document_of(hint, raw) if isinstance(raw, Mapping) else raw
    if get_origin(hint) is Sequence:
        each = _reader(get_args(hint)[0])
        return lambda raw: tuple(map(each, raw)) if isinstance(raw, list | tuple) else raw
    return lambda raw: raw
