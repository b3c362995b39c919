"""Talking to a plane: HTTP by the standard library, kept open, patient, and careful with the token.

`dovetail ps` should cost a fifth of a second, so there is no HTTP library here. What may be sent twice is
sent again when a connection is lost; what may not is sent once. "Not done" answers (429, 503) are waited out,
and a plane that does not lead names the one that does. A plane that was never reached is reported at once;
one that answered before is given some patience, since it may be restarting.
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
MOST_HOPS = 5
IDLE = 3.0  # seconds after which a kept connection is not trusted: servers hang up on idle ones
LOST = (OSError, http.client.HTTPException)
Query = Mapping[str, object]


class NoPlane(DovetailError):
    """Nobody answers where a plane should be."""


class ApiError(DovetailError):
    """The plane answered with a problem (RFC 9457)."""

    def __init__(self, status: int, title: str, detail: str, problem: Mapping[str, Any]) -> None:
        self.status, self.title, self.detail, self.problem = status, title, detail, problem
        super().__init__(_sentence(status, title, detail, problem))

    @property
    def problems(self) -> list[Any]:
        """What is wrong with each field, where the plane says so."""
        found = self.problem.get("problems", self.problem.get("errors", []))
        return list(found) if isinstance(found, list) else []


class Refused(ApiError, InputError):
    """The plane says that the question is wrong: exit code 2."""


class Answer(NamedTuple):
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
    state: Path | None = None  # the state folder it was found in


def state_folder(state: str | Path | None = None) -> Path:
    """Where the plane of this machine keeps its state."""
    if state or (state := os.environ.get("DOVETAIL_STATE")):
        return Path(state).expanduser()
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "dovetail"


def find_address(
    url: str | None = None, token: str | None = None, state: str | Path | None = None
) -> Address:
    """Arguments come first, then DOVETAIL_URL and DOVETAIL_TOKEN, then what the plane wrote into its folder.

    The token in the folder is for the plane that wrote it there: it is sent nowhere else.
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
    """What the plane of this folder wrote there: its address, and a token of its own."""
    if (kept := _read_address(folder)) is None:
        raise NoPlane(
            f"no plane is running with its state in {folder}; start one with dovetail up, "
            "or set DOVETAIL_URL and DOVETAIL_TOKEN"
        )
    return kept


def _address_of(url: str, token: str, folder: Path, *, named: bool) -> Address:
    """An address that was given, with the state folder if it is that of this machine's plane.

    A loopback address may be a tunnel to another machine, so the folder has to speak for it: the same address
    stands in it, or it was named and is another account's, which tells nobody what stands in it.
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
    """Whether two addresses are one: this machine has several names."""
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
        raise InputError(f"{url!r} is no address of a plane; write http://127.0.0.1:8470")
    if parts.username or parts.password:
        raise InputError("the address holds a name or password; give the token in DOVETAIL_TOKEN instead")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix(ROOT)}"


def is_loopback(url: str) -> bool:
    """Whether an address leads to this machine."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _safe_for_token(url: str) -> None:
    if urlsplit(url).scheme == "https" or is_loopback(url) or os.environ.get("DOVETAIL_INSECURE") == "1":
        return
    raise InputError(
        f"{url} is neither https nor this machine, so the token would be sent for all to read; "
        "use https, a tunnel to it, or set DOVETAIL_INSECURE=1"
    )


# --- the connection --------------------------------------------------------------------------------


class Connection:
    """A kept connection to a plane; may be shared by threads, which then take turns."""

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
        self._turn = threading.RLock()
        self._http: http.client.HTTPConnection | None = None
        self._owner = 0
        self._used_at = 0.0
        self._known = False  # it has answered before
        if self._address.token:
            _safe_for_token(self._address.url)
        if not (self._address.token.isascii() and self._address.token.isprintable()):
            raise InputError("the token holds characters that no token has; copy it again (DOVETAIL_TOKEN)")

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
        """Whether the plane is on this machine, as far as its state folder tells: then it knows paths here.

        A loopback address alone says nothing: it may be a tunnel.
        """
        return self.state is not None

    def close(self) -> None:
        with self._turn:
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
    ) -> Answer:
        """One answer. `again`: it does no harm if the plane hears it twice."""
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
        with self._turn:
            for tries in self._tries():
                try:
                    connection = self._connected()
                except OSError as error:  # nothing was sent yet
                    tries.lost(error, wait=self._known)
                    continue
                try:
                    connection.request(method, self._prefix + target, data, self._headers(sent))
                    reply = connection.getresponse()
                    answer = Answer(reply.status, reply.headers, reply.read())
                except LOST as error:
                    self.close()
                    tries.lost(error, wait=again)
                    continue
                self._known, self._used_at = True, time.monotonic()
                if not self._try_elsewhere(answer, tries, again, path):
                    return answer
        raise AssertionError("the tries end by themselves")

    def _try_elsewhere(self, answer: Answer, tries: _Tries, again: bool, path: str) -> bool:
        """Whether to ask again; raises what is a final no."""
        if answer.status < 400:
            return False
        error = problem_of(answer, path, self.url)
        if answer.status == 503 and isinstance(leader := error.problem.get("leader"), str) and leader:
            self._follow(leader, tries, error)
            return True
        if answer.status in (429, 503) or (again and answer.status in (502, 504)):
            tries.told_to_wait(_retry_after(answer.headers), error)
            return True
        raise error

    def _follow(self, leader: str, tries: _Tries, error: ApiError) -> None:
        url = _checked(leader)
        if self.url.startswith("https:") and not url.startswith("https:"):
            raise NoPlane(f"{self.url} sends us to {url}, which is not https; ask its administrator")
        if self._address.token:
            _safe_for_token(url)
        tries.hop(error)
        self.close()
        self._address = Address(url, self._address.token, self._address.state)

    # -- streams

    def events(
        self, path: str, query: Query | None = None, *, last: str = "", idle: float = 90.0
    ) -> Iterator[ServerEvent]:
        """Server-sent events, for as long as they come; a lost stream goes on where it was.

        A plane sends a comment now and then, so silence for `idle` seconds means a dead connection.
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
                reply = connection.getresponse()
                if reply.status != 200:
                    self._try_elsewhere(Answer(reply.status, reply.headers, reply.read()), tries, True, path)
                    continue
                self._known = True
                for event in read_events(reply):
                    last = event.id or last
                    yield event
                    if event.kind == "end":
                        return
                raise ConnectionError("the stream ended")
            except LOST as error:
                if time.monotonic() - opened_at > 1.0:  # it worked for a while: patience starts anew
                    tries = _Tries(self)
                tries.lost(error, wait=self._known)
            finally:
                connection.close()

    # -- the wire

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
        """The kept connection if it is still good, else a new one."""
        kept = self._http
        if kept is not None and kept.sock is not None:
            ours = self._owner == os.getpid()  # after a fork it is the parent's
            if ours and time.monotonic() - self._used_at < IDLE and not _hung_up(kept.sock):
                return kept
            kept.close()
        made = self._opened(CONNECT_TIMEOUT)
        made.connect()
        made.sock.settimeout(self._timeout)
        self._http, self._owner = made, os.getpid()
        return made

    def look_again(self) -> None:
        """A plane that was started anew may stand at another port, and a leader that died has a successor."""
        with contextlib.suppress(DovetailError):
            self._address = self._find()


class _Tries:
    """How often and how long one call is tried."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._until = time.monotonic() + connection.patience
        self._pause = 0.05
        self._hops = 0

    def lost(self, error: Exception, *, wait: bool) -> None:
        """Wait a little, or give up and say so."""
        url = self._connection.url
        if isinstance(error, TimeoutError):
            what = f"the plane at {url} did not answer in time; try again, or look at its plane.log"
        elif isinstance(error, socket.gaierror):
            what = f"no machine is named {urlsplit(url).hostname}; check DOVETAIL_URL"
        elif isinstance(error, OSError) and type(error).__module__ == "ssl":
            what = f"no safe connection to {url}: {error}; check the address and its certificate"
        elif isinstance(error, ConnectionRefusedError) or not self._connection._known:
            check = "start one with dovetail up" + (
                "" if self._connection.local else ", or check DOVETAIL_URL"
            )
            what = f"no plane answers at {url}; {check}"
        else:
            what = f"the plane at {url} broke off ({_plain(str(error)) or type(error).__name__}); try again"
        if not wait or time.monotonic() + self._pause > self._until:
            raise NoPlane(what) from None
        self._sleep(self._pause)
        self._connection.look_again()

    def told_to_wait(self, seconds: float | None, error: ApiError) -> None:
        pause = self._pause if seconds is None else max(seconds, 0.05)
        if time.monotonic() + pause > self._until:
            raise error
        self._sleep(pause)

    def hop(self, error: ApiError) -> None:
        """To the leader at once; but two planes may each take the other for it for a while."""
        self._hops += 1
        if self._hops > MOST_HOPS:
            self._hops = 0
            self.told_to_wait(None, error)

    def _sleep(self, seconds: float) -> None:
        time.sleep(seconds * (0.8 + os.urandom(1)[0] / 640))  # not all at the same moment
        self._pause = min(2 * self._pause, 2.0)


def read_events(lines: Iterator[bytes] | http.client.HTTPResponse) -> Iterator[ServerEvent]:
    """The events of a stream; comments and what is unknown are passed over."""
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


THINGS = {
    "jobs": ("job", "has the id", "dovetail ps -a"),
    "nodes": ("node", "is named", "dovetail nodes"),
    "tenants": ("tenant", "is named", "dovetail shares"),
    "tokens": ("token", "has the id", "dovetail token list"),
}


def problem_of(answer: Answer, path: str = "", url: str = "") -> ApiError:
    """What the plane complains of; of what is not there, how to see what is."""
    try:
        problem = json.loads(answer.body)
    except ValueError:
        problem = {}
    if not isinstance(problem, dict):
        problem = {}
    title = str(problem.get("title") or http.client.responses.get(answer.status, "problem"))
    made = Refused if 400 <= answer.status < 500 and answer.status not in (408, 429) else ApiError
    detail = str(problem.get("detail") or "")
    if answer.status == 404:
        detail = _missing(detail, path, url)
    return made(answer.status, title, detail, problem)


def _missing(detail: str, path: str, url: str) -> str:
    kind, _, rest = path.strip("/").partition("/")
    name = unquote(rest.partition("/")[0])
    nowhere = detail.startswith("nothing is at this address")
    thing, is_called, shown_by = THINGS.get(kind, ("", "", ""))
    if thing and name and (nowhere or detail.startswith((f"no {thing} has ", f"no {thing} is named "))):
        return f"no {thing} that this token may see {is_called} {name}; see them with {shown_by}"
    return f"{url} has no {ROOT}{path}; is it a plane? check DOVETAIL_URL" if nowhere else detail


def _sentence(status: int, title: str, detail: str, problem: Mapping[str, Any]) -> str:
    said = _plain(detail or title)
    fields = problem.get("problems", problem.get("errors"))
    if isinstance(fields, list):
        told = [_plain(_told(field)) for field in fields[:5]]
        first = [] if any(text.endswith(f": {said}") for text in told) else [said]
        said = "; ".join([*first, *(text for text in told if text and not (first and text in said))])
    if status == 401 and said.startswith("send a token"):
        return "the plane does not know this token, or got none; check DOVETAIL_TOKEN, or ask for a new one"
    if status == 401:
        return f"the plane does not know this token ({said}); check DOVETAIL_TOKEN, or ask for a new one"
    if status == 403:
        return f"this token may not do that ({said}); ask an administrator"
    if status == 429:
        return f"the plane was asked too often ({said}); wait a little"
    if status >= 500:
        return f"the plane failed with {status} ({said}); look at its plane.log"
    return said


def _told(field: object) -> str:
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


def _parsed(answer: Answer) -> Any:
    if not answer.body:
        return None
    try:
        return json.loads(answer.body)
    except ValueError:
        raise ApiError(answer.status, "no JSON", "its answer is no JSON; is this a plane?", {}) from None


def _target(path: str, query: Query | None) -> str:
    pairs = [(key, _in_query(value)) for key, value in (query or {}).items() if value is not None]
    return quote(path, safe="/:,-._~%") + (f"?{urlencode(pairs)}" if pairs else "")


def segment(text: str) -> str:
    """A name as one part of a path, whatever it holds."""
    if text in ("", ".", ".."):
        raise InputError(f"{text!r} is no name")
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


def _hung_up(sock: socket.socket) -> bool:
    """Nobody speaks unasked: something to read now is the other side's goodbye."""
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))
