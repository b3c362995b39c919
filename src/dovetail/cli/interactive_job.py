"""The side of the job in `dovetail run -i` and `-t`: it connects to the command and starts the program.

It runs as a script (python -I -S interactive_job.py PORT input|terminal PROGRAM...), so it imports nothing of
Dovetail. The key that it shows to the command comes in a variable, which the program does not see.

With `input` the connection becomes the standard input of the program. With `terminal` the program gets a
terminal of its own; what it prints goes to the command and to the log. If the command is gone, the terminal
hangs up.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import sys

KEY = "_DOVETAIL_RUN_KEY"
HEAD = struct.Struct("!cH")  # kind and length of what the command sends
DATA, SIZE = b"d", b"s"
NOT_FOUND = 127
MOST_TYPED = 65_536


def main(words: list[str]) -> None:
    port, kind, *program = words
    with_key = os.environ.pop(KEY, "")
    try:
        line = socket.create_connection(("127.0.0.1", int(port)))
        line.sendall(with_key.encode())
    except OSError:
        sys.exit("the command that started this job is gone, and its input with it")
    if kind == "input":
        os.dup2(line.fileno(), 0)
        start(program)
    sys.exit(with_terminal(line, program))


def start(program: list[str]) -> None:
    try:
        os.execvp(program[0], program)
    except OSError as error:
        sys.stderr.write(f"{program[0]}: cannot be started ({error.strerror})\n")
        sys.stderr.flush()
        os._exit(NOT_FOUND)


def with_terminal(line: socket.socket, program: list[str]) -> int:
    """The exit code of the program."""
    import fcntl
    import pty
    import termios

    frames = Frames(line)
    first = frames.next()  # the size comes first, so that the program sees it from its start
    pid, terminal = pty.fork()
    if not pid:
        line.close()
        if first is not None:
            fcntl.ioctl(0, termios.TIOCSWINSZ, first[1])
        start(program)
    signal.signal(signal.SIGTERM, lambda *_: None)  # the program gets it too, and says how it ends
    signal.signal(signal.SIGHUP, lambda *_: None)
    copy(line, frames, terminal, pid)
    os.close(terminal)  # hangs up
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    line.close()
    return code if code >= 0 else 128 - code


def copy(line: socket.socket, frames: Frames, terminal: int, pid: int) -> None:
    """Until the program has ended and its last words are read, or the command is gone."""
    import fcntl
    import termios

    os.set_blocking(terminal, False)
    ended = os.pidfd_open(pid)
    typed = b""  # what the program has not taken yet: it may be busy printing
    try:
        while True:
            reads: list[int | socket.socket] = (
                [terminal, ended] if len(typed) > MOST_TYPED else [terminal, ended, line]
            )
            ready, free, _ = select.select(reads, [terminal] if typed else [], [])
            if terminal in ready:
                try:
                    said = os.read(terminal, 65_536)
                except OSError:  # no process has it open any more
                    return
                log(said)
                try:
                    line.sendall(said)
                except OSError:
                    return
            elif ended in ready:
                return
            if line in ready:
                if not frames.receive():
                    return
                for kind, data in frames.complete():
                    if kind == SIZE:
                        fcntl.ioctl(terminal, termios.TIOCSWINSZ, data)
                    else:
                        typed += data
            if free:
                typed = typed[os.write(terminal, typed) :]
    finally:
        os.close(ended)


def log(data: bytes) -> None:
    try:
        while data:
            data = data[os.write(1, data) :]
    except OSError:  # the log has its limit; the command still gets all
        pass


class Frames:
    """What the command sends, taken apart."""

    def __init__(self, line: socket.socket) -> None:
        self.line, self.left = line, b""

    def receive(self) -> bool:
        try:
            data = self.line.recv(65_536)
        except OSError:
            return False
        self.left += data
        return bool(data)

    def complete(self) -> list[tuple[bytes, bytes]]:
        found = []
        while len(self.left) >= HEAD.size:
            kind, size = HEAD.unpack_from(self.left)
            if len(self.left) < HEAD.size + size:
                break
            found.append((kind, self.left[HEAD.size : HEAD.size + size]))
            self.left = self.left[HEAD.size + size :]
        return found

    def next(self) -> tuple[bytes, bytes] | None:
        """The first one; the command sends no more before it has an answer."""
        while not (found := self.complete()):
            if not self.receive():
                return None
        return found[0]


if __name__ == "__main__":
    main(sys.argv[1:])
