"""Use over time, worked out from the attempts on record: exact, and no second truth beside them.

Time is cut into equal bins, and what counts is the mean over each. A span (an attempt, a wait) changes the
level twice: up where it begins, down where it ends. The database sums these up by bin, as how much and how
far into the bin, so what is read is as much as is shown, however many attempts there were; the rest is
addition.

Held is exact. Waiting is nearly so: from when a job could have started to its first start, from the end of an
attempt to the beginning of the next, and from the last to its end or now. A job that was held by its user
in between attempts counts as waiting there, and one that is held now does not count for the time before.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from dovetail.control import tables
from dovetail.control.clock import iso
from dovetail.control.prices import parts_of
from dovetail.control.states import State
from dovetail.control.store import Store
from dovetail.control.tokens import Caller
from dovetail.model.units import SECOND, WHOLE

MOST_SERIES = 20
OTHERS = "all others"  # no tenant can be called so

_J = tables.jobs.c
_A = tables.attempts.c


@dataclass(frozen=True, slots=True)
class Bins:
    """A stretch of time in equal parts; the last may be shorter."""

    since: int
    until: int
    step: int

    @classmethod
    def of(cls, since: int, until: int, points: int) -> Bins:
        return cls(since, until, -(-(until - since) // points))

    @property
    def count(self) -> int:
        return -(-(self.until - self.since) // self.step)

    def width(self, number: int) -> int:
        return min(self.step, self.until - self.since - number * self.step)


class Curve:
    """A level that goes up and down: its mean in every bin."""

    def __init__(self, bins: Bins) -> None:
        self._bins = bins
        self._turns = [0.0] * bins.count  # by how much the level changes in a bin, and
        self._missed = [0.0] * bins.count  # how much of that bin was over by then

    def turn(self, number: int, amount: float, into: float) -> None:
        """In this bin the level rises by `amount`; `into` is that times how far into the bin it does."""
        if number < len(self._turns):
            self._turns[number] += amount
            self._missed[number] += into

    def add(self, first: int, last: int, amount: float) -> None:
        """A span, within the bins."""
        bins = self._bins
        for at, much in ((first, amount), (last, -amount)):
            number, into = divmod(at - bins.since, bins.step)
            self.turn(number, much, much * into)

    def means(self) -> list[float]:
        level, found = 0.0, []
        for number, (turned, missed) in enumerate(zip(self._turns, self._missed, strict=True)):
            width = self._bins.width(number)
            level += turned
            found.append(max(0.0, round(level - missed / width, 3)))
        return found


def use_over_time(
    store: Store, caller: Caller, by: str, bins: Bins, now: int, kind_of: Mapping[str, str]
) -> dict[str, Any]:
    """GPUs in use by tenant or type, and what waited. Of other tenants there is only the sum.

    `kind_of` is the type of each node, for jobs that held several.
    """
    with store.reading() as connection:
        if by == "type":
            series = _by_type(connection, bins, now, kind_of)
            mine = None
        else:
            mine = None if caller.admin else caller.tenant
            series = _by_tenant(connection, bins, now, mine)
        waiting, asked = Curve(bins), Curve(bins)
        for spans in _waits(bins, now):
            for row in _turns(connection, spans, bins):
                waiting.turn(row.bin, row.sign * row.count, row.sign * row.count_into)
                asked.turn(row.bin, row.sign * row.load / WHOLE, row.sign * row.load_into / WHOLE)
    return {
        "since": iso(bins.since),
        "until": iso(bins.until),
        "step": bins.step / SECOND,
        "series": _shown({name: curve.means() for name, curve in series.items()}, mine),
        "waiting": waiting.means(),
        "asked": asked.means(),
    }


def _shown(series: dict[str, list[float]], mine: str | None) -> list[dict[str, Any]]:
    """The largest first, one's own before all; what is too much to show is summed up."""
    own = [mine] if mine else []
    rest = sorted((name for name in series if name not in own), key=lambda name: (-sum(series[name]), name))
    names = [*own, *rest]
    found = [{"name": name, "used": series[name]} for name in names[:MOST_SERIES]]
    if more := names[MOST_SERIES:]:
        summed = [round(sum(values), 3) for values in zip(*(series[name] for name in more), strict=True)]
        found.append({"name": OTHERS, "used": summed})
    return found


# --- what was held ------------------------------------------------------------------------------------


def _held(bins: Bins, now: int, key: Any, source: Any) -> Any:
    """Attempts with a part in the bins, cut to them."""
    last = sa.func.coalesce(_A.ended_at, _at(now))
    return (
        sa.select(
            key.label("key"),
            _A.load.label("load"),
            _A.types.label("types"),
            _A.placement.label("placement"),
            _later(_A.started_at, bins.since).label("first"),
            _sooner(last, bins.until).label("last"),
        )
        .select_from(source)
        .where(
            sa.or_(_A.ended_at > bins.since, _A.ended_at.is_(None)),
            _A.started_at < bins.until,
            last > bins.since,
        )
    )


def _by_tenant(connection: Connection, bins: Bins, now: int, mine: str | None) -> dict[str, Curve]:
    key: Any = _J.tenant
    found: dict[str, Curve] = {}
    if mine is not None:
        key = sa.case((_J.tenant == mine, 1), else_=0)  # so that no other name is even read
        found = {mine: Curve(bins)} if mine else {}
    source = tables.attempts.join(tables.jobs, _A.job == _J.id)
    for row in _turns(connection, _held(bins, now, key, source), bins):
        name = row.key if mine is None else mine if row.key else OTHERS
        curve = found.setdefault(name, Curve(bins))
        curve.turn(row.bin, row.sign * row.load / WHOLE, row.sign * row.load_into / WHOLE)
    return found


def _by_type(connection: Connection, bins: Bins, now: int, kind_of: Mapping[str, str]) -> dict[str, Curve]:
    found: dict[str, Curve] = {}
    held = _held(bins, now, _A.types, tables.attempts).where(_A.load > 0)
    several = _A.types.contains(",")
    for row in _turns(connection, held.where(~several), bins):
        curve = found.setdefault(row.key, Curve(bins))
        curve.turn(row.bin, row.sign * row.load / WHOLE, row.sign * row.load_into / WHOLE)
    for row in connection.execute(held.where(several)):
        for kind, part in parts_of(row.types.split(","), json.loads(row.placement), kind_of).items():
            found.setdefault(kind, Curve(bins)).add(row.first, row.last, part * row.load / WHOLE)
    return found


# --- what waited --------------------------------------------------------------------------------------


def _waits(bins: Bins, now: int) -> Iterator[Any]:
    """Spans of waiting, from three sides. Who ended before the bins begin did not wait in them."""
    there = sa.or_(_J.ended_at > bins.since, _J.ended_at.is_(None))
    ready = sa.case(
        (
            sa.and_(_J.eligible_at.is_not(None), _J.eligible_at <= _end(_J.first_started_at, now)),
            _J.eligible_at,
        ),
        (_J.first_started_at.is_not(None), _J.submitted_at),
    )  # null: something else than resources kept it
    idle = _J.state != State.HELD.value
    yield _spans(tables.jobs, ready, _end(_J.first_started_at, now), bins).where(there, idle)
    before = tables.attempts.alias()
    again = tables.attempts.join(before, sa.and_(before.c.job == _A.job, before.c.epoch == _A.epoch - 1))
    later = sa.or_(_A.ended_at > _at(bins.since), _A.ended_at.is_(None))
    # Plus nothing: an index on when attempts ended would lead through all that ended before.
    yield _spans(again, before.c.ended_at + 0, _A.started_at, bins, _A.load).where(later, _A.epoch + 0 > 1)
    last = tables.jobs.join(tables.attempts, sa.and_(_A.job == _J.id, _A.epoch == _J.epoch))
    back = _J.state.in_((State.PENDING.value, State.CANCELLED.value))  # others end with their last attempt
    yield _spans(last, _A.ended_at + 0, _end(None, now), bins).where(there, back)


def _end(moment: Any, now: int) -> Any:
    """This moment, or for want of it the job's end, or now."""
    return sa.func.coalesce(*(() if moment is None else (moment,)), _J.ended_at, _at(now))


def _spans(source: Any, first: Any, last: Any, bins: Bins, load: Any = _J.load) -> Any:
    return (
        sa.select(
            sa.literal("").label("key"),
            load.label("load"),
            _later(first, bins.since).label("first"),
            _sooner(last, bins.until).label("last"),
        )
        .select_from(source)
        .where(first < _at(bins.until), last > _at(bins.since), first < last)
    )


# --- sums ---------------------------------------------------------------------------------------------


def _turns(connection: Connection, spans: Any, bins: Bins) -> Iterable[Any]:
    """By key and bin, where spans begin (sign 1) and end (sign -1): how many, how much, how far into it."""
    found = spans.cte("spans")  # asked for twice, so it is found once and kept
    return connection.execute(
        sa.union_all(_summed(found, found.c.first, 1, bins), _summed(found, found.c.last, -1, bins))
    )


def _summed(spans: Any, moment: Any, sign: int, bins: Bins) -> Any:
    offset = sa.cast(moment - _at(bins.since), sa.BigInteger)
    cut = sa.select(
        spans.c.key,
        spans.c.load,
        offset.op("/")(_at(bins.step)).label("bin"),  # whole numbers are divided as such by both databases
        offset.op("%")(_at(bins.step)).label("into"),
    ).subquery()
    c = cut.c
    return sa.select(
        c.key,
        c.bin,
        sa.literal(sign, sa.Integer).label("sign"),
        sa.func.count().label("count"),
        sa.func.sum(c.into * 1.0).label("count_into"),
        sa.func.sum(c.load * 1.0).label("load"),
        sa.func.sum(c.load * 1.0 * c.into).label("load_into"),
    ).group_by(c.key, c.bin)


def _later(moment: Any, bound: int) -> Any:
    return sa.case((moment < _at(bound), _at(bound)), else_=moment)


def _sooner(moment: Any, bound: int) -> Any:
    return sa.case((moment > _at(bound), _at(bound)), else_=moment)


def _at(moment: int) -> Any:
    """A moment in a query; as a small number it would be taken for one of small numbers."""
    return sa.literal(moment, sa.BigInteger)
