"""Figures on the command line, of a real plane: complete, and the same as the plane's."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.control import harness
from typer.testing import CliRunner

from dovetail.cli.main import app

Dove = Callable[[str], str]
SECRET = "s3cr3t-Zq81"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("plane")


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[Any]:
    with harness.commanded(folder, "--virtual", "1x4:A100") as made:
        yield made


@pytest.fixture
def dove(client: Any, folder: Path) -> Dove:
    def run(words: str) -> str:
        result = CliRunner().invoke(app, [*shlex.split(words), "--state", str(folder / "state")])
        assert result.exit_code == 0, result.output
        return str(result.stdout)

    return run


def test_describe_shows_what_a_job_runs_and_hides_secrets(client: Any, dove: Dove, tmp_path: Path) -> None:
    env = {"LR": "0.1", "HF_TOKEN": SECRET, "PATH": "/usr/bin"}
    one = {"workdir": str(tmp_path), "env": env, "hold": True}
    words = ["python", "train.py", "--note", "two words", "--api-key", SECRET]
    job = client.submit({**one, "command": words}).id
    said = dove(f"describe {job}")
    assert re.search(
        r"^ +runs +python train.py --note 'two words' --api-key '\(hidden\)'$", said, re.MULTILINE
    )
    assert re.search(rf"^ +in +{tmp_path}$", said, re.MULTILINE)
    assert re.search(r"^ +with +HF_TOKEN=\(hidden\)\n +LR=0.1$", said, re.MULTILINE)
    assert "PATH" not in said
    script = client.submit(
        {**one, "setup": "module load x", "run": "echo first\n\necho second\n", "array": "0-1"}
    )
    for id in (script.id, f"{script.id}_1"):
        said = dove(f"describe {id}")
        assert re.search(r"^ +runs +module load x \.\.\. \(4 lines, see below\)$", said, re.MULTILINE)
        assert "what it runs:\n  module load x\n  echo first\n\n  echo second\n" in said
        assert SECRET not in said
        found = json.loads(dove(f"describe {id} --json"))
        assert (found["run"], found["workdir"]) == ("echo first\n\necho second\n", str(tmp_path))
        assert found["env"] == {"HF_TOKEN": "(hidden)", "LR": "0.1", "PATH": "/usr/bin"}


def test_the_header_of_a_history_counts_all_jobs(client: Any, dove: Dove) -> None:
    array = client.submit({"name": "many", "run": "true", "resources": {"gpus": 1}, "array": "0-6"}).id
    path = f"/arrays/{array}"
    harness.eventually(lambda: client.connection.get(path)["states"] == {"completed": 7}, "the array")
    some, every = (dove(f"history --limit {limit}").splitlines()[0] for limit in (3, 50))
    assert re.match(r"7 jobs have ended, .*GPU", every)
    assert some == f"{every}, the last 3 jobs of them below"
    total = client.connection.get("/history/total")
    assert total["jobs"] == 7
    assert total["gpu_seconds"] == pytest.approx(client.connection.get(path)["gpu_seconds"], abs=0.001)


def test_a_history_counts_jobs_that_ended_and_a_report_those_that_started(client: Any, dove: Dove) -> None:
    """A job cancelled while it waited is in the history only, and one that runs in the report only."""

    def counted() -> tuple[int, int]:
        listed = dove("history").splitlines()[0]
        summed = dove("report").splitlines()[0]
        ended = re.match(r"(?:(\d+) jobs? ha(?:s|ve)|no job has) ended", listed)
        ran = re.fullmatch(r"\S+ GPU h by (\d+) jobs? that ran or still run|nothing was used", summed)
        assert ended, listed
        assert ran, summed
        return int(ended[1] or 0), int(ran[1] or 0)

    def state_of(job: str) -> str:
        return str(client.connection.get(f"/jobs/{job}")["state"])

    ended, ran = counted()
    all_gpus = {"run": "sleep 600", "resources": {"gpus": 4}, "expected": "10m"}
    runs, waits = (client.submit({"name": name, **all_gpus}).id for name in ("runs", "waits"))
    harness.eventually(lambda: state_of(runs) == "running", "the first job runs")
    client.cancel(waits)
    harness.eventually(lambda: state_of(waits) == "cancelled", "the second one was cancelled")
    assert counted() == (ended + 1, ran + 1)
    client.cancel(runs)
    harness.eventually(lambda: state_of(runs) == "cancelled", "the first job was cancelled")
    assert counted() == (ended + 2, ran + 1)


def test_a_running_job_shows_its_expected_end_beside_its_limit(client: Any, dove: Dove) -> None:
    request = {"run": "sleep 600", "resources": {"gpus": 4}, "time": "30m", "expected": "10m"}
    job = client.submit({"name": "both", **request}).id
    harness.eventually(lambda: client.connection.get(f"/jobs/{job}")["state"] == "running", "it runs")
    said = dove(f"describe {job}")
    assert re.search(
        r"^ +limit +30 min\n +expected end +\S.* \(in (?:10 min|9 min .*)\)$", said, re.MULTILINE
    )
    assert re.search(r"^ +attempt +started .* cause +detail$", said, re.MULTILINE)
    waiting = client.submit({"name": "waits", **request}).id
    harness.eventually(lambda: "preempts" in dove(f"why {waiting}"), "a remedy")
    said = dove(f"why {waiting}")
    assert "GPUs  expected end\n" in said
    assert f"to start sooner:  dovetail priority {waiting} high (preempts {job})\n" in said
    client.cancel(waiting)
    client.cancel(job)
