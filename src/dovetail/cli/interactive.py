"""The side of the user in `dovetail run -i` and `-t`: the job calls back, and gets what is typed.

The job's command is wrapped in `interactive_job.py`, which connects to a port of this machine and shows a
key, so this works only where the plane is on the same machine. The plane has no part in it: keys and output
go on while it restarts.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dovetail.cli import interactive_job
from dovetail.cli.interactive_job import DATA, HEAD, KEY, SIZE
from dovetail.model.errors import InputError

LOOK = 0.2  # seconds between two looks whether the job has ended without calling
SHOWS_KEY_WITHIN = 5.0  # seconds; any process of this machine can connect
LARGEST = 16_384


def check(request: Mapping[str, Any], *, local: bool, terminal: bool) -> None:
    """Refuse what cannot have an input or a terminal, before anything is submitted."""
    flag = "-t" if terminal else "-i"
    if terminal and not (os.isatty(0) and os.isatty(1)):
        raise InputError("-t needs a terminal, and this is none; -i alone passes the standard input on")
    if not local:
        raise InputError(f"{flag} needs a plane on this machine; type dovetail run there")
    for key, option in (("nodes", "--nodes"), ("array", "--array"), ("launch", "--per-gpu")):
        if request.get(key) not in (None, 1, "node"):
            raise InputError(f"{flag} is for one process, and {option} starts several; leave one of them out")


class Calls:
    """The port that the job calls."""

    def __init__(self, *, terminal: bool) -> None:
        self.terminal = terminal
        self._key = secrets.token_hex(16)
        self._port = socket.create_server(("127.0.0.1", 0))

    def wrapped(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The request with a command that calls back. It is not preempted: what was typed would be lost."""
        env = {**(request.get("env") or {}), KEY: self._key}
        if self.terminal and (term := os.environ.get("TERM")):
            env.setdefault("TERM", term)
        program = [sys.executable, "-I", "-S", str(Path(interactive_job.__file__).resolve())]
        kind = "terminal" if self.terminal else "input"
        port = str(self._port.getsockname()[1])
        command = [*program, port, kind, *request["command"]]
        return {"preemptible": False, **request, "env": env, "command": command}

    def answered(self, is_over: Callable[[], bool]) -> socket.socket | None:
        """The connection of the job; None if it has ended without one."""
        while True:
            ready, _, _ = select.select([self._port], [], [], LOOK)
            if ready:
                line, _ = self._port.accept()
                if self._shows_key(line):
                    line.settimeout(None)
                    return line
                line.close()
            elif is_over():
                return None

    def _shows_key(self, line: socket.socket) -> bool:
        line.settimeout(SHOWS_KEY_WITHIN)
        shown = b""
        with contextlib.suppress(OSError):
            while len(shown) < len(self._key) and (more := line.recv(len(self._key) - len(shown))):
                shown += more
        return hmac.compare_digest(shown, self._key.encode())

    def close(self) -> None:
        self._port.close()


def pass_input(line: socket.socket) -> None:
    """Pass the standard input on, in a thread: the job may end before it has read all."""

    def copy() -> None:
        with contextlib.suppress(OSError), line:
            while data := os.read(0, 65_536):
                line.sendall(data)

    threading.Thread(target=copy, name="input", daemon=True).start()


def pass_terminal(line: socket.socket) -> None:
    """Keys go to the job and its output to this terminal, until it hangs up."""
    with line, _raw(), _told_of_size() as resized:
        line.setblocking(False)
        typing, unsent = [0], _size()
        while True:
            reads = [line, resized, *(typing if len(unsent) < LARGEST else ())]
            ready, free, _ = select.select(reads, [line] if unsent else [], [])
            if line in ready:
                said = _received(line)
                if not said:
                    return
                _write(said)
            if resized in ready:
                os.read(resized, 512)
                unsent += _size()
            if 0 in ready:
                keys = os.read(0, LARGEST)
                typing = typing if keys else []
                unsent += HEAD.pack(DATA, len(keys)) + keys
            if free:
                try:
                    unsent = unsent[line.send(unsent) :]
                except OSError:
                    unsent = b""  # the job has ended; its last words are still to come


def _received(line: socket.socket) -> bytes:
    try:
        return line.recv(65_536)
    except OSError:
        return b""


def _write(data: bytes) -> None:
    while data:
        data = data[os.write(1, data) :]


@contextmanager
def _raw() -> Iterator[None]:
    """The terminal passes each key on as it is, ^C too; afterwards it is as before."""
    import termios
    import tty

    before = termios.tcgetattr(0)
    try:
        tty.setraw(0)
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)


def _size() -> bytes:
    """The size of this terminal, as it is told to the job."""
    import fcntl
    import termios

    size = fcntl.ioctl(0, termios.TIOCGWINSZ, bytes(8))
    return HEAD.pack(SIZE, len(size)) + size


@contextmanager
def _told_of_size() -> Iterator[int]:
    """A file that can be read whenever this terminal has changed its size."""
    read, write = os.pipe()
    os.set_blocking(write, False)

    def changed(*_: object) -> None:
        with contextlib.suppress(OSError):
            os.write(write, b"!")

    before = signal.signal(signal.SIGWINCH, changed)
    try:
        yield read
    finally:
        signal.signal(signal.SIGWINCH, before)
        os.close(read)
        os.close(write)
