"""Traces of Microsoft's clusters: Philly (Jeon et al., ATC 2019) and ITP (ElasticFlow, ASPLOS 2023)."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dovetail.model.errors import TraceError
from dovetail.model.job import PLAIN, Job, Profile, Traits, gang
from dovetail.traces.csv_rows import Row, read_instant, rows, written_instant
from dovetail.traces.files import opened, stem
from dovetail.traces.trace import Dropped, Trace, assembled


def read_philly_json(path: Path) -> Trace:
    """The cluster_job_log of msr-fiddle/philly-traces.

    The work of a job is the time of all its attempts with a start and an end; its size is the maximum number
    of GPUs of an attempt. Jobs that never started, or had not ended at the snapshot, are dropped.
    """
    file = str(path)
    dropped = Dropped()
    found: list[tuple[str, int, int, int, str, str]] = []
    for line, said in _objects(path):
        try:
            submit = read_instant(said["submitted_time"] or "")
            name, tenant, user, attempts = said["jobid"], said["vc"], said["user"], said["attempts"]
            gpus = max(
                (sum(len(host["gpus"]) for host in attempt["detail"]) for attempt in attempts), default=0
            )
            spans = [(_when(a["start_time"]), _when(a["end_time"])) for a in attempts]
        except (KeyError, TypeError, AttributeError) as error:
            raise TraceError(
                file, line, f"is not a job of the Philly log ({error!r})", "see the README of its repository"
            ) from None
        work = sum(end - start for start, end in spans if start is not None and end is not None)
        if submit is None or not any(start is not None for start, _ in spans):
            dropped.add("never started")
        elif work <= 0:
            dropped.add("no attempt with a start and a later end")
        elif not gpus:
            dropped.add("no GPUs")
        else:
            found.append((name, submit, gpus, work, tenant, user))
    first = min((job[1] for job in found), default=0)
    jobs = [
        Job(name, at - first, gang(gpus), work, work, vc, user) for name, at, gpus, work, vc, user in found
    ]
    return assembled(file, stem(path), "philly-json", jobs, dropped, began=written_instant(first))


def _when(text: str | None) -> int | None:
    return read_instant(text) if text else None


def _objects(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a JSON array, one at a time: the log has a gigabyte and must not be held in memory."""
    decoder = json.JSONDecoder()
    with opened(path) as text:
        buffer, line, ended = "", 1, False
        while True:
            rest = buffer.lstrip(" \t\r\n,[")
            line += buffer[: len(buffer) - len(rest)].count("\n")
            buffer = rest
            if buffer.startswith("]") or (ended and not buffer):
                return
            try:
                said, end = decoder.raw_decode(buffer)
            except json.JSONDecodeError as error:
                more = text.read(1 << 20)
                if not more:
                    raise TraceError(
                        str(path), line, f"is not valid JSON ({error.msg})", "fetch the file again"
                    ) from None
                buffer += more
                continue
            yield line, said
            line += buffer.count("\n", 0, end)
            buffer = buffer[end:]
            if not buffer:
                buffer = text.read(1 << 20)
                ended = not buffer


def read_philly_csv(path: Path) -> Trace:
    """The flat philly.csv that came with Pollux, Sia and ElasticFlow: virtual clusters become tenants."""
    dropped = Dropped()
    found: list[tuple[int, int, int, str, int]] = []
    for row in rows(path, ("timestamp", "duration", "num_gpus", "cluster")):
        submit = row.instant("timestamp")
        if submit is None:
            raise row.wrong("timestamp is empty", "write YYYY-MM-DD HH:MM:SS")
        work, gpus = row.span("duration"), row.whole("num_gpus")
        if not work or not gpus:
            dropped.add("duration 0" if not work else "no GPUs")
            continue
        found.append((submit, gpus, work, row.text("cluster"), len(found)))
    found.sort(key=lambda job: job[0])
    first = found[0][0] if found else 0
    jobs = [
        Job(f"philly-{number}", submit - first, gang(gpus), work, work, vc)
        for number, (submit, gpus, work, vc, _) in enumerate(found)
    ]
    return assembled(str(path), stem(path), "philly-csv", jobs, dropped, began=written_instant(first))


def read_itp(path: Path) -> Trace:
    """ITP raw traces: job_id, submission_time, duration, num_gpu."""
    dropped = Dropped()
    jobs = []
    for row in rows(path, ("job_id", "submission_time", "duration", "num_gpu")):
        submit, work, gpus = row.span("submission_time"), row.span("duration"), row.whole("num_gpu")
        if not work or not gpus:
            dropped.add("duration 0" if not work else "no GPUs")
            continue
        jobs.append(Job(row.text("job_id"), submit, gang(gpus), work, work))
    return assembled(str(path), stem(path), "itp", jobs, dropped)


def read_elasticflow(path: Path, throughputs: Path | str | None = None) -> Trace:
    """ElasticFlow's traces, as published (submission_time, deadline) or for its simulator (submit_time, ddl).

    `throughputs` is a directory with <model>.csv (iterations per second by batch size and GPUs). With it
    jobs are elastic: their speed follows the curve of model and batch size, from 1 GPU to the maximum
    measured.
    """
    dropped = Dropped()
    jobs = []
    traits: dict[tuple[str, str], Traits] = {}
    for row in rows(path, ("job_id", "num_gpu", "duration")):
        submit = row.span(_either(row, "submission_time", "submit_time"))
        due = _either(row, "deadline", "ddl")
        work, gpus = row.span("duration"), row.whole("num_gpu")
        if not work or not gpus:
            dropped.add("duration 0" if not work else "no GPUs")
            continue
        strict = row.has(due) and not row.whole("best_effort", 0)
        model, batch = row.text("model_name"), row.text("batch_size")
        if (model, batch) not in traits:
            traits[model, batch] = _elastic(Path(throughputs), model, batch) if throughputs else PLAIN
        kind = traits[model, batch]
        if kind.most is not None and gpus > kind.most:
            kind = PLAIN
        name = row.text("job_id")
        deadline = row.span(due) if strict else None
        jobs.append(Job(name, submit, gang(gpus), work, work, deadline=deadline, model=model, traits=kind))
    return assembled(str(path), stem(path), "elasticflow", jobs, dropped)


def _either(row: Row, first: str, second: str) -> str:
    if first not in row.columns and second not in row.columns:
        raise TraceError(row.file, 1, f"no column {first!r} or {second!r}", f"found {', '.join(row.columns)}")
    return first if first in row.columns else second


def _elastic(folder: Path, model: str, batch: str) -> Traits:
    """The speed of jobs of this model and batch size by number of GPUs."""
    path = folder / f"{model}.csv"
    with opened(path) as text:
        table = list(csv.reader(text))
    if not table or table[0][:1] != ["global_batch_size"]:
        raise TraceError(str(path), 1, "is not a throughput table", "its first column is global_batch_size")
    for cells in table[1:]:
        if cells and cells[0] == batch:
            try:
                curve = {
                    int(n): float(speed)
                    for n, speed in zip(table[0][1:], cells[1:], strict=True)
                    if float(speed or 0)
                }
            except ValueError as error:
                raise TraceError(str(path), None, f"batch {batch}: {error}", "give numbers") from None
            if curve:
                return Traits(
                    least=min(curve), most=max(curve), profile=Profile(curve=curve, batch=int(batch))
                )
    raise TraceError(
        str(path), None, f"no row for batch size {batch} of {model}", "leave throughputs out, or add it"
    )
