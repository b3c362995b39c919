"""Every mutant is killed: switch off one part of a paper, and a claim of that system fails."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from dovetail.mechanisms.order.keys import arrival
from dovetail.model.units import SECOND
from dovetail.model.view import Plan, View
from dovetail.policies.catalogue import read_systems
from dovetail.testing.build import cluster, job, run
from dovetail.testing.mutants import Mutant, applied, calls, mutant, verdict

FILES = [
    import_module(f"tests.claims.{path.stem}")
    for path in sorted(Path(__file__).parent.glob("test_*.py"))
    if path.name != Path(__file__).name
]
MUTANTS: list[tuple[ModuleType, Mutant]] = [
    (module, each) for module in FILES for each in getattr(module, "MUTANTS", ())
]
EACH = pytest.mark.parametrize(("module", "broken"), MUTANTS, ids=[each.name for _, each in MUTANTS])


def claims_of(module: ModuleType, system: str) -> dict[str, Callable[..., None]]:
    return {
        name: test
        for name, test in vars(module).items()
        if any(mark.name == "claim" and mark.args[0] == system for mark in getattr(test, "pytestmark", ()))
    }


@EACH
def test_a_mutant_is_killed_by_the_claim_that_it_names(module: ModuleType, broken: Mutant) -> None:
    claims = claims_of(module, broken.system)
    assert broken.killed_by in claims, f"{broken.killed_by} is not a claim of {broken.system}"
    assert verdict(claims[broken.killed_by], broken, module) == "killed"


@pytest.mark.long
@EACH
def test_no_claim_fails_on_a_mutant_by_an_error(module: ModuleType, broken: Mutant) -> None:
    verdicts = Counter(verdict(test, broken, module) for test in claims_of(module, broken.system).values())
    assert verdicts["killed"] >= 1


def test_a_system_that_works_has_mutants_and_they_are_three_on_average() -> None:
    systems = {name: system for name, system in read_systems().items() if system.works}
    counted = Counter(each.system for _, each in MUTANTS)
    parts = {(each.system, each.part) for _, each in MUTANTS}
    print(f"{len(systems)} systems, {len(parts)} parts, {len(MUTANTS)} mutants")
    assert {name for name, system in systems.items() if system.mutants} == counted.keys()
    assert all(len(systems[name].mutants) == count for name, count in counted.items())
    assert len(MUTANTS) >= 3 * len(systems)
    assert len({each.name for _, each in MUTANTS}) == len(MUTANTS)


# --- the harness itself -------------------------------------------------------------------------------


def harmless(**options: Any) -> Mutant:
    return mutant("fifo", "nothing", "nothing is changed", killed_by="", options=options)


def here(test: Callable[..., None], broken: Mutant) -> str:
    return verdict(test, broken, import_module(__name__))


def test_a_claim_that_holds_on_the_mutant_lets_it_survive() -> None:
    def holds() -> None:
        assert True

    assert here(holds, harmless()) == "survived"


def test_an_error_is_not_a_kill() -> None:
    def breaks() -> None:
        raise KeyError("job")

    def breaks_elsewhere() -> None:
        exec(compile("assert False", "elsewhere.py", "exec"))

    with pytest.raises(KeyError):
        here(breaks, harmless())
    with pytest.raises(AssertionError):
        here(breaks_elsewhere, harmless())


def test_a_simulation_without_end_is_not_a_kill() -> None:
    class Idle:
        """Starts nothing, and looks again after a second."""

        order, group, quantum = arrival, None, None

        def decide(self, view: View) -> Plan:
            plan = view.draft()
            plan.review_at = view.now + SECOND
            return plan

    def waits() -> None:
        run([job("a", seconds=1)], cluster(), Idle())
        raise AssertionError("it has ended")

    assert here(waits, harmless()) == "survived"


def test_options_are_forced_and_put_back() -> None:
    from dovetail.policies.registry import POLICIES

    def discipline() -> str:
        return str(POLICIES.make("fifo", discipline="strict"))

    before = discipline()
    with applied(harmless(discipline="skip"), import_module(__name__)):
        assert discipline() != before
    assert discipline() == before


def test_every_call_of_a_parametrised_claim_is_made() -> None:
    @pytest.mark.parametrize("a", [1, pytest.param(2)])
    @pytest.mark.parametrize(("b", "c"), [(3, 4), (5, 6)])
    def test(a: int, b: int, c: int) -> None: ...

    found = sorted((each["a"], each["b"], each["c"]) for each in calls(test))
    assert found == [(1, 3, 4), (1, 5, 6), (2, 3, 4), (2, 5, 6)]
