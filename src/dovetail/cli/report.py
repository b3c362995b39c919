"""`dovetail report`: GPU-hours by tenant, user or time."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from dovetail.cli.connection import StateOption, connected
from dovetail.cli.history import SinceOption, UntilOption, read_period
from dovetail.cli.outputs import count, plainly
from dovetail.cli.tables import (
    Column,
    JsonOption,
    OutputOption,
    Raw,
    plain,
    print_items,
    print_value,
    read_form,
)
from dovetail.cli.times import lasting, now, read_moment
from dovetail.model.errors import InputError, UnknownName
from dovetail.model.formats import hours

BY = ("tenant", "user", "type", "model", "day", "month")
NOTHING = "nothing was used"
WORDS = {"team": "tenant", "account": "tenant", "queue": "tenant", "gpu": "type"}


def report(
    *,
    by: Annotated[
        str, typer.Option("--by", metavar="WHAT", help="tenant, user, type, model, day or month.")
    ] = "tenant",
    month: Annotated[bool, typer.Option("--month", help="This calendar month.")] = False,
    last_month: Annotated[bool, typer.Option("--last-month", help="The calendar month before.")] = False,
    since: SinceOption = None,
    until: UntilOption = None,
    output: OutputOption = "",
    as_json: JsonOption = False,
    state: StateOption = None,
) -> None:
    """Sum up GPU-hours by tenant, user or time, and their cost if there are prices.

    The table also shows GPU-hours of lost work, which jobs do again because they were stopped before they had
    saved, and how long jobs waited. A job counts once it has started. Prices are set on the page or with the
    API (PUT /prices).

    \b
    dovetail report --by user --since 7d
    dovetail report --by tenant --last-month
    """
    form = read_form(output, as_json)
    by = WORDS.get(by, by)
    if by not in BY:
        raise UnknownName("way to sum up", by, BY)
    if sum((month, last_month, bool(since or until))) > 1:
        raise InputError("a month already sets the period; leave --since and --until out")
    filters = read_period(since, until)
    if month or last_month:
        filters = dict(zip(("since", "until"), month_bounds(-1 if last_month else 0), strict=True))
    with connected(state) as client:
        found = client.report(by, **filters)
    if print_value(found, form):
        return
    items = list(found.get("items") or ())
    total = found.get("total") or {}
    ran = f"{count(total.get('jobs') or 0, 'job')} that ran or still run"
    head = f"{hours(_held(total))} GPU h by {ran}" if items else NOTHING
    columns = [plain("key", head=by), *COLUMNS]
    if any(item.get("cost") is not None for item in items):
        columns.insert(2, Column(f"cost ({plainly(found.get('currency') or '')})", _cost, left=False))
    print_items(items, form, key="items", name="key", columns=columns, wide=WIDE, head=head)


def month_bounds(step: int) -> tuple[str, str]:
    """Begin and end of a month in local time, as the API takes them; 0 is this month."""
    first = now().astimezone().replace(day=1, hour=0, minute=0, second=0, microsecond=0, tzinfo=None)
    first = _next(first, step)
    return read_moment(first.isoformat(), "--month"), read_moment(_next(first, 1).isoformat(), "--month")


def _next(first: Any, step: int) -> Any:
    months = first.year * 12 + first.month - 1 + step
    return first.replace(year=months // 12, month=months % 12 + 1)


def _held(item: Raw) -> float:
    return float(item.get("gpu_hours") or 0)


def _lost(item: Raw) -> float:
    return float(item.get("lost_gpu_hours") or 0)


def _cost(item: Raw) -> str:
    return "-" if item.get("cost") is None else f"{item['cost']:,.2f}"


def _wait(item: Raw) -> str:
    return lasting((item.get("wait") or {}).get("mean"))


COLUMNS = (
    Column("GPU-hours", lambda item: hours(_held(item)), left=False),
    Column("lost", lambda item: hours(_lost(item)), left=False),
    Column("jobs", lambda item: f"{item.get('jobs') or 0:,}", left=False),
    Column("mean wait", _wait, left=False),
)
WIDE = (
    Column("p50 wait", lambda item: lasting((item.get("wait") or {}).get("p50")), left=False),
    Column("p90 wait", lambda item: lasting((item.get("wait") or {}).get("p90")), left=False),
)
