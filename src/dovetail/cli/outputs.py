"""Output of the commands: aligned tables, JSON, and files written as a whole. Amounts are `model.formats`."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import typer

from dovetail.model.errors import InputError
from dovetail.model.formats import count as count
from dovetail.model.formats import figure as figure
from dovetail.model.formats import percent as percent
from dovetail.model.formats import unit_for as unit_for

if TYPE_CHECKING:
    from dovetail.sim.run import Run


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
