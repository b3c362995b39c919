"""Text files as rows that know where they stand, so that every complaint names file and line.

Compression goes by what the file is, not by its name: the first bytes of gzip and xz are unmistakable.
"""

from __future__ import annotations

import csv
import gzip
import io
import lzma
import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Final, cast

from dovetail.model.errors import TraceError
from dovetail.model.units import SECOND

_GZIP, _XZ = b"\x1f\x8b", b"\xfd7zXZ\x00"


@contextmanager
def opened(path: Path) -> Iterator[IO[str]]:
    """The text of a file, plain or compressed; what cannot be read is one line about the file."""
    file = str(path)
    try:
        with path.open("rb") as raw:
            head = raw.peek(6)[:6]
            plain: IO[bytes] = raw
            if head.startswith(_GZIP):
                plain = cast("IO[bytes]", gzip.GzipFile(fileobj=raw))
            elif head.startswith(_XZ):
                plain = lzma.LZMAFile(raw)  # noqa: SIM115  (closed with the text around it)
            elif path.suffix in (".gz", ".xz") and head:
                raise TraceError(
                    file, None, f"is named {path.suffix} but is not compressed", "rename or compress it"
                )
            with io.TextIOWrapper(plain, encoding="utf-8-sig", newline="") as text:
                yield text
    except FileNotFoundError:
        raise TraceError(file, None, "there is no such file", "check the path") from None
    except IsADirectoryError:
        raise TraceError(file, None, "is a directory", "name a file in it") from None
    except PermissionError:
        raise TraceError(file, None, "may not be read", "check its permissions") from None
    except (gzip.BadGzipFile, EOFError, zlib.error, lzma.LZMAError) as error:
        raise TraceError(file, None, f"cannot be unpacked ({error})", "fetch or compress it again") from None
    except UnicodeDecodeError as error:
        raise TraceError(file, None, f"is not UTF-8 text ({error.reason})", "convert it to UTF-8") from None
    except csv.Error as error:
        raise TraceError(
            file, None, f"is no table ({error})", "check that it is the file you meant"
        ) from None


@dataclass(slots=True)
class Row:
    """One row; reading a cell either gives a value that can be trusted or says what is wrong with it."""

    file: str
    line: int
    columns: Mapping[str, int]
    cells: Sequence[str]

    def has(self, column: str) -> bool:
        """Whether the cell is there and not empty."""
        place = self.columns.get(column)
        return place is not None and place < len(self.cells) and self.cells[place].strip() != ""

    def told(self, column: str) -> bool:
        """The same for logs that went through pandas, where nothing is also written nan, NaT or None."""
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
        """A time or duration in microseconds; negative ones are refused. `unit` is its seconds."""
        value = self.number(column)
        if value < 0:
            raise self.wrong(f"{column} is {self.text(column)}", "times and durations are at least 0")
        return round(value * unit * SECOND)

    def instant(self, column: str) -> int | None:
        """Microseconds since 1970 of a date and time, UTC unless it says otherwise; None if empty."""
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
    """Microseconds since 1970 of a written date and time; None if it is none."""
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
    """The rows below the header; `header` is given for files that have none of their own."""
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
                    f"{len(cells)} fields where {width} belong",
                    f"the columns are {','.join(names)}",
                )
            yield Row(file, reader.line_num, columns, cells)


def columns_of(file: str, names: Sequence[str], needed: Sequence[str]) -> dict[str, int]:
    """Where each column stands; a missing one is named along with those found."""
    columns = {name.strip(): place for place, name in enumerate(names)}
    for column in needed:
        if column not in columns:
            raise TraceError(
                file, 1, f"no column {column!r}", f"found {', '.join(columns)}; rename one or name the format"
            )
    return columns


def stem(path: Path) -> str:
    """A file's name without its extensions."""
    return path.name.split(".")[0] or path.name
