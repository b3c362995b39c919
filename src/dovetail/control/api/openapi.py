"""The description of the API, OpenAPI 3.1: what the framework knows of it, completed.

Bodies are read by the handlers, in their threads and after the role was checked; so their schemas are named
here. Every refusal is described as the problem document it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import FastAPI, Path, Query
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from dovetail import __version__
from dovetail.control.api.auth import OPEN
from dovetail.control.api.documents import Problem
from dovetail.control.api.problems import MEDIA_TYPE, TITLES
from dovetail.control.cursors import MOST_ROWS

Responses = dict[int | str, dict[str, Any]]

_PROBLEM = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
_WORDS = dict(reversed(TITLES.values()))
_ALWAYS = (401, 403, 413, 422, 429, 503)
_BODIES: dict[str, type[BaseModel]] = {}

JobId = Annotated[
    str,
    Path(description="A job, or where it says so an array.", max_length=64, examples=["k3v9q2", "k3v9q2_7"]),
]
Name = Annotated[str, Path(max_length=64)]
Limit = Annotated[int, Query(ge=1, le=MOST_ROWS, description="How many items at most.")]
Cursor = Annotated[
    str | None, Query(max_length=500, description="`next` of the page before, as it was given.")
]


def problems(*statuses: int) -> Responses:
    """The responses of an operation: these statuses, and those that every operation may give."""
    return {
        status: {"description": _WORDS[status], "content": _PROBLEM}
        for status in sorted({*_ALWAYS, *statuses})
    }


def event_stream(words: str) -> Responses:
    return {200: {"description": words, "content": {"text/event-stream": {}}}}


def text(words: str, headers: dict[str, str] | None = None) -> Responses:
    found: dict[str, Any] = {
        "description": words,
        "content": {"text/plain; charset=utf-8": {"schema": {"type": "string"}}},
    }
    if headers:
        found["headers"] = {
            name: {"description": said, "schema": {"type": "integer"}} for name, said in headers.items()
        }
    return {200: found}


def body(
    model: type[BaseModel], *, required: bool = True, types: Sequence[str] = ("application/json",)
) -> dict[str, Any]:
    """For `openapi_extra` of an operation that reads this model."""
    _BODIES[model.__name__] = model
    schema = {"$ref": f"#/components/schemas/{model.__name__}"}
    return {"requestBody": {"required": required, "content": {kind: {"schema": schema} for kind in types}}}


def describe(app: FastAPI) -> None:
    """Make the app return the completed description."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _described(app)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _described(app: FastAPI) -> dict[str, Any]:
    found = get_openapi(
        title="Dovetail",
        version=__version__,
        openapi_version="3.1.0",
        description="Submit, schedule and run jobs on a GPU cluster. Changes to /api/v1 are additive only.",
        routes=app.routes,
    )
    models: list[Any] = [(Problem, "serialization"), *((model, "validation") for model in _BODIES.values())]
    _, schemas = models_json_schema(models, ref_template="#/components/schemas/{model}")
    components = found.setdefault("components", {})
    kept = components.setdefault("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):
        kept.pop(name, None)
    kept.update(schemas["$defs"])
    components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer", "bearerFormat": "dt_..."}}
    found["security"] = [{"token": []}]
    for path, operations in found["paths"].items():
        for operation in operations.values():
            if path in OPEN:
                operation["security"] = []
                for status in ("401", "403"):
                    operation["responses"].pop(status, None)
    return found
