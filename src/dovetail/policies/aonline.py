"""A_online: maximum-weight schedules by prices, with the GPU type as a part of the schedule (Zhou et al.).

A job has a weight, which it brings if it ends before it is due. It is admitted
if the schedule that costs least costs less than that. Prices and schedules are those of
`policies.priced_admission`, which `oasis` uses too.

Reconstructed: the weight of a job (its priority, by its work).
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from dovetail.model.view import JobView, Policy
from dovetail.policies.oasis import priced
from dovetail.policies.priced_admission import Utility, due_of, value_of
from dovetail.solve.priced_schedules import Floats, Ints


def aonline(
    *,
    slot: float = 300.0,
    low: float | None = None,
    high: float | None = None,
    patience: float = 2.0,
    refused: Literal["drop", "demote"] = "drop",
) -> Policy:
    """Admit a job if its weight is above the priced cost of its best schedule, in slots of `slot` seconds.

    The price of a GPU for a slot rises from `low` on an empty node to `high` on a full one; by default these
    follow the jobs seen so far. A job weighs its priority (1 at least) for each GPU and slot that it asks
    for, if it ends before its deadline, or within `patience` times its declared duration and one slot. In
    each slot a schedule chooses the GPU type, and counts with the job's speed on it. A job that is not
    admitted is dropped, as in the paper, or with `refused=demote` (ours) runs on what schedules leave.
    """
    if patience < 0:
        raise ValueError(f"patience is not negative: {patience}")
    return priced(weight(patience), slot, low, high, drop=refused == "drop", by_type=True)


def weight(patience: float) -> Utility:
    """The same at any time until the job is due, and nothing after it."""

    def utility(job: JobView, ends: Ints, slot: int) -> Floats:
        return np.where(ends > due_of(job, slot, patience), 0.0, value_of(job, slot))

    return utility
