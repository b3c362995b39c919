"""Gavel's FIFO baseline as the authors' simulator runs it, quirks included.

The paper's baseline is a FIFO that is blind to GPU types. The program that made the published figures differs
from that, and a comparison with these figures needs what was run:

- a job keeps the type that it was once given;
- a type is drawn for each new job among the types with room, but the job is given the last type in the list
  that has any room, even if that is too little;
- when a type is full, the type that was drawn is taken off the list, not the one that is full;
- the place of a job that has ended goes to the first waiting job if that fits what has not been counted yet,
  so a type may be given out twice.

Jobs that were given too much of a type alternate on it, while other types are idle.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from dovetail.mechanisms.place.gpu_types import load_by_type
from dovetail.model.chance import Random, seeded
from dovetail.model.view import View
from dovetail.policies.gavel.speed_table import SpeedTable


class Candidate(NamedTuple):
    """An active job as this baseline sees it."""

    id: str
    size: int  # milli-GPUs
    kinds: frozenset[str]  # GPU types on which it can run


class GivenTypes(NamedTuple):
    """The type that each job was given, in that order, and the state of the random numbers."""

    kinds: tuple[tuple[int, str, str], ...] = ()  # (seq, job, type)
    state: Any = None


def given_types(view: View, last: GivenTypes, table: SpeedTable) -> GivenTypes:
    """Types for all active jobs that find one."""
    candidates = {
        job.seq: Candidate(
            job.id, job.shape.load, frozenset(w for w, v in zip(table.ways, row, strict=True) if v > 0)
        )
        for job, row in zip(table.jobs, table.speed, strict=True)
    }
    return _given(last, candidates, load_by_type(view.cluster, view.room), view.seed)


def _given(
    last: GivenTypes, jobs: Mapping[int, Candidate], capacity: Mapping[str, int], seed: int
) -> GivenTypes:
    """`jobs` are all active jobs by tsuccessor seq."""
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
            successor = line.pop(0)
            given[successor] = (jobs[successor].id, kind)
            free[kind] -= jobs[successor].size
        del given[seq]
    _give_new_jobs(given, [jobs[seq] for seq in line], line, free, source)
    return GivenTypes(tuple((seq, id, kind) for seq, (id, kind) in given.items()), source.getstate())


def _give_new_jobs(
    given: dict[int, tuple[str, str]],
    waiting: Sequence[Candidate],
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
