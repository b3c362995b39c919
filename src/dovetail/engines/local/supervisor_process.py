"""The supervisor as the engine sees it: started as a detached process, found by its lock, signalled.

Whether a supervisor lives is asked of the kernel (F_GETLK). That takes no lock, so it never blocks a
supervisor.
"""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from dovetail.engines.local.attempt_files import LOCK

_FLOCK = struct.Struct("hhqqi4x")
# The supervisor is imported rather than run as a file, so that its compiled form is cached.
# `dovetail/__init__.py` imports what users need, so an empty module takes its place.
_PROGRAM = (
    "import sys; bare = type(sys)('dovetail'); "
    f"bare.__path__ = [{str(Path(__file__).resolve().parents[2])!r}]; sys.modules['dovetail'] = bare; "
    "from dovetail.engines.local.supervisor import main; main(sys.argv[1])"
)
# What the interpreter itself may need. A job's variables are in launch.json.
_VARIABLES = ("LANG", "LC_ALL", "LD_LIBRARY_PATH", "PATH", "TZ")


def start_supervisor(folder: Path) -> None:
    """Start a supervisor. A shell detaches it, so it is not a child of the plane and never its zombie."""
    with suppress(OSError):  # too many processes, no memory: the engine tries again later
        subprocess.run(
            ["/bin/sh", "-c", '"$@" &', "sh", sys.executable, "-I", "-S", "-c", _PROGRAM, str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={name: os.environ[name] for name in _VARIABLES if name in os.environ},
            cwd="/",
            start_new_session=True,
            check=False,
        )


def supervisor_pid(folder: Path) -> int:
    """The pid of the supervisor that holds the lock; 0 if there is none."""
    try:
        handle = os.open(folder / LOCK, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        query = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(handle, fcntl.F_GETLK, query))
    finally:
        os.close(handle)
    return 0 if kind == fcntl.F_UNLCK else int(pid)


def signal_supervisor(folder: Path, number: int) -> None:
    """Signal the supervisor. The lock is looked at twice around `pidfd_open`, so no other process is hit."""
    pid = supervisor_pid(folder)
    if pid <= 0:
        return
    with suppress(OSError):
        handle = os.pidfd_open(pid)
        try:
            if supervisor_pid(folder) == pid:
                signal.pidfd_send_signal(handle, number)
        finally:
            os.close(handle)
