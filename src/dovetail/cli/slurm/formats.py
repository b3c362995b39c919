"""What Slurm's listings share: options in its words, `%.8j` formats, times as `1-02:03:04`."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from dovetail.cli.outputs import note, plainly, say
from dovetail.model.errors import InputError

Raw = Mapping[str, Any]
Cell = Callable[[Raw], str]
Field = tuple[str, Cell]  # heading and text


class Options(argparse.ArgumentParser):
    """Options of a Slurm command; one that is not known is a one-line error."""

    def __init__(self, name: str, instead: str) -> None:
        super().__init__(prog=name, add_help=False, allow_abbrev=False)
        self._instead = instead
        self._ignored: dict[str, str] = {}

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{self.prog}: {plainly(message)}; {self._instead} has more")

    def ignore(self, *names: str, why: str, value: bool = False) -> None:
        """An option that is accepted, and said to have no effect."""
        name = names[-1]
        self._ignored[name.lstrip("-").replace("-", "_")] = f"{name} is ignored: {why}"
        if value:
            self.add_argument(*names)
        else:
            self.add_argument(*names, action="store_true")

    def read(self, words: Sequence[str]) -> argparse.Namespace:
        found = self.parse_args(list(words))
        for name, text in self._ignored.items():
            if getattr(found, name):
                note(text)
        return found


def listed(text: str | None) -> list[str]:
    """The parts of `a,b,c`."""
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def print_formatted(items: Iterable[Raw], format: str, fields: Mapping[str, Field], *, head: bool) -> None:
    """Rows in a format such as `%.18i %.9P %j`: a dot aligns to the right, a number is the width."""
    pieces = re.split(r"(%\.?\d*[A-Za-z])", format)
    for piece in pieces[1::2]:
        if piece[-1] not in fields:
            known = " ".join(f"%{letter}" for letter in fields)
            raise InputError(f"the format {plainly(piece)} is not known here; there are {known}")
    if head:
        say(_row(pieces, fields, None))
    for item in items:
        say(_row(pieces, fields, item))


def _row(pieces: Sequence[str], fields: Mapping[str, Field], item: Raw | None) -> str:
    parts = []
    for number, piece in enumerate(pieces):
        if not number % 2:
            parts.append(piece)
            continue
        heading, cell = fields[piece[-1]]
        text = heading if item is None else plainly(cell(item))
        width = int("0" + piece[1:-1].lstrip("."))
        text = text[:width] if width else text
        parts.append(text.rjust(width) if piece[1] == "." else text.ljust(width))
    return "".join(parts).rstrip()


def span(seconds: float | None) -> str:
    """A time as Slurm writes it.

    >>> span(75), span(3_725), span(93_784), span(None)
    ('1:15', '1:02:05', '1-02:03:04', 'UNLIMITED')
    """
    if seconds is None:
        return "UNLIMITED"
    minutes, second = divmod(round(max(seconds, 0)), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days}-{hour:02}:{minute:02}:{second:02}"
    return f"{hour}:{minute:02}:{second:02}" if hour else f"{minute}:{second:02}"


def moment(text: Any) -> str:
    """A moment on the local clock as Slurm writes it; N/A if there is none."""
    if not text:
        return "N/A"
    at = text if isinstance(text, datetime) else datetime.fromisoformat(str(text).replace("Z", "+00:00"))
    return at.astimezone().strftime("%Y-%m-%dT%H:%M:%S")


def ranges(indices: Iterable[int]) -> str:
    """Numbers as ranges.

    >>> ranges([0, 1, 2, 5, 7, 8])
    '0-2,5,7-8'
    """
    runs: list[list[int]] = []
    for index in sorted(indices):
        if runs and runs[-1][1] == index - 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    return ",".join(f"{first}-{last}" if first != last else f"{first}" for first, last in runs)
