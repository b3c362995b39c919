"""Fidelity of the simulator: the same jobs on a real plane with virtual GPUs, and simulated.

Both runs have the same requests, arrival times and policy. Live, each job is a process under a supervisor. It
sleeps for as long as its work takes, saves its progress when it is stopped, and continues from there when it
is started again; time runs `scale` times as fast. The simulator leaves out the time to start and to stop a
process, to record a decision, and to notice that a job has ended: that is what differs.

A second of delay is `scale` seconds of the plane's time, so at a scale of 60 the plane looks 60 times as slow
as it is.
"""

from __future__ import annotations

import math
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from dovetail.control import commands, submission, tables
from dovetail.control.plane import Change, Plane
from dovetail.control.request import JobRequest, parse_request, to_job
from dovetail.control.serve import Wanted, plane_up
from dovetail.control.states import State
from dovetail.control.tokens import Caller
from dovetail.engines import emulated_job
from dovetail.model.cluster import parse_cluster
from dovetail.model.errors import DovetailError, InputError
from dovetail.model.job import Job
from dovetail.model.units import SECOND, WHOLE
from dovetail.policies.registry import made_policy
from dovetail.sim.outcomes import NEVER
from dovetail.sim.run import Run, run

DEFAULT_CLUSTER, DEFAULT_SCALE = "5x4:A100", 60.0
DEFAULT_TENANT = "default"
# Arrival of the first job. Traces and rounds begin at whole minutes: a job that arrives at a round takes
# part in it when simulated, and live always comes a little too late for it.
FIRST = 45 * SECOND
GRACE = 60.0  # seconds of the wall clock to save in, so that a busy machine does not kill a job
LEAD = 1.0  # real seconds before the first arrival
PATIENCE = 120.0  # real seconds beyond twice what the simulator says
MEAN_WITHIN, JOB_WITHIN = 0.03, 0.10  # limits of a faithful run

Progress = Callable[[int, int], None]


class Unplayed(DovetailError):
    """One of the two runs did not come to its end."""


class Cancelled(Unplayed):
    """The comparison was cancelled."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A job of both runs."""

    job: Job  # as the core sees it, with its true work
    request: JobRequest
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Pair:
    """The results of one job in both runs; times in seconds."""

    id: str
    gpus: int
    submitted: float
    live: float  # from arrival to end
    simulated: float
    live_stops: int
    simulated_stops: int

    @property
    def difference(self) -> float:
        """Relative difference of the JCT; positive: slower live."""
        return self.live / self.simulated - 1.0


@dataclass(frozen=True, slots=True)
class Fidelity:
    """The differences between a live run and its simulation."""

    label: str
    scale: float
    pairs: tuple[Pair, ...]

    @property
    def live(self) -> float:
        """Mean completion time, seconds."""
        return math.fsum(pair.live for pair in self.pairs) / len(self.pairs)

    @property
    def simulated(self) -> float:
        return math.fsum(pair.simulated for pair in self.pairs) / len(self.pairs)

    @property
    def difference(self) -> float:
        return self.live / self.simulated - 1.0

    @property
    def worst(self) -> Pair:
        return max(self.pairs, key=lambda pair: abs(pair.difference))

    def beyond(self, mean: float = MEAN_WITHIN, job: float = JOB_WITHIN) -> list[str]:
        """The differences that exceed the limits, as sentences."""
        found = []
        if not abs(self.difference) <= mean:
            found.append(f"{self.label}: the mean differs by {self.difference:+.1%}, more than {mean:.0%}")
        found += [
            f"{self.label}: job {pair.id} took {pair.live:.0f} s live and {pair.simulated:.0f} s simulated "
            f"({pair.difference:+.1%}, more than {job:.0%})"
            for pair in self.pairs
            if not abs(pair.difference) <= job
        ]
        return found


def fidelity(
    jobs: Sequence[Job],
    policy: str,
    options: Mapping[str, Any] | None = None,
    *,
    label: str = "",
    cluster: str = DEFAULT_CLUSTER,
    scale: float = DEFAULT_SCALE,
    progress: Progress | None = None,
    cancelled: threading.Event | None = None,
) -> Fidelity:
    """Run these jobs live and simulated under one policy."""
    entries, _ = entries_of(jobs, cluster, scale)
    made = simulated(entries, cluster, policy, options or {})
    lived = live(
        entries,
        cluster,
        policy,
        options or {},
        scale=scale,
        patience=2 * made.makespan / SECOND / scale + PATIENCE,
        progress=progress,
        cancelled=cancelled,
    )
    return compared(label or policy, scale, made, lived)


def compared(label: str, scale: float, made: Run, lived: Mapping[str, Lived]) -> Fidelity:
    """Job by job, in order of arrival."""
    outcomes = made.jobs
    pairs = [
        Pair(
            job.id,
            job.shape.gpus,
            (job.arrived_at - FIRST) / SECOND,
            lived[job.id].jct,
            (outcomes.finish[row] - job.arrived_at) / SECOND,
            lived[job.id].stops,
            outcomes.stops[row],
        )
        for row, job in enumerate(outcomes.job)
    ]
    return Fidelity(label, scale, tuple(pairs))


# -- the jobs of both runs --------------------------------------------------------------------------


def entries_of(jobs: Sequence[Job], cluster: str, scale: float) -> tuple[list[Entry], list[str]]:
    """The jobs of a trace as requests to a plane, and notes on what had to be left out of them."""
    if not jobs:
        raise InputError("there are no jobs to run; give a trace that has some")
    there, notes = parse_cluster(cluster), []
    first = min(job.arrived_at for job in jobs)
    entries = []
    for job in sorted(jobs, key=lambda job: job.arrived_at):
        shape = job.shape
        if shape.slice or shape.roles or shape.partition:
            raise InputError(
                f"job {job.id!r} asks for slices, helpers or a partition, which virtual GPUs have not; "
                "leave such jobs out"
            )
        arrived = FIRST + job.arrived_at - first
        body = _body(job, scale)
        request = parse_request(body)
        heard = to_job(request, job.id, arrived, job.tenant or DEFAULT_TENANT, job.user, there)
        entries.append(Entry(replace(heard, work=job.work), request, body))
    if any(job.shape.cpus or job.shape.memory for job in jobs):
        notes.append("CPU and memory are left out on both sides: virtual nodes have as much as one asks for")
    if any(job.traits.profile or job.traits.elastic or job.fails_after is not None for job in jobs):
        notes.append("jobs keep their size and speed and do not fail, on both sides")
    return entries, notes


def _body(job: Job, scale: float) -> dict[str, Any]:
    """The request of a job."""
    shape = job.shape
    count: dict[str, Any] = {"gpus": shape.each}
    if shape.types and shape.each:
        count = {"accelerators": dict.fromkeys(shape.types, shape.each)}
    body: dict[str, Any] = {
        "name": job.id,
        "nodes": shape.tasks,
        "resources": count,
        "expected": f"{max(job.estimate, 1)}us",
        "priority": job.priority,
        "preemptible": job.traits.preemptible,
        "checkpoint": {"grace": f"{GRACE * scale:.6f}s"},
        "command": [
            *(sys.executable, "-I", "-S", str(Path(emulated_job.__file__).resolve())),
            *("--work", f"{job.work / SECOND:.6f}", "--scale", repr(scale)),
        ],
    }
    if shape.milli < WHOLE:
        body["gpu_share"] = shape.milli / WHOLE
    if job.deadline is not None:
        body["deadline"] = f"+{max(job.deadline - job.arrived_at, 0) / SECOND:.6f}s"
    if job.model:
        body["model"] = job.model
    return body


# -- the two runs ------------------------------------------------------------------------------------


def simulated(entries: Sequence[Entry], cluster: str, policy: str, options: Mapping[str, Any]) -> Run:
    """The jobs in the simulator, from time 0."""
    jobs = [entry.job for entry in entries]
    made = run(jobs, parse_cluster(cluster), made_policy(policy, options), name=policy, options=options)
    unfinished = [job.id for job, end in zip(made.jobs.job, made.jobs.finish, strict=True) if end == NEVER]
    if unfinished:
        raise Unplayed(
            f"{policy} never finishes {len(unfinished)} of {len(jobs)} jobs in the simulator "
            f"({', '.join(unfinished[:5])}); there is nothing to compare"
        )
    return made


@dataclass(frozen=True, slots=True)
class Lived:
    """The result of a job live."""

    jct: float  # seconds of the plane's time from its planned arrival to its end
    stops: int


def live(
    entries: Sequence[Entry],
    cluster: str,
    policy: str,
    options: Mapping[str, Any],
    *,
    scale: float = DEFAULT_SCALE,
    patience: float = math.inf,
    progress: Progress | None = None,
    cancelled: threading.Event | None = None,
) -> dict[str, Lived]:
    """Run the jobs on a new plane, each submitted at its arrival time."""
    stop = cancelled or threading.Event()
    with ExitStack() as stack:
        folder = stack.enter_context(
            tempfile.TemporaryDirectory(prefix="dovetail-fidelity-", ignore_cleanup_errors=True)
        )
        wanted = Wanted(
            folder=Path(folder), policy=policy, options=options, virtual=cluster, scale=scale, port=0
        )
        up = stack.enter_context(plane_up(wanted))
        watch = _Watch(up.plane, progress or (lambda done, total: None), len(entries))
        stack.callback(watch.close)
        watch.play(entries, policy, stop, patience)
        return watch.read()


class _Watch:
    """Submits the jobs to a plane, and waits for their ends."""

    def __init__(self, plane: Plane, progress: Progress, total: int) -> None:
        self._plane = plane
        self._progress = progress
        self._total = total
        self._moved = threading.Condition()
        self._over: dict[str, str] = {}  # by the plane's id: the state it ended in
        self._names: dict[str, Job] = {}
        self._origin = 0
        self._unsubscribe = plane.subscribe(self._hear)

    def _hear(self, changes: list[Change]) -> None:
        over = {change.id: change.state for change in changes if State(change.state).final}
        if over:
            with self._moved:
                self._over |= over
                self._moved.notify_all()

    def play(self, entries: Sequence[Entry], policy: str, stop: threading.Event, patience: float) -> None:
        """Submit each job at its time and wait for all."""
        clock = self._plane.clock
        quantum = self._plane.ask(lambda state, now: state.ledger.core.policy.quantum) or SECOND
        soon = clock.now() + round(LEAD * clock.scale * SECOND)
        self._origin = origin = soon + -soon % quantum  # rounds begin at the same moments on both sides
        deadline = time.monotonic() + patience
        for entry in entries:
            self._wait(lambda: False, stop, clock.seconds_until(origin + entry.job.arrived_at))
            caller = Caller("fidelity", entry.job.tenant, entry.job.user, "admin")
            submitted = submission.submit(self._plane, caller, entry.request, entry.body)
            self._names[submitted.id] = entry.job
        self._wait(lambda: len(self._over) == self._total, stop, deadline - time.monotonic())
        if len(self._over) < self._total:
            left = [job.id for word, job in self._names.items() if word not in self._over]
            raise Unplayed(
                f"{policy}: {len(left)} of {self._total} jobs did not end within {patience:.0f} s live "
                f"({', '.join(left[:5])}); is the machine busy? a smaller --time-scale asks less of it"
            )

    def _wait(self, done: Callable[[], bool], stop: threading.Event, seconds: float) -> None:
        """Wait until it is done or the time is over, in steps that can be interrupted."""
        until = time.monotonic() + seconds
        with self._moved:
            while not done() and (left := until - time.monotonic()) > 0:
                if stop.is_set():
                    raise Cancelled("the live run was cancelled")
                if not self._plane.leads:
                    raise Unplayed("the plane has stopped; its jobs cannot be compared")
                self._progress(len(self._over), self._total)
                self._moved.wait(min(left, 0.5))
        self._progress(len(self._over), self._total)

    def read(self) -> dict[str, Lived]:
        """The results on record."""
        with self._plane.store.reading() as connection:
            rows = connection.execute(sa.select(tables.jobs)).all()
        found, failed = {}, []
        for row in rows:
            job = self._names[row.id]
            if row.state != State.COMPLETED:
                failed.append(f"{job.id} ({row.state}: {row.reason})")
            else:
                jct = (row.ended_at - self._origin - job.arrived_at) / SECOND
                found[job.id] = Lived(jct, row.restarts)
        if failed:
            raise Unplayed(f"{len(failed)} jobs did not complete live: {', '.join(failed[:5])}")
        return found

    def close(self) -> None:
        """Cancel the jobs that are left."""
        left = [word for word in self._names if word not in self._over]
        if left and self._plane.leads:
            commands.cancel(self._plane, left)
            until = time.monotonic() + GRACE
            with self._moved:
                while len(self._over) < len(self._names) and time.monotonic() < until:
                    self._moved.wait(0.2)
        self._unsubscribe()


# -- an example workload -----------------------------------------------------------------------------


def mixed_workload() -> Path:
    """Five bursts of eleven jobs on 1 to 8 GPUs, 7 to 26 minutes long.

    Each burst asks for more than the 20 GPUs of the default cluster, so that jobs queue and displace each
    other, and is over when the next comes. The bursts were picked so that no decision hangs on a few seconds:
    simulated with random delays of up to 18 s at each start and stop they come out alike. Where decisions are
    near ties, as in most workloads under heavy load, one order is as good as the other, and single jobs may
    end far apart in two runs of which neither is wrong.
    """
    return Path(__file__).with_name("mixed.csv")
