"""Traces of SenseTime and Shanghai AI Laboratory: Helios (SC 2021), Lucid (ASPLOS 2023), Acme (NSDI 2024).

The logs come from Slurm: a job asks for GPUs and CPUs and belongs to a virtual cluster. CPU requests turn a
dozen shapes into thousands and never limit a GPU node, so they, and jobs without GPUs (half of Helios), are
dropped unless `cpus` is true.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dovetail.model.job import PLAIN, Job, Profile, Shape, Traits, gang
from dovetail.traces.csv_rows import Row, rows, written_instant
from dovetail.traces.files import stem
from dovetail.traces.trace import Dropped, Trace, assembled


def read_helios(path: Path, cpus: bool = False) -> Trace:
    """Helios cluster_log.csv; virtual clusters become tenants. Work is the run time, also of failed jobs."""
    return _slurm(
        path, "helios", ("job_id", "user", "vc", "gpu_num", "submit_time", "start_time", "duration"), cpus
    )


def read_acme(path: Path, cpus: bool = False) -> Trace:
    """Acme trace_seren.csv and trace_kalos.csv; the workload type (pretrain, debug ...) becomes the model."""
    return _slurm(
        path, "acme", ("job_id", "user", "gpu_num", "type", "submit_time", "start_time", "duration"), cpus
    )


def read_lucid(path: Path, cpus: bool = False) -> Trace:
    """Lucid cluster_full_log.csv; it has the GPU utilisation of jobs, so GPU sharing can be simulated."""
    return _slurm(path, "lucid", ("job_id", "user", "vc", "gpu_num", "submit_time", "duration"), cpus)


def _slurm(path: Path, format: str, needed: Sequence[str], cpus: bool) -> Trace:
    dropped = Dropped()
    found: list[tuple[Row, int, int, Shape]] = []
    for row in rows(path, needed):
        submit = row.instant("submit_time")
        if submit is None:
            raise row.wrong("submit_time is empty", "write YYYY-MM-DD HH:MM:SS")
        gpus = row.whole("gpu_num")
        if "start_time" in row.columns and not row.has_value("start_time"):
            dropped.add("never started")
        elif not gpus and not cpus:
            dropped.add("no GPUs (keep them with cpus=true)")
        elif not row.has_value("duration") or not (work := row.span("duration")):
            dropped.add("duration 0")
        else:
            cores = row.whole("cpu_num") if cpus and row.has_value("cpu_num") else 0
            found.append((row, submit, work, gang(gpus, cpus=cores * 1_000)))
    first = min((submit for _, submit, _, _ in found), default=0)
    traits: dict[float, Traits] = {}
    words: dict[str, str] = {}
    jobs = []
    for row, submit, work, shape in found:
        use = row.number("gpu_util") if row.has_value("gpu_util") else -1.0
        if use not in traits:
            traits[use] = Traits(profile=Profile(use=min(use, 100.0) / 100)) if use >= 0 else PLAIN
        tenant, user, model = (
            words.setdefault(text, text) for text in (row.text("vc"), row.text("user"), _model(row))
        )
        jobs.append(
            Job(
                row.text("job_id"),
                submit - first,
                shape,
                work,
                work,
                tenant,
                user,
                model=model,
                traits=traits[use],
            )
        )
    return assembled(str(path), stem(path), format, jobs, dropped, began=written_instant(first))


def _model(row: Row) -> str:
    return row.text("model") or row.text("type")
