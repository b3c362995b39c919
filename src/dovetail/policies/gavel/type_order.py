"""The order of GPU types in a round for a policy that is blind to types."""

from __future__ import annotations

from functools import lru_cache

from dovetail.model.chance import Random, seeded


def drawn_order(seed: int, kinds: tuple[str, ...], number: int) -> tuple[str, ...]:
    """The order of types in round `number`, drawn as the authors' simulator draws it, to compare runs."""
    source, orders = _draws(seed, kinds)
    while len(orders) <= number:
        order = list(kinds)
        source.shuffle(order)
        orders.append(tuple(order))
    return orders[number]


@lru_cache(maxsize=64)
def _draws(seed: int, kinds: tuple[str, ...]) -> tuple[Random, list[tuple[str, ...]]]:
    return seeded(seed + 5), []
