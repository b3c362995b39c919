"""What became of each job, in columns: a million of them fit in memory."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from dovetail.model.job import Job

NEVER = -1


class Outcomes:
    """One row a job, in order of submission; times in microseconds, NEVER where there is none."""

    __slots__ = ("end", "executed", "finish", "job", "start", "stops")

    def __init__(self) -> None:
        self.job: list[Job] = []
        self.start = array("q")  # the first time
        self.finish = array("q")
        self.executed = array("q")  # time it held devices
        self.stops = array("q")  # preemptions and moves
        self.end: dict[str, str] = {}  # how it ended, if not well: failed | cancelled | refused

    def __len__(self) -> int:
        return len(self.job)

    def grow(self, rows: int) -> None:
        """Make room in the columns for so many more jobs."""
        for column, value in ((self.start, NEVER), (self.finish, NEVER), (self.executed, 0), (self.stops, 0)):
            column.extend(array("q", [value]) * rows)

    def trim(self) -> None:
        """Cut the columns to the rows there are."""
        for column in (self.start, self.finish, self.executed, self.stops):
            del column[len(self.job) :]

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
