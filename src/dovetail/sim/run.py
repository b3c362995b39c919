"""One run of one policy over one trace, and what is measured of it."""

from __future__ import annotations

import gc
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from dovetail.core.core import Core, Step
from dovetail.core.fitting import all_fitting
from dovetail.model.action import Resize, Start
from dovetail.model.cluster import Cluster
from dovetail.model.estimate import DECLARED, Estimator
from dovetail.model.estimate_errors import EstimateErrors
from dovetail.model.event import FAILED, FINISHED, STOPPED
from dovetail.model.grant import Spots, load_of
from dovetail.model.job import Job
from dovetail.model.units import WHOLE
from dovetail.model.view import Policy
from dovetail.sim.outcomes import NEVER, Outcomes
from dovetail.sim.simulate import simulate
from dovetail.sim.true_speed import Speed
from dovetail.sim.world import Incident, World


@dataclass(frozen=True, slots=True)
class Stretch:
    """A job held these spots from one time to another."""

    job: str
    start: int
    end: int
    spots: Spots


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
    lost: int  # milli-GPU-microseconds of these without lasting work
    cpu_seconds: float
    stalled: list[str]  # jobs that held devices to the end without progress
    stalled_load: int  # milli-GPUs that these hold
    waiting: list[str]  # jobs that were still in the queue when the events ran out
    series: list[tuple[int, int, int]]  # (time, milli-GPUs held, jobs waiting), if asked for
    stretches: list[Stretch]  # which job held which spots and when, if asked for
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
        """Device time held over all device time, from the first arrival to the last event."""
        span = self.until - min(self.jobs.submit, default=0)
        return self.busy / (span * self.cluster.gpus * WHOLE) if span and self.cluster.gpus else 0.0

    @property
    def preemptions(self) -> int:
        return sum(self.jobs.stops)

    def jct(self, pattern: str = "*") -> list[float]:
        """Completion times (JCT) in seconds, of the finished jobs with a matching id."""
        jobs = self.jobs
        return [
            (finish - submit) / 1e6
            for name, submit, finish in zip(jobs.id, jobs.submit, jobs.finish, strict=True)
            if finish != NEVER and (pattern == "*" or fnmatchcase(name, pattern))
        ]

    def wait(self, pattern: str = "*") -> list[float]:
        """Waiting times in seconds, of the jobs with a matching id: eligible and not running, up to the end.

        Time after a preemption counts. A job that has not ended has waited up to the last instant of the run.
        """
        jobs = self.jobs
        return [
            wait / 1e6
            for name, wait in zip(jobs.id, jobs.wait(self.until).tolist(), strict=True)
            if pattern == "*" or fnmatchcase(name, pattern)
        ]

    def first_start(self, pattern: str = "*") -> list[float]:
        """Seconds from arrival to first start, of the jobs that started and have a matching id."""
        jobs = self.jobs
        return [
            wait / 1e6
            for name, wait in zip(jobs.id, jobs.first_start.tolist(), strict=True)
            if wait != NEVER and (pattern == "*" or fnmatchcase(name, pattern))
        ]

    def start(self, job: str) -> float:
        """When a job first started, in seconds; infinity if never."""
        at = self.jobs.start[list(self.jobs.id).index(job)]
        return at / 1e6 if at != NEVER else float("inf")

    def finish(self, job: str) -> float:
        """When a job finished, in seconds; infinity if never."""
        at = self.jobs.finish[list(self.jobs.id).index(job)]
        return at / 1e6 if at != NEVER else float("inf")


class Trail:
    """Which job held which spots and when, and the GPUs in use over time: for charts."""

    __slots__ = ("_held", "_level", "series", "stretches")

    def __init__(self) -> None:
        self.series: list[tuple[int, int, int]] = []
        self.stretches: list[Stretch] = []
        self._level = 0
        self._held: dict[str, tuple[int, int, Spots]] = {}  # since, load, spots

    def watch(self, step: Step, waiting: int) -> None:
        for time_, kind, subject, _, _ in step.events:
            if kind in (FINISHED, STOPPED, FAILED):
                self._release(time_, subject)
        for action in step.actions:
            if isinstance(action, Start | Resize):
                self._release(step.now, action.job)
                load = load_of(action.spots)
                self._held[action.job] = (step.now, load, action.spots)
                self._level += load
        self.series.append((step.now, self._level, waiting))

    def close(self, now: int) -> None:
        for job in list(self._held):
            self._release(now, job)

    def _release(self, now: int, job: str) -> None:
        held = self._held.pop(job, None)
        if held is not None:
            since, load, spots = held
            self._level -= load
            self.stretches.append(Stretch(job, since, now, spots))


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the garbage collector: a run makes no cycles, and the search for some takes a quarter of it."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def run(
    jobs: Sequence[Job],
    cluster: Cluster,
    policy: Policy,
    *,
    name: str = "",
    seed: int = 0,
    until: int | None = None,
    speed: Speed | None = None,
    estimator: Estimator = DECLARED,
    errors: EstimateErrors | None = None,
    incidents: Iterable[Incident] = (),
    on_step: Callable[[Core, Step], None] | None = None,
    trace: bool = False,
    options: Mapping[str, object] | None = None,
) -> Run:
    """Simulate a trace under a policy. `jobs` are in order of arrival; `trace` records what charts need.

    Jobs run at the true `speed`; the policy sees the estimates of the `estimator`, with these `errors`. An
    elastic job that asks for more than the cluster has asks for as much as fits (`core.fitting`).
    """
    began = time.process_time()
    if errors is not None:
        jobs, estimator = errors.told(jobs), errors.estimator(estimator)
    core = Core(cluster, policy, seed, estimator)
    world = World(cluster, speed=speed, incidents=incidents)
    trail = Trail() if trace else None
    queue = core.queue
    watched = trail is not None or on_step is not None
    with collector_paused():
        steps = simulate(core, world, all_fitting(cluster, jobs), until, every_step=watched)
        if not watched:
            deque(steps, maxlen=0)  # to the end
        for step in steps:
            if trail is not None:
                trail.watch(step, len(queue))
            if on_step is not None:
                on_step(core, step)
    now = core.now
    holding = world.settle(now)
    if trail is not None:
        trail.close(now)
    return Run(
        policy=name,
        cluster=cluster,
        jobs=world.outcomes,
        decisions=core.decisions,
        steps=core.number,
        until=now,
        busy=world.busy,
        lost=world.lost,
        cpu_seconds=time.process_time() - began,
        stalled=[] if until is not None else sorted(holding),
        stalled_load=sum(core.running[job].held for job in holding if job in core.running),
        waiting=sorted(job for job in core.jobs if job not in core.running),
        series=trail.series if trail else [],
        stretches=trail.stretches if trail else [],
        options=options or {},
        seed=seed,
    )
