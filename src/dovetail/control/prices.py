"""What a GPU-hour costs, by type: set by an admin, kept beside the facts of the plane.

A type without a price is unknown, not free: what it was used for has no cost (None), and neither has a sum
that holds it. Free is a price of 0.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dovetail.control.store import Store

KEY = "prices"
CURRENCY = "USD"


@dataclass(frozen=True, slots=True)
class Prices:
    """Of a GPU-hour, by type of GPU."""

    currency: str = CURRENCY
    per_gpu_hour: Mapping[str, float] = field(default_factory=dict)

    def cost(self, hours: Mapping[str, float]) -> float | None:
        """The cost of GPU-hours by type; None if a type has no price, or no prices are set."""
        used = {kind: amount for kind, amount in hours.items() if amount > 0}
        if not self.per_gpu_hour or not used.keys() <= self.per_gpu_hour.keys():
            return None
        return sum(self.per_gpu_hour[kind] * amount for kind, amount in used.items())

    def document(self) -> dict[str, Any]:
        return {"currency": self.currency, "per_gpu_hour": dict(sorted(self.per_gpu_hour.items()))}


class PriceList:
    """The prices of a plane."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._turn = threading.Lock()

    def now(self) -> Prices:
        kept = self._store.value(KEY)
        return Prices() if kept is None else Prices(**json.loads(kept))

    def set(self, prices: Prices) -> None:
        with self._turn:  # two calls at once would insert twice
            self._store.keep(KEY, json.dumps(prices.document()))


def parts_of(
    types: Sequence[str], placement: Sequence[Mapping[str, Any]], kind_of: Mapping[str, str]
) -> dict[str, float]:
    """How much of what a job held was of which type; adds up to 1.

    By the devices of its placement; in equal parts if a node is there no more and its type is not known.

    >>> parts_of(["A100", "V100"], [{"node": "a", "devices": [0, 1, 2]}, {"node": "v", "devices": [0]}],
    ...          {"a": "A100", "v": "V100"})
    {'A100': 0.75, 'V100': 0.25}
    """
    if len(types) < 2:
        return dict.fromkeys(types, 1.0)
    amounts = dict.fromkeys(types, 0.0)
    for part in placement:
        kind = kind_of.get(part["node"], "")
        if kind not in amounts:
            return dict.fromkeys(types, 1 / len(types))
        amounts[kind] += len(part["devices"]) * (part.get("share") or 1_000)
    total = sum(amounts.values())
    return {kind: amount / total if total else 1 / len(types) for kind, amount in amounts.items()}
