"""`dovetail tournament`: the same workloads for every policy."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

Dove = Callable[..., Result]
SMALL = "tournament --jobs 100 --seeds 1 --workers 1"


def test_the_first_line_is_the_answer(dove: Dove) -> None:
    result = dove(f"{SMALL} --workloads uniform,bursty --policies srtf")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0] == (
        "srtf has the lowest mean completion time on 2 of 2 workloads; "
        "no policy is worse than fifo where it claims to be better"
    )
    assert lines[1] == "2 policies, 2 workloads of 100 jobs, 1 seed"
    rows = {line.split()[0]: line.split() for line in lines if line.startswith("  ")}
    assert rows["policy"][1:3] == ["uniform", "bursty"]
    assert rows["fifo"][1:3] == ["1.00", "1.00"]
    assert all(cell.endswith("*") and float(cell[:-1]) < 1 for cell in rows["srtf"][1:3])
    assert not result.stderr


def test_one_workload_has_all_its_figures(dove: Dove) -> None:
    said = dove(f"{SMALL} --workloads deadline --policies srtf").stdout
    for word in ("makespan", "deadlines", "preemptions", "GPU-hours", "s per 1,000 jobs"):
        assert word in said
    assert "deadlines" not in dove(f"{SMALL} --workloads uniform --policies srtf").stdout


def test_json_has_figures_marks_and_the_workloads(dove: Dove) -> None:
    said = json.loads(dove(f"{SMALL} --workloads uniform,deadline --policies priority,sjf --json").stdout)
    assert (said["seeds"], said["baseline"]) == (1, "fifo")
    assert [row["workload"] for row in said["workloads"]] == ["uniform", "deadline"]
    uniform, deadline = ({row["label"]: row for row in each["policies"]} for each in said["workloads"])
    assert list(uniform) == ["fifo", "priority", "sjf"]
    assert uniform["sjf"]["figures"]["jct_mean"]["mean"] < uniform["fifo"]["figures"]["jct_mean"]["mean"]
    assert "missed" in deadline["sjf"]["figures"]
    assert "missed" not in uniform["sjf"]["figures"]
    assert uniform["sjf"]["worse"] == []


def test_a_deadlock_is_a_result(dove: Dove) -> None:
    words = "tournament --seeds 1 --workers 1 --workloads uniform --policies k8s-default"
    shown = dove(words)
    assert shown.exit_code == 0
    assert shown.stdout.startswith("no policy is ahead of the others"), "one policy alone finished all jobs"
    assert "unfinished" in shown.stdout
    fifo, other = json.loads(dove(f"{words} --json").stdout)["workloads"][0]["policies"]
    assert (fifo["policy"], fifo["figures"]["unfinished"]["mean"]) == ("fifo", 0)
    assert (other["policy"], other["figures"]["unfinished"]["mean"] > 0) == ("k8s-default", True)


def test_a_policy_in_a_file_plays_too_and_is_not_judged(dove: Dove, folder: Path) -> None:
    (folder / "mine.py").write_text(
        "from dovetail.policies.classic import srtf\n\n\ndef mine():\n    return srtf()\n"
    )
    result = dove(f"{SMALL} --workloads uniform --policies mine.py:mine --report t.html --page t.md")
    assert result.exit_code == 0, result.output
    assert "mine.py:mine" in result.stdout
    assert "mine.py:mine" in (folder / "t.html").read_text()
    page = (folder / "t.md").read_text()
    assert page.startswith("<!-- written by `make bench-policies`")
    assert "| [fifo](fifo.md) |" in page
    assert "mine.py:mine` |" in page


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--workloads burst", "no workload is named 'burst'; did you mean bursty?"),
        ("--workloads ,", "no workload was given"),
        ("--policies nosuch", "no policy is named 'nosuch'"),
        ("--policies fifo:speed=3", "policy fifo has no option 'speed'"),
        ("--report .", "is a directory"),
        ("--report a.html --page a.html", "two outputs have this name"),
    ],
)
def test_a_wrong_question_is_told_before_anything_runs(dove: Dove, words: str, told: str) -> None:
    result = dove(f"tournament {words}")
    assert result.exit_code == 2
    assert told in result.stderr
    assert result.stderr.startswith("error: ")
    assert not result.stdout


def test_workers_do_not_change_figures(dove: Dove) -> None:
    def figures(workers: int) -> object:
        said = dove(
            f"tournament --jobs 100 --seeds 2 --workloads bursty --policies sjf --json --workers {workers}"
        )
        found = json.loads(said.stdout)["workloads"][0]["policies"]
        return [{k: v for k, v in row["figures"].items() if k != "cpu_per_thousand"} for row in found]

    assert figures(1) == figures(2)
