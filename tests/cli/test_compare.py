"""`dovetail compare`: the best policies, and how certain that is."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from typer.testing import Result

Dove = Callable[..., Result]
COMPARE = "compare five.csv --cluster 1x8 --workers 1 --policies"


def test_the_best_of_each_column_is_marked(dove: Dove) -> None:
    result = dove(f"{COMPARE} fifo,fifo:discipline=skip,priority:preempt=false")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0].startswith(
        "fifo discipline=skip and priority preempt=false have the lowest mean completion"
    )
    rows = {line[2:30].split("  ")[0]: line for line in lines if line.startswith("  ")}
    assert "2.45 " in rows["fifo"]
    assert "2.45*" not in rows["fifo"]
    assert "2.25*" in rows["fifo discipline=skip"]


def test_what_is_printed_the_same_is_marked_the_same(dove: Dove, folder: Path) -> None:
    """The completions of fifo and sjf differ by one second in days; those of the last policy by far more."""
    rows = ["a,0,1,3600", "b,1,1,432000", "c,1,1,431998"]
    (folder / "near.csv").write_text("\n".join(["id,submit,gpus,duration", *rows]) + "\n")
    told = dove("compare near.csv --cluster 1x1 --workers 1 --policies fifo,sjf,tiresias-l --json").stdout
    means = [row["figures"]["jct_mean"]["mean"] for row in json.loads(told)["policies"]]
    assert means[0] != means[1]
    said = dove("compare near.csv --cluster 1x1 --workers 1 --policies fifo,sjf,tiresias-l").stdout
    firsts = {line.split()[0]: line.split()[1] for line in said.splitlines() if line.startswith("  ")}
    assert firsts["fifo"] == firsts["sjf"]
    assert firsts["fifo"].endswith("*")


def test_json_has_every_run_and_the_best_policies(dove: Dove) -> None:
    said = json.loads(dove(f"{COMPARE} fifo,sjf --seeds 3 --json").stdout)
    assert (said["trace"], said["cluster"], said["gpus"], said["seeds"]) == ("five", "1x8", 8, 3)
    assert [row["policy"] for row in said["policies"]] == ["fifo", "sjf"]
    fifo = said["policies"][0]
    assert [run["seed"] for run in fifo["runs"]] == [0, 1, 2]
    assert fifo["runs"][0]["jct"]["mean"] == 2.45 * 3600
    assert fifo["figures"]["jct_mean"]["half"] > 0
    assert said["best"]["jct_mean"] == ["sjf"]


def test_settings_go_to_their_policy(dove: Dove) -> None:
    said = json.loads(dove(f"{COMPARE} fifo,sjf --set fifo.discipline=skip --json").stdout)
    assert [row["options"] for row in said["policies"]] == [{"discipline": "skip"}, {}]


def test_numbers_after_a_comma_belong_to_the_option_before(dove: Dove) -> None:
    said = json.loads(dove(f"{COMPARE} tiresias-l:thresholds=100,1000:quantum=30,fifo --json").stdout)
    first, second = said["policies"]
    assert first["options"] == {"thresholds": [100.0, 1000.0], "quantum": 30.0}
    assert second["policy"] == "fifo"


def test_a_policy_that_deadlocks_is_not_the_best(dove: Dove, folder: Path) -> None:
    (folder / "gangs.csv").write_text("id,submit,gpus,duration\na,0,8,100\nb,0,8,100\n")
    result = dove("compare gangs.csv --cluster 2x4 --policies k8s-default,fifo --workers 1 --report c.html")
    assert result.exit_code == 1
    assert result.stdout.startswith("only fifo finished every job")
    assert "deadlock under k8s-default" in result.stderr
    assert "k8s-default deadlocked" in (folder / "c.html").read_text()


def test_processes_give_what_one_process_gives(folder: Path) -> None:
    command = [sys.executable, "-m", "dovetail.cli", "compare", "five.csv", "--cluster", "1x8"]
    command += ["--policies", "fifo,sjf", "--seeds", "2", "--json", "--workers"]

    def figures(workers: str) -> object:
        done = subprocess.run([*command, workers], capture_output=True, text=True, check=True, cwd=folder)
        return [row["figures"] for row in json.loads(done.stdout)["policies"]]

    assert figures("1") == figures("3")


def test_an_error_in_a_worker_process_is_reported_by_the_parent(folder: Path) -> None:
    code = (
        "import sys\nfrom dovetail.bench import compare\nfrom dovetail.model.errors import PlanError\n"
        "def broken(*_, **__): raise PlanError('nonsense')\n"
        "compare.run = broken\nfrom dovetail.cli.main import main\n"
        "sys.argv = 'dovetail compare five.csv --cluster 1x8 --policies fifo,sjf --workers 2'.split()\nmain()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=folder, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert "nonsense" in done.stderr
