"""A plan as a draft: it edits the core's indexes at once, and a rollback restores them exactly.

Each edit is either done or refused at once. `core.commit` checks what depends on the whole plan, before any
of it is enacted. A draft that was committed or rolled back is closed: it refuses further edits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, NoReturn, cast

from dovetail.core.active import SPOTS, ActiveJob, Saved
from dovetail.core.attention import IF_NONE_WAITS, NEVER, PAST_WAITING
from dovetail.core.resize import resized
from dovetail.core.room import Room
from dovetail.model.action import Answer, Rent, SetPower
from dovetail.model.errors import PlanError
from dovetail.model.estimate import task_range
from dovetail.model.grant import FULL, Spots, Terms, devices_of, load_of
from dovetail.model.view import JobView, Reservation

if TYPE_CHECKING:
    from dovetail.core.core import Core


class Note(NamedTuple):
    """Why a job was not started, as the policy or the room said it."""

    job: str
    word: str
    detail: str
    behind: str = ""  # the job that it must not delay


@dataclass(slots=True)
class More:
    """What a plan may hold besides grants; most plans have none of it."""

    answers: list[Answer] = field(default_factory=list)
    node_actions: list[SetPower | Rent] = field(default_factory=list)
    calendar: dict[str, Reservation | None] = field(default_factory=dict)
    holds: dict[str, tuple[Spots, int] | None] = field(default_factory=dict)
    closed: list[int] = field(default_factory=list)


class _Closed:
    """What a draft has in place of a core once it is closed."""

    def __getattr__(self, name: str) -> NoReturn:
        raise PlanError("this draft was committed or abandoned; ask the view for a new one")


_CLOSED = cast("Core", _Closed())


class Draft:
    """What a policy wants changed, as if it were done."""

    __slots__ = (
        "_core",
        "_starts",
        "displaces",
        "memory",
        "more",
        "notes",
        "rests",
        "review_at",
        "room",
        "starts_arrivals",
        "stopped_for",
        "touched",
    )

    def __init__(self, core: Core, notes: list[Note] | None = None) -> None:
        self._core = core
        self._starts = core.starts
        self.touched: dict[ActiveJob, Saved | int] = {}  # its state before; an int: it waited since then
        self.room: Room = core.room
        self.review_at: int | None = None
        self.memory = core.memory
        self.notes = notes  # None unless a user asks why a job waits
        self.more: More | None = None
        self.rests: ActiveJob | bool = False
        self.displaces = False
        self.stopped_for: dict[ActiveJob, ActiveJob] | None = None  # a stopped job, and the one it is for
        self.starts_arrivals = NEVER

    @property
    def used(self) -> Mapping[str, int]:
        return self._core.used

    def start(self, job: JobView, spots: Spots | None = None, terms: Terms = FULL) -> bool:
        """Start a waiting job on these spots, or by best fit. False: no room, or its tenant is at a limit."""
        mine: ActiveJob = job  # type: ignore[assignment]  # the core's own, handed out as a view
        core, touched = self._core, self.touched
        if mine.filed is None:
            raise PlanError(f"job {job.id} cannot be started: it is not waiting")
        if terms is not FULL and not isinstance(terms, Terms):
            raise PlanError(f"job {job.id} cannot run on terms {terms!r}: they are not Terms")
        if core.limited and not core.within_limits(
            mine, mine.shape.load if spots is None else load_of(spots)
        ):
            return self.deny(job, "QOSMaxGRESPerUser", f"tenant {mine.tenant} is at its limit")
        if spots is None:
            shape = mine.shape
            spots = core.room.grab(shape)
            if spots is None:
                return self.deny(job, "Resources") if self.notes is not None else False
            held = shape.load if shape.plain else load_of(spots)
        else:
            if type(spots) is not tuple or not spots:  # a list would not be equal to its line in the journal
                raise PlanError(f"job {job.id} cannot be started on {spots!r}: give a tuple of spots")
            devices = spots[0][1].bit_count() if len(spots) == 1 else devices_of(spots)
            if devices > mine.gpus or mine.shape.types:
                self._check(mine, spots)
            before = touched.get(mine, 0)  # a job that this draft stopped may return to a drained node
            core.room.take(spots, back=not isinstance(before, int) and before[SPOTS] == spots)
            held = load_of(spots)
        if mine not in touched:
            touched[mine] = mine.waiting_since
        core.queue.remove(mine)
        mine.begin(core.now, spots, terms, held)
        core.enter(mine)
        return True

    def stop(self, job: JobView, by: JobView | None = None) -> None:
        """Preempt a job: it gives up all it holds and waits again. `by` is the job that it makes way for."""
        mine: ActiveJob = job  # type: ignore[assignment]  # the core's own, handed out as a view
        core = self._core
        if mine.spots is None or core.running.get(mine.id) is not mine:
            raise PlanError(f"job {job.id} cannot be stopped: it is not running")
        if by is not None:
            other = core.jobs.get(getattr(by, "id", ""))
            if other is None or other is not by:
                raise PlanError(f"job {job.id} cannot make way for {by!r}: that is not an active job")
            if self.stopped_for is None:
                self.stopped_for = {}
            self.stopped_for[mine] = other
        elif self.stopped_for is not None:
            self.stopped_for.pop(mine, None)  # stopped once before, for a job that then did not start
        if mine not in self.touched:
            self.touched[mine] = mine.save()
        self.displaces = True
        core.leave(mine)
        core.room.give(mine.spots)
        mine.end(core.now)
        core.queue.push(mine, core.now)

    def shift(self, job: JobView, spots: Spots, terms: Terms = FULL) -> bool:
        """Let a running job go on with other spots or terms; False if its tenant is at its limit."""
        mine = cast("ActiveJob", job)
        core = self._core
        old = mine.spots
        if old is None or core.running.get(mine.id) is not mine:
            raise PlanError(f"job {job.id} cannot be shifted: it is not running")
        if not isinstance(terms, Terms):
            raise PlanError(f"job {job.id} cannot run on terms {terms!r}: they are not Terms")
        if type(spots) is not tuple or not spots:
            raise PlanError(f"job {job.id} cannot be shifted to {spots!r}: give a tuple of spots")
        self._check(mine, spots)
        if core.limited and not core.within_limits(mine, load_of(spots) - mine.held):
            return self.deny(job, "QOSMaxGRESPerUser", f"tenant {mine.tenant} is at its limit")
        core.room.give(old)
        try:
            core.room.take(spots, back=_nodes(spots) <= _nodes(old))
        except BaseException:
            core.room.take(old, back=True)
            raise
        if mine not in self.touched:
            self.touched[mine] = mine.save()
        self.displaces = True
        core.leave(mine)
        mine.settle(core.now)
        mine.spots, mine.terms, mine.held = spots, terms, load_of(spots)
        core.enter(mine)
        return True

    def resize(self, job: JobView, tasks: int) -> bool:
        """Let a running job go on with this number of tasks, on and near the devices that it holds.

        False, and nothing changes, if there is no room, its tenant is at its limit, or it shares devices.
        """
        mine = cast("ActiveJob", job)
        if mine.spots is None:
            raise PlanError(f"job {job.id} cannot be resized: it is not running")
        least, most = task_range(mine.shape, mine.traits)
        if not least <= tasks <= most:
            raise PlanError(f"job {job.id} runs with {least} to {most} tasks, not {tasks}")
        spots = self._resized(mine, mine.spots, tasks)
        if spots is None:
            return self.deny(job, "Resources", f"no room near it for {tasks} tasks")
        return spots == mine.spots or self.shift(job, spots, mine.terms)

    def _resized(self, job: ActiveJob, granted: Spots, tasks: int) -> Spots | None:
        """The spots for this number of tasks; of a growing job, near those on which it runs."""
        room, runs_on = self.room, job.runs_on
        if runs_on is None:
            return resized(room, job.shape, granted, tasks)
        room.give(granted)
        room.take(runs_on, back=True)
        spots = resized(room, job.shape, runs_on, tasks)
        room.give(runs_on)
        room.take(granted, back=True)
        return spots

    def _check(self, job: ActiveJob, spots: Spots) -> None:
        """Refuse more tasks than the job may have, and GPU types that it does not accept."""
        shape, most = job.shape, job.traits.most or 0
        tasks = devices_of(spots) // (shape.each or 1)
        if tasks > max(most, shape.tasks):
            raise PlanError(f"job {job.id} takes {max(most, shape.tasks)} tasks at most, not {tasks}")
        nodes = self._core.cluster.nodes
        if shape.types and any(spot[1] and nodes[spot[0]].type.name not in shape.types for spot in spots):
            raise PlanError(f"job {job.id} accepts {'|'.join(shape.types)}, and a spot has another type")

    def rest(self, on: JobView | None = None) -> None:
        """Promise: all that can start has started. Ask again when a waiting job may fit, packed.

        With a job: when this one may fit, or is no longer the head of the queue.
        """
        self.rests = True if on is None else cast("ActiveJob", on)

    def start_arrivals(self, *, past_waiting: bool) -> None:
        """Standing order: until the next decision, start an arrival that fits at once, packed.

        `past_waiting`: also if other jobs wait. While no job waits, there is nothing to decide.
        """
        limited = self._core.limited
        self.starts_arrivals = NEVER if limited else PAST_WAITING if past_waiting else IF_NONE_WAITS

    def deny(self, job: JobView, reason: str, detail: str = "", behind: JobView | None = None) -> bool:
        """Say why a job is passed over, and which job it must not delay; returns False."""
        if self.notes is not None:
            self.notes.append(Note(job.id, reason, detail, "" if behind is None else behind.id))
        return False

    def _more(self) -> More:
        if self.more is None:
            self.more = More()
        return self.more

    def refuse(self, job: JobView, why: str) -> None:
        """Tell the user of a waiting job that it will never run here."""
        self._answer(job, "refused", None, why)

    def accept(self, job: JobView, by: int) -> None:
        """Promise that a job will have finished by then."""
        self._answer(job, "accepted", by, "")

    def demote(self, job: JobView, priority: int, why: str) -> None:
        """Let a job go on under another priority."""
        self._answer(job, "demoted", priority, why)

    def _answer(self, job: JobView, answer: str, value: int | None, why: str) -> None:
        if self._core.jobs.get(job.id) is not job:
            raise PlanError(f"job {job.id} cannot be {answer}: it is not active")
        if value is not None and type(value) is not int:
            raise PlanError(f"job {job.id} cannot be {answer} with {value!r}: a whole number is needed")
        self._more().answers.append(Answer(job.id, answer, value, str(why)))

    def reserve(self, job: JobView, reservation: Reservation) -> None:
        if not isinstance(reservation, Reservation):
            raise PlanError(f"job {job.id} cannot be given the reservation {reservation!r}")
        if reservation.start < self._core.now:
            raise PlanError(f"job {job.id} cannot be promised a start at {reservation.start}: that is past")
        self._more().calendar[job.id] = reservation

    def forget(self, job_id: str) -> None:
        self._more().calendar[job_id] = None

    def hold(self, owner: str, spots: Spots, until: int) -> None:
        """Keep spots free until then."""
        holds = self._more().holds
        if type(until) is not int or until <= self._core.now or owner in self._core.holds or owner in holds:
            raise PlanError(
                f"{owner} cannot hold spots until {until}: that is past, or it holds some already"
            )
        if not isinstance(spots, tuple):
            raise PlanError(f"{owner} cannot hold {spots!r}: they are not spots")
        self._core.room.take(spots)
        self._core.departures.touched(spots)
        holds[owner] = (spots, until)

    def release(self, owner: str) -> None:
        """End a hold before its time."""
        holds = self._more().holds
        if owner in holds or owner not in self._core.holds:
            raise PlanError(f"{owner} holds nothing that could be released")
        spots = self._core.holds[owner][0]
        self._core.room.give(spots)
        self._core.departures.touched(spots)
        holds[owner] = None

    def power(self, node: int, on: bool) -> None:
        """Switch an empty node off, or a sleeping one on. A node is empty when its jobs have stopped."""
        self._more().node_actions.append(SetPower(self._core.cluster.nodes[node].name, on))
        if not on:
            self._close(node)

    def rent(self, node: int, keep: bool, owner: str = "") -> None:
        """Rent a node from its owner, or give an empty one back."""
        self._more().node_actions.append(Rent(self._core.cluster.nodes[node].name, keep, owner))
        if not keep:
            self._close(node)

    def _close(self, node: int) -> None:
        if self._core.room.is_open(node):
            self._core.room.close(node)
            self._core.departures.touch(node)
            self._more().closed.append(node)

    def undo(self) -> None:
        """Put everything back as it was, and close the draft."""
        core = self._core
        holds = {} if self.more is None else self.more.holds
        for node in () if self.more is None else self.more.closed:
            core.room.open(node)
            core.departures.touch(node)
        for kept in holds.values():
            if kept is not None:
                core.room.give(kept[0])
                core.departures.touched(kept[0])
        for job in self.touched:
            if job.spots is not None:
                core.leave(job)
                core.room.give(job.spots)
        for job, saved in self.touched.items():
            if isinstance(saved, int):
                job.vacate(saved)
            else:
                job.restore(saved)
            if job.spots is not None:
                core.room.take(job.spots, back=True)
                core.enter_again(job)
                if job.filed is not None:
                    core.queue.remove(job)
            elif job.filed is None:
                core.queue.push(job, core.now)
        if self.displaces:
            before = sorted(core.running.items(), key=lambda item: item[1].start_number)
            core.running.clear()
            core.running.update(before)
        for owner, kept in holds.items():
            if kept is None:
                core.room.take(core.holds[owner][0], back=True)
                core.departures.touched(core.holds[owner][0])
        core.starts = self._starts
        self.close()

    def close(self) -> None:
        """Refuse every further edit."""
        self._core = _CLOSED


def _nodes(spots: Spots) -> set[int]:
    return {spot[0] for spot in spots}
