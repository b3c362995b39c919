"""Nodes, devices, shares, usage, the policy. All callers see counts; ids only of the jobs they may see."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Header, Path, Query
from fastapi.responses import Response

from dovetail.control import commands, questions
from dovetail.control.api.auth import Call, Managing, Studying, Viewing, document
from dovetail.control.api.documents import (
    NAME,
    Drain,
    GpuPage,
    HistoryTotal,
    JobPage,
    Node,
    NodePage,
    Policy,
    PolicyChoice,
    PriceSettings,
    PriceTable,
    Report,
    ReportKey,
    SpeedPage,
    Tenant,
    TenantSettings,
    TenantShares,
    UsageOverTime,
)
from dovetail.control.api.jobs import Since, States, Word, micros_of, own
from dovetail.control.api.openapi import Cursor, Limit, Name, body, problems
from dovetail.control.api.problems import invalid, not_found
from dovetail.control.chosen_policy import DEFAULT_POLICY
from dovetail.control.clock import iso
from dovetail.control.cluster_state import NodeState
from dovetail.control.cursors import ROOM, Json, cut_to_room, from_cursor, to_cursor
from dovetail.control.lists import Filter
from dovetail.control.prices import Prices
from dovetail.control.stand_in import PolicyFailure
from dovetail.control.tenant_shares import ShareState
from dovetail.control.usage_report import DAY, MOST_LINES, usage_report
from dovetail.control.usage_series import Bins, use_over_time
from dovetail.model.errors import UnknownName
from dovetail.model.units import WHOLE
from dovetail.policies.registry import TRUSTED_POLICIES

router = APIRouter(tags=["cluster"])

MOST_CSV_LINES = 100_000
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
    nodes = sorted(questions.nodes(call.plane), key=lambda node: node.name)
    if cursor is not None:
        after = from_cursor(cursor, "nodes", str)[0]
        nodes = [node for node in nodes if node.name > after]
    visible = call.lookup.holding(call.caller)
    rows = [_node_json(node, visible) for node in nodes[: limit + 1]]
    return document(cut_to_room(rows, "nodes", "name", limit).document())


def _node(call: Call, name: str) -> Json:
    for node in questions.nodes(call.plane):
        if node.name == name:
            return _node_json(node, call.lookup.holding(call.caller))
    raise not_found("node is named", name)


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
        commands.drain(call.plane, name, reason)
    except UnknownName:
        raise not_found("node is named", name) from None
    return document(_node(call, name))


@router.post("/nodes/{name}/resume", operation_id="resume_node", summary="Let it take work again",
             response_model=Node, responses=problems(404))  # fmt: skip
def resume_node(call: Managing, name: Name) -> Response:
    try:
        commands.resume(call.plane, name)
    except UnknownName:
        raise not_found("node is named", name) from None
    return document(_node(call, name))


def _gpu_json(node: NodeState, index: int, held: list[tuple[str, int]], visible: set[str] | None) -> Json:
    used = min(WHOLE, sum(milli for _, milli in held))
    state = node.state
    if state == "up" or used:
        whole = any(milli >= WHOLE for _, milli in held)
        state = "idle" if not used else "allocated" if whole else "shared"
    shares = [(job, milli) for job, milli in held if visible is None or job in visible][:MOST_JOBS]
    seen = [job for job, _ in shares]
    return {
        "node": node.name,
        "index": index,
        "type": node.type,
        "state": state,
        "used": used / WHOLE,
        "used_milli": used,
        "job": seen[0] if seen else None,
        "jobs": seen,
        "shares": [{"job": job, "milli": milli} for job, milli in shares],
        "others": len(held) - len(shares),
    }


@router.get("/gpus", operation_id="list_gpus", summary="Every device, and the jobs on it",
            response_model=GpuPage, responses=problems())  # fmt: skip
def list_gpus(call: Viewing, limit: Many = 1_000, cursor: Cursor = None) -> Response:
    after = ("", -1) if cursor is None else tuple(from_cursor(cursor, "gpus", str, int))
    visible = call.lookup.holding(call.caller)
    rows: list[Json] = []
    for node in sorted(questions.nodes(call.plane), key=lambda node: node.name):
        for index, held in node.devices:
            if (node.name, index) > after:
                rows.append({**_gpu_json(node, index, held, visible), "key": [node.name, index]})
    return document(_gpu_page(rows, limit))


def _gpu_page(rows: list[Json], limit: int) -> Json:
    items: list[Json] = []
    used, last = 0, None
    for row in rows[:limit]:
        used += 180 + 2 * len(row["node"]) + len(row["type"]) + 90 * len(row["jobs"])
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
        "fair": round(share.fair, 3),
    }


@router.get("/shares", operation_id="list_shares", summary="What each tenant may have, and has",
            response_model=TenantShares, responses=problems())  # fmt: skip
def list_shares(call: Viewing) -> Response:
    """A caller sees its own tenant and the use of all; an admin sees all tenants."""
    shares = questions.shares(call.plane)
    nodes = questions.nodes(call.plane)
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
    """What is left out stays as it is."""
    given = call.read(TenantSettings).model_dump(exclude_unset=True)
    return document(commands.set_tenant(call.plane, {"name": name, **given}))


@router.delete("/tenants/{name}", operation_id="delete_tenant", summary="Forget what a tenant may have",
               status_code=204, responses=problems(404))  # fmt: skip
def delete_tenant(call: Managing, name: TenantName) -> Response:
    """Its jobs stay, with their account; they count as those of a tenant without a quota."""
    try:
        commands.drop_tenant(call.plane, name)
    except UnknownName:
        raise not_found("tenant is named", name) from None
    return Response(status_code=204)


# --- what was -----------------------------------------------------------------------------------------


def _ended(
    *,
    since: Since = None,
    until: Since = None,
    state: States = None,
    user: Word = None,
    tenant: Word = None,
    name: Word = None,
    array: Word = None,
) -> Filter:
    return Filter(
        states=tuple(state.split(",")) if state else (),
        user=user,
        tenant=tenant,
        name=name,
        array=array,
        since=micros_of(since),
        until=micros_of(until),
    )


Ended = Annotated[Filter, Depends(_ended)]


@router.get("/history", operation_id="list_history", summary="Jobs that have ended, the last one first",
            response_model=JobPage, responses=problems())  # fmt: skip
def list_history(
    call: Viewing, wanted: Ended, *, mine: bool = False, limit: Limit = 100, cursor: Cursor = None
) -> Response:
    return document(call.lists.history(call.caller, own(call, wanted, mine), cursor, limit).document())


@router.get("/history/total", operation_id="sum_history", summary="Jobs that have ended, all summed up",
            response_model=HistoryTotal, responses=problems())  # fmt: skip
def sum_history(call: Studying, wanted: Ended, *, mine: bool = False) -> Response:
    """Of the jobs that `/history` lists, page after page."""
    return document(call.lists.ended(call.caller, own(call, wanted, mine)))


@router.get(
    "/report",
    operation_id="report_usage",
    summary="GPU-hours, cost, jobs and waits",
    response_model=Report,
    responses={
        **problems(),
        200: {"description": "A report.", "content": {"text/csv": {"schema": {"type": "string"}}}},
    },
)
def report_usage(
    call: Studying,
    by: ReportKey = "tenant",
    since: Since = None,
    until: Since = None,
    format: Annotated[
        Literal["json", "csv"] | None,
        Query(description="csv: a file for a spreadsheet; as Accept: text/csv."),
    ] = None,
    accept: Annotated[str, Header(include_in_schema=False)] = "",
) -> Response:
    """Of the last thirty days, unless it says otherwise.

    Cost is by the prices of now; null where something was used that has none.
    """
    now = call.plane.clock.now()
    last = micros_of(until)
    last = now if last is None else last
    first = micros_of(since)
    first = max(0, last - 30 * DAY) if first is None else first
    wanted = format or ("csv" if accept.lower().startswith("text/csv") else "json")
    found = usage_report(
        call.plane.store,
        call.caller,
        by,
        first,
        max(first, last),
        now,
        prices=call.wiring.prices.now(),
        kind_of=_kinds(call),
        most=MOST_LINES if wanted == "json" else MOST_CSV_LINES,
    )
    return document(found) if wanted == "json" else _csv(found)


def _kinds(call: Call) -> dict[str, str]:
    """The type of each node."""
    return {node.name: node.type.name for node in call.plane.cluster.nodes}


def _csv(report: Json) -> Response:
    """A report for a spreadsheet: plain numbers, and nothing that would be run as a formula."""
    file = io.StringIO()
    lines = csv.writer(file, lineterminator="\r\n")
    head = [
        "gpu_hours",
        "lost_gpu_hours",
        "jobs",
        "cost",
        "currency",
        "wait_mean_s",
        "wait_p50_s",
        "wait_p90_s",
    ]
    lines.writerow([report["by"], *head])
    for item in report["items"]:
        wait = item["wait"]
        currency = "" if item["cost"] is None else _defused(report["currency"])
        lines.writerow(
            [
                _defused(item["key"]),
                *(item[name] for name in head[:4]),
                currency,
                *(wait[name] for name in ("mean", "p50", "p90")),
            ]
        )
    name = f"dovetail-{report['by']}-{report['since'][:10]}-{report['until'][:10]}.csv"
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(file.getvalue().encode("utf-8", "replace"), 200, headers, "text/csv; charset=utf-8")


def _defused(text: str) -> str:
    """Text that no spreadsheet takes for a formula (OWASP, CSV injection)."""
    return f"'{text}" if text.lstrip()[:1] in ("=", "+", "-", "@") or text[:1] in ("\t", "\r", "\n") else text


@router.get("/usage", operation_id="get_usage", summary="GPUs in use and jobs waiting, over time",
            response_model=UsageOverTime, responses=problems())  # fmt: skip
def get_usage(
    call: Studying,
    by: Literal["tenant", "type"] = "tenant",
    since: Since = None,
    until: Since = None,
    points: Annotated[
        int, Query(ge=1, le=500, description="How many bins the time is cut into, at most.")
    ] = 96,
) -> Response:
    """Of the last day, unless it says otherwise: the mean over each bin.

    A caller sees its own tenant, and the others as one series; an admin sees all. By type, all use counts.
    """
    now = call.plane.clock.now()
    last = micros_of(until)
    last = now if last is None else min(last, now)
    first = micros_of(since)
    first = max(0, last - DAY) if first is None else first
    if first >= last:
        raise invalid("query/since", "nothing is between since and until; since comes first, and before now")
    bins = Bins.of(first, last, points)
    found = use_over_time(call.plane.store, call.caller, by, bins, now, _kinds(call))
    return document({**found, "capacity": call.plane.cluster.gpus})


# --- prices -------------------------------------------------------------------------------------------


@router.get("/prices", operation_id="get_prices", summary="What a GPU-hour costs, by type",
            response_model=PriceTable, responses=problems())  # fmt: skip
def get_prices(call: Viewing) -> Response:
    return document(call.wiring.prices.now().document())


@router.put(
    "/prices",
    operation_id="set_prices",
    summary="Say what a GPU-hour costs; what is left out has no price",
    response_model=PriceTable,
    responses=problems(415),
    openapi_extra=body(PriceSettings),
)
def set_prices(call: Managing) -> Response:
    """They hold for all reports, also of what is past. 0 is free; without a price the cost is unknown."""
    wanted = call.read(PriceSettings)
    prices = Prices(wanted.currency, wanted.per_gpu_hour)
    call.wiring.prices.set(prices)
    return document(prices.document())


@router.get("/speeds", operation_id="list_speeds", summary="Measured throughput by model and GPU type",
            response_model=SpeedPage, responses=problems())  # fmt: skip
def list_speeds(call: Viewing, limit: Limit = 200, cursor: Cursor = None) -> Response:
    """What jobs of one's own tenant measured; an admin sees all."""
    return document(call.lists.speeds(call.caller, cursor, limit).document())


# --- the policy ---------------------------------------------------------------------------------------


def _policy_json(call: Call) -> Json:
    name, options = call.plane.policy
    usual, set_by_default = DEFAULT_POLICY
    in_force = _in_force(name, options)
    return {
        "name": name,
        "options": options,
        "in_force": in_force,
        "default": name == usual and in_force == _in_force(usual, set_by_default),
        "stand_in": _stand_in_json(call.plane.policy_failure),
    }


def _stand_in_json(failure: PolicyFailure | None) -> Json | None:
    if failure is None:
        return None
    name, options = failure.stand_in
    return {
        "policy": name,
        "options": json.loads(json.dumps(options, default=str)),
        "reason": failure.reason,
        "failed_at": iso(failure.failed_at),
        "retry_at": iso(failure.retry_at),
    }


def _in_force(name: str, options: Mapping[str, object]) -> Json:
    """What was set, and for the rest what its code says; as JSON has it, whatever a plug-in puts there."""
    try:
        known = {k: p.default for k, p in TRUSTED_POLICIES.options(name).items() if p.default is not p.empty}
    except Exception:  # a plug-in that is not installed any more, or cannot be imported
        known = {}
    found: Json = json.loads(json.dumps({**known, **options}, default=str))
    return found


@router.get("/policy", operation_id="get_policy", summary="The policy that decides", response_model=Policy,
            responses=problems())  # fmt: skip
def get_policy(call: Viewing) -> Response:
    return document(_policy_json(call))


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
    commands.switch_policy(call.plane, wanted.name, wanted.options)
    return document(_policy_json(call))
