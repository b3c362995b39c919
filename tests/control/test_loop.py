"""A plane whose loop has failed says so and ends, rather than to answer that it cannot for ever."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from dovetail.control import serve as serving
from dovetail.control.plane import Plane
from dovetail.control.serve import Up, Wanted, serve
from dovetail.model.errors import DovetailError


def test_a_loop_that_fails_ends_the_plane(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    def broken(plane: Plane) -> None:
        raise ZeroDivisionError("a bug of a policy")

    def ready(up: Up) -> None:
        monkeypatch.setattr(Plane, "_turn", broken)

    monkeypatch.setattr(serving, "_log_to", lambda path: None)
    with pytest.raises(DovetailError, match="a bug of a policy"):
        serve(Wanted(folder=tmp_path / "state", port=port, virtual="1x2"), ready)
