"""The emulated job: it only waits, saves and continues."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.engines.conftest import Bench

from dovetail.engines import emulated_job
from dovetail.engines.contract import Launch, NodeShare
from dovetail.model.units import SECOND

PROGRAM = str(Path(emulated_job.__file__))


def launch(bench: Bench, epoch: int, *words: str) -> Launch:
    command = (sys.executable, "-I", "-S", PROGRAM, *words)
    folder = str(bench.root.parent / "checkpoints" / "j")
    return Launch("j", epoch, (NodeShare("n0", ("0",)),), command, checkpoint_dir=folder)


def test_the_work_is_spread_over_all_attempts(bench: Bench) -> None:
    bench.engine.start(launch(bench, 1, "--work", "2000", "--scale", "10", "--save", "1"))
    bench.wait_for_output("start j attempt 1: 0.000 of 2000.000 s done")
    bench.engine.stop("j", 1, "preempted", 30 * SECOND)
    first = bench.end("j", 1)
    assert (first.code, first.cause, first.finished) == (143, "stopped", False)
    done = float((bench.root.parent / "checkpoints/j/emulated.progress").read_text())
    spent = (first.ended_at - first.started_at) / SECOND
    assert 0 < done <= (spent - 0.1) * 10
    assert f"stopped j attempt 1: {done:.3f} of 2000.000 s done" in bench.log("j", 1)
    second = bench.run(launch(bench, 2, "--work", "2000", "--scale", "2000"))
    assert (second.code, second.cause, second.finished) == (0, "exited", True)
    assert bench.log("j", 2).splitlines() == [
        f"start j attempt 2: {done:.3f} of 2000.000 s done",
        "end j attempt 2: 2000.000 s done",
    ]
    assert (second.ended_at - second.started_at) / SECOND >= (2000 - done) / 2000


@pytest.mark.parametrize(
    "words", [[], ["--work"], ["--work", "x"], ["--work", "-1"], ["--wrok", "1"], ["--scale", "0"]]
)
def test_wrong_options_are_refused(words: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-S", PROGRAM, *words], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")


def test_it_runs_without_a_plane() -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-S", PROGRAM, "--work", "0"], capture_output=True, check=True
    )
    assert done.stdout.count(b"\n") == 2
