"""Devices between two holders.

A job that was told to stop holds its devices until it has stopped. Who was given them meanwhile waits for all
of them, and is started when the last is let go of: stops come before starts, whatever the engine's pace.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from dovetail.model.grant import Spot, Spots

if TYPE_CHECKING:
    from dovetail.core.active import ActiveJob
    from dovetail.core.room import Room

Leaving = dict[int, list[tuple[str, Spot]]]  # by node: who still holds what there


class Handover:
    """Who has not let go yet, and who waits for that."""

    __slots__ = ("_room", "heirs", "held")

    def __init__(self, room: Room) -> None:
        self._room = room
        self.held: dict[str, Spots] = {}  # by those on their way out
        self.heirs: dict[str, list[ActiveJob]] = {}  # who was given some of it meanwhile

    def leaving(self) -> Leaving:
        """The same by node, for many questions."""
        found: Leaving = {}
        for job_id, spots in self.held.items():
            add_leaving(found, job_id, spots)
        return found

    def blockers(self, job: ActiveJob, leaving: Leaving) -> set[str]:
        """Who still holds something that this job was given, itself included."""
        found = {job.id} if job.id in self.held else set()
        for spot in job.spots or ():
            node, devices = spot[0], spot[1]
            for other, held in leaving.get(node, ()):
                if (
                    devices & held[1]
                    or (held[3] and self._room.free_cpus(node) < sum(each[3] for _, each in leaving[node]))
                    or (held[4] and self._room.free_memory(node) < sum(each[4] for _, each in leaving[node]))
                ):
                    found.add(other)
        return found

    def wait(self, job: ActiveJob, blockers: set[str]) -> None:
        """It starts when all of these have let go."""
        job.awaiting = blockers
        for other in blockers:
            self.heirs.setdefault(other, []).append(job)

    def let_go(self, job_id: str) -> list[ActiveJob]:
        """It has stopped: those who wait for nobody else now."""
        if self.held.pop(job_id, None) is None:
            return []
        ready = []
        for job in self.heirs.pop(job_id, ()):
            if job.awaiting is not None and job_id in job.awaiting:
                job.awaiting.discard(job_id)
                if not job.awaiting:
                    ready.append(job)
        return ready

    def take_over(self, other: Handover, jobs: Mapping[str, ActiveJob]) -> None:
        """Be as another is, with jobs of one's own."""
        self.held = dict(other.held)
        self.heirs = {
            job_id: [jobs[job.id] for job in heirs if job.id in jobs] for job_id, heirs in other.heirs.items()
        }


def add_leaving(leaving: Leaving, job_id: str, spots: Spots) -> None:
    """One more is on its way out."""
    for spot in spots:
        leaving.setdefault(spot[0], []).append((job_id, spot))
