"""The dynamic program over jobs: the largest sum of all, and one answer of several that are as good."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.solve.largest_sum import largest_sum
from dovetail.testing.suite import searched

OUT = -np.inf


def shares(values: Sequence[Sequence[float]], capacity: int) -> list[int] | None:
    found = largest_sum(np.array(values), capacity)
    return None if found is None else found.tolist()


@given(
    values=st.integers(1, 4).flatmap(
        lambda choices: st.lists(
            st.lists(
                st.sampled_from((OUT, 0.0, 0.5, 1.0, 1.9, 2.7, 3.4)), min_size=choices, max_size=choices
            ),
            min_size=1,
            max_size=4,
        )
    ),
    capacity=st.integers(0, 8),
)
@searched(150)
def test_no_other_shares_have_a_larger_sum(values: list[list[float]], capacity: int) -> None:
    def total(given: Sequence[int]) -> float:
        return sum(row[k] for row, k in zip(values, given, strict=True))

    every = product(range(len(values[0])), repeat=len(values))
    best = max(total(given) for given in every if sum(given) <= capacity)
    found = largest_sum(np.array(values), capacity)
    assert (found is None) == (best == OUT)
    if found is not None:
        assert found.sum() <= capacity
        assert total(found.tolist()) == pytest.approx(best)


def test_gains_need_not_shrink() -> None:
    assert shares([[OUT, 1.0, 1.1, 3.0], [OUT, 1.0, 1.5, 1.8]], 4) == [3, 1]


def test_a_gpu_that_is_worth_nothing_is_not_given() -> None:
    assert shares([[OUT, 1.0, 1.0, 1.0]], 3) == [1]


def test_of_equal_sums_the_first_jobs_have_more() -> None:
    thirds = [0.0, 0.1, 0.1 + 0.2, 0.3]  # the third and the fourth are equal in truth
    assert shares([thirds, thirds], 3) == [2, 1]


def test_too_few_gpus() -> None:
    assert shares([[OUT, 1.0], [OUT, 1.0]], 1) is None
