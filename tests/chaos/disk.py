"""What a power cut leaves of the files that the product writes itself.

Two things can be lost, each until it is synced or `WRITTEN_BACK` has passed:

- *names*: files and folders that were made, renamed, linked or removed. They are lost in reverse order, as
  with the log of a journalling file system: if a change is lost, so are all changes after it. A folder that
  is synced keeps the last change in it, and all before.
- *content*: the bytes of a file. What is left is the old content, the new one, a part of it, or zeros. Few
  bytes that are written over as many others are in one sector: they are old or new.

The database is whole: SQLite syncs its own files, and has tests of its own for that.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.room import SECOND, FileId, Room, file_id

WRITTEN_BACK = 30 * SECOND
SECTOR = 512  # bytes


@dataclass(frozen=True, slots=True)
class Renaming:
    """A change of names."""

    at: int
    paths: tuple[str, ...]
    folders: frozenset[FileId]
    undo: Callable[[], None]
    kept: str  # what it removed, under another name; "" if nothing


@dataclass(frozen=True, slots=True)
class Unsynced:
    """A file with content that is not synced."""

    at: int
    old: bytes
    file: str  # another name of it


class Disk:
    """Changes that are not durable."""

    def __init__(self, room: Room, folder: Path) -> None:
        self._room = room
        self._stash = folder / "stash"
        self._stash.mkdir()
        self._number = 0
        self._names: list[Renaming] = []
        self._content: dict[FileId, Unsynced] = {}

    # -- content

    def writes(self, handle: int) -> None:
        """A file is about to be written."""
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode) or (found.st_dev, found.st_ino) in self._content:
            return
        with suppress(OSError):  # it has no name any more
            other = self._kept(f"/proc/self/fd/{handle}", follow=True)
            self._content[file_id(handle)] = Unsynced(self._room.now, Path(other).read_bytes(), other)
        self._write_back()

    def synced(self, handle: int) -> None:
        """A file or a folder is durable."""
        file = file_id(handle)
        if (unsynced := self._content.pop(file, None)) is not None:
            os.unlink(unsynced.file)
        last = max((i for i, change in enumerate(self._names) if file in change.folders), default=-1)
        self._forget(last + 1)

    def _write_back(self) -> None:
        """The kernel writes everything sooner or later."""
        before = self._room.now - WRITTEN_BACK
        for file in [file for file, unsynced in self._content.items() if unsynced.at < before]:
            os.unlink(self._content.pop(file).file)
        self._forget(sum(change.at < before for change in self._names))

    def _forget(self, count: int) -> None:
        for change in self._names[:count]:
            if change.kept:
                os.unlink(change.kept)
        del self._names[:count]

    def is_durable(self, path: str) -> bool:
        """Whether a power cut leaves this file as it is."""
        self._write_back()
        try:
            found = os.stat(path, follow_symlinks=False)
        except OSError:
            return False
        renamed = any(path in change.paths for change in self._names)
        return not renamed and (found.st_dev, found.st_ino) not in self._content

    # -- names

    def made(self, path: str) -> None:
        """A name is new: of a file, a folder or a link."""

        def undo() -> None:
            if os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path)
            else:
                os.unlink(path)

        self._changed(undo, path)

    def unlinks(self, path: str) -> None:
        """A file is about to be removed."""
        kept = self._kept(path)
        self._changed(lambda: os.link(kept, path, follow_symlinks=False), path, kept=kept)

    def removed(self, path: str) -> None:
        """An empty folder was removed."""
        self._changed(lambda: os.mkdir(path, 0o700), path)

    def renames(self, old: str, new: str) -> None:
        """A file is about to be renamed, perhaps over another one."""
        kept = self._kept(new) if os.path.lexists(new) else ""

        def undo() -> None:
            os.rename(new, old)
            if kept:
                os.link(kept, new, follow_symlinks=False)

        self._changed(undo, old, new, kept=kept)

    def _changed(self, undo: Callable[[], None], *paths: str, kept: str = "") -> None:
        folders = set()
        for path in paths:
            found = os.stat(os.path.dirname(path))
            folders.add((found.st_dev, found.st_ino))
        self._names.append(Renaming(self._room.now, paths, frozenset(folders), undo, kept))
        self._write_back()

    def _kept(self, path: str, *, follow: bool = False) -> str:
        self._number += 1
        other = str(self._stash / str(self._number))
        os.link(path, other, follow_symlinks=follow)
        return other

    # -- the cut

    def power_lost(self) -> None:
        """All that was not durable may be gone."""
        pick = self._room.random
        self._write_back()
        lost = pick.choice((0, pick.randint(0, len(self._names)), len(self._names)))
        for change in reversed(self._names[len(self._names) - lost :]):
            with suppress(OSError):  # the room has touched it too
                change.undo()
        torn = [unsynced for unsynced in self._content.values() if self._tear(unsynced)]
        if lost or torn:
            self._room.note(f"the power cut has lost {lost} names and torn {len(torn)} files")
        for unsynced in self._content.values():
            os.unlink(unsynced.file)
        self._content.clear()
        self._forget(len(self._names))

    def _tear(self, unsynced: Unsynced) -> bool:
        pick, new = self._room.random, Path(unsynced.file).read_bytes()
        left = [new, unsynced.old]
        if not len(unsynced.old) == len(new) <= SECTOR:
            left += [new[: pick.randint(0, len(new))], b"\0" * len(new)]
        found = pick.choice(left)
        if found == new:
            return False
        Path(unsynced.file).write_bytes(found)
        return True
