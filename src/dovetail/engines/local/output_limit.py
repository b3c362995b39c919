"""Keeps the output that a supervisor collects below a limit, so that no job fills the disk by printing.

Of a file that is too long, the beginning and the newest part stay, with a line between them that says so. The
file is shortened in place, which works on a full disk too. The job has it open for appending, so it goes on
writing at the new end. What it writes during the last step is lost.

Every supervisor imports this module, so it uses only the cheapest parts of the standard library.
"""

from __future__ import annotations

import os

LEAST = 1 << 16  # bytes of one file, however many files share the limit
PART = 1 << 20  # bytes that are copied at once
ROUNDS = 8  # of copying what was written meanwhile, before the rest is dropped
REGULAR, KIND = 0o100000, 0o170000  # of `st_mode`


class OutputLimit:
    """The output files of one attempt, which share a limit."""

    def __init__(self, files: list[str], limit: int) -> None:
        self._files = files if limit else []
        self._each = max(limit // max(len(files), 1), LEAST)
        self._left_out = dict.fromkeys(files, 0)  # bytes, by file

    def enforce(self) -> None:
        """Shorten the files that are too long."""
        for file in self._files:
            try:
                if os.stat(file, follow_symlinks=False).st_size > self._each:
                    self._shorten(file)
            except OSError:  # removed, or a fault of the disk: there is nothing to shorten
                pass

    def _shorten(self, file: str) -> None:
        handle = os.open(file, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            found = os.fstat(handle)
            if found.st_mode & KIND != REGULAR:
                return
            kept = self._each // 4  # at the beginning, and as much at the end
            source = max(found.st_size - kept, kept)
            notice = self._notice(file, source - kept)
            os.pwrite(handle, notice, kept)
            target = kept + len(notice)
            for _ in range(ROUNDS):
                source, moved = _moved(handle, source, target)
                target += moved
                if os.fstat(handle).st_size <= source:
                    break
            os.ftruncate(handle, target)
        finally:
            os.close(handle)

    def _notice(self, file: str, removed: int) -> bytes:
        self._left_out[file] += removed
        text = (
            f"\n[dovetail: about {self._left_out[file]:,} bytes of output are left out here; "
            f"this file keeps at most {self._each:,}]\n"
        )
        return text.encode()


def _moved(handle: int, source: int, target: int) -> tuple[int, int]:
    """Copy a file from an offset to its end to an earlier place; where that ended, and how much it was."""
    moved = 0
    size = os.fstat(handle).st_size
    while source < size and (part := os.pread(handle, min(PART, size - source), source)):
        os.pwrite(handle, part, target + moved)
        source += len(part)
        moved += len(part)
    return source, moved
