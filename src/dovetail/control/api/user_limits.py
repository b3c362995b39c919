"""Limits on what users may ask for (`control.limits`): shown to those whom they hold for, set by admins."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path
from fastapi.responses import Response

from dovetail.control import commands, questions
from dovetail.control.api.auth import Managing, Viewing, document
from dovetail.control.api.documents import NAME, LimitChange, LimitKind, LimitList, LimitSettings
from dovetail.control.api.openapi import body, problems
from dovetail.control.api.problems import not_found
from dovetail.control.cursors import Json
from dovetail.control.limits import DEFAULTS, Amounts, Scope
from dovetail.model.errors import UnknownName
from dovetail.model.units import SECOND, micros

router = APIRouter(tags=["limits"])

MOST_ROWS = 700  # in one answer
LimitedName = Annotated[str, Path(min_length=1, max_length=64, pattern=NAME)]


@router.get("/limits", operation_id="list_limits", summary="What may be asked for, and for whom that is set",
            response_model=LimitList, responses=problems())  # fmt: skip
def list_limits(call: Viewing) -> Response:
    """A caller sees its own limits and where they are set; an admin sees all that are set."""
    found = questions.limits(call.plane, call.caller)
    own = [
        {
            "what": limit.what,
            "most": _shown(limit.what, limit.most),
            "kind": limit.kind or None,
            "name": limit.name or None,
            "used": used,
        }
        for limit, used in found.own
    ]
    items = [_row(scope, amounts) for scope, amounts in found.rows]
    return document({"own": own, "items": items[:MOST_ROWS], "more": max(0, len(items) - MOST_ROWS)})


@router.put(
    "/limits/{kind}/{name}",
    operation_id="set_limits",
    summary="Set limits of a role, a tenant or a user",
    response_model=LimitChange,
    responses=problems(415),
    openapi_extra=body(LimitSettings),
)
def set_limits(call: Managing, kind: LimitKind, name: LimitedName) -> Response:
    """What is left out stays as it is; null is no limit. Jobs that are there already stay."""
    given = call.read(LimitSettings).model_dump(exclude_unset=True)
    amounts = {what: _kept(what, value) for what, value in given.items()}
    notes = commands.set_limits(call.plane, (kind, name), amounts)
    rows = dict(questions.limits(call.plane, call.caller).rows)
    return document({**_row((kind, name), rows.get((kind, name), {})), "notes": notes})


@router.delete("/limits/{kind}/{name}", operation_id="drop_limits", summary="Forget what was set",
               status_code=204, responses=problems(404))  # fmt: skip
def drop_limits(call: Managing, kind: LimitKind, name: LimitedName) -> Response:
    """For a role the limits of a new plane hold again, for others those of the tenant or the role."""
    try:
        commands.drop_limits(call.plane, (kind, name))
    except UnknownName:
        raise not_found(f"limits are set for {kind}", name) from None
    return Response(status_code=204)


def _row(scope: Scope, amounts: Amounts) -> Json:
    return {
        "kind": scope[0],
        "name": scope[1],
        "limits": {what: _shown(what, most) for what, most in amounts.items()},
        "default": dict(amounts) == DEFAULTS.get(scope),
    }


def _shown(what: str, most: int | None) -> float | None:
    return most / SECOND if what == "time" and most is not None else most


def _kept(what: str, value: float | None) -> int | None:
    return None if value is None else micros(value) if what == "time" else int(value)
