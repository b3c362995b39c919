"""`dovetail.Executor`: run Python functions as jobs, much as with submitit or concurrent.futures.

    executor = dovetail.Executor(queue="research", gpus="A100:1", time="4h")
    job = executor.submit(train, lr=3e-4)
    jobs = executor.map(train, [1e-3, 3e-4])       # an array
    print(job.result(), [job.result() for job in jobs])

A function of a module is sent by name, so the job must see the same files. So is a function of the script
that runs; its calls of `submit` then belong under `if __name__ == "__main__"`. Lambdas and nested
functions need cloudpickle. Arguments and results are files in a folder that both sides see.

A callable object with a method `checkpoint` can save its work when it is preempted: `checkpoint(*args,
**kwargs)` is called, and the next attempt runs what it returns (a callable; None for the object itself).
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import sys
import sysconfig
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from dovetail.client.client import Client, JobHandle
from dovetail.client.documents import ACTIVE, Why
from dovetail.client.function_runner import LOADING, Unpicklable, dumped, replace, result_file, task_file
from dovetail.model.errors import DovetailError, InputError

RESOURCE_KEYS = ("cpus", "memory", "gpu_memory")


class JobFailed(DovetailError):
    """A job ended without a result. If the function raised an exception, that is the `__cause__`."""

    def __init__(self, job: str, state: str, text: str, remote_traceback: str = "") -> None:
        self.job, self.state, self.remote_traceback = job, state, remote_traceback
        super().__init__(f"job {job} {text}" + (f"\n\n{remote_traceback}" if remote_traceback else ""))


class FunctionJob:
    """A function that was submitted as a job."""

    def __init__(self, handle: JobHandle, folder: Path, index: int) -> None:
        self._handle, self._folder, self._index = handle, folder, index

    def __repr__(self) -> str:
        return f"FunctionJob({self.id!r})"

    @property
    def id(self) -> str:
        return self._handle.id

    @property
    def state(self) -> str:
        return self._handle.state

    def done(self) -> bool:
        """Whether the job has ended, with a result or without."""
        return self._handle.done

    def wait(self, timeout: float | None = None) -> None:
        self._handle.wait(timeout)

    def result(self, timeout: float | None = None) -> Any:
        """The return value of the function; JobFailed if there is none."""
        error = self.exception(timeout)
        if error is not None:
            raise error
        return pickle.loads(self._outcome()["value"])

    def exception(self, timeout: float | None = None) -> JobFailed | None:
        """Why there is no result; None if there is one."""
        info = self._handle.wait(timeout)
        outcome = self._outcome()
        if outcome.get("ok") and info.state == "completed":
            return None
        if outcome and not outcome["ok"] and outcome["attempt"] == (info.attempt or 1):
            failed = JobFailed(self.id, info.state, f"raised {outcome['kind']}", outcome["text"])
            with contextlib.suppress(Exception):  # its module may exist only where the job ran
                failed.__cause__ = pickle.loads(outcome["error"])
            return failed
        if info.state == "completed":
            return JobFailed(self.id, info.state, f"left no result in {self._folder}; did it call sys.exit?")
        detail = f": {info.detail}" if info.detail else f"; see dovetail logs {self.id}"
        return JobFailed(self.id, info.state, f"ended as {info.state}{detail}")

    def _outcome(self) -> dict[str, Any]:
        try:
            return dict(pickle.loads(result_file(self._folder, self._index).read_bytes()))
        except FileNotFoundError:
            return {}

    def stdout(self) -> str:
        """The output of the last attempt so far."""
        return "".join(self.logs())

    def logs(self, follow: bool = False) -> Iterator[str]:
        return self._handle.logs(follow)

    def why(self) -> Why:
        return self._handle.why()

    def cancel(self) -> bool:
        """Cancel the job. False if it had ended already."""
        if self._handle.state not in ACTIVE:
            return False
        self._handle.cancel()
        return True


class Executor:
    """Submits functions as jobs. `request` takes further keys of a job file."""

    def __init__(
        self,
        queue: str | None = None,
        gpus: int | str = 1,
        time: str | float | None = None,
        folder: str | Path | None = None,
        client: Client | None = None,
        **request: Any,
    ) -> None:
        self._client = client
        self._folder = Path(folder or "dovetail-jobs").absolute()
        resources = dict(request.pop("resources", None) or {})
        resources["gpus" if isinstance(gpus, int) else "accelerators"] = gpus
        resources |= {key: request.pop(key) for key in RESOURCE_KEYS if key in request}
        self._request = {**request, "resources": resources}
        if queue is not None:
            self._request["queue"] = queue
        if time is not None:
            self._request["time"] = time

    @property
    def client(self) -> Client:
        self._client = self._client or Client()
        return self._client

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> FunctionJob:
        return self._submit(function, [(args, kwargs)], array=False)[0]

    def map(
        self, function: Callable[..., Any], /, *iterables: Iterable[Any], at_once: int | None = None
    ) -> list[FunctionJob]:
        """Submit one array: a job for each set of arguments, at most `at_once` running at a time."""
        calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
            (args, {}) for args in zip(*iterables, strict=False)
        ]
        return self._submit(function, calls, array=True, at_once=at_once) if calls else []

    def _submit(
        self,
        function: Callable[..., Any],
        calls: Sequence[tuple[tuple[Any, ...], dict[str, Any]]],
        *,
        array: bool,
        at_once: int | None = None,
    ) -> list[FunctionJob]:
        if os.environ.get(LOADING):
            raise DovetailError(
                "the script submits jobs while a job loads it; put the calls that submit under "
                'if __name__ == "__main__":'
            )
        name = getattr(function, "__name__", type(function).__name__)
        payloads = [_payload(name, (function, *call)) for call in calls]
        context = {"path": [entry or os.getcwd() for entry in sys.path], "main": _script(name, payloads)}
        folder = self._folder / f"{_word(name)}-{uuid.uuid4().hex[:12]}"
        folder.mkdir(parents=True, mode=0o700)
        for index, payload in enumerate(payloads):
            replace(task_file(folder, index), payload)
        replace(folder / "context.json", json.dumps(context).encode())
        command = [sys.executable, "-m", "dovetail.client.function_runner", str(folder)]
        request = {"name": _word(name), "workdir": os.getcwd(), **self._request, "command": command}
        if path := _import_path():
            request["env"] = {"PYTHONPATH": path, **(request.get("env") or {})}
        if array:
            request["array"] = f"0-{len(payloads) - 1}" + (f"%{at_once}" if at_once else "")
        handle = self.client.submit(request)
        if not array:
            return [FunctionJob(handle, folder, 0)]
        return [
            FunctionJob(JobHandle(self.client, f"{handle.id}_{index}"), folder, index)
            for index in range(len(payloads))
        ]


def _payload(name: str, task: tuple[Any, ...]) -> bytes:
    try:
        return dumped(task)
    except Unpicklable as error:
        raise InputError(
            f"{name} or its arguments cannot be sent to a job ({error}); move the function to the top level "
            "of a module, or pip install cloudpickle"
        ) from None


def _script(name: str, payloads: Sequence[bytes]) -> str | None:
    """The script that runs, if one of its functions is sent by name."""
    if not any(b"__main__" in data for data in payloads) or _by_value():
        return None
    file = getattr(sys.modules["__main__"], "__file__", None)
    if not file or not Path(file).is_file():
        raise InputError(
            f"{name} was defined interactively, so a job cannot find it by name; put it into a file, "
            "or pip install cloudpickle"
        )
    return str(Path(file).absolute())


def _by_value() -> bool:
    import importlib.util  # noqa: PLC0415

    return importlib.util.find_spec("cloudpickle") is not None


def _import_path() -> str:
    """The PYTHONPATH by which a job finds dovetail; empty where dovetail is installed."""
    root = Path(__file__).parents[2]
    if root in {Path(sysconfig.get_path(kind)) for kind in ("purelib", "platlib")}:
        return ""
    return os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH"))))


def _word(name: str) -> str:
    return "".join(char if char.isalnum() or char in "-_" else "-" for char in name)[:40].strip("-") or "job"
