"""Real PyTorch jobs, as a user would run them: `dovetail up`, the HTTP API, the client and the job file.

One is stopped for another, saves, and goes on; one knows nothing of Dovetail.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

import pytest
from tests.control.harness import commanded
from tests.control.harness import eventually as come_true

from dovetail import Client
from dovetail.client.client import JobHandle

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 240.0  # importing torch takes ten seconds on a busy machine, and there are four to wait for
STEPS = 40

T = TypeVar("T")

if find_spec("torch") is None and os.environ.get("CI") != "true":
    pytest.skip("torch is not installed, so PyTorch jobs are left out: make torch", allow_module_level=True)


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    assert find_spec("torch") is not None, "the build must have torch: make torch"
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    with commanded(tmp_path, "--virtual", "1x2:A100") as found:
        yield found


def eventually(look: Callable[[], T], what: str) -> T:
    return come_true(look, what, PATIENCE)


def log_of(job: JobHandle, attempt: int) -> str:
    return "".join(job.logs(attempt=attempt))


def steps_in(text: str) -> list[int]:
    return [int(step) for step in re.findall(r"^step (\d+) ", text, re.MULTILINE)]


@pytest.mark.slow(25)
def test_a_preempted_training_goes_on_where_it_saved_and_does_every_step_once(client: Client) -> None:
    training = client.submit(
        "examples/train.yaml",
        run=f"exec python examples/train.py --steps {STEPS} --every 1000 --pause 0.1",
    )
    eventually(lambda: training.refresh().attempt == 1, "the first attempt")
    eventually(lambda: len(steps_in(log_of(training, 1))) >= 3 or training.done, "the third step")

    urgent = client.submit(
        {"name": "urgent", "priority": "high", "resources": {"gpus": 2}, "time": "10m", "run": "sleep 1"}
    )
    between = urgent.wait(PATIENCE)
    end = training.wait(PATIENCE)

    first = log_of(training, 1)
    assert (between.state, end.state, end.attempt, end.exit_code) == ("completed", "completed", 2, 0), first
    second = log_of(training, 2)
    saved = len(steps_in(first))
    assert 3 <= saved < STEPS
    assert f"told to stop; step {saved} is saved" in first
    assert f"attempt 2 begins after step {saved} of {STEPS}" in second
    assert steps_in(first) + steps_in(second) == list(range(1, STEPS + 1))
    assert f"finished after {STEPS} steps" in second
    causes = {attempt["attempt"]: attempt["cause"] for attempt in training.attempts()}
    assert causes == {1: "stopped", 2: "exited"}
    moments = [end.first_started_at, between.started_at, between.ended_at, end.started_at]
    assert moments == sorted(moment for moment in moments if moment is not None)
    assert end.progress
    assert end.progress["step"] == STEPS


def test_a_script_that_knows_nothing_of_us_runs_as_it_is(client: Client) -> None:
    source = Path("examples/plain.py").read_text()
    assert not re.search(r"^\s*(import|from) dovetail", source, re.MULTILINE)

    plain = client.submit(
        {
            "name": "plain",
            "resources": {"gpus": 1},
            "workdir": str(ROOT),
            "command": ["python", "examples/plain.py"],
        }
    )
    end = plain.wait(PATIENCE)

    assert end.state == "completed", log_of(plain, 1)
    assert "fitted 3.00 x + 0.50" in log_of(plain, 1)
