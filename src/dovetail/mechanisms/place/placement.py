"""A placement: from the free room and a job to the devices that the job gets.

Most decisions need no search. The core keeps an index of where a job fits packed (`Room.best`), so it knows
without asking a policy whether a job can start and which running jobs would have to be preempted for it. A
placement that agrees with this index says so in `packs` and `packs_if_free`, and is served from the index.
Any other placement is asked for each job, and preemption for it stops running jobs one by one until the job
fits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dovetail.model.grant import Spots
from dovetail.model.view import JobView, Room

Find = Callable[[Room, JobView], Spots | None]


@dataclass(frozen=True, slots=True)
class Placement:
    """How devices are found for a job, and how far that agrees with the core's index of packed places.

    The defaults promise nothing and are right for every `find`. A promise must be true of every room and job:
    the core acts on it without calling `find`.
    """

    find: Find  # the devices for a job, or None if the free room does not hold it
    packs: bool | Callable[[JobView], bool] = False  # `find` is `Room.best`: for every job, or for this one
    packs_if_free: bool = False  # where `Room.best` has a place `find` takes it, whatever it does elsewhere

    @property
    def always_packs(self) -> bool:
        """Whether `find` is `Room.best` for every job."""
        return self.packs is True

    @property
    def prefers_packed(self) -> bool:
        """Whether every job for which there is a packed place gets that place."""
        return self.packs_if_free or self.packs is True

    def packs_job(self, job: JobView) -> bool:
        """Whether `find` is `Room.best` for this job."""
        return self.packs if isinstance(self.packs, bool) else self.packs(job)


def _packed(room: Room, job: JobView) -> Spots | None:
    return room.best(job.shape)


def _scattered(room: Room, job: JobView) -> Spots | None:
    return room.anywhere(job.shape)


packed = Placement(_packed, packs=True)  # on the fewest nodes that can hold the job, the fullest of these
scattered = Placement(_scattered, packs_if_free=True)  # packed where that is free, else over any nodes
