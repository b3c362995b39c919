"""Nodes, devices, shares, usage, the policy. Counts are for everybody; ids are for those who see the job."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query
from fastapi.responses import Response

from dovetail.control.answers import NodeState, ShareState
from dovetail.control.api.auth import Call, Managing, Viewing, document
from dovetail.control.api.jobs import Since, States, Word, micros_of, own
from dovetail.control.api.openapi import Cursor, Limit, Name, body, problems
from dovetail.control.api.problems import invalid, not_found
from dovetail.control.api.resources import (
    NAME,
    Drain,
    GpuPage,
    JobPage,
    Node,
    NodePage,
    Policy,
    PolicyChoice,
    Report,
    Shares,
    SpeedPage,
    Tenant,
    TenantSettings,
)
from dovetail.control.queries import DAY, ROOM, Filter, Json, cut_to_room, from_cursor, to_cursor
from dovetail.model.errors import UnknownName

router = APIRouter(tags=["cluster"])

MOST_JOBS = 20  # that are named on one node or device
Many = Annotated[int, Query(ge=1, le=1_000)]
TenantName = Annotated[str, Path(min_length=1, max_length=64, pattern=NAME)]


def _node_json(node: NodeState, visible: set[str] | None) -> Json:
    jobs = list(dict.fromkeys(job for _, held in node.devices for job, _ in held))
    seen = [job for job in jobs if visible is None or job in visible]
    return {
        "name": node.name,
        "type": node.type,
        "gpus": node.gpus,
        "free": node.free,
        "state": node.state,
        "reason": node.why,
        "cpus": node.cpus / 1_000,
        "memory": node.memory,
        "jobs": seen[:MOST_JOBS],
        "others": len(jobs) - len(seen[:MOST_JOBS]),
    }


@router.get("/nodes", operation_id="list_nodes", summary="Nodes, and what is free on them",
            response_model=NodePage, responses=problems())  # fmt: skip
def list_nodes(call: Viewing, limit: Many = 1_000, cursor: Cursor = None) -> Response:
    nodes = sorted(call.plane.nodes(), key=lambda node: node.name)
    if cursor is not None:
        after = from_cursor(cursor, "nodes", str)[0]
        nodes = [node for node in nodes if node.name > after]
    visible = call.queries.holding(call.caller)
    rows = [_node_json(node, visible) for node in nodes[: limit + 1]]
    return document(cut_to_room(rows, "nodes", "name", limit).document())


def _node(call: Call, name: str) -> Json:
    for node in call.plane.nodes():
        if node.name == name:
            return _node_json(node, call.queries.holding(call.caller))
    raise not_found("node has this name")


@router.get("/nodes/{name}", operation_id="get_node", summary="One node", response_model=Node,
            responses=problems(404))  # fmt: skip
def get_node(call: Viewing, name: Name) -> Response:
    return document(_node(call, name))


@router.post(
    "/nodes/{name}/drain",
    operation_id="drain_node",
    summary="Let it take no new work",
    response_model=Node,
    responses=problems(404, 415),
    openapi_extra=body(Drain, required=False),
)
def drain_node(call: Managing, name: Name) -> Response:
    reason = call.read(Drain).reason if call.body else ""
    try:
        call.plane.drain(name, reason)
    except UnknownName:
        raise not_found("node has this name") from None
    return document(_node(call, name))


@router.post("/nodes/{name}/resume", operation_id="resume_node", summary="Let it take work again",
             response_model=Node, responses=problems(404))  # fmt: skip
def resume_node(call: Managing, name: Name) -> Response:
    try:
        call.plane.resume(name)
    except UnknownName:
        raise not_found("node has this name") from None
    return document(_node(call, name))


def _gpu_json(node: NodeState, index: int, held: list[tuple[str, int]], visible: set[str] | None) -> Json:
    used = min(1_000, sum(milli for _, milli in held))
    state = node.state
    if state == "up" or used:
        state = "idle" if not used else "allocated" if used == 1_000 else "shared"
    seen = [job for job, _ in held if visible is None or job in visible][:MOST_JOBS]
    return {
        "node": node.name,
        "index": index,
        "type": node.type,
        "state": state,
        "used": used / 1_000,
        "job": seen[0] if seen else None,
        "jobs": seen,
    }


@router.get("/gpus", operation_id="list_gpus", summary="Every device, and who is on it",
            response_model=GpuPage, responses=problems())  # fmt: skip
def list_gpus(call: Viewing, limit: Many = 1_000, cursor: Cursor = None) -> Response:
    after = ("", -1) if cursor is None else tuple(from_cursor(cursor, "gpus", str, int))
    visible = call.queries.holding(call.caller)
    rows: list[Json] = []
    for node in sorted(call.plane.nodes(), key=lambda node: node.name):
        for index, held in node.devices:
            if (node.name, index) > after:
                rows.append({**_gpu_json(node, index, held, visible), "key": [node.name, index]})
    return document(_gpu_page(rows, limit))


def _gpu_page(rows: list[Json], limit: int) -> Json:
    items: list[Json] = []
    used, last = 0, None
    for row in rows[:limit]:
        used += 110 + 2 * len(row["node"]) + len(row["type"]) + 12 * len(row["jobs"])
        if items and used > ROOM:
            break
        last = row.pop("key")
        items.append(row)
    more = len(items) < len(rows) and last is not None
    return {"items": items, "next": to_cursor("gpus", *last) if more and last else None}


def _share_json(share: ShareState) -> Json:
    return {
        "tenant": share.tenant,
        "parent": share.parent,
        "weight": share.weight,
        "quota": share.quota,
        "borrow": share.borrow,
        "limit": share.limit,
        "used": round(share.used, 3),
        "borrowed": round(max(0.0, share.used - share.quota), 3) if share.quota is not None else 0.0,
        "running": share.running,
        "pending": share.pending,
    }


@router.get("/shares", operation_id="list_shares", summary="What each tenant may have, and has",
            response_model=Shares, responses=problems())  # fmt: skip
def list_shares(call: Viewing) -> Response:
    """Everybody but an admin sees the own tenant, and what is used in all."""
    shares = call.plane.shares()
    nodes = call.plane.nodes()
    gpus = sum(node.gpus for node in nodes)
    used = sum(milli for node in nodes for _, held in node.devices for _, milli in held) / 1_000
    shown = [_share_json(share) for share in shares if call.caller.sees(share.tenant)]
    return document({"items": shown[:700], "total": {"gpus": gpus, "used": round(used, 3)}})


@router.put(
    "/tenants/{name}",
    operation_id="set_tenant",
    summary="Make a tenant, or change what it may have",
    response_model=Tenant,
    responses=problems(415),
    openapi_extra=body(TenantSettings),
)
def set_tenant(call: Managing, name: TenantName) -> Response:
    row = {"name": name, **call.read(TenantSettings).model_dump()}
    _check_parent(call, name, row["parent"])
    if row["borrow"] is not None and not row["parent"]:
        raise invalid(
            "/borrow", "borrowing is from those under the same parent; name a parent, or leave it out"
        )
    call.plane.set_tenant(row)
    return document(row)


def _check_parent(call: Call, name: str, parent: str) -> None:
    tenants = call.plane.cluster.tenants
    if parent and parent not in tenants:
        raise invalid("/parent", f"no tenant is named {parent}; make it first")
    if parent and name in call.plane.cluster.line(parent):
        raise invalid("/parent", f"{name} would be its own ancestor")


@router.delete("/tenants/{name}", operation_id="delete_tenant", summary="Forget what a tenant may have",
               status_code=204, responses=problems(404))  # fmt: skip
def delete_tenant(call: Managing, name: TenantName) -> Response:
    """Its jobs stay; they count as those of a tenant without a quota."""
    try:
        call.plane.drop_tenant(name)
    except UnknownName:
        raise not_found("tenant has this name") from None
    return Response(status_code=204)


# --- what was -----------------------------------------------------------------------------------------


@router.get("/history", operation_id="list_history", summary="Jobs that have ended, the last one first",
            response_model=JobPage, responses=problems())  # fmt: skip
def list_history(
    call: Viewing,
    *,
    since: Since = None,
    until: Since = None,
    state: States = None,
    mine: bool = False,
    user: Word = None,
    tenant: Word = None,
    name: Word = None,
    array: Word = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Response:
    wanted = Filter(
        states=tuple(state.split(",")) if state else (),
        user=user,
        tenant=tenant,
        name=name,
        array=array,
        since=micros_of(since),
        until=micros_of(until),
    )
    return document(call.queries.history(call.caller, own(call, wanted, mine), cursor, limit).document())


@router.get("/report", operation_id="report_usage", summary="GPU-hours, jobs and waits",
            response_model=Report, responses=problems())  # fmt: skip
def report_usage(
    call: Viewing,
    by: Literal["tenant", "user", "type", "day"] = "tenant",
    since: Since = None,
    until: Since = None,
) -> Response:
    """Of the last thirty days, unless it says otherwise."""
    now = call.plane.clock.now()
    last = micros_of(until)
    last = now if last is None else last
    first = micros_of(since)
    first = max(0, last - 30 * DAY) if first is None else first
    return document(call.queries.report(call.caller, by, first, max(first, last), now))


@router.get("/speeds", operation_id="list_speeds", summary="Measured throughput by model and GPU type",
            response_model=SpeedPage, responses=problems())  # fmt: skip
def list_speeds(call: Viewing, limit: Limit = 200, cursor: Cursor = None) -> Response:
    """What jobs of one's own tenant measured; an admin sees all."""
    return document(call.queries.speeds(call.caller, cursor, limit).document())


# --- the policy ---------------------------------------------------------------------------------------


@router.get("/policy", operation_id="get_policy", summary="Who decides", response_model=Policy,
            responses=problems())  # fmt: skip
def get_policy(call: Viewing) -> Response:
    name, options = call.plane.policy
    return document({"name": name, "options": options})


@router.put(
    "/policy",
    operation_id="set_policy",
    summary="Go on under another policy; all jobs stay",
    response_model=Policy,
    responses=problems(415),
    openapi_extra=body(PolicyChoice),
)
def set_policy(call: Managing) -> Response:
    wanted = call.read(PolicyChoice)
    call.plane.switch_policy(wanted.name, wanted.options)
    name, options = call.plane.policy
    return document({"name": name, "options": options})
