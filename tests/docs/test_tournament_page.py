"""The page of the tournament: all policies and workloads, current figures, and a reason for each mark."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dovetail.bench.policy_choice import PolicyChoice
from dovetail.bench.tournament import CPU, SEEDS, played, working_policies
from dovetail.bench.tournament_page import workload_sheet
from dovetail.bench.workloads import JOBS, WORKLOADS
from dovetail.policies.registry import POLICIES

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/systems/tournament.md"


def sections() -> dict[str, str]:
    """The parts of the page by heading."""
    _, *parts = re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.M)
    return {part.partition("\n")[0]: part for part in parts}


def cells(section: str) -> dict[str, list[str]]:
    """The rows of a table by policy; under `policy` its heading."""
    found = [
        [cell.strip() for cell in row.strip("| ").split("|")] for row in re.findall(r"^\|.*", section, re.M)
    ]
    rows = {re.sub(r"\[(.+)\]\(\1\.md\)", r"\1", row[0]): row[1:] for row in found}
    rows.pop("---", None)
    return rows


def test_the_page_lists_all_working_policies_and_workloads() -> None:
    """If this fails: make bench-policies."""
    working = [choice.policy for choice in working_policies()]
    found = sections()
    assert list(found)[2:] == list(WORKLOADS)
    for name in WORKLOADS:
        assert sorted(cells(found[name])) == sorted(["policy", *working]), name
    everything = cells(found["All workloads"])
    assert list(everything) == ["policy", *working]
    assert everything["policy"] == [*WORKLOADS, CPU.title]


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_figures_on_the_page_are_those_of_a_fresh_run(name: str) -> None:
    """If this fails: make bench-policies."""
    cheap = ["fifo", "sjf", "srsf", "backfill", "drf"]
    fresh = played([WORKLOADS[name]], [PolicyChoice(policy) for policy in cheap], jobs=JOBS, workers=1)
    sheet = workload_sheet(fresh, name)
    page = cells(sections()[name])
    shown = page["policy"]
    for row in sheet.rows:
        for column, value in zip(sheet.head[1:], row[1:], strict=True):
            if column != CPU.title:
                assert page[row[0]][shown.index(column)].rstrip("*!") == value.rstrip("*!"), (row[0], column)


def test_a_policy_that_falls_short_says_why_on_its_page() -> None:
    """Its page has a paragraph *In the tournament* that names each of these workloads."""
    falls = cells(sections()["Worse than fifo where they claim to be better"])
    rows = cells(sections()["All workloads"])
    marked = {policy for policy, values in rows.items() if any(value.endswith("!") for value in values)}
    assert set(falls) - {"policy"} == marked
    page = PAGE.read_text(encoding="utf-8")
    for policy in sorted(marked):
        assert policy in POLICIES.paths
        text = (ROOT / f"docs/systems/{policy}.md").read_text(encoding="utf-8")
        said = re.search(r"^\*\*In the tournament\.\*\*.*?(?=\n\n|\Z)", text, re.M | re.S)
        assert said, f"docs/systems/{policy}.md does not say why it is worse than fifo"
        for row in re.findall(rf"^\| \[{re.escape(policy)}\].* \| (.*:.*) \|$", page, re.M):
            for workload in re.findall(r"([\w-]+): ", row):
                assert f"`{workload}`" in said[0], (policy, workload)


def test_the_page_says_what_each_workload_is_hard_on() -> None:
    found = sections()
    for name, workload in WORKLOADS.items():
        text = " ".join(found[name].split())
        assert f"{workload.stresses[1:]}. {JOBS} jobs on `{workload.spec}`, {SEEDS} seeds." in text
