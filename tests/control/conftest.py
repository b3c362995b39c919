"""What tests of the plane share."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest
from tests.control import harness


@pytest.fixture(scope="session")
def database() -> Iterator[Callable[[], str]]:
    """Makes databases of a PostgreSQL of our own; without one the test is left out, never in the build."""
    server = harness.postgres()
    try:
        made = server.__enter__()
    except (OSError, LookupError) as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"no PostgreSQL can be started here: {error}")
    yield made
    server.__exit__(None, None, None)
