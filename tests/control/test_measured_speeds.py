"""Nobody says how fast a model is on which type: the plane measures it, and the policy acts on it.

A real plane with two types of virtual GPU, and two jobs that report their steps. One is eight times as fast
on the A100, the other 1.4 times; neither says so, and the names of types mean nothing to the plane.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.control.harness import commanded, eventually

from dovetail import Client

JOB = """
import os, sys, time
from dovetail import job
steps = dict(n0=float(sys.argv[1]), n1=float(sys.argv[2]))[os.environ["DOVETAIL_NODE"]]
began = time.monotonic()
while not job.preemption_requested():
    time.sleep(0.05)
    job.report(step=(time.monotonic() - began) * steps)
raise SystemExit(143)
"""


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    gavel = [
        "--policy",
        "gavel",
        "--set",
        "objective=max-sum",
        "--set",
        "speeds=measured",
        "--set",
        "round=8",
    ]
    with commanded(tmp_path, "--virtual", "1x1:A100,1x1:V100", *gavel) as found:
        yield found


@pytest.mark.slow(44)
def test_the_larger_speed_up_ends_on_the_faster_type(client: Client, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(JOB)
    assert {raw["name"] for raw in client.node_list()} == {"n0", "n1"}  # the A100 and the V100

    def submitted(name: str, fast: float, slow: float) -> str:
        run = f"{sys.executable} {script} {fast} {slow}"
        request = {"name": name, "model": name, "run": run, "resources": {"gpus": 1}, "time": "1h"}
        return client.submit({**request, "checkpoint": {"grace": "10s"}}).id

    content = submitted("content", 14.0, 10.0)  # who comes first is put on the A100
    gains = submitted("gains", 80.0, 10.0)

    def on(id: str) -> str:
        placed = client.job_info(id).raw["placement"]
        return placed[0]["node"] if placed else ""

    def measured() -> bool:
        """Both have been on both types."""
        return all(
            len({a["placement"][0]["node"] for a in client.attempts(id)}) == 2 for id in (gains, content)
        )

    eventually(measured, "both on both types", 240)
    settled = 0  # looks

    def settles() -> bool:
        """Where it belongs for many looks, a few rounds, on end."""
        nonlocal settled
        settled = settled + 1 if (on(gains), on(content)) == ("n0", "n1") else 0
        return settled >= 300

    eventually(settles, "each where it belongs", 240)
