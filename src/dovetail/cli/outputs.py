"""Output of the commands: numbers with units, aligned tables, JSON, and files written as a whole."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import typer

from dovetail.model.errors import InputError

if TYPE_CHECKING:
    from dovetail.sim.run import Run

UNITS = ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min"), (1.0, "s"))


def figure(value: float) -> str:
    """A number with about three significant digits, never with an exponent.

    >>> figure(1234.5), figure(88.04), figure(6.4), figure(0.0), figure(0.004)
    ('1,234', '88.0', '6.40', '0', '0.004')
    """
    size = abs(value)
    if size == 0 or not math.isfinite(size):
        return f"{value:g}"
    if size >= 99.95:
        return f"{value:,.0f}"
    if size >= 9.995:
        return f"{value:.1f}"
    if size >= 0.0995:
        return f"{value:.2f}"
    return f"{value:.3f}" if size >= 0.0005 else "<0.001"


def unit_for(*values: float) -> tuple[float, str]:
    """One unit for all these seconds: the largest that fits at least twice into the first positive value."""
    first = next((value for value in values if value > 0), 0.0)
    return next(((size, name) for size, name in UNITS[1:] if first >= 2 * size), UNITS[-1])


def percent(share: float) -> str:
    if 0 < share < 0.0005:
        return "<0.1 %"
    return f"{100 * share:.1f} %" if share < 0.0995 else f"{100 * share:.0f} %"


def count(number: float, thing: str) -> str:
    """`1 job`, `1,203 jobs`, `0.5 GPUs`.

    >>> count(1, "job"), count(1_203.0, "job"), count(2.5, "GPU")
    ('1 job', '1,203 jobs', '2.5 GPUs')
    """
    told = f"{number:,.0f}" if number == round(number) else f"{number:,.6g}"
    return f"{told} {thing}{'' if number == 1 else 's'}"


def plainly(text: str) -> str:
    """Text from elsewhere, safe for a terminal: control characters are replaced."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else "?" for char in text)


def aligned(rows: Sequence[Sequence[str]], *, left: Sequence[int] = (0,), indent: str = "  ") -> str:
    """Rows as aligned columns; those in `left` are left-aligned, the others right-aligned."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    lines = [
        indent
        + "  ".join(
            cell.ljust(width) if at in left else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    return "\n".join(lines)


def say(text: str = "") -> None:
    typer.echo(text)


def note(text: str) -> None:
    """Print a note on stderr: not part of the answer."""
    typer.echo(f"note: {text}", err=True)


def print_json(value: Mapping[str, Any]) -> None:
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False, default=str))


# --- files -----------------------------------------------------------------------------------------


def check_writable(*paths: Path | None, reads: Sequence[str | Path | None] = ()) -> None:
    """Check the output files before a long run, not after it; `reads` are the inputs of the command."""
    asked = [path for path in paths if path is not None]
    for at, path in enumerate(asked):
        if path.is_dir():
            raise InputError(f"{path}: is a directory; name a file in it")
        if any(is_same_file(path, other) for other in asked[:at]):
            raise InputError(f"{path}: two outputs have this name; give each its own file")
        for text in reads:
            if text is not None and any(is_same_file(path, source) for source in _files_in(str(text))):
                raise InputError(f"{path}: is an input of this command and would be lost; name another file")
        if path.exists() and not path.is_file():
            continue  # a terminal or a pipe
        try:
            with tempfile.TemporaryFile(dir=path.parent):
                pass
        except OSError as error:
            raise InputError(
                f"{path}: its folder is not writable ({error.strerror}); choose another folder"
            ) from None


def is_same_file(one: Path, other: Path) -> bool:
    """Whether two paths name one regular file, by whatever links; a file need not exist yet."""
    try:
        if one.exists() and other.exists():
            return one.is_file() and one.samefile(other)
        return one.resolve() == other.resolve()
    except (OSError, RuntimeError, ValueError):  # a loop of links; a name that no file can have
        return False


def _files_in(text: str) -> Iterator[Path]:
    """The files that an input may name: `T.csv` is one, and so is `policy.py` in `policy.py:mine`."""
    yield Path(text)
    if ":" in text:
        yield Path(text.partition(":")[0])


@contextmanager
def written(path: Path) -> Iterator[IO[str]]:
    """A text file that appears only when it is complete."""
    from dovetail.traces.files import replaced

    if path.exists() and not path.is_file():  # a terminal or a pipe: there is nothing to replace
        with path.open("w", encoding="utf-8", newline="") as text:
            yield text
        return
    with replaced(path) as text:
        yield text


JOB_COLUMNS = (
    *("id", "submit", "start", "finish", "jct", "wait", "first_start"),
    *("preemptions", "gpus", "executed", "tenant", "end"),
)


def write_jobs(run: Run, path: Path) -> None:
    """One row for each job, times in seconds; what did not happen is left empty."""
    import csv

    from dovetail.sim.outcomes import NEVER
    from dovetail.traces.dovetail_csv import in_seconds

    jobs = run.jobs
    with written(path) as text:
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(JOB_COLUMNS)
        waits, first_starts = jobs.wait(run.until).tolist(), jobs.first_start.tolist()
        for number, job in enumerate(jobs.job):
            start, finish, submit = jobs.start[number], jobs.finish[number], job.arrived_at
            end = jobs.end.get(job.id, "finished" if finish != NEVER else "")
            writer.writerow(
                (
                    job.id,
                    in_seconds(submit),
                    "" if start == NEVER else in_seconds(start),
                    "" if finish == NEVER else in_seconds(finish),
                    "" if finish == NEVER else in_seconds(finish - submit),
                    in_seconds(waits[number]),
                    "" if start == NEVER else in_seconds(first_starts[number]),
                    jobs.stops[number],
                    job.shape.gpus,
                    in_seconds(jobs.executed[number]),
                    job.tenant,
                    end,
                )
            )
