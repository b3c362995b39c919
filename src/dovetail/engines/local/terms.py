"""The terms of a local engine, which decide whose orders are carried out.

    ROOT/.active/TERM/JOB@EPOCH     an empty file, the marker of an attempt that is not forgotten

An order takes effect by one system call on a name in the folder of its plane's term: a start makes the marker
there, a forget removes it, a stop is written there and moved to the attempt. A plane that begins a newer term
moves the markers to a folder of its own and removes the older folder. In a removed folder no name can be made
or found, so the orders of the older term fail from then on, however long its plane was stopped before that
call. No lock is held: a plane that is stopped in the middle of an order keeps no other plane from leading.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import suppress

from dovetail.engines.contract import Fenced
from dovetail.engines.local.json_files import sync, write_json


class Term:
    """The term of one engine. Its number is 0 until it begins one; then it may only read."""

    def __init__(self, active: str) -> None:
        self._active = active
        self.number = 0

    @property
    def in_force(self) -> bool:
        return bool(self.number) and self.newest() == self.number

    def newest(self) -> int:
        return max(_terms(self._active), default=0)

    def begin(self, number: int) -> None:
        """Void all older terms. Two planes may do so at once: the one with the newer term prevails."""
        os.makedirs(self._active, mode=0o700, exist_ok=True)
        try:
            os.mkdir(f"{self._active}/{number}", mode=0o700)
        except FileExistsError:
            raise Fenced(f"term {number} was begun already; this plane gives no orders in it") from None
        terms = _terms(self._active)  # after the folder is made: of two planes one at least sees the other
        if max(terms) > number:
            with suppress(OSError):
                os.rmdir(f"{self._active}/{number}")
            raise Fenced(f"term {number} is over: term {max(terms)} has begun")
        self.number = number
        for older in sorted(terms - {number}):
            self._take_over(f"{self._active}/{older}")
        for name in _markers(self._active):  # of a version without terms
            self._move(f"{self._active}/{name}", name)
        sync(self._active)
        self.check()

    def _take_over(self, folder: str) -> None:
        while True:
            try:
                for name in os.listdir(folder):
                    self._move(f"{folder}/{name}", name)
                os.rmdir(folder)
            except FileNotFoundError:
                return
            except OSError as error:
                if error.errno != errno.ENOTEMPTY:  # then an order came in between
                    raise
            else:
                return

    def _move(self, file: str, name: str) -> None:
        with suppress(FileNotFoundError):  # forgotten meanwhile, or a newer term has it
            if "@" in name:
                os.rename(file, f"{self._own()}/{name}")
            else:
                os.unlink(file)  # the draft of an order that was not carried out
        self.check()

    def check(self) -> None:
        """Raise `Fenced` unless orders of this term are carried out.

        A folder that was removed with all terms is made again: no plane has begun a newer one.
        """
        newest = self.newest()
        if self.number and not newest:
            os.makedirs(self._own(), mode=0o700, exist_ok=True)
            newest = self.newest()
        if not self.number or newest != self.number:
            raise self._fenced()

    # --- orders -----------------------------------------------------------------------------------------

    def mark(self, name: str) -> None:
        self._carry_out(lambda: _make(f"{self._own()}/{name}"))

    def unmark(self, name: str) -> None:
        with suppress(FileNotFoundError):  # it has no marker
            self._carry_out(lambda: os.unlink(f"{self._own()}/{name}"))

    def write(self, folder: str, name: str, value: object) -> None:
        """Write a JSON file of an attempt."""
        self._carry_out(lambda: write_json(folder, name, value, drafts=self._own()))

    def _carry_out(self, order: Callable[[], None]) -> None:
        self.check()
        try:
            order()
        except FileNotFoundError:
            self.check()
            raise

    def _own(self) -> str:
        return f"{self._active}/{self.number}"

    def _fenced(self) -> Fenced:
        if not self.number:
            return Fenced("this plane has not begun a term; it gives no orders")
        return Fenced(f"another plane has taken the lead; orders of term {self.number} are refused")

    # --- reading ----------------------------------------------------------------------------------------

    def names(self) -> set[str]:
        """The attempts that are not forgotten, of all terms."""
        return marked_attempts(self._active)

    def has(self, name: str) -> bool:
        return os.path.exists(f"{self._own()}/{name}") or name in self.names()


def marked_attempts(active: str) -> set[str]:
    """The attempts that are not forgotten, as JOB@EPOCH."""
    found = set(_markers(active))
    for term in sorted(_terms(active)):  # markers move to newer terms: in this order none is missed
        found.update(_markers(f"{active}/{term}"))
    return found


def _terms(active: str) -> set[int]:
    try:
        return {int(name) for name in os.listdir(active) if name.isdecimal()}
    except FileNotFoundError:
        return set()


def _markers(folder: str) -> Iterator[str]:
    with suppress(FileNotFoundError):
        yield from (name for name in os.listdir(folder) if "@" in name)


def _make(file: str) -> None:
    os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
