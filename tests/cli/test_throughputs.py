"""`--throughputs`: Gavel-format traces on clusters of several types."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from dovetail.model.units import SECOND
from dovetail.traces import load_trace

Dove = Callable[..., Result]
A3C, LARGE = "A3C", "ResNet-50 (batch size 128)"


@pytest.fixture(autouse=True)
def files(folder: Path) -> None:
    rows = [(A3C, 7_200, 1, 0), (LARGE, 4_200, 2, 10), (LARGE, 2_500, 1, 20), (A3C, 7_200, 1, 30)]
    lines = [
        "\t".join((m, "run", "dir", "-n", "1", str(s), str(g), "1", "-1", str(t))) for m, s, g, t in rows
    ]
    (folder / "few.trace").write_text("\n".join(lines) + "\n")
    mine = {kind: {f"('{A3C}', 1)": {"null": speed}} for kind, speed in (("v100", 8), ("k80", 2))}
    (folder / "mine.json").write_text(json.dumps(mine))


def test_each_type_has_its_speed(dove: Dove, folder: Path) -> None:
    command = "simulate few.trace --policy fifo --set discipline=skip --json --throughputs gavel --cluster"
    fast, slow = (json.loads(dove(f"{command} {spec}").stdout) for spec in ("5x1:V100", "4x1:K80,2x1:P100"))
    work = {job.id: job.work / SECOND for job in load_trace(folder / "few.trace", throughputs="gavel").jobs}
    assert fast["finished"] == slow["finished"] == 4
    assert fast["jct"]["mean"] == pytest.approx(sum(work.values()) / 4)
    assert slow["jct"]["mean"] > fast["jct"]["mean"]


def test_no_job_runs_on_a_gpu_type_that_is_too_small(dove: Dove) -> None:
    """Two of the large model do not fit K80s; they wait for the others."""
    command = "simulate few.trace --policy fifo --throughputs gavel --json --cluster 8x1:K80,2x1:P100"
    said = json.loads(dove(command).stdout)
    assert (said["finished"], said["waiting"]) == (4, 0)
    result = dove("simulate few.trace --policy fifo --throughputs gavel --cluster 8x1:K80")
    assert result.exit_code == 2
    assert "job '1' asks for 2 GPUs of type P100 or V100, which can never fit on 8x1:K80" in result.stderr


def test_compare_takes_them_too(dove: Dove) -> None:
    result = dove(
        "compare few.trace --throughputs gavel --cluster 1x1:V100,2x1:P100 --policies fifo,sjf --workers 1"
    )
    assert result.exit_code == 0, result.output
    assert "few: 4 jobs on 3 GPUs" in result.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--cluster 2x1:V100", "few.trace: has steps but no durations; give throughputs=FILE (--throughputs"),
        ("--cluster 2x1:V100 --throughputs none.json", "none.json: no such file"),
        ("--cluster 2x1:V100 --throughputs gavl", "no such file of throughputs; did you mean gavel?"),
        ("--cluster 2x1:V100 --throughputs five.csv", "five.csv, line 1: is not valid JSON"),
        ("--cluster 2x1 --throughputs gavel", "no GPU type 'gpu' in it; found K80, P100, V100; use these"),
        ("--cluster 2x1:A100 --throughputs gavel", "the throughputs gavel: no GPU type 'A100' in it"),
        (
            "--cluster 2x1:V100 --throughputs mine.json",
            f"few.trace, line 2: no throughput of '{LARGE}' on 2 V100 in mine.json",
        ),
    ],
)
def test_an_error_is_one_line(dove: Dove, options: str, message: str) -> None:
    for verb in ("simulate few.trace --policy fifo", "compare few.trace --policies fifo"):
        result = dove(f"{verb} {options}")
        assert result.exit_code == 2
        assert message in result.stderr
        assert len(result.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("trace", "message"),
    [
        ("five.csv", "five.csv is of the format csv: leave it out"),
        ("philly", "philly is a shipped trace: leave it out"),
        ("--like philly", "a trace generated with --like has durations already"),
    ],
)
def test_throughputs_are_only_for_gavel_traces(dove: Dove, trace: str, message: str) -> None:
    result = dove(f"simulate {trace} --policy fifo --cluster 2x8:V100 --throughputs gavel")
    assert result.exit_code == 2
    assert "--throughputs is for Gavel traces" in result.stderr
    assert message in result.stderr
