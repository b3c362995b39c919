"""Rows of CSV files, with file and line for error messages."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from dovetail.model.errors import TraceError
from dovetail.model.units import SECOND
from dovetail.traces.files import opened


@dataclass(slots=True)
class Row:
    """One row. Reading a cell returns a valid value or raises an error that names file, line and column."""

    file: str
    line: int
    columns: Mapping[str, int]
    cells: Sequence[str]

    def has(self, column: str) -> bool:
        """Whether the cell exists and is not empty."""
        place = self.columns.get(column)
        return place is not None and place < len(self.cells) and self.cells[place].strip() != ""

    def has_value(self, column: str) -> bool:
        """Like `has`, for logs written by pandas, where nan, NaT and None mean empty."""
        return self.has(column) and self.text(column) not in ("nan", "NaN", "NaT", "None")

    def text(self, column: str, default: str = "") -> str:
        return self.cells[self.columns[column]].strip() if self.has(column) else default

    def number(self, column: str, default: float | None = None) -> float:
        if not self.has(column):
            if default is not None:
                return default
            raise self.wrong(f"{column} is empty", "give a number")
        text = self.text(column)
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise self.wrong(f"{column} is {text!r}", "give a number")
        return value

    def whole(self, column: str, default: int | None = None) -> int:
        """A count: a whole number of at least 0, also when written 4.0."""
        value = self.number(column, default)
        if value < 0 or value != int(value):
            raise self.wrong(f"{column} is {self.text(column)!r}", "give a whole number of at least 0")
        return int(value)

    def span(self, column: str, unit: float = 1.0) -> int:
        """A time or duration in microseconds; negative ones are refused. `unit` is the seconds per unit."""
        value = self.number(column)
        if value < 0:
            raise self.wrong(f"{column} is {self.text(column)}", "times and durations are at least 0")
        return round(value * unit * SECOND)

    def instant(self, column: str) -> int | None:
        """Microseconds since 1970 of a date and time, UTC unless it has a time zone; None if empty."""
        if not self.has(column):
            return None
        text = self.text(column)
        moment = read_instant(text)
        if moment is None:
            raise self.wrong(f"{column} is {text!r}", "write YYYY-MM-DD HH:MM:SS")
        return moment

    def wrong(self, problem: str, remedy: str = "") -> TraceError:
        return TraceError(self.file, self.line, problem, remedy)


def read_instant(text: str) -> int | None:
    """Microseconds since 1970 of a date and time; None if the text is not one."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    gone = moment - _EPOCH
    return (gone.days * 86_400 + gone.seconds) * SECOND + gone.microseconds


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def written_instant(micros: int) -> str:
    """The inverse of `read_instant`, to the second."""
    return datetime.fromtimestamp(micros // SECOND, UTC).strftime("%Y-%m-%d %H:%M:%S")


def rows(
    path: Path,
    needed: Sequence[str],
    *,
    header: Sequence[str] | None = None,
    delimiter: str = ",",
) -> Iterator[Row]:
    """The rows below the header; `header` is for files without a header line."""
    file = str(path)
    with opened(path) as text:
        reader = csv.reader(text, delimiter=delimiter)
        names = list(header) if header is not None else next(reader, None)
        if names is None:
            raise TraceError(file, None, "is empty", "a trace has a header and at least one row")
        columns = columns_of(file, names, needed)
        width = len(names)
        for cells in reader:
            if not cells or (len(cells) == 1 and not cells[0].strip()):
                continue
            if len(cells) != width:
                raise TraceError(
                    file,
                    reader.line_num,
                    f"{len(cells)} fields instead of {width}",
                    f"the columns are {','.join(names)}",
                )
            yield Row(file, reader.line_num, columns, cells)


def columns_of(file: str, names: Sequence[str], needed: Sequence[str]) -> dict[str, int]:
    """The index of each column; an error names a missing column and those found."""
    columns = {name.strip(): place for place, name in enumerate(names)}
    for column in needed:
        if column not in columns:
            raise TraceError(
                file,
                1,
                f"no column {column!r}",
                f"found {', '.join(columns)}; needed are {', '.join(needed)}: rename a column",
            )
    return columns
