"""Moments known beforehand, in bins: a job's place changes then, if it still runs as it does now.

Most jobs end before their moment comes. A heap of all would sort each in and out again; here one is put on
the pile of its minute (or round), and only what is still true when that comes is put in order. An entry is
valid while `job.timer is entry`.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dovetail.core.active import ActiveJob

Timer = tuple[int, int, "ActiveJob"]  # when, its number, the job


class Timers:
    """Whose moment comes next."""

    __slots__ = ("_bins", "_line", "_near", "_open", "_width")

    def __init__(self, width: int) -> None:
        self._width = width
        self._near: list[Timer] = []  # a heap: all bins up to the one that is open
        self._open = -1
        self._bins: dict[int, list[Timer]] = {}
        self._line: list[int] = []  # their numbers, a heap

    def set(self, job: ActiveJob, at: int) -> None:
        """Its moment is then, and no other."""
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
        """The next moment that is still true."""
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
        """The one that `first` told of."""
        return heappop(self._near)
