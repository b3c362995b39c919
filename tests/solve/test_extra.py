"""An installation without the extra `solvers`: what needs it is refused in one line, the rest works."""

from __future__ import annotations

import subprocess
import sys

import pytest

START = """
import sys
sys.modules["scipy"] = sys.modules["clarabel"] = None  # as if they were not installed
sys.argv = ["dovetail", *sys.argv[1:]]
from dovetail.cli.main import main
main()
"""


def without_solvers(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", START, *words], capture_output=True, text=True, check=False)


def simulated(policy: str, *options: str) -> subprocess.CompletedProcess[str]:
    chosen = [word for option in options for word in ("--set", option)]
    return without_solvers(
        "simulate", "philly", "--head", "30", "--cluster", "4x8", "--policy", policy, *chosen
    )


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
    policy: str, options: tuple[str, ...], package: str
) -> None:
    refused = simulated(policy, *options)
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
def test_other_policies_do_without(policy: str, options: tuple[str, ...]) -> None:
    done = simulated(policy, *options)
    assert done.returncode == 0, done.stderr
