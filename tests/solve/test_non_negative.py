"""Least squares with coefficients of at least 0: the conditions of an optimum, and curves of losses."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.model.loss import LossCurve
from dovetail.solve.loss_fit import fitted_loss
from dovetail.solve.non_negative import MOST_COLUMNS, non_negative

NUMBERS = st.integers(-9, 9)


@st.composite
def problems(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    rows, count = draw(st.integers(1, 8)), draw(st.integers(1, 5))
    matrix = draw(st.lists(st.lists(NUMBERS, min_size=count, max_size=count), min_size=rows, max_size=rows))
    target = draw(st.lists(NUMBERS, min_size=rows, max_size=rows))
    return np.array(matrix, dtype=float), np.array(target, dtype=float)


@given(problems())
def test_no_coefficient_can_be_changed_for_a_smaller_error(problem: tuple[np.ndarray, np.ndarray]) -> None:
    """The problem is convex: where no slope leads down, it is solved (Karush, Kuhn, Tucker)."""
    columns, target = problem
    found, error = non_negative(columns, target)
    rest = target - (columns * found).sum(axis=1)
    slopes = (columns * rest[:, None]).sum(axis=0)
    assert error == pytest.approx((rest * rest).sum(), abs=1e-6)
    assert found.min() >= 0
    assert slopes.max() <= 1e-5
    assert np.abs(slopes[found > 1e-9]).max(initial=0.0) <= 1e-5


@given(st.lists(st.integers(0, 9), min_size=3, max_size=3))
def test_figures_that_are_exact_are_found(figures: list[int]) -> None:
    columns = np.array([[1.0, n, 1.0 / n] for n in range(1, 7)])
    found, error = non_negative(columns, (columns * np.array(figures, dtype=float)).sum(axis=1))
    assert found == pytest.approx(figures, abs=1e-6)
    assert error == pytest.approx(0, abs=1e-9)


def test_too_many_columns_are_refused() -> None:
    with pytest.raises(ValueError, match="at most 8"):
        non_negative(np.ones((2, MOST_COLUMNS + 1)), np.ones(2))


@given(st.floats(0.02, 2), st.floats(0.1, 2), st.floats(0, 1), st.integers(5, 40))
def test_a_curve_without_noise_is_found(slope: float, start: float, floor: float, points: int) -> None:
    curve = LossCurve(slope, start, floor)
    epochs = list(range(1, points + 1))
    found = LossCurve(*fitted_loss(epochs, [curve.at(k) for k in epochs]))
    assert [found.at(k) for k in epochs] == pytest.approx([curve.at(k) for k in epochs], rel=1e-3)


@given(st.lists(st.floats(0, 1e12), min_size=3, max_size=8))
def test_any_losses_have_a_curve(losses: list[float]) -> None:
    """A job may report anything: its curve is one, and has no loss that is not a number."""
    found = LossCurve(*fitted_loss(range(1, len(losses) + 1), losses))
    assert found.at(len(losses)) >= 0
