"""One run of one policy over one trace, and what is measured of it."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from dovetail.core.core import Core, Step
from dovetail.model.action import Answer, Resize, Start
from dovetail.model.cluster import Cluster
from dovetail.model.event import CANCELLED, FAILED, FINISHED, STOPPED, SUBMITTED
from dovetail.model.grant import Spots, load_of
from dovetail.model.job import Job
from dovetail.model.speed import Speed
from dovetail.model.units import WHOLE
from dovetail.model.view import Policy
from dovetail.sim.simulate import simulate
from dovetail.sim.world import Incident, World

NEVER = -1


@dataclass(frozen=True, slots=True)
class Stretch:
    """A job held these spots from one time to another."""

    job: str
    start: int
    end: int
    spots: Spots


@dataclass(slots=True)
class Outcomes:
    """What became of each job, in columns; times in microseconds, NEVER where there is none."""

    id: list[str] = field(default_factory=list)
    submit: array[int] = field(default_factory=lambda: array("q"))
    start: array[int] = field(default_factory=lambda: array("q"))  # the first
    finish: array[int] = field(default_factory=lambda: array("q"))
    gpus: array[int] = field(default_factory=lambda: array("q"))
    work: array[int] = field(default_factory=lambda: array("q"))
    executed: array[int] = field(default_factory=lambda: array("q"))  # time it held devices
    stops: array[int] = field(default_factory=lambda: array("q"))  # preemptions and moves
    deadline: array[int] = field(default_factory=lambda: array("q"))
    tenant: list[str] = field(default_factory=list)
    end: dict[str, str] = field(
        default_factory=dict
    )  # how it ended, if not well: failed | cancelled | refused


@dataclass(slots=True)
class Run:
    """The result of a simulation."""

    policy: str
    cluster: Cluster
    jobs: Outcomes
    decisions: int
    steps: int
    until: int  # the last instant
    busy: int  # milli-GPU-microseconds held
    lost: int  # of these, without lasting work
    cpu_seconds: float
    stalled: list[str]  # held devices to the end and made no progress
    waiting: list[str]  # never ended for another reason: the queue when the events ran out
    series: list[tuple[int, int, int]]  # (time, milli-GPUs held, jobs waiting), if asked for
    stretches: list[Stretch]  # who held what and when, if asked for
    options: Mapping[str, object] = field(default_factory=dict)
    seed: int = 0

    @property
    def finished(self) -> int:
        return sum(1 for finish in self.jobs.finish if finish != NEVER)

    @property
    def makespan(self) -> int:
        """From the first arrival to the last finish."""
        return max(self.jobs.finish, default=0) - min(self.jobs.submit, default=0) if self.finished else 0

    @property
    def utilization(self) -> float:
        """Device time held over device time there was, from the first arrival to the last event."""
        span = self.until - min(self.jobs.submit, default=0)
        return self.busy / (span * self.cluster.gpus * WHOLE) if span and self.cluster.gpus else 0.0

    @property
    def preemptions(self) -> int:
        return sum(self.jobs.stops)

    def jct(self, pattern: str = "*") -> list[float]:
        """Completion times in seconds of the finished jobs whose id matches."""
        jobs = self.jobs
        return [
            (finish - submit) / 1e6
            for name, submit, finish in zip(jobs.id, jobs.submit, jobs.finish, strict=True)
            if finish != NEVER and (pattern == "*" or fnmatchcase(name, pattern))
        ]

    def wait(self, pattern: str = "*") -> list[float]:
        """Seconds from arrival to first start of those that started."""
        jobs = self.jobs
        return [
            (start - submit) / 1e6
            for name, submit, start in zip(jobs.id, jobs.submit, jobs.start, strict=True)
            if start != NEVER and (pattern == "*" or fnmatchcase(name, pattern))
        ]

    def start(self, job: str) -> float:
        """When a job first started, in seconds; infinity if never."""
        at = self.jobs.start[self.jobs.id.index(job)]
        return at / 1e6 if at != NEVER else float("inf")

    def finish(self, job: str) -> float:
        """When a job finished, in seconds; infinity if never."""
        at = self.jobs.finish[self.jobs.id.index(job)]
        return at / 1e6 if at != NEVER else float("inf")


class Recorder:
    """Watches the steps of a run and keeps what is needed to judge it."""

    __slots__ = (
        "_held",
        "_keep_series",
        "_keep_stretches",
        "_level",
        "_row",
        "busy",
        "jobs",
        "last",
        "series",
        "stretches",
    )

    def __init__(self, *, series: bool = False, stretches: bool = False) -> None:
        self.jobs = Outcomes()
        self.busy = 0
        self.last = 0
        self.series: list[tuple[int, int, int]] = []
        self.stretches: list[Stretch] = []
        self._keep_series = series
        self._keep_stretches = stretches
        self._level = 0
        self._row: dict[str, int] = {}
        self._held: dict[str, tuple[int, int, Spots]] = {}  # since, load, spots

    def watch(self, step: Step, waiting: int) -> None:
        jobs, row = self.jobs, self._row
        for time_, kind, subject, _, fact in step.events:
            if kind == SUBMITTED:
                row[subject] = len(jobs.id)
                jobs.id.append(subject)
                jobs.submit.append(fact.arrived_at)
                jobs.start.append(NEVER)
                jobs.finish.append(NEVER)
                jobs.gpus.append(fact.shape.gpus)
                jobs.work.append(fact.work)
                jobs.executed.append(0)
                jobs.stops.append(0)
                jobs.deadline.append(NEVER if fact.deadline is None else fact.deadline)
                jobs.tenant.append(fact.tenant)
            elif kind == FINISHED:
                jobs.finish[row[subject]] = time_
                self.release(time_, subject)
                self.last = time_
            elif kind == STOPPED:
                if subject in self._held:
                    jobs.stops[row[subject]] += 1
                    self.release(time_, subject)
            elif kind in (FAILED, CANCELLED):
                jobs.end[subject] = "failed" if kind == FAILED else "cancelled"
                self.release(time_, subject)
        for action in step.actions:
            if type(action) is Start:
                at = row[action.job]
                if jobs.start[at] == NEVER:
                    jobs.start[at] = step.now
                self._hold(step.now, action.job, action.spots)
            elif type(action) is Resize:
                self.release(step.now, action.job)
                self._hold(step.now, action.job, action.spots)
            elif type(action) is Answer and action.answer == "refused":
                jobs.end[action.job] = "refused"
        if self._keep_series:
            self.series.append((step.now, self._level, waiting))

    def holders(self) -> Iterable[str]:
        """Jobs that hold something now."""
        return self._held

    def _hold(self, now: int, job: str, spots: Spots) -> None:
        load = spots[0][1].bit_count() * WHOLE if len(spots) == 1 and spots[0][2] == WHOLE else load_of(spots)
        self._held[job] = (now, load, spots)
        self._level += load

    def release(self, now: int, job: str) -> None:
        held = self._held.pop(job, None)
        if held is None:
            return
        since, load, spots = held
        self.busy += load * (now - since)
        self._level -= load
        self.jobs.executed[self._row[job]] += now - since
        if self._keep_stretches:
            self.stretches.append(Stretch(job, since, now, spots))


def run(
    jobs: Sequence[Job],
    cluster: Cluster,
    policy: Policy,
    *,
    name: str = "",
    seed: int = 0,
    until: int | None = None,
    speed: Speed | None = None,
    incidents: Iterable[Incident] = (),
    on_step: Callable[[Core, Step], None] | None = None,
    series: bool = False,
    stretches: bool = False,
    options: Mapping[str, object] | None = None,
) -> Run:
    """Simulate a trace under a policy. `jobs` are in order of arrival."""
    began = time.process_time()
    core = Core(cluster, policy, seed)
    world = World(cluster, speed=speed, incidents=incidents)
    recorder = Recorder(series=series, stretches=stretches)
    watch, queue = recorder.watch, core.queue
    decisions = steps = 0
    now = 0
    for step in simulate(core, world, jobs, until):
        steps += 1
        decisions += step.decided
        now = step.now
        watch(step, len(queue))
        if on_step is not None:
            on_step(core, step)
    holding = sorted(recorder.holders())
    for job in holding:
        recorder.release(now, job)
    done = set(recorder.jobs.end)
    return Run(
        policy=name,
        cluster=cluster,
        jobs=recorder.jobs,
        decisions=decisions,
        steps=steps,
        until=now,
        busy=recorder.busy,
        lost=world.lost // WHOLE,
        cpu_seconds=time.process_time() - began,
        stalled=[] if until is not None else holding,
        waiting=sorted(job for job in core.jobs if job not in done and job not in core.running),
        series=recorder.series,
        stretches=recorder.stretches,
        options=options or {},
        seed=seed,
    )
