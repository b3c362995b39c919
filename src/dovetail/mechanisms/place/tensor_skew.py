"""Consolidate only the jobs that need it.

A model with one very large tensor sends it in one long message, and is slow when its tasks are on several
nodes. Models of many small tensors lose little (Gu et al., "Tiresias", NSDI 2019, section 3.4). So jobs with
skewed tensors wait for few nodes, and the others take any free devices.
"""

from __future__ import annotations

from dovetail.mechanisms.place.placement import Placement
from dovetail.model.grant import Spots
from dovetail.model.view import JobView, Room


def needs_consolidation(job: JobView) -> bool:
    """Whether a job must be on few nodes: its tensors are skewed, or its model is unknown."""
    profile = job.traits.profile
    return profile is None or profile.skewed


def _by_tensor_skew(room: Room, job: JobView) -> Spots | None:
    return room.best(job.shape) if needs_consolidation(job) else room.anywhere(job.shape)


by_tensor_skew = Placement(_by_tensor_skew, packs=needs_consolidation, packs_if_free=True)
