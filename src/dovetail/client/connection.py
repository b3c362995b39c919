"""The HTTP connection to a plane. It is kept open and opened again when lost, and it protects the token.

`dovetail ps` should take a fifth of a second, so only the standard library is used. A request that may be
repeated is sent again when the connection is lost; any other is sent once. After 429 and 503 the client
waits and asks again. A plane that does not lead names the leader. A plane that was never reached is
reported at once; one that answered before may be restarting, so the client keeps trying for a while.
"""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import json
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, urlencode, urlsplit

from dovetail.model.errors import DovetailError, InputError

ROOT = "/api/v1"
CONNECT_TIMEOUT = 10.0
MAX_REDIRECTS = 5
MAX_IDLE = 3.0  # seconds after which a kept connection is not used again: servers close idle ones
CONNECTION_ERRORS = (OSError, http.client.HTTPException)
Query = Mapping[str, object]


class NoPlane(DovetailError):
    """No plane answers at the address."""


class ApiError(DovetailError):
    """The plane answered with a problem (RFC 9457)."""

    def __init__(self, status: int, title: str, detail: str, problem: Mapping[str, Any]) -> None:
        self.status, self.title, self.detail, self.problem = status, title, detail, problem
        super().__init__(_sentence(status, title, detail, problem))

    @property
    def problems(self) -> list[Any]:
        """What is wrong with each field, if the plane says so."""
        found = self.problem.get("problems", self.problem.get("errors", []))
        return list(found) if isinstance(found, list) else []


class Refused(ApiError, InputError):
    """The plane refused the request as wrong: exit code 2."""


class Reply(NamedTuple):
    """One answer of the plane."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes


class ServerEvent(NamedTuple):
    """One server-sent event."""

    kind: str
    data: str
    id: str


# --- where the plane is ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Address:
    url: str
    token: str = field(default="", repr=False)
    state: Path | None = None  # the plane's state folder, if it is on this machine


def state_folder(state: str | Path | None = None) -> Path:
    """The state folder of the plane of this machine."""
    if state or (state := os.environ.get("DOVETAIL_STATE")):
        return Path(state).expanduser()
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "dovetail"


def find_address(
    url: str | None = None, token: str | None = None, state: str | Path | None = None
) -> Address:
    """From the arguments, else from DOVETAIL_URL and DOVETAIL_TOKEN, else from the plane's state folder.

    The token in the folder is sent only to the plane that wrote it there.
    """
    folder = state_folder(state)
    token = (token or os.environ.get("DOVETAIL_TOKEN") or "").strip()
    url = url or (None if state else os.environ.get("DOVETAIL_URL"))
    if url:
        return _address_of(
            _checked(url), token, folder, named=bool(state or os.environ.get("DOVETAIL_STATE"))
        )
    kept = kept_address(folder)
    return Address(kept.url, token or kept.token, kept.state)


def kept_address(folder: Path) -> Address:
    """The address and the token that a plane wrote to its state folder."""
    if (kept := _read_address(folder)) is None:
        raise NoPlane(
            f"no plane is running with its state in {folder}; start one with dovetail up, "
            "or set DOVETAIL_URL and DOVETAIL_TOKEN"
        )
    return kept


def _address_of(url: str, token: str, folder: Path, *, named: bool) -> Address:
    """A given address, with the state folder if the address is that of this machine's plane.

    A loopback address may be a tunnel to another machine. It counts as local if the folder contains the same
    address, or if the user named the folder and it belongs to another account, so that it cannot be read.
    """
    try:
        kept = _read_address(folder)
    except InputError as error:
        ours = named and is_loopback(url) and isinstance(error.__context__, PermissionError)
        return Address(url, token, folder if ours else None)
    if kept is None or not _same(url, kept.url):
        return Address(url, token)
    return Address(url, token or (kept.token if url == kept.url else ""), folder)


def _same(one: str, other: str) -> bool:
    """Whether two addresses are the same; all loopback names are."""
    a, b = urlsplit(one), urlsplit(other)
    alike = (a.scheme, a.port, a.path) == (b.scheme, b.port, b.path)
    return alike and (a.hostname == b.hostname or (is_loopback(one) and is_loopback(other)))


def _read_address(folder: Path) -> Address | None:
    file = folder / "address.json"
    try:
        kept = json.loads(file.read_bytes())
        return Address(_checked(str(kept["url"])), str(kept.get("token") or ""), folder)
    except FileNotFoundError:
        return None
    except PermissionError:
        raise InputError(
            f"{file}: belongs to another account; set DOVETAIL_URL and DOVETAIL_TOKEN to your own"
        ) from None
    except (OSError, ValueError, KeyError, TypeError):
        raise InputError(
            f"{file}: cannot be read as the address of a plane; start it again with dovetail up"
        ) from None


def _checked(url: str) -> str:
    try:
        parts = urlsplit(url.strip())
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        good = False
    if not good or "\n" in url or "\r" in url:
        raise InputError(f"{url!r} is not the address of a plane; write http://127.0.0.1:8470")
    if parts.username or parts.password:
        raise InputError("the address contains a name or password; give the token in DOVETAIL_TOKEN instead")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix(ROOT)}"


def is_loopback(url: str) -> bool:
    """Whether an address is of this machine."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _safe_for_token(url: str) -> None:
    if urlsplit(url).scheme == "https" or is_loopback(url) or os.environ.get("DOVETAIL_INSECURE") == "1":
        return
    raise InputError(
        f"{url} is neither https nor this machine, so the token would be sent unencrypted; "
        "use https, a tunnel to it, or set DOVETAIL_INSECURE=1"
    )


# --- the connection --------------------------------------------------------------------------------


class Connection:
    """A kept connection to a plane. Threads may share it; their requests are sent one after another."""

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        state: str | Path | None = None,
        *,
        timeout: float = 30.0,
        patience: float = 30.0,
    ) -> None:
        self._find: Callable[[], Address] = lambda: find_address(url, token, state)
        self._address = self._find()
        self._timeout, self.patience = timeout, patience
        self._lock = threading.RLock()
        self._http: http.client.HTTPConnection | None = None
        self._owner = 0
        self._used_at = 0.0
        self._reached = False  # the plane has answered before
        if self._address.token:
            _safe_for_token(self._address.url)
        if not (self._address.token.isascii() and self._address.token.isprintable()):
            raise InputError(
                "the token contains characters that no token has; copy it again (DOVETAIL_TOKEN)"
            )

    def __repr__(self) -> str:
        return f"Connection({self._address.url!r})"

    @property
    def url(self) -> str:
        return self._address.url

    @property
    def state(self) -> Path | None:
        """The plane's state folder, if it is on this machine."""
        return self._address.state

    @property
    def local(self) -> bool:
        """Whether the plane is on this machine, so that it sees the same paths.

        A loopback address does not show that, because it may be a tunnel; the state folder does.
        """
        return self.state is not None

    def close(self) -> None:
        with self._lock:
            if self._http is not None:
                self._http.close()
            self._http = None

    # -- calls

    def get(self, path: str, query: Query | None = None) -> Any:
        return _parsed(self.call("GET", path, query=query, again=True))

    def post(
        self,
        path: str,
        body: object = None,
        *,
        query: Query | None = None,
        headers: Mapping[str, str] | None = None,
        again: bool = False,
    ) -> Any:
        return _parsed(self.call("POST", path, query=query, body=body, headers=headers, again=again))

    def put(self, path: str, body: object) -> Any:
        return _parsed(self.call("PUT", path, body=body, again=True))

    def delete(self, path: str) -> Any:
        return _parsed(self.call("DELETE", path, again=True))

    def call(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        body: object = None,
        headers: Mapping[str, str] | None = None,
        again: bool = False,
    ) -> Reply:
        """Send one request. `again`: the request may be repeated."""
        target = _target(path, query)
        sent = {"Accept": "application/json, application/problem+json", **(headers or {})}
        data = None
        if body is not None:
            try:
                data = json.dumps(body, ensure_ascii=False, allow_nan=False).encode()
            except ValueError:
                raise InputError("a number that is not finite cannot be sent; write another") from None
            sent["Content-Type"] = "application/json"
        elif method in ("POST", "PUT"):
            data = b""
        with self._lock:
            for tries in self._tries():
                try:
                    connection = self._connected()
                except OSError as error:  # nothing was sent
                    tries.lost(error, wait=self._reached)
                    continue
                try:
                    connection.request(method, self._prefix + target, data, self._headers(sent))
                    response = connection.getresponse()
                    reply = Reply(response.status, response.headers, response.read())
                except CONNECTION_ERRORS as error:
                    self.close()
                    tries.lost(error, wait=again)
                    continue
                self._reached, self._used_at = True, time.monotonic()
                if not self._try_again(reply, tries, again, path):
                    return reply
        raise AssertionError("_Tries ends the loop")

    def _try_again(self, reply: Reply, tries: _Tries, again: bool, path: str) -> bool:
        """Whether to send the request again; raises the error of a final refusal."""
        if reply.status < 400:
            return False
        error = problem_of(reply, path, self.url)
        if reply.status == 503 and isinstance(leader := error.problem.get("leader"), str) and leader:
            self._follow(leader, tries, error)
            return True
        if reply.status in (429, 503) or (again and reply.status in (502, 504)):
            tries.wait_as_told(_retry_after(reply.headers), error)
            return True
        raise error

    def _follow(self, leader: str, tries: _Tries, error: ApiError) -> None:
        url = _checked(leader)
        if self.url.startswith("https:") and not url.startswith("https:"):
            raise NoPlane(f"{self.url} names {url} as the leader, which is not https; ask its administrator")
        if self._address.token:
            _safe_for_token(url)
        tries.redirected(error)
        self.close()
        self._address = Address(url, self._address.token, self._address.state)

    # -- streams

    def events(
        self, path: str, query: Query | None = None, *, last: str = "", idle: float = 90.0
    ) -> Iterator[ServerEvent]:
        """Server-sent events. A lost stream is opened again after the last event.

        A plane sends a comment every few seconds, so silence for `idle` seconds means a lost connection.
        """
        tries = _Tries(self)
        while True:
            headers = {"Accept": "text/event-stream", "Cache-Control": "no-store"}
            if last:
                headers["Last-Event-ID"] = last
            connection, opened_at = self._opened(timeout=idle), time.monotonic()
            try:
                connection.connect()
                connection.request("GET", self._prefix + _target(path, query), headers=self._headers(headers))
                response = connection.getresponse()
                if response.status != 200:
                    reply = Reply(response.status, response.headers, response.read())
                    self._try_again(reply, tries, True, path)
                    continue
                self._reached = True
                for event in read_events(response):
                    last = event.id or last
                    yield event
                    if event.kind == "end":
                        return
                raise ConnectionError("the stream ended")
            except CONNECTION_ERRORS as error:
                if time.monotonic() - opened_at > 1.0:  # it worked for a while: count from now
                    tries = _Tries(self)
                tries.lost(error, wait=self._reached)
            finally:
                connection.close()

    # -- HTTP

    def _tries(self) -> Iterator[_Tries]:
        tries = _Tries(self)
        while True:
            yield tries

    @property
    def _prefix(self) -> str:
        return urlsplit(self._address.url).path + ROOT

    def _headers(self, more: Mapping[str, str]) -> dict[str, str]:
        headers = {"User-Agent": "dovetail", **more}
        if self._address.token:
            headers["Authorization"] = f"Bearer {self._address.token}"
        return headers

    def _opened(self, timeout: float) -> http.client.HTTPConnection:
        parts = urlsplit(self._address.url)
        assert parts.hostname is not None
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        return kind(parts.hostname, parts.port, timeout=timeout)

    def _connected(self) -> http.client.HTTPConnection:
        """The kept connection if it is still open, else a new one."""
        kept = self._http
        if kept is not None and kept.sock is not None:
            same_process = self._owner == os.getpid()  # after a fork the connection is the parent's
            if (
                same_process
                and time.monotonic() - self._used_at < MAX_IDLE
                and not _closed_by_server(kept.sock)
            ):
                return kept
            kept.close()
        made = self._opened(CONNECT_TIMEOUT)
        made.connect()
        made.sock.settimeout(self._timeout)
        self._http, self._owner = made, os.getpid()
        return made

    def find_again(self) -> None:
        """Find the address again: a restarted plane may have another port, a new leader another address."""
        with contextlib.suppress(DovetailError):
            self._address = self._find()


class _Tries:
    """The repetitions of one request, within the time that the connection allows."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._until = time.monotonic() + connection.patience
        self._pause = 0.05
        self._redirects = 0

    def lost(self, error: Exception, *, wait: bool) -> None:
        """The connection was lost: wait and find the plane again, or raise NoPlane."""
        url = self._connection.url
        if isinstance(error, TimeoutError):
            what = f"the plane at {url} did not answer in time; try again, or look at its plane.log"
        elif isinstance(error, socket.gaierror):
            what = f"the host {urlsplit(url).hostname} is not known; check DOVETAIL_URL"
        elif isinstance(error, OSError) and type(error).__module__ == "ssl":
            what = f"no secure connection to {url}: {error}; check the address and its certificate"
        elif isinstance(error, ConnectionRefusedError) or not self._connection._reached:
            check = "start one with dovetail up" + (
                "" if self._connection.local else ", or check DOVETAIL_URL"
            )
            what = f"no plane answers at {url}; {check}"
        else:
            problem = _plain(str(error)) or type(error).__name__
            what = f"the connection to the plane at {url} was lost ({problem}); try again"
        if not wait or time.monotonic() + self._pause > self._until:
            raise NoPlane(what) from None
        self._sleep(self._pause)
        self._connection.find_again()

    def wait_as_told(self, seconds: float | None, error: ApiError) -> None:
        pause = self._pause if seconds is None else max(seconds, 0.05)
        if time.monotonic() + pause > self._until:
            raise error
        self._sleep(pause)

    def redirected(self, error: ApiError) -> None:
        """Follow to the leader at once, but not endlessly: two planes may name each other for a while."""
        self._redirects += 1
        if self._redirects > MAX_REDIRECTS:
            self._redirects = 0
            self.wait_as_told(None, error)

    def _sleep(self, seconds: float) -> None:
        time.sleep(seconds * (0.8 + os.urandom(1)[0] / 640))  # spread, so that clients do not return together
        self._pause = min(2 * self._pause, 2.0)


def read_events(lines: Iterator[bytes] | http.client.HTTPResponse) -> Iterator[ServerEvent]:
    """The events of a stream; comments and unknown fields are skipped."""
    kind, id, data = "", "", list[str]()
    for raw in lines:
        line = raw.decode("utf-8", "replace").rstrip("\r\n")
        if not line:
            if data or kind:
                yield ServerEvent(kind or "message", "\n".join(data), id)
            kind, data = "", []
            continue
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            data.append(value)
        elif name == "event":
            kind = value
        elif name == "id" and "\0" not in value:
            id = value


RESOURCES = {
    "jobs": ("job", "has the id", "dovetail ps -a"),
    "nodes": ("node", "is named", "dovetail nodes"),
    "tenants": ("tenant", "is named", "dovetail shares"),
    "tokens": ("token", "has the id", "dovetail token list"),
}


def problem_of(reply: Reply, path: str = "", url: str = "") -> ApiError:
    """The error in a reply; for something that does not exist, with the command that lists what does."""
    try:
        problem = json.loads(reply.body)
    except ValueError:
        problem = {}
    if not isinstance(problem, dict):
        problem = {}
    title = str(problem.get("title") or http.client.responses.get(reply.status, "problem"))
    made = Refused if 400 <= reply.status < 500 and reply.status not in (408, 429) else ApiError
    detail = str(problem.get("detail") or "")
    if reply.status == 404:
        detail = _missing(detail, path, url)
    return made(reply.status, title, detail, problem)


def _missing(detail: str, path: str, url: str) -> str:
    kind, _, rest = path.strip("/").partition("/")
    name = unquote(rest.partition("/")[0])
    unknown_path = detail.startswith("nothing is at this address")
    thing, is_called, shown_by = RESOURCES.get(kind, ("", "", ""))
    if thing and name and (unknown_path or detail.startswith((f"no {thing} has ", f"no {thing} is named "))):
        return f"no {thing} that this token may see {is_called} {name}; see them with {shown_by}"
    return f"{url} has no {ROOT}{path}; is it a plane? check DOVETAIL_URL" if unknown_path else detail


def _sentence(status: int, title: str, detail: str, problem: Mapping[str, Any]) -> str:
    sentence = _plain(detail or title)
    fields = problem.get("problems", problem.get("errors"))
    if isinstance(fields, list):
        problems = [_plain(_field_problem(field)) for field in fields[:5]]
        first = [] if any(text.endswith(f": {sentence}") for text in problems) else [sentence]
        sentence = "; ".join(
            [*first, *(text for text in problems if text and not (first and text in sentence))]
        )
    if status == 401 and sentence.startswith("send a token"):
        return "the plane does not know this token, or got none; check DOVETAIL_TOKEN, or ask for a new one"
    if status == 401:
        return f"the plane does not know this token ({sentence}); check DOVETAIL_TOKEN, or ask for a new one"
    if status == 403:
        return f"this token may not do that ({sentence}); ask an administrator"
    if status == 429:
        return f"too many requests ({sentence}); wait and try again"
    if status >= 500:
        return f"the plane failed with {status} ({sentence}); look at its plane.log"
    return sentence


def _field_problem(field: object) -> str:
    if isinstance(field, Mapping):
        where = field.get("field") or field.get("pointer") or field.get("loc") or ""
        if isinstance(where, list):
            where = ".".join(map(str, where))
        where = str(where).strip("/")
        what = field.get("detail") or field.get("msg") or field.get("message") or ""
        return f"{where}: {what}" if where and what else str(what or where)
    return str(field)


def _plain(text: str) -> str:
    """One line, without control characters."""
    return "".join(char if char.isprintable() else "?" for char in " ".join(text.split())).rstrip(".")


def _parsed(reply: Reply) -> Any:
    if not reply.body:
        return None
    try:
        return json.loads(reply.body)
    except ValueError:
        raise ApiError(
            reply.status, "not JSON", "the answer is not valid JSON; is this a plane?", {}
        ) from None


def _target(path: str, query: Query | None) -> str:
    pairs = [(key, _in_query(value)) for key, value in (query or {}).items() if value is not None]
    return quote(path, safe="/:,-._~%") + (f"?{urlencode(pairs)}" if pairs else "")


def segment(text: str) -> str:
    """A name as one segment of a path, whatever characters it has."""
    if text in ("", ".", ".."):
        raise InputError(f"{text!r} is not a name")
    return quote(text, safe="")


def _in_query(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return str(value)


def _retry_after(headers: Mapping[str, Any] | http.client.HTTPMessage) -> float | None:
    try:
        return float(headers.get("Retry-After") or "")
    except ValueError:
        return None


def _closed_by_server(sock: socket.socket) -> bool:
    """A server sends nothing unasked, so readable data means that it has closed the connection."""
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))
