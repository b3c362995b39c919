"""The classical orders: first come, shortest, shortest remaining, by priority.

They are the references against which everybody else is measured.
"""

from __future__ import annotations

from typing import Literal

from dovetail.mechanisms.census import choose_by_count
from dovetail.mechanisms.discipline import Discipline, skip, strict
from dovetail.mechanisms.firstfit import first_fit
from dovetail.mechanisms.order import (
    arrival,
    by_priority,
    least_remaining_service,
    shortest,
    shortest_remaining,
    smallest,
)
from dovetail.mechanisms.place import Place, packed, scattered
from dovetail.mechanisms.preempt import preemptive
from dovetail.model.errors import BadOption
from dovetail.model.units import micros
from dovetail.model.view import Order, Policy
from dovetail.policies.composed import Composed

DISCIPLINES: dict[str, Discipline] = {"strict": strict, "skip": skip}
PLACEMENTS: dict[str, Place] = {"packed": packed, "first-fit": first_fit, "scattered": scattered}


def fifo(
    *,
    discipline: Literal["strict", "skip"] = "strict",
    placement: Literal["packed", "first-fit", "scattered"] = "packed",
) -> Policy:
    """First come, first served; `strict` waits behind the first that does not fit, `skip` passes it over."""
    return Composed(order=arrival, serve=DISCIPLINES[discipline], place=PLACEMENTS[placement])


def sjf(
    *,
    by: Literal["duration", "service", "gpus"] = "duration",
    preempt: bool = False,
    discipline: Literal["strict", "skip"] = "skip",
    placement: Literal["packed", "first-fit", "scattered"] = "packed",
) -> Policy:
    """Shortest declared duration first, without preemption; `by` takes another size, such as time x GPUs.

    With `preempt`, smaller jobs displace larger ones; what counts is what was declared, not what is left.
    """
    if preempt:
        order = smallest(by)
        serve = preemptive(order, nobody_overtakes=discipline == "strict")
        return Composed(order=order, serve=serve, place=PLACEMENTS[placement])
    # Nobody is displaced, so nothing need be kept of those who run: the key alone.
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

    `cost` is what a stopped job is reckoned to pay to come back, in seconds; without it, the time that the
    job says it takes to restore. `select="count"` chooses by the number of GPUs before it looks for nodes.
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
            raise BadOption("select=count passes over what does not fit: it goes with discipline=skip only")
        serve = choose_by_count(order)
    else:
        serve = preemptive(order, nobody_overtakes=discipline == "strict")
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
    """By priority number; `aging` is how many steps of priority an hour of waiting is worth."""
    order = by_priority(larger_first=higher_is == "larger", aging=aging)
    serve = preemptive(order, nobody_overtakes=discipline == "strict") if preempt else DISCIPLINES[discipline]
    return Composed(order=order, serve=serve, place=PLACEMENTS[placement])
