"""No command writes its output over a file that it reads."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import FIVE
from tests.cli.test_live import plane as plane
from tests.client.fakeplane import Reply
from typer.testing import Result

Dove = Callable[..., Result]

CLUSTER = "nodes: [{count: 1, gpus: 8}]\n"

COMMANDS = [
    "simulate {five} --cluster 1x8 --policy fifo --jobs-out {out}",
    "simulate {five} --cluster 1x8 --policy fifo --journal {out}",
    "simulate {five} --cluster 1x8 --policy fifo --report {out}",
    "compare {five} --cluster 1x8 --policies fifo,sjf --workers 1 --report {out}",
    "fidelity {five} --virtual 1x8 --policy fifo --jobs-out {out}",
    "trace convert {five} {out}",
]


def same(folder: Path) -> Iterator[str]:
    """Other names of the trace."""
    (folder / "soft.csv").symlink_to("five.csv")
    os.link(folder / "five.csv", folder / "hard.csv")
    (folder / "sub").mkdir()
    yield from ("five.csv", "./five.csv", "soft.csv", "hard.csv", "sub/../five.csv", str(folder / "five.csv"))


@pytest.mark.parametrize("command", COMMANDS)
def test_an_output_that_is_an_input_is_refused(dove: Dove, folder: Path, command: str) -> None:
    for name in list(same(folder)):
        result = dove(command.format(five="five.csv", out=name))
        assert (result.exit_code, result.stdout) == (2, ""), result.output
        assert result.stderr.startswith(f"error: {Path(name)}: ")
        assert "input" in result.stderr
        assert result.stderr.count("\n") == 1
        assert (folder / "five.csv").read_text() == FIVE
        assert (folder / "soft.csv").is_symlink()


def test_a_link_as_the_input_is_followed_too(dove: Dove, folder: Path) -> None:
    list(same(folder))
    result = dove("simulate soft.csv --cluster 1x8 --policy fifo --jobs-out five.csv")
    assert (result.exit_code, (folder / "five.csv").read_text()) == (2, FIVE)


def test_every_input_counts_not_only_the_trace(dove: Dove, folder: Path) -> None:
    (folder / "small.yaml").write_text(CLUSTER)
    result = dove("simulate five.csv --cluster small.yaml --policy fifo --report small.yaml")
    assert (result.exit_code, (folder / "small.yaml").read_text()) == (2, CLUSTER)
    (folder / "mine.py").write_text("x = 1\n")
    result = dove("simulate five.csv --cluster 1x8 --policy mine.py:x --report mine.py")
    assert (result.exit_code, (folder / "mine.py").read_text()) == (2, "x = 1\n")


def test_two_outputs_in_one_file_are_refused_through_links(dove: Dove, folder: Path) -> None:
    (folder / "b.out").symlink_to("a.out")
    result = dove("simulate five.csv --cluster 1x8 --policy fifo --jobs-out a.out --report b.out")
    assert result.exit_code == 2
    assert "two outputs" in result.stderr
    assert not (folder / "a.out").exists()


def test_an_earlier_output_may_be_written_again(dove: Dove, folder: Path) -> None:
    for _ in range(2):
        result = dove("simulate five.csv --cluster 1x8 --policy fifo --jobs-out out.csv")
        assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    "command",
    ["submit job.sh -o job.sh", "submit job.sh -e ./job.sh", "submit -o job.sh -- bash job.sh",
     "run -o job.sh -- ./job.sh", "submit out.yaml"],
)  # fmt: skip
def test_a_job_does_not_write_over_what_it_runs(dove: Dove, folder: Path, plane: Any, command: str) -> None:
    script = "#!/bin/bash\necho hello\n"
    (folder / "job.sh").write_text(script)
    (folder / "out.yaml").write_text("run: echo hello\noutput: out.yaml\n")
    plane.on("POST", "/jobs", Reply({"id": "k3v9q2", "ids": ["k3v9q2"], "count": 1}))
    result = dove(command)
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert "would write over" in result.stderr
    assert (plane.asked, (folder / "job.sh").read_text()) == ([], script)
