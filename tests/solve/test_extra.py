"""An installation without the extra `solvers`: what needs it is refused in one line, the rest works."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TRACE = "id,submit,gpus,duration\n" + "".join(
    f"j{n},{n}m,{gpus},{20 + 7 * n}m\n" for n, gpus in enumerate((1, 4, 8, 2, 16, 1, 8, 4))
)
START = """
import sys
sys.modules["scipy"] = sys.modules["clarabel"] = None  # as if they were not installed
sys.argv = ["dovetail", *sys.argv[1:]]
from dovetail.cli.main import main
main()
"""


def without_solvers(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", START, *words], capture_output=True, text=True, check=False)


def simulated(folder: Path, policy: str, *options: str) -> subprocess.CompletedProcess[str]:
    trace = folder / "trace.csv"
    trace.write_text(TRACE)
    chosen = [word for option in options for word in ("--set", option)]
    return without_solvers("simulate", str(trace), "--cluster", "2x8", "--policy", policy, *chosen)


@pytest.mark.parametrize(
    ("policy", "options", "package"),
    [
        ("gavel", (), "clarabel"),
        ("gavel", ("objective=finish-time",), "clarabel"),
        ("gavel", ("objective=allox",), "scipy"),
        ("allox", (), "scipy"),
    ],
)
def test_a_policy_whose_solver_is_missing_says_what_to_install(
    tmp_path: Path, policy: str, options: tuple[str, ...], package: str
) -> None:
    refused = simulated(tmp_path, policy, *options)
    assert refused.returncode == 2
    assert refused.stdout == ""
    (line,) = refused.stderr.splitlines()
    assert f"needs the package {package}, which is not installed" in line
    assert line.endswith("install it: pip install 'dovetail[solvers]'")


@pytest.mark.parametrize(
    ("policy", "options"),
    [
        ("gavel", ("solver=vertex",)),
        ("gavel", ("water_filling=true",)),
        ("gavel", ("objective=cost",)),
        ("pop", ()),
        ("shockwave", ()),
        ("themis", ()),
    ],
)
def test_other_policies_do_without(tmp_path: Path, policy: str, options: tuple[str, ...]) -> None:
    done = simulated(tmp_path, policy, *options)
    assert done.returncode == 0, done.stderr
    assert "8 jobs on 16 GPUs" in done.stdout
