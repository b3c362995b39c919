"""The engine on a full disk: ends are recorded, stops are obeyed, and starts wait for space."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.engines.conftest import Bench, bash, belonging_to, eventually

from dovetail.model.units import SECOND


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Bench]:
    disk = tmp_path / "disk"
    disk.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)]
    try:
        subprocess.run(words, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError) as problem:
        pytest.skip(f"needs to mount a small file system: {problem}")
    bench = Bench(disk / "state" / "attempts")
    yield bench
    bench.engine.close()
    eventually(lambda: not belonging_to(bench.root))
    subprocess.run(["umount", "-l", disk], check=True)


def fill(bench: Bench) -> Path:
    file = bench.root.parent / "filler"
    with file.open("ab", buffering=0) as filler:
        try:
            while True:
                filler.write(b"x" * 4096)
        except OSError:
            pass
    assert os.statvfs(file).f_bfree == 0
    return file


def test_an_end_is_recorded_on_a_full_disk(small: Bench, tmp_path: Path) -> None:
    small.engine.start(bash(f"echo up; until [ -e {tmp_path}/go ]; do sleep 0.05; done; exit 3"))
    small.wait_for_output("up")
    fill(small)
    (tmp_path / "go").touch()
    assert small.end()[:2] == (3, "exited")
    eventually(lambda: not belonging_to(small.root))
    assert small.restart().poll()[0].exit[:2] == (3, "exited")
    assert not list(small.folder().glob(".exit*"))


def test_a_job_is_stopped_on_a_full_disk(small: Bench) -> None:
    small.engine.start(bash("echo up; sleep 300"))
    small.wait_for_output("up")
    fill(small)
    small.engine.stop("j", 1, "cancelled", 20 * SECOND)
    assert small.end().cause in ("stopped", "lost"), "the order could not be written; the signal does"


def test_a_start_waits_for_space(small: Bench) -> None:
    file = fill(small)
    small.engine.start(bash("echo ran"))
    small.engine.start(bash("echo ran", job="k"))
    assert small.engine.poll() == []
    assert small.engine.known() == {("j", 1), ("k", 1)}
    small.engine.stop("k", 1, "cancelled", 0)
    assert small.end("k")[:3] == (143, "stopped", "told to stop before its command ran (cancelled)")
    file.unlink()
    assert small.end().code == 0
    assert small.log() == "ran\n"
