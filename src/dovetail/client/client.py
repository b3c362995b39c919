"""`dovetail.Client`: what a program can ask a plane and tell it.

    client = dovetail.Client()                 # the plane of this machine, or DOVETAIL_URL
    print(client.plan("train.yaml").eta)
    job = client.submit("train.yaml", time="4h")
    for text in job.logs(follow=True):
        print(text, end="")
    print(job.wait().state)

Answers are small frozen values; what a newer plane adds to them is found in `raw`.
"""

from __future__ import annotations

import codecs
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

from dovetail.client.connection import Connection, Query, segment
from dovetail.model.errors import InputError

ACTIVE = ("pending", "held", "running", "stopping")  # a job in any other state has ended
GOES_ALONG = ("PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV", "PYTHONPATH", "LD_LIBRARY_PATH")
WORST_FIRST = ("failed", "refused", "out-of-memory", "node-failed", "timeout", "cancelled", "completed")

T = TypeVar("T")
Raw = Mapping[str, Any]


def _of(kind: Callable[..., T], raw: Raw) -> T:
    """The fields that we know, out of whatever the plane says; moments become datetimes."""
    values: dict[str, Any] = {}
    for known in fields(kind):  # type: ignore[arg-type]
        if known.name in raw and raw[known.name] is not None:
            value = raw[known.name]
            values[known.name] = moment(value) if known.name.endswith("_at") else value
    return kind(**values, raw=raw)


def moment(text: object) -> Any:
    """An ISO 8601 moment as a datetime; what is none stays as it is."""
    if not isinstance(text, str):
        return text
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return text
    return found if found.tzinfo else found.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job as the plane sees it at one moment."""

    id: str
    name: str = ""
    state: str = ""
    letter: str = ""
    reason: str = ""
    kind: str = ""
    tenant: str = ""
    user: str = ""
    model: str = ""
    priority: Any = 0
    gpus: float = 0
    nodes: int = 0
    gpu_types: Sequence[str] = ()
    time_limit: float | None = None
    submitted_at: datetime | None = None
    eligible_at: datetime | None = None
    started_at: datetime | None = None
    first_started_at: datetime | None = None
    ended_at: datetime | None = None
    placement: Sequence[Raw] = ()
    attempt: int = 0
    restarts: int = 0
    exit_code: int | None = None
    cause: str = ""
    detail: str = ""
    array: Raw | None = None
    dependency: str | None = None
    output: str | None = None
    progress: Raw | None = None
    gpu_seconds: float = 0.0
    lost_gpu_seconds: float = 0.0
    raw: Raw = field(default_factory=dict, repr=False)

    @property
    def done(self) -> bool:
        return self.state not in ACTIVE


class LogPiece(NamedTuple):
    """Part of the output of one process."""

    data: bytes
    next: int  # the offset to go on from
    files: int  # how many processes have output of their own


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """When something will probably happen."""

    low: datetime | None = None
    likely: datetime | None = None
    high: datetime | None = None

    @staticmethod
    def of(raw: Raw | None) -> Span | None:
        if not raw:
            return None
        return Span(**{name: moment(raw.get(name)) for name in ("low", "likely", "high")})


@dataclass(frozen=True, slots=True, kw_only=True)
class Why:
    """Why a job waits, who holds what it lacks, and what would let it start."""

    job: str = ""
    state: str = ""
    reason: str = ""
    sentence: str = ""
    holders: Sequence[Raw] = ()
    remedy: str = ""
    starts_at: Any = None
    ahead: Raw = field(default_factory=dict)
    raw: Raw = field(default_factory=dict, repr=False)

    @property
    def starts(self) -> Span | None:
        return Span.of(self.starts_at)

    def __str__(self) -> str:
        return self.sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Where and about when a job would start."""

    fits: bool = True
    starts_at: Any = None
    placement: Sequence[Raw] = ()
    preempts: Sequence[str] = ()
    cost: float | None = None
    raw: Raw = field(default_factory=dict, repr=False)

    @property
    def starts(self) -> Span | None:
        return Span.of(self.starts_at)

    @property
    def eta(self) -> datetime | None:
        """The likely start; None if nobody can tell."""
        return self.starts.likely if self.starts else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    name: str
    state: str = ""
    type: str = ""
    gpus: int = 0
    free: float = 0
    reason: str = ""
    raw: Raw = field(default_factory=dict, repr=False)


class JobHandle:
    """A job, or an array of them, that was submitted."""

    def __init__(self, client: Client, id: str, *, ids: Sequence[str] = (), count: int = 1) -> None:
        self.client, self.id, self.count = client, id, count
        self.ids = tuple(ids) or (id,)
        self._seen: Job | None = None

    def __repr__(self) -> str:
        return f"JobHandle({self.id!r})"

    @property
    def info(self) -> Job:
        """As it was when it was last asked for."""
        return self._seen or self.refresh()

    @property
    def state(self) -> str:
        """Its state now."""
        return self._seen.state if self._seen is not None and self._seen.done else self.refresh().state

    @property
    def done(self) -> bool:
        return self.state not in ACTIVE

    def refresh(self) -> Job:
        self._seen = self.client.job_info(self.id)
        return self._seen

    def wait(self, timeout: float | None = None) -> Job:
        """Until it has ended; TimeoutError if that takes longer."""
        until = None if timeout is None else time.monotonic() + timeout
        pause = 0.05
        while not (seen := self.refresh()).done:
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError(f"job {self.id} is {seen.state} after {timeout:g} s")
            time.sleep(pause if left is None else min(pause, left))
            pause = min(pause * 1.5, 1.0)
        return seen

    def logs(
        self, follow: bool = False, *, attempt: int | None = None, node: str | None = None
    ) -> Iterator[str]:
        """Its output in pieces; with `follow` until it has ended, over all its attempts from now on."""
        return self.client.logs(self.id, follow, attempt=attempt, node=node)

    def why(self) -> Why:
        return self.client.why(self.id)

    def attempts(self) -> list[Raw]:
        return self.client.attempts(self.id)

    def cancel(self) -> None:
        self.client.cancel(self.id)


class Client:
    """A plane. Without arguments: DOVETAIL_URL and DOVETAIL_TOKEN, or the plane of this machine."""

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        state: str | Path | None = None,
        *,
        timeout: float = 30.0,
        patience: float = 30.0,
    ) -> None:
        self.connection = Connection(url, token, state, timeout=timeout, patience=patience)

    def __repr__(self) -> str:
        return f"Client({self.connection.url!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.connection.close()

    # -- jobs

    def submit(self, request: str | Path | Raw, *, key: str | None = None, **overrides: object) -> JobHandle:
        """A job file, an `#SBATCH` script, or a request as a dict. The same `key` submits once only."""
        headers = {"Idempotency-Key": key or os.urandom(16).hex()}
        body = read_request(request, overrides, local=self.connection.local)
        made = self.connection.post("/jobs", body, headers=headers, again=True)
        return JobHandle(self, made["id"], ids=made.get("ids", ()), count=made.get("count", 1))

    def plan(self, request: str | Path | Raw, **overrides: object) -> Plan:
        """Where and when it would start, by the same code that will decide it."""
        body = read_request(request, overrides, local=self.connection.local)
        return _of(Plan, self.connection.post("/plan", body, again=True))

    def job(self, id: str) -> JobHandle:
        handle = JobHandle(self, id)
        handle.refresh()
        return handle

    def job_info(self, id: str) -> Job:
        """A job; an array is shown as one, in the state that matters most."""
        raw = self.connection.get(f"/jobs/{segment(id)}")
        if isinstance(states := raw.get("states"), Mapping):
            raw = {**raw, "state": overall(states)}
        return _of(Job, raw)

    def jobs(self, *, limit: int | None = None, **filters: object) -> Iterator[Job]:
        """Newest first. Filters: state, user, mine, name, array, tenant, since, active."""
        for raw in self.pages("/jobs", limit, **filters):
            yield _of(Job, raw)

    def history(self, *, limit: int | None = None, **filters: object) -> Iterator[Job]:
        """Jobs that have ended. Filters: since, until, user, tenant, state."""
        for raw in self.pages("/history", limit, **filters):
            yield _of(Job, raw)

    def why(self, id: str) -> Why:
        return _of(Why, self.connection.get(f"/jobs/{segment(id)}/why"))

    def attempts(self, id: str) -> list[Raw]:
        return _items(self.connection.get(f"/jobs/{segment(id)}/attempts"))

    def reports(self, id: str) -> list[Raw]:
        """What the job said of its progress."""
        return _items(self.connection.get(f"/jobs/{segment(id)}/reports"))

    def cancel(self, *ids: str, mine: bool = False, tasks: str | None = None) -> int:
        """How many were cancelled."""
        if len(ids) == 1 and not mine:
            self._act(ids[0], "cancel", tasks)
            return 1
        if tasks is not None:
            raise InputError(f"tasks {tasks} of which array? name one id")
        body: dict[str, object] = {"mine": True} if mine else {"ids": list(ids)}
        return int(self.connection.post("/jobs/cancel", body, again=True)["count"])

    def hold(self, id: str, tasks: str | None = None) -> Raw:
        return self._act(id, "hold", tasks)

    def release(self, id: str, tasks: str | None = None) -> Raw:
        return self._act(id, "release", tasks)

    def requeue(self, id: str, tasks: str | None = None) -> Raw:
        path = f"/jobs/{segment(id)}/requeue"  # heard twice, it would stop the new attempt as well
        return _mapping(self.connection.post(path, query={"tasks": tasks}))

    def set_priority(self, id: str, priority: int | str) -> Raw:
        path = f"/jobs/{segment(id)}/priority"
        return _mapping(self.connection.post(path, {"priority": priority}, again=True))

    def _act(self, id: str, verb: str, tasks: str | None) -> Raw:
        path = f"/jobs/{segment(id)}/{verb}"
        return _mapping(self.connection.post(path, query={"tasks": tasks}, again=True))

    # -- logs

    def log_chunk(
        self,
        id: str,
        offset: int,
        *,
        attempt: int | None = None,
        node: str | None = None,
        tail: int | None = None,
    ) -> LogPiece:
        """Output from an offset on, or its last lines."""
        query: Query = {"attempt": attempt, "node": node, "offset": offset, "tail": tail}
        answer = self.connection.call("GET", f"/jobs/{segment(id)}/logs", query=query, again=True)
        next_offset = int(answer.headers.get("X-Next-Offset") or offset + len(answer.body))
        return LogPiece(answer.body, next_offset, int(answer.headers.get("X-Files") or 1))

    def log_lines(self, id: str, *, attempt: int | None = None, tail: int | None = None) -> Iterator[str]:
        """The output of all processes as it comes, line by line, each line with where it is from."""
        query: Query = {"attempt": attempt, "tail": tail}
        for event in self.connection.events(f"/jobs/{segment(id)}/logs/stream", query):
            if event.kind == "message":
                yield event.data + "\n"

    def logs(
        self,
        id: str,
        follow: bool = False,
        *,
        attempt: int | None = None,
        node: str | None = None,
        offset: int = 0,
    ) -> Iterator[str]:
        """Output in pieces, as bytes became text.

        Followed by asking for what comes after an offset: nothing is lost or doubled when the plane
        restarts, and carriage returns of progress bars survive, which event streams would take for line ends.
        """
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        job = self.job_info(id)
        current, pause, last_look = attempt or job.attempt or None, 0.1, False
        while True:
            chunk = b""
            if current is not None:
                chunk, offset, _ = self.log_chunk(id, offset, attempt=current, node=node)
            if chunk:
                if text := decoder.decode(chunk):
                    yield text
                pause = 0.1
                continue
            ended = job.done or (current is not None and job.attempt > current)
            if not follow or (ended and last_look):
                if attempt is None and current is not None and job.attempt > current and follow:
                    current, offset, last_look = job.attempt, 0, False
                    continue
                break
            if ended:  # what it wrote last may have come after our last look
                last_look = True
                continue
            time.sleep(pause)
            pause = min(pause * 1.5, 1.0)
            job = self.job_info(id)
            current = current or job.attempt or None
        if rest := decoder.decode(b"", final=True):
            yield rest

    # -- the cluster

    def nodes(self) -> list[Node]:
        return [_of(Node, raw) for raw in self.node_list()]

    def node_list(self) -> list[Raw]:
        return list(self.pages("/nodes"))

    def node(self, name: str) -> Raw:
        return _mapping(self.connection.get(f"/nodes/{segment(name)}"))

    def drain(self, name: str, reason: str = "") -> Raw:
        path = f"/nodes/{segment(name)}/drain"
        return _mapping(self.connection.post(path, {"reason": reason}, again=True))

    def resume(self, name: str) -> Raw:
        return _mapping(self.connection.post(f"/nodes/{segment(name)}/resume", again=True))

    def gpus(self) -> list[Raw]:
        return list(self.pages("/gpus"))

    def shares(self) -> Raw:
        return _mapping(self.connection.get("/shares"))

    def set_tenant(self, name: str, **settings: object) -> Raw:
        """weight, quota, borrow, limit, parent."""
        return _mapping(self.connection.put(f"/tenants/{segment(name)}", settings))

    def drop_tenant(self, name: str) -> None:
        """Forget what a tenant may have. Needs an administrator's token."""
        self.connection.delete(f"/tenants/{segment(name)}")

    def report(self, by: str = "tenant", **filters: object) -> Raw:
        return _mapping(self.connection.get("/report", {"by": by, **filters}))

    def speeds(self) -> Raw:
        """Measured throughput by model and GPU type."""
        return _mapping(self.connection.get("/speeds"))

    # -- the plane

    def policy(self) -> Raw:
        return _mapping(self.connection.get("/policy"))

    def set_policy(self, name: str, **options: object) -> Raw:
        return _mapping(self.connection.put("/policy", {"name": name, "options": options}))

    def tokens(self) -> list[Raw]:
        return list(self.pages("/tokens"))

    def create_token(self, name: str, **facts: object) -> Raw:
        """tenant, user, role, expires_in (seconds). The answer is the only one that holds the token."""
        body = {"name": name, **{key: value for key, value in facts.items() if value is not None}}
        return _mapping(self.connection.post("/tokens", body))

    def revoke_token(self, id: str) -> None:
        self.connection.delete(f"/tokens/{segment(id)}")

    def version(self) -> Raw:
        return _mapping(self.connection.get("/version"))

    def health(self) -> Raw:
        return _mapping(self.connection.get("/health"))

    def watch(self, job: str | None = None, *, last: str = "") -> Iterator[Raw]:
        """Every change of a job that you may see (or of one job or array), as it happens.

        `last` is the `event_id` of the last one seen. One whose `id` is None means that some were missed.
        """
        import json  # noqa: PLC0415

        for event in self.connection.events("/watch", {"job": job}, last=last):
            if event.kind == "job":
                yield {**json.loads(event.data), "event_id": event.id}
            elif event.kind == "lost":
                yield {"id": None, "state": None, "event_id": event.id}

    def pages(self, path: str, limit: int | None = None, **filters: object) -> Iterator[Raw]:
        """The items of all pages, at most `limit` of them."""
        cursor, left = None, limit
        while left is None or left > 0:
            size = None if left is None else max(1, min(left, 200))
            page = self.connection.get(path, {**filters, "limit": size, "cursor": cursor})
            items = _items(page)
            yield from items if left is None else items[:left]
            cursor = page.get("next") if isinstance(page, Mapping) else None
            left = None if left is None else left - len(items)
            if not cursor:
                return


def read_request(request: str | Path | Raw, overrides: Raw, *, local: bool = False) -> Raw:
    """A request as the plane takes it; what is None in the overrides is left as it is."""
    given = {key: value for key, value in overrides.items() if value is not None}
    if isinstance(request, Mapping):
        return {**request, **given} if given else request
    from dovetail.client.jobfile import read_jobfile  # noqa: PLC0415  (YAML is only loaded by who needs it)

    found = read_jobfile(request, given)
    return placed_here(found) if local else found


T_Request = TypeVar("T_Request", bound=dict[str, Any])


def placed_here(request: T_Request) -> T_Request:
    """On the machine of the plane a job starts where its user stands and finds programs as its user does."""
    request.setdefault("workdir", os.getcwd())
    along = {name: os.environ[name] for name in GOES_ALONG if os.environ.get(name)}
    if isinstance(env := request.get("env", {}), Mapping):  # else the plane will say what is wrong with it
        request["env"] = {**along, **env}
    return request


def overall(states: Mapping[str, int]) -> str:
    """The state of an array: of its jobs, the one that matters most."""
    there = [state for state, number in states.items() if number]
    for state in ("running", "stopping", "pending", "held", *WORST_FIRST):
        if state in there:
            return state
    return there[0] if there else "completed"


def _items(page: Any) -> list[Raw]:
    found = page.get("items", []) if isinstance(page, Mapping) else page
    return list(found or [])


def _mapping(value: Any) -> Raw:
    return value if isinstance(value, Mapping) else {}
