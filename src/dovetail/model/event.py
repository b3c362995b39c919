"""Facts that reach the core. An event is a tuple `(time, kind, subject, epoch, fact)`.

The order of that tuple is the tie rule: all events of one instant are applied in it, and only then is the
policy asked. So what frees devices comes before what wants them. `subject` is a job or a node; `epoch` says
which start of the job is meant, so that word of an earlier one is recognised and dropped.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any


class Kind(IntEnum):
    """What happened; `fact` is in brackets."""

    FINISHED = 0
    FAILED = 1  # [(why, work kept)]
    STOPPED = 2  # [work done and kept] after a stop; its devices are free
    RESIZED = 3  # the devices it gave up are free
    PROGRESSED = 4  # [(work done, rate)] measured
    NODE_LOST = 5  # [why] died or was taken away, with all that ran on it
    NODE_JOINED = 6  # is back, or has booted
    DRAINED = 7  # takes no new work
    PRICED = 8  # [price an hour]
    CANCELLED = 9  # by its user
    SUBMITTED = 10  # [the Job] its epoch is that of its last start, if it was withdrawn and comes again
    PRIORITISED = 11  # [priority] by its user or an administrator


Event = tuple[int, int, str, int, Any]

FINISHED, FAILED, STOPPED, RESIZED, PROGRESSED = range(5)
NODE_LOST, NODE_JOINED, DRAINED, PRICED, CANCELLED, SUBMITTED, PRIORITISED = range(5, 12)
