"""The simulation of the whole plane: fixed seeds, every seed that once failed, and that a seed is one
world.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
from tests.chaos.cases import Case, cases
from tests.chaos.faults import FAULTS
from tests.chaos.invariants import RULES
from tests.conftest import ROOT

# Faults that the plane survives today. The others find defects that are known: see cases.json.
SURVIVED = ("kill-plane", "lost-answer", "database-away", "slow-disk", "disk-full", "power-loss")
PROGRAM = """
import dataclasses, json, sys
from tests.chaos.database import drop_template
from tests.chaos.faults import FAULTS
from tests.chaos.invariants import RULES
from tests.chaos.world import play
for seed, hours, faults, *rules in json.loads(sys.argv[1]):
    found = play(seed, hours, frozenset(faults or FAULTS), rules=frozenset(rules or RULES))
    said = dataclasses.asdict(found) | {"text": str(found.violation), "log": found.log[-30:]}
    print(json.dumps(said))
drop_template()
"""


class KnownDefect(Exception):
    """The defect that a case was kept for."""


def played(*worlds: tuple[Any, ...], hash_seed: str = "0") -> list[dict[str, Any]]:
    """The outcomes, from a process of its own: the order of a set of texts is the same in each."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(worlds)],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def assert_holds(found: dict[str, Any]) -> None:
    log = "\n".join(found["log"])
    assert found["violation"] is None, f"seed {found['seed']}: {found['text']}\n{log}"
    assert found["jobs"] > 0


@pytest.mark.slow(20)
def test_a_seed_is_one_world() -> None:
    """The same steps byte for byte in two processes; another seed is another world."""
    worlds = [(5, 0.3, ("kill-plane", "slow-disk")), (6, 0.3, ("kill-plane", "slow-disk"))]
    first, again = played(*worlds), played(*worlds)
    assert [found["digest"] for found in first] == [found["digest"] for found in again]
    assert first[0]["log"] == again[0]["log"]
    assert first[0]["digest"] != first[1]["digest"]
    assert sum(first[0]["struck"].values()), first[0]


@pytest.mark.slow(20)
def test_no_rule_is_broken() -> None:
    worlds = [(11, 1.0, (fault,)) for fault in SURVIVED]
    for found in played(*worlds, (12, 1.0, SURVIVED)):
        assert_holds(found)
        assert found["struck"].keys() & set(found["faults"])


@pytest.mark.long
@pytest.mark.slow(60)
@pytest.mark.parametrize("seed", [100, 102, 103])
def test_no_rule_is_broken_in_a_long_run(seed: int) -> None:
    for found in played((seed, 12.0, SURVIVED)):
        assert_holds(found)


@pytest.mark.slow(10)
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            case,
            id=case.name,
            marks=[pytest.mark.xfail(reason=f"item {case.item}: {case.finds}", raises=KnownDefect)]
            if case.item is not None
            else [],
        )
        for case in cases()
    ],
)
def test_a_world_that_once_failed(case: Case) -> None:
    """The seed finds its defect: it fails as long as the defect is there."""
    assert case.rule in RULES
    assert set(case.faults) <= FAULTS.keys()
    (found,) = played((case.seed, case.hours, case.faults, case.rule))
    if case.item is not None and found["violation"] is not None:
        raise KnownDefect(found["text"])
    assert_holds(found)
