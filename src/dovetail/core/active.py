"""The core's record of an active job: one that was submitted and has not ended.

A job is in one of five phases. `LEGAL` lists the transitions:

    submitted ──► WAITING ──► GRANTED ──► RUNNING ◄──► GROWING, ──► ENDED
                     ▲  └────────┼───────────┘ ▲          │
                     └───────────┴─────────────┴──────────┘

A WAITING job is in the queue. A GRANTED job holds devices of which some are still in use by a job that was
told to stop; it starts when they are released. A RUNNING job was started. A GROWING job was granted more
devices than it runs on, of which some are still in use; it goes on with `runs_on` and is resized when they
are released. There is no phase for stopping: a preempted job is WAITING at once, and `core.stopping` holds
its old devices until the engine has stopped it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any

from dovetail.model.errors import DovetailError
from dovetail.model.event import Event, Kind
from dovetail.model.grant import FULL, Spots, Terms, load_of
from dovetail.model.job import Job
from dovetail.model.loss import LossPoint
from dovetail.model.units import WHOLE

if TYPE_CHECKING:
    from dovetail.core.departures import Place
    from dovetail.core.queue import Entry


class Phase(IntEnum):
    """Where a job is in its life."""

    WAITING = 0
    GRANTED = 1
    RUNNING = 2
    ENDED = 3
    GROWING = 4


WAITING, GRANTED, RUNNING, ENDED, GROWING = Phase

# From a phase to the phases that may follow. A job that moves goes from RUNNING to GRANTED or RUNNING.
LEGAL: dict[Phase, frozenset[Phase]] = {
    WAITING: frozenset({GRANTED, RUNNING, ENDED}),
    GRANTED: frozenset({WAITING, GRANTED, RUNNING, ENDED}),
    RUNNING: frozenset({WAITING, GRANTED, RUNNING, GROWING, ENDED}),
    GROWING: frozenset({WAITING, GRANTED, RUNNING, GROWING, ENDED}),
    ENDED: frozenset(),
}


class IllegalPhase(DovetailError):
    """A job was to enter a phase that cannot follow its own: a bug in the core."""

    def __init__(self, job: ActiveJob, phase: Phase, events: Sequence[Event] = ()) -> None:
        self.job, self.phase = job, phase
        last = "".join(
            f"; {Kind(kind).name} of start {epoch} at {time}" for time, kind, _, epoch, _ in events
        )
        super().__init__(
            f"job {job.id} cannot go from {job.phase.name} to {phase.name} (start {job.epoch})"
            + (f"; its last events{last}" if last else "")
        )


# What a draft may change of a job. `save` returns it and `restore` puts it back.
DRAFTED = (
    "phase",
    "spots",
    "terms",
    "held",
    "since",
    "live_at",
    "service",
    "executed",
    "done",
    "rate",
    "started_at",
    "waiting_since",
    "start_number",
    "runs_on",
)
# What else is true of a job and cannot be worked out again. With `DRAFTED` and the description, this is all
# that a copy, a fork or a snapshot must carry.
KEPT = (
    "epoch",
    "fails",
    "first_start",
    "forgiven",
    "loss",
    "noise_scale",
    "priority",
    "promise",
    "stage",
    "stops",
    "stage_since",
    "suspended_on",
)
Saved = tuple[Any, ...]
PHASE, SPOTS, TERMS = DRAFTED.index("phase"), DRAFTED.index("spots"), DRAFTED.index("terms")
WAITING_SINCE, RUNS_ON = DRAFTED.index("waiting_since"), DRAFTED.index("runs_on")
_saved = attrgetter(*DRAFTED)
_FIELDS = (*DRAFTED, *KEPT)
_fields_of = attrgetter(*_FIELDS)
_fields_in = itemgetter(*_FIELDS)


class ActiveJob:
    """What is true of a job now; policies read it as a `JobView`.

    Amounts are settled up to `since` and extrapolated from there: ask `service_at(now)`, never the raw sums.
    """

    __slots__ = (
        "arrived_at",
        "awaiting",
        "done",
        "epoch",
        "estimate",
        "executed",
        "exit",
        "fails",
        "filed",
        "first_start",
        "forgiven",
        "gpus",
        "held",
        "id",
        "live_at",
        "loss",
        "need",
        "noise_scale",
        "phase",
        "priority",
        "promise",
        "rate",
        "runs_on",
        "seq",
        "service",
        "shape",
        "since",
        "spec",
        "spots",
        "stage",
        "stage_since",
        "start_number",
        "started_at",
        "stops",
        "suspended_on",
        "tenant",
        "terms",
        "timer",
        "traits",
        "waiting_since",
    )

    def __init__(self, spec: Job, seq: int, need: int, epoch: int = 0) -> None:
        self.spec = spec
        self.id = spec.id
        self.seq = seq
        self.need = need  # it fits only where the room has this level (Room.level)
        self.shape = shape = spec.shape
        self.traits = spec.traits
        self.gpus = shape.gpus
        self.arrived_at = self.stage_since = self.waiting_since = spec.arrived_at
        self.estimate = spec.estimate
        self.tenant = spec.tenant
        self.priority = spec.priority
        self.promise: int | None = None
        self.epoch = epoch  # of its last start; 0, unless the job was here before
        self.stops = 0
        self.fails = 0
        self.suspended_on: Spots | None = None  # where its state is in host memory (Checkpoint.suspend)
        self.first_start: int | None = None
        self.stage = 0
        self.forgiven = 0
        self.noise_scale: float | None = None  # of its gradient, as it last reported
        self.loss: LossPoint | None = None  # as it last reported
        self.filed: Entry | None = None  # its valid entry in the queue
        self.timer: tuple[int, int, ActiveJob] | None = None
        self.exit: Place | None = None  # its valid entry among the departures
        # GRANTED or GROWING: the jobs that still hold some of its devices
        self.awaiting: set[str] | None = None
        self.phase = WAITING
        self.spots: Spots | None = None
        self.runs_on: Spots | None = None  # GROWING: the part of `spots` on which it runs until it is resized
        self.terms: Terms = FULL
        self.held = 0
        self.since = 0
        self.live_at = 0  # work is done from here on: a restart takes its time
        self.service = 0
        self.executed = 0
        self.done = 0
        self.rate = 1.0
        self.started_at = 0
        self.start_number = 0  # running jobs stand in this order; 0: it holds nothing

    def save(self) -> Saved:
        saved: Saved = _saved(self)
        return saved

    def restore(self, saved: Saved) -> None:
        (
            self.phase,
            self.spots,
            self.terms,
            self.held,
            self.since,
            self.live_at,
            self.service,
            self.executed,
            self.done,
            self.rate,
            self.started_at,
            self.waiting_since,
            self.start_number,
            self.runs_on,
        ) = saved

    def kept(self) -> dict[str, Any]:
        """All that a copy needs besides the description, by name."""
        return dict(zip(_FIELDS, _fields_of(self), strict=True))

    def keep(self, kept: Mapping[str, Any]) -> None:
        """Be as the job of which these are the values."""
        fields = _fields_in(kept)
        self.restore(fields[: len(DRAFTED)])
        (
            self.epoch,
            self.fails,
            self.first_start,
            self.forgiven,
            self.loss,
            self.noise_scale,
            self.priority,
            self.promise,
            self.stage,
            self.stops,
            self.stage_since,
            self.suspended_on,
        ) = fields[len(DRAFTED) :]

    def enter(self, phase: Phase) -> None:
        """Go on to another phase, or say that this cannot be."""
        if phase not in LEGAL[self.phase]:
            raise IllegalPhase(self, phase)
        self.phase = phase

    def begin(self, now: int, spots: Spots, terms: Terms, held: int) -> None:
        """Hold these spots, so many milli-GPUs in all, and run from now on."""
        if self.phase is ENDED:
            raise IllegalPhase(self, RUNNING)
        self.phase = RUNNING
        self.spots = spots
        self.terms = terms
        self.held = held
        self.since = self.started_at = now
        self.rate = 1.0
        if not self.epoch:
            self.live_at = now
        elif self.suspended_on is None:
            self.live_at = now + self.traits.checkpoint.restore
        else:
            self.live_at = now + self.traits.checkpoint.restart(self.suspended_on, spots)

    def suspend(self, spots: Spots) -> None:
        """Keep its state on the nodes of these spots, from which it was stopped, if it can."""
        if self.traits.checkpoint.suspends:
            self.suspended_on = spots

    def settle(self, now: int) -> None:
        """Bring the sums up to now."""
        if self.phase is RUNNING or self.phase is GROWING:
            elapsed = now - self.since
            self.service = self.service_at(now)
            self.executed += elapsed
            self.done = self.done_at(now)
            self.live_at = max(self.live_at, now)
        self.since = now

    def end(self, now: int) -> None:
        """Hold nothing from now on, and wait."""
        if self.phase is WAITING or self.phase is ENDED:
            raise IllegalPhase(self, WAITING)
        self.settle(now)
        self.vacate(now)

    def vacate(self, waiting_since: int) -> None:
        """Wait since then, without a trace of what was held: a waiting job looks the same however it came."""
        self.phase = WAITING
        self.spots = self.runs_on = None
        self.terms = FULL
        self.held = self.since = self.live_at = self.started_at = 0
        self.rate = 1.0
        self.waiting_since = waiting_since

    def service_at(self, now: int) -> int:
        if self.phase is not RUNNING:
            if self.phase is not GROWING:
                return self.service
            return self.service + load_of(self.now_on) * (now - self.since) // WHOLE
        return self.service + self.held * (now - self.since) // WHOLE

    def executed_at(self, now: int) -> int:
        if self.phase is not RUNNING and self.phase is not GROWING:
            return self.executed
        return self.executed + now - self.since

    def done_at(self, now: int) -> int:
        if now <= self.live_at or (self.phase is not RUNNING and self.phase is not GROWING):
            return self.done
        elapsed = now - self.live_at
        return self.done + (elapsed if self.rate == 1.0 else int(elapsed * self.rate))

    def remaining_at(self, now: int) -> int:
        left = self.estimate - (self.done if self.spots is None else self.done_at(now))
        return left if left > 0 else 0

    def ends_at(self, now: int) -> int:
        """When its estimate says it ends; in the past for one that has outlived it."""
        left = self.estimate - self.done
        begun = self.live_at if self.live_at > self.since else self.since
        if self.rate == 1.0:
            return begun + left
        return begun + -int(-left // self.rate) if self.rate > 0 else 1 << 62

    @property
    def started(self) -> bool:
        """Whether the engine runs it."""
        return self.phase is RUNNING or self.phase is GROWING

    @property
    def now_on(self) -> Spots:
        """The spots on which the engine runs it: while it grows, not yet all that it was granted."""
        on = self.spots if self.runs_on is None else self.runs_on
        assert on is not None
        return on

    @property
    def user(self) -> str:
        return self.spec.user

    @property
    def group(self) -> str:
        return self.spec.group

    @property
    def model(self) -> str:
        return self.spec.model

    @property
    def deadline(self) -> int | None:
        return self.spec.deadline
