"""Usage between two moments by tenant, user, model, GPU type, day or month: GPU-hours, cost, jobs, waits."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from dovetail.control import tables
from dovetail.control.clock import iso
from dovetail.control.prices import Prices, parts_of
from dovetail.control.store import Store
from dovetail.control.time_held import GPU_SECOND, HELD, attempt_end, attempt_gpu_seconds
from dovetail.control.tokens import Caller
from dovetail.control.visibility import visible
from dovetail.control.waits import first_start_in_sql, waited_in_sql
from dovetail.model.units import HOUR, SECOND

MOST_LINES = 1_000
DAY = 24 * HOUR

_J = tables.jobs.c
_A = tables.attempts.c

Json = dict[str, Any]


def usage_report(
    store: Store,
    caller: Caller,
    by: str,
    since: int,
    until: int,
    now: int,
    *,
    prices: Prices | None = None,
    kind_of: Mapping[str, str] | None = None,
    most: int = MOST_LINES,
) -> Json:
    """GPU-hours held and lost, cost, jobs and waits, by tenant, user, model, GPU type, day or month.

    Held is counted from attempts, as much of each as lies between the two moments; its cost is by the
    types of GPU it was held on (`kind_of` is the type of each node, for attempts on several). Lost (held
    without lasting work) is known per job: it counts where the job's last attempt stands. A wait is from
    the moment a job could have started to its first start, for jobs that first started in between.
    """
    prices = prices or Prices()
    mine, first, last = _within(HELD.c, caller, since, until, now)
    groups: dict[str, Json] = {}
    with store.reading() as connection:
        begins = connection.execute(sa.select(sa.func.min(_A.started_at))).scalar() or since
        period = _period(by, max(since, begins), min(until, now))  # a month costs; there were none before
        name = str if period is None else period.name
        for key, kind, gpu_seconds in _held(connection, by, period, mine, (first, last), kind_of or {}):
            held = _group(groups, key)["held"]
            held[kind] = held.get(kind, 0.0) + gpu_seconds
        whole, _, whole_last = _within(_A, caller, since, until, now)
        for row in connection.execute(_lost(by, period, whole, whole_last)):
            entry = _group(groups, name(row.key))
            entry["lost"] += row.lost or 0.0
            entry["jobs"] += row.jobs
        for figure, wait in (("wait", waited_in_sql(now)), ("first_start_after", first_start_in_sql())):
            for row in connection.execute(_waits(caller, by, period, since, until, wait)):
                _group(groups, name(row.key))[figure] = (row.mean, row.p50, row.p90)
    items = [_line(key, entry, prices) for key, entry in groups.items()]
    items.sort(key=(lambda i: (-i["gpu_hours"], i["key"])) if period is None else (lambda i: i["key"]))
    shown = items[:most] if period is None else items[-most:]
    used = {kind for entry in groups.values() for kind, held in entry["held"].items() if held > 0}
    costs = [item["cost"] for item in items]
    return {
        "by": by,
        "since": iso(since),
        "until": iso(until),
        "currency": prices.currency,
        "items": shown,
        "more": len(items) - len(shown),
        "total": {
            "gpu_hours": round(sum(i["gpu_hours"] for i in items), 4),
            "lost_gpu_hours": round(sum(i["lost_gpu_hours"] for i in items), 4),
            "jobs": sum(i["jobs"] for i in items),
            "cost": None if not prices.per_gpu_hour or None in costs else round(sum(costs), 4),
        },
        "unpriced": sorted(used - prices.per_gpu_hour.keys()) if prices.per_gpu_hour else [],
    }


_KEYS: dict[str, Any] = {"tenant": _J.tenant, "user": _J.user, "model": _J.model, "type": _A.types}


def _within(columns: Any, caller: Caller, since: int, until: int, now: int) -> tuple[list[Any], Any, Any]:
    """What the caller may see between two moments, and when each of these begins and ends there."""
    end = attempt_end(now, columns)
    first = sa.case((columns.started_at < since, _at(since)), else_=columns.started_at)
    last = sa.case((end > until, _at(until)), else_=end)
    return [*visible(caller), columns.started_at < until, end > since], first, last


class Period(NamedTuple):
    """Days or months: their numbers, in the database and here."""

    number: Callable[[Any], Any]  # of a moment, as an expression
    number_of: Callable[[int], int]  # of a moment
    end: Callable[[int], int]  # of the one that a number has
    name: Callable[[int], str]


def _period(by: str, since: int, until: int) -> Period | None:
    """What to sum up by, if it is time; months are told apart by where they begin, between these moments."""
    if by == "day":
        return Period(_day, lambda at: at // DAY, lambda day: (day + 1) * DAY, _date)
    if by != "month":
        return None
    begins = list(_months(since, until))

    def number(moment: Any) -> Any:
        whens = [(moment < _at(at), number) for number, at in enumerate(begins[1:])]
        return sa.case(*whens, else_=len(begins) - 1) if whens else sa.literal(0, sa.Integer)

    def end(number: int) -> int:
        return begins[number + 1] if number + 1 < len(begins) else 1 << 62

    return Period(number, lambda at: bisect_right(begins, at) - 1, end, lambda n: (iso(begins[n]) or "")[:7])


def _months(since: int, until: int) -> Iterator[int]:
    """When the months begin from the one that holds the first moment on."""
    first = datetime.fromtimestamp(since // SECOND, UTC)
    year, month = first.year, first.month
    while year < 10_000:
        at = round(datetime(year, month, 1, tzinfo=UTC).timestamp()) * SECOND
        if at >= max(until, since + 1):
            break
        yield at
        year, month = (year, month + 1) if month < 12 else (year + 1, 1)


def _held(
    connection: Connection,
    by: str,
    period: Period | None,
    mine: list[Any],
    bounds: tuple[Any, Any],
    kind_of: Mapping[str, str],
) -> Iterator[tuple[str, str, float]]:
    """GPU-seconds by group and type of GPU.

    Most attempts lie within a day and are on GPUs of one type: they are summed up where they are. Only the
    others are taken apart here.
    """
    first, last = bounds
    source = HELD.join(tables.jobs, HELD.c.job == _J.id)
    key: Any = period.number(first) if period else HELD.c.types if by == "type" else _KEYS[by]
    name: Callable[[Any], str] = period.name if period else str
    simple: Any = ~HELD.c.types.contains(",")
    if period is not None:
        simple = sa.and_(simple, period.number(first) == period.number(last - 1))
    amount = sa.func.sum(attempt_gpu_seconds(first, last)).label("held")
    whole = sa.select(key.label("key"), HELD.c.types, amount).select_from(source).where(*mine, simple)
    for found in connection.execute(whole.group_by(key, HELD.c.types)):
        yield name(found.key), found.types, found.held or 0.0
    columns = (
        key.label("key"),
        HELD.c.types,
        HELD.c.placement,
        HELD.c.load,
        first.label("first"),
        last.label("last"),
    )
    for row in connection.execute(sa.select(*columns).select_from(source).where(*mine, sa.not_(simple))):
        parts = parts_of(row.types.split(","), json.loads(row.placement), kind_of)
        at = row.first
        while at < row.last:
            number = row.key if period is None else period.number_of(at)
            until = row.last if period is None else min(period.end(number), row.last)
            for kind, part in parts.items():
                yield name(number), kind, part * row.load * (until - at) / GPU_SECOND
            at = until


def _lost(by: str, period: Period | None, mine: list[Any], last: Any) -> Any:
    """Jobs by group, and what they lost; each counts once, with its last attempt."""
    key = period.number(last - 1) if period else _KEYS[by]
    return (
        sa.select(
            key.label("key"),
            sa.func.count().label("jobs"),
            sa.func.sum(_J.lost_time * (1.0 / GPU_SECOND)).label("lost"),
        )
        .select_from(tables.attempts.join(tables.jobs, _A.job == _J.id))
        .where(*mine, _A.epoch == _J.epoch)
        .group_by(key)
    )


def _waits(caller: Caller, by: str, period: Period | None, since: int, until: int, wait: Any) -> Any:
    """Mean and percentiles of a wait by group, over the jobs that first started between the two moments."""
    key = period.number(_J.first_started_at) if period else _KEYS[by]
    source: Any = tables.jobs
    if by == "type":
        source = tables.jobs.join(tables.attempts, sa.and_(_A.job == _J.id, _A.epoch == _J.epoch))
    waits = (
        sa.select(key.label("key"), wait.label("wait"))
        .select_from(source)
        .where(*visible(caller), _J.first_started_at >= since, _J.first_started_at < until)
        .subquery()
    )
    ranked = sa.select(
        waits.c.key,
        waits.c.wait,
        sa.func.row_number().over(partition_by=waits.c.key, order_by=waits.c.wait).label("rank"),
        sa.func.count().over(partition_by=waits.c.key).label("count"),
    ).subquery()
    c = ranked.c

    def percentile(percent: int) -> Any:
        """The smallest wait that is not exceeded by this percentage of the jobs."""
        return sa.func.min(sa.case((c.rank * 100 >= c.count * percent, c.wait))).label(f"p{percent}")

    mean = (sa.func.sum(c.wait * 1.0) / sa.func.count()).label("mean")
    return sa.select(c.key, mean, percentile(50), percentile(90)).group_by(c.key)


def _line(key: str, entry: Json, prices: Prices) -> Json:
    """One line of a report."""
    held: dict[str, float] = entry["held"]
    cost = prices.cost({kind: seconds / 3_600 for kind, seconds in held.items()})
    return {
        "key": key,
        "gpu_hours": round(sum(held.values()) / 3_600, 4),
        "lost_gpu_hours": round(entry["lost"] / 3_600, 4),
        "jobs": entry["jobs"],
        "cost": None if cost is None else round(cost, 4),
        "wait": _spread(entry["wait"]),
        "first_start_after": _spread(entry["first_start_after"]),
    }


def _spread(waits: tuple[float | None, ...]) -> Json:
    """In seconds."""
    shown = (None if wait is None else round(wait / SECOND, 3) for wait in waits)
    return dict(zip(("mean", "p50", "p90"), shown, strict=True))


def _group(groups: dict[str, Json], key: str) -> Json:
    none = (None, None, None)
    return groups.setdefault(
        key, {"held": {}, "lost": 0.0, "jobs": 0, "wait": none, "first_start_after": none}
    )


def _at(moment: int) -> Any:
    """A moment in a query; as a small number it would be taken for one of small numbers."""
    return sa.literal(moment, sa.BigInteger)


def _day(moment: Any) -> Any:
    """Days since 1970; whole numbers are divided as such by both databases."""
    return sa.cast(moment, sa.BigInteger).op("/")(sa.literal(DAY, sa.BigInteger))


def _date(day: int) -> str:
    return (iso(day * DAY) or "")[:10]
