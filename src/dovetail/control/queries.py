"""What the API reads from the store: jobs page by page, arrays in one line, usage and waits.

Pages are by key, not by number: the next page is what stands below the last item that was seen, so it neither
repeats nor skips anything while new jobs arrive. Everybody but an admin sees the rows of one tenant only; the
condition for that is added here and nowhere else. Rows are kept below a kilobyte: what is long is cut in
lists and whole in the answer about one job.
"""

from __future__ import annotations

import base64
import json
import math
from bisect import bisect_right
from collections import namedtuple
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from dovetail.control import tables
from dovetail.control.clock import iso
from dovetail.control.prices import Prices, parts_of
from dovetail.control.states import ACTIVE, LETTERS, State
from dovetail.control.store import Store
from dovetail.control.tokens import Caller
from dovetail.model.errors import InputError
from dovetail.model.units import HOUR, SECOND

MOST_ROWS = 200
MOST_LINES = 1_000  # of a report
LONGEST_NAME = 120
LONGEST_DETAIL = 160
MOST_PARTS = 6  # nodes of a placement in a list
MOST_PROGRESS = 160  # characters
DAY = 24 * HOUR
ACTIVE_WORDS = sorted(state.value for state in ACTIVE)
ROOM = 150_000  # bytes of items in one answer
LARGEST_PAGE = 190_000  # bytes of jobs

_J = tables.jobs.c
_A = tables.attempts.c

_JobRow = namedtuple("_JobRow", tables.jobs.c.keys())  # type: ignore[misc]

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Page:
    """Some of the items, and where to go on."""

    items: list[Json]
    next: str | None

    def document(self) -> Json:
        return {"items": self.items, "next": self.next}


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which jobs are wanted."""

    states: tuple[str, ...] = ()
    active: bool | None = None
    user: str | None = None
    tenant: str | None = None
    name: str | None = None  # `*` stands for anything
    array: str | None = None
    since: int | None = None  # submitted (in a history: ended) at or after
    until: int | None = None  # before


# --- cursors ----------------------------------------------------------------------------------------


def to_cursor(kind: str, *key: int | str) -> str:
    return (
        base64.urlsafe_b64encode(json.dumps([kind, *key], separators=(",", ":")).encode())
        .decode()
        .rstrip("=")
    )


def from_cursor(text: str, kind: str, *types: type) -> list[Any]:
    """The key behind which to go on."""
    try:
        found = json.loads(base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True))
    except (ValueError, RecursionError):
        found = None
    fits = (
        isinstance(found, list)
        and len(found) == len(types) + 1
        and found[0] == kind
        and all(type(part) is wanted for part, wanted in zip(found[1:], types, strict=True))
        and all(not isinstance(part, int) or abs(part) < 1 << 62 for part in found)
        and all("\0" not in part and part.isprintable() for part in found if isinstance(part, str))
    )
    if not fits or not isinstance(found, list):
        raise InputError("the cursor is none of this list; take `next` of the page before as it is")
    return found[1:]


def cut_to_room(rows: Sequence[Json], kind: str, key: str, limit: int, room: int = ROOM) -> Page:
    """As many of the rows as fit; the next page starts behind the last one that does.

    `rows` may hold one more than `limit`, which says that there are more.
    """
    used, count = 0, 0
    for row in rows[:limit]:
        used += len(json.dumps(row, separators=(",", ":")))
        if count and used > room:
            break
        count += 1
    shown = list(rows[:count])
    return Page(shown, to_cursor(kind, shown[-1][key]) if count < len(rows) else None)


# --- jobs -------------------------------------------------------------------------------------------


class Queries:
    """Questions to the store on behalf of somebody."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def jobs(self, caller: Caller, wanted: Filter, cursor: str | None, limit: int) -> Page:
        """Newest first."""
        conditions = [*_visible(caller), *_conditions(wanted, _J.submitted_at)]
        if cursor is not None:
            conditions.append(_J.seq < _seq_of(caller, from_cursor(cursor, "jobs", str)[0]))
        # Numbers first, then the rows of those: what has to be sorted may be all that waits.
        newest = sa.select(_J.seq).where(*conditions).order_by(_J.seq.desc()).limit(limit + 1)
        rows = self._all(sa.select(tables.jobs).where(_J.seq.in_(newest)).order_by(_J.seq.desc()))
        return _page(rows, limit, lambda row: to_cursor("jobs", row.id))

    def folded(self, caller: Caller, wanted: Filter, cursor: str | None, limit: int) -> Page:
        """Newest first, an array as one item: its newest member, with how many there are in which state."""
        conditions = [*_visible(caller), *_conditions(wanted, _J.submitted_at)]
        last = sa.func.max(_J.seq)
        heads = sa.select(last).where(*conditions).group_by(sa.func.coalesce(_J.array, _J.id))
        if cursor is not None:
            heads = heads.having(last < _seq_of(caller, from_cursor(cursor, "jobs", str)[0]))
        newest = heads.order_by(last.desc()).limit(limit + 1)
        rows = self._all(sa.select(tables.jobs).where(_J.seq.in_(newest)).order_by(_J.seq.desc()))
        page = _page(rows, limit, lambda row: to_cursor("jobs", row.id))
        arrays = [item["array"]["id"] for item in page.items if item["array"] is not None]
        counts = sa.select(
            _J.array,
            _J.state,
            sa.func.count().label("count"),
            sa.func.min(_J.submitted_at).label("submitted_at"),
            sa.func.min(_J.first_started_at).label("started_at"),
        )
        members: dict[str, Json] = {}
        for row in self._all(counts.where(_J.array.in_(arrays)).group_by(_J.array, _J.state)):
            entry = members.setdefault(row.array, {"count": 0, "states": {}, "first_started_at": None})
            entry["count"] += row.count
            entry["states"][row.state] = row.count
            started = iso(row.started_at)
            if started is not None:
                entry["first_started_at"] = min(entry["first_started_at"] or started, started)
        for item in page.items:
            if item["array"] is not None:
                item["members"] = members[item["array"]["id"]]
        return page

    def history(self, caller: Caller, wanted: Filter, cursor: str | None, limit: int) -> Page:
        """Jobs that have ended, the last one first."""
        conditions = [*_visible(caller), _J.ended_at.is_not(None), *_conditions(wanted, _J.ended_at)]
        if cursor is not None:
            ended, last = from_cursor(cursor, "history", int, str)
            before = sa.and_(_J.ended_at == ended, _J.seq < _seq_of(caller, last))
            conditions.append(sa.or_(_J.ended_at < ended, before))
        order = (_J.ended_at.desc(), _J.seq.desc())
        rows = self._all(sa.select(tables.jobs).where(*conditions).order_by(*order).limit(limit + 1))
        return _page(rows, limit, lambda row: to_cursor("history", row.ended_at, row.id))

    def job(self, caller: Caller, id: str) -> Row[Any] | None:
        """One job, if it is there for this caller."""
        return self._first(sa.select(tables.jobs).where(_J.id == id, *_visible(caller)))

    def array(self, caller: Caller, id: str) -> Json | None:
        """All members of an array in one answer."""
        query = (
            sa.select(
                _J.state,
                sa.func.count().label("count"),
                sa.func.min(_J.name).label("name"),
                sa.func.min(_J.tenant).label("tenant"),
                sa.func.min(_J.user).label("user"),
                sa.func.min(_J.submitted_at).label("submitted_at"),
                sa.func.min(_J.first_started_at).label("started_at"),
                sa.func.max(_J.ended_at).label("ended_at"),
                sa.func.sum(_J.gpu_time * 1e-3).label("gpu_time"),
                sa.func.sum(_J.lost_time * 1e-3).label("lost_time"),
            )
            .where(_J.array == id, *_visible(caller))
            .group_by(_J.state)
        )
        rows = self._all(query)
        if not rows:
            return None
        over = all(State(row.state).final for row in rows)
        started = [row.started_at for row in rows if row.started_at is not None]
        return {
            "id": id,
            "count": sum(row.count for row in rows),
            "states": {row.state: row.count for row in sorted(rows, key=lambda row: str(row.state))},
            "name": _short(rows[0].name, LONGEST_NAME),
            "tenant": rows[0].tenant,
            "user": rows[0].user,
            "submitted_at": iso(min(row.submitted_at for row in rows)),
            "first_started_at": iso(min(started)) if started else None,
            "ended_at": iso(max(row.ended_at for row in rows)) if over else None,
            "gpu_seconds": round(sum(row.gpu_time for row in rows) / SECOND, 3),
            "lost_gpu_seconds": round(sum(row.lost_time for row in rows) / SECOND, 3),
        }

    def members(self, caller: Caller, id: str, tasks: Collection[int] | None = None) -> list[str]:
        """The job of this id, or those of the array; with `tasks` only these members."""
        query = sa.select(_J.id, _J.task).where(sa.or_(_J.id == id, _J.array == id), *_visible(caller))
        rows = self._all(query.order_by(_J.seq))
        return [row.id for row in rows if tasks is None or row.task in tasks]

    def found(self, caller: Caller, ids: Iterable[str]) -> dict[str, list[str]]:
        """What these ids stand for, jobs and arrays alike; those that stand for nothing here are left out."""
        wanted = list(dict.fromkeys(ids))
        found: dict[str, list[str]] = {}
        with self._store.reading() as connection:
            for start in range(0, len(wanted), 500):
                part = wanted[start : start + 500]
                query = sa.select(_J.id, _J.array).where(
                    sa.or_(_J.id.in_(part), _J.array.in_(part)), *_visible(caller)
                )
                named = set(part)
                for row in connection.execute(query.order_by(_J.seq)):
                    for name in {row.id, row.array} & named:
                        found.setdefault(name, []).append(row.id)
        return found

    def over(self, ids: Iterable[str], most: int) -> list[str]:
        """Those of these that have ended, the first `most` of them; all were found for the caller before."""
        found: list[str] = []
        wanted = list(ids)
        with self._store.reading() as connection:
            for start in range(0, len(wanted), 500):
                part = wanted[start : start + 500]
                query = sa.select(_J.id).where(_J.id.in_(part), _J.state.not_in(ACTIVE_WORDS))
                found += [row.id for row in connection.execute(query.order_by(_J.seq))]
                if len(found) >= most:
                    break
        return found[:most]

    def active_of(self, caller: Caller) -> list[str]:
        """The caller's own jobs that are not over."""
        query = sa.select(_J.id).where(
            _J.state.in_(ACTIVE_WORDS), _J.tenant == caller.tenant, _J.user == caller.user
        )
        return [row.id for row in self._all(query.order_by(_J.seq))]

    def holding(self, caller: Caller) -> set[str] | None:
        """The jobs that hold devices and may be named to this caller; None: all may."""
        if caller.admin:
            return None
        query = sa.select(_J.id).where(_J.state.in_(("running", "stopping")), *_visible(caller))
        return {row.id for row in self._all(query)}

    def attempts(self, job: str, cursor: str | None, limit: int) -> Page:
        """The starts of a job that the caller was found to see, the last one first."""
        query = sa.select(tables.attempts).where(_A.job == job).order_by(_A.epoch.desc()).limit(limit + 1)
        if cursor is not None:
            query = query.where(_A.epoch < from_cursor(cursor, "attempts", int)[0])
        items = [
            {
                "attempt": row.epoch,
                "placement": _placement(row.placement, None),
                "gpu_types": _words(row.types),
                "started_at": iso(row.started_at),
                "ended_at": iso(row.ended_at),
                "exit_code": row.exit_code,
                "cause": row.cause,
                "detail": _short(row.detail, 500),
            }
            for row in self._all(query)
        ]
        return cut_to_room(items, "attempts", "attempt", limit)

    def journal(self, after: int, limit: int) -> Page:
        """Steps as they were written; a line that is too long for an answer is cut, and says so."""
        c = tables.journal.c
        longest = ROOM // 2
        line, size = sa.func.substr(c.line, 1, longest).label("line"), sa.func.length(c.line).label("size")
        query = sa.select(c.number, c.era, c.time, line, size).where(c.number > after).order_by(c.number)
        items: list[Json] = []
        used = 0
        rows = self._all(query.limit(limit + 1))
        for row in rows[:limit]:
            used += 2 * len(row.line) + 100  # quotes are escaped
            if items and used > ROOM:
                break
            cut = row.size > len(row.line)
            items.append(
                {"number": row.number, "era": row.era, "time": iso(row.time), "line": row.line, "cut": cut}
            )
        return Page(items, str(items[-1]["number"]) if len(items) < len(rows) else None)

    def speeds(self, caller: Caller, cursor: str | None, limit: int) -> Page:
        """Measured throughput; those of a tenant see what they measured themselves.

        What others have trained is nobody's business, so a row shows only where a job of the caller's tenant
        with that model reported from that kind of device.
        """
        c = tables.speeds.c
        query = sa.select(tables.speeds)
        if not caller.admin:
            own = (
                sa.select(_J.id)
                .join(tables.attempts, _A.job == _J.id)
                .where(
                    _J.tenant == caller.tenant,
                    _J.model == c.model,
                    _J.gpus == c.gpus,
                    _J.progress.is_not(None),
                    _A.types == c.type,
                )
                .exists()
            )
            query = query.where(c.model != "", own)
        if cursor is not None:
            model, kind, gpus = from_cursor(cursor, "speeds", str, str, int)
            query = query.where(sa.tuple_(c.model, c.type, c.gpus) > sa.tuple_(model, kind, gpus))
        rows = self._all(query.order_by(c.model, c.type, c.gpus).limit(limit + 1))
        items = [
            {
                "model": row.model,
                "gpu_type": row.type,
                "gpus": row.gpus,
                "steps_per_second": row.rate,
                "reports": row.count,
                "at": iso(row.time),
            }
            for row in rows[:limit]
        ]
        last = rows[limit - 1] if len(rows) > limit else None
        return Page(items, to_cursor("speeds", last.model, last.type, last.gpus) if last else None)

    # -- usage

    def report(
        self,
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
        end = sa.func.coalesce(_A.ended_at, _at(now))
        mine = [*_visible(caller), _A.started_at < until, end > since]
        first = sa.case((_A.started_at < since, _at(since)), else_=_A.started_at)
        last = sa.case((end > until, _at(until)), else_=end)
        groups: dict[str, Json] = {}
        with self._store.reading() as connection:
            begins = connection.execute(sa.select(sa.func.min(_A.started_at))).scalar() or since
            period = _period(by, max(since, begins), min(until, now))  # a month costs; there were none before
            name = str if period is None else period.name
            for key, kind, gpu_seconds in _held(connection, by, period, mine, (first, last), kind_of or {}):
                held = _group(groups, key)["held"]
                held[kind] = held.get(kind, 0.0) + gpu_seconds
            for row in connection.execute(_lost(by, period, mine, last)):
                entry = _group(groups, name(row.key))
                entry["lost"] += row.lost or 0.0
                entry["jobs"] += row.jobs
            for row in connection.execute(_waits(caller, by, period, since, until)):
                entry = _group(groups, name(row.key))
                entry["waits"] = [row.mean, row.p50, row.p90]
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

    # -- reading

    def _all(self, query: Any) -> Sequence[Row[Any]]:
        with self._store.reading() as connection:
            return connection.execute(query).all()

    def _first(self, query: Any) -> Row[Any] | None:
        with self._store.reading() as connection:
            return connection.execute(query).first()


def _seq_of(caller: Caller, id: str) -> Any:
    """Where a job stands among all. Cursors name the job: its number would tell how many others there are."""
    other = tables.jobs.alias()
    query = sa.select(other.c.seq).where(other.c.id == id)
    return (query if caller.admin else query.where(other.c.tenant == caller.tenant)).scalar_subquery()


def _visible(caller: Caller) -> list[Any]:
    """What keeps tenants apart."""
    return [] if caller.admin else [_J.tenant == caller.tenant]


def _conditions(wanted: Filter, moment: Any) -> Iterator[Any]:
    if wanted.states:
        yield _J.state.in_(wanted.states)
    if wanted.active is not None:
        yield _J.state.in_(ACTIVE_WORDS) if wanted.active else _J.state.not_in(ACTIVE_WORDS)
    for name in ("user", "tenant", "array"):
        if (value := getattr(wanted, name)) is not None:
            yield _J[name] == value
    if wanted.name is not None:
        if "*" in wanted.name:
            plain = wanted.name.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
            yield _J.name.like(plain.replace("*", "%"), escape="\\")
        else:
            yield _J.name == wanted.name
    if wanted.since is not None:
        yield moment >= wanted.since
    if wanted.until is not None:
        yield moment < wanted.until


def _page(rows: Sequence[Row[Any]], limit: int, cursor_of: Callable[[Row[Any]], str]) -> Page:
    """At most `limit` of them, and fewer if these are long."""
    items: list[Json] = []
    room = LARGEST_PAGE
    for row in rows[:limit]:
        item = job_json(row)
        room -= _bytes_of(item)
        if room < 0 and items:
            break
        items.append(item)
    return Page(items, cursor_of(rows[len(items) - 1]) if len(items) < len(rows) else None)


def _bytes_of(job: Json) -> int:
    """How long a job is as JSON; rather too much, and quicker than to write it."""
    words = (job[name] for name in ("name", "reason", "tenant", "user", "model", "detail", "dependency"))
    length = 970 + sum(len(word.encode("utf-8", "replace")) for word in words if word)
    length += sum(40 + len(part["node"]) + 4 * len(part["devices"]) for part in job["placement"])
    return length + (0 if job["progress"] is None else 3 * MOST_PROGRESS)


# --- usage ------------------------------------------------------------------------------------------


_KEYS: dict[str, Any] = {"tenant": _J.tenant, "user": _J.user, "model": _J.model, "type": _A.types}


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
    source = tables.attempts.join(tables.jobs, _A.job == _J.id)
    key: Any = period.number(first) if period else _KEYS[by]
    name: Callable[[Any], str] = period.name if period else str
    simple: Any = ~_A.types.contains(",")
    if period is not None:
        simple = sa.and_(simple, period.number(first) == period.number(last - 1))
    amount = sa.func.sum(_A.load * 1e-9 * (last - first)).label("held")
    whole = sa.select(key.label("key"), _A.types, amount).select_from(source).where(*mine, simple)
    for found in connection.execute(whole.group_by(key, _A.types)):
        yield name(found.key), found.types, found.held or 0.0
    columns = (key.label("key"), _A.types, _A.placement, _A.load, first.label("first"), last.label("last"))
    for row in connection.execute(sa.select(*columns).select_from(source).where(*mine, sa.not_(simple))):
        parts = parts_of(row.types.split(","), json.loads(row.placement), kind_of)
        at = row.first
        while at < row.last:
            number = row.key if period is None else period.number_of(at)
            until = row.last if period is None else min(period.end(number), row.last)
            for kind, part in parts.items():
                yield name(number), kind, part * row.load * 1e-9 * (until - at)
            at = until


def _lost(by: str, period: Period | None, mine: list[Any], last: Any) -> Any:
    """Jobs by group, and what they lost; each counts once, with its last attempt."""
    key = period.number(last - 1) if period else _KEYS[by]
    return (
        sa.select(
            key.label("key"),
            sa.func.count().label("jobs"),
            sa.func.sum(_J.lost_time * 1e-9).label("lost"),
        )
        .select_from(tables.attempts.join(tables.jobs, _A.job == _J.id))
        .where(*mine, _A.epoch == _J.epoch)
        .group_by(key)
    )


def _waits(caller: Caller, by: str, period: Period | None, since: int, until: int) -> Any:
    ready = sa.case(
        (sa.and_(_J.eligible_at.is_not(None), _J.eligible_at <= _J.first_started_at), _J.eligible_at),
        else_=_J.submitted_at,
    )
    key = period.number(_J.first_started_at) if period else _KEYS[by]
    source: Any = tables.jobs
    if by == "type":
        source = tables.jobs.join(tables.attempts, sa.and_(_A.job == _J.id, _A.epoch == _J.epoch))
    waits = (
        sa.select(key.label("key"), (_J.first_started_at - ready).label("wait"))
        .select_from(source)
        .where(*_visible(caller), _J.first_started_at >= since, _J.first_started_at < until)
        .subquery()
    )
    ranked = sa.select(
        waits.c.key,
        waits.c.wait,
        sa.func.row_number().over(partition_by=waits.c.key, order_by=waits.c.wait).label("rank"),
        sa.func.count().over(partition_by=waits.c.key).label("count"),
    ).subquery()
    c = ranked.c

    def percentile(percent: int) -> Any:  # the smallest wait that so many do not exceed
        return sa.func.min(sa.case((c.rank * 100 >= c.count * percent, c.wait))).label(f"p{percent}")

    mean = (sa.func.sum(c.wait * 1.0) / sa.func.count()).label("mean")
    return sa.select(c.key, mean, percentile(50), percentile(90)).group_by(c.key)


def _line(key: str, entry: Json, prices: Prices) -> Json:
    """One line of a report."""
    held: dict[str, float] = entry["held"]
    cost = prices.cost({kind: seconds / 3_600 for kind, seconds in held.items()})
    waits = (None if wait is None else round(wait / SECOND, 3) for wait in entry["waits"])
    return {
        "key": key,
        "gpu_hours": round(sum(held.values()) / 3_600, 4),
        "lost_gpu_hours": round(entry["lost"] / 3_600, 4),
        "jobs": entry["jobs"],
        "cost": None if cost is None else round(cost, 4),
        "wait": dict(zip(("mean", "p50", "p90"), waits, strict=True)),
    }


def _group(groups: dict[str, Json], key: str) -> Json:
    return groups.setdefault(key, {"held": {}, "lost": 0.0, "jobs": 0, "waits": (None, None, None)})


def _at(moment: int) -> Any:
    """A moment in a query; as a small number it would be taken for one of small numbers."""
    return sa.literal(moment, sa.BigInteger)


def _day(moment: Any) -> Any:
    """Days since 1970; whole numbers are divided as such by both databases."""
    return sa.cast(moment, sa.BigInteger).op("/")(sa.literal(DAY, sa.BigInteger))


def _date(day: int) -> str:
    return (iso(day * DAY) or "")[:10]


# --- as answers show them ---------------------------------------------------------------------------


def job_json(row: Any, *, whole: bool = False) -> Json:
    """A job as the API shows it; in a list (not `whole`) what is long is cut."""
    row = _JobRow._make(row) if isinstance(row, Row) else row  # whose fields are found much sooner
    state = State(row.state)
    placement = _placement(row.placement, None if whole else MOST_PARTS)
    final = state.final
    reason = _short(row.reason, 500 if whole else LONGEST_DETAIL)
    return {
        "id": row.id,
        "name": row.name if whole else _short(row.name, LONGEST_NAME),
        "state": state.value,
        "letter": LETTERS[state],
        "reason": "" if final else reason,
        "kind": row.kind,
        "tenant": row.tenant,
        "user": row.user,
        "model": row.model if whole else _short(row.model, 60),
        "priority": row.priority,
        "gpus": row.gpus,
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
        "waited": _waited(row),
        "took": row.held_time / SECOND,
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
        else _short(row.dependency, LONGEST_DETAIL),
        "output": None,
        "progress": _progress(row.progress, 20_000 if whole else MOST_PROGRESS),
        "gpu_seconds": round(row.gpu_time / (1_000 * SECOND), 3),
        "lost_gpu_seconds": round(row.lost_time / (1_000 * SECOND), 3),
        "ends_at": None,
    }


def _waited(row: Any) -> float | None:
    """From when it could have started to its first start."""
    if row.first_started_at is None:
        return None
    ready = row.eligible_at
    if ready is None or ready > row.first_started_at:
        ready = row.submitted_at
    return float(row.first_started_at - ready) / SECOND


def _placement(text: str | None, most: int | None) -> list[Json]:
    found: list[Json] = json.loads(text) if text else []
    return found[:most]


def _progress(text: str | None, most: int) -> Json | None:
    """The last report; only its shorter values if it is long."""
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


def _short(text: str, most: int) -> str:
    """At most so many bytes of it."""
    if len(text) * 4 <= most or len(data := text.encode("utf-8", "replace")) <= most:
        return text
    return data[: most - 3].decode("utf-8", "ignore") + "…"
