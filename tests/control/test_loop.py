"""A plane whose loop has failed says so and ends, rather than to answer that it cannot for ever."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.control import harness

from dovetail.control import serve as serving
from dovetail.control.inbox import Unavailable
from dovetail.control.plane import Plane
from dovetail.control.request import parse_request
from dovetail.control.serve import Up, Wanted, serve
from dovetail.control.store import Batch, RefusedWrite, Store, StoreError
from dovetail.control.submission import submit
from dovetail.control.tokens import Caller
from dovetail.model.errors import DovetailError
from dovetail.model.units import SECOND


def test_a_loop_that_fails_ends_the_plane(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(plane: Plane) -> None:
        raise ZeroDivisionError("a bug of a policy")

    def ready(up: Up) -> None:
        monkeypatch.setattr(Plane, "_tick", broken)

    monkeypatch.setattr(serving, "_log_to", lambda path: None)
    with pytest.raises(DovetailError, match="a bug of a policy"):
        serve(Wanted(folder=tmp_path / "state", port=harness.free_port(), virtual="1x2"), ready)


BROKEN = """
import sys
from dovetail.control.plane import Plane

def broken(plane):
    raise ZeroDivisionError("a bug of a policy")

Plane._tick = broken  # from the first tick on, long before the API is up
from dovetail.cli.main import main
main()
"""


def test_a_loop_that_fails_at_once_ends_the_process_with_a_status(tmp_path: Path) -> None:
    port = harness.free_port()
    words = ["up", "--state", str(tmp_path / "state"), "--port", str(port), "--virtual", "1x2"]
    ended = subprocess.run(
        [sys.executable, "-c", BROKEN, *words], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 1  # Restart=on-failure acts on it
    assert "the scheduler failed (ZeroDivisionError('a bug of a policy'))" in ended.stderr


def test_a_write_that_is_refused_again_and_again_ends_the_plane(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A value that the database refuses would be written for ever: loading again does not help."""

    def refused(store: Store, batch: Batch) -> None:
        if batch.steps:
            raise RefusedWrite("the database refuses a row")
        whole(store, batch)

    whole = Store.commit
    monkeypatch.setattr(serving, "_log_to", lambda path: None)

    def ready(up: Up) -> None:
        monkeypatch.setattr(Store, "commit", refused)
        body = {"run": "true", "resources": {"gpus": 1}}
        for _ in range(3):
            with pytest.raises((StoreError, Unavailable)):
                submit(up.plane, Caller("t", "red", "ann", "user"), parse_request(body), body)
            harness.eventually(lambda: not up.plane.trouble or up.plane.failed, "that it has loaded again")

    with pytest.raises(DovetailError, match="the database refuses a row"):
        serve(Wanted(folder=tmp_path / "state", port=harness.free_port(), virtual="1x2"), ready)


def asked(url: str) -> tuple[int, dict[str, Any]]:
    try:
        with urllib.request.urlopen(url) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_health_says_by_its_status_what_the_plane_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: dict[str, tuple[int, dict[str, Any]]] = {}
    port = harness.free_port()

    def ready(up: Up) -> None:
        def look() -> None:
            try:
                url = f"http://127.0.0.1:{port}"
                harness.eventually(lambda: answers(url), "that it answers")
                found["leading"], found["ready"] = asked(f"{url}/health"), asked(f"{url}/ready")
                up.plane.trouble = "the disk is full"
                found["trouble"], found["not ready"] = asked(f"{url}/health"), asked(f"{url}/ready")
                up.plane.trouble = ""
                up.plane.leads = False
                found["standby"], found["not leading"] = asked(f"{url}/health"), asked(f"{url}/ready")
                up.plane.leads = True
                up.plane.beat -= 1_000
                found["hung"] = asked(f"{url}/health")
            finally:
                up.plane.leads = True
                os.kill(os.getpid(), signal.SIGTERM)

        threading.Thread(target=look).start()

    def answers(url: str) -> bool:
        with contextlib.suppress(OSError):
            return asked(f"{url}/version")[0] == 200
        return False

    monkeypatch.setattr(serving, "_log_to", lambda path: None)
    monkeypatch.setattr(Plane, "_tick", lambda plane: plane._closing.wait(0.1))  # it stays as it is set
    serve(Wanted(folder=tmp_path / "state", port=port, virtual="1x2"), ready)
    assert {name: (status, told["status"]) for name, (status, told) in found.items()} == {
        "leading": (200, "ok"),
        "ready": (200, "ok"),
        "trouble": (503, "trouble"),
        "not ready": (503, "trouble"),
        "standby": (200, "standby"),
        "not leading": (503, "standby"),
        "hung": (503, "trouble"),
    }
    assert found["trouble"][1]["reason"] == "the disk is full"
    assert "no step" in found["hung"][1]["reason"]


def test_an_alarm_between_two_rounds_is_heard_when_it_is_due() -> None:
    """Else the loop would ask for it again and again, without a pause, until the next round."""
    plane = Plane.__new__(Plane)
    plane.clock = cast("Any", SimpleNamespace(now=lambda: 130 * SECOND))
    core = SimpleNamespace(
        now=121 * SECOND - 1, alarm=121 * SECOND, policy=SimpleNamespace(quantum=60 * SECOND)
    )
    state = cast("Any", SimpleNamespace(ledger=SimpleNamespace(core=core)))
    assert plane._time(state) == core.alarm
    core.alarm = 120 * SECOND
    core.now = 119 * SECOND
    assert plane._time(state) == 120 * SECOND
