"""The order in which tests start, what `-n auto` means, and what a search for failures keeps.

`@pytest.mark.slow(seconds)` is a test that takes that long, mostly waiting. `@pytest.mark.long` is a test
that only `make test-long` runs. CONTRIBUTING.md says when to use which.

pytest-xdist gives each worker a stretch of the list of tests. A worker starts at the front of its stretch,
and workers that are done take over its rear (`--dist worksteal`). So slow tests stand in front: a slow test
that started last would keep one worker busy after all others are done. Slow tests wait for jobs that sleep
and for planes that start, so there are two workers more than there are processors.
"""

from __future__ import annotations

import gc
import os
import random
import signal
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import is_hypothesis_test, settings
from hypothesis.internal.conjecture import providers

from dovetail.testing.search import FAILURES, replaying, searched, searching

ROOT = Path(__file__).parents[1]
CASES = ROOT / "tests" / "cases"
SEARCH_ENDS = pytest.StashKey[float]()

# The build runs as root, and most tests submit for tenants without an account. Tests of accounts unset it.
os.environ["DOVETAIL_ALLOW_ROOT"] = "1"

# A third of the time of a collection went into looking for garbage among modules and tests, which stay.
gc.disable()

# For property tests that do not name their number of examples.
settings.register_profile("dovetail", searched(100))
settings.load_profile("dovetail")

# Hypothesis also draws constants that it finds in the source of imported modules. Then the worlds of a test
# would depend on which other tests were collected, and on every edit anywhere: a failure of the whole suite
# might not come again when its test runs alone.
if not searching():
    providers._get_local_constants = lambda: providers._local_constants


def chaos_seed(seed: int) -> int:
    """The seed of a test that kills: always the same, unless `make kills` asks for another."""
    return seed + int(os.environ.get("DOVETAIL_CHAOS", "0"))


def pytest_configure() -> None:
    # A shell that starts us with `&` makes us, and all processes that we start, ignore interrupts.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for mark in item.iter_markers("long"):
            if mark.args or mark.kwargs:
                raise pytest.UsageError(f"{item.nodeid}: `long` takes no arguments; `slow(seconds)` does")
    if searching():  # a short search does not always begin with the same tests
        random.Random(os.environ.get("DOVETAIL_SEARCH_SEED", "")).shuffle(items)
    else:
        items.sort(key=_seconds, reverse=True)  # stable


def pytest_collection_finish(session: pytest.Session) -> None:
    gc.freeze()
    gc.enable()
    seconds = float(os.environ.get("DOVETAIL_SEARCH_SECONDS", "inf"))
    session.config.stash[SEARCH_ENDS] = time.monotonic() + seconds


def _seconds(item: pytest.Item) -> float:
    found = item.get_closest_marker("slow")
    return float(found.args[0]) if found else 0.0


@pytest.hookimpl(optionalhook=True)  # also where pytest-xdist is not installed
def pytest_xdist_auto_num_workers() -> int:
    """What `-n auto` means here."""
    return len(os.sched_getaffinity(0)) + 2


def pytest_runtest_setup(item: pytest.Item) -> None:
    if time.monotonic() > item.config.stash[SEARCH_ENDS]:
        pytest.skip("the time of the search is over")
    FAILURES.clear()
    function: Any = getattr(item, "obj", None)
    if searching() and is_hypothesis_test(function):
        # Hypothesis keeps no failure of a run with --hypothesis-seed, so each test gets its seed here.
        seed = random.Random(f"{os.environ.get('DOVETAIL_SEARCH_SEED', random.random())} {item.nodeid}")
        getattr(function, "__func__", function)._hypothesis_internal_use_seed = seed.getrandbits(64)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failure that a search found becomes a case."""
    report = yield
    if call.excinfo is not None and call.when == "call" and searching() and not replaying():
        case = FAILURES.case(item.nodeid, call.excinfo.value)
        if case is not None:
            file = case.write(CASES).relative_to(ROOT)
            report.sections.append(("kept as a case", f"{file}\nrun it again: make case CASE={file}"))
    return report
