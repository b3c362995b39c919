"""The simulation of the whole plane: fixed seeds, every seed that once failed, and that a seed is one
world.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest
from tests.chaos.cases import Case, cases
from tests.chaos.faults import FAULTS
from tests.chaos.invariants import RULES
from tests.chaos.mutants import MORE_MUTANTS, MUTANTS
from tests.chaos.undone import UNDONE
from tests.conftest import ROOT

# Each fault strikes in one of these worlds at least. Few at a time: they hide each other.
WORLDS = {
    ("kill-plane", "lost-answer", "rubbish"): 15,
    ("stop-plane", "kill-supervisor", "clock-jump"): 12,
    ("database-away", "slow-disk", "vandals", "stop-supervisor"): 12,
    ("disk-full", "power-loss"): 12,
    ("corrupt-snapshot", "changed-policy"): 11,
    ("second-plane", "cut-session", "depose"): 12,
    ("second-plane", "other-folder", "kill-plane"): 11,
}  # with a seed
PROGRAM = """
import contextlib, dataclasses, json, sys
from tests.chaos.database import drop_template
from tests.chaos.faults import FAULTS
from tests.chaos.invariants import RULES
from tests.chaos.mutants import mutated
from tests.chaos.undone import undone
from tests.chaos.world import Mix, play
for world in json.loads(sys.argv[1]):
    with contextlib.ExitStack() as product:
        if "mutant" in world:
            product.enter_context(mutated(world["mutant"]))
        if "undone" in world:
            product.enter_context(undone(world["undone"]))
        faults, rules = frozenset(world["faults"] or FAULTS), frozenset(world.get("rules", RULES))
        mix = Mix(**world.get("mix", {}))
        found = play(world["seed"], world["hours"], faults, rules=rules, mix=mix)
    said = dataclasses.asdict(found) | {"text": str(found.violation), "log": found.log[-30:]}
    print(json.dumps(said))
drop_template()
"""


class KnownDefect(Exception):
    """The defect that a case was kept for."""


def world(seed: int, hours: float, faults: Sequence[str], **more: Any) -> dict[str, Any]:
    return {"seed": seed, "hours": hours, "faults": faults, **more}


def played(*worlds: dict[str, Any]) -> list[dict[str, Any]]:
    """The outcomes, from a process of its own: the order of a set of texts is the same in each."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(worlds)],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": str(ROOT)},
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
    worlds = [world(seed, 0.3, ("kill-plane", "power-loss", "slow-disk")) for seed in (5, 6)]
    first, again = played(*worlds), played(*worlds)
    assert [found["digest"] for found in first] == [found["digest"] for found in again]
    assert first[0]["log"] == again[0]["log"]
    assert first[0]["digest"] != first[1]["digest"]
    assert sum(first[0]["struck"].values()), first[0]


@pytest.mark.long
@pytest.mark.slow(20)
def test_every_fault_strikes_and_is_survived() -> None:
    struck: set[str] = set()
    for found in played(*(world(seed, 1.0, faults) for faults, seed in WORLDS.items())):
        assert_holds(found)
        struck |= found["struck"].keys()
    assert struck == FAULTS.keys()


@pytest.mark.long
@pytest.mark.slow(60)
@pytest.mark.parametrize("seed", [100, 101, 102, 103])
def test_no_rule_is_broken_in_a_long_run(seed: int) -> None:
    """With the faults that the seed draws."""
    for found in played(world(seed, 12.0, ())):
        assert_holds(found)


def test_every_rule_has_a_mutant() -> None:
    assert MUTANTS.keys() == RULES.keys()


@pytest.mark.long
@pytest.mark.slow(30)
def test_each_mutant_is_reported_by_its_rule() -> None:
    """And by no other one: all rules count."""
    worlds = [world(m.seed, m.hours, m.faults) for m in MUTANTS.values()]
    mutated = [{**one, "mutant": rule} for rule, one in zip(MUTANTS, worlds, strict=True)]
    found = dict(zip(MUTANTS, played(*mutated), strict=True))
    assert {rule: one["violation"] and one["violation"]["rule"] for rule, one in found.items()} == {
        rule: rule for rule in RULES
    }, [one["text"] for one in found.values()]
    for one in played(*{json.dumps(one): one for one in worlds}.values()):
        assert_holds(one)


@pytest.mark.long
@pytest.mark.slow(20)
def test_an_end_that_is_reported_before_it_is_durable_is_noticed() -> None:
    mutant = MORE_MUTANTS["unsynced"]
    one = world(mutant.seed, mutant.hours, mutant.faults, mix={"faults": 0.5})
    mutated, sound = played({**one, "mutant": "unsynced"}, one)
    assert mutated["violation"] is not None
    assert mutated["violation"]["rule"] == "done", mutated["text"]
    assert_holds(sound)


@pytest.mark.slow(3)
@pytest.mark.parametrize("name", UNDONE)
def test_a_defect_that_is_put_back_is_found(name: str) -> None:
    """By its rule, within the hours of its world; the plane as it is keeps all rules there."""
    fix = UNDONE[name]
    one = world(fix.seed, fix.hours, fix.faults)
    back, sound, *beside = played(
        {**one, "undone": name, "rules": [fix.rule]},
        one,
        *([{**one, "undone": fix.beside, "rules": [fix.rule]}] if fix.beside else []),
    )
    assert back["violation"] is not None, fix.defect
    assert back["violation"]["rule"] == fix.rule, back["text"]
    assert fix.shown in back["text"]
    for found in (sound, *beside):
        assert_holds(found)


@pytest.mark.long
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
    (found,) = played(world(case.seed, case.hours, case.faults, rules=[case.rule], mix=case.mix))
    if case.item is not None and found["violation"] is not None:
        raise KnownDefect(found["text"])
    assert_holds(found)
