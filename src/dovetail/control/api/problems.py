"""Every refusal as a problem document (RFC 9457): a type for programs, a sentence for people.

| type | status | |
|---|---|---|
| /problems/token | 401 | no token, or one that is unknown, expired or revoked |
| /problems/role | 403 | the token may not do that |
| /problems/not-found | 404 | no such thing, or none that this token may see: the two look alike |
| /problems/method | 405 | not with this method |
| /problems/slow-body | 408 | the body did not arrive in time |
| /problems/conflict | 409 | not in the state it is in |
| /problems/too-large | 413 | |
| /problems/media-type | 415 | the body is neither JSON nor, where a job is described, YAML |
| /problems/host | 421 | addressed to another host |
| /problems/invalid | 422 | `errors` lists what is wrong: a JSON pointer or a parameter, and why |
| /problems/never-fits | 422 | a job that the empty cluster could not hold |
| /problems/over-limit | 422 | more than a limit of the user, the tenant or the role allows |
| /problems/too-many | 429 | ask again after Retry-After seconds |
| /problems/internal | 500 | a bug; the plane's log has the rest |
| /problems/unavailable | 503 | the store cannot be used now |
| /problems/not-leading | 503 | another plane leads; `leader` is its address |
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from dovetail.control.inbox import Unavailable
from dovetail.control.limits import OverLimit
from dovetail.control.problems import RequestError, shown
from dovetail.control.store import Deposed, StoreError
from dovetail.control.submission import WrongTenant
from dovetail.control.tokens import LastAdmin
from dovetail.model.errors import DovetailError, InputError, NeverFits

log = logging.getLogger("dovetail.api")

TITLES = {
    "token": (401, "A valid token is needed"),
    "role": (403, "This token may not do that"),
    "not-found": (404, "Not found"),
    "method": (405, "Not with this method"),
    "slow-body": (408, "The request did not arrive in time"),
    "conflict": (409, "Not in the state it is in"),
    "too-large": (413, "The request is too large"),
    "media-type": (415, "The body is of another kind"),
    "host": (421, "Addressed to another host"),
    "invalid": (422, "The request is wrong"),
    "never-fits": (422, "This job can never fit"),
    "over-limit": (422, "Above a limit"),
    "too-many": (429, "Too many requests"),
    "internal": (500, "Something went wrong inside"),
    "unavailable": (503, "The plane cannot do that now"),
    "not-leading": (503, "Another plane leads"),
}
MEDIA_TYPE = "application/problem+json"
MOST_ERRORS = 50


class Refusal(Exception):
    """Raised by a handler to refuse a request."""

    def __init__(
        self, kind: str, detail: str, *, headers: Mapping[str, str] | None = None, **members: Any
    ) -> None:
        super().__init__(detail)
        self.kind, self.detail, self.headers, self.members = kind, detail, dict(headers or {}), members


def not_found(what: str, name: str = "") -> Refusal:
    """`name` is repeated as it was sent: the answer must not tell what exists."""
    asked = f" {shown(name)}" if name else ""
    return Refusal("not-found", f"no {what}{asked} that this token may see")


def invalid(pointer: str, detail: str) -> Refusal:
    """What is wrong at one place; the whole says where, as it does when there are several."""
    place = pointer.removeprefix("/")
    whole = f"{place}: {detail}" if place else detail
    return Refusal("invalid", whole, errors=[{"pointer": pointer, "detail": detail}])


def problem(
    kind: str, detail: str, headers: Mapping[str, str] | None = None, members: Mapping[str, Any] | None = None
) -> Response:
    """The answer to a request that is refused."""
    status, title = TITLES[kind]
    document = {"type": f"/problems/{kind}", "title": title, "status": status, "detail": detail[:4_000]}
    body = json.dumps({**document, **(members or {})}, default=str)
    return Response(body.encode(), status, dict(headers or {}), MEDIA_TYPE)


def answer_to(error: Exception) -> Response:
    """The problem for an exception of a handler."""
    if isinstance(error, Refusal):
        return problem(error.kind, error.detail, error.headers, error.members)
    if isinstance(error, RequestError):
        errors = [{"pointer": p.pointer, "detail": p.detail[:500]} for p in error.problems[:MOST_ERRORS]]
        return problem("invalid", str(error)[:1_000], members={"errors": errors})
    if isinstance(error, NeverFits):
        return problem("never-fits", str(error), members={"reason": str(error)[:4_000]})
    if isinstance(error, OverLimit):
        errors = [{"pointer": error.pointer, "detail": str(error)[:500]}]
        return problem("over-limit", str(error), members={"errors": errors})
    if isinstance(error, WrongTenant):
        return problem("role", str(error))
    if isinstance(error, LastAdmin):
        return problem("conflict", str(error))
    if isinstance(error, Deposed | Unavailable):
        return problem("not-leading", str(error), {"Retry-After": "1"}, {"leader": None})
    if isinstance(error, TimeoutError):
        log.error("the loop did not answer in time")
        return problem("unavailable", "the plane is busy; try again", {"Retry-After": "5"})
    if isinstance(error, StoreError):
        log.error("the store cannot be used: %s", error)
        return problem("unavailable", "the plane's store cannot be used now; try again", {"Retry-After": "2"})
    if isinstance(error, InputError):
        return problem(
            "invalid", str(error), members={"errors": [{"pointer": "", "detail": str(error)[:500]}]}
        )
    if isinstance(error, RequestValidationError):
        return _parameters(error.errors())
    if isinstance(error, HTTPException):
        return _plain(error)
    log.error("a request failed", exc_info=error)
    return problem("internal", "the plane has a bug here; its log says more")


def _parameters(found: Sequence[Any]) -> Response:
    """The problems that the framework finds in parameters, which are named query/limit or path/id."""
    errors = [
        {"pointer": "/".join(str(part) for part in one["loc"]), "detail": str(one["msg"])[:500]}
        for one in found[:MOST_ERRORS]
    ]
    detail = "; ".join(f"{one['pointer']}: {one['detail']}" for one in errors[:5])
    return problem("invalid", detail, members={"errors": errors})


def _plain(error: HTTPException) -> Response:
    """The problem for a request that the framework refuses itself."""
    kinds = {status: kind for kind, (status, _) in reversed(TITLES.items())}
    if error.status_code == 404:
        return problem("not-found", "nothing is at this address; see /api/v1/openapi.json")
    if error.status_code == 405:
        return problem("method", "this address takes other methods, which Allow names", error.headers)
    kind = kinds.get(error.status_code, "invalid" if error.status_code < 500 else "internal")
    return problem(kind, str(error.detail), error.headers)


def handle_problems(app: FastAPI) -> None:
    """Return every error as a problem. The gate answers for bugs, before the framework sees them."""

    async def handler(request: Request, error: Exception) -> Response:
        return answer_to(error)

    for kind in (Refusal, DovetailError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, handler)
