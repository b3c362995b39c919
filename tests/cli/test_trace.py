"""`dovetail trace`: info, generate, convert."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

from typer.testing import Result

from dovetail.traces import load_trace

Dove = Callable[..., Result]


def test_info_summarises_a_trace(dove: Dove) -> None:
    text = dove("trace info five.csv --gpus 8").stdout
    assert text.startswith("five: 5 jobs over 0 s, 32.8 GPU h")
    said = json.loads(dove("trace info five.csv --json").stdout)
    assert (said["jobs"], said["tenants"], said["sizes"]) == (5, 2, {"1": 2, "2": 2, "4": 1})


def test_generate_writes_the_same_jobs_for_the_same_seed(dove: Dove, folder: Path) -> None:
    command = "trace generate --like philly --jobs 400 --gpus 16 --load 0.3 --seed 3"
    result = dove(f"{command} -o made.csv")
    assert result.exit_code == 0
    assert result.stdout.startswith("made.csv: 400 jobs over ")
    assert ", load 0.3 on 16 GPUs\nwhile they arrive " in result.stdout
    assert result.stdout.endswith("offered load 0.30\n")
    assert dove(command).stdout == (folder / "made.csv").read_text(), "piped, it is the same text"


def test_what_was_changed_for_the_load_is_told(dove: Dove) -> None:
    few = dove("trace generate --like philly --jobs 3 --gpus 10000 -o few.csv")
    assert few.exit_code == 0
    assert "not 0.9: about " in few.stderr
    for command in (
        "trace generate --like philly --jobs 300 --gpus 16 --seed 1 -o cut.csv",
        "trace generate --like philly --jobs 300 --gpus 16 --seed 1",
        "simulate --like philly --jobs 300 --cluster 2x8 --policy fifo --seed 1",
    ):
        told = dove(command).stderr
        assert "note: to reach the load while jobs arrive, long jobs arrive evenly over the span" in told
        assert " jobs are shortened, to 7 h 8 min at most" in told
    told = dove(
        "compare --like philly --jobs 300 --cluster 2x8 --policies fifo,sjf --seeds 2 --workers 1"
    ).stderr
    assert told.startswith("note: seed 0: to reach the load while jobs arrive, long jobs arrive evenly")


def test_the_load_asked_for_is_told_apart_from_the_load_offered(dove: Dove) -> None:
    """More work than the load arrives where jobs outlast the arrivals: that figure has its own name."""
    made = dove("trace generate --like philly --jobs 200 --gpus 8 --load 1.0 --seed 2 -o made.csv").stdout
    first, second = made.splitlines()
    assert first.endswith(", load 1 on 8 GPUs")
    used = re.fullmatch(r"while they arrive (\d+) % of the GPU time can be in use; offered load 1.10", second)
    assert used
    assert 90 <= int(used[1]) <= 100
    assert ", offered load 1.10 on 8 GPUs\n" in dove("trace info made.csv --gpus 8").stdout


def test_convert_keeps_the_jobs(dove: Dove, folder: Path) -> None:
    assert dove("trace convert five.csv five.jsonl.gz").exit_code == 0
    assert dove("trace convert five.jsonl.gz again.csv --format jsonl").exit_code == 0
    assert load_trace("again.csv").jobs == load_trace("five.csv").jobs
