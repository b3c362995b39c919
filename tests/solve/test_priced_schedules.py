"""The best schedule by dynamic programming is the best of all schedules, and prices rise as they should."""

from __future__ import annotations

from itertools import product

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dovetail.solve.priced_schedules import (
    Floats,
    Ints,
    Options,
    best_schedule,
    cheapest,
    chosen,
    price,
    prices,
)
from dovetail.testing.search import searched


@st.composite
def problems(draw: st.DrawFn) -> tuple[Options, int, Floats]:
    """Up to 4 slots and 3 options, whole units and costs; some options are not possible."""
    slots, columns = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    cells = slots * columns
    units = draw(st.lists(st.integers(0, 5), min_size=cells, max_size=cells))
    costs = st.one_of(st.integers(0, 12), st.just(np.inf))
    cost = draw(st.lists(costs, min_size=cells, max_size=cells))
    utility = draw(st.lists(st.integers(-5, 20), min_size=slots, max_size=slots))
    shape = (slots, columns)
    options = Options(np.array(units).reshape(shape), np.array(cost, float).reshape(shape))
    return options, draw(st.integers(1, 9)), np.array(utility, float)


def surplus(options: Options, work: int, utility: Floats, picks: tuple[int, ...]) -> float | None:
    """What a schedule is worth minus what it costs; None: it does not end in its last slot."""
    left, cost, ended = work, 0.0, -1
    for slot, option in enumerate(picks):
        if option < 0:
            continue
        does = int(options.units[slot, option])
        if does <= 0 or left <= 0 or not np.isfinite(options.cost[slot, option]):
            return None
        cost += float(options.cost[slot, option]) * min(left / does, 1.0)
        left, ended = left - does, slot
    return None if left > 0 else float(utility[ended]) - cost


@given(problem=problems())
@searched(300)
def test_no_schedule_is_better(problem: tuple[Options, int, Floats]) -> None:
    options, work, utility = problem
    slots, columns = options.units.shape
    all_of_them = product(range(-1, columns), repeat=slots)
    worths = [surplus(options, work, utility, picks) for picks in all_of_them]
    possible = [worth for worth in worths if worth is not None]
    found = best_schedule(options, work, utility)
    if found is None:
        assert not possible
        return
    assert abs(found.surplus - max(possible)) < 1e-9
    picks = dict(found.choices)
    again = surplus(options, work, utility, tuple(picks.get(slot, -1) for slot in range(slots)))
    assert again is not None
    assert abs(again - found.surplus) < 1e-9


@st.composite
def nodes(draw: st.DrawFn) -> tuple[Floats, Ints, int, int]:
    count = draw(st.integers(1, 5))
    price = draw(st.lists(st.integers(1, 4), min_size=count, max_size=count))
    room = draw(st.lists(st.integers(-1, 4), min_size=count, max_size=count))
    return np.array(price, float), np.array(room), draw(st.integers(1, 6)), draw(st.integers(1, 2))


@given(given_=nodes())
@searched(200)
def test_no_place_is_cheaper(given_: tuple[Floats, Ints, int, int]) -> None:
    price, room, tasks, each = given_
    ways = product(*(range(max(int(most), 0) + 1) for most in room))
    full = [np.array(way) for way in ways if sum(way) == tasks]
    before = np.zeros(len(room), np.int64)
    for one_node in (False, True):
        fitting = [way for way in full if not one_node or (way > 0).sum() == 1]
        least = min((float((way * price).sum()) * each for way in fitting), default=np.inf)
        places = cheapest(price[None], room[None], tasks, each, one_node=one_node)
        assert places.cost[0] == least
        if fitting:
            took = chosen(price, room, tasks, before, one_node=one_node)
            assert took.sum() == tasks
            assert (took <= np.maximum(room, 0)).all()
            assert (took * price).sum() * each == least
            assert one_node or (took > 0).sum() == places.nodes[0]


def test_a_gang_stays_where_it_was_if_that_costs_no_more() -> None:
    price, room = np.array([1.0, 1.0, 2.0]), np.array([2, 2, 2])
    assert chosen(price, room, 2, np.array([0, 2, 0]), one_node=True).tolist() == [0, 2, 0]
    assert chosen(price, room, 2, np.array([0, 0, 2]), one_node=True).tolist() == [2, 0, 0]


@given(size=st.integers(1, 64), low=st.floats(0.01, 10), ratio=st.floats(1, 1_000))
@searched(100)
def test_prices_rise_from_the_lowest_to_the_highest(size: int, low: float, ratio: float) -> None:
    of = [price(taken, size, low, low * ratio) for taken in range(size + 1)]
    assert abs(of[0] / low - 1) < 1e-8
    assert abs(of[-1] / (low * ratio) - 1) < 1e-8
    assert of == sorted(of)
    table = prices(np.arange(size + 1)[:, None], [size], low, low * ratio)
    assert table[:, 0].tolist() == of
