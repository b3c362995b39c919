"""A job that only takes its time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.engines.conftest import Bench

from dovetail.engines import emulated
from dovetail.engines.launch import Launch, Share
from dovetail.model.units import SECOND

PROGRAM = str(Path(emulated.__file__))


def launch(bench: Bench, epoch: int, *words: str) -> Launch:
    command = (sys.executable, "-I", "-S", PROGRAM, *words)
    folder = str(bench.root.parent / "checkpoints" / "j")
    return Launch("j", epoch, (Share("n0", ("0",)),), command, checkpoint_dir=folder)


def test_it_takes_its_time_over_all_its_attempts(bench: Bench) -> None:
    words = ("--work", "20", "--scale", "10", "--save", "1")
    bench.engine.start(launch(bench, 1, *words))
    bench.says("start j attempt 1: 0.000 of 20.000 s done")
    bench.engine.stop("j", 1, "preempted", 30 * SECOND)
    first = bench.end("j", 1)
    assert (first.code, first.cause, first.finished) == (143, "stopped", False)
    done = float((bench.root.parent / "checkpoints/j/emulated.progress").read_text())
    spent = (first.ended_at - first.started_at) / SECOND
    assert 0 < done <= (spent - 0.1) * 10
    assert f"stopped j attempt 1: {done:.3f} of 20.000 s done" in bench.log("j", 1)
    second = bench.run(launch(bench, 2, *words))
    assert (second.code, second.cause, second.finished) == (0, "exited", True)
    assert bench.log("j", 2).splitlines() == [
        f"start j attempt 2: {done:.3f} of 20.000 s done",
        "end j attempt 2: 20.000 s done",
    ]
    assert (second.ended_at - second.started_at) / SECOND >= (20 - done) / 10


@pytest.mark.parametrize(
    "words", [[], ["--work"], ["--work", "x"], ["--work", "-1"], ["--wrok", "1"], ["--scale", "0"]]
)
def test_a_wrong_question(words: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-S", PROGRAM, *words], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")


def test_alone_it_works_as_well() -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-S", PROGRAM, "--work", "0"], capture_output=True, check=True
    )
    assert done.stdout.count(b"\n") == 2
