"""When must the policy be asked?

Asking costs far more than applying an event, and most events change nothing that the policy could act on. So
a plan may make two promises (`Plan.rest`, `Plan.start_arrivals`). This module holds the promises of the last
plan, decides after an instant whether the policy must be asked, and knows the times at which it must be asked
in any case. `core.hearing` proves from the promises that most single events need no question at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dovetail.core.active import ActiveJob

if TYPE_CHECKING:
    from dovetail.core.state import State
    from dovetail.model.job import Shape

NEVER, IF_NONE_WAITS, PAST_WAITING = range(3)  # when an arrival that fits starts without asking the policy
NONE, NO_FIT, HEAD = range(3)  # what is proved (core.hearing)


class Attention:
    """What the policy promised, what happened since it was last asked, and when it must be asked."""

    __slots__ = (
        "_state",
        "clocked",
        "head",
        "proof",
        "quantum",
        "rests",
        "review_at",
        "round_due",
        "starts_arrivals",
    )

    def __init__(self, state: State, quantum: int | None) -> None:
        self._state = state
        self.quantum = quantum
        self.rests: ActiveJob | bool = False  # the promise: ask when a waiting job (or this one) may fit
        self.starts_arrivals = NEVER
        self.proof = NONE
        self.head: ActiveJob | None = None  # of the proof HEAD
        self.clocked = state.order.until is not None  # a future time matters: of a timer, a review or a hold
        self.review_at: int | None = None  # the plan asked for a review then
        self.round_due: int | None = None  # the end of a round in which something happened

    # -- after a decision

    def heard(self, rests: ActiveJob | bool, starts_arrivals: int, review_at: int | None) -> None:
        """The policy was asked, and its plan committed: take its promises, forget what happened before."""
        state = self._state
        self.rests = rests
        self.starts_arrivals = starts_arrivals
        if review_at is not None:
            self.clocked = True
        if self.clocked or self.quantum is not None:
            self.review_at = review_at
            self.round_due = None
            self.set_alarm()
        state.arrived = []
        state.changed = False
        state.startable = None
        self.proof = NONE
        if not self.clocked:
            # Only the bounds are a proof: a policy may rest while it keeps back a job that would fit.
            if rests is True:
                if state.queue.need > state.room.level:
                    self.proof = NO_FIT
            elif rests is not False:
                self.proof, self.head = HEAD, rests

    def unheard(self) -> None:
        """The policy failed: it is asked about the same events again, at the next call or the next round."""
        if self.quantum is not None:
            self.round_due = self._state.now + self.quantum
        self.set_alarm()

    def nothing_to_decide(self) -> None:
        """The round's arrivals all started, and no job waits: this counts as a decision."""
        self.review_at = self.round_due = None
        self.set_alarm()
        state = self._state
        state.arrived, state.changed, state.startable = [], False, None

    # -- whether to ask

    def must_ask(self) -> bool:
        """Whether the policy might do something now. If not, this is a proof, and is kept as one."""
        state = self._state
        state.startable = None
        rests = self.rests
        if rests is False:
            return state.changed or bool(state.arrived)
        queue, room = state.queue, state.room
        if rests is not True:
            first = queue.head()
            if first is None or first is not rests or room.may_fit(first.shape):
                return True
            if not self.clocked:
                self.proof, self.head = HEAD, first
            return False
        arrived = state.arrived
        if queue.size == len(arrived):
            return queue.size > 0
        if not state.changed:  # no device was released: only arrivals can fit
            found: list[Shape] = []
            state.startable = found
            for job in arrived:
                if job.need <= room.level and job.shape not in found and room.may_fit(job.shape):
                    found.append(job.shape)
            return bool(found)
        if queue.need <= room.level:
            state.startable = queue.fitting(room.level, None if room.uniform else room.may_fit)
            if state.startable:
                return True
        if not self.clocked and queue.need > room.level:
            self.proof = NO_FIT
        return False

    # -- times at which to ask

    def wake(self, time: int) -> int:
        """When the core wants to hear of something that happens at `time`: then, or at the round's end."""
        quantum = self.quantum
        if quantum is None or self._state.stopping.held:
            return time
        return time + -time % quantum

    def set_alarm(self) -> None:
        state, quantum = self._state, self.quantum
        at = state.timers.first()
        if at is not None and quantum is not None and not state.stopping.held:
            at += -at % quantum  # `wake`, inlined
        review, due = self.review_at, self.round_due
        if review is not None and (at is None or review < at):
            at = review
        if due is not None and (at is None or due < at):
            at = due
        if state.holds:
            ends = min(until for _, until in state.holds.values())
            at = ends if at is None or ends < at else at
        state.alarm = at
