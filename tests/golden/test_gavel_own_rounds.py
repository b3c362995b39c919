"""By Gavel's own rule for rounds, journals are byte for byte as they were when that was the only rule."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.golden.journals import WORLDS, digest
from tests.golden.solver_runs import ALL_WORLDS, RUNS, SolverRun

OWN: Mapping[str, Mapping[str, Any]] = {
    "gavel": {"carry_over": False},
    "pop": {"carry_over": False, "least_jobs": 1},
}
with (Path(__file__).with_name("data") / "gavel_own_rounds.csv").open(newline="") as file:
    BEFORE = {row["run"]: (row["sha256"], int(row["steps"])) for row in csv.DictReader(file)}
WHOLE = {SolverRun(policy, {}, world).name: (policy, world) for policy in OWN for world in WORLDS}
SOLVED = {run.name: run for run in RUNS if run.policy in OWN}


def test_every_kept_journal_is_checked() -> None:
    assert BEFORE.keys() == WHOLE.keys() | SOLVED.keys()


@pytest.mark.parametrize("name", WHOLE)
def test_whole_worlds(name: str) -> None:
    policy, world = WHOLE[name]
    assert digest(policy, WORLDS[world](), unnamed=OWN[policy]) == BEFORE[name]


@pytest.mark.parametrize("name", SOLVED)
def test_every_option(name: str) -> None:
    run = SOLVED[name]
    found = digest(run.policy, ALL_WORLDS[run.world](), unnamed=OWN[run.policy], **run.options)
    assert found == BEFORE[name]
