"""The core's record of a job that is not over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dovetail.model.grant import FULL, Spots, Terms
from dovetail.model.job import Job, Traits
from dovetail.model.units import WHOLE

if TYPE_CHECKING:
    from dovetail.core.exits import Place
    from dovetail.core.queue import Entry

Saved = tuple[Any, ...]
WAITING_SINCE = 10  # its place in what is saved


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
        "need",
        "priority",
        "promise",
        "rate",
        "seq",
        "service",
        "shape",
        "since",
        "spec",
        "spots",
        "stage",
        "started_at",
        "stops",
        "tenant",
        "terms",
        "timer",
        "turn",
        "turned_at",
        "waiting_since",
    )

    def __init__(self, spec: Job, seq: int, need: int) -> None:
        self.spec = spec
        self.id = spec.id
        self.seq = seq
        self.need = need  # it fits only where the room has this level (Room.level)
        self.shape = shape = spec.shape
        self.gpus = shape.gpus
        self.arrived_at = spec.arrived_at
        self.estimate = spec.estimate
        self.tenant = spec.tenant
        self.priority = spec.priority
        self.promise: int | None = None
        self.epoch = 0
        self.stops = 0
        self.fails = 0
        self.first_start: int | None = None
        self.stage = 0
        self.turned_at = spec.arrived_at
        self.forgiven = 0
        self.filed: Entry | None = None
        self.timer: tuple[int, int, ActiveJob] | None = None
        self.exit: Place | None = None  # where it was put among those who leave (core.exits)
        self.awaiting: set[str] | None = None  # whose devices it waits for, once granted
        # what a draft may change, and `save` keeps:
        self.spots: Spots | None = None
        self.terms: Terms = FULL
        self.held = 0
        self.since = 0
        self.live_at = 0  # work is done from here on: a restart takes its time
        self.service = 0
        self.executed = 0
        self.done = 0
        self.rate = 1.0
        self.started_at = 0
        self.turn = 0  # the order in which running jobs stand; 0: it does not run
        self.waiting_since = spec.arrived_at

    def save(self) -> Saved:
        return (
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
            self.turn,
        )

    def restore(self, saved: Saved) -> None:
        (
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
            self.turn,
        ) = saved

    def copy(self) -> ActiveJob:
        """The same job, filed nowhere."""
        twin = ActiveJob(self.spec, self.seq, self.need)
        twin.restore(self.save())
        for name in ("epoch", "fails", "first_start", "forgiven", "priority", "promise", "stage", "stops"):
            setattr(twin, name, getattr(self, name))
        twin.turned_at, twin.timer = self.turned_at, self.timer
        twin.awaiting = None if self.awaiting is None else set(self.awaiting)
        return twin

    def begin(self, now: int, spots: Spots, terms: Terms, held: int) -> None:
        """Hold these spots, so many milli-GPUs in all, from now on."""
        self.spots = spots
        self.terms = terms
        self.held = held
        self.since = self.started_at = now
        self.rate = 1.0
        self.live_at = now + self.spec.traits.checkpoint.restore if self.epoch else now

    def settle(self, now: int) -> None:
        """Bring the sums up to now."""
        if self.spots is not None and self.awaiting is None:
            elapsed = now - self.since
            self.service += self.held * elapsed // WHOLE
            self.executed += elapsed
            self.done = self.done_at(now)
            self.live_at = max(self.live_at, now)
        self.since = now

    def end(self, now: int) -> None:
        """Hold nothing from now on."""
        self.settle(now)
        self.spots = None
        self.terms = FULL
        self.held = 0
        self.waiting_since = now

    def service_at(self, now: int) -> int:
        if self.spots is None or self.awaiting is not None:
            return self.service
        return self.service + self.held * (now - self.since) // WHOLE

    def executed_at(self, now: int) -> int:
        if self.spots is None or self.awaiting is not None:
            return self.executed
        return self.executed + now - self.since

    def done_at(self, now: int) -> int:
        if self.spots is None or self.awaiting is not None or now <= self.live_at:
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

    @property
    def traits(self) -> Traits:
        return self.spec.traits
