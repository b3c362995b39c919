from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from dovetail.engines.contract import Exit, Launch, NodeShare
from dovetail.engines.local.engine import LocalEngine
from dovetail.model.units import SECOND

TIMEOUT = 60.0
T = TypeVar("T")


class Bench:
    """A local engine, used as a plane uses it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.engine = leading(LocalEngine(root))

    def restart(self, engine: LocalEngine | None = None) -> LocalEngine:
        """Replace the engine by another over the same folder, as a restarted plane does."""
        self.engine.close()
        self.engine = leading(engine or LocalEngine(self.root))
        return self.engine

    def folder(self, job: str = "j", epoch: int = 1) -> Path:
        return self.root / job / str(epoch)

    def run(self, launch: Launch) -> Exit:
        self.engine.start(launch)
        return self.end(launch.job, launch.epoch)

    def end(self, job: str = "j", epoch: int = 1) -> Exit:
        """Wait for the end of an attempt, as a plane does."""
        until = time.monotonic() + TIMEOUT
        while time.monotonic() < until:
            for report in self.engine.poll():
                if (report.job, report.epoch) == (job, epoch):
                    return report.exit
            self.engine.wait(0.5)
        raise AssertionError(f"{job} attempt {epoch} did not end; its log: {self.log(job, epoch)!r}")

    def log(self, job: str = "j", epoch: int = 1) -> str:
        return "".join(file.read_text() for file in self.engine.logs(job, epoch))

    def wait_for_output(self, text: str, job: str = "j", epoch: int = 1) -> None:
        """Wait until the output of an attempt contains a text."""
        eventually(lambda: text in self.log(job, epoch))


def leading(engine: LocalEngine) -> LocalEngine:
    """The engine of a plane that has just taken the lead."""
    engine.lead(engine.newest_term() + 1)
    return engine


def eventually(look: Callable[[], T], seconds: float = TIMEOUT) -> T:
    """Call `look` until it returns something true, and return that."""
    end = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < end, f"nothing found in {seconds:g} s"
        time.sleep(0.01)
    return found


def bash(text: str, job: str = "j", epoch: int = 1, **more: object) -> Launch:
    """A launch of a bash script, by default on one node with two devices."""
    fields: dict[str, object] = {"shares": (NodeShare("n0", ("0", "1")),), "grace": 20 * SECOND, **more}
    return Launch(job=job, epoch=epoch, command=("/bin/bash", "-c", text), **fields)  # type: ignore[arg-type]


def belonging_to(root: Path) -> list[str]:
    """The processes of all attempts below this folder, and their supervisors."""
    mark, found = os.fsencode(root), []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            state = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[0]
            words = Path(f"/proc/{name}/cmdline").read_bytes()
            env = Path(f"/proc/{name}/environ").read_bytes()
        except OSError:
            continue
        if state != "Z" and (mark in words or b"DOVETAIL_RUN_DIR=" + mark in env):
            found.append(f"{name} {words.decode(errors='replace')}")
    return found


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    root = tmp_path / "state" / "attempts"
    bench = Bench(root)
    yield bench
    for job, epoch in bench.engine.known():
        bench.engine.stop(job, epoch, "test over", 0)
    for job, epoch in bench.engine.known():
        bench.end(job, epoch)
        bench.engine.forget(job, epoch)
    assert bench.engine.known() == set()
    bench.engine.close()
    eventually(lambda: not belonging_to(root))
