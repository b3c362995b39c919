"""`ps` reads jobs that change meanwhile: none is missing, none is there twice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from dovetail.cli import ps
from dovetail.cli.tables import Form


class Moving:
    """A plane on which a job changes its state after each read."""

    def __init__(self, *states: str, others: int = 0) -> None:
        self.states = list(states)
        self.others = others

    def pages(
        self, path: str, limit: int, *, state: Any = None, active: Any = None, **more: Any
    ) -> Iterator[Any]:
        now = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        jobs = [(f"w{n}", "pending") for n in range(self.others)] + [("moves", now)]
        found = [{"id": id, "state": word} for id, word in jobs if state is None or word in state]
        yield from found[:limit]


def listed(plane: Moving, limit: int) -> tuple[list[str], bool]:
    listing = ps.Listing(filters={"active": True}, form=Form("text"), limit=limit, expand=False, start=False)
    rows, more = ps._listed(plane, listing)  # type: ignore[arg-type]
    return [row["id"] for row in rows], more


@pytest.mark.parametrize("states", [("pending", "running"), ("running", "pending"), ("stopping", "pending")])
def test_a_job_that_changes_between_reads_is_listed_once(states: tuple[str, str]) -> None:
    assert listed(Moving(*states), limit=10) == (["moves"], False)


def test_running_jobs_are_not_hidden_by_many_that_wait() -> None:
    assert listed(Moving("running", others=5), limit=3) == (["moves", "w0", "w1"], True)


def test_a_job_that_is_preempted_between_reads_of_a_cut_list_is_not_there_twice() -> None:
    ids, more = listed(Moving("running", "running", "pending", others=6), limit=6)
    assert (ids, more) == (["moves", "w0", "w1", "w2", "w3", "w4"], True)
