"""The formats of traces, and detection of the format from the header of a file.

Every published format has columns that no other has. The first row of the table below whose columns are all
in the header decides, so more specific formats come before more general ones.
"""

from __future__ import annotations

import csv
from collections.abc import Collection
from dataclasses import replace
from functools import cache
from pathlib import Path

from dovetail.model.errors import TraceError, UnknownName
from dovetail.model.job import Job, Shape
from dovetail.model.registry import Registry
from dovetail.traces.files import opened
from dovetail.traces.shipped import BEGAN, SHIPPED, shipped_name
from dovetail.traces.trace import Trace

FORMATS: Registry[Trace] = Registry(
    "trace format",
    {
        "csv": "dovetail.traces.dovetail_csv:read_csv",
        "jsonl": "dovetail.traces.jsonl:read_jsonl",
        "philly-json": "dovetail.traces.microsoft:read_philly_json",
        "philly-csv": "dovetail.traces.microsoft:read_philly_csv",
        "itp": "dovetail.traces.microsoft:read_itp",
        "elasticflow": "dovetail.traces.microsoft:read_elasticflow",
        "helios": "dovetail.traces.sensetime:read_helios",
        "lucid": "dovetail.traces.sensetime:read_lucid",
        "acme": "dovetail.traces.sensetime:read_acme",
        "pai": "dovetail.traces.pai:read_pai",
        "pai-sim": "dovetail.traces.pai:read_pai_simulator",
        "openb": "dovetail.traces.alibaba:read_openb",
        "spot-gpu": "dovetail.traces.alibaba:read_spot_gpu",
        "pollux": "dovetail.traces.pollux:read_pollux",
        "tiresias": "dovetail.traces.simulators:read_tiresias",
        "muri": "dovetail.traces.simulators:read_muri",
        "chronus": "dovetail.traces.simulators:read_chronus",
        "synergy": "dovetail.traces.simulators:read_synergy",
        "gavel": "dovetail.traces.gavel:read_gavel",
    },
    plugins="dovetail.traces",
)

_SIGNS: tuple[tuple[str, frozenset[str]], ...] = tuple(
    (name, frozenset(columns.split(",")))
    for name, columns in (
        ("csv", "id,submit,gpus,duration"),
        ("philly-csv", "timestamp,duration,num_gpus,cluster"),
        ("muri", "job_id,num_gpu,submit_time,duration,iteration_time,resource_time_0"),
        ("chronus", "job_id,num_gpu,submit_time,duration,expect_time_list"),
        ("pai-sim", "job_id,num_inst,num_gpu,submit_time,duration,gpu_type"),
        ("elasticflow", "job_id,submission_time,num_gpu,duration,deadline"),
        ("elasticflow", "job_id,submit_time,num_gpu,duration,ddl"),
        ("itp", "job_id,submission_time,num_gpu,duration"),
        ("tiresias", "job_id,num_gpu,submit_time,duration"),
        ("acme", "job_id,gpu_num,state,submit_time,duration,type"),
        ("helios", "job_id,gpu_num,state,submit_time,duration,vc,start_time"),
        ("lucid", "job_id,gpu_num,submit_time,duration,vc"),
        ("openb", "name,cpu_milli,memory_mib,num_gpu,gpu_milli"),
        ("spot-gpu", "job_name,gpu_model,gpu_request,worker_num,submit_time,duration"),
        ("pollux", "name,time,application,num_replicas,batch_size"),
        ("pai", "job_name,task_name,inst_num,plan_gpu"),
    )
)


def load_trace(
    name_or_path: str | Path,
    *,
    format: str | None = None,
    cluster_types: Collection[str] | None = None,
    **options: object,
) -> Trace:
    """A shipped trace by name, or a file in any format of FORMATS; `options` go to its reader.

    With `cluster_types`, jobs that ask for GPU types which the cluster lacks take any type instead, and a
    note gives their number: a published trace has the GPU types of its own cluster.
    """
    known = shipped_name(str(name_or_path)) if format is None else None
    if known is not None:
        path = SHIPPED[known]
        trace = FORMATS.make(sniffed(path), path=path, **options)
        trace = replace(trace, name=known, began=BEGAN.get(known, ""))
    else:
        path = Path(name_or_path)
        if not path.exists() and format is None and not path.suffix and path.parent == Path():
            raise UnknownName("trace", str(name_or_path), SHIPPED)
        trace = FORMATS.make(format or sniffed(path), path=path, **options)
    return trace if cluster_types is None else _fitted(trace, frozenset(cluster_types))


def sniffed(path: Path) -> str:
    """The format of a file, by its header or first line."""
    if path.is_dir():
        if any(path.glob("pai_task_table*")):
            return "pai"
        raise TraceError(str(path), None, "is a directory without pai_task_table", "name a file in it")
    with opened(path) as text:
        first = text.readline(1 << 16)
        while first and not first.strip():
            first = text.readline(1 << 16)
    first = first.strip()
    if not first:
        raise TraceError(str(path), None, "is empty", "a trace has a header and at least one row")
    if first.startswith("["):
        return "philly-json"
    if first.startswith("{"):
        return "jsonl"
    fields = first.split("\t")
    if len(fields) in (7, 10, 12):
        return "gavel"
    names = [name.strip() for name in next(csv.reader([first]), [])]
    for name, columns in _SIGNS:
        if columns <= set(names):
            return name
    if "pai_task_table" in path.name:
        return "pai"
    if len(names) == 5 and _synergy(names):
        return "synergy"
    if set(names) & {"id", "submit", "gpus", "duration"}:
        return "csv"  # probably Dovetail's CSV: its reader says which column is missing
    raise TraceError(
        str(path),
        1,
        f"no known format has the columns {', '.join(names[:8])}{' ...' if len(names) > 8 else ''}",
        "a CSV file needs id, submit, gpus, duration; if it is a file of another format, convert it: "
        f"dovetail trace convert --format F, with F one of {', '.join(FORMATS.names())}",
    )


def _synergy(fields: list[str]) -> bool:
    try:
        int(fields[0]), float(fields[2]), int(fields[3]), int(fields[4])
    except ValueError:
        return False
    return not fields[1].isdecimal()


def _fitted(trace: Trace, types: frozenset[str]) -> Trace:
    """The same jobs for a cluster with these GPU types."""

    @cache
    def fitted(shape: Shape) -> Shape:
        kept = tuple(kind for kind in shape.types if kind in types)
        return shape if kept == shape.types else replace(shape, types=kept)

    def moved(job: Job) -> Job:
        shape = fitted(job.shape)
        return job if shape is job.shape else replace(job, shape=shape)

    freed = sum(1 for job in trace.jobs if job.shape.types and not fitted(job.shape).types)
    if not any(job.shape.types for job in trace.jobs):
        return trace
    note = (
        (f"{freed:,} jobs take any GPU type: the cluster has none of the types they ask for",)
        if freed
        else ()
    )
    return replace(trace, jobs=[moved(job) for job in trace.jobs], notes=(*trace.notes, *note))
