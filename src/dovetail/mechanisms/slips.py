"""FIFO over types as Gavel's simulator deals it, slips included.

The baseline of its paper is a FIFO that is blind to types. In the program that made the published figures it
is not quite that, and to compare with them one needs what was run:

- a job keeps the type that it was once given;
- a type is drawn for each newcomer among those with room, but what it is given is the last type in the list
  that has any room, even if that is too little;
- and the type that is taken off the list when one is full is the one drawn;
- the place of a job that has ended goes to the first in line if it fits what has not been counted yet, so a
  type may be given out twice.

Whoever was given too much of a type takes turns on it, while others stand idle.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from dovetail.model.chance import Random, seeded


class Waiting(NamedTuple):
    """A job as this deal sees it."""

    id: str
    size: int  # milli-GPUs
    kinds: frozenset[str]  # on which it can run


class Given(NamedTuple):
    """Who was given which type, in the order it was done, and where chance stands."""

    kinds: tuple[tuple[int, str, str], ...] = ()  # (seq, job, type)
    state: Any = None


def dealt(last: Given, jobs: Mapping[int, Waiting], capacity: Mapping[str, int], seed: int) -> Given:
    """Types for all that find one; `jobs` are all active ones by their seq."""
    source = seeded(seed)
    if last.state is not None:
        source.setstate(last.state)
    given = {seq: (id, kind) for seq, id, kind in last.kinds}
    free = dict(capacity)
    line = [seq for seq in sorted(jobs) if seq not in given]
    for seq in sorted(given):
        kind = given[seq][1]
        if seq in jobs:
            free[kind] -= jobs[seq].size
            continue
        if line and jobs[line[0]].size <= free[kind] and kind in jobs[line[0]].kinds:
            heir = line.pop(0)
            given[heir] = (jobs[heir].id, kind)
            free[kind] -= jobs[heir].size
        del given[seq]
    _newcomers(given, [jobs[seq] for seq in line], line, free, source)
    return Given(tuple((seq, id, kind) for seq, (id, kind) in given.items()), source.getstate())


def _newcomers(
    given: dict[int, tuple[str, str]],
    waiting: Sequence[Waiting],
    line: Sequence[int],
    free: dict[str, int],
    source: Random,
) -> None:
    left = sorted(kind for kind in free if free[kind] > 0)
    for seq, job in zip(line, waiting, strict=True):
        fits = [at for at, kind in enumerate(left) if free[kind] >= job.size]
        if not fits:
            return
        at, kind = fits[source.randrange(len(fits))], left[-1]
        if kind in job.kinds:
            given[seq] = (job.id, kind)
            free[kind] -= job.size
            if free[kind] == 0:
                left.pop(at)
