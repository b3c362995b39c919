"""Claims: one small scenario for each sentence of a paper that we rely on.

A claim counts only if it tells systems apart: in one test, its check holds for the system and fails for the
natural baseline.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pytest

Test = TypeVar("Test", bound=Callable[..., Any])
Subject = TypeVar("Subject")


def claim(system: str, sentence: str) -> Callable[[Test], Test]:
    """Mark a test as the proof of a sentence about a system."""
    mark: Callable[[Test], Test] = pytest.mark.claim(system, sentence)
    return mark


def tells_apart(check: Callable[[Subject], None], ours: Subject, baseline: Subject) -> None:
    """The check holds for ours, and its assertions fail for the baseline."""
    check(ours)
    try:
        check(baseline)
    except AssertionError:
        return
    pytest.fail("the baseline passes the same check, so it proves nothing")
