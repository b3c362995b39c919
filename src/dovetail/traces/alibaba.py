"""Alibaba's GPU clusters: openb (Weng et al., ATC 2023) and spot GPUs (Duan et al., ASPLOS 2026)."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from dovetail.model.job import PLAIN, Job, Shape, Traits
from dovetail.model.units import MIB, WHOLE
from dovetail.traces.csv_rows import Row, rows
from dovetail.traces.files import stem
from dovetail.traces.trace import Dropped, Trace, assembled


def read_openb(path: Path) -> Trace:
    """Pods: one task on one node, with a share of one GPU, whole GPUs, or only CPUs.

    The work of a pod is the time from its scheduling (or creation, if it was never scheduled) to its
    deletion. Latency-sensitive and guaranteed pods have priority 1, the others 0.
    """
    dropped = Dropped()
    jobs = []
    for row in rows(
        path, ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "creation_time", "deletion_time")
    ):
        submit = row.span("creation_time")
        start = row.span("scheduled_time") if row.has("scheduled_time") else submit
        work = row.span("deletion_time") - start
        if work <= 0:
            dropped.add("deleted when it started")
            continue
        urgent = int(row.text("qos") in ("LS", "Guaranteed"))
        jobs.append(Job(row.text("name"), submit, _pod(row), work, work, priority=urgent))
    return assembled(str(path), stem(path), "openb", jobs, dropped)


def _pod(row: Row) -> Shape:
    gpus, milli = row.whole("num_gpu"), row.whole("gpu_milli")
    if gpus and not 0 < milli <= WHOLE:
        raise row.wrong(f"gpu_milli is {milli}", f"give 1 to {WHOLE} for a pod with GPUs")
    types = tuple(kind for kind in row.text("gpu_spec").split("|") if kind)
    cpus, memory = row.whole("cpu_milli"), row.whole("memory_mib") * MIB
    return _shape(1, gpus, milli if gpus else WHOLE, types, cpus=cpus, memory=memory)


def read_spot_gpu(path: Path) -> Trace:
    """Jobs of workers with GPUs of one model. Spot jobs may be preempted; high-priority jobs (HP) may not.

    gpu_request and cpu_request are read as those of one worker: the README of the trace shows jobs with 94
    workers that ask for 1. A worker that asks for less than one GPU gets that share of a GPU.
    """
    needed = (
        "job_name",
        "organization",
        "gpu_model",
        "gpu_request",
        "worker_num",
        "submit_time",
        "duration",
        "job_type",
    )
    dropped = Dropped()
    firm = Traits(preemptible=False)
    jobs = []
    for row in rows(path, needed):
        work, workers, gpus = row.span("duration"), row.whole("worker_num"), row.number("gpu_request")
        if not work or not workers:
            dropped.add("duration 0" if not work else "no workers")
            continue
        if gpus < 0 or (gpus > 1 and gpus != int(gpus)):
            raise row.wrong(
                f"gpu_request is {row.text('gpu_request')}", "give whole GPUs, or a share of one GPU"
            )
        each, milli = (int(gpus), WHOLE) if gpus >= 1 or not gpus else (1, max(round(gpus * WHOLE), 1))
        types = (row.text("gpu_model"),) if row.has("gpu_model") and gpus else ()
        shape = _shape(workers, each, milli, types, cpus=round(row.number("cpu_request", 0.0) * 1_000))
        high = row.text("job_type") == "HP"
        name, tenant = row.text("job_name"), row.text("organization")
        traits = firm if high else PLAIN
        jobs.append(
            Job(name, row.span("submit_time"), shape, work, work, tenant, priority=int(high), traits=traits)
        )
    return assembled(str(path), stem(path), "spot-gpu", jobs, dropped)


@lru_cache(maxsize=65_536)
def _shape(tasks: int, each: int, milli: int, types: tuple[str, ...], *, cpus: int, memory: int = 0) -> Shape:
    return Shape(tasks, each, milli, types=types, cpus=cpus, memory=memory)
