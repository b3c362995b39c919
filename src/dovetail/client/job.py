"""For training scripts: `from dovetail import job`.

    for step in range(first, steps):
        loss = train(step)
        job.report(step=step, loss=loss)
        if job.preemption_requested():
            save(job.checkpoint_dir() / "last.pt")
            job.checkpointed(step)
            break

It needs only the standard library, is quick to import, and never makes training fail: errors of writing
are ignored. Without a plane the functions do nothing, except `checkpoint_dir`, which is `./checkpoints`
then, so that a script also saves on a laptop. A plane stops a job by SIGTERM and by `stop.json` in the
attempt's folder. Progress goes to the plane as lines of `reports.jsonl`.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import math
import os
import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

PERIOD = 0.1  # seconds between two lines, and between two checks for stop.json


class _ProcessState:
    """The state of this process between two calls."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.unwritten: dict[str, Any] | None = None  # the newest report, until it may be written
        self.written_at = -math.inf
        self.last: tuple[float, float] | None = None  # time and step of the previous report
        self.speed: float | None = None
        self.checked_at = -math.inf
        self.stop: dict[str, Any] | None = None
        self.terminated = False  # SIGTERM was received
        self.near_limit = False  # SIGUSR1 was received
        self.caught_by = 0  # the process that installed the handlers


_state = _ProcessState()


# --- to the plane -----------------------------------------------------------------------------


def report(
    step: float | None = None,
    *,
    loss: float | None = None,
    epoch: float | None = None,
    samples: float | None = None,
    **metrics: Any,
) -> None:
    """Report the progress. Cheap: call it at every step.

    The first process of a job writes at most ten lines a second; the last report is always written. The speed
    is computed from the steps. It becomes the measured throughput of the job's `model` on this type of GPU.
    """
    if not _reports():
        return
    try:
        now = time.time()
        line: dict[str, Any] = {"time": round(now, 3)}
        for name, value in (("step", _plain(step)), ("loss", loss), ("epoch", epoch), ("samples", samples)):
            if value is not None:
                line[name] = _detached(value)
        line |= {name: _detached(value) for name, value in metrics.items() if name not in line}
        with _state.lock:
            if isinstance(at := line.get("step"), int | float):
                if _state.last is None or at < _state.last[1]:
                    _state.last = (now, at)
                elif now - _state.last[0] >= PERIOD and at > _state.last[1]:
                    _state.speed, _state.last = (at - _state.last[1]) / (now - _state.last[0]), (now, at)
                if _state.speed is not None:
                    line["steps_per_second"] = round(_state.speed, 6)
            _state.unwritten = line
            if time.monotonic() - _state.written_at >= PERIOD:
                _write_newest()
    except Exception:  # a report must never end the training
        pass


def checkpointed(step: float | None = None, **facts: Any) -> None:
    """Report that the work up to this step is saved: a stop now would lose nothing before it."""
    if not _reports():
        return
    try:
        line: dict[str, Any] = {"time": round(time.time(), 3), "checkpoint": True}
        if step is not None:
            line["step"] = step
        line |= {name: _detached(value) for name, value in facts.items() if name not in line}
        with _state.lock:
            _write_newest()
            _append(line)
    except Exception:
        pass


def finished() -> None:
    """Report that the work is done, so that a job that was told to stop is not started again."""
    folder = os.environ.get("DOVETAIL_RUN_DIR")
    if not folder:
        return
    flush()
    try:
        with open(os.path.join(folder, "finished"), "w", encoding="utf-8") as file:
            file.write("finished\n")
    except OSError:
        pass


def flush() -> None:
    """Write the newest report now. This also happens when the process exits."""
    try:
        with _state.lock:
            _write_newest()
    except Exception:
        pass


# --- from the plane ------------------------------------------------------------------------


def preemption_requested() -> bool:
    """Whether the job was told to stop, and should save its work and exit. Cheap: call it at every step.

    From the first call on, SIGTERM does not end the process at once. A handler of the script is kept.
    """
    return bool(_asked_to_stop())


def stop_reason() -> str:
    """Why the job was told to stop (preempted, cancelled, ...); empty if it was not."""
    asked = _asked_to_stop()
    return str(asked.get("why") or asked.get("reason") or "stopped") if asked else ""


def catch_term() -> bool:
    """Catch SIGTERM (stop) and SIGUSR1 (the time limit is near) instead of ending by them.

    True if they are caught now. Only the main thread can do this. Handlers of the script are kept.
    """
    if _state.caught_by == os.getpid():
        return True
    try:
        import signal  # noqa: PLC0415  (this module must be quick to import)

        if threading.current_thread() is not threading.main_thread():
            return False
        if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
            return False
        signal.signal(signal.SIGTERM, _caught)
        if signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL:
            signal.signal(signal.SIGUSR1, _caught)
        _state.caught_by = os.getpid()
        return True
    except (ImportError, OSError, ValueError, AttributeError):
        return False


def checkpoint_dir() -> Path:
    """The folder for checkpoints: the same for every attempt of this job. It is made if it does not exist.

    Without a plane it is `checkpoints` in the current folder.
    """
    from pathlib import Path  # noqa: PLC0415

    folder = Path(os.environ.get("DOVETAIL_CHECKPOINT_DIR") or "checkpoints")
    with contextlib.suppress(OSError):  # saving will fail with the name of the file
        folder.mkdir(parents=True, exist_ok=True)
    return folder


def attempt() -> int:
    """The number of this attempt, from 1."""
    return _number("DOVETAIL_ATTEMPT", 1)


def restart_count() -> int:
    """The number of earlier attempts."""
    return _number("DOVETAIL_RESTART_COUNT", attempt() - 1)


def time_left() -> float | None:
    """Seconds until the time limit; None without a limit."""
    text = os.environ.get("DOVETAIL_DEADLINE", "").strip()
    if not text:
        return None
    try:
        return float(text) - time.time()
    except ValueError:
        pass
    try:
        from datetime import datetime  # noqa: PLC0415

        return datetime.fromisoformat(text).timestamp() - time.time()
    except ValueError:
        return None


def time_limit_near() -> bool:
    """Whether the plane warned of the time limit (SIGUSR1): save, and exit with 75 to be started again."""
    if os.environ.get("DOVETAIL_RUN_DIR") and _state.caught_by != os.getpid():
        catch_term()
    return _state.near_limit


def job_id() -> str:
    """The id of the job; empty without a plane."""
    return os.environ.get("DOVETAIL_JOB_ID", "")


# --- internals ----------------------------------------------------------------------------------------


def _reports() -> bool:
    """Whether this process reports for the job: there is a plane, and the process has rank 0."""
    env = os.environ
    return bool(env.get("DOVETAIL_RUN_DIR")) and (env.get("RANK") or env.get("NODE_RANK") or "0") == "0"


def _asked_to_stop() -> dict[str, Any] | None:
    if _state.stop is not None:
        return _state.stop
    folder = os.environ.get("DOVETAIL_RUN_DIR")
    if folder:
        if _state.caught_by != os.getpid():
            catch_term()
        now = time.monotonic()
        if now - _state.checked_at >= PERIOD or _state.terminated:
            _state.checked_at = now
            _state.stop = _read_stop(os.path.join(folder, "stop.json"))
    return _state.stop or ({"why": "stopped"} if _state.terminated else None)


def _read_stop(file: str) -> dict[str, Any] | None:
    try:
        with open(file, encoding="utf-8") as text:
            order = json.load(text)
        return order if isinstance(order, dict) else {"why": str(order)}
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        return {"why": "stopped"}  # the file exists, so the job must stop


def _caught(number: int, frame: object) -> None:
    import signal  # noqa: PLC0415

    if os.getpid() != _state.caught_by:  # a forked child: it has not called `catch_term`
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    elif number == signal.SIGTERM:
        _state.terminated = True
    else:
        _state.near_limit = True


def _write_newest() -> None:
    line, _state.unwritten = _state.unwritten, None
    if line is not None:
        _state.written_at = time.monotonic()
        _append(line)


def _append(line: dict[str, Any]) -> None:
    """Write a line by one call, so that lines of several processes do not mix."""
    plain = {name: _plain(value) for name, value in line.items()}
    text = json.dumps(plain, default=str, allow_nan=False) + "\n"
    file = os.open(
        os.path.join(os.environ["DOVETAIL_RUN_DIR"], "reports.jsonl"),
        os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC,
        0o644,
    )
    try:
        os.write(file, text.encode())
    finally:
        os.close(file)


def _detached(value: Any) -> Any:
    """A value to be read later: reading a number from a GPU waits for the GPU."""
    detach = getattr(value, "detach", None)
    return detach() if callable(detach) else value


def _plain(value: Any) -> Any:
    """A value that JSON can hold; a tensor or array of one number becomes that number."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if not isinstance(value, float):
        item = getattr(value, "item", None)
        try:
            value = item() if callable(item) else float(value)
        except (TypeError, ValueError, RuntimeError):
            return str(value)[:200]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no such number
    return value


def _number(name: str, default: int) -> int:
    try:
        return int(os.environ[name])
    except (KeyError, ValueError):
        return default


atexit.register(flush)
