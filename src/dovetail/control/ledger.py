"""The ledger keeps the records of jobs and the core in step.

Commands of users and reports of engines become events of the core. Actions of the core become changes of
records. The ledger has no clock, no database and no processes: it leaves rows to write in `batch`, and orders
to the engine in `orders`. It is used by one thread only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, assert_never

from dovetail.control import preemptions
from dovetail.control.job_index import DEPENDENCY, NEVER, NO_ROOM, Asked, JobIndex
from dovetail.control.records import AttemptRecord, Placement, Record, Segment
from dovetail.control.request import Retry
from dovetail.control.run_times import RunTimes, kind_of, with_estimate
from dovetail.control.states import REQUEUE_ME, State, verdict
from dovetail.control.store import Batch
from dovetail.core.core import Core, Step
from dovetail.core.draft import Note
from dovetail.core.journal import step_line
from dovetail.engines.contract import AttemptEnd, Capabilities, Exit, NodeUp, Resized, Unsupported
from dovetail.model.action import Answer, Rent, Resize, SetPower, Start, Stop
from dovetail.model.cluster import Cluster
from dovetail.model.errors import PolicyError
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
from dovetail.model.grant import Spots, devices_of, load_of
from dovetail.model.job import Job, Shape, least_devices
from dovetail.model.units import WHOLE

CANCEL, REQUEUE, HOLD = "cancelled", "requeued", "held"  # what a stopping job becomes once it has stopped
PREEMPTED = ("preempted", "moved")  # reasons of the core to stop a job that may go on


@dataclass(frozen=True, slots=True)
class Begin:
    """An attempt to start."""

    record: Record
    shape: Shape
    spots: Spots


@dataclass(frozen=True, slots=True)
class End:
    """An attempt to stop."""

    job: str
    epoch: int
    why: str


@dataclass(frozen=True, slots=True)
class ResizeOrder:
    """A running attempt to resize."""

    record: Record
    shape: Shape
    spots: Spots
    number: int  # of the step that decided it


Order = Begin | End | ResizeOrder | SetPower | Rent


class Ledger:
    """The jobs of a plane, and its core."""

    def __init__(self, core: Core, index: JobIndex, era: int, capabilities: Capabilities) -> None:
        self.core = core
        self.index = index
        self.era = era
        self.batch = Batch()
        self.events: list[Event] = []
        self.capabilities = capabilities  # of the engine: what it cannot do is refused
        self.orders: list[Order] = []
        self._refused: list[str] = []  # messages about the actions of a step that the engine cannot perform
        self._resizing: dict[str, int] = {}  # by job: the number of its last resize, until it is confirmed
        self.forget: list[tuple[str, int]] = []  # ended attempts that the engine need not report again
        self.started: list[Record] = []  # jobs started since statistics were last counted
        self.preempted: list[str] = []  # the reason of each preemption, likewise
        self.run_times = RunTimes()
        self._later: list[Event] = []  # for the next step
        self._policy_error: PolicyError | None = None
        self._notes: tuple[Core, int, Sequence[Note]] | None = None

    @property
    def pending(self) -> bool:
        """Whether events or orders are left for the next tick."""
        return bool(self.events or self._later or self.orders or self.forget)

    def notes(self) -> Sequence[Note]:
        """Why jobs were passed over; worked out once a step. None are known if the policy fails."""
        core, kept = self.core, self._notes
        if kept is None or kept[0] is not core or kept[1] != core.number:
            try:
                notes: Sequence[Note] = core.notes()
            except PolicyError:
                notes = ()
            self._notes = kept = (core, core.number, notes)
        return kept[2]

    def committed(self) -> None:
        """`batch` is on record."""
        self.batch = Batch()
        self.index.committed()

    # -- commands of users

    def submit(self, records: Iterable[Record], asked: Asked, now: int) -> None:
        """Add new jobs."""
        for record in records:
            self.batch.added.append(record)
            self.index.add(record, asked)
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
            self._tell(now, CANCELLED, record, None)  # the core returns `Stop`, unless it is stopping already
            record.wanted = CANCEL
            self._touch(record)
        return True

    def hold(self, record: Record, now: int, by: str) -> bool:
        """Keep a job out of the queue. A running job is stopped first; its checkpoints stay."""
        if record.state.final or record.held_by or record.wanted == CANCEL:
            return False
        record.held_by = by
        if record.state is State.PENDING:
            self._tell(now, CANCELLED, record, None)
            self._hold_back(record, now)
        elif record.state is State.HELD:
            record.reason = self.index.gate(record, now)
        else:
            self._stop_on_request(record, HOLD, now)
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
        """Stop a running job, which waits in the queue again."""
        if record.state is not State.RUNNING or record.wanted == CANCEL:
            return False
        self._stop_on_request(record, REQUEUE, now)
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
        """Admit held jobs that may enter the queue by now: dependencies may have ended while no plane ran."""
        for record in list(self.index):
            if record.state is State.HELD and self.index.gate(record, now) != record.reason:
                self._admit(record, now)

    def due(self, now: int) -> None:
        """Admit jobs with a begin time that has come."""
        for record in self.index.due(now):
            if record.state is State.HELD:
                self._admit(record, now)

    # -- reports of engines

    def ended(self, report: AttemptEnd, now: int, at: int | None = None, lasted: int = 0) -> None:
        """An attempt has ended, at `at` or just now: end its job, or queue it again.

        If the attempt ended while no plane ran, the job is charged up to that end, and at least for as long
        as the attempt `lasted`: `at` is a reading of the wall clock, which may have been set meanwhile.
        """
        job_id, epoch, exit = report
        self.forget.append((job_id, epoch))
        record = self.index.records.get(job_id)
        if record is None or record.epoch != epoch or record.state not in (State.RUNNING, State.STOPPING):
            return  # of an earlier start, which is on record
        at = now if at is None else min(max(at, (record.started_at or at) + lasted), now)
        self._close(record, exit, at)
        told = job_id in self.core.stopping.held
        wanted, record.wanted = record.wanted, ""
        done = exit.finished or (exit.cause == "exited" and exit.code == 0)
        if wanted == CANCEL or job_id not in self.core.jobs:  # or the cluster has become too small
            self._tell(now, STOPPED, record, 0)
            if done or wanted == CANCEL:
                self._over(record, State.COMPLETED if done else State.CANCELLED, now, exit.detail, at=at)
            elif record.held_by not in ("", "cluster"):
                self._hold_back(record, now)
            else:  # the cluster may be large enough again
                record.held_by, record.placement = "", None
                self.index.withdraw(record)
                self._admit(record, now)
        elif done:
            self._tell(now, FINISHED, record, None)
            self._over(record, State.COMPLETED, now, "", at=at)
        elif exit.cause == "stopped" or (exit.cause == "lost" and (told or wanted)):
            self._queue_again(record, exit, wanted, now, at)
        else:
            retry = self.index.asked[record.request].request.retry or Retry()
            left = retry.max - record.retries
            state, why, counts = verdict(exit, retry.on, left)
            if state is State.PENDING:
                record.retries += counts
                self._queue_again(record, exit, wanted, now, at)
            else:
                self._tell(now, FAILED, record, (why or f"exit {exit.code}", 0))
                self._over(record, state, now, why, at=at)

    def vanished(self, record: Record, now: int) -> None:
        """The engine does not know an attempt that was told to stop: it never started."""
        self.ended(
            AttemptEnd(record.id, record.epoch, Exit(143, "stopped", "it had not begun", now, now)), now
        )

    def unstartable(self, record: Record, why: str, now: int) -> None:
        """The engine is not told of an attempt, because it must not be started."""
        self.ended(AttemptEnd(record.id, record.epoch, Exit(126, "unstartable", why, now, now)), now)

    def gone(self, job: str, now: int) -> None:
        """The core still counts devices as held by a job that no longer runs."""
        active = self.core.jobs.get(job)
        self._later.append((now, STOPPED, job, active.epoch if active else 0, active.done if active else 0))

    def resettled(self, job: str, now: int) -> None:
        """The confirmation of a resize was lost in a crash."""
        self._later.append((now, RESIZED, job, self.core.jobs[job].epoch, None))

    def outgrown(self, record: Record, now: int) -> None:
        """The cluster has become too small for a job: hold it until the cluster is large enough."""
        record.held_by = "cluster"
        if record.state is State.RUNNING:
            self._stop_on_request(record, HOLD, now)
        elif record.state is State.PENDING:
            self._hold_back(record, now)
        self._touch(record)

    def unblock(self, record: Record, now: int) -> None:
        """The cluster is large enough for a job again."""
        record.held_by = ""
        if record.state is State.HELD:
            self._admit(record, now)
        self._touch(record)

    def _queue_again(self, record: Record, exit: Exit, wanted: str, now: int, at: int) -> None:
        """Queue a stopped job again, and count the work it has lost."""
        active = self.core.jobs[record.id]
        done = active.done_at(at)
        kept = self._kept(record, exit, done)
        record.lost_time += (done - kept) * record.load
        record.state, record.placement = State.PENDING, None
        record.reason = ""
        record.wait_begins(at)
        held = wanted == HOLD and bool(record.held_by)
        if held:  # before STOPPED, or the core would start it again at once
            self._tell(now, CANCELLED, record, None)
        self._tell(now, STOPPED, record, kept)
        if held:
            record.wait_ends(at)
            self._hold_back(record, now)
        self._touch(record)

    def _kept(self, record: Record, exit: Exit, done: int) -> int:
        """The work that the next attempt resumes from, by the checkpoints that the job declares."""
        checkpoint = self.core.jobs[record.id].spec.traits.checkpoint
        left_in_time = exit.cause == "stopped" and exit.code != 137
        if checkpoint.on_stop and (left_in_time or exit.code == REQUEUE_ME):
            return done
        return done - done % checkpoint.every if checkpoint.every else 0

    def _close(self, record: Record, exit: Exit, at: int) -> None:
        """Record how and when an attempt ended."""
        self._resizing.pop(record.id, None)
        record.exit_code, record.cause = exit.code, exit.cause
        load, since = record.holds
        record.held_time += max(0, at - (record.started_at or at))
        record.gpu_time += max(0, at - (since or at)) * load
        self.batch.ended.append(
            AttemptRecord(
                record.id,
                record.epoch,
                ended_at=at,
                exit_code=exit.code,
                cause=exit.cause,
                detail=exit.detail[:500],
                preempted_by=record.preempted_by if exit.cause in preemptions.ENDS else None,
                resized=record.held_since is not None,
            )
        )
        self._touch(record)

    # -- decisions

    def decide(self, now: int) -> Step | None:
        """Give all events to the core, and apply its actions. None if there is nothing to decide."""
        core = self.core
        events = self._later + self.events  # in the order of the commands: a release before a cancel
        alarm = core.alarm
        if not events and not core.changed and (alarm is None or alarm > now):
            return None
        self.events, self._later = [], []
        try:
            step: Step = core.handle(now, events)
        except PolicyError as error:  # the step holds the actions that follow from the events alone
            step, self._policy_error = error.step, error
        self.batch.steps.append(
            {"number": step.number, "era": self.era, "time": step.now, "line": step_line(step)}
        )
        for action in step.actions:
            if isinstance(action, Resize) and self._is_started(action.job):
                self._resize(action, step.number, now)
            elif isinstance(action, Start | Resize):
                self._begin(action, now)
            elif isinstance(action, Stop):
                self.stop(action, now, core.displaced.get(action.job, ()))
            elif isinstance(action, Answer):
                self._answered(action, now)
            elif isinstance(action, SetPower | Rent):
                self._order_node(action, now)
            else:
                assert_never(action)
        if self._refused and self._policy_error is None:  # the policy planned what the engine cannot do
            self._policy_error = PolicyError(step, Unsupported("; ".join(self._refused)))
        self._refused.clear()
        return step

    def take_policy_error(self) -> PolicyError | None:
        """How the policy failed in the last step, if it did; None when asked again."""
        error, self._policy_error = self._policy_error, None
        return error

    def confirmed(self, confirmation: Resized | NodeUp, now: int) -> None:
        """The engine has completed an order. The confirmation of an earlier resize or epoch is dropped."""
        if isinstance(confirmation, NodeUp):
            self.rejoin(confirmation.node, now)
            return
        job, epoch, number = confirmation
        record = self.index.records.get(job)
        if record is None or record.epoch != epoch or self._resizing.get(job) != number:
            return
        del self._resizing[job]
        self._holds(record, sum(len(part["devices"]) for part in record.placement or ()) * WHOLE, now)
        self.events.append((now, RESIZED, job, epoch, None))

    def repeat_resize(self, record: Record, spots: Spots) -> None:
        """Order the last resize again: the plane may have died before the engine heard of it."""
        self._order_resize(record, spots, self.core.number)

    def _is_started(self, job: str) -> bool:
        """Whether the engine has the job. A gang that is placed in part is not started yet."""
        return self.index.records[job].state in (State.RUNNING, State.STOPPING)

    def _resize(self, action: Resize, number: int, now: int) -> None:
        """Resize a running job if the engine can. If not, the job is stopped and waits for another start.

        The core counts on the new devices, so the job must not go on with the old ones.
        """
        record = self.index.records[action.job]
        if record.state is State.STOPPING:  # the core hears that its devices are free when it has stopped
            return
        if self.capabilities.resize:
            self._order_resize(record, action.spots, number)
            load, _ = record.holds
            if record.gpus_least is not None:  # what it gives up is held until that is confirmed
                self._holds(record, max(load, load_of(action.spots)), now)
            return
        why = "resize refused: the engine cannot resize a running job"
        self._refused.append(f"job {record.id} is stopped and queued again; {why}")
        self._stop_running(record, why)

    def _order_resize(self, record: Record, spots: Spots, number: int) -> None:
        self._resizing[record.id] = number
        record.placement = placement_of(self.core.cluster, spots)
        self.orders.append(ResizeOrder(record, self.core.jobs[record.id].shape, spots, number))
        self._touch(record)

    def _holds(self, record: Record, load: int, now: int) -> None:
        """An elastic job holds so much from now on: its attempt has a new segment."""
        before, since = record.holds
        if record.gpus_least is None or load == before:
            return
        record.gpu_time += max(0, now - (since or now)) * before
        record.held_load, record.held_since = load, now
        placement = record.placement or []
        types = _types_of(self.core.cluster, placement)
        self.batch.segments.append(Segment(record.id, record.epoch, now, placement, types, load))
        self._touch(record)

    def _order_node(self, action: SetPower | Rent, now: int) -> None:
        """Switch or rent a node if the engine can. If not, a node that the core has closed opens again."""
        power = isinstance(action, SetPower)
        if self.capabilities.power if power else self.capabilities.rent:
            self.orders.append(action)
            return
        wanted = action.on if isinstance(action, SetPower) else action.keep
        verbs = ("switch on", "switch off") if power else ("rent", "give back")
        self._refused.append(f"the engine cannot {verbs[0] if wanted else verbs[1]} node {action.node}")
        if not wanted:
            self._later.append((now, NODE_JOINED, action.node, 0, None))

    def progressed(
        self, record: Record, rate: float, now: int, loss: float | None = None, epoch: int = 0
    ) -> None:
        """A running job has another speed than the core assumes, or tells its loss after whole epochs."""
        done = self.core.jobs[record.id].done_at(now)
        fact = (done, rate) if loss is None else (done, rate, None, loss, epoch)
        self.events.append((now, PROGRESSED, record.id, record.epoch, fact))

    def _begin(self, action: Start | Resize, now: int) -> None:
        """Start a gang once it has all its devices; until then it holds what it got."""
        record = self.index.records[action.job]
        job = self.core.jobs[record.id]
        whole = devices_of(action.spots) >= least_devices(job.shape, job.traits)  # jobs may share devices
        record.epoch = action.epoch
        if isinstance(action, Resize):  # of a gang that is not started: there is no process to resize
            self._later.append((now, RESIZED, record.id, action.epoch, None))
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
        record.preempted_by = None
        if record.first_started_at is None:
            record.first_started_at = now
        record.placement = placement_of(cluster, action.spots)
        types = _types_of(cluster, record.placement)
        record.held_load = None if record.gpus_least is None else load_of(action.spots)
        record.held_since = None
        record.wait_ends(now)
        waited = record.wait_time - record.wait_at_start
        record.wait_at_start = record.wait_time
        self.batch.begun.append(
            AttemptRecord(
                record.id, action.epoch, record.placement, types, record.holds[0], now, waited=waited
            )
        )
        self.orders.append(Begin(record, self.core.jobs[record.id].shape, action.spots))
        self.started.append(record)
        self._touch(record)
        self._reconsider(record, now)

    def stop(self, action: Stop, now: int, by: Sequence[str] = ()) -> None:
        """Stop an attempt; `by` are the jobs that it makes way for."""
        record = self.index.records.get(action.job)
        if record is None or record.state not in (State.RUNNING, State.STOPPING):
            self.gone(action.job, now)  # it held devices and was not started: there is nothing to stop
            return
        if action.why in PREEMPTED:
            record.preempted_by = preemptions.kept(record, by, self.index.records)
        self._stop_running(record, action.why)

    def _stop_running(self, record: Record, why: str) -> None:
        record.state, record.reason = State.STOPPING, why
        self.orders.append(End(record.id, record.epoch, why))
        if why != "cancelled":
            self.preempted.append(why.partition(":")[0])
        self._touch(record)

    def _answered(self, action: Answer, now: int) -> None:
        record = self.index.records.get(action.job)
        if record is None:
            return
        if action.answer == "refused":
            self._over(record, State.REFUSED, now, action.why)
        elif action.answer == "demoted" and action.value is not None:
            record.priority = action.value
            self._touch(record)

    # -- the queue

    def _admit(self, record: Record, now: int) -> None:
        """Put a job into the queue, or hold it if it waits for something other than resources."""
        word = self.index.gate(record, now)
        if word == NEVER:
            self._over(record, State.CANCELLED, now, NEVER, admitted=False)
            return
        if word:
            record.state, record.reason = State.HELD, word
        else:
            template = self.index.asked[record.request].job
            if template is None:  # the cluster has changed since it was submitted
                record.state, record.reason, record.held_by = State.HELD, NO_ROOM, "cluster"
            else:
                job = replace(template, id=record.id, arrived_at=now, priority=record.priority)
                job = with_estimate(job, self.index.asked[record.request].request, self.run_times)
                record.state, record.reason = State.PENDING, ""
                record.wait_begins(now)
                if record.first_started_at is None:
                    record.eligible_at = now
                self.index.admit(record)
                self._tell(now, SUBMITTED, record, job if self.capabilities.resize else _rigid(job))
        self._touch(record)

    def _hold_back(self, record: Record, now: int) -> None:
        """Take a job out of the queue and hold it."""
        self.index.withdraw(record)
        record.wait_ends(now)
        record.state, record.placement = State.HELD, None
        record.reason = self.index.gate(record, now) or DEPENDENCY
        self._touch(record)
        self._reconsider(record, now)

    def _stop_on_request(self, record: Record, wanted: str, now: int) -> None:
        """Stop a running job on request. `wanted` is what it becomes."""
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
        """End a job in a final state, as of `at` or now."""
        record.state, record.reason, record.wanted = state, why[:500], ""
        record.ended_at = now if at is None else at
        record.placement = record.placement if record.started_at is not None else None
        if state is State.COMPLETED:
            self.run_times.add(kind_of(record), record.held_time)
        self._touch(record)
        self.index.remove(record, was_admitted=admitted)
        self._reconsider(record, now)

    def _reconsider(self, record: Record, now: int) -> None:
        """Admit held jobs that waited for this one."""
        for other in self.index.affected(record):
            if other.state is State.HELD:
                self._admit(other, now)

    def _tell(self, now: int, kind: int, record: Record, fact: Any) -> None:
        self.events.append((now, kind, record.id, record.epoch, fact))

    def _touch(self, record: Record) -> None:
        self.batch.changed[record.id] = record


def _rigid(job: Job) -> Job:
    """An elastic job for an engine that resizes none: it runs with the number of GPUs that it asks for."""
    return replace(job, traits=replace(job.traits, least=None, most=None)) if job.traits.elastic else job


def _types_of(cluster: Cluster, placement: Placement) -> str:
    return ",".join(sorted({cluster.nodes[cluster.number[part["node"]]].type.name for part in placement}))


def placement_of(cluster: Cluster, spots: Spots) -> Placement:
    """Spots as node names and device numbers."""
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
