"""The gate that every request passes, and the call that stands behind it.

The gate is the outermost layer under the server. It checks, in this order: the host that the request is
addressed to, the token, the rate of requests with this token, the size of the body, and whether this plane
leads. Only then is the body parsed. A handler gets a `Call`: the caller, the body and the plane. Before it
works, the call gets a place among those of its kind (`api.lanes`); the gate sees that the place is left.

A token comes in the Authorization header and nowhere else: addresses end up in logs.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import anyio
from fastapi import Depends, Request
from pydantic import BaseModel, ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dovetail.control import inbox
from dovetail.control.api.connections import REFUSED
from dovetail.control.api.lanes import BODIES, CHANGES, LAB, QUESTIONS, SLOW, WIDTHS, Lane, Width
from dovetail.control.api.limits import Requests, Streams
from dovetail.control.api.problems import Refusal, answer_to, invalid
from dovetail.control.api.settings import Settings, is_loopback
from dovetail.control.buckets import Buckets
from dovetail.control.lists import Lists
from dovetail.control.lookup import Lookup
from dovetail.control.prices import PriceList
from dovetail.control.problems import RequestError, problems_of
from dovetail.control.tokens import PREFIX, Caller, Tokens

if TYPE_CHECKING:
    from dovetail.control.api.stream import Board
    from dovetail.control.api.watch import Hub
    from dovetail.control.plane import Plane

log = logging.getLogger("dovetail.api")

ROOT = "/api/v1"
OPEN = frozenset(
    f"{prefix}/{name}" for prefix in ("", ROOT) for name in ("health", "ready", "version", "openapi.json")
)
PAGE = "/page/"
HEALTH = frozenset({"/health", f"{ROOT}/health"})  # the answer costs no more than a refusal
CANCEL = "/cancel"  # how the addresses end that cancel jobs
METRICS = frozenset({"/metrics", f"{ROOT}/metrics"})
FILES = 10  # times as often as anything else one may load a file of the page: a view takes dozens
LOOKUPS = 4  # threads that look up tokens
PUBLIC = Caller("", "", "", "viewer")  # without a token: may read only what is public

M = TypeVar("M", bound=BaseModel)


class ClientGone(Exception):
    """The client closed the connection before its call was worked on."""


@dataclass(frozen=True, slots=True)
class Wiring:
    """What all calls share."""

    plane: Plane
    settings: Settings
    tokens: Tokens
    lists: Lists
    lookup: Lookup
    streams: Streams
    hub: Hub
    board: Board
    prices: PriceList
    lanes: Mapping[Width, Lane] = field(
        init=False, default_factory=lambda: {width: Lane(width) for width in WIDTHS}
    )
    requests: Requests = field(init=False)
    rates: Buckets = field(init=False)
    bad: Buckets = field(init=False)
    files: Buckets = field(init=False)

    def __post_init__(self) -> None:
        at = self.settings
        object.__setattr__(self, "requests", Requests(at.requests_per_token))
        object.__setattr__(self, "rates", Buckets(at.rate, at.burst))
        object.__setattr__(self, "bad", Buckets(at.bad_rate, at.bad_burst))
        object.__setattr__(self, "files", Buckets(FILES * at.rate, FILES * at.burst))


@dataclass(frozen=True, slots=True)
class Call:
    """One request that passed the gate."""

    wiring: Wiring
    caller: Caller
    body: bytes
    media_type: str
    owner: str  # as what it is counted
    leaving: ExitStack  # the places that it has; the gate closes it
    gone: Callable[[], Awaitable[None]]  # returns when the client has closed the connection

    async def enter(self, width: Width) -> None:
        """Take a place among the calls of a kind until the call is answered, unless its client has gone."""
        lane = self.wiring.lanes[width]
        if not lane.entered(self.owner):
            place, gone = asyncio.ensure_future(lane.enter(self.owner)), asyncio.ensure_future(self.gone())
            try:
                await asyncio.wait((place, gone), return_when=asyncio.FIRST_COMPLETED)
            finally:
                gone.cancel()
                if not place.done():
                    place.cancel()
            if not place.done():
                raise ClientGone
            await place
        self.leaving.callback(lane.leave, self.owner)

    @property
    def plane(self) -> Plane:
        return self.wiring.plane

    @property
    def lists(self) -> Lists:
        return self.wiring.lists

    @property
    def lookup(self) -> Lookup:
        return self.wiring.lookup

    @property
    def kind(self) -> str:
        """The media type of the body, without its parameters."""
        return self.media_type.partition(";")[0].strip().lower()

    def json(self, instead: str = "") -> Any:
        """The body as a value; strictly JSON, so neither NaN nor anything deeper than a person would nest."""
        main = self.kind
        if main and main != "application/json" and not main.endswith("+json"):
            raise Refusal("media-type", f"the body is {main[:100]}; send application/json{instead}")
        try:
            return json.loads(self.body, parse_constant=_no_constant)
        except RecursionError:
            raise invalid("", "the body is nested too deeply") from None
        except ValueError as error:
            raise invalid("", f"the body is not valid JSON: {error}"[:200]) from None

    def read(self, model: type[M]) -> M:
        """The body as this model."""
        value = self.json()
        try:
            return model.model_validate(value, strict=True)
        except ValidationError as error:
            known = {"": tuple(model.model_fields)}
            raise RequestError(problems_of(error.errors(include_url=False), known)) from None


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not valid JSON")


def _needs(role: str, width: Width | None) -> Callable[[Request], Any]:
    async def call(request: Request) -> Call:
        found: Call = request.scope["dovetail.call"]
        if not found.caller.may(role):
            raise Refusal("role", f"this needs the role {role}; the token has {found.caller.role}")
        if width is not None:
            await found.enter(width)
        return found

    call.__dict__["role"] = role
    return call


# What a handler needs, and among which calls it is counted.
Public = Annotated[Call, Depends(_needs("viewer", None))]  # where the gate asks for no token
Watching = Annotated[Call, Depends(_needs("viewer", None))]  # streams are counted by `Streams`
Viewing = Annotated[Call, Depends(_needs("viewer", QUESTIONS))]
Studying = Annotated[Call, Depends(_needs("viewer", SLOW))]
Learning = Annotated[Call, Depends(_needs("viewer", LAB))]
Using = Annotated[Call, Depends(_needs("user", CHANGES))]
Planning = Annotated[Call, Depends(_needs("user", SLOW))]
Managing = Annotated[Call, Depends(_needs("admin", CHANGES))]
Auditing = Annotated[Call, Depends(_needs("admin", QUESTIONS))]


class Gate:
    """Pure ASGI, so that it stands before every route, known or not."""

    def __init__(self, app: ASGIApp, wiring: Wiring) -> None:
        self._app, self._wiring = app, wiring
        self._lookups = anyio.CapacityLimiter(LOOKUPS)  # wrong tokens take no thread from right ones

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        started = False

        async def guarded(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                headers = MutableHeaders(scope=message)
                headers.setdefault("Cache-Control", "no-store")
                headers["X-Content-Type-Options"] = "nosniff"
            await send(message)

        try:
            with ExitStack() as leaving:
                call = await self._admitted(scope, receive, leaving)
                if call is None:
                    return  # the client has gone
                scope["dovetail.call"] = call
                inbox.owner.set(call.owner)
                await self._app(scope, _again(receive), guarded)
        except ClientGone:
            return
        except Exception as error:
            if started:
                log.error("an answer broke off", exc_info=error)
                raise
            await answer_to(error)(scope, receive, guarded)

    async def _admitted(self, scope: Scope, receive: Receive, leaving: ExitStack) -> Call | None:
        wiring, headers, path = self._wiring, Headers(scope=scope), scope["path"]
        self._check_host(headers.get("host"))
        page = path == "/" or path.startswith(PAGE)
        public = page or path in OPEN or (path in METRICS and wiring.settings.open_metrics)
        address = scope["client"][0] if scope.get("client") else ""
        if public:
            caller, owner = PUBLIC, f"@{address}"
            if path not in HEALTH:
                self._check_rate(owner, wiring.files if page else wiring.rates)
        else:
            caller = await self._caller(headers, address)
            # Cancellations are counted apart: what a token asks otherwise does not keep it from them.
            owner = caller.token + (CANCEL if path.endswith(CANCEL) else "")
            try:
                self._check_rate(owner, wiring.rates)
            except Refusal:
                # One that asks again at once would keep the event loop busy with refusals.
                scope[REFUSED] = True
                await asyncio.sleep(wiring.settings.refusal_delay)
                raise
            leaving.enter_context(wiring.requests.counted(owner))
        body = await self._body(owner, headers, receive)
        if body is None:
            return None
        if not public and wiring.plane.failed is not None:
            raise Refusal("unavailable", "the scheduler has failed, and this plane ends; try again",
                          headers={"Retry-After": "5"})  # fmt: skip
        if not public and not wiring.plane.leads:
            leader = await run_in_threadpool(wiring.plane.leader)
            raise Refusal(
                "not-leading",
                "this plane does not lead; ask the one that does",
                headers={"Retry-After": "1"},
                leader=leader,
            )

        async def gone() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass

        return Call(wiring, caller, body, headers.get("content-type", ""), owner, leaving, gone)

    def _check_host(self, host: str | None) -> None:
        names = self._wiring.settings.names
        if names is None or host is None:
            return
        name = _without_port(host.strip().lower())
        if name not in names and not is_loopback(name):
            raise Refusal(
                "host", "this plane is not known by that name; an administrator may add it to its hosts"
            )

    async def _caller(self, headers: Headers, address: str) -> Caller:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        token = token.strip()
        detail = "send a token as Authorization: Bearer dt_..."
        if scheme.lower() == "bearer" and token.startswith(PREFIX):
            tokens = self._wiring.tokens
            found = tokens.cached(token) or await anyio.to_thread.run_sync(
                tokens.caller, token, limiter=self._lookups
            )
            if found is not None:
                return found
            detail = "the token is unknown, expired or revoked"
        if wait := self._wiring.bad.take(address):
            raise Refusal(
                "too-many",
                "too many requests without a valid token came from this address",
                headers={"Retry-After": _seconds(wait)},
            )
        raise Refusal("token", detail, headers={"WWW-Authenticate": "Bearer"})

    def _check_rate(self, key: str, rates: Buckets) -> None:
        if wait := rates.take(key):
            raise Refusal(
                "too-many",
                f"more than {rates.rate:g} requests a second (or {rates.burst:g} at once)",
                headers={"Retry-After": _seconds(wait)},
            )

    async def _body(self, owner: str, headers: Headers, receive: Receive) -> bytes | None:
        """All of it, or None if the other side left before."""
        length = headers.get("content-length", "")
        if length in ("", "0") and "transfer-encoding" not in headers:
            return b""
        most = self._wiring.settings.largest_body
        drained = 10 * most  # a client that sends a little too much should read why
        if length.isdigit() and int(length) > drained:
            raise _too_large(most)
        lane = self._wiring.lanes[BODIES]
        await lane.enter(owner)
        try:
            return await self._received(receive, most, drained)
        finally:
            lane.leave(owner)

    async def _received(self, receive: Receive, most: int, drained: int) -> bytes | None:
        parts, size = [], 0
        try:
            async with asyncio.timeout(self._wiring.settings.body_timeout):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    part = message.get("body", b"")
                    size += len(part)
                    if size > drained:
                        raise _too_large(most)
                    if size <= most:
                        parts.append(part)
                    if not message.get("more_body", False):
                        break
        except TimeoutError:
            raise Refusal(
                "slow-body", "the body took too long to arrive", headers={"Connection": "close"}
            ) from None
        if size > most:
            raise _too_large(most)
        return b"".join(parts)


def _too_large(most: int) -> Refusal:
    return Refusal(
        "too-large",
        f"a body has at most {most:,} bytes; put large things in files",
        headers={"Connection": "close"},
    )


def _again(receive: Receive) -> Receive:
    """The body was read: the app gets an empty one, then whatever comes."""
    done = False

    async def again() -> Message:
        nonlocal done
        if done:
            return await receive()
        done = True
        return {"type": "http.request", "body": b"", "more_body": False}

    return again


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def _seconds(wait: float) -> str:
    return str(max(1, math.ceil(wait)))


def finite(value: Any) -> Any:
    """With null for what JSON has no number for."""
    if isinstance(value, dict):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def document(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """JSON without a detour: the values are plain already, and their models are for the description."""
    try:
        body = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    except ValueError:  # a loss that is not a number, say, in what a job reported
        body = json.dumps(finite(value), separators=(",", ":"), ensure_ascii=False)
    return Response(body.encode("utf-8", "replace"), status, headers, "application/json")
