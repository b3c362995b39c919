"""The core: events in, one checked plan, actions out.

It has no clock, no I/O and no randomness of its own: the same events give the same steps, byte for byte. The
state changes only in steps:

    events ──► core.events ──► core.attention: must the policy be asked? ──► policy.decide(view) ──► draft
                                                                                                      │
    actions ◄──────────────────────────────── core.commit: check the whole plan, then enact it ◄──────┘

If the policy raises, or if its plan is refused, the draft is rolled back without a trace. `handle` then
raises `PolicyError`, with a step that holds the events and the actions that follow from them alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from dovetail.core.active import ActiveJob, IllegalPhase
from dovetail.core.attention import NONE, PAST_WAITING
from dovetail.core.commit import arm, check, enact, enact_more, timers
from dovetail.core.departures import MOST_MOVED
from dovetail.core.draft import Draft, Note
from dovetail.core.events import apply, finished, ring, submitted
from dovetail.core.record import rebuilt, recorded
from dovetail.core.state import State
from dovetail.model.action import Action, Start
from dovetail.model.cluster import Cluster
from dovetail.model.errors import PolicyError
from dovetail.model.estimate import DECLARED, Estimate, Estimator, speed_of
from dovetail.model.event import FINISHED, SUBMITTED, Event
from dovetail.model.grant import FULL, load_of
from dovetail.model.view import JobView, Policy

if TYPE_CHECKING:
    from dovetail.core.table import Curves, Table

_new_tuple = tuple.__new__  # a named tuple's own constructor takes twice as long
RECENT = 100  # steps whose events are kept for an error message
NONE_DISPLACED: Mapping[str, tuple[str, ...]] = MappingProxyType({})


class Step(NamedTuple):
    """What one call of `handle` did."""

    number: int
    now: int
    events: list[Event]
    decided: bool  # the policy was asked, or its standing order was followed
    actions: list[Action]
    failure: str = ""  # why the policy's decision is void, if it failed


class Core(State):
    """The state of a cluster, and the policy that schedules it. Policies see it as a `View`."""

    __slots__ = (
        "_curves",
        "_draft",
        "_notes",
        "_recent",
        "_table",
        "decisions",
        "displaced",
        "estimator",
        "memory",
        "number",
        "policy",
        "seed",
        "unreported",
    )

    def __init__(
        self, cluster: Cluster, policy: Policy, seed: int = 0, estimator: Estimator = DECLARED
    ) -> None:
        super().__init__(cluster, policy.order, policy.group, policy.quantum)
        self.estimator = estimator  # `speed` asks it
        self._curves: Curves | None = None
        self._table: tuple[int, Table] | None = None  # the number of a step, and the table made in it
        self.policy = policy
        self.seed = seed
        self.number = 0  # of the last step
        self.decisions = 0  # how often the policy was asked
        self.memory: object = None  # what the last plan asked to keep
        # By job that the last step's plan stopped: the jobs that it started in its place (`commit.enact`). It
        # is no part of a step: a replay finds it again.
        self.displaced = NONE_DISPLACED
        self._draft: Draft | None = None  # the open draft
        self._notes: list[Note] | None = None
        self.unreported: list[Action] = []  # of events without a step: the next step reports them
        self._recent: deque[list[Event]] = deque(maxlen=RECENT)

    # -- the one way in

    def handle(self, now: int, events: list[Event], *, failure: str = "") -> Step:
        """Apply the events up to now, ask the policy if there is something to decide, and return the actions.

        Raises `PolicyError` if the policy fails: nothing of its plan is enacted, and the error's `step` holds
        the events and the actions that follow from them alone. To replay such a step, pass its `failure`: the
        policy is not asked.
        """
        if now < self.now:
            raise ValueError(f"time went back from {self.now} to {now}")
        self.now = now
        self.displaced = NONE_DISPLACED
        attention = self.attention
        attention.proof = NONE
        self.number += 1
        if len(self.departures.moved) > MOST_MOVED:
            self.departures.settle()
        actions: list[Action] = []
        if self.unreported:
            actions, self.unreported = self.unreported, actions
        if events:
            self._recent.append(events)
        try:
            arrivals = (
                self._apply(events, actions) if events or attention.clocked or attention.quantum else None
            )
        except IllegalPhase as error:
            raise IllegalPhase(error.job, error.phase, self._last_events(error.job.id)) from None
        if arrivals is not None:
            begun = self._start_in_order(arrivals) if arrivals else []
            if not (arrivals or self.changed or self.arrived):
                return self._undecided(events, actions)
            if not self.queue.size:
                self.decisions += 1
                attention.nothing_to_decide()
                return _new_tuple(Step, (self.number, now, events, True, actions + begun, ""))
            return self._decided(events, actions, begun, failure)
        if not attention.must_ask():
            return self._undecided(events, actions)
        quantum = attention.quantum
        if quantum is not None and now % quantum:
            attention.round_due = now - now % quantum + quantum
            attention.set_alarm()
            return _new_tuple(Step, (self.number, now, events, False, actions, ""))
        return self._decided(events, actions, [], failure)

    def start_arrival(self, event: Event, need: int) -> Step:
        """Start a job that fits as it arrives, by the policy's standing order."""
        now, spec = event[0], event[4]
        shape = spec.shape
        spots = self.room.grab(shape)
        if spots is None:  # the nodes with room have GPU types that the job does not accept
            submitted(self, spec, event[3])
            return self.handle(now, [])
        # `admit`, `begin_on` and `issue_start`, inlined: most jobs of a replay start here. `hear` has seen to
        # it that no job has a timer.
        seq, job_id, epoch = self.seq, spec.id, event[3]
        self.jobs[job_id] = job = ActiveJob(spec, seq, need, epoch)
        self.seq = seq + 1
        job.begin(now, spots, FULL, shape.load if shape.plain else load_of(spots))
        self.enter(job)
        job.epoch = epoch = epoch + 1
        job.first_start = now
        self.displaced = NONE_DISPLACED
        self.number = number = self.number + 1
        self.decisions += 1
        moved = self.departures.moved
        if moved and len(moved) > MOST_MOVED:
            self.departures.settle()
        start = _new_tuple(Start, (job_id, epoch, spots, FULL))
        return _new_tuple(Step, (number, now, [event], True, [start], ""))

    # -- events

    def _apply(self, events: list[Event], actions: list[Action]) -> list[Event] | None:
        """Apply the events. Arrivals that a standing order starts at the end of a round are only returned."""
        attention = self.attention
        quantum = attention.quantum
        standing_order = (
            quantum is not None
            and attention.starts_arrivals == PAST_WAITING
            and attention.rests is False
            and not self.now % quantum
            and not self.stopping.held
        )
        arrivals: list[Event] = []
        for event in events:
            kind = event[1]
            if kind == SUBMITTED:
                if standing_order:
                    arrivals.append(event)
                else:
                    submitted(self, event[4], event[3])
            elif kind == FINISHED:
                finished(self, event[2], event[3], actions)
            else:
                if arrivals and any(event[2] == arrival[2] for arrival in arrivals):
                    standing_order = False  # the event is about a job of this step: it must be there
                    for arrival in arrivals:
                        submitted(self, arrival[4], arrival[3])
                    arrivals.clear()
                apply(self, event, actions)
        if attention.clocked:
            ring(self)
        if not standing_order:
            return None
        if not self.stopping.held:
            return arrivals
        for event in arrivals:
            submitted(self, event[4], event[3])
        return None

    def _start_in_order(self, arrivals: Sequence[Event]) -> list[Action]:
        """Start a round's arrivals in order, up to the first that does not fit or goes behind a waiting job.

        The others wait, and the policy is asked.
        """
        actions: list[Action] = []
        now, key, admit = self.now, self.order.key, self.admit
        fresh = []
        for event in arrivals:
            job = admit(event[4], event[3])
            fresh.append((key(job, now), job.seq, job))
        if len(fresh) > 1:
            fresh.sort()
        head = self.queue.head()
        first = None if head is None else head.filed
        grab, begin_on, arrived = self.room.grab, self.begin_on, self.arrived
        for place, entry in enumerate(fresh):
            job = entry[2]
            if (first is not None and first < entry) or (spots := grab(job.shape)) is None:
                for _, _, job in fresh[place:]:
                    self.enqueue(job)
                break
            begin_on(job, spots, actions)
            arrived.append(job)  # if the policy is asked, this job is new to it as well
        return actions

    # -- decisions

    def _undecided(self, events: list[Event], actions: list[Action]) -> Step:
        if self.attention.clocked:
            self.attention.set_alarm()
        return _new_tuple(Step, (self.number, self.now, events, False, actions, ""))

    def _decided(self, events: list[Event], actions: list[Action], begun: list[Action], failure: str) -> Step:
        """Ask the policy and enact its plan. `begun` are starts by standing order: stops go before them."""
        if failure:
            self.attention.unheard()
            return Step(self.number, self.now, events, False, actions + begun, failure)
        try:
            plan, draft = self.policy.decide(self), self._draft
            if draft is None or plan is not draft or draft.review_at is not None or draft.more is not None:
                draft = check(self, plan, draft)
            due = timers(self, draft) if draft.touched and self.order.until is not None else None
        except BaseException as error:
            self.abandon()
            if not isinstance(error, Exception):  # an interrupt: what the events caused is reported next time
                self.unreported = actions + begun
                raise
            self.attention.unheard()
            failure = f"{type(error).__name__}: {error}"
            failed = Step(self.number, self.now, events, False, actions + begun, failure)
            raise PolicyError(failed, error) from error
        self._draft = None
        self.decisions += 1
        self.memory = draft.memory
        reported = len(actions)
        if draft.displaces or self.stopping.held:
            self.displaced = enact(self, draft, actions)
        else:
            for job in draft.touched:  # the plan starts waiting jobs, and does nothing else: most plans
                self.issue_start(job, actions)
        if draft.more is not None:
            enact_more(self, draft.more, actions)
        if due:
            arm(self, due)
        self.attention.heard(draft.rests, draft.starts_arrivals, draft.review_at)
        draft.close()
        if begun:
            while reported < len(actions) and type(actions[reported]) is not Start:
                reported += 1
            actions[reported:reported] = begun
        return _new_tuple(Step, (self.number, self.now, events, True, actions, ""))

    # -- what a policy sees besides the state

    def draft(self) -> Draft:
        """An empty plan. A draft that was open before is abandoned: a decision has one plan."""
        if self._draft is not None:
            self.abandon()
        self._draft = draft = Draft(self, self._notes)
        return draft

    def abandon(self) -> None:
        """Roll back the draft that is open, if one is."""
        if self._draft is not None:
            self._draft.undo()
            self._draft = None

    def speed(
        self,
        job: JobView,
        *,
        tasks: int | None = None,
        type: str | None = None,
        nodes: int | None = None,
        batch: int | None = None,
    ) -> Estimate:
        return speed_of(self.estimator, self.cluster, job, tasks=tasks, type=type, nodes=nodes, batch=batch)

    def table(self) -> Table:
        if self._table is None or self._table[0] != self.number:
            from dovetail.core.table import Curves, Table  # noqa: PLC0415  # it loads numpy

            if self._curves is None or self._curves.estimator is not self.estimator:
                self._curves = Curves(self.cluster, self.estimator)
            jobs = sorted(self.jobs.values(), key=lambda job: job.seq)
            self._table = self.number, Table(self._curves, jobs, self.now)
        return self._table[1]

    # -- questions

    def notes(self) -> list[Note]:
        """Let the policy decide, roll that back, and return why it passed over the jobs that it looked at."""
        arrived, changed, startable = self.arrived, self.changed, self.startable
        self._notes, self._table, self.changed, self.startable = [], None, True, None
        try:
            self.policy.decide(self)
            return self._notes
        except Exception as error:
            failed = Step(self.number, self.now, [], False, [], f"{type(error).__name__}: {error}")
            raise PolicyError(failed, error) from error
        finally:
            self.abandon()
            self._notes = self._table = None
            self.arrived, self.changed, self.startable = arrived, changed, startable

    def fork(self) -> Core:
        """An independent copy of the core: same state, and same steps if it gets the same events."""
        return rebuilt(Core(self.cluster, self.policy, self.seed, self.estimator), recorded(self))

    def _last_events(self, job_id: str) -> list[Event]:
        """What happened to a job lately, for an error message."""
        return [event for events in self._recent for event in events if event[2] == job_id][-8:]
