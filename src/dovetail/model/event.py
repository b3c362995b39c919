"""Events that the core applies. An event is a tuple `(time, kind, subject, epoch, fact)`.

The events of one instant are applied in the order of these tuples, and only then is the policy asked. So
events that free devices come before events that want them. `subject` is a job or a node. `epoch` says which
start of the job the event is about, so that late news of an earlier start is recognised and dropped.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any


class Kind(IntEnum):
    """What happened; `fact` is in brackets."""

    FINISHED = 0
    FAILED = 1  # [(why, work kept)]
    STOPPED = 2  # [work done and kept] after a stop; its devices are free
    RESIZED = 3  # the devices that the job gave up are free
    PROGRESSED = 4  # [(work done, rate[, noise scale of its gradient or None[, loss, epochs done]])] measured
    NODE_LOST = 5  # [why] the node failed or was reclaimed, with all jobs on it
    NODE_JOINED = 6  # the node is back, or has booted
    DRAINED = 7  # the node takes no new jobs
    PRICED = 8  # [price an hour]
    CANCELLED = 9  # by its user
    SUBMITTED = 10  # [the Job] epoch: that of its last start, if it was withdrawn and comes again
    PRIORITISED = 11  # [priority] by its user or an administrator


Event = tuple[int, int, str, int, Any]

FINISHED, FAILED, STOPPED, RESIZED, PROGRESSED = range(5)
NODE_LOST, NODE_JOINED, DRAINED, PRICED, CANCELLED, SUBMITTED, PRIORITISED = range(5, 12)
