"""The classical orders: first come, shortest, shortest remaining, by priority.

They are the references against which everybody else is measured.
"""

from __future__ import annotations

from typing import Literal

from dovetail.mechanisms.discipline import Discipline, skip, strict
from dovetail.mechanisms.order import (
    arrival,
    by_priority,
    least_remaining_service,
    shortest,
    shortest_remaining,
)
from dovetail.mechanisms.place import Place, packed, scattered
from dovetail.mechanisms.preempt import preemptive
from dovetail.model.units import micros
from dovetail.model.view import Policy
from dovetail.policies.composed import Composed

DISCIPLINES: dict[str, Discipline] = {"strict": strict, "skip": skip}
PLACEMENTS: dict[str, Place] = {"packed": packed, "scattered": scattered}


def fifo(
    *,
    discipline: Literal["strict", "skip"] = "strict",
    placement: Literal["packed", "scattered"] = "packed",
) -> Policy:
    """First come, first served; `strict` waits behind the first that does not fit, `skip` passes it over."""
    return Composed(order=arrival, serve=DISCIPLINES[discipline], place=PLACEMENTS[placement])


def sjf(
    *,
    discipline: Literal["strict", "skip"] = "skip",
    placement: Literal["packed", "scattered"] = "packed",
) -> Policy:
    """Shortest declared duration first, without preemption."""
    return Composed(order=shortest, serve=DISCIPLINES[discipline], place=PLACEMENTS[placement])


def srtf(
    *,
    discipline: Literal["strict", "skip"] = "skip",
    placement: Literal["packed", "scattered"] = "packed",
    cost: float = 0.0,
) -> Policy:
    """Least remaining time first, preempting; `cost` is what a stopped job pays to come back, in seconds."""
    order = shortest_remaining(micros(cost))
    serve = preemptive(order, nobody_overtakes=discipline == "strict")
    return Composed(order=order, serve=serve, place=PLACEMENTS[placement])


def srsf(
    *,
    discipline: Literal["strict", "skip"] = "skip",
    placement: Literal["packed", "scattered"] = "packed",
    cost: float = 0.0,
) -> Policy:
    """Least remaining service (time x GPUs) first, preempting."""
    order = least_remaining_service(micros(cost))
    serve = preemptive(order, nobody_overtakes=discipline == "strict")
    return Composed(order=order, serve=serve, place=PLACEMENTS[placement])


def priority(
    *,
    higher_is: Literal["larger", "smaller"] = "larger",
    preempt: bool = True,
    aging: float = 0.0,
    discipline: Literal["strict", "skip"] = "skip",
    placement: Literal["packed", "scattered"] = "packed",
) -> Policy:
    """By priority number; `aging` is how many steps of priority an hour of waiting is worth."""
    order = by_priority(larger_first=higher_is == "larger", aging=aging)
    serve = preemptive(order, nobody_overtakes=discipline == "strict") if preempt else DISCIPLINES[discipline]
    return Composed(order=order, serve=serve, place=PLACEMENTS[placement])
