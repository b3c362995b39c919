"""Inputs of research simulators: Tiresias (NSDI 2019), Chronus (SoCC 2021), Muri and Synergy (2022)."""

from __future__ import annotations

from pathlib import Path

from dovetail.model.errors import TraceError
from dovetail.model.job import PLAIN, Job, Profile, Traits, gang
from dovetail.traces.csv_rows import rows
from dovetail.traces.files import stem
from dovetail.traces.trace import Dropped, Trace, assembled

# Models with one very large tensor, which are slow when split over nodes (Gu et al., Tiresias, NSDI 2019).
_SKEWED = Traits(profile=Profile(skewed=True))


def read_tiresias(path: Path) -> Trace:
    """Tiresias' *_job.csv: times in seconds; some models have skewed tensors (VGG, AlexNet)."""
    dropped = Dropped()
    jobs = []
    for row in rows(path, ("job_id", "num_gpu", "submit_time", "duration")):
        work, gpus = row.span("duration"), row.whole("num_gpu")
        if not work or not gpus:
            dropped.add("duration 0" if not work else "no GPUs")
            continue
        model = row.text("model_name")
        traits = _SKEWED if model.startswith(("vgg", "alexnet")) else PLAIN
        jobs.append(
            Job(
                row.text("job_id"),
                row.span("submit_time"),
                gang(gpus),
                work,
                work,
                model=model,
                traits=traits,
            )
        )
    return assembled(str(path), stem(path), "tiresias", jobs, dropped)


def read_muri(path: Path) -> Trace:
    """Muri's traces, in milliseconds. The time on each resource is ignored."""
    dropped = Dropped()
    jobs = []
    for row in rows(path, ("job_id", "num_gpu", "submit_time", "duration", "model_name", "priority")):
        work, gpus = row.span("duration", 1e-3), row.whole("num_gpu")
        if not work or not gpus:
            dropped.add("duration 0" if not work else "no GPUs")
            continue
        model, priority = row.text("model_name"), row.whole("priority")
        submit = row.span("submit_time", 1e-3)
        jobs.append(Job(row.text("job_id"), submit, gang(gpus), work, work, priority=priority, model=model))
    return assembled(str(path), stem(path), "muri", jobs, dropped)


def read_chronus(path: Path, unit: float = 60.0) -> Trace:
    """Chronus' traces; `unit` is the time unit of the file in seconds.

    The unit is not documented. Minutes is an inference: the jobs arrive over 20,151 units (two weeks to the
    hour), run up to 4,317 (three days), and lease terms are 20. The first entry of expect_time_list is the
    deadline, counted from submission; later entries, at which a soft job is worth less, are ignored.
    """
    dropped = Dropped()
    jobs = []
    for row in rows(path, ("job_id", "user", "num_gpu", "submit_time", "duration", "expect_time_list")):
        work, gpus = row.span("duration", unit), row.whole("num_gpu")
        if not work or not gpus:
            dropped.add("duration 0" if not work else "no GPUs")
            continue
        submit = row.span("submit_time", unit)
        deadline = None
        if not row.whole("best_effort", 0) and row.has("expect_time_list"):
            first = row.text("expect_time_list").split("-")[0]
            try:
                deadline = submit + round(float(first) * unit * 1_000_000)
            except ValueError:
                raise row.wrong(f"expect_time_list is {first!r}", "give numbers joined by -") from None
        vc, model = row.text("user"), row.text("model_name")
        jobs.append(
            Job(row.text("job_id"), submit, gang(gpus), work, work, vc, deadline=deadline, model=model)
        )
    return assembled(str(path), stem(path), "chronus", jobs, dropped)


def read_synergy(path: Path, iteration: float | None = None) -> Trace:
    """Synergy's traces without header: job, model, arrival (s), iterations, GPUs.

    The time of an iteration is in Synergy's model zoo, not in the file, so `iteration` must give it
    (seconds).
    """
    if iteration is None:
        raise TraceError(
            str(path),
            None,
            "has iterations but no durations",
            "give iteration=SECONDS, the time of one iteration",
        )
    dropped = Dropped()
    jobs = []
    header = ("job_id", "model_name", "arrival_time", "iterations", "num_gpu")
    for row in rows(path, header, header=header):
        work, gpus = row.span("iterations", iteration), row.whole("num_gpu")
        if not work or not gpus:
            dropped.add("duration 0" if not work else "no GPUs")
            continue
        submit, model = row.span("arrival_time"), row.text("model_name")
        jobs.append(Job(row.text("job_id"), submit, gang(gpus), work, work, model=model))
    note = f"the time of an iteration was set to {iteration:g} s"
    return assembled(str(path), stem(path), "synergy", jobs, dropped, notes=(note,))
