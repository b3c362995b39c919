"""The plane's time, at whichever pace it runs."""

from __future__ import annotations

import pytest

from dovetail.control import clock
from dovetail.control.clock import Clock, clock_from
from dovetail.model.units import SECOND


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The wall's time, to be set."""
    now = [1_000 * SECOND]
    monkeypatch.setattr(clock, "wall_now", lambda: now[0])
    return now


def test_time_goes_on_as_it_did(wall: list[int]) -> None:
    first = clock_from(None, 60.0, 0)
    wall[0] += 10 * SECOND
    again = clock_from(first.to_json(), 60.0, 0)
    assert again == first
    assert again.now() == 1_600 * SECOND


def test_what_was_before_a_change_of_pace_is_told_at_the_old_one(wall: list[int]) -> None:
    first = clock_from(None, 60.0, 0)
    wall[0] += 10 * SECOND
    second = clock_from(first.to_json(), 1.0, 0)
    assert second.at(1_005 * SECOND) == first.at(1_005 * SECOND) == 1_300 * SECOND
    assert second.at(1_010 * SECOND) == 1_600 * SECOND
    assert second.at(1_015 * SECOND) == 1_605 * SECOND
    assert clock_from(second.to_json(), 1.0, 0) == second, "also for who wakes up again"


def test_a_third_pace_remembers_the_second_only(wall: list[int]) -> None:
    clocks = [clock_from(None, 60.0, 0)]
    for pace in (1.0, 2.0, 3.0):
        wall[0] += 10 * SECOND
        clocks.append(clock_from(clocks[-1].to_json(), pace, 0))
    assert clocks[-1].before == Clock(clocks[-2].wall, clocks[-2].plane, 2.0)
    assert len(clocks[-1].to_json()) < 200


def test_time_never_goes_back_though_the_wall_does(wall: list[int]) -> None:
    first = clock_from(None, 1.0, 0)
    wall[0] -= 100 * SECOND
    second = clock_from(first.to_json(), 1.0, 1_000 * SECOND)
    assert second.now() == 1_000 * SECOND
    assert second.at(800 * SECOND) == 800 * SECOND
    assert second.at(899 * SECOND) <= second.plane
