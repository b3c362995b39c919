"""From what users and engines say to events, and from the core's actions to what users see.

This is the plane without its clock, its database and its processes: records and the core change together, and
what has to be written and done about it is left in `batch` and `orders`. All of it happens on one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dovetail.control.book import DEPENDENCY, NEVER, NO_ROOM, Asked, Book
from dovetail.control.records import Attempt, Placement, Record
from dovetail.control.request import Retry
from dovetail.control.states import REQUEUE_ME, State, verdict
from dovetail.control.store import Batch
from dovetail.core.core import Core, Step
from dovetail.core.draft import Note
from dovetail.core.journal import step_line
from dovetail.engines.launch import Exit, Report
from dovetail.model.action import Answer, Resize, Start, Stop
from dovetail.model.cluster import Cluster
from dovetail.model.errors import InputError
from dovetail.model.event import (
    CANCELLED,
    DRAINED,
    FAILED,
    FINISHED,
    NODE_JOINED,
    PRIORITISED,
    PROGRESSED,
    RESIZED,
    STOPPED,
    SUBMITTED,
    Event,
)
from dovetail.model.grant import Spots, devices_of
from dovetail.model.job import Job

CANCEL, REQUEUE, HOLD = "cancelled", "requeued", "held"  # what is wanted of a job once it has stopped


@dataclass(frozen=True, slots=True)
class Begin:
    """An attempt to start."""

    record: Record
    spots: Spots


@dataclass(frozen=True, slots=True)
class End:
    """An attempt to stop."""

    job: str
    epoch: int
    why: str


class Ledger:
    """The jobs of a plane and its core, moved forward together."""

    def __init__(self, core: Core, book: Book, era: int, job_of: Callable[[Record, Asked, int], Job]) -> None:
        self.core = core
        self.book = book
        self.era = era
        self.batch = Batch()
        self.events: list[Event] = []
        self.orders: list[Begin | End] = []
        self.forget: list[tuple[str, int]] = []
        self.started: list[Record] = []  # for whoever counts waits,
        self.preempted: list[str] = []  # and who was sent away, and why
        self._job_of = job_of  # what the core is told of a record that enters the queue now
        self._last: tuple[tuple[str, int, int], Job] | None = None  # what it was told last, and for whom
        self._later: list[Event] = []  # for the next step
        self._notes: tuple[Core, int, Sequence[Note]] | None = None

    @property
    def pending(self) -> bool:
        """Whether something is left to be told."""
        return bool(self.events or self._later or self.orders or self.forget)

    def notes(self) -> Sequence[Note]:
        """Why jobs were passed over; worked out once a step, however many ask."""
        core, kept = self.core, self._notes
        if kept is None or kept[0] is not core or kept[1] != core.number:
            self._notes = kept = (core, core.number, core.notes())
        return kept[2]

    def committed(self) -> None:
        """What `batch` held is on record."""
        self.batch = Batch()
        self.book.committed()

    # -- what users say

    def submit(self, records: Iterable[Record], asked: Asked, now: int) -> None:
        """Jobs that are new."""
        for record in records:
            self.batch.added.append(record)
            self.book.add(record, asked)
            self._admit(record, now)

    def cancel(self, record: Record, now: int, why: str = "") -> bool:
        if record.state.final or record.wanted == CANCEL:
            return False
        if record.state is State.HELD:
            self._over(record, State.CANCELLED, now, why, admitted=False)
        elif record.state is State.PENDING:
            self._tell(now, CANCELLED, record, None)
            self._over(record, State.CANCELLED, now, why)
        else:
            self._tell(
                now, CANCELLED, record, None
            )  # the core answers with `Stop`, if it has not said so yet
            record.wanted = CANCEL
            self._touch(record)
        return True

    def hold(self, record: Record, now: int, by: str) -> bool:
        """Keep it from the queue; one that runs is stopped first, and keeps what it saved."""
        if record.state.final or record.held_by or record.wanted == CANCEL:
            return False
        record.held_by = by
        if record.state is State.PENDING:
            self._tell(now, CANCELLED, record, None)
            self._shelve(record, now)
        elif record.state is State.HELD:
            record.reason = self.book.gate(record, now)
        else:
            self._send_away(record, HOLD, now)
        self._touch(record)
        return True

    def release(self, record: Record, now: int) -> bool:
        if not record.held_by or record.held_by == "cluster":
            return False
        record.held_by = ""
        if record.wanted == HOLD:
            record.wanted = REQUEUE
        elif record.state is State.HELD:
            self._admit(record, now)
        self._touch(record)
        return True

    def requeue(self, record: Record, now: int) -> bool:
        """Stop it and let it wait for its turn again."""
        if record.state is not State.RUNNING or record.wanted == CANCEL:
            return False
        self._send_away(record, REQUEUE, now)
        self._touch(record)
        return True

    def prioritise(self, record: Record, priority: int, now: int) -> bool:
        if record.state.final or record.priority == priority:
            return False
        record.priority = priority
        if record.state is not State.HELD:
            self._tell(now, PRIORITISED, record, priority)
        self._touch(record)
        return True

    def drain(self, node: str, why: str, now: int) -> None:
        self.events.append((now, DRAINED, node, 0, why))

    def rejoin(self, node: str, now: int) -> None:
        self.events.append((now, NODE_JOINED, node, 0, None))

    def look_again(self, now: int) -> None:
        """What kept them may have gone while no plane was there to see it."""
        for record in list(self.book):
            if record.state is State.HELD and self.book.gate(record, now) != record.reason:
                self._admit(record, now)

    def due(self, now: int) -> None:
        """Begin times that have come."""
        for record in self.book.due(now):
            if record.state is State.HELD:
                self._admit(record, now)

    # -- what engines say

    def ended(self, report: Report, now: int, at: int | None = None) -> None:
        """An attempt is over: what becomes of its job. `at` says since when, if not since just now.

        Whoever held devices while no plane was there to see the end is charged to the end, and no further.
        """
        job_id, epoch, exit = report
        self.forget.append((job_id, epoch))
        record = self.book.records.get(job_id)
        if record is None or record.epoch != epoch or record.state not in (State.RUNNING, State.STOPPING):
            return  # an earlier start, of which all is known
        at = now if at is None else min(max(at, record.started_at or at), now)
        self._close(record, exit, at)
        told = job_id in self.core.stopping()
        wanted, record.wanted = record.wanted, ""
        done = exit.finished or (exit.cause == "exited" and exit.code == 0)
        if wanted == CANCEL or job_id not in self.core.jobs:  # or too large for what is left of the cluster
            self._tell(now, STOPPED, record, 0)
            if done or wanted == CANCEL:
                self._over(record, State.COMPLETED if done else State.CANCELLED, now, exit.detail, at=at)
            elif record.held_by not in ("", "cluster"):
                self._shelve(record, now)
            else:  # there may be room for it again
                record.held_by, record.placement = "", None
                self.book.withdraw(record)
                self._admit(record, now)
        elif done:
            self._tell(now, FINISHED, record, None)
            self._over(record, State.COMPLETED, now, "", at=at)
        elif exit.cause == "stopped" or (exit.cause == "lost" and (told or wanted)):
            self._back(record, exit, wanted, now, at)
        else:
            retry = self.book.asked[record.request].request.retry or Retry()
            left = retry.max - record.retries
            state, why, counts = verdict(exit, retry.on, left)
            if state is State.PENDING:
                record.retries += counts
                self._back(record, exit, wanted, now, at)
            else:
                self._tell(now, FAILED, record, (why or f"exit {exit.code}", 0))
                self._over(record, state, now, why, at=at)

    def vanished(self, record: Record, now: int) -> None:
        """It was told to stop, and there is no trace of it: it had not begun."""
        self.ended(Report(record.id, record.epoch, Exit(143, "stopped", "it had not begun", now, now)), now)

    def gone(self, job: str, now: int) -> None:
        """Devices are kept for one that does not run any more."""
        active = self.core.jobs.get(job)
        self._later.append((now, STOPPED, job, active.epoch if active else 0, active.done if active else 0))

    def resettled(self, job: str, now: int) -> None:
        """It gave devices back while it ran, and whoever was to say so has gone."""
        self._later.append((now, RESIZED, job, self.core.jobs[job].epoch, None))

    def outgrown(self, record: Record, now: int) -> None:
        """The cluster has become too small for it: it waits until there is one that can hold it."""
        record.held_by = "cluster"
        if record.state is State.RUNNING:
            self._send_away(record, HOLD, now)
        elif record.state is State.PENDING:
            self._shelve(record, now)
        self._touch(record)

    def unblock(self, record: Record, now: int) -> None:
        """The cluster can hold it again."""
        record.held_by = ""
        if record.state is State.HELD:
            self._admit(record, now)
        self._touch(record)

    def _back(self, record: Record, exit: Exit, wanted: str, now: int, at: int) -> None:
        """It will be started again; what it has lost is counted."""
        active = self.core.jobs[record.id]
        done = active.done_at(at)
        kept = self._kept(record, exit, done)
        record.lost_time += (done - kept) * record.load
        record.state, record.placement = State.PENDING, None
        record.reason = ""
        held = wanted == HOLD and bool(record.held_by)
        if held:  # first, or the core would start it again where it has just stopped
            self._tell(now, CANCELLED, record, None)
        self._tell(now, STOPPED, record, kept)
        if held:
            self._shelve(record, now)
        self._touch(record)

    def _kept(self, record: Record, exit: Exit, done: int) -> int:
        """The work that its next start finds done, as far as one can know from outside."""
        checkpoint = self.core.jobs[record.id].spec.traits.checkpoint
        left_in_time = exit.cause == "stopped" and exit.code != 137
        if checkpoint.on_stop and (left_in_time or exit.code == REQUEUE_ME):
            return done
        return done - done % checkpoint.every if checkpoint.every else 0

    def _close(self, record: Record, exit: Exit, at: int) -> None:
        """Write down how the attempt ended, and when."""
        record.exit_code, record.cause = exit.code, exit.cause
        held = max(0, at - (record.started_at or at))
        record.held_time += held
        record.gpu_time += held * record.load
        self.batch.ended.append(
            Attempt(
                record.id,
                record.epoch,
                ended_at=at,
                exit_code=exit.code,
                cause=exit.cause,
                detail=exit.detail[:500],
            )
        )
        self._touch(record)

    # -- deciding

    def decide(self, now: int) -> Step | None:
        """Let the core hear all that was said, and note what it wants done."""
        core = self.core
        events = (
            self._later + self.events
        )  # as they were said: who is released and cancelled is not cancelled first
        alarm = core.alarm
        if not events and not core.moved and (alarm is None or alarm > now):
            return None
        self.events, self._later = [], []
        step = core.handle(now, events)
        self.batch.steps.append(
            {"number": step.number, "era": self.era, "time": step.now, "line": step_line(step)}
        )
        for action in step.actions:
            if isinstance(action, Start | Resize):
                self._begin(action, now)
            elif isinstance(action, Stop):
                self.stop(action, now)
            elif isinstance(action, Answer):
                self._answered(action, now)
        return step

    def progressed(self, record: Record, rate: float, now: int) -> None:
        """A running job goes at another rate than the core thinks."""
        done = self.core.jobs[record.id].done_at(now)
        self.events.append((now, PROGRESSED, record.id, record.epoch, (done, rate)))

    def _begin(self, action: Start | Resize, now: int) -> None:
        """Only a whole gang is started; a part holds its devices and waits for the rest."""
        record = self.book.records[action.job]
        whole = devices_of(action.spots) >= self.core.jobs[record.id].shape.gpus  # two may share them
        record.epoch = action.epoch
        if isinstance(action, Resize):
            self._later.append((now, RESIZED, record.id, action.epoch, None))
            if record.state is State.RUNNING:
                return
        if not whole or isinstance(action, Resize):
            fact = (self.core.jobs[record.id].done, 1.0 if whole else 0.0)
            self._later.append((now, PROGRESSED, record.id, action.epoch, fact))
        if not whole:
            record.reason = "Resources"
            self._touch(record)
            return
        cluster = self.core.cluster
        record.state, record.reason = State.RUNNING, ""
        record.started_at, record.restarts = now, action.epoch - 1
        if record.first_started_at is None:
            record.first_started_at = now
        record.placement = placement_of(cluster, action.spots)
        types = sorted({cluster.nodes[spot[0]].type.name for spot in action.spots if spot[1]})
        self.batch.begun.append(
            Attempt(record.id, action.epoch, record.placement, ",".join(types), record.load, now)
        )
        self.orders.append(Begin(record, action.spots))
        self.started.append(record)
        self._touch(record)
        self._reconsider(record, now)

    def stop(self, action: Stop, now: int) -> None:
        record = self.book.records.get(action.job)
        if record is None or record.state not in (State.RUNNING, State.STOPPING):
            # It held its devices and had not been started: it has stopped already.
            self._later.append((now, STOPPED, action.job, action.epoch, 0))
            return
        record.state = State.STOPPING
        record.reason = action.why
        self.orders.append(End(record.id, record.epoch, action.why))
        if action.why != "cancelled":
            self.preempted.append(action.why)
        self._touch(record)

    def _answered(self, action: Answer, now: int) -> None:
        record = self.book.records.get(action.job)
        if record is None:
            return
        if action.answer == "refused":
            self._over(record, State.REFUSED, now, action.why)
        elif action.answer == "demoted" and action.value is not None:
            record.priority = action.value
            self._touch(record)

    # -- in and out of the queue

    def _admit(self, record: Record, now: int) -> None:
        """Into the queue, unless something else than resources keeps it."""
        word = self.book.gate(record, now)
        if word == NEVER:
            self._over(record, State.CANCELLED, now, NEVER, admitted=False)
            return
        if word:
            record.state, record.reason = State.HELD, word
        else:
            try:
                job = self._job(record, now)
            except InputError:  # the cluster has changed since it was submitted
                record.state, record.reason, record.held_by = State.HELD, NO_ROOM, "cluster"
            else:
                record.state, record.reason = State.PENDING, ""
                if record.first_started_at is None:  # its wait is the one before its first start
                    record.eligible_at = now
                self.book.admit(record)
                self._tell(now, SUBMITTED, record, job)
        self._touch(record)

    def _job(self, record: Record, now: int) -> Job:
        """What the core is told of it; members of an array that enter together differ in their ids only."""
        alike = (record.request, record.priority, now)
        if self._last is None or self._last[0] != alike:
            self._last = (alike, self._job_of(record, self.book.asked[record.request], now))
        return replace(self._last[1], id=record.id)

    def _shelve(self, record: Record, now: int) -> None:
        """Out of the queue, for a while."""
        self.book.withdraw(record)
        record.state, record.placement = State.HELD, None
        record.reason = self.book.gate(record, now) or DEPENDENCY
        self._touch(record)
        self._reconsider(record, now)

    def _send_away(self, record: Record, wanted: str, now: int) -> None:
        """Stop one that runs because a user wants it, not the policy."""
        if record.state is State.RUNNING:
            record.state, record.reason = State.STOPPING, wanted
            self.orders.append(End(record.id, record.epoch, wanted))
        record.wanted = wanted

    def _over(
        self,
        record: Record,
        state: State,
        now: int,
        why: str,
        *,
        admitted: bool = True,
        at: int | None = None,
    ) -> None:
        """It is so now, and has been since `at`."""
        record.state, record.reason, record.wanted = state, why[:500], ""
        record.ended_at = now if at is None else at
        record.placement = record.placement if record.started_at is not None else None
        self._touch(record)
        self.book.remove(record, was_admitted=admitted)
        self._reconsider(record, now)

    def _reconsider(self, record: Record, now: int) -> None:
        """Others may have waited for this one."""
        for other in self.book.affected(record):
            if other.state is State.HELD:
                self._admit(other, now)

    def _tell(self, now: int, kind: int, record: Record, fact: Any) -> None:
        self.events.append((now, kind, record.id, record.epoch, fact))

    def _touch(self, record: Record) -> None:
        self.batch.changed[record.id] = record


def placement_of(cluster: Cluster, spots: Spots) -> Placement:
    """Spots as users read them."""
    found: Placement = []
    for node, devices, share, _, _ in spots:
        if not devices:
            continue
        numbers = [i for i in range(devices.bit_length()) if devices >> i & 1]
        part: dict[str, Any] = {"node": cluster.nodes[node].name, "devices": numbers}
        if 0 < share < 1000:
            part["share"] = share
        found.append(part)
    return found
