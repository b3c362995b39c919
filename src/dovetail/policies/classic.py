"""The classical orders: first come, shortest, shortest remaining, by priority.

They are the baselines of every other policy.
"""

from __future__ import annotations

from typing import Literal

from dovetail.mechanisms.order.keys import (
    arrival,
    by_priority,
    least_remaining_service,
    shortest,
    shortest_remaining,
    smallest,
)
from dovetail.mechanisms.place.first_fit import first_fit
from dovetail.mechanisms.place.placement import Placement, packed, scattered
from dovetail.mechanisms.preempt.displacement import preemptive
from dovetail.mechanisms.preempt.full_ranking import selected_by_count
from dovetail.mechanisms.queue.discipline import Discipline, skip, strict
from dovetail.model.errors import BadOption
from dovetail.model.units import micros
from dovetail.model.view import Order, Policy
from dovetail.policies.composed import Composed

DISCIPLINES: dict[str, Discipline] = {"strict": strict, "skip": skip}
PLACEMENTS: dict[str, Placement] = {"packed": packed, "first-fit": first_fit, "scattered": scattered}


def fifo(
    *,
    discipline: Literal["strict", "skip"] = "strict",
    placement: Literal["packed", "first-fit", "scattered"] = "packed",
) -> Policy:
    """First come, first served; `strict` stops at the first job that does not fit, `skip` passes over it."""
    return Composed(order=arrival, serve=DISCIPLINES[discipline], place=PLACEMENTS[placement])


def sjf(
    *,
    by: Literal["duration", "service", "gpus"] = "duration",
    preempt: bool = False,
    discipline: Literal["strict", "skip"] = "skip",
    placement: Literal["packed", "first-fit", "scattered"] = "packed",
) -> Policy:
    """Shortest declared duration first, without preemption; `by` takes another size, such as time x GPUs.

    With `preempt`, smaller jobs preempt larger ones; the declared size counts, not the remaining one.
    """
    if preempt:
        order = smallest(by)
        serve = preemptive(order, strict=discipline == "strict")
        return Composed(order=order, serve=serve, place=PLACEMENTS[placement])
    # No job is preempted, so running jobs need no index: the key alone.
    order = shortest if by == "duration" else Order(smallest(by).key)
    return Composed(order=order, serve=DISCIPLINES[discipline], place=PLACEMENTS[placement])


def srtf(
    *,
    discipline: Literal["strict", "skip"] = "skip",
    placement: Literal["packed", "first-fit", "scattered"] = "packed",
    cost: float | None = None,
    select: Literal["fit", "count"] = "fit",
) -> Policy:
    """Least remaining time first, preempting.

    `cost` is the time that a preempted job needs to resume, in seconds; without it, the job's own time to
    restore a checkpoint. `select="count"` selects jobs by number of GPUs before it looks for nodes.
    """
    return _preempting(shortest_remaining(_micros(cost)), discipline, placement, select)


def srsf(
    *,
    discipline: Literal["strict", "skip"] = "skip",
    placement: Literal["packed", "first-fit", "scattered"] = "packed",
    cost: float | None = None,
    select: Literal["fit", "count"] = "fit",
) -> Policy:
    """Least remaining service (time x GPUs) first, preempting; options as for srtf."""
    return _preempting(least_remaining_service(_micros(cost)), discipline, placement, select)


def _preempting(order: Order, discipline: str, placement: str, select: str) -> Policy:
    if select == "count":
        if discipline == "strict":
            raise BadOption("select=count passes over jobs that do not fit: it needs discipline=skip")
        serve = selected_by_count(order)
    else:
        serve = preemptive(order, strict=discipline == "strict")
    return Composed(order=order, serve=serve, place=PLACEMENTS[placement])


def _micros(seconds: float | None) -> int | None:
    return None if seconds is None else micros(seconds)


def priority(
    *,
    higher_is: Literal["larger", "smaller"] = "larger",
    preempt: bool = True,
    aging: float = 0.0,
    discipline: Literal["strict", "skip"] = "skip",
    placement: Literal["packed", "first-fit", "scattered"] = "packed",
) -> Policy:
    """By priority; an hour of waiting is worth `aging` steps of priority."""
    order = by_priority(larger_first=higher_is == "larger", aging=aging)
    serve = preemptive(order, strict=discipline == "strict") if preempt else DISCIPLINES[discipline]
    return Composed(order=order, serve=serve, place=PLACEMENTS[placement])
