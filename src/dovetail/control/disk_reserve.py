"""Space that is kept on the disk of the plane, so that jobs can be cancelled when it is full.

A file of this size lies in the state folder. When nothing can be written, the plane removes it and goes on; a
thread makes it again when there is space. Until then no job is accepted, so that the space is left for
cancelling jobs and for recording their ends.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from dovetail.control.store import StoreError
from dovetail.model.units import MIB

NAME = "reserve"
LARGEST = 64 * MIB
PART = 20  # a smaller disk keeps one part in so many
CHECK_EVERY = 10.0  # seconds

log = logging.getLogger("dovetail.plane")


class Disk(NamedTuple):
    """The disk of a folder, in bytes."""

    free: int
    reserve: int

    @property
    def is_full(self) -> bool:
        """Whether there is no more left than the reserve, in the file or given back, and a little."""
        return self.free < self.reserve * 5 // 4


def disk_of(folder: Path) -> Disk:
    found = os.statvfs(folder)
    free = found.f_frsize * (found.f_bfree if os.geteuid() == 0 else found.f_bavail)
    return Disk(free, min(LARGEST, found.f_frsize * found.f_blocks // PART))


def check_space(folder: Path) -> None:
    """Refuse a submission while the disk is full."""
    try:
        disk = disk_of(folder)
    except OSError:
        return
    if disk.is_full:
        raise StoreError(
            f"the disk of {folder} is full ({disk.free // MIB} MiB are left); no job is accepted: "
            "cancel jobs that fill it, or make room"
        )


def release(folder: Path) -> bool:
    """Give the space back to the disk, if the disk is full; whether there was some."""
    try:
        if not disk_of(folder).is_full:
            return False
        (folder / NAME).unlink()
    except OSError:
        return False
    log.error("the disk of %s is full; its reserve is in use, to cancel jobs and record their ends", folder)
    return True


def keep(folder: Path) -> None:
    """Make the reserve, if it is not there and the disk has space for it."""
    path = folder / NAME
    with suppress(OSError):
        disk = disk_of(folder)
        if path.exists() or disk.free < 3 * disk.reserve:  # it leaves more than a full disk has
            return
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(handle, 0, disk.reserve)
        except OSError:
            path.unlink()
        finally:
            os.close(handle)


@contextmanager
def kept(folder: Path) -> Iterator[None]:
    """Keep the reserve, on a thread of its own, until the context ends."""
    closing = threading.Event()

    def work() -> None:
        while True:
            keep(folder)
            if closing.wait(CHECK_EVERY):
                return

    thread = threading.Thread(target=work, name="reserve", daemon=True)
    thread.start()
    try:
        yield
    finally:
        closing.set()
        thread.join(timeout=60)
