"""The outcome of each job of a run, in columns: a million jobs fit in memory."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dovetail.model.job import Job
from dovetail.model.waiting import first_start_after, waiting_time

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Times = NDArray[np.int64]

NEVER = -1


class Outcomes:
    """One row for each job, in order of submission; times in microseconds, NEVER for what did not happen."""

    __slots__ = ("end", "ended_at", "executed", "finish", "job", "start", "stops")

    def __init__(self) -> None:
        self.job: list[Job] = []
        self.start = array("q")  # of the first attempt
        self.finish = array("q")
        self.executed = array("q")  # time on devices, over all attempts, with saving and restoring
        self.stops = array("q")  # preemptions and moves
        # Jobs that ended without finishing: how (failed | refused), and when.
        self.end: dict[str, str] = {}
        self.ended_at: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self.job)

    def grow(self, rows: int) -> None:
        """Add `rows` empty rows to the columns."""
        for column, value in ((self.start, NEVER), (self.finish, NEVER), (self.executed, 0), (self.stops, 0)):
            column.extend(array("q", [value]) * rows)

    def trim(self) -> None:
        """Drop the rows that hold no job."""
        for column in (self.start, self.finish, self.executed, self.stops):
            del column[len(self.job) :]

    def unfinished(self, job: str, how: str, now: int) -> None:
        """Record that a job ended without finishing."""
        self.end[job], self.ended_at[job] = how, now

    def wait(self, until: int) -> Times:
        """The waiting time of each job up to its end, or up to `until` if it has not ended.

        A job of a trace is eligible from its arrival on. If a run is cut off while a job saves a checkpoint,
        the whole of that save was counted as time on devices, hence the lower bound.
        """
        import numpy as np  # noqa: PLC0415  (not needed to run, only to report)

        rows = len(self)
        end = np.array(self.finish[:rows])
        for row in np.flatnonzero(end == NEVER):
            end[row] = self.ended_at.get(self.job[row].id, until)
        waited: Times = waiting_time(np.array(self.submit), end, np.array(self.executed[:rows]))
        return np.maximum(waited, 0)

    @property
    def first_start(self) -> Times:
        """The time from arrival to first start of each job, NEVER for jobs that did not start."""
        import numpy as np  # noqa: PLC0415

        start = np.array(self.start[: len(self)])
        return np.where(start == NEVER, NEVER, first_start_after(np.array(self.submit), start))

    @property
    def id(self) -> Sequence[str]:
        return [job.id for job in self.job]

    @property
    def submit(self) -> Sequence[int]:
        return [job.arrived_at for job in self.job]

    @property
    def gpus(self) -> Sequence[int]:
        return [job.shape.gpus for job in self.job]

    @property
    def work(self) -> Sequence[int]:
        return [job.work for job in self.job]

    @property
    def deadline(self) -> Sequence[int]:
        return [NEVER if job.deadline is None else job.deadline for job in self.job]

    @property
    def tenant(self) -> Sequence[str]:
        return [job.tenant for job in self.job]
