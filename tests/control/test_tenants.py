"""`tenant set`: what is left out stays, and more than the cluster has is taken with a warning."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.control import test_api as api
from tests.control.test_api import Live
from tests.control.test_policy_failures import up


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    """A plane with eight GPUs."""
    with api.living(tmp_path / "plane", api.FAST, virtual="2x4:A100") as made:
        yield made


def changed(live: Live, name: str, **settings: Any) -> Any:
    answer = live.ask("PUT", f"tenants/{name}", "admin", settings)
    assert answer.status == 200, answer
    return answer.json


def test_more_than_the_cluster_has_is_taken_with_a_warning(live: Live) -> None:
    found = changed(live, "red", quota=64)
    assert found["quota"] == 64
    assert found["notes"] == ["the quota of tenant red is 64 GPUs, and the cluster has 8"]
    assert changed(live, "red", quota=8)["notes"] == []
    assert changed(live, "red", limit=9)["notes"] == [
        "the limit of tenant red is 9 GPUs, and the cluster has 8"
    ]
    assert changed(live, "red", limit=None)["notes"] == []
    together = "all quotas together are 9 GPUs, and the cluster has 8: not all can be used at once"
    assert changed(live, "blue", quota=1)["notes"] == [together]
    assert changed(live, "blue", weight=2.0)["notes"] == []  # nothing of that was named
    assert changed(live, "red", quota=7)["notes"] == []


def test_a_quota_that_covers_those_below_is_counted_once(live: Live) -> None:
    changed(live, "lab", quota=8)
    assert changed(live, "vision", parent="lab", quota=5)["notes"] == []
    assert changed(live, "speech", parent="lab", quota=3)["notes"] == []


def test_the_command_line_changes_what_is_named_and_warns(tmp_path: Path) -> None:
    def dovetail(*words: str) -> tuple[int, str, str]:
        done = subprocess.run(
            [sys.executable, "-m", "dovetail.cli", *words, "--state", str(tmp_path / "state")],
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    with up(tmp_path) as (client, _):
        assert dovetail("tenant", "set", "red", "--quota", "2", "--weight", "3") == (
            0,
            "tenant red is set; see dovetail shares\n",
            "",
        )
        assert dovetail("tenant", "set", "red", "--quota", "64") == (
            0,
            "tenant red is set; see dovetail shares\n",
            "note: the quota of tenant red is 64 GPUs, and the cluster has 4\n",
        )
        assert dovetail("tenant", "set", "red", "--limit", "4")[2].startswith("note: the quota of tenant red")
        (share,) = client.shares()["items"]
        assert (share["weight"], share["quota"], share["limit"]) == (3.0, 64, 4)
