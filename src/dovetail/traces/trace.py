"""A trace is jobs in the order in which they arrive, and where they came from."""

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
    """Jobs sorted by submission, those of one instant in the order of their file."""

    name: str
    jobs: list[Job]
    format: str = ""
    began: str = ""  # the wall-clock time of second 0, where the source tells it
    notes: tuple[str, ...] = ()  # what was left out or assumed, for a person to read


def many(count: int, **columns: Iterable[Any]) -> list[Job]:
    """So many jobs from columns of their fields, the rest at their defaults.

    Equal to calling Job for each, at under half the cost: a frozen dataclass pays for every field of every
    instance, and a trace has a million. Here each field is filled in for all of them at once.
    """
    jobs = list(map(object.__new__, repeat(Job, count)))
    for field in fields(Job):
        if field.name not in columns and field.default is MISSING:
            raise TypeError(f"a job needs {field.name}")
        fill = Job.__dict__[field.name].__set__
        deque(map(fill, jobs, columns.get(field.name, repeat(field.default))), maxlen=0)
    return jobs


class Dropped:
    """Counts the rows that cannot be jobs, by reason: a reader that hid them would shrink a trace unseen."""

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
    """The trace of these jobs, sorted in place; two of one name, or none at all, are an error."""
    told = (*notes, *(dropped.notes() if dropped else ()))
    if not jobs:
        why = f" ({'; '.join(told)})" if told else ""
        raise TraceError(file, None, f"no jobs in it{why}", "a trace needs at least one row below its header")
    refuse_twins(file, jobs)
    jobs.sort(key=attrgetter("arrived_at"))  # stable: ties keep the order of the file
    return Trace(name, jobs, format, began, told)


def refuse_twins(file: str, jobs: Iterable[Job]) -> None:
    """Ids are how events, journals and people speak of a job: two of one id is an error."""
    ids = list(map(attrgetter("id"), jobs))
    if len(set(ids)) != len(ids):
        twin, count = Counter(ids).most_common(1)[0]
        raise TraceError(file, None, f"{count} jobs have the id {twin!r}", "give each job an id of its own")
