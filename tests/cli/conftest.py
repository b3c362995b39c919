"""What the tests of the command line share: a folder with a small trace, and a way to type a command."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

FIVE = """id,submit,gpus,duration,tenant
Alice,0,4,6h,red
Bob,0,2,1h,red
Carol,0,1,30m,blue
Dave,0,2,3h,blue
Eve,0,1,15m,blue
"""

Dove = Callable[..., Result]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which commands run, with the five researchers of the textbook."""
    (tmp_path / "five.csv").write_text(FIVE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def dove(folder: Path) -> Dove:
    from dovetail.cli.main import app

    def typed(command: str, *more: str) -> Result:
        return CliRunner().invoke(app, [*command.split(), *more])

    return typed
