"""Waiting time of a job: how long it was eligible to run and did not run, over its whole life.

A job is eligible when only resources keep it from running: its begin time has come, its dependencies are met
and no user holds it. Time after a preemption counts as much as time before the first start. Time held does
not count, nor does time on devices; a job that was told to stop is on devices until it has ended. The time to
the first start is another figure: `first_start_after`.

Both functions work on integers, floats and arrays. `Waits` adds up the same figure event by event, for a job
that is still alive.
"""

from __future__ import annotations

from typing import Any, NamedTuple


def waiting_time(eligible_at: Any, until: Any, ran: Any, held: Any = 0) -> Any:
    """Time from `eligible_at` to `until` (the end of the job, or now), less the time it ran or was held.

    >>> waiting_time(eligible_at=10, until=100, ran=30)
    60
    """
    return until - eligible_at - ran - held


def first_start_after(eligible_at: Any, first_start: Any) -> Any:
    """Time from when a job became eligible to its first start."""
    return first_start - eligible_at


class Waits(NamedTuple):
    """Waiting time of one job so far: the waits that are over, and the start of the present one.

    >>> Waits().begun(10).ended(25).begun(40).total(now=100)
    75
    """

    past: int = 0
    since: int | None = None  # None: the job does not wait now

    def begun(self, now: int) -> Waits:
        """The job waits from now on."""
        return self if self.since is not None else Waits(self.past, now)

    def ended(self, now: int) -> Waits:
        """The job starts, is held or ends."""
        return Waits(self.total(now), None)

    def total(self, now: int) -> int:
        return self.past if self.since is None else self.past + max(0, now - self.since)
