"""JSON files that are written whole or not at all, that survive a power cut, and that are read as hostile.

A job may run under the account of its supervisor, and can then write to every file of its attempt. So a file
is read only if it is a regular file of this account and not too large; links are not followed; and its
value must have the expected shape.

Every supervisor imports this module. `json` builds regular expressions when it is imported, which would
double the start-up of a supervisor, so its C half is used directly.
"""

# ruff: noqa: SIM105  (contextlib costs too much to import)

from __future__ import annotations

import _json
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SPARE = 1 << 13  # bytes that are kept for a small file
LARGEST = 1 << 20  # bytes, unless the reader says otherwise
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
REGULAR, KIND = 0o100000, 0o170000  # of `st_mode`; the module `stat` need not be imported for them
WHITESPACE = " \t\n\r"


class Unreadable(Exception):
    """A file does not hold what it should; the message says why in a few words."""


class _Options:
    """The attributes that the C scanner of `json` reads from its decoder."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = float
    array_hook = None


def read_json(file: str, largest: int = LARGEST) -> Any:
    """The value in a file; None if the file does not exist. Raises Unreadable for anything but JSON."""
    data = read_bounded(file, largest)
    if data is None:
        return None
    try:
        text = data.decode()
        begin = len(text) - len(text.lstrip(WHITESPACE))
        value, end = _json.make_scanner(_Options)(text, begin)  # type: ignore[arg-type]
    except (StopIteration, ValueError, RecursionError, SystemError):  # the last if `json` is not imported
        raise Unreadable("it is empty" if not data.strip() else "it is not valid JSON") from None
    if text[end:].strip(WHITESPACE):
        raise Unreadable("it is not valid JSON")
    return value


def read_bounded(file: str, largest: int) -> bytes | None:
    """The content of a regular file of this account; None if it does not exist. Links are not followed."""
    try:
        handle = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as problem:
        raise Unreadable(getattr(problem, "strerror", None) or str(problem)) from None
    try:
        found = os.fstat(handle)
        if found.st_mode & KIND != REGULAR:
            raise Unreadable("it is not a regular file")
        if found.st_uid != os.geteuid():
            raise Unreadable("it belongs to another account")
        parts, left = [], largest + 1
        while left > 0 and (part := os.read(handle, min(left, 1 << 20))):
            parts.append(part)
            left -= len(part)
    except OSError as problem:
        raise Unreadable(problem.strerror or str(problem)) from None
    finally:
        os.close(handle)
    if left <= 0:
        raise Unreadable(f"it has more than {largest:,} bytes")
    return b"".join(parts)


def check_shape(value: Any, shape: Any, name: str = "the value") -> None:
    """Raise Unreadable unless a value has a shape.

    A shape is a type (exactly this one: True is not a number), a tuple of types, a list with the shape of all
    items, or a dict with the shapes of its keys; `{str: shape}` is a dict with any keys.
    """
    if isinstance(shape, dict):
        if type(value) is not dict:
            raise Unreadable(f"{name} is not an object")
        if str in shape:
            for key, item in value.items():
                check_shape(item, shape[str], repr(key)[:50])
            return
        for key, inner in shape.items():
            if key not in value:
                raise Unreadable(f"{name} has no {key!r}")
            check_shape(value[key], inner, repr(key))
    elif isinstance(shape, list):
        if type(value) is not list:
            raise Unreadable(f"{name} is not a list")
        for item in value:
            check_shape(item, shape[0], f"an item of {name}")
    elif type(value) not in (shape if isinstance(shape, tuple) else (shape,)):
        raise Unreadable(f"{name} has the wrong type")


def check_range(value: int, least: int, most: int, name: str) -> None:
    if not least <= value <= most:
        raise Unreadable(f"{name!r} is out of range")


def as_json(value: Any) -> str:
    """A value as text, as `json.dumps` would give it."""
    if isinstance(value, str):
        return _json.encode_basestring_ascii(value)
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, dict):
        return "{" + ", ".join(f"{as_json(str(k))}: {as_json(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(as_json, value)) + "]"
    return repr(value)


def write_json(
    folder: str, name: str, value: Any, mode: int = 0o600, durable: bool = True, drafts: str = ""
) -> None:
    """Replace a file atomically; if `durable`, it is on disk when this returns.

    It is written to a draft first: in the folder `drafts`, which must be on the same disk, if one is given.
    """
    handle = os.open(folder, FOLDER)
    try:
        source = os.open(drafts, FOLDER) if drafts else handle
        try:
            write_json_at(handle, name, value, mode, durable, source)
        finally:
            if drafts:
                os.close(source)
    finally:
        os.close(handle)
    if durable:
        sync(folder)


def write_json_at(
    folder: int, name: str, value: Any, mode: int = 0o600, durable: bool = True, drafts: int | None = None
) -> None:
    """The same in an open folder that another account may be able to write to. No link is followed."""
    drafts = folder if drafts is None else drafts
    draft = f".{name}.{os.getpid()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        os.unlink(draft, dir_fd=drafts)  # of a process that had this pid before
    except FileNotFoundError:
        pass
    handle = os.open(draft, flags, mode, dir_fd=drafts)
    try:
        os.fchmod(handle, mode)
        data = memoryview((as_json(value) + "\n").encode())
        while data:
            data = data[os.write(handle, data) :]
        if durable:
            os.fsync(handle)
    except OSError:
        os.unlink(draft, dir_fd=drafts)
        raise
    finally:
        os.close(handle)
    os.rename(draft, name, src_dir_fd=drafts, dst_dir_fd=folder)


def keep_space(folder: str, name: str) -> None:
    """Take the space for a small file now, so that it can be written when the disk is full."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    handle = os.open(os.path.join(folder, _spare(name)), flags, 0o600)
    try:
        os.write(handle, b" " * SPARE)
    finally:
        os.close(handle)


def write_json_to_space(folder: str, name: str, value: Any) -> bool:
    """Write a file to the space that was kept for it. False if there is none, or too little."""
    data = (as_json(value) + "\n").encode()
    spare = os.path.join(folder, _spare(name))
    try:
        handle = os.open(spare, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        if len(data) > SPARE or os.fstat(handle).st_size != SPARE:
            return False
        os.pwrite(handle, data, 0)
        os.ftruncate(handle, len(data))
        os.fsync(handle)
        os.rename(spare, os.path.join(folder, name))
    except OSError:
        return False
    finally:
        os.close(handle)
    sync(folder)
    return True


def drop_space(folder: str, name: str) -> None:
    try:
        os.unlink(os.path.join(folder, _spare(name)))
    except OSError:
        pass


def _spare(name: str) -> str:
    return f".{name}.spare"


def sync(folder: str) -> None:
    """Make the names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
