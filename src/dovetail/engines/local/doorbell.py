"""The socket by which a supervisor tells the plane that its attempt has ended.

It only saves time: the engine looks at all attempts every second anyway. Both sides reach the socket through
the open folder, because the path of a socket may have 108 bytes only.
"""

# ruff: noqa: SIM105  (contextlib costs too much to import)

from __future__ import annotations

import os

NAME = ".doorbell"
LONGEST_MESSAGE = 512


def ring(root: str, message: str) -> None:
    """Send a message to the plane. Without a plane it is dropped."""
    import _socket  # noqa: PLC0415

    try:
        folder = _opened(root)
        try:
            bell = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM)
            try:
                bell.sendto(message.encode(), _socket.MSG_DONTWAIT, f"/proc/self/fd/{folder}/{NAME}")
            finally:
                bell.close()
        finally:
            os.close(folder)
    except OSError:
        pass


class Doorbell:
    """The plane's end. The newest one made in a folder receives the messages."""

    def __init__(self, root: str) -> None:
        import _socket  # noqa: PLC0415

        kind = _socket.SOCK_DGRAM | _socket.SOCK_NONBLOCK | _socket.SOCK_CLOEXEC
        self._socket = _socket.socket(_socket.AF_UNIX, kind)
        folder = _opened(root)
        try:
            try:
                os.unlink(NAME, dir_fd=folder)
            except FileNotFoundError:
                pass
            self._socket.bind(f"/proc/self/fd/{folder}/{NAME}")
        except OSError:
            self._socket.close()
            raise
        finally:
            os.close(folder)

    def fileno(self) -> int:
        return self._socket.fileno()

    def messages(self) -> list[str]:
        """All messages that have arrived since the last call."""
        found = []
        try:
            while True:
                found.append(self._socket.recv(LONGEST_MESSAGE).decode(errors="replace"))
        except BlockingIOError:
            return found

    def close(self) -> None:
        self._socket.close()


def _opened(root: str) -> int:
    return os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
