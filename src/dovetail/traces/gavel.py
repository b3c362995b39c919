"""Traces of Gavel (Narayanan et al., OSDI 2020) and Shockwave (Zheng et al., NSDI 2023).

Tab-separated without header, in three layouts that are told apart by their number of fields. Gavel's own
gives steps and no duration: how long a job takes is its steps over its measured throughput.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dovetail.model.errors import TraceError
from dovetail.model.job import PLAIN, Job, Profile, Traits, gang
from dovetail.model.units import SECOND, micros
from dovetail.traces.table import Row, opened, rows, stem
from dovetail.traces.trace import Dropped, Trace, assembled

_START = (
    "job_type",
    "command",
    "working_dir",
    "num_steps_arg",
    "needs_data_dir",
    "total_steps",
    "scale_factor",
)
_LAYOUTS = {
    10: (*_START, "priority_weight", "slo", "arrival_time"),
    12: (*_START, "mode", "priority_weight", "slo", "duration", "arrival_time"),
    7: (
        "job_type",
        "command",
        "num_steps_arg",
        "needs_data_dir",
        "total_steps",
        "arrival_time",
        "scale_factor",
    ),
}


def read_gavel(path: Path, throughputs: Path | str | None = None, reference: str = "v100") -> Trace:
    """Gavel's and Shockwave's traces.

    `throughputs` is Gavel's JSON of steps a second by GPU type, job type and scale; with it a job knows its
    speed on every type, and its duration is that on `reference`. Without it the file must have durations.
    A job's priority is its weight less one, so that the usual weight is the usual priority; its SLO is a
    multiple of its duration.
    """
    file = str(path)
    width = _width(path)
    if "duration" not in _LAYOUTS[width] and throughputs is None:
        raise TraceError(
            file,
            None,
            "has steps but no durations",
            "give throughputs=FILE, Gavel's simulation_throughputs.json",
        )
    speeds = _throughputs(Path(throughputs), reference) if throughputs else {}
    dropped = Dropped()
    kept: dict[tuple[str, int], Traits] = {}
    jobs = []
    for number, row in enumerate(
        rows(path, ("job_type", "total_steps"), header=_LAYOUTS[width], delimiter="\t")
    ):
        kind, scale = row.text("job_type"), row.whole("scale_factor")
        steps = row.number("total_steps")
        if not scale:
            dropped.add("no GPUs")
            continue
        measured = _measured(row, speeds, kind, scale, reference) if speeds else {}
        work = (
            row.span("duration") if "duration" in row.columns else round(steps / measured[reference] * SECOND)
        )
        if not work:
            dropped.add("duration 0")
            continue
        if (kind, scale) not in kept:
            kept[kind, scale] = _traits(measured, reference)
        submit, slo = row.span("arrival_time"), row.number("slo", -1.0)
        priority = max(round(row.number("priority_weight", 1.0)) - 1, 0)
        deadline = submit + micros(slo * work / SECOND) if slo > 0 else None
        jobs.append(
            Job(
                str(number),
                submit,
                gang(scale),
                work,
                work,
                priority=priority,
                deadline=deadline,
                model=kind,
                traits=kept[kind, scale],
            )
        )
    note = (f"durations are those on {reference.upper()}",) if "duration" not in _LAYOUTS[width] else ()
    return assembled(file, stem(path), "gavel", jobs, dropped, notes=note)


def _width(path: Path) -> int:
    with opened(path) as text:
        width = len(text.readline().rstrip("\r\n").split("\t"))
    if width not in _LAYOUTS:
        raise TraceError(
            str(path),
            1,
            f"{width} tab-separated fields",
            "Gavel's traces have 10, Shockwave's 12, old ones 7",
        )
    return width


def _throughputs(path: Path, reference: str) -> Mapping[str, Mapping[str, Any]]:
    with opened(path) as text:
        try:
            table = json.load(text)
        except json.JSONDecodeError as error:
            raise TraceError(
                str(path), error.lineno, f"is no JSON ({error.msg})", "give Gavel's throughputs"
            ) from None
    if not isinstance(table, dict) or reference not in table:
        found = ", ".join(map(str, table)) if isinstance(table, dict) else "no table"
        raise TraceError(
            str(path), None, f"no GPU type {reference!r} in it", f"give reference=TYPE; found {found}"
        )
    return table


def _measured(
    row: Row, speeds: Mapping[str, Mapping[str, Any]], kind: str, scale: int, reference: str
) -> dict[str, float]:
    """Steps a second of a job alone, by GPU type; 0 where it does not fit."""
    key = str((kind, scale))
    found = {gpu: float(table[key]["null"]) for gpu, table in speeds.items() if key in table}
    if not found.get(reference):
        raise row.wrong(
            f"no throughput of {kind} with {scale} GPUs on {reference}", "use the throughputs of this trace"
        )
    return found


def _traits(measured: Mapping[str, float], reference: str) -> Traits:
    if not measured:
        return PLAIN
    return Traits(
        profile=Profile(speeds={gpu.upper(): speed / measured[reference] for gpu, speed in measured.items()})
    )
