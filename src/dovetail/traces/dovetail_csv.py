"""Dovetail's CSV format: four required columns, and optional ones.

    id,submit,gpus,duration                            required
    user,tenant,priority,model                         text, and a whole number
    deadline,estimate                                  deadline and user estimate of the run time
    gpu_type                                           "A100|V100": any of these types
    each,milli                                         GPUs of a task (one node); thousandths of each GPU
    min_gpus,max_gpus                                  elastic jobs
    cpus,memory                                        cores and bytes (or 32G) of the whole job

Times are seconds (fractions allowed) or 2h30m; submit and deadline count from the start of the trace.

A million rows must read fast: the loop does only what every row needs, each shape is computed once, and rows
with anything unusual are read again by a slower function.
"""

from __future__ import annotations

import csv
import gc
import os
from collections.abc import Callable, Iterable, Iterator
from operator import itemgetter
from pathlib import Path
from typing import cast

from dovetail.model.errors import InputError, TraceError
from dovetail.model.job import PLAIN, Job, Shape, Traits, gang
from dovetail.model.units import SECOND, WHOLE, parse_duration, parse_memory
from dovetail.traces.csv_rows import Row, columns_of
from dovetail.traces.files import opened, replaced, stem
from dovetail.traces.trace import Dropped, Trace, assembled, many

REQUIRED = ("id", "submit", "gpus", "duration")
OPTIONAL = (
    "user",
    "tenant",
    "priority",
    "gpu_type",
    "deadline",
    "min_gpus",
    "max_gpus",
    "model",
    "cpus",
    "memory",
    "estimate",
    "each",
    "milli",
)


def read_csv(path: Path) -> Trace:
    """Read Dovetail's CSV, plain or compressed."""
    file = str(path)
    dropped = Dropped()
    collecting = gc.isenabled()
    gc.disable()  # a million new objects and no garbage: collections would only cost time
    try:
        with opened(path) as text:
            reader = csv.reader(text)
            names = next(reader, None)
            if names is None:
                raise TraceError(file, None, "is empty", f"the first line is {','.join(REQUIRED)}")
            columns = columns_of(file, names, REQUIRED)
            for name in columns:
                if name not in REQUIRED and name not in OPTIONAL:
                    raise TraceError(
                        file,
                        1,
                        f"unknown column {name!r}",
                        f"required are {', '.join(REQUIRED)}; optional are {', '.join(OPTIONAL)}",
                    )
            jobs = _jobs(file, columns, reader, dropped)
    finally:
        if collecting:
            gc.enable()
    return assembled(file, stem(path), "csv", jobs, dropped)


def _jobs(file: str, columns: dict[str, int], reader: Iterator[list[str]], dropped: Dropped) -> list[Job]:
    """The jobs of the rows; unusual rows are left to `_careful`."""
    id_at, submit_at, _, work_at = (columns[name] for name in REQUIRED)
    width = len(columns)
    asked = itemgetter(*(columns[name] for name in ("gpus", *_SHAPING) if name in columns))
    texts = [name for name in ("tenant", "user", "model") if name in columns]
    said = itemgetter(*(columns[name] for name in texts)) if texts else None
    numbers = any(name in columns for name in ("priority", "deadline", "estimate"))
    known: dict[object, tuple[Shape, Traits]] = {}

    ids: list[str] = []
    submits: list[int] = []
    kinds: list[tuple[Shape, Traits]] = []
    works: list[int] = []
    words: list[str | tuple[str, ...]] = []
    counted: list[tuple[int, int, int | None]] = []  # estimate, priority, deadline
    for cells in reader:
        try:
            submit = round(float(cells[submit_at]) * SECOND)
            work = round(float(cells[work_at]) * SECOND)
            kind = known[asked(cells)]
            name = cells[id_at]
            if submit < 0 or work <= 0 or not name or len(cells) != width:
                raise ValueError
            if numbers:
                counted.append(_numbers(columns, cells, work))
        except (ValueError, OverflowError, LookupError):
            if not any(cells):
                continue
            line: int = reader.line_num  # type: ignore[attr-defined]
            job = _careful(_row(file, line, columns, cells), dropped)
            if job is None:
                continue
            name, submit, work = cells[id_at], job.arrived_at, job.work
            kind = known.setdefault(asked(cells), (job.shape, job.traits))
            if numbers:
                counted.append((job.estimate, job.priority, job.deadline))
        ids.append(name)
        submits.append(submit)
        kinds.append(kind)
        works.append(work)
        if said:
            words.append(said(cells))

    fields: dict[str, Iterable[object]] = {"id": ids, "arrived_at": submits, "work": works, "estimate": works}
    fields["shape"], traits = zip(*kinds, strict=True) if kinds else ((), ())
    if any(trait is not PLAIN for trait in traits):
        fields["traits"] = traits
    if counted:
        fields["estimate"], fields["priority"], fields["deadline"] = zip(*counted, strict=True)
    same: dict[str, str] = {}  # one string object for all jobs of a tenant
    for place, column in enumerate(texts):
        said_there = words if len(texts) == 1 else (found[place] for found in words)
        fields[column] = [same.setdefault(word, word) for word in cast("Iterable[str]", said_there)]
    return many(len(ids), **fields)


def _numbers(columns: dict[str, int], cells: list[str], work: int) -> tuple[int, int, int | None]:
    """Estimate, priority and deadline; a ValueError if not plain numbers, for `_careful` to handle."""
    estimate, priority, deadline = (
        cells[columns[name]] if name in columns else "" for name in ("estimate", "priority", "deadline")
    )
    guess = round(float(estimate) * SECOND) if estimate else work
    due = round(float(deadline) * SECOND) if deadline else None
    if guess < 0 or (due is not None and due < 0):
        raise ValueError
    return guess, int(priority) if priority else 0, due


_SHAPING = ("gpu_type", "each", "milli", "min_gpus", "max_gpus", "cpus", "memory")


def _row(file: str, line: int, columns: dict[str, int], cells: list[str]) -> Row:
    if len(cells) != len(columns):
        raise TraceError(
            file,
            line,
            f"{len(cells)} fields instead of {len(columns)}",
            f"the columns are {','.join(columns)}",
        )
    return Row(file, line, columns, cells)


def _careful(row: Row, dropped: Dropped) -> Job | None:
    """Read one row slowly: a job, a counted drop, or an error message."""
    name = row.text("id")
    if not name:
        raise row.wrong("id is empty", "give each job its own id")
    submit, work = _time(row, "submit"), _time(row, "duration")
    shape, traits = _shape_and_traits(row)
    estimate = _time(row, "estimate") if row.has("estimate") else work
    deadline = _time(row, "deadline") if row.has("deadline") else None
    try:
        priority = int(row.text("priority", "0"))
    except ValueError:
        raise row.wrong(f"priority is {row.text('priority')!r}", "give a whole number") from None
    if not work:
        dropped.add("duration 0")
        return None
    texts = (row.text("tenant"), row.text("user"))
    return Job(
        name, submit, shape, work, estimate, *texts, priority, deadline, row.text("model"), traits=traits
    )


def _time(row: Row, column: str) -> int:
    text = row.text(column)
    if not text:
        raise row.wrong(f"{column} is empty", "give seconds, or 2h30m")
    if text.startswith("-"):
        raise row.wrong(f"{column} is {text}", "times and durations are at least 0")
    try:
        return parse_duration(text, bare=SECOND)
    except (ValueError, OverflowError):
        raise row.wrong(f"{column} is {text!r}", "give seconds, or 2h30m") from None


def _shape_and_traits(row: Row) -> tuple[Shape, Traits]:
    gpus = row.whole("gpus")
    each, milli = row.whole("each", 1), row.whole("milli", WHOLE)
    types = tuple(kind.strip() for kind in row.text("gpu_type").split("|") if kind.strip())
    cpus = round(row.number("cpus", 0.0) * 1_000)
    try:
        memory = parse_memory(row.text("memory", "0"), bare=1)
    except ValueError:
        raise row.wrong(f"memory is {row.text('memory')!r}", "give bytes, or 32G") from None
    if cpus < 0:
        raise row.wrong(f"cpus is {row.text('cpus')}", "give cores, at least 0")
    if not 0 < milli <= WHOLE:
        raise row.wrong(f"milli is {milli}", f"give 1 to {WHOLE} thousandths of a GPU")
    if each < 1 or gpus % each:
        raise row.wrong(f"{gpus} GPUs in tasks of {each}", "gpus must be a multiple of each")
    if each == 1 and milli == WHOLE:
        shape = gang(gpus, types, cpus, memory)
    else:
        tasks = max(gpus // each, 1)
        shape = Shape(
            tasks, each if gpus else 0, milli, types=types, cpus=-(-cpus // tasks), memory=-(-memory // tasks)
        )
    if not row.has("min_gpus") and not row.has("max_gpus"):
        return shape, PLAIN
    least, most = (row.whole(name) if row.has(name) else None for name in ("min_gpus", "max_gpus"))
    if (least is not None and (least > gpus or least % each)) or (
        most is not None and (most < gpus or most % each)
    ):
        raise row.wrong(
            f"gpus {gpus} with min_gpus {row.text('min_gpus')} and max_gpus {row.text('max_gpus')}",
            "gpus must lie between them, all multiples of each",
        )
    return shape, Traits(
        least=None if least is None else least // each, most=None if most is None else most // each
    )


# --- writing ---------------------------------------------------------------------------------------

_WRITTEN: dict[str, Callable[[Job], str]] = {
    "user": lambda job: job.user,
    "tenant": lambda job: job.tenant,
    "priority": lambda job: str(job.priority) if job.priority else "",
    "gpu_type": lambda job: "|".join(job.shape.types),
    "deadline": lambda job: "" if job.deadline is None else in_seconds(job.deadline),
    "min_gpus": lambda job: _tasks(job, job.traits.least),
    "max_gpus": lambda job: _tasks(job, job.traits.most),
    "model": lambda job: job.model,
    "cpus": lambda job: _decimal(job.shape.cpus * job.shape.tasks, 1_000) if job.shape.cpus else "",
    "memory": lambda job: str(job.shape.memory * job.shape.tasks) if job.shape.memory else "",
    "estimate": lambda job: "" if job.estimate == job.work else in_seconds(job.estimate),
    "each": lambda job: str(job.shape.each) if job.shape.each > 1 else "",
    "milli": lambda job: str(job.shape.milli) if job.shape.milli != WHOLE else "",
}


def write_csv(jobs: Iterable[Job], path: str | os.PathLike[str]) -> None:
    """Write Dovetail's CSV, with the columns these jobs need.

    Jobs that the columns cannot express (a profile, roles, a slice ...) are refused: write JSONL instead.
    """
    listed = list(jobs)
    needed: set[str] = set()
    plain: set[tuple[int, int]] = set()  # shapes and traits already checked, by identity
    for job in listed:
        key = (id(job.shape), id(job.traits))
        if key not in plain:
            plain.add(key)
            _refuse_what_csv_cannot_express(job, path)
            needed.update(name for name in _SHAPING if _WRITTEN[name](job))
        if job.group or job.fails_after is not None:
            raise InputError(
                f"{path}: CSV has no columns for group or fails_after of job {job.id!r}; write .jsonl instead"
            )
        if not job.id.strip() or not job.work:
            raise InputError(
                f"{path}: CSV cannot express job {job.id!r} without id or duration; write .jsonl instead"
            )
    rest = ("user", "tenant", "priority", "deadline", "model", "estimate")
    needed.update(name for name in rest if any(_WRITTEN[name](job) for job in listed))
    columns = [name for name in OPTIONAL if name in needed]
    with replaced(Path(path)) as text:
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow((*REQUIRED, *columns))
        if columns:
            cells = [_WRITTEN[name] for name in columns]
            writer.writerows(
                (
                    job.id,
                    in_seconds(job.arrived_at),
                    job.shape.gpus,
                    in_seconds(job.work),
                    *(cell(job) for cell in cells),
                )
                for job in listed
            )
        else:
            writer.writerows(
                (job.id, in_seconds(job.arrived_at), job.shape.gpus, in_seconds(job.work)) for job in listed
            )


def _refuse_what_csv_cannot_express(job: Job, path: str | os.PathLike[str]) -> None:
    shape, traits = job.shape, job.traits
    said = Traits(least=traits.least, most=traits.most)
    if (
        shape.roles
        or shape.slice
        or shape.partition
        or traits != said
        or (not shape.each and shape.tasks > 1)
    ):
        raise InputError(
            f"{path}: CSV cannot express all of job {job.id!r} (roles, slice, traits); write .jsonl instead"
        )


def in_seconds(micros: int) -> str:
    """Microseconds as the shortest exact decimal number of seconds."""
    return _decimal(micros, SECOND)


def _decimal(amount: int, unit: int) -> str:
    whole, rest = divmod(amount, unit)
    return f"{whole}.{rest:0{len(str(unit)) - 1}d}".rstrip("0") if rest else str(whole)


def _tasks(job: Job, tasks: int | None) -> str:
    return "" if tasks is None else str(tasks * job.shape.each)
