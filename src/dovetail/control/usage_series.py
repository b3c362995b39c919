"""Use over time, computed from the attempts on record.

Time is cut into equal bins; a figure is the mean over a bin. A span (an attempt, a wait) changes the level
twice: up where it begins, down where it ends. The database sums up these changes by bin: how much, and how
far into the bin. The amount read is therefore that of the bins, however many attempts there were.

Waiting is time eligible and not running (`model.waiting`). A job that was held between two waits for the same
start shows the first of them later than it was, next to the second; a job that is held now shows it once it
waits again. Everything else is exact.
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
from dovetail.control.store import Store
from dovetail.control.time_held import HELD, attempt_end
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
    """GPUs in use by tenant or type, and jobs waiting. Of other tenants only the sum is shown.

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
    """The caller's own tenant first, then the largest; further series are summed up as one."""
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
    last = attempt_end(now)
    return (
        sa.select(
            key.label("key"),
            HELD.c.load.label("load"),
            HELD.c.types.label("types"),
            HELD.c.placement.label("placement"),
            _later(HELD.c.started_at, bins.since).label("first"),
            _sooner(last, bins.until).label("last"),
        )
        .select_from(source)
        .where(
            sa.or_(HELD.c.ended_at > bins.since, HELD.c.ended_at.is_(None)),
            HELD.c.started_at < bins.until,
            last > bins.since,
        )
    )


def _by_tenant(connection: Connection, bins: Bins, now: int, mine: str | None) -> dict[str, Curve]:
    key: Any = _J.tenant
    found: dict[str, Curve] = {}
    if mine is not None:
        key = sa.case((_J.tenant == mine, 1), else_=0)  # so that no other name is even read
        found = {mine: Curve(bins)} if mine else {}
    source = HELD.join(tables.jobs, HELD.c.job == _J.id)
    for row in _turns(connection, _held(bins, now, key, source), bins):
        name = row.key if mine is None else mine if row.key else OTHERS
        curve = found.setdefault(name, Curve(bins))
        curve.turn(row.bin, row.sign * row.load / WHOLE, row.sign * row.load_into / WHOLE)
    return found


def _by_type(connection: Connection, bins: Bins, now: int, kind_of: Mapping[str, str]) -> dict[str, Curve]:
    found: dict[str, Curve] = {}
    held = _held(bins, now, HELD.c.types, HELD).where(HELD.c.load > 0)
    several = HELD.c.types.contains(",")
    for row in _turns(connection, held.where(~several), bins):
        curve = found.setdefault(row.key, Curve(bins))
        curve.turn(row.bin, row.sign * row.load / WHOLE, row.sign * row.load_into / WHOLE)
    for row in connection.execute(held.where(several)):
        for kind, part in parts_of(row.types.split(","), json.loads(row.placement), kind_of).items():
            found.setdefault(kind, Curve(bins)).add(row.first, row.last, part * row.load / WHOLE)
    return found


# --- what waited --------------------------------------------------------------------------------------


def _waits(bins: Bins, now: int) -> Iterator[Any]:
    """Spans of waiting: before each start, and those that last, or lasted when the job ended."""
    # An attempt that ended before the bins begin was not waited for in them.
    later = sa.or_(_A.ended_at > _at(bins.since), _A.ended_at.is_(None))
    yield _spans(tables.attempts, _A.started_at - _A.waited, _A.started_at, bins, _A.load).where(later)
    there = sa.or_(_J.ended_at > bins.since, _J.ended_at.is_(None))
    first = _J.waiting_since - (_J.wait_time - _J.wait_at_start)
    last = sa.func.coalesce(_J.ended_at, _at(now))
    yield _spans(tables.jobs, first, last, bins).where(there, _J.waiting_since.is_not(None))


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
