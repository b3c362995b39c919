"""Tables of leases: the greedy check against the program, on random small instances."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dovetail.solve.lease_tables import Demand, Table, backwards, exact
from dovetail.testing.search import searched

DEMANDS = st.lists(
    st.builds(Demand, st.integers(0, 3), st.integers(1, 5), st.integers(-1, 7)), min_size=1, max_size=5
)
ROOMS = st.lists(st.integers(0, 5), min_size=1, max_size=6)


def keeps_all(table: Table, demands: list[Demand], room: list[int]) -> bool:
    used = [sum(d.width for d, own in zip(demands, table, strict=True) if t in own) for t in range(len(room))]
    return all(a <= b for a, b in zip(used, room, strict=True)) and all(
        len(set(own)) == d.need and all(0 <= t < min(d.last, len(room)) for t in own)
        for d, own in zip(demands, table, strict=True)
    )


@given(demands=DEMANDS, room=ROOMS)
@searched(150)
def test_what_the_fast_check_accepts_is_feasible(demands: list[Demand], room: list[int]) -> None:
    fast = backwards(demands, np.array(room, np.int64))
    best = exact(demands, np.array(room, np.int64))
    assert best is None or keeps_all(best, demands, room)
    if fast is not None:
        assert keeps_all(fast, demands, room)
        assert best is not None


def test_the_fast_check_may_refuse_what_is_feasible() -> None:
    """The second job goes as late as it can, into the only lease that is left for the wide one."""
    demands = [Demand(1, 3, 2), Demand(1, 1, 2), Demand(1, 1, 1)]
    room = np.array([3, 3], np.int64)
    assert backwards(demands, room) is None
    assert exact(demands, room) == [(1,), (0,), (0,)]
