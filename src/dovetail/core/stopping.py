"""Devices of jobs that are stopping.

A job that was told to stop or to shrink holds its devices until it has. The policy may grant them to another
job meanwhile: that job is started, or grows, when the last of its devices is released. So stops come before
starts, however long the engine takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from dovetail.core.active import WAITING, Phase
from dovetail.model.grant import Spot, Spots, within

if TYPE_CHECKING:
    from dovetail.core.active import ActiveJob
    from dovetail.core.room import Room

ByNode = dict[int, list[tuple[str, Spot]]]  # by node: the stopping jobs there and what they still hold


class Stopping:
    """The jobs that were told to stop and still hold devices, and the jobs that were granted these."""

    __slots__ = ("_room", "heirs", "held")

    def __init__(self, room: Room) -> None:
        self._room = room
        self.held: dict[str, Spots] = {}  # by each stopping job
        self.heirs: dict[str, list[ActiveJob]] = {}  # the jobs granted some of it, by stopping job

    def hold(self, job_id: str, spots: Spots) -> None:
        """A job was told to give up these spots. What it has not released yet after a shrink stays held."""
        earlier = self.held.get(job_id)
        self.held[job_id] = spots if not earlier else earlier if within(spots, earlier) else earlier + spots

    def holds_on(self, node: int) -> bool:
        """Whether a stopping job still holds something of a node."""
        return any(node == spot[0] for spots in self.held.values() for spot in spots)

    def by_node(self) -> ByNode:
        """What stopping jobs hold, by node: worked out once for many questions."""
        found: ByNode = {}
        for job_id, spots in self.held.items():
            add_by_node(found, job_id, spots)
        return found

    def blockers(self, job: ActiveJob, by_node: ByNode) -> set[str]:
        """The stopping jobs that still hold something this job was granted; one may be its own attempt."""
        found = {job.id} if job.id in self.held else set()
        for spot in job.spots or ():
            node, devices = spot[0], spot[1]
            for other, held in by_node.get(node, ()):
                if (
                    devices & held[1]
                    or (held[3] and self._room.free_cpus(node) < sum(each[3] for _, each in by_node[node]))
                    or (held[4] and self._room.free_memory(node) < sum(each[4] for _, each in by_node[node]))
                ):
                    found.add(other)
        return found

    def wait(self, job: ActiveJob, blockers: set[str], phase: Phase) -> None:
        """Let a job that was granted devices wait until all of these have released theirs."""
        job.enter(phase)
        job.awaiting = blockers
        for other in blockers:
            self.heirs.setdefault(other, []).append(job)

    def release(self, job_id: str) -> list[ActiveJob]:
        """A job has released its devices. Returns the jobs that can start or grow now."""
        if self.held.pop(job_id, None) is None:
            return []
        ready = []
        for job in self.heirs.pop(job_id, ()):
            if job.awaiting is not None and job_id in job.awaiting:
                job.awaiting.discard(job_id)
                if not job.awaiting:
                    ready.append(job)
        return ready

    def heirs_by_id(self) -> dict[str, list[str]]:
        """The granted jobs by name, for a record; jobs that were granted other devices since are left out."""
        found = {}
        for job_id, heirs in self.heirs.items():
            names = [job.id for job in heirs if job.awaiting is not None and job_id in job.awaiting]
            if names:
                found[job_id] = names
        return found

    def load(
        self, held: Mapping[str, Spots], heirs: Mapping[str, list[str]], jobs: Mapping[str, ActiveJob]
    ) -> None:
        """Restore this state from a record; `jobs` are the jobs of the new core."""
        self.held = dict(held)
        self.heirs = {
            job_id: [jobs[name] for name in names if name in jobs and jobs[name].phase is not WAITING]
            for job_id, names in heirs.items()
        }


def add_by_node(by_node: ByNode, job_id: str, spots: Spots) -> None:
    """Add what one more stopping job holds."""
    for spot in spots:
        by_node.setdefault(spot[0], []).append((job_id, spot))
