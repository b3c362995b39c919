"""The core's whole state as one value, written and read in this module alone.

A fork is a core rebuilt from the record of another. A snapshot is a record as JSON (`core.snapshot`). A
switch of the policy or the cluster reads a record too. So the fields of the state are listed once: here for
the core, in `core.active` for a job.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dovetail.core.active import GROWING, RUNNING, WAITING, ActiveJob
from dovetail.model.action import Action
from dovetail.model.grant import Spots, load_of
from dovetail.model.job import Job
from dovetail.model.view import Reservation

if TYPE_CHECKING:
    from dovetail.core.core import Core


@dataclass(slots=True)
class JobRecord:
    """One active job."""

    spec: Job
    seq: int
    state: dict[str, Any]  # the fields `active.DRAFTED` and `active.KEPT`, by name
    awaiting: frozenset[str] | None = None
    timer: int | None = None


def stop_growing(kept: JobRecord) -> None:
    """Let a job that is about to grow go on with what it runs on: another core need not wait with it."""
    if kept.state["phase"] is GROWING:
        runs_on = kept.state["runs_on"]
        kept.state |= {"phase": RUNNING, "spots": runs_on, "held": load_of(runs_on), "runs_on": None}
        kept.awaiting = None


def job_record(spec: Job, seq: int, **state: Any) -> JobRecord:
    """A job that has just been submitted, but for what is said otherwise."""
    return JobRecord(spec, seq, ActiveJob(spec, seq, 0).kept() | state)


@dataclass(slots=True)
class Promises:
    """What the policy was last told and promised (`core.attention`)."""

    arrived: list[str] = field(default_factory=list)
    changed: bool = True
    rests: bool | str = False  # or the id of the job it rests on
    starts_arrivals: int = 0
    review_at: int | None = None
    round_due: int | None = None
    clocked: bool = False
    alarm: int | None = None


@dataclass(slots=True)
class Record:
    """All that a core needs to go on from here, besides its cluster and its policy."""

    nodes: list[str] = field(default_factory=list)  # their names: what a number means
    now: int = 0
    number: int = 0
    decisions: int = 0
    seq: int = 0
    starts: int = 0
    memory: Any = None
    jobs: list[JobRecord] = field(default_factory=list)
    running: list[str] = field(default_factory=list)  # in the order in which they got their devices
    stopping: dict[str, Spots] = field(default_factory=dict)
    heirs: dict[str, list[str]] = field(default_factory=dict)
    calendar: dict[str, Reservation] = field(default_factory=dict)
    holds: dict[str, tuple[Spots, int]] = field(default_factory=dict)
    prices: dict[int, float] = field(default_factory=dict)
    closed: dict[int, str] = field(default_factory=dict)
    unreported: list[Action] = field(default_factory=list)
    promises: Promises = field(default_factory=Promises)


def recorded(core: Core) -> Record:
    """What a core knows, taken between two steps."""
    attention = core.attention
    rests = attention.rests
    return Record(
        nodes=[node.name for node in core.cluster.nodes],
        now=core.now,
        number=core.number,
        decisions=core.decisions,
        seq=core.seq,
        starts=core.starts,
        memory=core.memory,
        jobs=[
            JobRecord(
                job.spec,
                job.seq,
                job.kept(),
                None if job.awaiting is None else frozenset(job.awaiting),
                None if job.timer is None else job.timer[0],
            )
            for job in core.jobs.values()
        ],
        running=list(core.running),
        stopping=dict(core.stopping.held),
        heirs=core.stopping.heirs_by_id(),
        calendar=dict(core.calendar),
        holds=dict(core.holds),
        prices=dict(core.prices),
        closed=dict(core.closed),
        unreported=list(core.unreported),
        promises=Promises(
            arrived=[job.id for job in core.arrived],
            changed=core.changed,
            rests=rests if isinstance(rests, bool) else rests.id,
            starts_arrivals=attention.starts_arrivals,
            review_at=attention.review_at,
            round_due=attention.round_due,
            clocked=attention.clocked,
            alarm=core.alarm,
        ),
    )


def rebuilt(core: Core, record: Record) -> Core:
    """Fill a new core so that it goes on where the record was taken."""
    core.now, core.number, core.decisions = record.now, record.number, record.decisions
    core.seq, core.memory = record.seq, record.memory
    core.calendar, core.holds = dict(record.calendar), dict(record.holds)
    core.prices.update(record.prices)
    core.closed = dict(record.closed)
    for spots, _ in core.holds.values():
        core.room.take(spots)
    jobs = {kept.spec.id: job_of(core, kept) for kept in record.jobs}
    core.jobs = jobs
    for job_id in record.running:
        hold(core, jobs[job_id])
    for kept in record.jobs:
        job = jobs[kept.spec.id]
        if job.phase is WAITING:
            core.queue.push(job, core.now)
        if kept.timer is not None:
            core.timers.set(job, kept.timer)
    core.stopping.load(record.stopping, record.heirs, jobs)
    for node in core.closed:
        core.room.close(node)
    core.starts = record.starts
    core.unreported = list(record.unreported)
    promises, attention = record.promises, core.attention
    core.arrived = [jobs[job_id] for job_id in promises.arrived if job_id in jobs]
    core.changed, attention.starts_arrivals = promises.changed, promises.starts_arrivals
    rests = promises.rests
    attention.rests = rests if isinstance(rests, bool) else jobs.get(rests, False)
    attention.review_at, attention.round_due = promises.review_at, promises.round_due
    attention.clocked, core.alarm = promises.clocked, promises.alarm
    return core


def hold(core: Core, job: ActiveJob) -> None:
    """Put a job back on its devices, at its place among the running jobs."""
    assert job.spots is not None
    core.room.take(job.spots, back=True)
    core.enter_again(job)


def job_of(core: Core, kept: JobRecord) -> ActiveJob:
    """A job as its record says, filed nowhere."""
    job = ActiveJob(kept.spec, kept.seq, core.room.need(kept.spec.shape))
    job.keep(kept.state)
    job.awaiting = None if kept.awaiting is None else set(kept.awaiting)
    return job


def take_apart(core: Core) -> None:
    """Free the jobs of a copy that is no longer used.

    Its parts refer to each other: left alone they stay until the next full garbage collection, and a copy a
    second makes these frequent. They stop every thread, for 0.3 s in a plane with 10,000 jobs.
    """
    for job in core.jobs.values():
        job.filed = job.timer = job.exit = None
    for part in ("jobs", "running", "queue", "departures", "timers", "arrived", "attention"):
        delattr(core, part)
