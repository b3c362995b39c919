"""Trading GPUs of one type for GPUs of another.

To one tenant a fast GPU is worth five slow ones, to another little more than one. So the second lends fast
GPUs to the first, for more slow ones than they are worth to it and fewer than they are worth to the first.
Both are better off than without the trade (Chaudhary et al., "Balancing Efficiency and Fairness in
Heterogeneous GPU Clusters for Deep Learning", EuroSys 2020).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

LEAST = 1e-6  # less than this is not worth a trade


class Holding(NamedTuple):
    """GPUs of the fast type and of the slow one."""

    fast: float
    slow: float

    def worth(self, speedup: float) -> float:
        """In slow GPUs."""
        return self.fast * speedup + self.slow


class Trade(NamedTuple):
    """The buyer gets `fast` fast GPUs, and the seller `price` slow ones for each of them."""

    buyer: str
    seller: str
    fast: float
    price: float


def trades(
    holdings: Mapping[str, Holding],
    speedups: Mapping[str, float],
    most: Mapping[str, float] | None = None,
) -> list[Trade]:
    """All trades, one after the other, until none is left.

    The tenant with the highest speed-up that can still pay buys from the one with the lowest speed-up that
    still has fast GPUs. No tenant sells for more GPUs than it can use (`most`).

    >>> held = {"A": Holding(4, 4), "B": Holding(4, 4), "C": Holding(0, 4)}
    >>> trades(held, {"A": 1.25, "B": 5.0, "C": 2.0})[0]
    Trade(buyer='B', seller='A', fast=2.0, price=2.0)
    """
    now = {name: holding for name, holding in holdings.items() if name in speedups}
    slack = {name: most[name] - sum(now[name]) if most is not None else float("inf") for name in now}
    line = sorted(now, key=lambda name: (speedups[name], name))
    made: list[Trade] = []
    while True:
        found = _next(now, speedups, slack, line)
        if found is None:
            return made
        now = after_trades(now, [found])
        slack[found.seller] -= found.fast * (found.price - 1)
        slack[found.buyer] += found.fast * (found.price - 1)
        made.append(found)


def price(buyer: float, seller: float, others: Iterable[float]) -> float:
    """The second-highest speed-up, as in a second-price auction: what the next bidder would have paid.

    Between those of buyer and seller, so that neither loses; that of the seller if no other tenant bids.
    """
    return max([seller, *others])


def _next(
    now: Mapping[str, Holding], speedups: Mapping[str, float], slack: Mapping[str, float], line: list[str]
) -> Trade | None:
    bidders = [name for name in reversed(line) if now[name].slow > LEAST]
    for i, buyer in enumerate(bidders):
        for seller in line:
            if speedups[seller] >= speedups[buyer]:
                break
            if now[seller].fast <= LEAST:
                continue
            others = [speedups[other] for other in bidders[i + 1 :]]
            at = price(speedups[buyer], speedups[seller], others)
            if at <= 0:
                continue
            fast = min(now[seller].fast, now[buyer].slow / at)
            if at > 1:
                fast = min(fast, slack[seller] / (at - 1))
            elif at < 1:
                fast = min(fast, slack[buyer] / (1 - at))
            if fast > LEAST:
                return Trade(buyer, seller, fast, at)
    return None


def after_trades(holdings: Mapping[str, Holding], made: Iterable[Trade]) -> dict[str, Holding]:
    """What each tenant holds after these trades."""
    now = dict(holdings)
    for buyer, seller, fast, price in made:
        now[buyer] = Holding(now[buyer].fast + fast, max(now[buyer].slow - fast * price, 0.0))
        now[seller] = Holding(max(now[seller].fast - fast, 0.0), now[seller].slow + fast * price)
    return now
