"""The worked example of docs/guides/write-a-policy.md: short, quick, a policy like any other, and run live.

That it beats policies for rigid jobs is asserted by the page itself, which test_examples.py runs.
"""

from __future__ import annotations

import importlib.util
import re
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest
from tests.control.harness import PATIENCE, commanded

from dovetail.core.core import Core
from dovetail.model.event import SUBMITTED
from dovetail.model.job import Profile
from dovetail.testing.build import cluster, job
from dovetail.testing.suite import policy_suite

PAGE = (Path(__file__).parents[2] / "docs/guides/write-a-policy.md").read_text(encoding="utf-8")


def block(start: str) -> str:
    """The text of the block that begins like this."""
    found = re.search(r"^```\w+\n(" + re.escape(start) + r".*?)^```$", PAGE, re.M | re.S)
    assert found is not None, start
    return found[1]


def example() -> Any:
    """The module of the page."""
    spec = importlib.util.spec_from_loader("afs", loader=None)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    exec(compile(block("# afs.py"), "afs.py", "exec"), module.__dict__)
    return module


TestExample = policy_suite(lambda: example().afs())


def test_it_is_one_file_under_sixty_lines() -> None:
    assert block("# afs.py").count("\n") < 60


def test_a_decision_over_a_thousand_jobs_is_quick() -> None:
    """Every job has traits of its own, so that no estimate is shared. Through views it took seconds."""
    core = Core(cluster(nodes=250, gpus=8), example().afs())
    jobs = [
        job(f"j{i}", gpus=1 + i % 4, minutes=1 + i % 97, least=1, most=16, profile=curve(0.4 + i % 53 / 100))
        for i in range(1_000)
    ]
    began = time.process_time()
    core.handle(0, [(0, SUBMITTED, made.id, 0, made) for made in jobs])
    spent = time.process_time() - began
    assert len(core.running) == 1_000
    assert core.room.free_gpus == 0
    assert spent < 1.0  # 0.15 on a busy machine


def curve(power: float) -> Profile:
    return Profile(curve={n: n**power for n in range(1, 17)})


def test_the_gpu_goes_to_the_job_that_gains_most() -> None:
    """The paper's two cases: a saturated job against one that scales, and two that scale alike."""
    saturated, linear = Profile(curve={1: 1.0, 2: 1.05}), Profile(curve={1: 1.0, 2: 2.0})

    def sizes(first: Profile, second: Profile) -> dict[str, int]:
        core = Core(cluster(nodes=1, gpus=3), example().afs())
        two = (("short", 10, first), ("long", 20, second))
        jobs = [job(name, minutes=minutes, least=1, most=2, profile=known) for name, minutes, known in two]
        core.handle(0, [(0, SUBMITTED, made.id, 0, made) for made in jobs])
        return {name: mine.held // 1000 for name, mine in core.running.items()}

    assert sizes(saturated, linear) == {"short": 1, "long": 2}
    assert sizes(linear, linear) == {"short": 2, "long": 1}


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What `pip install` of the page's package leaves: the module and its entry points."""
    folder = tmp_path / "site"
    (folder / "afs-1.dist-info").mkdir(parents=True)
    (folder / "afs.py").write_text(block("# afs.py"), encoding="utf-8")
    (folder / "afs-1.dist-info" / "METADATA").write_text("Name: afs\nVersion: 1\n")
    project = tomllib.loads(block("[project.entry-points"))["project"]
    lines = [
        line
        for group, points in project["entry-points"].items()
        for line in (f"[{group}]", *(f"{name} = {value}" for name, value in points.items()))
    ]
    (folder / "afs-1.dist-info" / "entry_points.txt").write_text("\n".join(lines) + "\n")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return folder


@pytest.mark.slow(10)
def test_it_runs_live_by_its_name(installed: Path, tmp_path: Path) -> None:
    with commanded(tmp_path, "--virtual", "1x4", "--policy", "afs") as client:
        assert client.policy()["name"] == "afs"
        sent = [
            client.submit({"run": f"{sys.executable} -c 'print({gpus})'", "resources": {"gpus": gpus}})
            for gpus in (4, 2, 1)
        ]
        assert [handle.wait(PATIENCE).state for handle in sent] == ["completed"] * 3
