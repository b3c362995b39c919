"""A plane with thousands of jobs: how large its answers are, and that what is over is not kept in memory."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dovetail.control import commands, questions, submission
from dovetail.control.api.jobs import holder_rows
from dovetail.control.clock import iso
from dovetail.control.cursors import MOST_ROWS, Page
from dovetail.control.election import FileElection
from dovetail.control.lists import Filter, Lists
from dovetail.control.lookup import Lookup
from dovetail.control.plane import Plane
from dovetail.control.plane_settings import Settings
from dovetail.control.request import parse_request
from dovetail.control.store import Store, url_of
from dovetail.control.tokens import Caller
from dovetail.control.why import MOST_NAMED
from dovetail.engines.contract import AttemptEnd, Launch, StartStopEngine
from dovetail.model.cluster import parse_cluster

LARGEST = 200_000  # bytes of one answer
ARRAYS, MEMBERS = 20, 100
ANN = Caller("t1", "team", "ann", "user")
ADMIN = Caller("t0", "default", "root", "admin")
LONG = "ü" * 100  # two bytes each


class Deaf(StartStopEngine):
    """An engine whose attempts never end by themselves."""

    def __init__(self) -> None:
        self._known: set[tuple[str, int]] = set()
        self._rung = threading.Event()
        self._term = 0

    def newest_term(self) -> int:
        return self._term

    def lead(self, term: int) -> None:
        self._term = term

    def start(self, launch: Launch) -> None:
        self._known.add((launch.job, launch.epoch))

    def stop(self, job: str, epoch: int, why: str, grace: int) -> None:
        return

    def signal(self, job: str, epoch: int, number: int) -> None:
        return

    def poll(self) -> list[AttemptEnd]:
        return []

    def known(self) -> set[tuple[str, int]]:
        return set(self._known)

    def forget(self, job: str, epoch: int) -> None:
        self._known.discard((job, epoch))

    def wait(self, timeout: float) -> None:
        self._rung.wait(timeout)
        self._rung.clear()

    def ring(self) -> None:
        self._rung.set()

    def logs(self, job: str, epoch: int) -> list[Path]:
        return []

    def reports(self, job: str, epoch: int, offset: int) -> tuple[list[dict[str, object]], int]:
        return [], offset


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[Plane]:
    cluster = parse_cluster("8x8:A100")
    store = Store(url_of(None, tmp_path))
    store.migrate()
    made = Plane(Settings(tmp_path, cluster), store, Deaf(), FileElection(tmp_path / "plane.lock", store))
    made.start()
    try:
        yield made
    finally:
        made.close()
        store.close()


def filled(plane: Plane) -> list[str]:
    """The arrays of 2,000 jobs with all that makes a row long."""
    arrays: list[str] = []
    for number in range(ARRAYS):
        body: dict[str, Any] = {
            "name": f"{number}-{LONG}",
            "model": LONG,
            "run": "sleep 3600",
            "array": f"0-{MEMBERS - 1}",
            "resources": {"gpus": 1 + number % 8},
            "time": "1h",
        }
        if arrays:
            body["dependency"] = "afterok:" + ":".join(arrays) if number % 4 == 0 else None
        body = {key: value for key, value in body.items() if value is not None}
        arrays.append(submission.submit(plane, ANN, parse_request(body), body).id)
    return arrays


def pages(ask: Callable[[str | None], Page]) -> Iterator[Page]:
    cursor = None
    while True:
        page = ask(cursor)
        yield page
        cursor = page.next
        if cursor is None:
            return


def size(page: Page) -> int:
    return len(json.dumps(page.document(), ensure_ascii=False, separators=(",", ":")).encode())


def test_every_page_of_many_jobs_is_small(plane: Plane) -> None:
    arrays = filled(plane)
    lists = Lists(plane.store)
    for caller in (ANN, ADMIN):
        for wanted in (
            Filter(),
            Filter(active=True),
            Filter(states=("pending", "held")),
            Filter(states=("running", "stopping")),
            Filter(name="1*", since=0),
            Filter(array=arrays[3]),
        ):
            seen: list[str] = []
            numbers: list[str] = []
            for page in pages(lambda cursor, c=caller, w=wanted: lists.jobs(c, w, cursor, MOST_ROWS)):  # type: ignore[misc]
                assert size(page) < LARGEST
                seen += [item["id"] for item in page.items]
                numbers += [item["submitted_at"] for item in page.items]
            assert len(seen) == len(set(seen))
            assert numbers == sorted(numbers, reverse=True)
            if wanted in (Filter(), Filter(active=True)):
                assert len(seen) == ARRAYS * MEMBERS
    running = lists.jobs(ADMIN, Filter(states=("running",)), None, MOST_ROWS)
    assert 0 < len(running.items) <= 64
    for page in pages(lambda cursor: lists.history(ADMIN, Filter(), cursor, MOST_ROWS)):
        assert size(page) < LARGEST
    summary = Lookup(plane.store).array(ANN, arrays[0])
    assert summary is not None
    assert summary["count"] == MEMBERS
    assert summary["submitted_at"] <= (iso(plane.clock.now()) or "")
    after = 0
    while (lines := lists.journal(after, MOST_ROWS)).items:  # one step holds an array, and is cut
        assert size(lines) < LARGEST
        after = lines.items[-1]["number"]


def test_why_of_one_among_thousands_names_a_few(plane: Plane) -> None:
    arrays = filled(plane)
    found = questions.why(plane, f"{arrays[-1]}_{MEMBERS - 1}", ANN)
    assert found.state == "pending"
    assert found.reason in ("Priority", "Resources", "AssocGrpGRES")
    assert found.ahead > 1_000
    rows = holder_rows(ANN, found.holders)
    assert len(rows) <= MOST_NAMED + 1
    assert sum(row["jobs"] for row in rows) == len(found.holders) == 64, "the others are counted"


def test_of_jobs_that_are_over_nothing_is_kept_in_memory(plane: Plane) -> None:
    arrays = filled(plane)
    ids = [f"{array}_{member}" for array in arrays for member in range(MEMBERS)]
    waiting = [i for i in ids if plane._led().ledger.index.records[i].state != "running"]
    for start in range(0, len(waiting), 500):
        commands.cancel(plane, waiting[start : start + 500])
    index, core = plane._led().ledger.index, plane._led().ledger.core
    running = set(ids) - set(waiting)
    assert running
    assert set(index.records) == set(core.jobs) == running
    assert set(index.asked) == {name.partition("_")[0] for name in running}
    left = {
        name: len(kept)
        for name, kept in vars(index).items()
        if isinstance(kept, dict | list | set) and len(kept) > len(running)
    }
    assert left == {}
    assert len(core.queue) == 0
    ended = Lists(plane.store).jobs(ANN, Filter(states=("cancelled",)), None, MOST_ROWS)
    assert len(ended.items) > 100
    assert ended.next is not None
