"""A plane whose loop has failed says so and ends, rather than to answer that it cannot for ever."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.control import harness

from dovetail.control import serve as serving
from dovetail.control.plane import Plane
from dovetail.control.serve import Up, Wanted, serve
from dovetail.model.errors import DovetailError


def test_a_loop_that_fails_ends_the_plane(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(plane: Plane) -> None:
        raise ZeroDivisionError("a bug of a policy")

    def ready(up: Up) -> None:
        monkeypatch.setattr(Plane, "_turn", broken)

    monkeypatch.setattr(serving, "_log_to", lambda path: None)
    with pytest.raises(DovetailError, match="a bug of a policy"):
        serve(Wanted(folder=tmp_path / "state", port=harness.free_port(), virtual="1x2"), ready)
