"""How far a long command is, and how long it will take: one line on stderr, on a terminal only.

It appears after two seconds and is gone at the end, so a quick command shows nothing. With --json or --quiet,
or without a terminal, nothing is shown at all.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, TextIO

import typer

from dovetail.model.formats import duration

AFTER = 2.0  # seconds until the line appears
EVERY = 0.2  # seconds between two drawings
ENOUGH = 0.02  # the share of the work after which the rest can be estimated

Tell = Callable[[float], None]  # the share of the work that is done, from 0 to 1

QuietOption = Annotated[bool, typer.Option("--quiet", help="Show no progress.")]


class Line:
    """The line on the terminal. Threads may share it."""

    def __init__(self, what: str, out: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self.what = what
        self._out, self._clock = out, clock
        self._began = clock()
        self._drawn_at: float | None = None
        self._share = 0.0
        self._lock = threading.Lock()

    def tell(self, share: float, what: str = "") -> None:
        """Draw the line again, unless it was drawn a moment ago."""
        with self._lock:
            self._share = min(max(share, 0.0), 1.0)
            self.what = what or self.what
            now = self._clock()
            soon = self._drawn_at is not None and now < self._drawn_at + EVERY
            if now - self._began < AFTER or soon:
                return
            self._drawn_at = now
            self._out.write(f"\r{self.what}: {self._told(now - self._began)}\x1b[K")
            self._out.flush()

    def again(self) -> None:
        """Draw the line as it was last told, with the time that has passed since."""
        self.tell(self._share)

    def _told(self, spent: float) -> str:
        if self._share < ENOUGH:
            return f"{duration(round(spent))} so far"
        left = spent * (1 - self._share) / self._share
        return f"{100 * self._share:.0f} %, {duration(round(left))} left"

    def clear(self) -> None:
        with self._lock:
            if self._drawn_at is not None:
                self._out.write("\r\x1b[K")
                self._out.flush()


@contextmanager
def line(what: str, *, silent: bool = False) -> Iterator[Line | None]:
    """The line of a piece of work; None if nothing may be shown."""
    out = sys.stderr
    if silent or out is None or not out.isatty():
        yield None
        return
    made = Line(what, out)
    try:
        yield made
    finally:
        made.clear()


@contextmanager
def progress(what: str, *, silent: bool = False) -> Iterator[Tell | None]:
    """A function to tell the share that is done; None if nothing may be shown. It uses no thread."""
    with line(what, silent=silent) as made:
        yield None if made is None else made.tell


@contextmanager
def ticking(what: str, *, silent: bool = False) -> Iterator[Line | None]:
    """The same for work that tells little: a thread draws the line again, so that time is seen to pass."""
    with line(what, silent=silent) as made:
        if made is None:
            yield None
            return
        over = threading.Event()

        def draw(shown: Line = made) -> None:
            while not over.wait(EVERY):
                shown.again()

        drawing = threading.Thread(target=draw, name="progress", daemon=True)
        drawing.start()
        try:
            yield made
        finally:
            over.set()
            drawing.join()
