"""`dovetail.job` in a training script: with a plane, without one, and when writing fails."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

DEADLINE = 60.0


def script(text: str) -> list[str]:
    return [sys.executable, "-c", "import time, os\nfrom dovetail import job\n" + textwrap.dedent(text)]


def environment(folder: Path | None, **more: str) -> dict[str, str]:
    names = ("RANK", "NODE_RANK", "WORLD_SIZE", "LOCAL_RANK")
    env = {k: v for k, v in os.environ.items() if not k.startswith("DOVETAIL_") and k not in names}
    if folder is not None:
        env |= {"DOVETAIL_RUN_DIR": str(folder), "DOVETAIL_JOB_ID": "k3v9q2", "DOVETAIL_ATTEMPT": "3"}
    return env | more


def run(text: str, folder: Path | None, cwd: Path, **more: str) -> str:
    done = subprocess.run(
        script(text), env=environment(folder, **more), cwd=cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def reports(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "reports.jsonl").read_text().splitlines()]


def test_it_imports_little_and_only_the_standard_library() -> None:
    code = (
        "import sys; before = set(sys.modules); from dovetail import job; import dovetail.client.job\n"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "print(sorted(new - set(sys.stdlib_module_names)))\n"
        "heavy = ('http', 'signal', 'pathlib', 'subprocess', 'dovetail.model')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-S", "-c", f"import sys; sys.path[:0] = {sys.path!r}\n{code}"],
                          capture_output=True, text=True, check=True)  # fmt: skip
    assert done.stdout.splitlines() == ["['dovetail']", "[]"]


def test_without_a_plane_the_functions_do_nothing(tmp_path: Path) -> None:
    output = run(
        """
        job.report(step=1, loss=0.5)
        job.checkpointed(1)
        job.finished()
        print(job.preemption_requested(), repr(job.stop_reason()), job.attempt(), job.restart_count())
        print(job.time_left(), job.time_limit_near(), repr(job.job_id()))
        """,
        None,
        tmp_path,
    )
    assert output.split("\n") == ["False '' 1 0", "None False ''", ""]
    assert list(tmp_path.iterdir()) == []


def test_without_a_plane_checkpoints_go_to_the_current_folder(tmp_path: Path) -> None:
    """A script that saves works on a laptop as it does in a job."""
    run("(job.checkpoint_dir() / 'last.pt').write_text('weights')", None, tmp_path)
    assert (tmp_path / "checkpoints" / "last.pt").read_text() == "weights"
    assert run("print((job.checkpoint_dir() / 'last.pt').exists())", None, tmp_path) == "True\n"


def test_reports_are_lines_with_a_time_and_a_speed(tmp_path: Path) -> None:
    run(
        """
        for step in range(4):
            job.report(step=step, loss=1.0 / (step + 1), epoch=0, samples=8 * step, lr=1e-3)
            time.sleep(0.15)
        job.checkpointed(3, path="last.pt")
        """,
        tmp_path,
        tmp_path,
    )
    lines = reports(tmp_path)
    assert [line.get("step") for line in lines] == [0, 1, 2, 3, 3]
    assert lines[3]["loss"] == 0.25
    assert (lines[3]["samples"], lines[3]["lr"], lines[3]["epoch"]) == (24, 1e-3, 0)
    assert 0 < lines[3]["steps_per_second"] < 7
    assert lines[4]["checkpoint"] is True
    assert lines[4]["path"] == "last.pt"
    assert abs(lines[0]["time"] - time.time()) < 3600


def test_at_most_ten_reports_a_second_are_written_and_always_the_last(tmp_path: Path) -> None:
    took = run(
        """
        began = time.monotonic()
        for step in range(20_000):
            job.report(step=step)
        print(time.monotonic() - began)
        """,
        tmp_path,
        tmp_path,
    )
    lines = reports(tmp_path)
    assert lines[-1]["step"] == 19_999
    assert len(lines) <= 10 * float(took) + 3


def test_only_the_first_process_reports(tmp_path: Path) -> None:
    text = "job.report(step=1)"
    run(text, tmp_path, tmp_path, RANK="1")
    run(text, tmp_path, tmp_path, NODE_RANK="2")
    assert not (tmp_path / "reports.jsonl").exists()
    run(text, tmp_path, tmp_path, RANK="0", NODE_RANK="0")
    assert len(reports(tmp_path)) == 1


def test_odd_values_and_a_missing_folder_raise_nothing(tmp_path: Path) -> None:
    run(
        """
        class Tensor:
            def item(self): return 0.25
            def detach(self): return self
        class Odd:
            def __float__(self): raise RuntimeError("no")
            def __str__(self): raise RuntimeError("no")
        job.report(step=1, loss=float("nan"), grad=float("inf"), tensor=Tensor(), text="ü\\n", none=None)
        time.sleep(0.12)
        job.report(step=2, odd=Odd())
        job.report(step="x", things=[1, 2])
        job.report()
        """,
        tmp_path,
        tmp_path,
    )
    first = reports(tmp_path)[0]
    assert (first["loss"], first["grad"], first["tensor"], first["text"]) == ("nan", "inf", 0.25, "ü\n")
    text = "job.report(step=1)\njob.checkpointed(1)\njob.finished()\nprint(job.preemption_requested())"
    assert run(text, tmp_path / "gone", tmp_path) == "False\n"


def test_attempts_and_time(tmp_path: Path) -> None:
    text = (
        "print(job.attempt(), job.restart_count(), job.job_id())\n"
        "print(0 < job.time_left() < 60, job.checkpoint_dir())"
    )
    folder = tmp_path / "a" / "b"
    output = run(
        text,
        tmp_path,
        tmp_path,
        DOVETAIL_DEADLINE=f"{time.time() + 50:.3f}",
        DOVETAIL_CHECKPOINT_DIR=str(folder),
    )
    assert output == f"3 2 k3v9q2\nTrue {folder}\n"
    assert folder.is_dir()


def test_finished_makes_a_file(tmp_path: Path) -> None:
    run("job.finished()", tmp_path, tmp_path)
    assert (tmp_path / "finished").exists()


LOOP = """
print("ready", flush=True)
while not job.preemption_requested():
    time.sleep(0.01)
print(job.stop_reason(), flush=True)
job.checkpointed(7)
"""


def started(text: str, folder: Path, **more: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        script(text), env=environment(folder, **more), stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_a_stop_order_in_the_folder_is_noticed(tmp_path: Path) -> None:
    process = started(LOOP, tmp_path)
    (tmp_path / "stop.json.new").write_text(json.dumps({"why": "preempted", "at": 1, "grace": 30}))
    (tmp_path / "stop.json.new").rename(tmp_path / "stop.json")
    output, _ = process.communicate(timeout=DEADLINE)
    assert (output, process.returncode) == ("preempted\n", 0)
    assert reports(tmp_path)[-1]["step"] == 7


def test_sigterm_is_noticed_by_a_script_that_asks(tmp_path: Path) -> None:
    process = started("job.preemption_requested()\n" + LOOP, tmp_path)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=DEADLINE)
    assert (output, process.returncode) == ("stopped\n", 0)


def test_sigterm_ends_a_script_that_never_asks(tmp_path: Path) -> None:
    process = started('job.report(step=1)\nprint("ready", flush=True)\ntime.sleep(600)', tmp_path)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=DEADLINE)
    assert process.returncode == -signal.SIGTERM


def test_a_handler_of_the_script_is_kept(tmp_path: Path) -> None:
    text = """
    import signal
    def own(*_):
        print("own", flush=True)
        os._exit(3)
    signal.signal(signal.SIGTERM, own)
    job.preemption_requested()
    print("ready", flush=True)
    time.sleep(600)
    """
    process = started(text, tmp_path)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=DEADLINE)
    assert (output, process.returncode) == ("own\n", 3)


def test_sigterm_ends_a_forked_child(tmp_path: Path) -> None:
    text = """
    job.catch_term()
    import signal
    ready, says_ready = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(says_ready, b".")
        time.sleep(600)
        os._exit(0)
    os.read(ready, 1)
    os.kill(child, signal.SIGTERM)
    _, status = os.waitpid(child, 0)
    print(os.WTERMSIG(status) == signal.SIGTERM, job.preemption_requested())
    """
    assert run(text, tmp_path, tmp_path) == "True False\n"


def test_the_warning_before_the_time_limit_is_noticed(tmp_path: Path) -> None:
    text = """
    job.time_limit_near()
    print("ready", flush=True)
    while not job.time_limit_near():
        time.sleep(0.01)
    print(job.preemption_requested(), flush=True)
    """
    process = started(text, tmp_path)
    process.send_signal(signal.SIGUSR1)
    output, _ = process.communicate(timeout=DEADLINE)
    assert (output, process.returncode) == ("False\n", 0)


def test_asking_reads_at_most_ten_files_a_second(tmp_path: Path) -> None:
    text = """
    import builtins
    opened = 0
    real = builtins.open
    def counting(*args, **more):
        global opened
        opened += 1
        return real(*args, **more)
    builtins.open = counting
    began = time.monotonic()
    for _ in range(50_000):
        job.preemption_requested()
    print(opened <= 10 * (time.monotonic() - began) + 2)
    """
    assert run(text, tmp_path, tmp_path) == "True\n"


@pytest.mark.parametrize("text", ["{", "[]", "5", ""])
def test_an_unreadable_stop_order_is_a_stop_order(tmp_path: Path, text: str) -> None:
    (tmp_path / "stop.json").write_text(text)
    assert (
        run("print(job.preemption_requested(), bool(job.stop_reason()))", tmp_path, tmp_path) == "True True\n"
    )
