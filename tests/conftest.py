"""The order in which tests begin.

A worker of pytest-xdist is dealt a stretch of the list, begins at its front, and has its rear taken over by
workers that are done (`--dist worksteal`). So what takes long stands in front: one that came last would be
waited for by all. Such tests wait more than they compute, for jobs that sleep and planes that start; that is
why there is a worker more than there are processors: while one waits, the others have them to themselves.
"""

from __future__ import annotations

import os
import signal

import pytest


def pytest_configure() -> None:
    # Begun by a shell with `&` we are deaf to an interrupt, and so would be all that we start.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_seconds, reverse=True)  # those that are equal stay as they were


def _seconds(item: pytest.Item) -> float:
    found = item.get_closest_marker("long")
    return float(found.args[0]) if found else 0.0


@pytest.hookimpl(optionalhook=True)  # also where there is no pytest-xdist
def pytest_xdist_auto_num_workers() -> int:
    """What `-n auto` means here."""
    return len(os.sched_getaffinity(0)) + 1
