"""The gate that every request passes, and the call that stands behind it.

The gate is the outermost thing under the server. It checks, in this order: to whom the request is addressed,
whose token it carries, how often that one has asked, how large the body is, and whether this plane leads.
Only then is anything parsed. What the handlers get is a `Call`: the caller, the body, and the plane.

A token comes in the Authorization header and nowhere else: addresses end up in logs.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from fastapi import Depends, Request
from pydantic import BaseModel, ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dovetail.control.api.limits import Buckets, Streams
from dovetail.control.api.problems import Refusal, answer_to, invalid
from dovetail.control.api.settings import Settings, is_loopback
from dovetail.control.prices import PriceList
from dovetail.control.problems import RequestError, problems_of
from dovetail.control.queries import Queries
from dovetail.control.tokens import PREFIX, Caller, Tokens

if TYPE_CHECKING:
    from dovetail.control.api.stream import Board
    from dovetail.control.api.watch import Hub
    from dovetail.control.plane import Plane

log = logging.getLogger("dovetail.api")

ROOT = "/api/v1"
OPEN = frozenset(
    f"{prefix}/{name}" for prefix in ("", ROOT) for name in ("health", "version", "openapi.json")
)
PAGE = "/page/"
METRICS = frozenset({"/metrics", f"{ROOT}/metrics"})
FILES = 10  # times as often as anything else one may load a file of the page: a view takes dozens
NOBODY = Caller("", "", "", "viewer")  # asks only what everybody may know

M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Wiring:
    """What all calls share."""

    plane: Plane
    settings: Settings
    tokens: Tokens
    queries: Queries
    streams: Streams
    hub: Hub
    board: Board
    prices: PriceList
    rates: Buckets = field(init=False)
    bad: Buckets = field(init=False)
    files: Buckets = field(init=False)

    def __post_init__(self) -> None:
        at = self.settings
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

    @property
    def plane(self) -> Plane:
        return self.wiring.plane

    @property
    def queries(self) -> Queries:
        return self.wiring.queries

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
            raise invalid("", f"the body is no JSON: {error}"[:200]) from None

    def read(self, model: type[M]) -> M:
        """The body as this model."""
        value = self.json()
        try:
            return model.model_validate(value, strict=True)
        except ValidationError as error:
            known = {"": tuple(model.model_fields)}
            raise RequestError(problems_of(error.errors(include_url=False), known)) from None


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _needs(role: str) -> Callable[[Request], Any]:
    async def call(request: Request) -> Call:
        found: Call = request.scope["dovetail.call"]
        if not found.caller.may(role):
            raise Refusal("role", f"this needs the role {role}; the token has {found.caller.role}")
        return found

    call.__dict__["role"] = role
    return call


Anybody = Annotated[Call, Depends(_needs("viewer"))]  # where the gate asks for no token
Viewing = Annotated[Call, Depends(_needs("viewer"))]
Using = Annotated[Call, Depends(_needs("user"))]
Managing = Annotated[Call, Depends(_needs("admin"))]


class Gate:
    """Pure ASGI, so that it stands before every route, known or not."""

    def __init__(self, app: ASGIApp, wiring: Wiring) -> None:
        self._app, self._wiring = app, wiring

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
            call = await self._admitted(scope, receive)
            if call is None:
                return  # who asked has left
            scope["dovetail.call"] = call
            await self._app(scope, _again(receive), guarded)
        except Exception as error:
            if started:
                log.error("an answer broke off", exc_info=error)
                raise
            await answer_to(error)(scope, receive, guarded)

    async def _admitted(self, scope: Scope, receive: Receive) -> Call | None:
        wiring, headers, path = self._wiring, Headers(scope=scope), scope["path"]
        self._check_host(headers.get("host"))
        page = path == "/" or path.startswith(PAGE)
        everybody = page or path in OPEN or (path in METRICS and wiring.settings.open_metrics)
        address = scope["client"][0] if scope.get("client") else ""
        if everybody:
            caller = NOBODY
            self._check_rate(f"@{address}", wiring.files if page else wiring.rates)
        else:
            caller = await self._caller(headers, address)
            self._check_rate(caller.token, wiring.rates)
        body = await self._body(headers, receive)
        if body is None:
            return None
        if not everybody and not wiring.plane.leads:
            leader = await run_in_threadpool(wiring.plane.leader)
            raise Refusal(
                "not-leading",
                "this plane does not lead; ask the one that does",
                headers={"Retry-After": "1"},
                leader=leader,
            )
        return Call(wiring, caller, body, headers.get("content-type", ""))

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
            found = tokens.cached(token) or await run_in_threadpool(tokens.caller, token)
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

    async def _body(self, headers: Headers, receive: Receive) -> bytes | None:
        """All of it, or None if the other side left before."""
        length = headers.get("content-length", "")
        if not length and "transfer-encoding" not in headers:
            return b""
        most = self._wiring.settings.largest_body
        drained = 10 * most  # who sends a little too much should hear why before the line is cut
        if length.isdigit() and int(length) > drained:
            raise _too_large(most)
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


def _finite(value: Any) -> Any:
    """With null for what JSON has no number for."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def document(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """JSON without a detour: the values are plain already, and their models are for the description."""
    try:
        body = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    except ValueError:  # a loss that is not a number, say, in what a job reported
        body = json.dumps(_finite(value), separators=(",", ":"), ensure_ascii=False)
    return Response(body.encode("utf-8", "replace"), status, headers, "application/json")
