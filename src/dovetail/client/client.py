"""`dovetail.Client`: a plane, as a Python program uses it.

    client = dovetail.Client()                 # the plane of this machine, or DOVETAIL_URL
    print(client.plan("train.yaml").eta)
    job = client.submit("train.yaml", time="4h")
    for text in job.logs(follow=True):
        print(text, end="")
    print(job.wait().state)

Answers are frozen values. `raw` has the whole answer, with fields that only a newer plane knows.
"""

from __future__ import annotations

import codecs
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

from dovetail.client.connection import ApiError, Connection, Query, segment
from dovetail.client.documents import ACTIVE, Job, Node, Plan, Raw, Why, document_of
from dovetail.model.errors import InputError

PASSED_ON = ("PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV", "PYTHONPATH", "LD_LIBRARY_PATH")
WORST_FIRST = ("failed", "refused", "out-of-memory", "node-failed", "timeout", "cancelled", "completed")

LONGEST_KEY = 255


class LogPiece(NamedTuple):
    """Part of the output of one process."""

    data: bytes
    next: int  # the offset to continue from
    files: int  # how many processes write output


class JobHandle:
    """A submitted job or array of jobs."""

    def __init__(
        self,
        client: Client,
        id: str,
        *,
        ids: Sequence[str] = (),
        count: int = 1,
        notes: Sequence[str] = (),
    ) -> None:
        self.client, self.id, self.count = client, id, count
        self.ids = tuple(ids) or (id,)
        self.notes = tuple(notes)  # warnings about parts of the request that may not be what the user meant
        self._last_info: Job | None = None

    def __repr__(self) -> str:
        return f"JobHandle({self.id!r})"

    @property
    def info(self) -> Job:
        """The job, as it was at the last request to the plane."""
        return self._last_info or self.refresh()

    @property
    def state(self) -> str:
        """The state of the job now."""
        last = self._last_info
        return last.state if last is not None and last.done else self.refresh().state

    @property
    def done(self) -> bool:
        return self.state not in ACTIVE

    def refresh(self) -> Job:
        self._last_info = self.client.job_info(self.id)
        return self._last_info

    def wait(self, timeout: float | None = None) -> Job:
        """Wait until the job has ended; TimeoutError if that takes longer."""
        until = None if timeout is None else time.monotonic() + timeout
        pause = 0.05
        while not (info := self.refresh()).done:
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError(f"job {self.id} is {info.state} after {timeout:g} s")
            time.sleep(pause if left is None else min(pause, left))
            pause = min(pause * 1.5, 1.0)
        return info

    def logs(
        self, follow: bool = False, *, attempt: int | None = None, node: str | None = None
    ) -> Iterator[str]:
        """The output in pieces; with `follow` until the job has ended, including later attempts."""
        return self.client.logs(self.id, follow, attempt=attempt, node=node)

    def why(self) -> Why:
        return self.client.why(self.id)

    def attempts(self) -> list[Raw]:
        return self.client.attempts(self.id)

    def cancel(self) -> None:
        self.client.cancel(self.id)


class Client:
    """A plane. Without arguments: that of DOVETAIL_URL and DOVETAIL_TOKEN, or the plane of this machine."""

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
        """Submit a job file, an `#SBATCH` script or a request as a dict. The same `key` submits only once."""
        if key is not None and (len(key) > LONGEST_KEY or re.fullmatch("[!-~](?:[ -~]*[!-~])?", key) is None):
            raise InputError(
                f"the key {key[:80]!r} cannot be sent; write 1 to {LONGEST_KEY} plain characters"
            )
        headers = {"Idempotency-Key": key or os.urandom(16).hex()}
        body = read_request(request, overrides, local=self.connection.local)
        made = self.connection.post("/jobs", body, headers=headers, again=True)
        return JobHandle(
            self,
            made["id"],
            ids=made.get("ids", ()),
            count=made.get("count", 1),
            notes=made.get("notes") or (),
        )

    def plan(self, request: str | Path | Raw, **overrides: object) -> Plan:
        """Where and when the job would start, by the same code that will decide it."""
        body = read_request(request, overrides, local=self.connection.local)
        return document_of(Plan, self.connection.post("/plan", body, again=True))

    def job(self, id: str) -> JobHandle:
        handle = JobHandle(self, id)
        handle.refresh()
        return handle

    def job_info(self, id: str) -> Job:
        """A job. An array is one job, in the most important state of its members."""
        raw = self.connection.get(f"/jobs/{segment(id)}")
        if isinstance(states := raw.get("states"), Mapping):
            raw = {**raw, "state": overall(states)}
        return document_of(Job, raw)

    def jobs(self, *, limit: int | None = None, **filters: object) -> Iterator[Job]:
        """Newest first. Filters: state, user, mine, name, array, tenant, since, active."""
        for raw in self.pages("/jobs", limit, **filters):
            yield document_of(Job, raw)

    def history(self, *, limit: int | None = None, **filters: object) -> Iterator[Job]:
        """Jobs that have ended. Filters: since, until, user, tenant, state."""
        for raw in self.pages("/history", limit, **filters):
            yield document_of(Job, raw)

    def why(self, id: str) -> Why:
        return document_of(Why, self.connection.get(f"/jobs/{segment(id)}/why"))

    def attempts(self, id: str) -> list[Raw]:
        return _items(self.connection.get(f"/jobs/{segment(id)}/attempts"))

    def reports(self, id: str) -> list[Raw]:
        """The job's own reports of its progress."""
        return _items(self.connection.get(f"/jobs/{segment(id)}/reports"))

    def cancel(self, *ids: str, mine: bool = False, tasks: str | None = None) -> int:
        """The number of jobs that were cancelled; jobs that had ended before do not count."""
        if len(ids) == 1 and not mine:
            now = self.cancel_one(ids[0], tasks)
            return int(now["acted"]) if "acted" in now else int(now.get("state") in ("cancelled", "stopping"))
        if tasks is not None:
            raise InputError(f"tasks {tasks} need exactly one array id")
        return int(self.cancel_many(*ids, mine=mine)["count"])

    def cancel_one(self, id: str, tasks: str | None = None) -> Raw:
        """The job afterwards. For an array its summary, where `acted` is the number of cancelled jobs."""
        return self._act(id, "cancel", tasks)

    def cancel_many(self, *ids: str, mine: bool = False) -> Raw:
        """`count` is the number of cancelled jobs; `missing` lists the ids that no job has."""
        body: dict[str, object] = {"mine": True} if mine else {"ids": list(ids)}
        found = _mapping(self.connection.post("/jobs/cancel", body, again=True))
        return {"missing": found.get("unknown", []), **found}

    def hold(self, id: str, tasks: str | None = None) -> Raw:
        return self._act(id, "hold", tasks)

    def release(self, id: str, tasks: str | None = None) -> Raw:
        return self._act(id, "release", tasks)

    def requeue(self, id: str, tasks: str | None = None) -> Raw:
        path = f"/jobs/{segment(id)}/requeue"  # not repeated: a second request would stop the new attempt
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
        """The output of all processes line by line as it comes; each line names its process."""
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
        """The output in pieces of text.

        With `follow` the plane is asked again for the output after an offset. So nothing is lost or repeated
        when the plane restarts. The carriage returns of progress bars are kept; an event stream would split
        lines there.
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
            if ended:  # its last output may have come after the last request
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
        return [document_of(Node, raw) for raw in self.node_list()]

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
        """Set weight, quota, borrow, limit or parent of a tenant."""
        return _mapping(self.connection.put(f"/tenants/{segment(name)}", settings))

    def drop_tenant(self, name: str) -> None:
        """Remove the settings of a tenant. Needs an administrator's token."""
        self.connection.delete(f"/tenants/{segment(name)}")

    def limits(self) -> Raw:
        """What this token may ask for, and where that is set."""
        return _mapping(self.connection.get("/limits"))

    def set_limits(self, kind: str, name: str, **limits: object) -> Raw:
        """Set priority, gpus, time (seconds) or jobs for a role, a tenant or a user; None is no limit."""
        return _mapping(self.connection.put(f"/limits/{segment(kind)}/{segment(name)}", limits))

    def drop_limits(self, kind: str, name: str) -> None:
        """Forget what was set for a role, a tenant or a user. Needs an administrator's token."""
        self.connection.delete(f"/limits/{segment(kind)}/{segment(name)}")

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
        """Facts: tenant, user, role, expires_in (seconds). Only this answer contains the token itself."""
        body = {"name": name, **{key: value for key, value in facts.items() if value is not None}}
        return _mapping(self.connection.post("/tokens", body))

    def revoke_token(self, id: str) -> None:
        self.connection.delete(f"/tokens/{segment(id)}")

    def version(self) -> Raw:
        return _mapping(self.connection.get("/version"))

    def health(self) -> Raw:
        """What the plane is: its status is ok, standby or trouble."""
        try:
            return _mapping(self.connection.get("/health"))
        except ApiError as error:
            if error.status == 503 and "role" in error.problem:  # a plane in trouble says so
                return dict(error.problem)
            raise

    def watch(self, job: str | None = None, *, last: str = "") -> Iterator[Raw]:
        """Every change of a job that the token may see, or of one job or array, as it happens.

        `last` is the `event_id` of the last change that was received. A change with the `id` None says that
        some changes were missed.
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
    """A request in the form of the API; an override that is None changes nothing."""
    given = {key: value for key, value in overrides.items() if value is not None}
    if isinstance(request, Mapping):
        return {**request, **given} if given else request
    from dovetail.client.jobfile import read_jobfile  # noqa: PLC0415  (YAML is loaded only when a file is read)

    found = read_jobfile(request, given)
    return placed_here(found) if local else found


T_Request = TypeVar("T_Request", bound=dict[str, Any])


def placed_here(request: T_Request) -> T_Request:
    """On the machine of the plane, a job runs in the current folder and finds the same programs."""
    request.setdefault("workdir", os.getcwd())
    passed_on = {name: os.environ[name] for name in PASSED_ON if os.environ.get(name)}
    if isinstance(env := request.get("env", {}), Mapping):  # else the plane reports what is wrong
        request["env"] = {**passed_on, **env}
    return request


def overall(states: Mapping[str, int]) -> str:
    """The state of an array: the most important one among its jobs."""
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
