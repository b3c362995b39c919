"""The forecast for a job that changes its speed."""

from __future__ import annotations

import pytest

from dovetail.model.job import Profile
from dovetail.policies.shockwave.regimes import Forecast, ahead, behind, time_of, work_in

FASTER = Profile(regimes=((1, 1.0), (1, 4.0)))


def test_every_forecast_is_right_for_a_steady_job() -> None:
    forecasts: tuple[Forecast, ...] = ("posterior", "constant", "declared")
    for forecast in forecasts:
        assert ahead(None, 30, 100, forecast) == [(70, 1.0)]
        assert ahead(Profile(), 100, 100, forecast) == []


def test_at_first_all_regimes_are_taken_to_be_equal() -> None:
    assert time_of(ahead(FASTER, 0, 100, "posterior")) == pytest.approx(50 + 12.5)
    assert time_of(ahead(FASTER, 0, 100, "constant")) == 100


def test_observed_regimes_count() -> None:
    """40 of 100 slow: of the whole (50 + 40) / 140 are expected to be, so 24.3 more."""
    (slow, _), (fast, speed) = ahead(FASTER, 40, 100, "posterior")
    assert slow == pytest.approx(100 * 90 / 140 - 40)
    assert slow + fast == pytest.approx(60)
    assert speed == 4.0


def test_the_present_regime_comes_first() -> None:
    assert [speed for _, speed in ahead(FASTER, 60, 100, "posterior")] == [4.0, 1.0]
    assert ahead(FASTER, 60, 100, "constant") == [(40, 4.0)]
    assert ahead(FASTER, 60, 100, "declared") == [(40.0, 4.0)]


def test_work_and_time_agree() -> None:
    stretches = ahead(FASTER, 0, 100, "declared")
    assert work_in(stretches, 50) == 50
    assert work_in(stretches, 55) == 70
    assert work_in(stretches, 1e9) == 100
    assert behind(FASTER, 0, 100) == []
