"""Equal inputs give equal journals, whatever instructions the CPU has.

numpy, BLAS and the C library choose their code by the CPU; each can be told to do without. A child process
that does so must write the same journals, byte for byte, as the digests that are kept.
"""

from __future__ import annotations

import csv
import importlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.golden import solver_runs
from tests.golden.journals import digest

ROOT = Path(__file__).parents[2]


def enabled_features() -> list[str]:
    """What numpy chooses at run time and this CPU has."""
    home = "numpy._core" if hasattr(np, "_core") else "numpy.core"
    core = importlib.import_module(f"{home}._multiarray_umath")
    return [name for name in core.__cpu_dispatch__ if core.__cpu_features__.get(name)]


PLAIN = {
    "NPY_DISABLE_CPU_FEATURES": " ".join(enabled_features()),
    "OPENBLAS_CORETYPE": "Nehalem",
    "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX512F,-AVX2,-AVX,-FMA,-FMA4",
}
OTHERS = {
    "no vector instructions": PLAIN,
    "another BLAS kernel": {"OPENBLAS_CORETYPE": "Sandybridge"},
}


def in_child(code: list[str], **settings: str) -> str:
    known = {name: value for name, value in os.environ.items() if name not in PLAIN}
    settings = {name: value for name, value in settings.items() if value}
    done = subprocess.run(
        [sys.executable, *code], env=known | settings, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize("run", solver_runs.RUNS, ids=lambda run: run.name)
def test_every_option_decides_as_it_did(run: solver_runs.SolverRun) -> None:
    before = {name: (sha, steps) for name, sha, steps in solver_runs.kept()}
    found = digest(run.policy, solver_runs.ALL_WORLDS[run.world](), **run.options)
    assert found == before[run.name]


@pytest.mark.skipif(sys.platform != "linux" or os.uname().machine != "x86_64", reason="settings of x86-64")
@pytest.mark.long
@pytest.mark.parametrize("settings", OTHERS.values(), ids=list(OTHERS))
def test_journals_are_the_same_on_every_cpu(settings: dict[str, str]) -> None:
    printed = in_child(["-m", "tests.golden.solver_runs"], **settings)
    found = [(row["run"], row["sha256"], int(row["steps"])) for row in csv.DictReader(printed.splitlines())]
    assert found == solver_runs.kept()


@pytest.mark.skipif(sys.platform != "linux" or os.uname().machine != "x86_64", reason="settings of x86-64")
def test_the_settings_do_change_last_digits() -> None:
    """Else the test above would compare a CPU with itself."""
    code = "import hashlib, numpy as np; a = np.random.default_rng(1).random((64, 64));"
    code += "print(hashlib.sha256((a @ a).tobytes() + np.exp(a).tobytes()).hexdigest())"
    if enabled_features():
        assert in_child(["-c", code]) != in_child(["-c", code], **PLAIN)
