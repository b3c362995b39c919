"""Text files of traces, plain or compressed: reading one, and replacing one as a whole.

The first bytes of a file say how it is compressed, not its name.
"""

from __future__ import annotations

import csv
import gzip
import io
import lzma
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import IO, Any, cast

from dovetail.model.errors import InputError, TraceError

_GZIP, _XZ = b"\x1f\x8b", b"\xfd7zXZ\x00"


Tell = Callable[[float], None]  # the share of the bytes that were read
_TELL: ContextVar[Tell | None] = ContextVar("tell", default=None)


@contextmanager
def reading_told(tell: Tell | None) -> Iterator[None]:
    """Within it, what is read of each file is told, so that a long read can show how far it is."""
    before = _TELL.set(tell)
    try:
        yield
    finally:
        _TELL.reset(before)


class _Watched(io.RawIOBase):
    """A file that tells how much of it was read."""

    def __init__(self, file: io.BufferedReader, size: int, tell: Tell) -> None:
        self._file, self._size, self._tell = file, max(size, 1), tell
        self._read = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = self._file.readinto(buffer)
        self._read += count
        self._tell(self._read / self._size)
        return count

    def close(self) -> None:
        self._file.close()
        super().close()


def _watched(file: io.BufferedReader, path: Path) -> io.BufferedReader:
    tell = _TELL.get()
    if tell is None or not path.is_file():
        return file
    return io.BufferedReader(_Watched(file, path.stat().st_size, tell), 1 << 16)


@contextmanager
def opened(path: Path) -> Iterator[IO[str]]:
    """Open a text file, plain or compressed; an unreadable file is a one-line error."""
    file = str(path)
    try:
        with _watched(path.open("rb"), path) as raw:
            head = raw.peek(6)[:6]
            plain: IO[bytes] = raw
            if head.startswith(_GZIP):
                plain = cast("IO[bytes]", gzip.GzipFile(fileobj=raw))
            elif head.startswith(_XZ):
                plain = lzma.LZMAFile(raw)  # noqa: SIM115  (closed by the TextIOWrapper)
            elif path.suffix in (".gz", ".xz") and head:
                raise TraceError(
                    file, None, f"is named {path.suffix} but is not compressed", "rename or compress it"
                )
            with io.TextIOWrapper(plain, encoding="utf-8-sig", newline="") as text:
                yield text
    except FileNotFoundError:
        raise TraceError(file, None, "no such file", "check the path") from None
    except IsADirectoryError:
        raise TraceError(file, None, "is a directory", "name a file in it") from None
    except PermissionError:
        raise TraceError(file, None, "is not readable", "check its permissions") from None
    except (gzip.BadGzipFile, EOFError, zlib.error, lzma.LZMAError) as error:
        raise TraceError(
            file, None, f"cannot be decompressed ({error})", "fetch or compress it again"
        ) from None
    except UnicodeDecodeError as error:
        raise TraceError(file, None, f"is not UTF-8 text ({error.reason})", "convert it to UTF-8") from None
    except csv.Error as error:
        raise TraceError(
            file, None, f"is not a CSV table ({error})", "check that it is the file you meant"
        ) from None


@contextmanager
def replaced(path: Path) -> Iterator[IO[str]]:
    """A new file that replaces `path` only when it is complete; compressed according to its extension."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as raw:
            packed: IO[bytes] = raw
            if path.suffix == ".gz":  # without name and time, equal jobs give equal files
                packed = cast("IO[bytes]", gzip.GzipFile("", "wb", 6, raw, mtime=0))
            elif path.suffix == ".xz":
                packed = lzma.LZMAFile(raw, "wb")  # noqa: SIM115  (closed by the TextIOWrapper)
            with io.TextIOWrapper(packed, encoding="utf-8", newline="") as text:
                yield text
        temporary.replace(path)
    except OSError as error:
        why = f"cannot be written ({error.strerror})"
        raise InputError(f"{path}: {why}; check the folder and the space left") from None
    finally:
        temporary.unlink(missing_ok=True)


def stem(path: Path) -> str:
    """A file's name without its extensions."""
    return path.name.split(".")[0] or path.name
