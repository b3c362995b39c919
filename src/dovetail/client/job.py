"""What a training script may import: `from dovetail import job`.

    for step in range(first, steps):
        loss = train(step)
        job.report(step=step, loss=loss)
        if job.preemption_requested():
            save(job.checkpoint_dir() / "last.pt")
            job.checkpointed(step)
            break

Only the standard library, quick to import, and it never makes training fail: what cannot be written is not
written. With no plane all of this does nothing, but for `checkpoint_dir`, which is `./checkpoints` then: who
asks for it means to save, and that is to work on a laptop too. A plane tells that a job must stop by a TERM
signal and by `stop.json` in the attempt's folder; progress goes the other way as lines of `reports.jsonl`.
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

PERIOD = 0.1  # seconds between two lines, and between two looks for stop.json


class _Memory:
    """What this process knows between two calls."""

    def __init__(self) -> None:
        self.turn = threading.Lock()
        self.waiting: dict[str, Any] | None = None  # the newest report, while it is too early to write it
        self.written_at = -math.inf
        self.last: tuple[float, float] | None = None  # time and step of the report before
        self.speed: float | None = None
        self.looked_at = -math.inf
        self.stop: dict[str, Any] | None = None
        self.terminated = False  # TERM was seen
        self.near_limit = False  # USR1 was seen
        self.caught_by = 0  # the process that installed the handlers


_memory = _Memory()


# --- telling the plane -----------------------------------------------------------------------------


def report(
    step: float | None = None,
    *,
    loss: float | None = None,
    epoch: float | None = None,
    samples: float | None = None,
    **metrics: Any,
) -> None:
    """Say how far the work is. Cheap: call it at every step.

    The first process of a job writes at most ten lines a second, the last report always among them. Speed is
    worked out from the steps; it becomes the measured throughput of the job's `model` on this type of GPU.
    """
    if not _reports():
        return
    try:
        now = time.time()
        line: dict[str, Any] = {"time": round(now, 3)}
        for name, value in (("step", _plain(step)), ("loss", loss), ("epoch", epoch), ("samples", samples)):
            if value is not None:
                line[name] = _held(value)
        line |= {name: _held(value) for name, value in metrics.items() if name not in line}
        with _memory.turn:
            if isinstance(at := line.get("step"), int | float):
                if _memory.last is None or at < _memory.last[1]:
                    _memory.last = (now, at)
                elif now - _memory.last[0] >= PERIOD and at > _memory.last[1]:
                    _memory.speed, _memory.last = (at - _memory.last[1]) / (now - _memory.last[0]), (now, at)
                if _memory.speed is not None:
                    line["steps_per_second"] = round(_memory.speed, 6)
            _memory.waiting = line
            if time.monotonic() - _memory.written_at >= PERIOD:
                _write_waiting()
    except Exception:  # whatever it is, it is not worth an epoch
        pass


def checkpointed(step: float | None = None, **facts: Any) -> None:
    """Say that all up to this step is saved: a stop now would lose nothing before it."""
    if not _reports():
        return
    try:
        line: dict[str, Any] = {"time": round(time.time(), 3), "checkpoint": True}
        if step is not None:
            line["step"] = step
        line |= {name: _held(value) for name, value in facts.items() if name not in line}
        with _memory.turn:
            _write_waiting()
            _append(line)
    except Exception:
        pass


def finished() -> None:
    """Say that the work is done, though the job was told to stop: it is not started again."""
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
    """Write the report that waits for its turn; done at the end of the process by itself."""
    try:
        with _memory.turn:
            _write_waiting()
    except Exception:
        pass


# --- hearing from the plane ------------------------------------------------------------------------


def preemption_requested() -> bool:
    """Whether the job was told to stop and should save its work and leave. Cheap: ask at every step.

    The first call also keeps TERM from ending the process at once, unless the script handles it itself: who
    asks means to leave in good order.
    """
    return bool(_asked_to_stop())


def stop_reason() -> str:
    """Why it was told to stop (preempted, cancelled, ...); empty while it was not."""
    asked = _asked_to_stop()
    return str(asked.get("why") or asked.get("reason") or "stopped") if asked else ""


def catch_term() -> bool:
    """Note TERM (stop) and USR1 (the time limit is near) instead of ending by them.

    True if they are caught now. Only the main thread can do this, and a script's own handlers stay.
    """
    if _memory.caught_by == os.getpid():
        return True
    try:
        import signal  # noqa: PLC0415  (only where it is wanted: this module is to be light)

        if threading.current_thread() is not threading.main_thread():
            return False
        if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
            return False
        signal.signal(signal.SIGTERM, _caught)
        if signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL:
            signal.signal(signal.SIGUSR1, _caught)
        _memory.caught_by = os.getpid()
        return True
    except (ImportError, OSError, ValueError, AttributeError):
        return False


def checkpoint_dir() -> Path:
    """Where checkpoints go: the same folder for every attempt of this job. It exists.

    With no plane it is `checkpoints` in the current folder, made when it is asked for.
    """
    from pathlib import Path  # noqa: PLC0415

    folder = Path(os.environ.get("DOVETAIL_CHECKPOINT_DIR") or "checkpoints")
    with contextlib.suppress(OSError):  # saving will say so, with the name of the file
        folder.mkdir(parents=True, exist_ok=True)
    return folder


def attempt() -> int:
    """Which start of the job this is, from 1."""
    return _number("DOVETAIL_ATTEMPT", 1)


def restart_count() -> int:
    """How often the job was started before."""
    return _number("DOVETAIL_RESTART_COUNT", attempt() - 1)


def time_left() -> float | None:
    """Seconds until the time limit; None if there is none."""
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
    """Whether the plane warned that the time limit is near (USR1): save, and leave with 75 to go on later."""
    if os.environ.get("DOVETAIL_RUN_DIR") and _memory.caught_by != os.getpid():
        catch_term()
    return _memory.near_limit


def job_id() -> str:
    """The job's id; empty with no plane."""
    return os.environ.get("DOVETAIL_JOB_ID", "")


# --- inside ----------------------------------------------------------------------------------------


def _reports() -> bool:
    """Whether this process speaks for the job: there is a plane, and it is the first of its processes."""
    env = os.environ
    return bool(env.get("DOVETAIL_RUN_DIR")) and (env.get("RANK") or env.get("NODE_RANK") or "0") == "0"


def _asked_to_stop() -> dict[str, Any] | None:
    if _memory.stop is not None:
        return _memory.stop
    folder = os.environ.get("DOVETAIL_RUN_DIR")
    if folder:
        if _memory.caught_by != os.getpid():
            catch_term()
        now = time.monotonic()
        if now - _memory.looked_at >= PERIOD or _memory.terminated:
            _memory.looked_at = now
            _memory.stop = _read_stop(os.path.join(folder, "stop.json"))
    return _memory.stop or ({"why": "stopped"} if _memory.terminated else None)


def _read_stop(file: str) -> dict[str, Any] | None:
    try:
        with open(file, encoding="utf-8") as text:
            said = json.load(text)
        return said if isinstance(said, dict) else {"why": str(said)}
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        return {"why": "stopped"}  # it is there, whatever it says


def _caught(number: int, frame: object) -> None:
    import signal  # noqa: PLC0415

    if os.getpid() != _memory.caught_by:  # a child made by fork: it never asked for this
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    elif number == signal.SIGTERM:
        _memory.terminated = True
    else:
        _memory.near_limit = True


def _write_waiting() -> None:
    line, _memory.waiting = _memory.waiting, None
    if line is not None:
        _memory.written_at = time.monotonic()
        _append(line)


def _append(line: dict[str, Any]) -> None:
    """One write for a line, so that lines of several processes do not mix."""
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


def _held(value: Any) -> Any:
    """A value until it is written: reading a number off a GPU waits for it, so that comes last."""
    detach = getattr(value, "detach", None)
    return detach() if callable(detach) else value


def _plain(value: Any) -> Any:
    """A number as JSON has it; tensors and arrays of one number too."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if not isinstance(value, float):
        item = getattr(value, "item", None)
        try:
            value = item() if callable(item) else float(value)
        except (TypeError, ValueError, RuntimeError):
            return str(value)[:200]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no word for it
    return value


def _number(name: str, default: int) -> int:
    try:
        return int(os.environ[name])
    except (KeyError, ValueError):
        return default


atexit.register(flush)
