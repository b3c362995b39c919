"""`dovetail history`: jobs that have ended."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any

import typer

from dovetail.cli.connection import StateOption, connected
from dovetail.cli.outputs import count, note, plainly
from dovetail.cli.ps import gpus_text, where_or_why
from dovetail.cli.tables import Column, JsonOption, OutputOption, Raw, plain, print_items, read_form
from dovetail.cli.times import ago, clock, lasting, read_moment
from dovetail.model.errors import InputError
from dovetail.model.formats import gpu_hours, hours

SinceOption = Annotated[
    str | None,
    typer.Option("-S", "--since", metavar="WHEN", help="3d (ago), today, 2026-11-01.", show_default=False),
]
UntilOption = Annotated[
    str | None, typer.Option("-E", "--until", metavar="WHEN", help="As --since.", show_default=False)
]


def history(
    *,
    since: SinceOption = None,
    until: UntilOption = None,
    mine: Annotated[bool, typer.Option("--mine", help="Only my jobs.")] = False,
    user: Annotated[
        str | None, typer.Option("-u", "--user", metavar="NAME", help="Only jobs of this user.")
    ] = None,
    tenant: Annotated[
        str | None, typer.Option("-A", "--account", metavar="NAME", help="Only jobs of this tenant.")
    ] = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, max=100_000, help="Maximum number of jobs.")] = 50,
    output: OutputOption = "",
    as_json: JsonOption = False,
    state: StateOption = None,
) -> None:
    """List jobs that have ended, the latest first.

    \b
    dovetail history --since 1d
    dovetail history --mine -o wide
    """
    form = read_form(output, as_json)
    filters: dict[str, Any] = {
        **read_period(since, until),
        "mine": mine or None,
        "user": user,
        "tenant": tenant,
    }
    with connected(state) as client:
        items = list(client.pages("/history", limit + 1, **filters))
        more, items = len(items) > limit, items[:limit]
        total = _summed(items)
        if more and not form.for_programs:
            total = client.connection.get("/history/total", filters)
    shown = f", the last {count(len(items), 'job')} of them below" if more else ""
    used = gpu_hours(float(total["gpu_seconds"]))
    have = "has" if total["jobs"] == 1 else "have"
    head = f"{count(total['jobs'], 'job')} {have} ended, {used}{shown}" if items else _nothing(filters)
    foot = "sums by tenant, user or day:  dovetail report --by user"
    print_items(items, form, key="jobs", name="id", columns=COLUMNS, wide=WIDE, head=head, foot=foot)
    if more and not form.for_programs:
        note(f"there are more jobs; list them with --limit {10 * limit}")


def _summed(items: Sequence[Raw]) -> Raw:
    return {"jobs": len(items), "gpu_seconds": sum(float(item.get("gpu_seconds") or 0) for item in items)}


def _nothing(filters: Raw) -> str:
    return "no matching job has ended" if any(filters.values()) else "no job has ended"


def read_period(since: str | None, until: str | None) -> dict[str, Any]:
    """The two ends of a period, as the API takes them."""
    first, last = since and read_moment(since, "--since"), until and read_moment(until, "--until")
    if first and last and datetime.fromisoformat(first) > datetime.fromisoformat(last):
        raise InputError(f"--since {plainly(since or '')} is later than --until {plainly(until or '')}")
    return {"since": first, "until": last}


def _seconds(item: Raw, key: str, first: str, last: str) -> float | None:
    """The figure from the plane; an older plane gives only the two times it lies between."""
    from dovetail.client.documents import moment

    if item.get(key) is not None:
        return float(item[key])
    start, end = moment(item.get(first)), moment(item.get(last))
    return (end - start).total_seconds() if hasattr(start, "tzinfo") and hasattr(end, "tzinfo") else None


COLUMNS = (
    plain("id", head="job"),
    Column("name", lambda job: str(job.get("name") or "-")[:40]),
    plain("user"),
    plain("state"),
    Column("GPUs", gpus_text, left=False),
    Column(
        "waited", lambda job: lasting(_seconds(job, "waited", "submitted_at", "first_started_at")), left=False
    ),
    Column("took", lambda job: lasting(_seconds(job, "took", "first_started_at", "ended_at")), left=False),
    Column("ended", lambda job: ago(job.get("ended_at")), left=False),
    Column("", where_or_why),
)
WIDE = (
    plain("letter", head="ST"),
    plain("tenant"),
    plain("restarts", left=False),
    Column("GPU-hours", lambda job: hours((job.get("gpu_seconds") or 0.0) / 3600), left=False),
    Column("lost", lambda job: hours((job.get("lost_gpu_seconds") or 0.0) / 3600), left=False),
    Column("submitted", lambda job: clock(job.get("submitted_at"))),
)
