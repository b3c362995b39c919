"""What the docs show is what happens: commands, programs, and the examples in docstrings."""

from __future__ import annotations

import contextlib
import doctest
import importlib
import io
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(console|python)\n(.*?)^```\n(?:\n```text\n(.*?)^```$)?", re.M | re.S)
CHANGES = re.compile(r"simulated in .*")  # how long this machine took
EXAMPLES = sorted(p for p in (ROOT / "src").rglob("*.py") if ">>>" in p.read_text(encoding="utf-8"))


def blocks(page: str) -> list[tuple[str, str, str]]:
    """The kind of each block that runs, its text, and what a program is said to print."""
    return BLOCK.findall((ROOT / page).read_text(encoding="utf-8"))


def commands(block: str) -> Iterator[tuple[str, str]]:
    """Each command of a console block, and the output shown below it, if any."""
    assert block.startswith("$ "), block
    for part in re.split(r"^\$ ", block, flags=re.M)[1:]:
        command, _, output = part.partition("\n")
        yield command, output.strip()


def same(text: str) -> str:
    return CHANGES.sub("", text).strip()


def typed(command: str) -> str:
    """What a command prints when it goes well."""
    from dovetail.cli.main import app

    name, *words = shlex.split(command)
    assert name in ("dovetail", "dove"), f"the docs show {command!r}, which is not ours to run; use ```sh"
    if words[0] == "compare" and "--workers" not in words:
        words += ["--workers", "1"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, (command, result.stderr, result.exception)
    return result.stdout


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)])
def test_what_is_shown_is_what_happens(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of a page run in their order, in one folder; the programs of a page share their names."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "docs"}
    for kind, text, prints in blocks(page):
        if kind == "console":
            for command, output in commands(text):
                said = typed(command)
                assert not output or same(said) == same(output), command
        else:
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                exec(compile(text, page, "exec", dont_inherit=True), names)
            assert not prints or out.getvalue().strip() == prints.strip(), text


def test_the_pages_are_there() -> None:
    with_examples = {page for page in PAGES if blocks(page)}
    assert {"README.md", "docs/tutorial/first-steps.md", "docs/guides/compare.md"} <= with_examples


def test_make_up_runs_the_first_example() -> None:
    kind, text, _ = blocks("README.md")[0]
    assert kind == "console"
    command, output = next(commands(text))
    recipe = re.search(r"^up: .*\n\t\$\(BIN\)/(.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    assert recipe is not None
    assert recipe[1] == command
    assert "* best of its column" in output
    assert "report.html" in output


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_examples_in_docstrings(file: Path) -> None:
    parts = file.relative_to(ROOT / "src").with_suffix("").parts
    failed, tried = doctest.testmod(importlib.import_module(".".join(parts)))
    assert tried > 0
    assert failed == 0


@pytest.mark.parametrize("page", [*PAGES, "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_lead_somewhere(page: str) -> None:
    file = ROOT / page
    text = re.sub(r"^```.*?^```", "", file.read_text(encoding="utf-8"), flags=re.M | re.S)
    targets = [target.partition("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", text)]
    inside = [target for target in targets if target and "://" not in target]
    assert [target for target in inside if not (file.parent / target).exists()] == []
