"""Trades: no tenant loses, the second price is paid, and trading ends."""

from __future__ import annotations

from random import Random

import pytest

from dovetail.policies.gandiva_fair.trade import Holding, after_trades, trades


def test_the_price_is_that_of_the_next_bidder() -> None:
    held = {name: Holding(4.0, 4.0) for name in "ABC"}
    speedups = {"A": 1.25, "B": 5.0, "C": 2.0}
    made = trades(held, speedups)
    assert made[0] == ("B", "A", 2.0, 2.0)  # what C would have paid
    assert made[1] == ("C", "A", 2.0, 1.25)  # then no other bids, and the value to the seller is the price
    after = after_trades(held, made)
    assert [round(after[name].worth(speedups[name]), 9) for name in "ABC"] == [10.5, 30.0, 13.5]


def test_no_tenant_sells_for_more_than_it_can_use() -> None:
    held = {"A": Holding(4.0, 4.0), "B": Holding(4.0, 4.0), "C": Holding(0.0, 1.0)}  # C only sets the price
    speedups = {"A": 1.25, "B": 5.0, "C": 2.0}
    most = {"B": 8.0, "C": 1.0}
    assert trades(held, speedups, {"A": 9.0, **most}) == [("B", "A", 1.0, 2.0)]  # it has eight GPUs
    assert trades(held, speedups, {"A": 8.0, **most}) == []


def test_tenants_with_equal_speed_ups_do_not_trade() -> None:
    held = {"A": Holding(1.0, 1.0), "B": Holding(1.0, 1.0)}
    assert trades(held, {"A": 2.0, "B": 2.0}) == []


@pytest.mark.parametrize("seed", range(50))
def test_no_tenant_loses_and_no_gpu_is_lost(seed: int) -> None:
    luck = Random(seed)
    names = [f"u{i}" for i in range(luck.randint(2, 7))]
    held = {name: Holding(luck.uniform(0, 8), luck.uniform(0, 8)) for name in names}
    speedups = {name: luck.uniform(0.8, 8.0) for name in names}
    most = {name: sum(held[name]) + luck.uniform(0, 10) for name in names}
    after = after_trades(held, trades(held, speedups, most))
    assert sum(h.fast for h in after.values()) == pytest.approx(sum(h.fast for h in held.values()))
    assert sum(h.slow for h in after.values()) == pytest.approx(sum(h.slow for h in held.values()))
    for name in names:
        assert after[name].worth(speedups[name]) >= held[name].worth(speedups[name]) - 1e-6
        assert sum(after[name]) <= max(most[name], sum(held[name])) + 1e-6
