"""What is written from the code is up to date, and every system has all that belongs to it."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dovetail.policies.registry import POLICIES

ROOT = Path(__file__).parents[2]
NAMES = sorted(POLICIES.paths)


def rows(file: str) -> list[dict[str, str]]:
    with (ROOT / "src/dovetail/policies" / file).open(encoding="utf-8", newline="") as opened:
        return list(csv.DictReader(opened))


@pytest.mark.parametrize("columns", ["40", "200"])
def test_writing_it_again_changes_nothing(columns: str) -> None:
    """Whatever the terminal."""
    result = subprocess.run(
        [sys.executable, ROOT / "docs/generate.py", "--check"],
        env={**os.environ, "COLUMNS": columns, "TERMINAL_WIDTH": columns, "FORCE_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.long
@pytest.mark.slow(15)
def test_the_reference_is_built_and_its_links_lead_somewhere(tmp_path: Path) -> None:
    words = [sys.executable, str(ROOT / "docs/generate.py"), "--build", str(tmp_path)]
    built = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (built.returncode, built.stderr) == (0, "")

    described = json.loads((tmp_path / "openapi.json").read_text(encoding="utf-8"))
    assert described["openapi"].startswith("3.1")
    assert "post" in described["paths"]["/api/v1/jobs"]
    job = (tmp_path / "python/dovetail/model/job.html").read_text(encoding="utf-8")
    assert 'id="Shape.tasks"' in job
    pages = list((tmp_path / "python").rglob("*.html"))
    for page in pages:
        for link in re.findall(r'href="([^"#]+)', page.read_text(encoding="utf-8")):
            assert "://" in link or (page.parent / link).exists(), (page, link)


@pytest.mark.parametrize("name", NAMES)
def test_every_system_has_a_claim_a_page_and_a_row(name: str) -> None:
    assert any(row["system"] == name for row in rows("claims.csv"))
    assert any(row["name"] == name for row in rows("catalogue.csv"))
    page = (ROOT / f"docs/systems/{name}.md").read_text(encoding="utf-8")
    assert page.startswith(f"# {name}: ")


def test_every_claim_is_of_a_system_we_have_and_of_a_test_there_is() -> None:
    claims = rows("claims.csv")
    assert {claim["system"] for claim in claims} <= {row["name"] for row in rows("catalogue.csv")}
    for claim in claims:
        file, _, test = claim["test"].partition("::")
        assert f"def {test}(" in (ROOT / file).read_text(encoding="utf-8")


def options_on(page: str) -> Iterator[str]:
    """The options that the table of a page names."""
    found = re.search(r"^\| option \|.*\n\|[-| ]+\|\n((?:\|.*\n)+)", page, re.M)
    for row in found[1].splitlines() if found else ():
        yield from re.findall(r"`([^`]+)`", row.split("|")[1])


@pytest.mark.parametrize("name", NAMES)
def test_each_page_names_its_options(name: str) -> None:
    page = (ROOT / f"docs/systems/{name}.md").read_text(encoding="utf-8")
    assert sorted(options_on(page)) == sorted(POLICIES.options(name))


def test_the_build_looks_too() -> None:
    assert "docs/generate.py --check" in (ROOT / ".ci/run").read_text(encoding="utf-8")
