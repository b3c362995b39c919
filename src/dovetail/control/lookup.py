"""Jobs and arrays by id, as far as a caller may see them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Row

from dovetail.control import tables
from dovetail.control.clock import iso, wall_now
from dovetail.control.job_document import LONGEST_NAME, shortened
from dovetail.control.states import ACTIVE_WORDS, State
from dovetail.control.store import Store
from dovetail.control.time_held import GPU_SECOND, ON_DEVICES, gpu_seconds_in_sql
from dovetail.control.tokens import Caller
from dovetail.control.visibility import visible
from dovetail.model.units import WHOLE

_J = tables.jobs.c

Json = dict[str, Any]


class Lookup:
    """Finds jobs in the store on behalf of a caller."""

    def __init__(self, store: Store, now: Callable[[], int] = wall_now) -> None:
        self._store = store
        self._now = now

    def job(self, caller: Caller, id: str) -> Row[Any] | None:
        """One job, if the caller may see it."""
        return self._first(sa.select(tables.jobs).where(_J.id == id, *visible(caller)))

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
                sa.func.sum(gpu_seconds_in_sql(self._now())).label("gpu_seconds"),
                sa.func.sum(_J.lost_time * (1.0 / GPU_SECOND)).label("lost_gpu_seconds"),
                sa.func.sum(sa.func.coalesce(_J.held_load, _J.load) * (1.0 / WHOLE)).label("gpus"),
            )
            .where(_J.array == id, *visible(caller))
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
            "name": shortened(rows[0].name, LONGEST_NAME),
            "tenant": rows[0].tenant,
            "user": rows[0].user,
            "submitted_at": iso(min(row.submitted_at for row in rows)),
            "first_started_at": iso(min(started)) if started else None,
            "ended_at": iso(max(row.ended_at for row in rows)) if over else None,
            "gpu_seconds": round(sum(row.gpu_seconds for row in rows), 3),
            "lost_gpu_seconds": round(sum(row.lost_gpu_seconds for row in rows), 3),
            "gpus_held": round(sum(row.gpus for row in rows if row.state in ON_DEVICES), 3),
        }

    def members(self, caller: Caller, id: str, tasks: Collection[int] | None = None) -> list[str]:
        """The job of this id, or those of the array; with `tasks` only these members."""
        query = sa.select(_J.id, _J.task).where(sa.or_(_J.id == id, _J.array == id), *visible(caller))
        rows = self._all(query.order_by(_J.seq))
        return [row.id for row in rows if tasks is None or row.task in tasks]

    def found(self, caller: Caller, ids: Iterable[str]) -> dict[str, list[str]]:
        """The jobs behind these ids of jobs and arrays; unknown ids are left out."""
        wanted = list(dict.fromkeys(ids))
        found: dict[str, list[str]] = {}
        with self._store.reading() as connection:
            for start in range(0, len(wanted), 500):
                part = wanted[start : start + 500]
                query = sa.select(_J.id, _J.array).where(
                    sa.or_(_J.id.in_(part), _J.array.in_(part)), *visible(caller)
                )
                named = set(part)
                for row in connection.execute(query.order_by(_J.seq)):
                    for name in {row.id, row.array} & named:
                        found.setdefault(name, []).append(row.id)
        return found

    def over(self, ids: Iterable[str], most: int) -> list[str]:
        """The first `most` of these jobs that have ended; the caller must be allowed to see them all."""
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
        """The caller's own jobs that have not ended, in every tenant that the token sees."""
        query = sa.select(_J.id).where(_J.state.in_(ACTIVE_WORDS), _J.user == caller.user, *visible(caller))
        return [row.id for row in self._all(query.order_by(_J.seq))]

    def holding(self, caller: Caller) -> set[str] | None:
        """The jobs that hold devices and may be named to this caller; None: all may."""
        if caller.admin:
            return None
        query = sa.select(_J.id).where(_J.state.in_(("running", "stopping")), *visible(caller))
        return {row.id for row in self._all(query)}

    def _all(self, query: Any) -> Sequence[Row[Any]]:
        with self._store.reading() as connection:
            return connection.execute(query).all()

    def _first(self, query: Any) -> Row[Any] | None:
        with self._store.reading() as connection:
            return connection.execute(query).first()
