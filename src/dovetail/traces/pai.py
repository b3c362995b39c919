"""Alibaba PAI (Weng et al., MLaaS in the Wild, NSDI 2022): the tables of its trace, and its simulator's CSV.

A PAI job has several tasks (ps, worker, evaluator ...), each with a number of instances that ask for CPU,
memory and a percentage of a GPU. In Dovetail it is a gang of equal tasks, with roles for tasks without GPUs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from dovetail.model.errors import TraceError
from dovetail.model.job import Job, Role, Shape
from dovetail.model.units import GIB, WHOLE
from dovetail.traces.csv_rows import Row, rows
from dovetail.traces.files import opened, stem
from dovetail.traces.trace import Dropped, Trace, assembled

_JOB = ("job_name", "inst_id", "user", "status", "start_time", "end_time")
_TASK = (
    "job_name",
    "task_name",
    "inst_num",
    "status",
    "start_time",
    "end_time",
    "plan_cpu",
    "plan_mem",
    "plan_gpu",
    "gpu_type",
)


@dataclass(slots=True)
class _Task:
    name: str
    count: int
    cpus: int  # per instance, like the fields below
    memory: int
    milli: int
    types: tuple[str, ...]
    start: int
    end: int


def read_pai(path: Path, cpus: bool = False) -> Trace:
    """The v2020 tables: their directory, or the task table alone (then a job is submitted when it starts).

    Tasks with GPUs form one gang. Deviation: where they differ, all get the request of the largest task.
    Tasks without GPUs become roles. Jobs without GPUs are dropped unless `cpus` is true.
    """
    tasks_path, jobs_path = _tables(path)
    dropped = Dropped()
    notes = []
    tasks: dict[str, list[_Task]] = {}
    unended = set()
    for row in rows(tasks_path, _TASK, header=_header(tasks_path, _TASK)):
        job = row.text("job_name")
        if not row.has_value("start_time") or not row.has_value("end_time") or not row.has_value("inst_num"):
            unended.add(job)
            continue
        tasks.setdefault(job, []).append(_task(row))
    told = _submissions(jobs_path) if jobs_path else {}
    jobs = []
    uneven = 0
    for name in unended - tasks.keys():
        del name
        dropped.add("jobs whose tasks never started or never ended")
    for name, parts in tasks.items():
        if name in unended:
            dropped.add("jobs whose tasks never started or never ended")
            continue
        workers = [task for task in parts if task.milli]
        if not workers and not cpus:
            dropped.add("jobs without GPUs (keep them with cpus=true)")
            continue
        start = min(task.start for task in parts)
        work = max(task.end for task in parts) - start
        if work <= 0:
            dropped.add("duration 0")
            continue
        uneven += len({(task.milli, task.types) for task in workers}) > 1
        submit, user = told.get(name, (start, ""))
        jobs.append(Job(name, submit, _gang(parts, workers), work, work, user=user))
    if uneven:
        notes.append(f"{uneven:,} jobs have unequal GPU tasks: all get the request of the largest")
    return assembled(str(path), stem(tasks_path), "pai", jobs, dropped, notes=notes)


def _tables(path: Path) -> tuple[Path, Path | None]:
    folder = path if path.is_dir() else path.parent
    found = [f for f in sorted(folder.glob("pai_task_table*")) if _is_table(f)] if path.is_dir() else [path]
    if not found:
        raise TraceError(str(path), None, "no pai_task_table.csv in it", "unpack pai_task_table.tar.gz there")
    beside = [f for f in sorted(folder.glob("pai_job_table*")) if _is_table(f)]
    return found[0], beside[0] if beside else None


def _is_table(path: Path) -> bool:
    return ".csv" in path.suffixes


def _header(path: Path, names: tuple[str, ...]) -> tuple[str, ...] | None:
    """The header. The published files have none; copies with a header line are accepted."""
    with opened(path) as text:
        return None if text.readline().startswith(names[0]) else names


def _task(row: Row) -> _Task:
    milli = round(row.number("plan_gpu", 0.0) * 10)  # per cent of a GPU
    kind = row.text("gpu_type")
    return _Task(
        row.text("task_name"),
        max(row.whole("inst_num"), 1),
        round(row.number("plan_cpu", 0.0) * 10),
        round(row.number("plan_mem", 0.0) * GIB),
        milli,
        (kind,) if kind and kind != "CPU" and milli else (),
        row.span("start_time"),
        row.span("end_time"),
    )


def _submissions(path: Path) -> dict[str, tuple[int, str]]:
    """The submission time and the user of each job."""
    users: dict[str, str] = {}
    return {
        row.text("job_name"): (row.span("start_time"), users.setdefault(user := row.text("user"), user))
        for row in rows(path, _JOB, header=_header(path, _JOB))
        if row.has_value("start_time")
    }


def _gang(parts: list[_Task], workers: list[_Task]) -> Shape:
    if not workers:
        workers = parts[:1]
    helpers = [task for task in parts if not any(task is worker for worker in workers)]
    roles = tuple(Role(task.name, task.count, task.cpus, task.memory) for task in helpers)
    largest = max(workers, key=lambda task: task.milli)
    return _instances(
        sum(task.count for task in workers),
        largest.milli,
        largest.types,
        max(task.cpus for task in workers),
        memory=max(task.memory for task in workers),
        roles=roles,
    )


@lru_cache(maxsize=65_536)
def _instances(
    count: int,
    milli: int,
    types: tuple[str, ...],
    cpus: int,
    *,
    memory: int = 0,
    roles: tuple[Role, ...] = (),
) -> Shape:
    """The shape of these instances; more than one GPU per instance is rounded up to whole GPUs."""
    each, share = (1, milli) if 0 < milli < WHOLE else (-(-milli // WHOLE), WHOLE)
    return Shape(count, each, share, types=types, cpus=cpus, memory=memory, roles=roles)


def read_pai_simulator(path: Path, types: bool = False) -> Trace:
    """The simulator's CSV: num_gpu (fractions allowed) and num_cpu are those of each instance.

    GPU types are binding only with `types`, like gpu_type_matching=1 of the simulator. Deviation: a job of
    duration 0 is dropped; the simulator gives it a second.
    """
    dropped = Dropped()
    jobs = list(_simulated(path, dropped, types))
    return assembled(str(path), stem(path), "pai-sim", jobs, dropped)


def _simulated(path: Path, dropped: Dropped, typed: bool) -> Iterator[Job]:
    for row in rows(path, ("job_id", "num_inst", "num_gpu", "submit_time", "duration")):
        work, count = row.span("duration"), row.whole("num_inst")
        milli = round(row.number("num_gpu") * WHOLE)
        if milli < 0:
            raise row.wrong(f"num_gpu is {row.text('num_gpu')}", "give GPUs of an instance, at least 0")
        cpus = round(row.number("num_cpu", 0.0) * 1_000)
        if not work or not count or not (milli or cpus):
            dropped.add("duration 0" if not work else "requests no resources")
            continue
        kind = row.text("gpu_type")
        types = (kind,) if typed and milli and kind not in ("", "CPU") else ()
        shape = _instances(count, milli, types, cpus)
        name, user, group = row.text("job_id"), row.text("user"), row.text("group")
        yield Job(name, row.span("submit_time"), shape, work, work, user=user, group=group)
