"""The auction: the best product, found exactly, and what winners pay."""

from __future__ import annotations

import math
from itertools import product
from random import Random

import pytest

from dovetail.policies.themis.auction import Bundle, auction


def tables(luck: Random, bidders: int, most: int) -> list[list[Bundle]]:
    """Values that grow with the bundle, as for a bidder that can use more."""
    found = []
    for _ in range(bidders):
        sizes = sorted(luck.sample(range(1, most + 1), luck.randint(1, min(4, most))))
        value, table = luck.uniform(0.1, 1.0), []
        for size in [0, *sizes]:
            table.append(Bundle(size * 250, value))
            value *= luck.uniform(1.0, 2.0)
        found.append(table)
    return found


def best(offers: list[list[Bundle]], amount: int) -> float:
    """The largest product of values, by trying everything."""
    return max(
        math.prod(bundle.value for bundle in way)
        for way in product(*offers)
        if sum(bundle.size for bundle in way) <= amount
    )


@pytest.mark.parametrize("seed", range(30))
def test_the_best_product_is_found_and_paid_for(seed: int) -> None:
    luck = Random(seed)
    offers, amount = tables(luck, luck.randint(1, 5), 8), 250 * luck.randint(0, 16)
    awards = auction(offers, amount)
    won = [offer[award.bundle] for offer, award in zip(offers, awards, strict=True)]
    assert sum(bundle.size for bundle in won) <= amount
    assert math.prod(bundle.value for bundle in won) == pytest.approx(best(offers, amount))
    for i, award in enumerate(awards):
        beside = math.prod(bundle.value for j, bundle in enumerate(won) if j != i)
        without = best(offers[:i] + offers[i + 1 :], amount)
        assert award.keeps == pytest.approx(beside / without)
        assert award.keeps <= 1.0


def test_a_winner_that_harms_no_bidder_pays_nothing() -> None:
    hungry = [Bundle(0, 1.0), Bundle(1000, 2.0)]
    assert [award.keeps for award in auction([hungry, hungry], 2000)] == [1.0, 1.0]
    (first, second) = auction([hungry, hungry], 1000)
    assert {first.bundle, second.bundle} == {0, 1}
    assert min(first.keeps, second.keeps) == pytest.approx(0.5)


def test_no_bidders_and_nothing_on_offer() -> None:
    assert auction([], 1000) == []
    assert auction([[Bundle(0, 0.5)]], 1000)[0].bundle == 0
    assert auction([[Bundle(0, 0.5), Bundle(1000, 1.0)]], 0)[0].bundle == 0
