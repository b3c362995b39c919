"""Timers of jobs, in bins: when a job changes its place in the order if it goes on as it does now.

Most jobs end before their timer fires. One heap would sort every timer in and out again. Here a timer is
appended to the bin of its minute (or round), and only the timers that are still valid when their bin is
opened are sorted. A timer is valid while `job.timer is timer`.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dovetail.core.active import ActiveJob

Timer = tuple[int, int, "ActiveJob"]  # time, submission number, job


class Timers:
    """The timers of all jobs, at most one for each; `first` is the next to fire."""

    __slots__ = ("_bins", "_line", "_near", "_open", "_width")

    def __init__(self, width: int) -> None:
        self._width = width
        self._near: list[Timer] = []  # a heap: the timers of all bins up to `_open`
        self._open = -1  # the last bin that was opened
        self._bins: dict[int, list[Timer]] = {}
        self._line: list[int] = []  # the numbers of the bins, a heap

    def set(self, job: ActiveJob, at: int) -> None:
        """Set the job's timer; one that was set before becomes invalid."""
        job.timer = timer = (at, job.seq, job)
        number = at // self._width
        if number <= self._open:
            heappush(self._near, timer)
            return
        pile = self._bins.get(number)
        if pile is None:
            self._bins[number] = [timer]
            heappush(self._line, number)
        else:
            pile.append(timer)

    def first(self) -> int | None:
        """The time of the next valid timer; None if there is none."""
        near = self._near
        while True:
            while near:
                if near[0][2].timer is near[0]:
                    return near[0][0]
                heappop(near)
            if not self._line:
                return None
            self._open = number = heappop(self._line)
            near += [timer for timer in self._bins.pop(number) if timer[2].timer is timer]
            heapify(near)

    def pop(self) -> Timer:
        """Remove and return the timer that `first` found."""
        return heappop(self._near)
