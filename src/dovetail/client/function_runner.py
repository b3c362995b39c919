"""Runs a function that an `Executor` wrote to a folder: `python -m dovetail.client.function_runner FOLDER`.

The folder contains `context.json` (how the submitting Python found its modules) and a `task_N.pkl` for
each member of the array; a `result_N.pkl` is added for each. Files are replaced atomically. A result
names its attempt, so the result of an earlier attempt is not taken for the last one.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import pickle
import signal
import sys
import traceback
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

LOADING = "DOVETAIL_LOADING_MAIN"  # set while the submitting script is loaded: it must not submit again
REQUEUE_ME = 75


class Task(NamedTuple):
    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Unpicklable(Exception):
    """A value that cannot be sent to another process."""


def task_file(folder: Path, index: int) -> Path:
    return folder / f"task_{index}.pkl"


def result_file(folder: Path, index: int) -> Path:
    return folder / f"result_{index}.pkl"


def dumped(value: object) -> bytes:
    """Pickled by reference if the module can be imported, else by value with cloudpickle."""
    problem: Exception | None = None
    try:
        data = pickle.dumps(value)
    except Exception as error:  # pickle raises what the objects raise
        problem = error
    else:
        if b"__main__" not in data:
            return data
    try:
        cloudpickle = importlib.import_module("cloudpickle")
    except ImportError:
        if problem is None:
            return data
        raise Unpicklable(str(problem)) from None
    try:
        return bytes(cloudpickle.dumps(value))
    except Exception as error:
        raise Unpicklable(str(error)) from None


def replace(file: Path, data: bytes) -> None:
    """Replace a file atomically and durably."""
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    with draft.open("wb") as out:
        out.write(data)
        out.flush()
        os.fsync(out.fileno())
    draft.replace(file)


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print("error: give the folder that the executor wrote", file=sys.stderr)
        return 2
    folder = Path(arguments[0])
    index = int(os.environ.get("DOVETAIL_ARRAY_INDEX") or 0)
    first = (os.environ.get("RANK") or os.environ.get("NODE_RANK") or "0") == "0"
    try:
        context = json.loads((folder / "context.json").read_bytes())
        _find_modules(context)
        task = Task(*pickle.loads(task_file(folder, index).read_bytes()))
        if hasattr(task.function, "checkpoint"):
            signal.signal(signal.SIGTERM, lambda *_: _checkpoint(task, folder, index, first))
        outcome = {"ok": True, "value": dumped(task.function(*task.args, **task.kwargs))}
        code = 0
    except Exception as error:
        traceback.print_exc()
        outcome, code = _failure(error), 1
    if first:
        attempt = int(os.environ.get("DOVETAIL_ATTEMPT") or 1)
        replace(result_file(folder, index), pickle.dumps({"attempt": attempt, **outcome}))
    return code


def _find_modules(context: dict[str, Any]) -> None:
    """Find modules as the submitting Python did; load its script if one of its functions was sent."""
    path: list[str] = context.get("path", [])
    sys.path[:] = [*path, *(entry for entry in sys.path if entry not in path)]
    if script := context.get("main"):
        _load_main(script)


def _load_main(script: str) -> None:
    """Load the script as multiprocessing does: code under `if __name__ == "__main__"` does not run."""
    import runpy  # noqa: PLC0415
    import types  # noqa: PLC0415

    module = types.ModuleType("__dovetail_main__")
    os.environ[LOADING] = "1"
    try:
        module.__dict__.update(runpy.run_path(script, run_name="__dovetail_main__"))
    finally:
        del os.environ[LOADING]
    sys.modules["__main__"] = sys.modules["__dovetail_main__"] = module


def _failure(error: Exception) -> dict[str, Any]:
    made: dict[str, Any] = {"ok": False, "text": traceback.format_exc(), "kind": type(error).__name__}
    with contextlib.suppress(Exception):
        made["error"] = dumped(error)
        pickle.loads(
            made["error"]
        )  # some can be pickled but not unpickled: their constructors take other arguments
        return made
    made.pop("error", None)
    return made


def _checkpoint(task: Task, folder: Path, index: int, first: bool) -> NoReturn:
    """The job was asked to stop: the next attempt runs what `checkpoint` returns."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    saved = task.function.checkpoint(*task.args, **task.kwargs)
    if hasattr(saved, "function") and hasattr(saved, "args"):  # submitit's DelayedSubmission
        saved = (saved.function, saved.args, getattr(saved, "kwargs", {}))
    elif callable(saved):
        saved = (saved, task.args, task.kwargs)
    if saved is None:  # the object itself in its present state
        saved = tuple(task)
    if first:
        replace(task_file(folder, index), dumped(saved))
    raise SystemExit(REQUEUE_ME)


if __name__ == "__main__":  # imported by name, so that the classes of pickles are found
    sys.exit(importlib.import_module("dovetail.client.function_runner").main(sys.argv[1:]))
