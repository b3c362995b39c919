"""Shares of one resource: water poured over tenants until all have enough or nothing is left."""

from __future__ import annotations

from collections.abc import Mapping


def water_filled(amount: float, wants: Mapping[str, float], weights: Mapping[str, float]) -> dict[str, float]:
    """Each name gets its part by weight, or all it wants if that is less; the rest goes to the others.

    >>> water_filled(8, {"a": 1, "b": 9, "c": 9}, {"b": 2.0})
    {'a': 1, 'b': 4.666666666666667, 'c': 2.333333333333333}
    """
    weight = {name: max(weights.get(name, 1.0), 1e-9) for name in wants}
    left, heavy = amount, sum(weight.values())
    given = {}
    for name in sorted(wants, key=lambda n: (wants[n] / weight[n], n)):
        given[name] = min(wants[name], left * weight[name] / heavy)
        left -= given[name]
        heavy -= weight[name]
    return given
