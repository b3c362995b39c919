"""What fingers type by habit, on a real plane: docker's `-it`, a command without `--`, `logs` of an array."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.control.harness import PATIENCE, commanded, eventually

DOVETAIL = (sys.executable, "-m", "dovetail.cli")


class Place(NamedTuple):
    """A real plane, and a folder in which commands are typed."""

    client: Any
    folder: Path
    env: dict[str, str]

    def type(self, *words: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*DOVETAIL, *words], input=stdin if stdin is not None else "", capture_output=True, text=True,
            cwd=self.folder, env=self.env, check=False, timeout=PATIENCE,
        )  # fmt: skip

    def shell(self, text: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """A line of a shell that has Slurm's commands on its PATH."""
        path = f"{self.folder / 'slurm'}:{self.env['PATH']}"
        return subprocess.run(
            ["bash", "-c", text], input=stdin, capture_output=True, text=True, cwd=self.folder,
            env={**self.env, "PATH": path}, check=False, timeout=PATIENCE,
        )  # fmt: skip

    def jobs(self) -> list[Any]:
        return list(self.client.jobs())


@contextmanager
def place_in(base: Path) -> Iterator[Place]:
    folder = base / "work"
    folder.mkdir()
    source = str(Path(__file__).parents[2] / "src")
    env = {**os.environ, "DOVETAIL_STATE": str(base / "state"), "PYTHONPATH": source, "TERM": "xterm"}
    for name in ("DOVETAIL_URL", "DOVETAIL_TOKEN"):
        env.pop(name, None)
    with commanded(base, "--virtual", "2x4:A100") as client:
        yield Place(client, folder, env)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with place_in(tmp_path_factory.mktemp("habits")) as made:
        yield made


# --- run -i ----------------------------------------------------------------------------------------


def test_run_passes_standard_input_on(place: Place) -> None:
    done = place.type("run", "-i", "--", "sort", stdin="b\na\n")
    assert (done.returncode, done.stdout) == (0, "a\nb\n"), done.stderr


def test_a_large_input_arrives_whole(place: Place) -> None:
    """More than all buffers on the way hold, to a command that reads it slowly."""
    text = "0123456789abcde\n" * 200_000
    done = place.type("run", "-i", "--", "bash", "-c", "sleep 0.5; cksum", stdin=text)
    expected = subprocess.run(["cksum"], input=text, capture_output=True, text=True, check=True).stdout
    assert (done.returncode, done.stdout) == (0, expected), done.stderr


def test_a_command_need_not_read_its_input(place: Place) -> None:
    done = place.type("run", "-i", "--", "bash", "-c", "exec <&-; echo done; exit 3", stdin="x\n" * 100_000)
    assert (done.returncode, done.stdout) == (3, "done\n"), done.stderr


def test_without_i_there_is_no_input(place: Place) -> None:
    done = place.type("run", "--", "cat", stdin="not for the job\n")
    assert (done.returncode, done.stdout) == (0, "")


def test_input_for_several_processes_is_refused(place: Place) -> None:
    before = len(place.jobs())
    for words in (("--nodes", "2"), ("--array", "0-3"), ("--per-gpu", "--gpus", "2")):
        done = place.type("run", "-i", *words, "--", "cat")
        assert (done.returncode, done.stdout) == (2, "")
        assert words[0] in done.stderr
        assert done.stderr.count("\n") == 1
    assert len(place.jobs()) == before


# --- run -t ----------------------------------------------------------------------------------------


class Terminal:
    """A command under a terminal of its own."""

    def __init__(self, place: Place, *words: str, rows: int = 33, columns: int = 99) -> None:
        self.pid, self.master = pty.fork()
        if not self.pid:
            os.chdir(place.folder)
            os.execve(DOVETAIL[0], [*DOVETAIL, *words], place.env)
        self.resize(rows, columns)
        self.seen = b""

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, keys: bytes) -> None:
        os.write(self.master, keys)

    def until(self, text: bytes) -> None:
        """Read until this was printed."""
        end = time.monotonic() + PATIENCE
        while text not in self.seen:
            assert time.monotonic() < end, self.seen
            assert self._read(), self.seen

    def _read(self) -> bool:
        ready, _, _ = select.select([self.master], [], [], 0.2)
        if not ready:
            return True
        try:
            data = os.read(self.master, 65_536)
        except OSError:
            return False
        self.seen += data
        return bool(data)

    def end(self) -> int:
        """Its exit code, once it has ended and all that it printed was read."""
        deadline = time.monotonic() + PATIENCE
        while self._read():
            assert time.monotonic() < deadline, self.seen
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    @property
    def text(self) -> str:
        return self.seen.decode().replace("\r\n", "\n")


ASKS = "import os; print(os.isatty(0), os.isatty(1), *os.get_terminal_size()); print('got', input('> '))"


@pytest.mark.parametrize("flags", [("-it",), ("-t",), ("-i", "-t"), ("--pty",)])
def test_run_gives_the_command_a_terminal(place: Place, flags: tuple[str, ...]) -> None:
    terminal = Terminal(place, "run", *flags, "--gpus", "1", "--", sys.executable, "-c", ASKS)
    terminal.until(b"> ")
    terminal.type(b"hello\n")
    assert terminal.end() == 0, terminal.text
    assert "True True 99 33\n" in terminal.text
    assert "got hello\n" in terminal.text
    newest = place.jobs()[0]
    assert (newest.state, newest.gpus) == ("completed", 1)
    assert "got hello" in place.type("logs", newest.id).stdout


def test_keys_go_to_the_job_and_so_does_its_exit_code(place: Place) -> None:
    waits = "trap 'echo interrupted; exit 7' INT; echo ready; while :; do sleep 0.1; done"
    terminal = Terminal(place, "run", "-it", "--", "bash", "-c", waits)
    terminal.until(b"ready")
    terminal.type(b"\x03")
    assert terminal.end() == 7, terminal.text
    assert "interrupted" in terminal.text
    assert place.jobs()[0].state == "failed"


def test_a_terminal_that_changes_its_size_is_followed(place: Place) -> None:
    waits = "trap 'stty size; exit' WINCH; echo ready; while :; do sleep 0.1; done"
    terminal = Terminal(place, "run", "-it", "--", "bash", "-c", waits)
    terminal.until(b"ready")
    terminal.resize(40, 120)
    assert terminal.end() == 0
    assert "40 120" in terminal.text


def test_a_terminal_that_is_closed_ends_its_job(place: Place) -> None:
    terminal = Terminal(place, "run", "-it", "--", "bash", "-c", "echo ready; exec sleep 1000")
    terminal.until(b"ready")
    newest = place.jobs()[0].id
    os.kill(terminal.pid, signal.SIGKILL)
    os.waitpid(terminal.pid, 0)
    ended = eventually(lambda: (job := place.client.job_info(newest)).done and job, "the end of the job")
    assert (ended.state, ended.exit_code, ended.attempt) == ("failed", 129, 1)
    os.close(terminal.master)


def test_the_terminal_is_as_before_afterwards(place: Place) -> None:
    terminal = Terminal(place, "run", "-it", "--", "true")
    before = termios.tcgetattr(terminal.master)
    terminal.end()
    assert termios.tcgetattr(terminal.master)[3] == before[3]


def test_a_command_that_is_not_there_is_told_in_the_terminal(place: Place) -> None:
    terminal = Terminal(place, "run", "-it", "--", "no-such-program")
    assert terminal.end() == 127
    assert "no-such-program" in terminal.text


def test_t_needs_a_terminal(place: Place) -> None:
    before = len(place.jobs())
    done = place.type("run", "-it", "--", "bash")
    assert (done.returncode, done.stdout) == (2, "")
    assert "-t needs a terminal" in done.stderr
    assert len(place.jobs()) == before


def test_t_with_a_number_is_a_time_limit(place: Place) -> None:
    done = place.type("run", "-t", "45m", "--detach", "--", "true")
    assert done.returncode == 0, done.stderr
    assert place.client.job_info(done.stdout.strip()).time_limit == 45 * 60


# --- output ----------------------------------------------------------------------------------------


def test_what_python_prints_is_in_the_log_at_once(place: Place) -> None:
    program = "import time; print('begun'); time.sleep(1000)"
    id = place.type("submit", "--parsable", sys.executable, "-c", program).stdout.strip()
    eventually(lambda: place.client.job_info(id).attempt and "begun" in place.type("logs", id).stdout)
    assert place.client.job_info(id).state == "running"
    place.client.cancel(id)
    own = place.type("run", "--env", "PYTHONUNBUFFERED=", "--", "bash", "-c", "echo [$PYTHONUNBUFFERED]")
    assert own.stdout == "[]\n"


def test_logs_of_an_array_are_those_of_its_members(place: Place) -> None:
    run = "echo begin; echo end of $DOVETAIL_ARRAY_INDEX"
    id = place.type("submit", "--parsable", "--wait", "--array", "0-2", "--wrap", run).stdout.strip()
    done = place.type("logs", id)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "".join(f"==> {id}_{i} <==\nbegin\nend of {i}\n" for i in range(3))
    assert place.type("logs", id, "--tail", "1").stdout.count("begin") == 0
    followed = place.type("logs", "-f", id)
    assert sorted(followed.stdout.splitlines()) == sorted(
        f"[{i}] {line}" for i in range(3) for line in ("begin", f"end of {i}")
    )
    assert place.type("logs", id, "--rank", "0").returncode == 2


def test_logs_of_an_array_are_followed_until_its_last_job_ends(place: Place) -> None:
    id = place.type("submit", "--parsable", "--array", "0-3%1", "--wrap", "echo one line").stdout.strip()
    done = place.type("logs", "-f", id)
    assert sorted(done.stdout.splitlines()) == [f"[{i}] one line" for i in range(4)]


def test_logs_of_a_job_that_could_not_start_say_why(place: Place) -> None:
    id = place.type("submit", "--parsable", "--", "no-such-program").stdout.strip()
    eventually(lambda: place.client.job_info(id).done)
    for words in (("logs", id), ("logs", "-f", id)):
        done = place.type(*words)
        assert (done.returncode, done.stdout) == (0, "")
        assert f"{id} could not be started" in done.stderr
        assert "no-such-program" in done.stderr


def test_logs_of_a_job_that_never_started_say_so(place: Place) -> None:
    id = place.type("submit", "--parsable", "--hold", "true").stdout.strip()
    assert "has not started yet" in place.type("logs", id).stderr
    place.client.cancel(id)
    for words in (("logs", id), ("logs", "-f", id)):
        done = place.type(*words)
        assert (done.returncode, done.stdout) == (2, "")
        assert f"{id} never started; it is cancelled" in done.stderr


def test_figures_are_for_people(place: Place) -> None:
    id = place.type("submit", "--parsable", "--wait", "--gpus", "1", "--mem", "1G", "true").stdout.strip()
    said = place.type("describe", id).stdout
    assert re.search(r"used +(<0\.001|0\.\d+) GPU h\n", said), said
    assert "1 GiB of memory" in said
    everything = said + place.type("history", "-o", "wide").stdout + place.type("report").stdout
    assert not re.search(r"\d[eE][-+]\d", everything), everything  # as %g writes; an id may hold 3e4


# --- submit ----------------------------------------------------------------------------------------


def test_a_command_needs_no_dashes(place: Place) -> None:
    (place.folder / "train.py").write_text("import sys; print('trains', sys.argv[1:])\n")
    done = place.type("submit", "--parsable", "--wait", "--gpus", "1", "python3", "train.py", "--lr", "3")
    assert done.returncode == 0, done.stderr
    job = place.client.job_info(done.stdout.strip())
    assert (job.name, job.gpus) == ("train.py", 1)
    assert place.type("logs", job.id).stdout == "trains ['--lr', '3']\n"


def test_a_program_is_told_from_a_job_file(place: Place) -> None:
    """What it says to type works."""
    (place.folder / "count.py").write_text("import sys; print('counted', *sys.argv[1:])\n")
    before = len(place.jobs())
    for verb in ("submit", "plan", "run"):
        done = place.type(verb, "--gpus", "1", "count.py", "--to", "3")
        assert (done.returncode, done.stdout) == (2, "")
        assert f"write dovetail {verb} --gpus 1 -- python count.py --to 3\n" in done.stderr
        assert done.stderr.count("\n") == 1
    assert len(place.jobs()) == before
    advised = done.stderr.partition("write dovetail ")[2].split()
    python = {"python": sys.executable}
    assert place.type(*(python.get(word, word) for word in advised)).stdout == "counted --to 3\n"
