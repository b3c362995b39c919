"""Dependencies of a job, as Slurm writes them: `afterok:ID:ID,afterany:ID`, or `singleton`.

Parts joined by `,` must all be met, parts joined by `?` only one of them; the two are not mixed. An id may be
a job, a member of an array (`ID_3`), or an array, which stands for all its members (for `aftercorr`: each
member waits for the member of the same index).

| kind | met when the other job |
|---|---|
| afterok | completed |
| afternotok | ended otherwise |
| afterany | ended |
| after | started or was cancelled, with `+N`: N minutes ago |
| aftercorr | (its member of the same index) completed |
| singleton | any other of the same name and user has ended |
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from dovetail.model.units import MINUTE

KINDS = ("afterok", "afterany", "afternotok", "aftercorr", "after", "singleton")
MOST_DEPENDENCIES = 1_000

_ID = "[A-Za-z0-9]{1,32}(?:_[0-9]{1,7})?"
_PART = f"singleton|(?:afterok|afterany|afternotok|aftercorr)(?::{_ID})+|after(?::{_ID}(?:[+][0-9]{{1,6}})?)+"
PATTERN = f"(?:{_PART})(?:(?:,(?:{_PART}))*|(?:[?](?:{_PART}))*)"
_ONE_ID = re.compile(_ID)


@dataclass(frozen=True, slots=True)
class Dependency:
    """A job to wait for."""

    kind: str
    job: str = ""  # "" for singleton
    delay: int = 0  # microseconds after its start, for `after`
    either: bool = False  # it is enough if one of the dependencies with this flag is met


def parse_dependency(text: str) -> tuple[Dependency, ...]:
    """
    >>> parse_dependency("afterok:k3v9q2:a7b2cd")[1]
    Dependency(kind='afterok', job='a7b2cd', delay=0, either=False)
    """
    if "," in text and "?" in text:
        raise ValueError("',' (all of them) and '?' (any of them) are mixed; use one of the two")
    either = "?" in text
    found: list[Dependency] = []
    for part in text.split("?" if either else ","):
        kind, *jobs = part.split(":")
        if kind not in KINDS:
            raise ValueError(
                f"{_short(part)} is not a dependency; write afterok:ID with one of {', '.join(KINDS)}"
            )
        if (kind == "singleton") == bool(jobs):
            remedy = "singleton stands alone" if jobs else f"write {kind}:ID"
            raise ValueError(f"{_short(part)} is not a dependency; {remedy}")
        found += [_one(kind, job, either) for job in jobs] or [Dependency(kind, either=either)]
        if len(found) > MOST_DEPENDENCIES:
            raise ValueError(f"more than {MOST_DEPENDENCIES:,} dependencies; wait for an array or a last job")
    return tuple(found)


def jobs_named(dependency: str) -> set[str]:
    """The jobs and arrays that a dependency names."""
    return {one.job for one in parse_dependency(dependency) if one.job}


def dependency_text(dependencies: Iterable[Dependency]) -> str:
    """As it would be written."""
    parts: list[str] = []
    either = kind = ""
    for one in dependencies:
        job = f":{one.job}" + (f"+{one.delay // MINUTE}" if one.delay else "")
        if one.kind == kind and one.job:
            parts[-1] += job
        else:
            parts.append(one.kind + (job if one.job else ""))
        either, kind = "?" if one.either else ",", one.kind
    return either.join(parts)


def _one(kind: str, text: str, either: bool) -> Dependency:
    job, plus, minutes = text.partition("+")
    if _ONE_ID.fullmatch(job) is None:
        raise ValueError(f"{_short(job)} in {kind} is no job id; write {kind}:k3v9q2 or {kind}:k3v9q2_7")
    if not plus:
        return Dependency(kind, job, either=either)
    if kind != "after" or re.fullmatch("[0-9]{1,6}", minutes) is None:
        raise ValueError(f"{_short(text)} in {kind}: only after:ID+MINUTES takes a delay")
    return Dependency(kind, job, int(minutes) * MINUTE, either)


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "...")
