"""A trace: jobs in order of arrival, and their source."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import MISSING, dataclass, fields
from itertools import repeat
from operator import attrgetter
from typing import Any

from dovetail.model.errors import TraceError
from dovetail.model.job import Job


@dataclass(frozen=True, slots=True)
class Trace:
    """Jobs sorted by submission; jobs of one instant in the order of the file."""

    name: str
    jobs: list[Job]
    format: str = ""
    began: str = ""  # the wall-clock time of second 0, if known
    notes: tuple[str, ...] = ()  # what was dropped or assumed, as sentences


def many(count: int, **columns: Iterable[Any]) -> list[Job]:
    """Make jobs from columns of their fields; other fields have their defaults.

    Equal to calling Job for each row, at less than half the cost: the constructor of a frozen dataclass pays
    for every field of every instance. Here each field is set for all jobs at once.
    """
    jobs = list(map(object.__new__, repeat(Job, count)))
    for field in fields(Job):
        if field.name not in columns and field.default is MISSING:
            raise TypeError(f"a job needs {field.name}")
        fill = Job.__dict__[field.name].__set__
        deque(map(fill, jobs, columns.get(field.name, repeat(field.default))), maxlen=0)
    return jobs


class Dropped:
    """Counts the rows that are not valid jobs, by reason, so that no reader drops rows silently."""

    def __init__(self) -> None:
        self._reasons: Counter[str] = Counter()

    def add(self, reason: str) -> None:
        self._reasons[reason] += 1

    def notes(self) -> tuple[str, ...]:
        return tuple(f"{count:,} rows dropped: {reason}" for reason, count in self._reasons.items())


def assembled(
    file: str,
    name: str,
    format: str,
    jobs: list[Job],
    dropped: Dropped | None = None,
    *,
    began: str = "",
    notes: Sequence[str] = (),
) -> Trace:
    """The trace of these jobs, sorted in place; duplicate ids, or no job at all, are an error."""
    told = (*notes, *(dropped.notes() if dropped else ()))
    if not jobs:
        why = f" ({'; '.join(told)})" if told else ""
        raise TraceError(file, None, f"no jobs in it{why}", "a trace needs at least one row below its header")
    refuse_duplicate_ids(file, jobs)
    jobs.sort(key=attrgetter("arrived_at"))  # stable: ties keep the order of the file
    return Trace(name, jobs, format, began, told)


def refuse_duplicate_ids(file: str, jobs: Iterable[Job]) -> None:
    """Events and journals name jobs by id, so duplicate ids are an error."""
    ids = list(map(attrgetter("id"), jobs))
    if len(set(ids)) != len(ids):
        twin, count = Counter(ids).most_common(1)[0]
        raise TraceError(file, None, f"{count} jobs have the id {twin!r}", "give each job its own id")
