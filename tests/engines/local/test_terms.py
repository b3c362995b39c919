"""Terms of the local engine: a plane that was deposed gives no orders, wherever it was stopped."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engines.conftest import Bench, bash, eventually

from dovetail.engines.contract import Fenced
from dovetail.engines.local import engine as engines
from dovetail.engines.local import json_files, terms
from dovetail.engines.local.engine import LocalEngine
from dovetail.model.units import SECOND


def test_a_supervisor_refuses_an_order_of_an_older_term(bench: Bench) -> None:
    bench.restart()
    term = bench.engine.newest_term()
    bench.engine.start(bash("echo up; trap 'exit 0' TERM; sleep 300 & wait"))
    bench.wait_for_output("up")
    order = {"why": "deposed", "grace": 0, "at": 1, "term": term - 1}
    json_files.write_json(str(bench.folder()), "stop.json", order)
    os.kill(json.loads((bench.folder() / "started.json").read_text())["pid"], signal.SIGTERM)
    bench.engine.stop("j", 1, "cancelled", 20 * SECOND)
    end = bench.end()
    assert (end.cause, end.detail) == ("stopped", "told to stop (cancelled)")


def test_an_attempt_that_was_marked_by_a_version_without_terms_is_known(tmp_path: Path) -> None:
    (tmp_path / ".active").mkdir()
    (tmp_path / ".active" / "j@3").touch()
    engine = LocalEngine(tmp_path)
    assert engine.known() == {("j", 3)}
    engine.lead(1)
    assert engine.known() == {("j", 3)}
    assert {path.name for path in (tmp_path / ".active").iterdir()} == {"1"}
    engine.forget("j", 3)
    assert LocalEngine(tmp_path).known() == set()


def test_a_plane_goes_on_when_its_folder_of_attempts_was_removed(tmp_path: Path) -> None:
    """No plane has begun a newer term: its folder would be there."""
    engine = LocalEngine(tmp_path / "attempts")
    engine.lead(4)
    shutil.rmtree(tmp_path / "attempts")
    engine.stop("j", 1, "over", 0)
    assert engine.newest_term() == 4
    LocalEngine(tmp_path / "attempts").lead(5)
    with pytest.raises(Fenced):
        engine.stop("j", 1, "over", 0)


# --- orders that are interrupted at any system call ----------------------------------------------------

CALLS = ("mkdir", "makedirs", "open", "rename", "unlink", "rmdir", "listdir", "fsync")


ALL = 1_000_000  # more calls than an order makes


class Paused:
    """An order on a thread of its own, which stops before each of its system calls on the folders."""

    def __init__(self, order: Callable[[], None]) -> None:
        self._order = order
        self._turn, self._reached = threading.Semaphore(0), threading.Semaphore(0)
        self.over = False
        self.fenced = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._reached.acquire()

    def _run(self) -> None:
        RUNNING[threading.get_ident()] = self
        self.before_call()
        try:
            self._order()
        except Fenced:
            self.fenced = True
        finally:
            del RUNNING[threading.get_ident()]
            self.over = True
            self._reached.release()

    def before_call(self) -> None:
        self._reached.release()
        self._turn.acquire()

    def step(self) -> None:
        """Let it go on to its next call."""
        self._turn.release()
        self._reached.acquire()

    def steps(self, most: int) -> None:
        for _ in range(most):
            if self.over:
                return
            self.step()

    def finish(self) -> None:
        self.steps(ALL)
        self._thread.join()


RUNNING: dict[int, Paused] = {}


class PausingOS:
    """The module `os`, in which an order that is being interrupted stops before each call."""

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        if name not in CALLS:
            return real

        def call(*args: Any, **named: Any) -> Any:
            paused = RUNNING.get(threading.get_ident())
            if paused is not None:
                paused.before_call()
            return real(*args, **named)

        return call


def pause_at_calls(patch: pytest.MonkeyPatch) -> None:
    """Let orders stop before their system calls; no supervisor is started."""
    for module in (terms, json_files):
        patch.setattr(module, "os", PausingOS())
    patch.setattr(engines, "start_supervisor", lambda folder: None)
    patch.setattr(engines, "signal_supervisor", lambda folder, number: None)


@pytest.mark.parametrize("kind", ["start", "stop", "forget"])
def test_an_order_that_is_stopped_at_any_call_takes_effect_before_the_next_term_or_never(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every pair of a call at which an order stops and a call of `lead` at which it goes on."""
    pause_at_calls(monkeypatch)
    fenced = {True: 0, False: 0}
    for stopped_at in count():
        folder = tmp_path / f"{stopped_at}"
        if _order_against_lead(kind, folder / "all", stopped_at, ALL, fenced):
            break
        for goes_on_at in count():
            if _order_against_lead(kind, folder / f"{goes_on_at}", stopped_at, goes_on_at, fenced):
                break
    assert fenced[True] > 10
    assert fenced[False] > 1


def _order_against_lead(
    kind: str, root: Path, stopped_at: int, goes_on_at: int, fenced: dict[bool, int]
) -> bool:
    """Whether one of the two had ended before its call with this number."""
    old, new = LocalEngine(root), LocalEngine(root)
    old.lead(1)
    if kind != "start":
        old.start(bash("true"))
    orders: dict[str, Callable[[], None]] = {
        "start": partial(old.start, bash("true")),
        "stop": partial(old.stop, "j", 1, "over", 0),
        "forget": partial(old.forget, "j", 1),
    }
    order = Paused(orders[kind])
    order.steps(stopped_at)
    lead = Paused(partial(new.lead, 2))
    lead.steps(goes_on_at)
    ended = order.over or (lead.over and goes_on_at < ALL)
    began = _effects(root) if lead.over else None
    order.finish()
    lead.finish()
    assert not lead.fenced
    took_effect = _effects(root) != (set() if kind == "start" else {"j@1"})
    assert took_effect is not order.fenced
    if began is not None:
        assert _effects(root) == began, f"an order to {kind} took effect after the next term began"
    assert os.listdir(root / ".active") == ["2"]
    with pytest.raises(Fenced):
        orders[kind]()
    fenced[order.fenced] += 1
    return ended


def _effects(root: Path) -> set[str]:
    """What orders have left: attempts that are known, orders to stop."""
    found = terms.marked_attempts(str(root / ".active"))
    return found | {str(file.relative_to(root)) for file in root.glob("j/*/stop.json")}


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_whatever_is_interrupted_the_newest_term_prevails(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Planes lead in turn and give orders, and each may be stopped before any system call, for any time.

    When `lead` has returned, the attempts that are known and the orders to stop change only by orders of that
    term or a newer one.
    """
    with pytest.MonkeyPatch.context() as patch:
        pause_at_calls(patch)
        _interleave(data, tmp_path_factory.mktemp("attempts"))


def _interleave(data: st.DataObject, root: Path) -> None:
    planes = [LocalEngine(root) for _ in range(3)]
    order: Callable[[], None]
    terms_of = [0] * len(planes)
    at_work: dict[int, tuple[Paused, str, int]] = {}  # by plane: the order, its kind, its term
    led = 0  # the newest term of which `lead` has returned
    next_term = 1
    epochs = 0

    def seen() -> tuple[frozenset[tuple[str, int]], dict[str, int]]:
        stops = {
            str(file.parent): json.loads(file.read_text())["term"] for file in root.glob("*/*/stop.json")
        }
        return frozenset(planes[0].known()), stops

    before = seen()
    for _ in range(data.draw(st.integers(4, 16))):
        plane = data.draw(st.integers(0, len(planes) - 1))
        engine = planes[plane]
        if plane not in at_work:
            kind = (
                data.draw(st.sampled_from(("lead", "start", "stop", "forget"))) if terms_of[plane] else "lead"
            )
            epoch = data.draw(st.integers(1, max(epochs, 1)))
            if kind == "lead":
                terms_of[plane], next_term = next_term, next_term + 1
                order = partial(engine.lead, terms_of[plane])
            elif kind == "start":
                epochs += 1
                order = partial(engine.start, bash("true", epoch=epochs))
            elif kind == "stop":
                order = partial(engine.stop, "j", epoch, "over", 0)
            else:
                order = partial(engine.forget, "j", epoch)
            at_work[plane] = (Paused(order), kind, terms_of[plane])
        paused, kind, term = at_work[plane]
        for _ in range(data.draw(st.sampled_from((1, 2, 3, 4, 6, 10, ALL)))):
            paused.step()
            after = seen()
            if term < led:
                assert after == before, f"an order to {kind} of term {term} took effect in term {led}"
            before = after
            if paused.over:
                break
        if paused.over:
            del at_work[plane]
            if kind == "lead" and not paused.fenced:
                assert term > led, f"term {term} began after term {led}"
                led = term
            elif term < led:
                assert paused.fenced, f"an order to {kind} of term {term} was accepted in term {led}"
            if term == max(terms_of) and led == term and kind != "lead":
                assert not paused.fenced, f"an order to {kind} of the newest term was refused"
    for paused, _, _ in at_work.values():
        paused.finish()
    for engine in planes:
        engine.close()


def test_orders_go_through_while_another_plane_takes_over(tmp_path: Path) -> None:
    """Two planes as threads at full speed: each attempt that a start has returned for is known afterwards."""
    old, new = LocalEngine(tmp_path), LocalEngine(tmp_path)
    old.lead(1)
    term = old._term
    done: list[int] = []
    begun = threading.Event()

    def orders() -> None:
        try:
            for epoch in range(1, 100_000):
                term.mark(f"j@{epoch}")
                done.append(epoch)
                begun.set()
        except Fenced:
            return

    thread = threading.Thread(target=orders)
    thread.start()
    begun.wait(60)
    new.lead(2)
    known = new.known()
    thread.join(60)
    assert not thread.is_alive()
    assert known == {("j", epoch) for epoch in done}
    assert new.known() == known
    eventually(lambda: not term.in_force)
