"""An emulated training job: a program that only waits, saves and continues.

    python -I -S emulated_job.py --work SECONDS [--scale X] [--save SECONDS]

works for SECONDS / X of real time over all its attempts. On SIGTERM it saves its progress, which takes
the time of `--save`, and exits with 143; the next attempt continues from there. The time counts from the
recorded start of the attempt, so that the start of the interpreter is part of the work.

It imports very little: an emulated cluster starts thousands of these.
"""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
else:
    import _signal as signal

USAGE = "usage: emulated_job.py --work SECONDS [--scale X] [--save SECONDS]"
LONGEST_START = 60.0  # seconds; if the start lies further back, or ahead, the clock was set


def options(words: list[str]) -> dict[str, float]:
    """The options by name. A wrong one ends the program with exit code 2."""
    found = {"scale": 1.0, "save": 0.0}
    for place in range(0, len(words), 2):
        name = words[place].removeprefix("--")
        try:
            if name not in ("work", "scale", "save") or not words[place].startswith("--"):
                raise ValueError(f"{words[place]} is unknown")
            found[name] = float(words[place + 1])
            if found[name] < 0 or (name == "scale" and not found[name]):
                raise ValueError(f"{words[place]} cannot be {words[place + 1]}")
        except (ValueError, IndexError) as problem:
            sys.exit(_refused(str(problem)))
    if "work" not in found:
        sys.exit(_refused("--work is missing"))
    return found


def _refused(problem: str) -> int:
    print(f"error: {problem}; {USAGE}", file=sys.stderr)
    return 2


def began() -> float:
    """When the attempt began, on the monotonic clock."""
    now = time.monotonic()
    try:
        ago = time.time() - float(os.environ.get("DOVETAIL_STARTED_AT", ""))
    except ValueError:
        return now
    return now - ago if 0.0 <= ago < LONGEST_START else now


def saved(file: str) -> float:
    """Seconds of work that earlier attempts have saved."""
    try:
        with open(file, encoding="ascii") as text:
            return float(text.read())
    except (OSError, ValueError):
        return 0.0


def save(file: str, done: float) -> None:
    """Replace the saved progress atomically."""
    with open(file + ".new", "w", encoding="ascii") as text:
        text.write(f"{done:.6f}\n")
    os.replace(file + ".new", file)


def main(words: list[str]) -> int:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    given = options(words)
    scale, start = given["scale"], began()
    folder = os.environ.get("DOVETAIL_CHECKPOINT_DIR", "")
    file = os.path.join(folder, "emulated.progress")
    before = saved(file) if folder else 0.0
    name = os.environ.get("DOVETAIL_JOB_ID", "?") + " attempt " + os.environ.get("DOVETAIL_ATTEMPT", "?")
    print(f"start {name}: {before:.3f} of {given['work']:.3f} s done", flush=True)
    left = (given["work"] - before) / scale
    received = None
    while received is None and (pause := start + left - time.monotonic()) > 0:
        received = signal.sigtimedwait([signal.SIGTERM], pause)
    if received is None:
        _finished()
        print(f"end {name}: {given['work']:.3f} s done", flush=True)
        return 0
    done = min(before + (time.monotonic() - start) * scale, given["work"])
    if folder and (os.environ.get("RANK") or os.environ.get("NODE_RANK") or "0") == "0":
        time.sleep(given["save"] / scale)
        save(file, done)
    print(f"stopped {name}: {done:.3f} of {given['work']:.3f} s done", flush=True)
    return 128 + signal.SIGTERM


def _finished() -> None:
    """Report that the work is done, in case an order to stop comes at the same moment."""
    run = os.environ.get("DOVETAIL_RUN_DIR")
    if run:
        try:
            with open(os.path.join(run, "finished"), "w", encoding="ascii") as file:
                file.write("finished\n")
        except OSError:
            pass


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
