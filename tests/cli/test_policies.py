"""`dovetail policies`: worked out from the catalogue, the registry and the claim tests."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from typer.testing import Result

from dovetail.policies.registry import POLICIES

Dove = Callable[..., Result]


def test_every_system_of_the_catalogue_is_listed(dove: Dove) -> None:
    systems = json.loads(dove("policies --json").stdout)["systems"]
    names = [system["name"] for system in systems]
    assert len(names) >= 150
    assert set(POLICIES.names()) <= set(names)
    assert {system["name"] for system in systems if system["runs"]} == set(POLICIES.names())
    gavel = next(system for system in systems if system["name"] == "gavel")
    assert (gavel["year"], gavel["objectives"]) == (2020, ["jct", "fair", "cost"])


def test_a_system_works_only_with_claims_that_can_fail() -> None:
    from dovetail.policies.catalogue import System

    claims, mutants = (("it is good", "tests/claims/test_a.py"),), (("order", "no order", "test_a"),)
    proven = System("a", "", "training", (), "", False, True, claims, mutants)
    unproven = System("b", "", "training", (), "", False, True, (), ())
    unbroken = System("c", "", "training", (), "", False, True, claims, ())
    unbuilt = System("d", "", "training", (), "", False, False, claims, mutants)
    found = [(system.works, system.state) for system in (proven, unproven, unbroken, unbuilt)]
    assert found == [
        (True, "yes"),
        (False, "no claim test yet"),
        (False, "no mutants yet"),
        (False, "not yet"),
    ]


def test_the_list_can_be_narrowed(dove: Dove) -> None:
    working = json.loads(dove("policies --working --json").stdout)["systems"]
    assert {system["name"] for system in working} == set(POLICIES.names())
    tuning = json.loads(dove("policies --kind tuning --json").stdout)["systems"]
    assert tuning
    assert {system["kind"] for system in tuning} == {"tuning"}
    assert " systems work" in dove("policies").stdout.splitlines()[0]


def test_one_system_shows_its_options_and_page(dove: Dove) -> None:
    said = json.loads(dove("policies fifo --json").stdout)
    assert {"name": "discipline", "type": "strict | skip", "default": "strict"} in said["options"]
    assert said["page"] == "docs/systems/fifo.md"
    assert said["doc"]
    text = dove("policies fifo").stdout
    assert text.startswith("fifo: first come, first served")
    assert "strict | skip" in text
    assert {"part": "no overtaking", "change": "a job that does not fit is passed over"}.items() <= said[
        "mutants"
    ][0].items()
    assert "no overtaking" in text


def test_a_system_yet_to_come_is_shown_too(dove: Dove) -> None:
    systems = json.loads(dove("policies --json").stdout)["systems"]
    absent = next(system["name"] for system in systems if not system["runs"])
    result = dove(f"policies {absent}")
    assert result.exit_code == 0
    assert "works: not yet" in result.stdout


@pytest.mark.parametrize("name", POLICIES.names())
def test_every_policy_can_be_shown(dove: Dove, name: str) -> None:
    assert dove(f"policies {name}").exit_code == 0
    options = json.loads(dove(f"policies {name} --json").stdout)["options"]
    assert all(option["type"] for option in options)
