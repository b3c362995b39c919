"""A plan as a draft: it edits the core's indexes at once, and can be undone to the last bit.

Whatever a policy asks of a draft either can be done or is refused on the spot, so a plan that reaches its end
is one that the cluster can follow.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, cast

from dovetail.core.active import ActiveJob, Saved
from dovetail.core.room import Room
from dovetail.model.action import Answer, Rent, SetPower
from dovetail.model.errors import PlanError
from dovetail.model.grant import FULL, Spots, Terms, devices_of, load_of
from dovetail.model.view import JobView, Reservation

if TYPE_CHECKING:
    from dovetail.core.core import Core


NOBODY, ALONE, ANYBODY = range(3)  # which newcomers start unasked, if they fit


class Note(NamedTuple):
    """Why a job was not started, as the policy or the room said it."""

    job: str
    word: str
    detail: str


@dataclass(slots=True)
class More:
    """What a plan may hold besides grants; most plans have none of it."""

    answers: list[Answer] = field(default_factory=list)
    node_actions: list[SetPower | Rent] = field(default_factory=list)
    calendar: dict[str, Reservation | None] = field(default_factory=dict)
    holds: dict[str, tuple[Spots, int] | None] = field(default_factory=dict)
    closed: list[int] = field(default_factory=list)


class Draft:
    """What a policy wants changed, as if it were done."""

    __slots__ = (
        "_core",
        "displaces",
        "memory",
        "more",
        "notes",
        "rests",
        "review_at",
        "room",
        "touched",
        "welcomes",
    )

    def __init__(self, core: Core, notes: list[Note] | None = None) -> None:
        self._core = core
        self.touched: dict[ActiveJob, Saved | int] = {}  # with what it had, or since when it waited
        self.room: Room = core.room
        self.review_at: int | None = None
        self.memory = core.memory
        self.notes = notes  # kept only while somebody asks why
        self.more: More | None = None
        self.rests: ActiveJob | bool = False
        self.displaces = False
        self.welcomes = NOBODY

    @property
    def used(self) -> Mapping[str, int]:
        return self._core.used

    def start(self, job: JobView, spots: Spots | None = None, terms: Terms = FULL) -> bool:
        """Give a waiting job these spots, or the best; False if there is no room or its tenant is full."""
        mine: ActiveJob = job  # type: ignore[assignment]  # the core's own, handed out as a view
        core, touched = self._core, self.touched
        if mine.filed is None:
            raise PlanError(f"job {job.id} cannot be started: it does not wait")
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
            devices = spots[0][1].bit_count() if len(spots) == 1 else devices_of(spots)
            if devices > mine.gpus or mine.shape.types:
                self._check(mine, spots)
            before = touched.get(mine, 0)  # it may go back to where it was, though that be drained by now
            core.room.take(spots, back=not isinstance(before, int) and before[0] == spots)
            held = load_of(spots)
        if mine not in touched:
            touched[mine] = mine.waiting_since
        core.queue.remove(mine)
        mine.begin(core.now, spots, terms, held)
        core.enter(mine)
        return True

    def stop(self, job: JobView) -> None:
        """Take back all that a job holds; it waits again."""
        mine: ActiveJob = job  # type: ignore[assignment]  # the core's own, handed out as a view
        core = self._core
        if mine.spots is None:
            raise PlanError(f"job {job.id} cannot be stopped: it does not run")
        if mine not in self.touched:
            self.touched[mine] = mine.save()
        self.displaces = True
        core.leave(mine)
        core.room.give(mine.spots)
        mine.end(core.now)
        core.queue.push(mine, core.now)

    def shift(self, job: JobView, spots: Spots, terms: Terms = FULL) -> bool:
        """Let a running job go on with other spots or terms; False if its tenant is full."""
        mine = cast("ActiveJob", job)
        core = self._core
        old = mine.spots
        if old is None:
            raise PlanError(f"job {job.id} cannot be shifted: it does not run")
        self._check(mine, spots)
        if core.limited and not core.within_limits(mine, load_of(spots) - mine.held):
            return self.deny(job, "QOSMaxGRESPerUser", f"tenant {mine.tenant} is at its limit")
        core.room.give(old)
        try:
            core.room.take(spots, back=_nodes(spots) <= _nodes(old))
        except PlanError:
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

    def _check(self, job: ActiveJob, spots: Spots) -> None:
        """No more tasks than it has, and only devices of a type it accepts."""
        shape, most = job.shape, job.traits.most or 0
        tasks = devices_of(spots) // (shape.each or 1)
        if tasks > max(most, shape.tasks) or not spots:
            raise PlanError(f"job {job.id} takes {max(most, shape.tasks)} tasks at most, not {tasks}")
        nodes = self._core.cluster.nodes
        if shape.types and any(spot[1] and nodes[spot[0]].type.name not in shape.types for spot in spots):
            raise PlanError(f"job {job.id} accepts {'|'.join(shape.types)}, not what it was given")

    def rest(self, on: JobView | None = None) -> None:
        """All that can start has started: ask again when a waiting job may fit, packed.

        With a job: when this one may fit, or is not the first any more.
        """
        self.rests = True if on is None else cast("ActiveJob", on)

    def welcome(self, *, past: bool) -> None:
        """Unless something else happens, let a newcomer that fits start at once, packed.

        `past` those who wait, or only if nobody does. While nobody waits there is nothing to decide.
        """
        self.welcomes = NOBODY if self._core.limited else ANYBODY if past else ALONE

    def deny(self, job: JobView, reason: str, detail: str = "") -> bool:
        """Say why a job is passed over; kept only when somebody asks."""
        if self.notes is not None:
            self.notes.append(Note(job.id, reason, detail))
        return False

    def _more(self) -> More:
        if self.more is None:
            self.more = More()
        return self.more

    def refuse(self, job: JobView, why: str) -> None:
        """Tell a waiting job that it will never run here."""
        self._more().answers.append(Answer(job.id, "refused", None, why))

    def accept(self, job: JobView, by: int) -> None:
        """Promise that a job will be done by then."""
        self._more().answers.append(Answer(job.id, "accepted", by, ""))

    def demote(self, job: JobView, priority: int, why: str) -> None:
        """Let a job go on under another priority."""
        self._more().answers.append(Answer(job.id, "demoted", priority, why))

    def reserve(self, job: JobView, reservation: Reservation) -> None:
        if reservation.start < self._core.now:
            raise PlanError(f"job {job.id} cannot be promised a start at {reservation.start}: that is past")
        self._more().calendar[job.id] = reservation

    def forget(self, job_id: str) -> None:
        self._more().calendar[job_id] = None

    def hold(self, owner: str, spots: Spots, until: int) -> None:
        """Keep spots free for somebody until then."""
        holds = self._more().holds
        if until <= self._core.now or owner in self._core.holds or owner in holds:
            raise PlanError(
                f"{owner} cannot hold spots until {until}: that is past, or it holds some already"
            )
        self._core.room.take(spots)
        self._core.exits.touched(spots)
        holds[owner] = (spots, until)

    def release(self, owner: str) -> None:
        """End a hold before its time."""
        holds = self._more().holds
        if owner in holds or owner not in self._core.holds:
            raise PlanError(f"{owner} holds nothing that could be released")
        spots = self._core.holds[owner][0]
        self._core.room.give(spots)
        self._core.exits.touched(spots)
        holds[owner] = None

    def power(self, node: int, on: bool) -> None:
        """Switch an empty node off, or a sleeping one on."""
        if not on and any(node == spot[0] for job in self._core.running.values() for spot in job.spots or ()):
            raise PlanError(
                f"node {self._core.cluster.nodes[node].name} cannot be switched off: it is in use"
            )
        self._more().node_actions.append(SetPower(self._core.cluster.nodes[node].name, on))
        if not on:
            self._close(node)

    def rent(self, node: int, keep: bool, owner: str = "") -> None:
        """Take a node that another owns, or give it back."""
        self._more().node_actions.append(Rent(self._core.cluster.nodes[node].name, keep, owner))
        if not keep:
            self._close(node)

    def _close(self, node: int) -> None:
        if self._core.room.is_open(node):
            self._core.room.close(node)
            self._core.exits.touch(node)
            self._more().closed.append(node)

    def undo(self) -> None:
        """Put everything back as it was."""
        core = self._core
        holds = {} if self.more is None else self.more.holds
        for node in () if self.more is None else self.more.closed:
            core.room.open(node)
            core.exits.touch(node)
        for kept in holds.values():
            if kept is not None:
                core.room.give(kept[0])
                core.exits.touched(kept[0])
        for job in self.touched:
            if job.spots is not None:
                core.leave(job)
                core.room.give(job.spots)
        for job, saved in self.touched.items():
            waited = job.spots is None
            if isinstance(saved, int):
                job.spots, job.terms, job.held, job.waiting_since = None, FULL, 0, saved
            else:
                job.restore(saved)
            if job.spots is not None:
                core.room.take(job.spots, back=True)
                turn = job.turn
                core.enter(job)
                job.turn = turn
                if waited:
                    core.queue.remove(job)
            elif not waited:
                core.queue.push(job, core.now)
        if self.displaces:
            before = sorted(core.running.items(), key=lambda item: item[1].turn)
            core.running.clear()
            core.running.update(before)
        for owner, kept in holds.items():
            if kept is None:
                core.room.take(core.holds[owner][0], back=True)
                core.exits.touched(core.holds[owner][0])
        self.touched = {}
        self.more = None


def _nodes(spots: Spots) -> set[int]:
    return {spot[0] for spot in spots}
