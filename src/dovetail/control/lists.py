"""Lists from the store, page by page: jobs, ended jobs, attempts of a job, journal lines, measured speeds.

A row of a list stays below a kilobyte: long texts are cut, and are whole in the document of one job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Row

from dovetail.control import tables
from dovetail.control.clock import iso, wall_now
from dovetail.control.cursors import ROOM, Page, cut_to_room, from_cursor, to_cursor
from dovetail.control.job_document import MOST_PROGRESS, attempt_document, job_document
from dovetail.control.states import ACTIVE_WORDS
from dovetail.control.store import Store
from dovetail.control.time_held import GPU_SECOND
from dovetail.control.tokens import Caller
from dovetail.control.visibility import number_of, visible

LARGEST_PAGE = 190_000  # bytes of jobs

_J = tables.jobs.c
_A = tables.attempts.c

Json = dict[str, Any]


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


class Lists:
    """Lists from the store on behalf of a caller."""

    def __init__(self, store: Store, now: Callable[[], int] = wall_now) -> None:
        self._store = store
        self._now = now  # the plane's time, up to which a waiting job has waited

    def jobs(self, caller: Caller, wanted: Filter, cursor: str | None, limit: int) -> Page:
        """Newest first."""
        conditions = [*visible(caller), *_conditions(wanted, _J.submitted_at)]
        if cursor is not None:
            conditions.append(_J.seq < number_of(caller, from_cursor(cursor, "jobs", str)[0]))
        # Numbers first, then their rows: all waiting jobs may have to be sorted.
        newest = sa.select(_J.seq).where(*conditions).order_by(_J.seq.desc()).limit(limit + 1)
        rows = self._all(sa.select(tables.jobs).where(_J.seq.in_(newest)).order_by(_J.seq.desc()))
        return _page(rows, self._now(), limit, lambda row: to_cursor("jobs", row.id))

    def folded(self, caller: Caller, wanted: Filter, cursor: str | None, limit: int) -> Page:
        """Newest first, an array as one item: its newest member, with how many there are in which state.

        An array is active while one of its members is.
        """
        conditions = [*visible(caller), *_conditions(wanted, _J.submitted_at)]
        if wanted.active is False:
            other = tables.jobs.alias()
            active = sa.select(other.c.array).where(
                other.c.state.in_(ACTIVE_WORDS), other.c.array.is_not(None)
            )
            conditions.append(sa.or_(_J.array.is_(None), _J.array.not_in(active)))
        last = sa.func.max(_J.seq)
        heads = sa.select(last).where(*conditions).group_by(sa.func.coalesce(_J.array, _J.id))
        if cursor is not None:
            heads = heads.having(last < number_of(caller, from_cursor(cursor, "jobs", str)[0]))
        newest = heads.order_by(last.desc()).limit(limit + 1)
        rows = self._all(sa.select(tables.jobs).where(_J.seq.in_(newest)).order_by(_J.seq.desc()))
        page = _page(rows, self._now(), limit, lambda row: to_cursor("jobs", row.id))
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
        conditions = [*visible(caller), _J.ended_at.is_not(None), *_conditions(wanted, _J.ended_at)]
        if cursor is not None:
            ended, last = from_cursor(cursor, "history", int, str)
            before = sa.and_(_J.ended_at == ended, _J.seq < number_of(caller, last))
            conditions.append(sa.or_(_J.ended_at < ended, before))
        order = (_J.ended_at.desc(), _J.seq.desc())
        rows = self._all(sa.select(tables.jobs).where(*conditions).order_by(*order).limit(limit + 1))
        return _page(rows, self._now(), limit, lambda row: to_cursor("history", row.ended_at, row.id))

    def ended(self, caller: Caller, wanted: Filter) -> Json:
        """All jobs of a history, summed up: how many there are, and the GPU time that they held."""
        conditions = [*visible(caller), _J.ended_at.is_not(None), *_conditions(wanted, _J.ended_at)]
        held, lost = (sa.func.sum(column * (1.0 / GPU_SECOND)) for column in (_J.gpu_time, _J.lost_time))
        summed = sa.select(sa.func.count().label("jobs"), held.label("held"), lost.label("lost"))
        (row,) = self._all(summed.where(*conditions))
        return {
            "jobs": row.jobs,
            "gpu_seconds": round(row.held or 0.0, 3),
            "lost_gpu_seconds": round(row.lost or 0.0, 3),
        }

    def attempts(self, caller: Caller, job: str, cursor: str | None, limit: int) -> Page:
        """The attempts of a job that the caller may see, the last one first."""
        query = sa.select(tables.attempts).where(_A.job == job).order_by(_A.epoch.desc()).limit(limit + 1)
        if cursor is not None:
            query = query.where(_A.epoch < from_cursor(cursor, "attempts", int)[0])
        now = self._now()
        items = [attempt_document(row, now, caller.sees) for row in self._all(query)]
        return cut_to_room(items, "attempts", "attempt", limit)

    def journal(self, after: int, limit: int) -> Page:
        """Lines of the journal; a line that is too long for an answer is cut, and marked so."""
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
        """Measured throughput; the callers of a tenant see what jobs of that tenant measured."""
        c = tables.speeds.c
        query = sa.select(tables.speeds)
        if not caller.admin:
            query = query.where(c.tenant == caller.tenant)
        if cursor is not None:
            tenant, model, kind, gpus = from_cursor(cursor, "speeds", str, str, str, int)
            after = sa.tuple_(tenant, model, kind, gpus)
            query = query.where(sa.tuple_(c.tenant, c.model, c.type, c.gpus) > after)
        rows = self._all(query.order_by(c.tenant, c.model, c.type, c.gpus).limit(limit + 1))
        items = [
            {
                "tenant": row.tenant,
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
        return Page(
            items, to_cursor("speeds", last.tenant, last.model, last.type, last.gpus) if last else None
        )

    def _all(self, query: Any) -> Sequence[Row[Any]]:
        with self._store.reading() as connection:
            return connection.execute(query).all()


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


def _page(rows: Sequence[Row[Any]], now: int, limit: int, cursor_of: Callable[[Row[Any]], str]) -> Page:
    """At most `limit` rows, and fewer if they are long."""
    items: list[Json] = []
    room = LARGEST_PAGE
    for row in rows[:limit]:
        item = job_document(row, now)
        room -= _bytes_of(item)
        if room < 0 and items:
            break
        items.append(item)
    return Page(items, cursor_of(rows[len(items) - 1]) if len(items) < len(rows) else None)


def _bytes_of(job: Json) -> int:
    """The length of a job as JSON: an upper estimate, faster than to write it."""
    words = (job[name] for name in ("name", "reason", "tenant", "user", "model", "detail", "dependency"))
    length = 1_050 + sum(len(word.encode("utf-8", "replace")) for word in words if word)
    length += sum(40 + len(part["node"]) + 4 * len(part["devices"]) for part in job["placement"])
    return length + (0 if job["progress"] is None else 3 * MOST_PROGRESS)
