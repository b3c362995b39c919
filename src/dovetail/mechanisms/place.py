"""On which devices: from a job and the free room to spots, or None."""

from __future__ import annotations

from collections.abc import Callable

from dovetail.model.grant import Spots
from dovetail.model.view import JobView, Room

Place = Callable[[Room, JobView], Spots | None]


def packed(room: Room, job: JobView) -> Spots | None:
    """As few nodes as the gang needs, the fullest that hold it."""
    return room.best(job.shape)


def scattered(room: Room, job: JobView) -> Spots | None:
    """Packed if that is free, over any nodes if not."""
    return room.anywhere(job.shape)
