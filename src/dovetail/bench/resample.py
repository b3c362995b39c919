"""The traces of a comparison, one for each seed.

The replay of a given trace is deterministic, so a seed has to change the trace. Seed 0 is the trace itself.
Every other seed is a *block bootstrap* of it (Künsch 1989): the trace is cut into days from its first
arrival, and as many days are drawn with replacement and joined. Jobs keep their time of day and their
neighbours, so bursts, arrays and the daily pattern survive. In a trace of three weeks or more each day is
drawn among those of the same weekday. A trace shorter than two weeks is cut into fourteen equal parts instead
of days. Jobs that all arrive at once are drawn one by one.

A generated trace is generated again with the seed.

All policies see the same trace for the same seed, so their differences are paired.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from random import Random
from typing import Protocol

from dovetail.model.job import Job
from dovetail.model.units import DAY
from dovetail.traces import Trace, generate

FORTNIGHT = 14
WEEKS_TO_KEEP_WEEKDAYS = 3


class Source(Protocol):
    """A trace for each seed."""

    @property
    def name(self) -> str: ...
    @property
    def varies(self) -> str: ...  # what a seed changes, as a sentence
    def jobs(self, seed: int) -> list[Job]: ...


@dataclass(frozen=True, slots=True)
class Given:
    """One trace, and bootstrap samples of its days."""

    trace: Trace

    @property
    def name(self) -> str:
        return self.trace.name

    @property
    def varies(self) -> str:
        jobs = self.trace.jobs
        days = jobs and jobs[-1].arrived_at - jobs[0].arrived_at >= FORTNIGHT * DAY
        parts = "days" if days else "parts (fourteen of equal length)"
        return f"seed 0 is the trace itself, the others resample its {parts} with replacement"

    def jobs(self, seed: int) -> list[Job]:
        return resampled(self.trace.jobs, seed)


@dataclass(frozen=True, slots=True)
class Generated:
    """A generated trace, generated again for each seed."""

    like: str
    count: int
    gpus: int
    load: float

    @property
    def name(self) -> str:
        return f"{self.like}-like"

    @property
    def varies(self) -> str:
        return "the trace is generated again for each seed"

    def jobs(self, seed: int) -> list[Job]:
        return _generated(self.like, self.count, self.gpus, self.load, seed).jobs

    def notes(self, seed: int) -> tuple[str, ...]:
        """What was changed so that the load is reached, or that it is not."""
        return _generated(self.like, self.count, self.gpus, self.load, seed).notes[1:]


@lru_cache(maxsize=1)  # the notes are told before the jobs run
def _generated(like: str, count: int, gpus: int, load: float, seed: int) -> Trace:
    return generate(like, count, gpus, load, seed)


def resampled(jobs: list[Job], seed: int) -> list[Job]:
    """A bootstrap sample of the days of a trace; seed 0 is the trace itself."""
    if seed == 0 or not jobs:
        return jobs
    first = jobs[0].arrived_at
    span = jobs[-1].arrived_at - first
    rng = Random(seed)
    if span == 0:
        return [_moved(rng.choice(jobs), 0, place) for place in range(len(jobs))]
    length = DAY if span >= FORTNIGHT * DAY else span // FORTNIGHT + 1
    blocks: list[list[Job]] = [[] for _ in range(span // length + 1)]
    for job in jobs:
        blocks[(job.arrived_at - first) // length].append(job)
    made: list[Job] = []
    while not made:  # a sparse trace may draw only empty days
        for place, pick in enumerate(_picks(rng, len(blocks), weekly=length == DAY)):
            made += [_moved(job, (place - pick) * length, place) for job in blocks[pick]]
    return made


def _picks(rng: Random, count: int, *, weekly: bool) -> Sequence[int]:
    if weekly and count >= 7 * WEEKS_TO_KEEP_WEEKDAYS:
        return [rng.choice(range(place % 7, count, 7)) for place in range(count)]
    return [rng.randrange(count) for _ in range(count)]


def _moved(job: Job, by: int, place: int) -> Job:
    deadline = None if job.deadline is None else job.deadline + by
    return replace(job, id=f"{job.id}+{place}", arrived_at=job.arrived_at + by, deadline=deadline)
