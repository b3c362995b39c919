"""The tests that every engine passes, for authors of engines.

    from dovetail.testing.engine_contract import EngineContract, EngineRig

    class TestMyEngine(EngineContract):
        @pytest.fixture
        def rig(self) -> Iterator[EngineRig]: ...

A rig makes launches that the engine can run. An engine must refuse the orders that its `capabilities`
exclude; the tests of an order run either way.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from typing import Protocol

import pytest

from dovetail.engines.contract import (
    AttemptEnd,
    Engine,
    Exit,
    Fenced,
    Launch,
    NodeShare,
    NodeUp,
    Resized,
    Unsupported,
)
from dovetail.model.units import SECOND

TIMEOUT = 60.0  # seconds of real time, however busy the machine is


class EngineRig(Protocol):
    """An engine under test, with launches for it."""

    @property
    def engine(self) -> Engine:
        """The engine of a plane that leads."""

    def restarted(self) -> Engine:
        """The engine of a plane that leads after it was started again; from now on `engine`."""

    def of_another_plane(self) -> Engine:
        """One more engine over the same attempts. It does not lead."""

    def endless(self, job: str = "j", epoch: int = 1) -> Launch:
        """An attempt that runs until it is stopped, and that stops when it is asked to."""

    def short(self, job: str = "j", epoch: int = 1) -> Launch:
        """An attempt that ends by itself, with exit code 0."""

    def runs(self, job: str = "j", epoch: int = 1) -> bool:
        """Whether the attempt runs its command at this moment."""

    def times_run(self, job: str = "j", epoch: int = 1) -> int:
        """How often the attempt's command was started."""

    def pass_time(self) -> None:
        """Give running attempts the time to go on."""


class EngineContract:
    """Subclass this with a fixture `rig`."""

    # --- start and end ----------------------------------------------------------------------------------

    def test_an_end_is_reported_until_it_is_forgotten(self, rig: EngineRig) -> None:
        rig.engine.start(rig.short())
        exit = ended(rig)
        assert (exit.code, exit.cause) == (0, "exited")
        assert exit.started_at <= exit.ended_at
        assert rig.engine.poll() == [AttemptEnd("j", 1, exit)]
        assert rig.restarted().poll() == [AttemptEnd("j", 1, exit)], "a new plane learns of it too"
        assert rig.engine.known() == {("j", 1)}
        rig.engine.forget("j", 1)
        rig.engine.forget("j", 1)
        assert (rig.engine.poll(), rig.engine.known()) == ([], set())
        assert rig.restarted().known() == set()

    def test_an_attempt_starts_once_however_often_it_is_ordered(self, rig: EngineRig) -> None:
        launch = rig.endless()
        rig.engine.start(launch)
        rig.engine.start(launch)
        running(rig)
        rig.restarted().start(launch)
        rig.engine.stop("j", 1, "over", 20 * SECOND)
        ended(rig)
        rig.engine.start(launch)
        rig.engine.forget("j", 1)
        rig.engine.start(launch)
        assert ended(rig).cause == "stopped", "a plane that orders it again does not know its end"
        assert rig.times_run() == 1

    def test_each_epoch_is_an_attempt_of_its_own(self, rig: EngineRig) -> None:
        rig.engine.start(rig.short())
        first = ended(rig)
        rig.engine.start(rig.short(epoch=2))
        second = ended(rig, epoch=2)
        assert rig.engine.poll() == [AttemptEnd("j", 1, first), AttemptEnd("j", 2, second)], (
            "in the order of their ends"
        )
        rig.engine.forget("j", 1)
        assert rig.engine.known() == {("j", 2)}
        assert (rig.times_run(), rig.times_run(epoch=2)) == (1, 1)

    # --- stop -------------------------------------------------------------------------------------------

    def test_a_stopped_attempt_says_why(self, rig: EngineRig) -> None:
        rig.engine.start(rig.endless())
        running(rig)
        assert rig.engine.poll() == []
        rig.engine.stop("j", 1, "preempted", 20 * SECOND)
        rig.engine.stop("j", 1, "preempted again", 20 * SECOND)
        exit = ended(rig)
        assert exit.cause == "stopped"
        assert "(preempted)" in exit.detail
        assert not rig.runs()

    def test_a_late_stop_changes_nothing(self, rig: EngineRig) -> None:
        rig.engine.start(rig.short())
        exit = ended(rig)
        rig.engine.stop("j", 1, "late", 0)
        rig.engine.stop("unknown", 1, "late", 0)
        rig.engine.start(rig.endless(epoch=2))
        running(rig, epoch=2)
        rig.engine.stop("j", 1, "late", 0)
        rig.pass_time()
        assert rig.engine.poll() == [AttemptEnd("j", 1, exit)]
        assert rig.runs(epoch=2)
        assert rig.engine.known() == {("j", 1), ("j", 2)}

    # --- resize -----------------------------------------------------------------------------------------

    def test_a_resize_is_confirmed_or_refused(self, rig: EngineRig) -> None:
        launch = rig.endless()
        rig.engine.start(launch)
        running(rig)
        smaller = (NodeShare("n0", ("0",)),)
        if not rig.engine.capabilities.resize:
            with pytest.raises(Unsupported, match="cannot resize"):
                rig.engine.resize("j", 1, 1, smaller)
            assert rig.engine.confirmations() == []
            assert rig.runs(), "a refused order leaves the job alone"
            return
        rig.engine.resize("j", 1, 5, smaller)
        assert confirmed(rig) == [Resized("j", 1, 5)]
        assert rig.engine.confirmations() == [], "once"
        running(rig)
        times = rig.times_run()  # an engine may restart the command for it
        rig.restarted().resize("j", 1, 5, smaller)
        assert confirmed(rig) == [Resized("j", 1, 5)], "an order that is repeated is confirmed again"
        assert rig.runs()
        assert rig.times_run() == times, "and changes nothing"
        rig.engine.resize("j", 1, 6, smaller)
        assert confirmed(rig) == [Resized("j", 1, 6)]
        assert rig.times_run() == times, "nor does one for the devices that it has"
        assert rig.engine.poll() == []
        rig.engine.stop("j", 1, "over", 20 * SECOND)
        assert ended(rig).cause == "stopped"

    def test_a_late_resize_is_dropped(self, rig: EngineRig) -> None:
        if not rig.engine.capabilities.resize:
            pytest.skip("the engine refuses every resize")
        smaller, larger = (NodeShare("n0", ("0",)),), (NodeShare("n0", ("0", "1")),)
        rig.engine.start(rig.short())
        ended(rig)
        rig.engine.start(rig.endless(epoch=2))
        running(rig, epoch=2)
        rig.engine.resize("j", 2, 7, larger)
        assert confirmed(rig) == [Resized("j", 2, 7)]
        rig.engine.resize("j", 2, 6, smaller)  # older than the last
        rig.engine.resize("j", 1, 8, smaller)  # of an attempt that has ended
        rig.engine.resize("unknown", 1, 9, smaller)
        rig.pass_time()
        assert rig.engine.confirmations() == []
        rig.engine.resize("j", 2, 7, larger)
        assert confirmed(rig) == [Resized("j", 2, 7)], "the last one still holds"

    # --- nodes ------------------------------------------------------------------------------------------

    def test_power_is_switched_or_refused(self, rig: EngineRig) -> None:
        if not rig.engine.capabilities.power:
            for on in (True, False):
                with pytest.raises(Unsupported, match="cannot switch nodes"):
                    rig.engine.power("n1", on)
            assert rig.engine.confirmations() == []
            return
        rig.engine.power("n1", False)
        rig.engine.power("n1", True)
        assert confirmed(rig) == [NodeUp("n1")]

    def test_a_node_is_rented_or_the_order_refused(self, rig: EngineRig) -> None:
        if not rig.engine.capabilities.rent:
            for keep in (True, False):
                with pytest.raises(Unsupported, match="cannot rent"):
                    rig.engine.rent("n1", keep, "")
            assert rig.engine.confirmations() == []
            return
        rig.engine.rent("n1", True, "")
        assert confirmed(rig) == [NodeUp("n1")]

    # --- terms ------------------------------------------------------------------------------------------

    def test_a_plane_that_does_not_lead_gives_no_orders(self, rig: EngineRig) -> None:
        rig.engine.start(rig.endless())
        running(rig)
        other = rig.of_another_plane()
        refuses_orders(other, rig)
        assert other.known() == {("j", 1)}, "it may read"
        assert other.poll() == []
        assert rig.runs()

    def test_orders_of_an_older_term_are_refused(self, rig: EngineRig) -> None:
        rig.engine.start(rig.endless())
        running(rig)
        other = rig.of_another_plane()
        term = rig.engine.newest_term()
        assert term > 0
        assert other.newest_term() == term
        other.lead(term + 3)
        assert (rig.engine.newest_term(), other.newest_term()) == (term + 3, term + 3)
        assert other.known() == {("j", 1)}
        refuses_orders(rig.engine, rig)
        rig.pass_time()
        assert other.known() == {("j", 1)}, "a refused order changes nothing"
        assert other.poll() == []
        assert rig.runs()
        other.start(rig.endless(epoch=2))
        running(rig, epoch=2)
        assert rig.engine.known() == {("j", 1), ("j", 2)}, "a deposed plane may read"
        other.stop("j", 1, "over", 20 * SECOND)
        other.stop("j", 2, "over", 20 * SECOND)
        ended(rig)
        ended(rig, epoch=2)
        with pytest.raises(Fenced):
            rig.engine.forget("j", 1)
        assert other.known() == {("j", 1), ("j", 2)}
        assert (rig.times_run(), rig.times_run(epoch=2)) == (1, 1)
        rig.restarted()

    def test_a_term_begins_once_and_terms_only_grow(self, rig: EngineRig) -> None:
        term, other = rig.engine.newest_term(), rig.of_another_plane()
        for old in (term, term - 1):
            with pytest.raises(Fenced):
                other.lead(old)
        rig.engine.start(rig.short())
        ended(rig)
        other.lead(term + 2)
        for old in (term, term + 1, term + 2):
            with pytest.raises(Fenced):
                rig.engine.lead(old)
        rig.engine.lead(term + 3)
        rig.engine.start(rig.short(epoch=2))
        ended(rig, epoch=2)
        with pytest.raises(Fenced):
            other.start(rig.short(epoch=3))
        assert rig.engine.known() == {("j", 1), ("j", 2)}

    # --- waiting ----------------------------------------------------------------------------------------

    def test_any_thread_ends_a_wait(self, rig: EngineRig) -> None:
        rig.engine.wait(0.0)
        waiter = threading.Thread(target=rig.engine.wait, args=(TIMEOUT * 10,), daemon=True)
        waiter.start()
        rig.engine.ring()  # also if it comes before the wait
        waiter.join(TIMEOUT)
        assert not waiter.is_alive()


def refuses_orders(engine: Engine, rig: EngineRig) -> None:
    """Give every order, by an engine that does not lead. The attempt ("j", 1) runs."""
    shares, can = (NodeShare("n0", ("0",)),), engine.capabilities
    orders: list[tuple[bool, Callable[[], None]]] = [
        (True, lambda: engine.start(rig.endless())),
        (True, lambda: engine.start(rig.endless(epoch=7))),
        (True, lambda: engine.stop("j", 1, "deposed", 0)),
        (True, lambda: engine.stop("unknown", 1, "deposed", 0)),
        (True, lambda: engine.signal("j", 1, signal.SIGKILL)),
        (True, lambda: engine.forget("j", 1)),
        (can.resize, lambda: engine.resize("j", 1, 9, shares)),
        (can.power, lambda: engine.power("n1", True)),
        (can.rent, lambda: engine.rent("n1", True, "")),
    ]
    for performed, order in orders:
        with pytest.raises(Fenced if performed else Unsupported):
            order()
    assert engine.confirmations() == []


def ended(rig: EngineRig, job: str = "j", epoch: int = 1) -> Exit:
    """Wait for the end of an attempt, as a plane does."""
    until = time.monotonic() + TIMEOUT
    while time.monotonic() < until:
        for report in rig.engine.poll():
            if (report.job, report.epoch) == (job, epoch):
                return report.exit
        rig.pass_time()
        rig.engine.wait(0.05)
    raise AssertionError(f"{job} attempt {epoch} did not end within {TIMEOUT:g} s")


def running(rig: EngineRig, job: str = "j", epoch: int = 1) -> None:
    """Wait until an attempt runs its command."""
    until = time.monotonic() + TIMEOUT
    while not rig.runs(job, epoch):
        assert time.monotonic() < until, f"{job} attempt {epoch} did not start within {TIMEOUT:g} s"
        time.sleep(0.01)


def confirmed(rig: EngineRig) -> list[Resized | NodeUp]:
    """Wait for confirmations."""
    until = time.monotonic() + TIMEOUT
    while not (found := rig.engine.confirmations()):
        assert time.monotonic() < until, f"nothing was confirmed within {TIMEOUT:g} s"
        rig.pass_time()
        rig.engine.wait(0.05)
    return found
