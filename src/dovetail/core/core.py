"""The core: events in, one checked plan, actions out.

It has no clock, no I/O and no chance of its own: the same events give the same steps, byte for byte. A step
is the only way the state changes. A job that is stopped keeps its devices until `stopped` comes; who was
given them meanwhile is started then, so stops come before starts whatever the engine's pace.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple, cast

from dovetail.core.active import WAITING_SINCE, ActiveJob, Saved
from dovetail.core.draft import ANYBODY, Draft, More, Note
from dovetail.core.exits import LONGEST_WAIT, Exits
from dovetail.core.handover import Handover, add_leaving
from dovetail.core.queue import Queue
from dovetail.core.room import Room
from dovetail.core.timers import Timers
from dovetail.model.action import Action, Answer, Rent, Resize, SetPower, Start, Stop
from dovetail.model.cluster import Cluster
from dovetail.model.errors import NeverFits, PlanError
from dovetail.model.event import (
    CANCELLED,
    DRAINED,
    FAILED,
    FINISHED,
    NODE_JOINED,
    NODE_LOST,
    PRICED,
    PRIORITISED,
    PROGRESSED,
    RESIZED,
    STOPPED,
    SUBMITTED,
    Event,
)
from dovetail.model.grant import FULL, Spots, load_of, resizes, within
from dovetail.model.job import Job, Shape
from dovetail.model.units import MINUTE
from dovetail.model.view import JobView, Key, Policy, Reservation

_new = tuple.__new__  # a step and a start at every turn: their own constructors take twice as long


class Step(NamedTuple):
    """What one call of `handle` did."""

    number: int
    now: int
    events: list[Event]
    decided: bool
    actions: list[Action]


class Core:
    """The state of a cluster, and the policy that runs it. Policies see it as a `View`."""

    __slots__ = (
        "_calm",
        "_clocked",
        "_closed",
        "_draft",
        "_handover",
        "_limits",
        "_lines",
        "_needs",
        "_notes",
        "_order",
        "_owed",
        "_quantum",
        "_rests",
        "_review_at",
        "_round_due",
        "_seq",
        "_spares",
        "_stuck",
        "_timers",
        "_tree",
        "_turns",
        "_until",
        "_welcomes",
        "_yields",
        "alarm",
        "arrived",
        "calendar",
        "cluster",
        "decisions",
        "exits",
        "holds",
        "hopeful",
        "jobs",
        "limited",
        "memory",
        "moved",
        "now",
        "number",
        "policy",
        "prices",
        "queue",
        "room",
        "running",
        "seed",
        "used",
    )

    def __init__(self, cluster: Cluster, policy: Policy, seed: int = 0) -> None:
        self.cluster = cluster
        self.policy = policy
        self.seed = seed
        self.now = 0
        self.number = 0
        self.room = Room(cluster)
        limited = any(tenant.limit is not None for tenant in cluster.tenants.values())
        # A tenant at its limit holds up only its own: then its jobs are filed apart.
        self.queue = Queue(policy.order.key, policy.group or (_tenant if limited else None))
        self.jobs: dict[str, ActiveJob] = {}
        self.running: dict[str, ActiveJob] = {}
        self.exits = Exits(self.room, self._exit_key)
        self.used: dict[str, int] = defaultdict(int)
        self.arrived: list[ActiveJob] = []
        self.moved = False
        self.hopeful: list[Shape] | None = None
        self.memory: object = None
        self.calendar: dict[str, Reservation] = {}
        self.holds: dict[str, tuple[Spots, int]] = {}
        self.prices: dict[int, float] = {i: node.price for i, node in enumerate(cluster.nodes)}
        self._order = policy.order
        self._yields = None if policy.order.drifts else policy.order.yields
        self._until = policy.order.until
        self._spares = policy.order.limit is not None  # those who may not be preempted
        self._quantum = policy.quantum
        self._round_due: int | None = None
        self._review_at: int | None = None
        self._timers = Timers(policy.quantum or MINUTE)
        self._handover = Handover(self.room)
        self._rests: ActiveJob | bool = False
        self._clocked = policy.order.until is not None
        self.alarm: int | None = None  # call `handle` then, if nothing happens before
        self.decisions = 0  # how often the policy was asked
        self._owed: list[Action] = []  # what followed from things heard, and no step has told yet
        self._calm = False  # the policy rests, and surely nobody who waits fits
        self._stuck: ActiveJob | None = None  # the policy rests until this one may fit
        self._welcomes = 0
        self._seq = 0
        self._notes: list[Note] | None = None
        self._turns = 0  # how often somebody began to hold something
        self._draft: Draft | None = None  # the last one handed out
        self._needs: dict[Shape, int] = {}
        self._lines: dict[str, tuple[str, ...]] = {}
        self._limits = {t.name: t.limit * 1000 for t in cluster.tenants.values() if t.limit is not None}
        self._closed: dict[int, str] = {}
        self._tree = bool(cluster.tenants)
        self.limited = bool(self._limits)

    # -- the one way in

    def handle(self, now: int, events: list[Event]) -> Step:
        """Apply what happened up to now; decide if there is something to decide; say what is to be done."""
        if now < self.now:
            raise ValueError(f"time went back from {self.now} to {now}")
        self.now = now
        self._calm = False
        self.number = number = self.number + 1
        if len(self.exits.moved) > LONGEST_WAIT:
            self.exits.settle()
        actions: list[Action] = []
        if self._owed:
            actions, self._owed = self._owed, actions
        quantum, rests = self._quantum, self._rests
        gathers = (  # of a round's newcomers, those who come first start unasked
            quantum is not None
            and self._welcomes == ANYBODY
            and rests is False
            and not now % quantum
            and not self._handover.held
        )
        newcomers: list[Event] = []
        for event in events:
            kind = event[1]
            if kind == SUBMITTED:
                if gathers:
                    newcomers.append(event)
                else:
                    self._submitted(event[4], event[3])
            elif kind == FINISHED:
                self._over(event[0], event[2], event[3], None, actions)
            else:
                self._apply(event, actions)
        if self._clocked:
            self._ring(now)
        if gathers and self._handover.held:
            for event in newcomers:
                self._submitted(event[4], event[3])
        elif gathers:
            welcomed = self._gather(newcomers)
            if newcomers or self.moved or self.arrived:
                self._decide_after(welcomed, now, actions)
                return _new(Step, (number, now, events, True, actions))
        rests = self._rests  # it may have been roused
        if not (self.moved or self.arrived) if rests is False else not self._worth_asking(rests):
            if self._clocked:
                self.alarm = self._next_alarm()
            return _new(Step, (number, now, events, False, actions))
        if self._quantum is not None and now % self._quantum:
            self._round_due = now - now % self._quantum + self._quantum
            self.alarm = self._next_alarm()
            return _new(Step, (number, now, events, False, actions))
        self._decide(now, actions)
        return _new(Step, (number, now, events, True, actions))

    def _gather(self, newcomers: list[Event]) -> list[Action]:
        """Start a round's newcomers in order, up to the first that does not fit or goes behind one who waits.

        The others wait, and the policy is asked.
        """
        now, queue, actions = self.now, self.queue, list[Action]()
        jobs, needs, key, seq, grab = self.jobs, self._needs, self._order.key, self._seq, self.room.grab
        fresh = []
        for event in newcomers:
            spec: Job = event[4]
            need = needs.get(spec.shape)
            jobs[spec.id] = job = ActiveJob(spec, seq, self._need(spec) if need is None else need)
            job.epoch = event[3]
            fresh.append((key(job, now), seq, job))
            self._seq = seq = seq + 1
        if len(fresh) > 1:
            fresh.sort()
        head = queue.head()
        first = None if head is None else head.filed
        for place, entry in enumerate(fresh):
            job = entry[2]
            shape = job.shape
            if (first is not None and first < entry) or (spots := grab(shape)) is None:
                for _, _, job in fresh[place:]:
                    queue.push(job, now)
                    self.arrived.append(job)
                    if self._order.turns_waiting:
                        self._arm(job)
                break
            job.begin(now, spots, FULL, shape.load if shape.plain else load_of(spots))
            self.enter(job)
            self._set_off(job, actions)
            self.arrived.append(job)  # new to the policy all the same, if it is asked
        return actions

    def _decide_after(self, welcomed: list[Action], now: int, actions: list[Action]) -> None:
        """Let the policy decide for those who wait, if somebody does; stops go before all starts."""
        if not self.queue.size:
            self.decisions += 1
            self._review_at = self._round_due = self.hopeful = None
            self.alarm = self._next_alarm()
            self.arrived = []
            self.moved = False
            actions += welcomed
            return
        told = len(actions)
        try:
            self._decide(now, actions)
        except BaseException:
            self._owed += welcomed
            raise
        while told < len(actions) and type(actions[told]) is not Start:
            told += 1
        actions[told:told] = welcomed

    def _decide(self, now: int, actions: list[Action]) -> None:
        try:
            draft: Draft = self.policy.decide(self)  # type: ignore[assignment]  # ours, handed out as a plan
        except BaseException:
            if self._draft is not None:
                self._draft.undo()
            raise
        self.decisions += 1
        self.memory = draft.memory
        if draft.displaces or self._handover.held:
            self._enact(draft.touched, actions)
        else:
            for job in draft.touched:  # they waited, and start now
                self._set_off(job, actions)
        if draft.more is not None:
            self._commit_more(draft.more, actions)
        self._rests = rests = draft.rests
        if draft.review_at is not None:
            if draft.review_at <= now:
                raise PlanError(f"a review at {draft.review_at} is not after now, {now}")
            self._clocked = True
        if self._clocked or self._quantum is not None:
            self._review_at = draft.review_at
            self._round_due = None
            self.alarm = self._next_alarm()
        self.arrived = []
        self.moved = False
        self.hopeful = None
        # Proved by the bounds alone: some policies rest though somebody fits whom they hold back.
        self._calm = rests is True and not self._clocked and self.queue.need > self.room.level
        self._stuck = rests if type(rests) is ActiveJob and not self._clocked else None
        self._welcomes = draft.welcomes

    def hear(self, event: Event, more: bool) -> Step | None:
        """The same as `handle` for one event at its own time, but no step where nothing comes of it.

        While a policy rests most events are none of its business, and cost little this way. Nothing is
        decided while `more` of this instant is to come. Rounds are the business of `handle` alone.
        """
        now = self.now = event[0]
        kind = event[1]
        if kind == FINISHED:
            self._over(now, event[2], event[3], None, self._owed)
            if self._calm:
                if self.queue.need > self.room.level and not self._owed:
                    return None
                self._calm = False
            elif self._stuck is not None:
                first = self._stuck
                if first.need > self.room.level and first.filed is not None and not self._owed:
                    return None
            elif self._welcomes and not self.queue.size and not self._owed and not self._clocked:
                self.moved = False  # nobody waits: nothing to decide, and nothing to look at again
                return None
        elif kind == SUBMITTED:
            spec: Job = event[4]
            if self._calm:
                need = self._needs.get(spec.shape)
                if need is not None and need <= self.room.level:
                    if self._welcomes and not more and (self._welcomes == ANYBODY or not self.queue.size):
                        return self._welcomed(event, need)
                    need = None
                self._submitted(spec, event[3])
                if need is not None:
                    return None
                self._calm = False
            elif self._stuck is not None and self._order.fifo:
                self._submitted(spec, event[3])
                return None
            elif self._welcomes and not (more or self.moved or self.arrived or self._clocked):
                need = self._needs.get(spec.shape)
                if (
                    need is not None
                    and need <= self.room.level
                    and (self._welcomes == ANYBODY or not self.queue.size)
                ):
                    return self._welcomed(event, need)
                self._submitted(spec, event[3])
            else:
                self._submitted(spec, event[3])
        else:
            self._calm = False
            self._apply(event, self._owed)
        return None if more else self.handle(now, [])

    def _welcomed(self, event: Event, need: int) -> Step | None:
        """A newcomer that fits starts at once, as the policy would have it."""
        spec: Job = event[4]
        shape = spec.shape
        spots = self.room.grab(shape)
        if spots is None:  # types differ, and those with room are not its own
            self._submitted(spec, event[3])
            return self.handle(event[0], [])
        job = ActiveJob(spec, self._seq, need)
        self._seq += 1
        job.epoch = event[3]
        self.jobs[spec.id] = job
        job.begin(event[0], spots, FULL, shape.load if shape.plain else load_of(spots))
        self.enter(job)
        actions: list[Action] = []
        self._set_off(job, actions)
        self.number += 1
        self.decisions += 1
        if len(self.exits.moved) > LONGEST_WAIT:
            self.exits.settle()
        return _new(Step, (self.number, event[0], [event], True, actions))

    def _worth_asking(self, rests: ActiveJob | bool) -> bool:
        """Whether a policy that rests might start something now."""
        queue, room = self.queue, self.room
        if rests is not True:
            first = queue.head()
            return first is None or first is not rests or room.may_fit(first.shape)
        arrived = self.arrived
        if queue.size == len(arrived):
            return queue.size > 0
        if not self.moved:  # nothing fell free: only newcomers can fit
            self.hopeful = []
            for job in arrived:
                if job.need <= room.level and job.shape not in self.hopeful and room.may_fit(job.shape):
                    self.hopeful.append(job.shape)
        else:
            if queue.need <= room.level:
                self.hopeful = queue.fitting(room.level, None if room.uniform else room.may_fit)
                if self.hopeful:
                    return True
            self._calm = not self._clocked and queue.need > room.level
            return False
        return bool(self.hopeful)

    def wake(self, time: int) -> int:
        """When the core wants to hear of something that happens at `time`: then, or at the round's end."""
        quantum = self._quantum
        if quantum is None or self._handover.held:
            return time
        return time + -time % quantum

    def _next_alarm(self) -> int | None:
        at = self._timers.first()
        if at is not None:
            at = self.wake(at)
        review, due = self._review_at, self._round_due
        if review is not None and (at is None or review < at):
            at = review
        if due is not None and (at is None or due < at):
            at = due
        if self.holds:
            ends = min(until for _, until in self.holds.values())
            at = ends if at is None or ends < at else at
        return at

    # -- what a policy sees besides the attributes

    def draft(self) -> Draft:
        self._draft = draft = Draft(self, self._notes)
        return draft

    def abandon(self, draft: Draft) -> None:
        """Undo a draft that shall not be."""
        draft.undo()

    def notes(self) -> list[Note]:
        """Decide, keep nothing of it, and tell why each job that was asked for was passed over."""
        arrived, moved, number, hopeful = self.arrived, self.moved, self.number, self.hopeful
        self._notes, self.moved, self.hopeful = [], True, None
        self._draft = None
        try:
            self.policy.decide(self)
            return self._notes
        finally:
            if self._draft is not None:
                self.abandon(self._draft)
            self._notes, self.arrived, self.moved, self.number = None, arrived, moved, number
            self.hopeful = hopeful

    # -- bookkeeping shared by drafts and events

    def enter(self, job: ActiveJob) -> None:
        """A job holds its spots from here on."""
        self.running[job.id] = job
        self._turns += 1
        job.turn = self._turns
        held = job.held
        tenant = job.tenant
        if self._tree:
            for name in self._line(tenant):
                self.used[name] += held
        else:
            self.used[tenant] += held
        if self._yields is not None:
            self.exits.moved.append(job)

    def _exit_key(self, job: ActiveJob) -> Key | None:
        """Where it stands among those who leave; nobody displaces one who may not be preempted."""
        assert self._yields is not None
        if self._spares and not job.spec.traits.preemptible:
            return None
        return self._yields(job, self.now)

    def leave(self, job: ActiveJob) -> None:
        """A job holds its spots no more."""
        del self.running[job.id]
        job.turn = 0
        held = job.held
        tenant = job.tenant
        if self._tree:
            for name in self._line(tenant):
                self.used[name] -= held
        else:
            self.used[tenant] -= held
        if self._yields is not None and job.exit is not None:  # else it is among them, or was never placed
            self.exits.moved.append(job)

    def within_limits(self, job: ActiveJob, more: int) -> bool:
        """Whether its tenant and all above may hold so much more."""
        return all(self.used.get(t, 0) + more <= self._limits.get(t, 1 << 60) for t in self._line(job.tenant))

    def _line(self, tenant: str) -> tuple[str, ...]:
        line = self._lines.get(tenant)
        if line is None:
            line = self._lines[tenant] = self.cluster.line(tenant)
        return line

    # -- events

    def _apply(self, event: Event, actions: list[Action]) -> None:
        time, kind, subject, epoch, fact = event
        if kind == FAILED:
            self._over(time, subject, epoch, fact, actions)
        elif kind == STOPPED:
            self._stopped(subject, epoch, fact, actions)
        elif kind == RESIZED:
            self._released(subject, actions)
        elif kind == PROGRESSED:
            self._progressed(time, subject, epoch, fact)
        elif kind == CANCELLED:
            self._cancelled(time, subject, actions)
        elif kind in (NODE_LOST, DRAINED):
            self._close(self.cluster.number[subject], str(fact), actions, lost=kind == NODE_LOST)
        elif kind == NODE_JOINED:
            self._open(self.cluster.number[subject])
        elif kind == PRICED:
            self.prices[self.cluster.number[subject]] = fact
            self.moved = True
        elif kind == PRIORITISED:
            self._prioritise(subject, fact)
        else:
            raise ValueError(f"no event has the kind {kind}")

    def _submitted(self, spec: Job, epoch: int) -> None:
        shape = spec.shape
        need = self._needs.get(shape)
        if need is None:
            need = self._need(spec)
        self.jobs[spec.id] = job = ActiveJob(spec, self._seq, need)
        self._seq += 1
        job.epoch = epoch  # 0, unless it was here before
        self.queue.push(job, self.now)
        self.arrived.append(job)
        if self._order.turns_waiting:
            self._arm(job)

    def _need(self, spec: Job) -> int:
        """The level of room that its shape needs, worked out once; what can never be served is refused."""
        shape = spec.shape
        if not self.room.ever(shape):
            kind = f" of {'|'.join(shape.types)}" if shape.types else ""
            raise NeverFits(
                f"job {spec.id} asks for {shape.gpus} GPUs{kind}, "
                f"which the empty cluster of {self.cluster.gpus} GPUs cannot hold; give it a larger cluster"
            )
        need = self._needs[shape] = self.room.need(shape)
        return need

    def _over(self, time: int, job_id: str, epoch: int, failure: object, actions: list[Action]) -> None:
        job = self.jobs.get(job_id)
        if job is None or job.epoch != epoch:
            return  # word of an earlier start
        if failure is None and job.spots is not None and not self._handover.held:
            self.leave(job)
            self.room.give(job.spots)
            del self.jobs[job_id]
            job.timer = None
            if self.calendar:
                self.calendar.pop(job_id, None)
            self.moved = True
            return
        retry = failure is not None and job.fails < job.traits.retries
        if job.filed is not None and not retry:
            self.queue.remove(job)  # it was told to stop, and ended first
        elif job.spots is not None:
            self.leave(job)
            self.room.give(job.spots)
            if retry:
                job.end(time)
        job.timer = None
        job.awaiting = None
        if retry:
            job.fails += 1
            job.done = cast("tuple[str, int]", failure)[1]
            if job.filed is None:
                self.queue.push(job, self.now)
                self.arrived.append(job)
        else:
            del self.jobs[job_id]
            self.calendar.pop(job_id, None)
        self.moved = True
        if self._handover.held:
            self._released(job_id, actions)

    def _stopped(self, job_id: str, epoch: int, kept: int, actions: list[Action]) -> None:
        job = self.jobs.get(job_id)
        if job is not None and job.epoch == epoch:
            if job.spots is not None and job.awaiting is None:  # nobody asked: it was taken from outside
                self.leave(job)
                self.room.give(job.spots)
                job.end(self.now)
                job.stops += 1
                self.queue.push(job, self.now)
                self.arrived.append(job)
                self.moved = True
                if self._until is not None:
                    self._arm(job)
            if job.done != kept:
                job.done = kept
                if job.filed is not None:  # its key may depend on what is left of it
                    self.queue.remove(job)
                    self.queue.push(job, self.now)
                    self.arrived.append(job)
                elif job.awaiting is not None and self._yields is not None:
                    self.exits.moved.append(job)
        self._released(job_id, actions)

    def _released(self, job_id: str, actions: list[Action]) -> None:
        """Devices that were still held are free: start those who wait for nothing else."""
        for job in self._handover.let_go(job_id):
            self._issue(job, actions)

    def _progressed(self, time: int, job_id: str, epoch: int, fact: tuple[int, float]) -> None:
        job = self.jobs.get(job_id)
        if job is None or job.epoch != epoch or job.spots is None or job.awaiting is not None:
            return
        job.settle(time)
        job.done, job.rate = fact
        if self._yields is not None:
            self.exits.moved.append(job)
        if self._until is not None:
            self._arm(job)
        self.moved = True

    def _cancelled(self, time: int, job_id: str, actions: list[Action]) -> None:
        job = self.jobs.pop(job_id, None)
        if job is None:
            return
        job.timer = None
        self.calendar.pop(job_id, None)
        if job.filed is not None:
            self.queue.remove(job)
        elif job.spots is not None:
            spots = job.spots
            self.leave(job)
            self.room.give(spots)
            job.end(time)
            if job.awaiting is None:
                self._handover.held[job_id] = spots
                actions.append(Stop(job_id, job.epoch, "cancelled"))
            job.awaiting = None
        self.moved = True

    def _prioritise(self, job_id: str, priority: int) -> None:
        job = self.jobs.get(job_id)
        if job is None:
            return
        job.priority = priority
        if job.filed is not None:
            self.queue.remove(job)
            self.queue.push(job, self.now)
            self.arrived.append(job)
        elif self._yields is not None:
            self.exits.moved.append(job)
        self.moved = True
        self._rests = False

    def _close(self, node: int, why: str, actions: list[Action], *, lost: bool) -> None:
        self._closed[node] = why
        self.room.close(node)
        self.exits.touch(node)
        self.moved = True
        if not lost:
            return
        there = [job for job in self.running.values() if any(node == spot[0] for spot in job.spots or ())]
        for job in sorted(there, key=lambda job: job.seq):
            spots = cast("Spots", job.spots)
            self.leave(job)
            self.room.give(spots)
            job.end(self.now)
            job.stops += 1
            if job.awaiting is None:
                self._handover.held[job.id] = spots
                actions.append(Stop(job.id, job.epoch, "node lost"))
            job.awaiting = None
            self.queue.push(job, self.now)
            self.arrived.append(job)
            if self._until is not None:
                self._arm(job)

    def _open(self, node: int) -> None:
        self._closed.pop(node, None)
        self.room.open(node)
        self.exits.touch(node)
        self.moved = True

    # -- moments that are known beforehand

    def _arm(self, job: ActiveJob) -> None:
        """Set the moment at which the job's place changes by itself."""
        assert self._until is not None
        now = self.now
        at = self._until(job, now)
        if at is None:
            job.timer = None
            return
        if at <= now:
            raise PlanError(f"the order of job {job.id} would change at {at}, which is not after now, {now}")
        self._timers.set(job, at)

    def _ring(self, now: int) -> None:
        """Let those whose moment has come change their place, and end holds."""
        if self._review_at is not None and self._review_at <= now:
            self._review_at = None
            self.moved = True
            self._rests = False
        timers = self._timers
        while (at := timers.first()) is not None and at <= now:
            self._turn(timers.pop()[2], at)
        if self.holds:
            for owner in [owner for owner, (_, until) in self.holds.items() if until <= now]:
                spots = self.holds.pop(owner)[0]
                self.room.give(spots)
                self.exits.touched(spots)
                self.moved = True

    def _turn(self, job: ActiveJob, at: int) -> None:
        order = self._order
        if order.stage is not None:
            job.stage = order.stage(job, at)
        job.turned_at = at
        if job.spots is None:
            job.forgiven = job.service
            self.queue.remove(job)
            self.queue.push(job, self.now)
            self.arrived.append(job)
        elif self._yields is not None:
            self.exits.moved.append(job)
        self._arm(job)
        self.moved = True

    # -- from plan to actions

    def _commit_more(self, more: More, actions: list[Action]) -> None:
        self._answer(more.answers, actions)
        for job_id, reservation in more.calendar.items():
            if reservation is None or job_id not in self.jobs or self.jobs[job_id].filed is None:
                self.calendar.pop(job_id, None)
            else:
                self.calendar[job_id] = reservation
        for owner, kept in more.holds.items():
            if kept is None:
                del self.holds[owner]
            else:
                self.holds[owner] = kept
                self._clocked = True
        for action in more.node_actions:
            actions.append(action)
            leaves = not action.on if isinstance(action, SetPower) else not action.keep
            if leaves:
                node = self.cluster.number[action.node]
                self._closed[node] = "switched off" if isinstance(action, SetPower) else "given back"

    def _enact(self, touched: Mapping[ActiveJob, Saved | int], actions: list[Action]) -> None:
        """Stops first, then what shrinks, then what grows and starts, each when its devices are free."""
        starting: list[ActiveJob] = []
        growing: list[ActiveJob] = []
        before: dict[ActiveJob, Saved] = {}
        until = self._order.until
        for job, saved in touched.items():
            new = job.spots
            if isinstance(saved, int):  # it waited, since then
                if new is not None:
                    starting.append(job)
                else:
                    job.waiting_since = saved
                continue
            old, old_terms = saved[0], saved[1]
            if old == new and old_terms == job.terms:
                turn = job.turn
                job.restore(saved)  # stopped and put back: nothing happened
                job.turn = turn
                if self._yields is not None:
                    self.exits.moved.append(job)
                continue
            if job.awaiting is not None:  # it had not started yet: only the grant changes
                job.awaiting = None
                if new is None:
                    job.waiting_since = saved[WAITING_SINCE]
                else:
                    starting.append(job)
            elif new is None or not resizes(old, new):
                job.stops += 1
                self._handover.held[job.id] = old
                actions.append(Stop(job.id, job.epoch, "preempted" if new is None else "moved"))
                if new is not None:
                    self._begin_anew(job)
                    starting.append(job)
            elif within(new, old):
                if not within(old, new):
                    self._handover.held[job.id] = old
                self._resize(job, saved, actions)
            else:
                growing.append(job)
                before[job] = saved
            if new is None and until is not None:
                self._arm(job)
        leaving = self._handover.leaving()
        for job in growing:
            old = before[job][0]
            if self._handover.blockers(job, leaving):  # not free yet: it stops and starts instead
                self._handover.held[job.id] = old
                add_leaving(leaving, job.id, old)
                job.stops += 1
                actions.append(Stop(job.id, job.epoch, "moved"))
                self._begin_anew(job)
                starting.append(job)
            else:
                self._resize(job, before[job], actions)
        for job in starting:
            if blockers := self._handover.blockers(job, leaving):
                self._handover.wait(job, blockers)
            else:
                self._issue(job, actions)

    def _begin_anew(self, job: ActiveJob) -> None:
        """It starts now on what it holds, whatever it was doing there."""
        job.begin(self.now, cast("Spots", job.spots), job.terms, job.held)
        if self._yields is not None:
            self.exits.moved.append(job)

    def _issue(self, job: ActiveJob, actions: list[Action]) -> None:
        """Its devices are free: start it."""
        job.awaiting = None
        if job.started_at != self.now:  # it was given them earlier
            self._begin_anew(job)
        self._set_off(job, actions)

    def _set_off(self, job: ActiveJob, actions: list[Action]) -> None:
        """It holds its devices since this instant: tell it to start."""
        job.epoch = epoch = job.epoch + 1
        if job.first_start is None:
            job.first_start = self.now
        if self.calendar:
            self.calendar.pop(job.id, None)
        actions.append(_new(Start, (job.id, epoch, job.spots, job.terms)))
        if self._until is not None:
            self._arm(job)

    def _resize(self, job: ActiveJob, saved: Saved, actions: list[Action]) -> None:
        """It goes on where it was, with other spots or terms: what the draft did to its sums is undone."""
        self.leave(job)
        spots, terms, held = job.spots, job.terms, job.held
        job.restore(saved)
        job.settle(self.now)
        job.spots, job.terms, job.held = spots, terms, held
        job.live_at = max(job.live_at, self.now) + job.spec.traits.checkpoint.resize
        self.enter(job)
        actions.append(Resize(job.id, job.epoch, cast("Spots", spots), terms))
        if self._until is not None:
            self._arm(job)

    def _answer(self, answers: Iterable[Answer], actions: list[Action]) -> None:
        for answer in answers:
            actions.append(answer)
            job = self.jobs[answer.job]
            if answer.answer == "refused":
                if job.filed is None:
                    raise PlanError(f"job {job.id} cannot be refused: it runs")
                self.queue.remove(job)
                job.timer = None
                del self.jobs[job.id]
                self.calendar.pop(job.id, None)
            elif answer.answer == "accepted":
                job.promise = answer.value
            elif answer.answer == "demoted":
                job.priority = cast("int", answer.value)
                if job.filed is not None:
                    self.queue.remove(job)
                    self.queue.push(job, self.now)
                elif self._yields is not None:
                    self.exits.moved.append(job)

    def fork(self) -> Core:
        """A core with the same state and future; what happens to one does not happen to the other."""
        twin = Core(self.cluster, self.policy, self.seed)
        twin.now, twin.number, twin.moved, twin.memory = self.now, self.number, self.moved, self.memory
        twin._review_at, twin._round_due, twin._seq = self._review_at, self._round_due, self._seq
        twin.calendar, twin.holds, twin.prices = dict(self.calendar), dict(self.holds), dict(self.prices)
        twin._closed = dict(self._closed)
        for spots, _ in self.holds.values():
            twin.room.take(spots)
        copies = {job_id: job.copy() for job_id, job in self.jobs.items()}
        twin.jobs = copies
        for job_id in self.running:
            job = copies[job_id]
            turn = job.turn
            twin.room.take(cast("Spots", job.spots))
            twin.enter(job)
            job.turn = turn
        for job in copies.values():
            if job.spots is None:
                twin.queue.push(job, self.now)
            if job.timer is not None:
                twin._timers.set(job, job.timer[0])
        twin._handover.take_over(self._handover, copies)
        rests = self._rests
        twin._rests = rests if isinstance(rests, bool) else copies.get(rests.id, rests)
        twin._clocked, twin.alarm, twin.decisions = self._clocked, self.alarm, self.decisions
        twin._owed, twin._welcomes = list(self._owed), self._welcomes
        twin.arrived = [copies[job.id] for job in self.arrived if job.id in copies]
        for node in self._closed:
            twin.room.close(node)
        twin._turns = self._turns
        return twin

    def stopping(self) -> Mapping[str, Spots]:
        """Jobs that were told to stop and have not, with the devices they still hold."""
        return self._handover.held

    def closed_nodes(self) -> Mapping[int, str]:
        """Nodes that take no work, and why."""
        return self._closed


def _tenant(job: JobView) -> str:
    return job.tenant


__all__ = ["Core", "Rent", "Step"]
