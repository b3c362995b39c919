"""One event at a time, and the proofs that let most events pass without a question to the policy.

**The rule.** After every instant, either the policy was asked about all that happened, or a proof holds that
asking it now would give an empty plan. `tests/properties/test_asking.py` runs every policy both ways and
compares.

**The proofs**, each with what keeps it true. All of them need a policy that is not `clocked`: its order does
not change with time, and it did not ask for a review. A proof that an event breaks stays broken (`NONE`)
until the policy is asked, also for later events of the same instant.

- `NO_FIT`: the policy rests, and no waiting job can fit: `queue.need > room.level`. A finish keeps it while
  that holds. An arrival keeps it if its own need is above the level.
- `HEAD`: the policy rests on one job, the head of the queue. A finish keeps it while that job waits and its
  need is above the level. An arrival keeps it if the queue is in order of arrival: the new job goes behind.
- An empty queue, for a policy that starts arrivals by a standing order: then a finish that is the last event
  of its instant leaves nothing to decide, whatever happened before. If more events of the instant follow, the
  policy must be told that something changed: it may look at more jobs then.

**Standing order.** A plan that called `start_arrivals` lets an arrival that fits start without asking the
policy. The arrival must be the last event of its instant. And either nothing else happened since the last
decision, or `NO_FIT` is proved.

The checks are written out in one function: it runs twice for each job of a replay.
"""

from __future__ import annotations

from dovetail.core.attention import HEAD, NO_FIT, NONE, PAST_WAITING
from dovetail.core.core import Core, Step
from dovetail.core.events import apply, finished, submitted
from dovetail.model.event import FINISHED, SUBMITTED, Event


def hear(core: Core, event: Event, more: bool) -> Step | None:
    """`Core.handle` for one event at its own time, without a step if asking the policy would change nothing.

    `more`: other events of this instant follow, and nothing is decided yet. Policies with rounds need
    `handle`.
    """
    now = core.now = event[0]
    kind = event[1]
    attention = core.attention
    if kind == FINISHED:
        finished(core, event[2], event[3], core.unreported)
        proof = attention.proof
        if core.unreported:
            pass  # a step must report these actions
        elif (proof == NO_FIT and core.queue.need > core.room.level) or (
            proof == HEAD
            and (head := attention.head) is not None
            and head.need > core.room.level
            and head.filed is not None
        ):
            return None
        elif attention.starts_arrivals and not (core.queue.size or more or attention.clocked):
            core.changed = False  # no job waits: as if the policy had been asked, and had nothing to do
            return None
        attention.proof = NONE
    elif kind == SUBMITTED:
        level = core.room.level
        proof = attention.proof
        if (
            attention.starts_arrivals
            and not more
            and (attention.starts_arrivals == PAST_WAITING or not core.queue.size)
            and (proof == NO_FIT or not (proof or core.changed or core.arrived or attention.clocked))
            and (need := core.needs.get(event[4].shape)) is not None
            and need <= level
        ):
            return core.start_arrival(event, need)
        job = submitted(core, event[4], event[3])
        if proof == NO_FIT:
            if job.need > level and not core.unreported:
                return None
        elif proof == HEAD and core.order.fifo and not core.unreported:
            return None
        attention.proof = NONE
    else:
        attention.proof = NONE
        apply(core, event, core.unreported)
    return None if more else core.handle(now, [])
