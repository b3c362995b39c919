"""OASiS: a job is admitted if it is worth the price of its best schedule (Bao et al., INFOCOM 2018).

The worth of a job falls with its completion time, as a sigmoid. Prices and schedules are those of
`policies.priced_admission`.

Reconstructed: what a job is worth (its priority), and when that is halved (its deadline).
"""

from __future__ import annotations

from math import exp
from typing import Literal

import numpy as np

from dovetail.model.units import micros
from dovetail.model.view import JobView, Policy
from dovetail.policies.priced_admission import PricedAdmission, Utility, due_of, value_of
from dovetail.solve.portable import rounded
from dovetail.solve.priced_schedules import Floats, Ints

STEEPEST = 700.0  # exp of more is not a float


def oasis(
    *,
    slot: float = 300.0,
    low: float | None = None,
    high: float | None = None,
    critical: float = 1.0,
    patience: float = 2.0,
    refused: Literal["drop", "demote"] = "drop",
) -> Policy:
    """Admit a job if its utility is above the priced cost of its best schedule, in slots of `slot` seconds.

    The price of a GPU for a slot rises from `low` on an empty node to `high` on a full one; by default these
    follow the jobs seen so far. A job is worth its priority (1 at least) for each GPU and slot that it asks
    for, times 1 / (1 + exp(critical (t - g3))) if it ends t slots after its arrival. g3 is its deadline, or
    `patience` times its declared duration and one slot. A job that is not admitted is dropped, as in the
    paper, or with `refused=demote` (ours) runs on what schedules leave. The paper has slots of an hour.
    """
    if critical < 0 or patience < 0:
        raise ValueError(f"critical and patience are not negative: {critical}, {patience}")
    return priced(sigmoid(critical, patience), slot, low, high, drop=refused == "drop", by_type=False)


def priced(
    utility: Utility, slot: float, low: float | None, high: float | None, *, drop: bool, by_type: bool
) -> PricedAdmission:
    """A policy that admits by price, once its options are checked."""
    if slot <= 0 or any(each is not None and each <= 0 for each in (low, high)):
        raise ValueError(f"slot, low and high are above 0: {slot}, {low}, {high}")
    if low is not None and high is not None and high < low:
        raise ValueError(f"the price of an empty node is not above that of a full one: {low}, {high}")
    return PricedAdmission(
        utility=utility, slot=max(micros(slot), 1), low=low, high=high, drop=drop, by_type=by_type
    )


def sigmoid(critical: float, patience: float) -> Utility:
    """g1 / (1 + exp(g2 (t - g3))), with g2 = `critical` for each slot."""

    def utility(job: JobView, ends: Ints, slot: int) -> Floats:
        due = due_of(job, slot, patience)
        late = critical * (ends - due) / slot
        falls = [1 / (1 + exp(min(each, STEEPEST))) for each in late.tolist()]
        return np.asarray(rounded(value_of(job, slot) * np.array(falls)))

    return utility
