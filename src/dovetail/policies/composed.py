"""A policy made of replaceable parts."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

from dovetail.mechanisms.discipline import Discipline, skip
from dovetail.mechanisms.place import Place, packed
from dovetail.model.view import JobView, Order, Plan, View


@dataclass(frozen=True, slots=True, kw_only=True)
class Composed:
    """Who goes first, how far one looks, on which devices, how often."""

    order: Order
    serve: Discipline = skip
    place: Place = packed
    group: Callable[[JobView], Hashable] | None = None
    quantum: int | None = None

    def decide(self, view: View) -> Plan:
        return self.serve(view, self.place)
