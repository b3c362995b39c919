"""How long a job will run if its user does not say: as long as earlier runs of the same kind, or an hour.

Runs are of one kind if name, user, tenant and size agree. The median of the last completed runs counts, so
one odd run changes little; failed and cancelled runs say nothing about the next. Jobs without a name of their
own are of no kind.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from enum import StrEnum
from statistics import median_low
from typing import NamedTuple

from dovetail.control.records import Record
from dovetail.control.request import DEFAULT_ESTIMATE, DEFAULT_NAME, JobRequest
from dovetail.model.job import Job
from dovetail.model.units import spoken

MOST_RUNS = 9  # that are remembered of a kind
MOST_KINDS = 10_000
MOST_READ = 20_000  # runs that are read from the store when a plane starts


class Source(StrEnum):
    """What an estimate rests on."""

    GIVEN = "given"
    LIMIT = "limit"  # the time limit
    HISTORY = "history"
    ASSUMED = "assumed"


class RunKind(NamedTuple):
    """Runs that are expected to take as long as each other."""

    tenant: str
    user: str
    name: str
    load: int
    tasks: int


class RunTimes:
    """The last completed runs of each kind. Other threads may read it."""

    def __init__(self) -> None:
        self._runs: dict[RunKind, tuple[int, ...]] = {}  # the kind that was seen last is the last

    def add(self, kind: RunKind, took: int) -> None:
        if kind.name == DEFAULT_NAME or took <= 0:
            return
        known = self._runs.pop(kind, ())
        self._runs[kind] = (*known, took)[-MOST_RUNS:]
        if len(self._runs) > MOST_KINDS:
            del self._runs[next(iter(self._runs))]

    def read(self, runs: Iterable[tuple[RunKind, int]]) -> None:
        """Runs from the store, the oldest first."""
        for kind, took in runs:
            self.add(kind, took)

    def expected(self, kind: RunKind) -> int | None:
        """The median; None if no run of this kind is known."""
        runs = self._runs.get(kind)
        return median_low(runs) if runs else None


def kind_of(record: Record) -> RunKind:
    return RunKind(record.tenant, record.user, record.name, record.load, record.nodes)


def with_estimate(job: Job, request: JobRequest, runs: RunTimes) -> Job:
    """The job with the estimate that policies and forecasts see."""
    if request.says_how_long:
        return job
    kind = RunKind(job.tenant, job.user, request.name, job.shape.load, request.node_count)
    estimate = runs.expected(kind) or DEFAULT_ESTIMATE
    return replace(job, work=estimate, estimate=estimate)


def source_of(request: JobRequest, estimate: int) -> Source:
    """What the estimate of a job rests on."""
    if request.says_how_long:
        return Source.GIVEN if request.expected and request.estimate == request.expected else Source.LIMIT
    return Source.ASSUMED if estimate == DEFAULT_ESTIMATE else Source.HISTORY


def told(source: Source, estimate: int) -> str:
    """The estimate and its source, in words; "" if the user gave an estimate or a time limit."""
    if source is Source.ASSUMED:
        return f"no estimate given: assumed {spoken(estimate)}"
    if source is Source.HISTORY:
        return f"no estimate given: assumed {spoken(estimate)}, as it ran before"
    return ""
