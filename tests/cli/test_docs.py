"""The commands in the tutorial and the guide of this folder run, in their order, and say what is printed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import Result

Dove = Callable[..., Result]
DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("tutorial/first-steps.md", "guides/compare.md")
CHANGES = re.compile(r"simulated in .*")  # how long this machine took


def commands(page: Path) -> Iterator[tuple[str, str]]:
    """Each command of the console blocks, and the output printed below it."""
    for block in re.findall(r"```console\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.S):
        for part in re.split(r"^\$ ", block, flags=re.M)[1:]:
            command, _, output = part.partition("\n")
            yield command, output


@pytest.mark.parametrize("page", PAGES)
def test_what_is_printed_is_what_happens(dove: Dove, page: str) -> None:
    for command, output in commands(DOCS / page):
        name, *words = shlex.split(command)
        assert name == "dovetail"
        if words[0] == "compare":
            words += ["--workers", "1"]
        result = dove("", *words)
        assert result.exit_code == 0, (command, result.stderr)
        if output.strip():
            assert CHANGES.sub("", result.stdout).strip() == CHANGES.sub("", output).strip(), command
