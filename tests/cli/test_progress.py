"""Progress of long commands: one line, on a terminal only, with the time that is left."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.control.harness import free_port

from dovetail.cli.progress import AFTER, Line

FROM_THE_START = (
    "import sys; from dovetail.cli import progress; progress.AFTER = progress.EVERY = 0.0; "
    "from dovetail.cli.main import main; sys.argv[0] = 'dovetail'; main()"
)
JOBS = "\n".join(["id,submit,gpus,duration", *(f"j{i},{i},1,30" for i in range(2_000))]) + "\n"


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_quick_command_shows_nothing() -> None:
    out, clock = io.StringIO(), Clock()
    line = Line("simulating", out, clock)
    for step in range(100):
        clock.now = 100 + AFTER * step / 101
        line.tell(step / 100)
    line.clear()
    assert out.getvalue() == ""


def test_time_left_follows_from_the_share_that_is_done() -> None:
    out, clock = io.StringIO(), Clock()
    line = Line("simulating", out, clock)
    clock.now += 30
    line.tell(0.25)
    assert out.getvalue() == "\rsimulating: 25 %, 1 min 30 s left\x1b[K"
    line.tell(0.26)  # in the same moment: not drawn
    clock.now += 30
    line.again()
    assert out.getvalue().count("\r") == 2
    line.clear()
    assert out.getvalue().endswith("\r\x1b[K")


def test_before_there_is_anything_to_go_by_the_time_so_far_is_shown() -> None:
    out, clock = io.StringIO(), Clock()
    line = Line("migrating", out, clock)
    clock.now += 75
    line.again()
    assert out.getvalue() == "\rmigrating: 1 min 15 s so far\x1b[K"


def on_terminal(folder: Path, *words: str) -> tuple[str, str, int]:
    """What a command shows on a terminal, which takes stderr only; what it prints; its exit code."""
    master, slave = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", FROM_THE_START, *words], stdout=subprocess.PIPE, stderr=slave, cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")},
    ) as process:  # fmt: skip
        os.close(slave)
        assert process.stdout is not None
        shown = b""
        while True:
            try:
                data = os.read(master, 65_536)
            except OSError:
                break
            if not data:
                break
            shown += data
        printed = process.stdout.read().decode()
        code = process.wait()
    os.close(master)
    return shown.decode(), printed, code


COMMANDS = {
    "simulate jobs.csv --cluster 1x8 --policy fifo": "fifo, jobs that have arrived",
    "compare jobs.csv --cluster 1x8 --policies fifo,sjf --workers 1": "of 2 runs",
    "compare jobs.csv --cluster 1x8 --policies fifo,sjf --workers 2": "of 2 runs",
    "trace convert jobs.csv out.jsonl": "writing out.jsonl",
    "trace info jobs.csv": "reading jobs.csv",
    "trace generate --like philly --jobs 3000 --gpus 16 --load 0.3 -o made.csv": "writing made.csv",
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_long_command_shows_how_far_it_is(tmp_path: Path, command: str) -> None:
    (tmp_path / "jobs.csv").write_text(JOBS)
    shown, printed, code = on_terminal(tmp_path, *command.split())
    assert (code, bool(printed)) == (0, True), shown
    assert re.search(rf"{re.escape(COMMANDS[command])}: \d+ %, .* left", shown), shown
    assert shown.endswith("\r\x1b[K")  # the line is gone at the end
    quietly, _, code = on_terminal(tmp_path, *command.split(), "--quiet")
    assert (code, quietly) == (0, "")


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.split()[0] in ("simulate", "compare")])
def test_nothing_is_shown_to_programs(tmp_path: Path, command: str) -> None:
    (tmp_path / "jobs.csv").write_text(JOBS)
    assert on_terminal(tmp_path, *command.split(), "--json")[0] == ""
    done = subprocess.run(
        [sys.executable, "-c", FROM_THE_START, *command.split()],
        capture_output=True, text=True, cwd=tmp_path, check=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")},
    )  # fmt: skip
    assert done.stderr == ""


def test_a_migration_shows_how_far_it_is(tmp_path: Path) -> None:
    """The tables of a new database are made by the same steps."""
    master, slave = pty.openpty()
    words = ("up", "--virtual", "1x1:A100", "--port", str(free_port()), "--state", str(tmp_path / "state"))
    with subprocess.Popen(
        [sys.executable, "-c", FROM_THE_START, *words], stdout=slave, stderr=slave, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")},
    ) as process:  # fmt: skip
        os.close(slave)
        shown = b""
        try:
            while data := os.read(master, 65_536):
                shown += data
                if b"dovetail is up" in shown:
                    process.terminate()
        except OSError:
            pass  # it has ended
    os.close(master)
    before, _, _ = shown.partition(b"dovetail is up")
    assert re.search(rb"migrating the database, step \d of \d: \d+ %, [^\r]* left", before), shown
    assert before.endswith(b"\r\x1b[K"), shown  # the line is gone
