"""Failures that searches found stay fixed, and a search finds and keeps a failure."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.conftest import CASES, ROOT

from dovetail.testing.search import read_case

# The plug-in of schemathesis hides the values of a failing example.
INI = "[pytest]\naddopts = -p no:schemathesis\npythonpath = .\n"
BROKEN = """
from hypothesis import given, strategies as st
from dovetail.testing.search import searched

@given(worlds=st.lists(st.integers(0, 1000)))
@searched(200)
def test_no_world_is_large(worlds):
    assert sum(worlds) < LIMIT
"""


def replay(case: Path, *more: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the test of a case in its one world."""
    return run_pytest(read_case(case).test, *more, DOVETAIL_CASE=str(case))


def run_pytest(*words: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", *words],
        cwd=ROOT,
        env={**kept, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("case", sorted(CASES.glob("*.json")), ids=lambda case: case.stem)
def test_a_failure_that_was_found_does_not_come_back(case: Path) -> None:
    done = replay(case)
    assert done.returncode == 0, f"{read_case(case).error}\n{done.stdout}{done.stderr}"


def test_a_search_keeps_a_failure_as_a_case_that_fails_until_it_is_fixed(tmp_path: Path) -> None:
    tests = tmp_path / "tests"
    tests.mkdir()
    (tests / "conftest.py").write_text((ROOT / "tests/conftest.py").read_text(encoding="utf-8"))
    (tests / "test_broken.py").write_text(BROKEN.replace("LIMIT", "1500"))
    (tmp_path / "pytest.ini").write_text(INI)
    words = ("-c", tmp_path / "pytest.ini", "--rootdir", tmp_path)

    found = run_pytest(tests / "test_broken.py", *words, DOVETAIL_SEARCH="1", DOVETAIL_SEARCH_SEED="7")

    assert found.returncode == 1, found.stdout
    (file,) = (tests / "cases").glob("*.json")
    assert f"make case CASE=tests/cases/{file.name}" in found.stdout
    case = read_case(file)
    assert case.test == "tests/test_broken.py::test_no_world_is_large"
    assert "worlds=[500, 1000]" in " ".join(case.example).replace("1000, 500", "500, 1000")

    def replayed(limit: int) -> int:
        (tests / "test_broken.py").write_text(BROKEN.replace("LIMIT", str(limit)))
        environment = {"DOVETAIL_CASE": str(file)}
        return run_pytest(tests / "test_broken.py", *words, **environment).returncode

    assert replayed(1500) == 1
    assert replayed(1501) == 0  # another source of the test, the same world


def test_the_worlds_of_a_build_do_not_depend_on_the_tests_beside(tmp_path: Path) -> None:
    """Hypothesis draws constants of imported modules unless it is told not to."""
    program = """
from hypothesis import given, strategies as st
from dovetail.testing.search import searched

DRAWN = []

@given(st.lists(st.integers(), min_size=5, max_size=5))
@searched(100)
def test_draws(numbers):
    DRAWN.extend(numbers)

def test_shows():
    import hashlib
    print("drawn", hashlib.sha256(str(DRAWN).encode()).hexdigest())
"""
    said = []
    for name in ("alone", "beside"):
        folder = tmp_path / name
        (folder / "tests").mkdir(parents=True)
        conftest = (ROOT / "tests/conftest.py").read_text(encoding="utf-8")
        (folder / "tests" / "conftest.py").write_text(conftest)
        (folder / "tests" / "test_drawn.py").write_text(program)
        (folder / "pytest.ini").write_text(INI)
        if name == "beside":
            numbers = "\n".join(f"A{i} = {1_000_003 * i}" for i in range(50))
            (folder / "other_constants.py").write_text(numbers)
            (folder / "tests" / "test_a.py").write_text(
                "import other_constants\ndef test_other():\n    pass\n"
            )
        done = run_pytest("-s", folder / "tests", "-c", folder / "pytest.ini", "--rootdir", folder)
        assert done.returncode == 0, done.stdout
        said += [line for line in done.stdout.splitlines() if "drawn" in line]
    assert said[0][-64:] == said[1][-64:]
