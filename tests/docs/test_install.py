"""`make up` for users: what running needs, in a new folder and a new environment, and nothing else."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIMIT = 150 * 2**20  # bytes, bytecode included


@pytest.mark.long
def test_make_install_brings_what_running_needs_and_no_test_tools(tmp_path: Path) -> None:
    folder = tmp_path / "dovetail"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True)
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PIP_NO"))
    }
    subprocess.run(["make", "install"], cwd=folder, env=environment, check=True, capture_output=True)

    def said(*words: str) -> str:
        found = subprocess.run(words, cwd=folder, env=environment, check=True, capture_output=True, text=True)
        return found.stdout

    installed = {line.partition("==")[0].lower() for line in said(".venv/bin/pip", "freeze").splitlines()}
    assert {"numpy", "fastapi", "highspy"} <= installed
    assert not installed & {"pytest", "mypy", "ruff", "hypothesis", "scipy", "playwright"}
    packages = folder / ".venv/lib"
    own = ("pip", "setuptools", "pkg_resources", "_distutils_hack")
    files = [file for file in packages.rglob("*") if file.is_file()]
    size = sum(
        file.stat().st_size for file in files if not file.relative_to(packages).parts[2].startswith(own)
    )
    source = sum(file.stat().st_size for file in (folder / "src").rglob("*") if file.is_file())
    assert size + source <= LIMIT, f"{(size + source) / 2**20:.1f} MiB"
    assert "1 job on 8 GPUs" in said(
        ".venv/bin/dovetail", "simulate", "philly", "--cluster", "1x8", "--policy", "fifo", "--head", "1"
    )
