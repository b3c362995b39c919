"""A row of the table of jobs as the document that the API returns; likewise for attempts."""

from __future__ import annotations

import json
import math
from collections import namedtuple
from typing import Any

from sqlalchemy.engine import Row

from dovetail.control import preemptions, tables
from dovetail.control.clock import iso
from dovetail.control.states import LETTERS, State
from dovetail.control.time_held import GPU_SECOND, attempt_took, gpu_seconds, gpus_held, took
from dovetail.control.waits import first_start, waited
from dovetail.model.units import SECOND

LONGEST_NAME = 120
LONGEST_DETAIL = 160
MOST_PARTS = 6  # nodes of a placement in a list
MOST_PROGRESS = 160  # characters

_JobRow = namedtuple("_JobRow", tables.jobs.c.keys())  # type: ignore[misc]

Json = dict[str, Any]


def job_document(row: Any, now: int, *, whole: bool = False) -> Json:
    """The document of a job at a moment; in a list (not `whole`) long texts are cut."""
    row = _JobRow._make(row) if isinstance(row, Row) else row  # much faster to read
    state = State(row.state)
    placement = _placement(row.placement, None if whole else MOST_PARTS)
    final = state.final
    reason = shortened(row.reason, 500 if whole else LONGEST_DETAIL)
    return {
        "id": row.id,
        "name": row.name if whole else shortened(row.name, LONGEST_NAME),
        "state": state.value,
        "letter": LETTERS[state],
        "reason": "" if final else reason,
        "kind": row.kind,
        "tenant": row.tenant,
        "user": row.user,
        "model": row.model if whole else shortened(row.model, 60),
        "priority": row.priority,
        "gpus": row.gpus,
        "gpus_least": row.gpus_least,
        "gpus_held": gpus_held(row),
        "gpu_share": None if not row.gpus else round(row.load / (1_000 * row.gpus), 3),
        "nodes": row.nodes,
        "cpus": None if row.cpus is None else row.cpus / 1_000,
        "memory": row.memory,
        "gpu_types": _words(row.types)[: None if whole else 8],
        "time_limit": None if row.time_limit is None else row.time_limit / SECOND,
        "submitted_at": iso(row.submitted_at),
        "begin_at": iso(row.begin_at),
        "eligible_at": iso(row.eligible_at),
        "started_at": iso(row.started_at),
        "first_started_at": iso(row.first_started_at),
        "ended_at": iso(row.ended_at),
        "waited": waited(row, now) / SECOND,
        "waiting_since": None if final else iso(row.waiting_since),
        "first_start_after": None if (after := first_start(row)) is None else after / SECOND,
        "took": took(row, now) / SECOND,
        "placement": placement,
        "attempt": row.epoch,
        "restarts": row.restarts,
        "exit_code": row.exit_code,
        "cause": row.cause,
        "detail": reason if final else "",
        "array": None if row.array is None else {"id": row.array, "index": row.task},
        "members": None,
        "dependency": row.dependency
        if whole or row.dependency is None
        else shortened(row.dependency, LONGEST_DETAIL),
        "output": None,
        "progress": _progress(row.progress, 20_000 if whole else MOST_PROGRESS),
        "gpu_seconds": round(gpu_seconds(row, now), 3),
        "lost_gpu_seconds": round(row.lost_time / GPU_SECOND, 3),
        "ends_at": None,
        "promised_by": None,
    }


def attempt_document(row: Any, now: int, sees: preemptions.Sees) -> Json:
    """The document of an attempt; `sees` tells whether jobs of a tenant may be named to the caller."""
    by = None if row.preempted_by is None else json.loads(row.preempted_by)
    named = preemptions.for_which_jobs(by, sees)
    detail = "; ".join(part for part in (row.detail, named and f"it made way for {named}") if part)
    return {
        "attempt": row.epoch,
        "placement": _placement(row.placement, None),
        "gpu_types": _words(row.types),
        "waited": row.waited / SECOND,
        "started_at": iso(row.started_at),
        "ended_at": iso(row.ended_at),
        "took": attempt_took(row, now) / SECOND,
        "exit_code": row.exit_code,
        "cause": row.cause,
        "detail": shortened(detail, 500),
        "preempted_by": preemptions.told(by, sees),
    }


def _placement(text: str | None, most: int | None) -> list[Json]:
    found: list[Json] = json.loads(text) if text else []
    return found[:most]


def _progress(text: str | None, most: int) -> Json | None:
    """The last report; of a long one only the short values."""
    if text is None:
        return None
    found: Json = json.loads(text)
    if len(text) > most:
        kept: Json = {}
        for key, value in found.items():
            if isinstance(value, dict | list) or len(str(key)) + len(str(value)) > 40:
                continue
            if most < 0:
                break
            most -= len(str(key)) + len(str(value)) + 6
            kept[key] = value
        found = kept
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in found.items()}


def _words(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


def shortened(text: str, most: int) -> str:
    """The text, cut to a number of bytes."""
    if len(text) * 4 <= most or len(data := text.encode("utf-8", "replace")) <= most:
        return text
    return data[: most - 3].decode("utf-8", "ignore") + "…"
