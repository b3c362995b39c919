"""Consolidate only those who need it.

A model with one very large tensor sends it in one long message, and suffers when its tasks stand on several
nodes; models of many small tensors hardly notice (Gu et al., "Tiresias", NSDI 2019, section 3.4). So the
first wait for few nodes, and the others take what is free.
"""

from __future__ import annotations

from dovetail.mechanisms.place import Place, packed, scattered
from dovetail.model.grant import Spots
from dovetail.model.view import JobView, Room


def by_skew(room: Room, job: JobView) -> Spots | None:
    """Packed if the model's tensors are skewed, else scattered; nobody is split whose model is unknown."""
    profile = job.traits.profile
    return room.best(job.shape) if profile is None or profile.skewed else room.anywhere(job.shape)


def sensitive(job: JobView) -> bool:
    """Whether it must be consolidated."""
    profile = job.traits.profile
    return profile is None or profile.skewed


def packs(place: Place, job: JobView) -> bool:
    """Whether this placement would put this job on as few nodes as it needs: then an index knows its room."""
    return place is packed or (place is by_skew and sensitive(job))


def packs_first(place: Place) -> bool:
    """Whether it puts every job on as few nodes as it needs if they are free, whatever it does if not."""
    return place in (packed, scattered, by_skew)
