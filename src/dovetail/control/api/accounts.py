"""Tokens, the journal, and what the plane says of itself."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from dovetail import __version__
from dovetail.control.api.auth import Auditing, Call, Managing, Public, Viewing, document
from dovetail.control.api.documents import (
    Health,
    MadeToken,
    Me,
    NewToken,
    StepPage,
    TokenPage,
    Version,
)
from dovetail.control.api.openapi import Cursor, Limit, Name, body, problems
from dovetail.control.api.problems import Refusal, invalid, not_found
from dovetail.control.clock import iso
from dovetail.control.cursors import Json, cut_to_room, from_cursor
from dovetail.control.plane import Plane
from dovetail.control.tokens import Caller

router = APIRouter(tags=["plane"])
tokens = APIRouter(tags=["tokens"])

MOST_TENANTS = 1_000
_in_trouble = {**problems(), 503: {**problems()[503], "model": Health}}


@tokens.post(
    "/tokens",
    operation_id="create_token",
    summary="Make a token; the answer is the only one that holds it",
    status_code=201,
    response_model=MadeToken,
    responses=problems(415),
    openapi_extra=body(NewToken),
)
def create_token(call: Managing) -> Response:
    """A viewer without a tenant may see the metrics, and no jobs; all others belong to one."""
    wanted = call.read(NewToken)
    if not wanted.tenant and wanted.role != "viewer":
        raise invalid("/tenant", f"a token of role {wanted.role} needs a tenant")
    user = wanted.user or wanted.name or wanted.role
    id, token = call.wiring.tokens.make(
        wanted.name, tenant=wanted.tenant, user=user[:64], role=wanted.role, expires_in=wanted.expires_in
    )
    return document({"id": id, "token": token}, 201)


@tokens.get("/tokens", operation_id="list_tokens", summary="All tokens, without themselves",
            response_model=TokenPage, responses=problems())  # fmt: skip
def list_tokens(call: Auditing, limit: Limit = 100, cursor: Cursor = None) -> Response:
    after = None if cursor is None else from_cursor(cursor, "tokens", str)[0]
    rows = call.wiring.tokens.listed(after, limit + 1)
    for row in rows:
        for name in ("created_at", "expires_at", "revoked_at"):
            row[name] = iso(row[name])
    return document(cut_to_room(rows, "tokens", "id", limit).document())


@tokens.delete("/tokens/{id}", operation_id="revoke_token", summary="Revoke a token",
               status_code=204, responses=problems(404, 409))  # fmt: skip
def revoke_token(call: Managing, id: Name) -> Response:
    """The last token of an admin cannot be revoked."""
    if not (id.isascii() and id.isalnum() and call.wiring.tokens.revoke(id)):
        raise not_found("token has the id", id)
    return Response(status_code=204)


@router.get("/me", operation_id="get_me", summary="The user of the token, and the plane",
            response_model=Me, responses=problems())  # fmt: skip
def get_me(call: Viewing) -> Response:
    caller, plane = call.caller, call.plane
    name, expires_at = call.wiring.tokens.about(caller.token)
    return document(
        {
            "user": caller.user,
            "tenant": caller.tenant,
            "role": caller.role,
            "tenants": _tenants(call),
            "token": {"name": name, "expires_at": iso(expires_at)},
            "version": __version__,
            "now": iso(plane.clock.now()),
            "policy": plane.policy[0],
            "virtual": plane.settings.virtual,
            "scale": plane.settings.scale,
            "gpus": plane.cluster.gpus,
            "nodes": len(plane.cluster.nodes),
        }
    )


def _tenants(call: Call) -> list[str]:
    if not call.caller.admin:
        return [call.caller.tenant] if call.caller.tenant else []
    return sorted(call.plane.store.known_tenants() | call.plane.cluster.tenants.keys())[:MOST_TENANTS]


@router.get("/journal", operation_id="read_journal", summary="What was decided, step by step",
            response_model=StepPage, responses=problems())  # fmt: skip
def read_journal(
    call: Auditing, after: Annotated[int, Query(ge=-1, le=1 << 60)] = -1, limit: Limit = 100
) -> Response:
    return document(call.lists.journal(after, limit).document())


@router.get("/health", operation_id="get_health", summary="What the plane is: leading, standby or in trouble",
            response_model=Health, responses=_in_trouble)  # fmt: skip
async def get_health(call: Public) -> Response:
    """200 for a plane that leads or stands by, 503 for one in trouble: for monitoring."""
    found = _health(call.plane)
    return document(found, 503 if found["status"] == "trouble" else 200)


@router.get("/ready", operation_id="get_ready", summary="Whether to send requests to this plane",
            response_model=Health, responses=_in_trouble)  # fmt: skip
async def get_ready(call: Public) -> Response:
    """200 for a plane that leads, 503 for any other: for load balancers."""
    found = _health(call.plane)
    return document(found, 200 if found["status"] == "ok" else 503)


def _health(plane: Plane) -> Json:
    reason = plane.in_trouble
    return {
        "status": "trouble" if reason else "ok" if plane.leads else "standby",
        "role": "leader" if plane.leads else "follower",
        "version": __version__,
        "stand_in": plane.policy_failure is not None,
        "reason": reason[:500],
    }


@router.get("/version", operation_id="get_version", summary="Of the plane, and of the API",
            response_model=Version, responses=problems())  # fmt: skip
async def get_version(call: Public) -> Response:
    return document({"version": __version__, "api": "v1"})


@router.get(
    "/metrics",
    operation_id="get_metrics",
    summary="For Prometheus",
    responses={
        **problems(),
        200: {"description": "Metrics.", "content": {"text/plain": {"schema": {"type": "string"}}}},
    },
)
def get_metrics(call: Viewing, request: Request) -> Response:
    """For admins, and for viewers without a tenant: the figures are of all tenants together."""
    if not call.wiring.settings.open_metrics and not _may_watch(call.caller):
        raise Refusal("role", "metrics are for admins, and for viewers without a tenant")
    text, media_type = request.app.state.metrics.exposition()
    return Response(text, media_type=media_type)


def _may_watch(caller: Caller) -> bool:
    return caller.admin or (caller.role == "viewer" and not caller.tenant)


@router.get("/openapi.json", operation_id="get_openapi", summary="This description", responses=problems())
async def get_openapi(call: Public, request: Request) -> Response:
    return document(request.app.openapi())
