"""The plane's time, at whichever pace it runs."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from tests.control.harness import eventually

from dovetail.control import clock, steady_time
from dovetail.control.clock import Clock, clock_from
from dovetail.control.request import parse_request
from dovetail.control.serve import Wanted, plane_up
from dovetail.control.steady_time import SteadyTime
from dovetail.control.submission import submit
from dovetail.control.tokens import Caller
from dovetail.model.units import DAY, SECOND


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The wall's time, to be set."""
    now = [1_000 * SECOND]
    monkeypatch.setattr(clock, "steady_now", lambda: now[0])
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


def test_a_plane_waits_for_the_next_moment_also_before_its_clock_began(wall: list[int]) -> None:
    """A plane started while the wall clock was a week ahead; the machine was booted with the right one."""
    right = Clock(wall=wall[0], plane=wall[0] + 40 * DAY)
    ahead = Clock(wall[0] + 7 * DAY, wall[0] + 47 * DAY + 5 * SECOND, before=right)
    wall[0] += 60 * SECOND
    soon = ahead.now() + 30 * SECOND
    assert ahead.now() == right.now()
    assert ahead.seconds_until(soon) == 30.0
    for moment in (soon, ahead.plane - SECOND, ahead.plane, ahead.plane + SECOND):
        assert ahead.at(ahead.wall_at(moment)) >= moment
        assert ahead.at(ahead.wall_at(moment) - 1) < moment


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


# --- steady time --------------------------------------------------------------------------------------


class Machine:
    """Two clocks of a machine: one that can be set, and one that cannot."""

    def __init__(self) -> None:
        self.wall, self.boot = 1_000_000 * SECOND, 50 * SECOND

    def steady(self, boot: str = "one") -> SteadyTime:
        return SteadyTime(lambda: self.wall, lambda: self.boot, boot)

    def passes(self, seconds: float) -> None:
        self.wall += round(seconds * SECOND)
        self.boot += round(seconds * SECOND)


@pytest.mark.parametrize("jump", [40 * DAY, -40 * DAY, 3_600 * SECOND, -3_600 * SECOND])
def test_time_passes_at_its_pace_whatever_the_wall_clock_does(
    jump: int, caplog: pytest.LogCaptureFixture
) -> None:
    machine = Machine()
    steady = machine.steady()
    began = steady.now()
    machine.wall += jump
    for _ in range(60):
        machine.passes(60)
        steady.now()
    assert steady.now() - began == pytest.approx(3_600 * SECOND, rel=0.002)
    assert caplog.text.count("the wall clock is") == 1, "said once"
    machine.wall -= jump  # and it is corrected
    machine.passes(60)
    assert steady.now() - began == pytest.approx(3_660 * SECOND, rel=0.002)


def test_small_corrections_are_followed_and_time_never_goes_back(caplog: pytest.LogCaptureFixture) -> None:
    machine = Machine()
    steady = machine.steady()
    for correction in (2 * SECOND, -3 * SECOND):
        machine.wall += correction
        last = steady.now()
        for _ in range(400):
            machine.passes(10)
            assert steady.now() > last
            last = steady.now()
        assert abs(last - machine.wall) < SECOND // 100
    assert caplog.text == ""


def test_a_new_process_goes_on_by_the_time_since_boot() -> None:
    machine = Machine()
    kept = machine.steady().kept()
    machine.passes(100)
    machine.wall += 40 * DAY
    after = machine.steady()
    after.resume(kept)
    assert after.now() == 1_000_100 * SECOND, "no matter what the wall clock reads"
    rebooted = machine.steady("two")
    rebooted.resume(kept)
    assert rebooted.now() == machine.wall
    for damaged in ("", "{}", "[1]", '{"boot": "one", "at": "x", "now": 1}', None):
        fresh = machine.steady()
        fresh.resume(damaged)
        assert fresh.now() == machine.wall


def test_a_plane_that_is_killed_soon_after_its_start_goes_on_by_the_time_since_boot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with plane_up(Wanted(folder=tmp_path / "state", virtual="1x2:A100", port=1)) as up:
        up.plane.change(lambda state, now: None)  # a tick has been recorded
        # As a kill leaves it, without what a plane writes when it ends.
        shutil.copytree(tmp_path / "state", tmp_path / "killed", ignore=shutil.ignore_patterns(".doorbell"))
    real, steady = time.time_ns, steady_time.STEADY
    monkeypatch.setattr(time, "time_ns", lambda: real() + 40 * DAY * 1_000)
    with monkeypatch.context() as fresh:  # the steady time of a new process
        for name, value in vars(SteadyTime()).items():
            fresh.setattr(steady, name, value)
        with plane_up(Wanted(folder=tmp_path / "killed", virtual="1x2:A100", port=1)) as up:
            assert up.plane.clock.now() < real() // 1_000 + DAY, "no matter what the wall clock reads"


def test_a_reading_of_the_wall_clock_is_placed_by_the_present_difference() -> None:
    machine = Machine()
    steady = machine.steady()
    machine.wall -= 40 * DAY
    machine.passes(100)
    ended = machine.wall  # an attempt ends now, says its supervisor
    machine.passes(1)
    assert steady.now() - steady.of_wall(ended) == pytest.approx(SECOND, rel=0.01)


@pytest.mark.parametrize("jumps", [(-3_600,), (40 * 86_400, -40 * 86_400)], ids=["back", "ahead and back"])
def test_a_plane_goes_on_when_the_wall_clock_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jumps: tuple[int, ...]
) -> None:
    real = time.time_ns
    with plane_up(Wanted(folder=tmp_path / "state", virtual="1x2:A100", port=1)) as up:
        # Not 0 if the clock of this machine was set since the steady time of this process began.
        ahead = up.plane.clock.now() - clock.wall_now()
        off = 0

        def submitted(**more: Any) -> str:
            body = {"run": "true", "resources": {"gpus": 1}, **more}
            return submit(up.plane, Caller("t", "red", "ann", "user"), parse_request(body), body).id

        def is_over(id: str) -> bool:
            return up.plane.ask(lambda state, now: id not in state.ledger.index.records)

        for jump in jumps:
            off += jump
            monkeypatch.setattr(time, "time_ns", lambda off=off: real() + off * 1_000_000_000)
            before = submitted()  # a step is decided after the jump
            eventually(lambda id=before: is_over(id), "the end of a job")  # type: ignore[misc]
        later = submitted(begin="+1s")
        eventually(lambda: is_over(later), "a start a second later", 20)
        monkeypatch.undo()
        assert abs(up.plane.clock.now() - clock.wall_now() - ahead) < 60 * SECOND
