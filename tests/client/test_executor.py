"""Functions as jobs. The plane of these tests runs each job at once, in a real process."""

from __future__ import annotations

import importlib.util
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.client import fakeplane as fake
from tests.client.fakeplane import Reply, a_job

from dovetail.client.client import Client
from dovetail.client.executor import Executor, JobFailed
from dovetail.model.errors import InputError

DEADLINE = 60.0
HAS_CLOUDPICKLE = importlib.util.find_spec("cloudpickle") is not None


WORK = """
import os, signal, time

class Told(Exception):
    def __init__(self, first, second):
        super().__init__(f"{first} {second}")

def add(a, b=0):
    print("adding", a, b)
    return a + b

def fail(what):
    raise ValueError(f"no {what}")

def odd():
    raise Told(1, 2)

def leave():
    raise SystemExit(0)

def unpicklable():
    return lambda: 1

def where():
    return os.getcwd(), os.environ.get("DOVETAIL_ARRAY_INDEX")

class Training:
    def __init__(self, done=0):
        self.done = done

    def __call__(self, mark):
        if self.done:
            return self.done
        self.done = 41
        open(mark, "w").close()
        time.sleep(600)

    def checkpoint(self, mark):
        return Training(self.done + 1)
"""


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A module that both sides can import, from a folder that only the submitting Python has on its path."""
    (tmp_path / "work_of_tests.py").write_text(WORK)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    import work_of_tests  # type: ignore[import-not-found]

    yield work_of_tests
    del sys.modules["work_of_tests"]


class Runs:
    """Runs each submitted job to its end before the plane answers."""

    def __init__(self, plane: Any) -> None:
        self.requests: list[dict[str, Any]] = []
        self.jobs: dict[str, dict[str, Any]] = {}
        self.logs: dict[str, bytes] = {}
        self._plane = plane
        plane.on("POST", "/jobs", self._submit)

    def _submit(self, asked: Any) -> Any:
        request = asked.body
        self.requests.append(request)
        id = f"job{len(self.requests)}"
        first, _, last = request.get("array", "").partition("%")[0].partition("-")
        members = [(f"{id}_{i}", str(i)) for i in range(int(first), int(last) + 1)] if first else [(id, None)]
        for member, index in members:
            self.start(member, request, index)
        return Reply({"id": id, "ids": [m for m, _ in members][:100], "count": len(members)}, 201)

    def start(self, id: str, request: dict[str, Any], index: str | None, attempt: int = 1) -> None:
        env = {**os.environ, **request.get("env", {}), "DOVETAIL_ATTEMPT": str(attempt)}
        if index is not None:
            env["DOVETAIL_ARRAY_INDEX"] = index
        done = subprocess.run(
            request["command"], env=env, cwd=request["workdir"], capture_output=True, check=False
        )
        self.logs[id] = done.stdout + done.stderr
        state = "completed" if done.returncode == 0 else "failed"
        self.jobs[id] = a_job(id, state=state, exit_code=done.returncode, attempt=attempt)
        self._plane.on("GET", f"/jobs/{id}", lambda _: Reply(self.jobs[id]))
        self._plane.on("GET", f"/jobs/{id}/logs", lambda asked: self._log(id, asked))

    def _log(self, id: str, asked: Any) -> Any:
        piece = self.logs[id][int(asked.query["offset"]) :]
        return Reply(piece, headers={"X-Next-Offset": str(len(self.logs[id]))})


@pytest.fixture
def runs() -> Iterator[Runs]:
    with fake.fake_plane() as plane:
        yield Runs(plane)


@pytest.fixture
def executor(runs: Runs, tmp_path: Path) -> Iterator[Executor]:
    with Client(runs._plane.url) as client:
        yield Executor(
            queue="research", gpus="A100:1", time="4h", folder=tmp_path / "jobs", client=client, cpus=2
        )


def test_a_function_runs_as_a_job(executor: Executor, runs: Runs, work: Any, tmp_path: Path) -> None:
    job = executor.submit(work.add, 2, b=3)
    assert job.result(DEADLINE) == 5
    assert job.done()
    assert job.exception() is None
    assert "adding 2 3" in job.stdout()
    request = runs.requests[0]
    assert request["resources"] == {"accelerators": "A100:1", "cpus": 2}
    assert (request["queue"], request["time"], request["name"]) == ("research", "4h", "add")
    assert request["command"][0] == sys.executable
    assert request["workdir"] == str(tmp_path)


def test_map_submits_one_array(executor: Executor, runs: Runs, work: Any) -> None:
    jobs = executor.map(work.add, [1, 2, 3], [10, 20, 30], at_once=2)
    assert [job.result(DEADLINE) for job in jobs] == [11, 22, 33]
    assert [job.id for job in jobs] == ["job1_0", "job1_1", "job1_2"]
    assert runs.requests[0]["array"] == "0-2%2"
    assert executor.map(work.add, []) == []


def test_an_exception_of_the_function_is_raised_with_its_traceback(executor: Executor, work: Any) -> None:
    job = executor.submit(work.fail, "luck")
    with pytest.raises(JobFailed, match="raised ValueError") as caught:
        job.result(DEADLINE)
    assert isinstance(caught.value.__cause__, ValueError)
    assert str(caught.value.__cause__) == "no luck"
    assert "in fail" in caught.value.remote_traceback
    assert "in fail" in str(caught.value)
    assert "ValueError: no luck" in job.stdout()


def test_an_exception_that_cannot_be_pickled_is_reported_by_name(executor: Executor, work: Any) -> None:
    failed = executor.submit(work.odd).exception(DEADLINE)
    assert failed is not None
    assert failed.__cause__ is None
    assert "Told: 1 2" in failed.remote_traceback


def test_a_job_without_a_result_has_failed(executor: Executor, work: Any) -> None:
    with pytest.raises(JobFailed, match="left no result"):
        executor.submit(work.leave).result(DEADLINE)


@pytest.mark.skipif(HAS_CLOUDPICKLE, reason="cloudpickle sends these")
def test_a_function_that_cannot_be_pickled_is_refused_before_submission(
    executor: Executor, runs: Runs, work: Any
) -> None:
    for function in (lambda: 1, work.unpicklable()):
        with pytest.raises(InputError, match="cloudpickle"):
            executor.submit(function)
    assert runs.requests == []
    with pytest.raises(JobFailed, match="raised Unpicklable"):
        executor.submit(work.unpicklable).result(DEADLINE)


def test_the_result_of_an_earlier_attempt_does_not_count(executor: Executor, runs: Runs, work: Any) -> None:
    job = executor.submit(work.fail, "luck")
    runs.jobs["job1"] = a_job("job1", state="node-failed", attempt=2, detail="n0 went away")
    failed = job.exception(DEADLINE)
    assert failed is not None
    assert "ended as node-failed: n0 went away" in str(failed)
    runs.start("job1", runs.requests[0], None, attempt=3)
    failed = job.exception(DEADLINE)
    assert failed is not None
    assert isinstance(failed.__cause__, ValueError)


def test_jobs_run_in_the_folder_of_the_submission(executor: Executor, work: Any, tmp_path: Path) -> None:
    assert executor.submit(work.where).result(DEADLINE) == (str(tmp_path), None)
    assert [job.result(DEADLINE)[1] for job in executor.map(work.where, *[])] == []


def test_a_failed_submission_is_an_error(executor: Executor, runs: Runs, work: Any) -> None:
    runs._plane.on("POST", "/jobs", fake.problem(422, "no node has 64 GPUs"))
    with pytest.raises(InputError, match="64 GPUs"):
        executor.submit(work.add, 1)


SCRIPT = """
import sys
import dovetail

def double(x):
    return 2 * x

{guard}
executor = dovetail.Executor(gpus=0, folder="jobs", client=dovetail.Client({url!r}))
job = executor.submit(double, 21)
print(job.result(60) if job.exception(60) is None else job.exception().remote_traceback)
"""


@pytest.mark.skipif(HAS_CLOUDPICKLE, reason="cloudpickle sends these by value")
def test_functions_of_a_script_are_sent_by_name(runs: Runs, tmp_path: Path) -> None:
    main = textwrap.dedent(SCRIPT).format(guard='if __name__ != "__main__": sys.exit', url=runs._plane.url)
    guarded = main.replace('if __name__ != "__main__": sys.exit', 'if __name__ == "__main__":')
    head, _, tail = guarded.partition('if __name__ == "__main__":\n')
    (tmp_path / "main.py").write_text(head + 'if __name__ == "__main__":\n' + textwrap.indent(tail, "    "))
    done = subprocess.run(
        [sys.executable, "main.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stdout == "42\n", done.stderr


@pytest.mark.skipif(HAS_CLOUDPICKLE, reason="cloudpickle sends these by value")
def test_a_script_that_submits_when_it_is_loaded_is_refused(runs: Runs, tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(textwrap.dedent(SCRIPT).format(guard="", url=runs._plane.url))
    done = subprocess.run(
        [sys.executable, "main.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert 'under if __name__ == "__main__"' in done.stdout, done.stderr
    assert len(runs.requests) == 1


def test_a_callable_with_a_checkpoint_continues_in_the_next_attempt(work: Any, tmp_path: Path) -> None:
    from dovetail.client.function_runner import dumped, result_file, task_file

    mark = tmp_path / "running"
    task_file(tmp_path, 0).write_bytes(dumped((work.Training(), (str(mark),), {})))
    (tmp_path / "context.json").write_text(f'{{"path": ["{tmp_path}"], "main": null}}')
    command = [sys.executable, "-m", "dovetail.client.function_runner", str(tmp_path)]
    first = subprocess.Popen(command)
    until = time.monotonic() + DEADLINE
    while not mark.exists():
        assert time.monotonic() < until
        time.sleep(0.02)
    first.send_signal(signal.SIGTERM)
    assert first.wait(DEADLINE) == 75
    assert not result_file(tmp_path, 0).exists()
    subprocess.run(command, check=True)
    outcome = pickle.loads(result_file(tmp_path, 0).read_bytes())
    assert pickle.loads(outcome["value"]) == 42
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")], (
        "something half-written is left"
    )
