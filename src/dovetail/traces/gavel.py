"""Traces of Gavel (Narayanan et al., OSDI 2020) and Shockwave (Zheng et al., NSDI 2023).

Tab-separated without header, in three layouts with different numbers of fields. Gavel's own layout gives
steps and no duration: the duration of a job is its steps over its measured throughput.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from dovetail.model.errors import TraceError
from dovetail.model.job import PLAIN, Job, Profile, Shape, Traits, gang
from dovetail.model.units import SECOND, micros
from dovetail.traces.batch_schedules import Regimes, regimes
from dovetail.traces.csv_rows import Row, rows
from dovetail.traces.files import opened, stem
from dovetail.traces.profiles import Throughputs, load_throughputs
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


def read_gavel(
    path: Path,
    throughputs: Path | str | None = None,
    reference: str = "",
    types: Sequence[str] = (),
) -> Trace:
    """Gavel's and Shockwave's traces.

    `throughputs` is a file of steps per second by GPU type, job type and scale, or `gavel` for Gavel's own
    measurements. With it a job has a measured speed on every type, alone, split over nodes, and on the same
    GPUs as each other model of the trace with the same number of GPUs. It never runs on types where it does
    not fit. Its duration is that on `reference` (V100 if measured, else the first type of the file). Without
    throughputs the trace must have durations. `types` are those of the cluster; each must be in the file.

    If the trace has modes (Shockwave's) and there are throughputs, a job speeds up when its batch size grows
    (`batch_schedules`); its duration is that at its first batch size.

    The priority of a job is its weight minus one, so that the default weight is the default priority. Its SLO
    is a multiple of its duration.
    """
    file = str(path)
    width = _width(path)
    if "duration" not in _LAYOUTS[width] and throughputs is None:
        raise TraceError(
            file,
            None,
            "has steps but no durations",
            "give throughputs=FILE (--throughputs FILE), or gavel for Gavel's own measurements",
        )
    speeds = load_throughputs(throughputs) if throughputs is not None else None
    if speeds is not None:
        reference = _reference(speeds, reference, types)
    layout = _LAYOUTS[width]
    lines = partial(rows, path, ("job_type", "total_steps"), header=layout, delimiter="\t")
    others = (
        {(row.text("job_type"), row.whole("scale_factor")): None for row in lines()} if speeds else {}
    )  # in the order of the file
    dropped = Dropped()
    kept: dict[tuple[str, int], tuple[Shape, Traits]] = {}
    growing: dict[tuple[str, int, Regimes], Traits] = {}
    jobs = []
    for number, row in enumerate(lines()):
        kind, scale = row.text("job_type"), row.whole("scale_factor")
        steps = row.number("total_steps")
        if not scale:
            dropped.add("no GPUs")
            continue
        if (kind, scale) not in kept:
            kept[kind, scale] = (
                _measured(row, speeds, kind, scale, reference, types, [m for m, n in others if n == scale])
                if speeds
                else (gang(scale), PLAIN)
            )
        shape, traits = kept[kind, scale]
        if speeds and "mode" in row.columns:
            traits = _growing(row, speeds, kind, scale, reference, traits, growing)
        if "duration" in row.columns:
            work = row.span("duration")
        else:
            assert traits.profile is not None
            work = round(steps / traits.profile.pace * SECOND)
        if not work:
            dropped.add("duration 0")
            continue
        submit, slo = row.span("arrival_time"), row.number("slo", -1.0)
        priority = max(round(row.number("priority_weight", 1.0)) - 1, 0)
        deadline = submit + micros(slo * work / SECOND) if slo > 0 else None
        jobs.append(
            Job(
                str(number),
                submit,
                shape,
                work,
                work,
                priority=priority,
                deadline=deadline,
                model=kind,
                traits=traits,
            )
        )
    note = (f"durations are those on {reference.upper()}",) if "duration" not in layout else ()
    return assembled(file, stem(path), "gavel", jobs, dropped, notes=note)


def _growing(
    row: Row,
    speeds: Throughputs,
    kind: str,
    scale: int,
    reference: str,
    traits: Traits,
    kept: dict[tuple[str, int, Regimes], Traits],
) -> Traits:
    """The traits with the regimes of a growing batch size, if the job has one."""

    def pace(kind: str) -> float | None:
        return speeds.single(kind, scale, reference)

    try:
        found = regimes(kind, scale, row.text("mode"), row.number("total_steps"), pace)
    except ValueError as error:
        raise row.wrong(str(error)) from None
    if not found or traits.profile is None:
        return traits
    if (kind, scale, found) not in kept:
        kept[kind, scale, found] = replace(traits, profile=replace(traits.profile, regimes=found))
    return kept[kind, scale, found]


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


def _reference(speeds: Throughputs, asked: str, types: Sequence[str]) -> str:
    for kind in (*types, *([asked] if asked else [])):
        if kind.upper() not in speeds.types:
            raise TraceError(
                speeds.file,
                None,
                f"no GPU type {kind!r} in it",
                f"found {', '.join(speeds.types)}; use these, as in --cluster 8x1:{speeds.types[0]}",
            )
    return asked or ("V100" if "V100" in speeds.types else speeds.types[0])


def _measured(
    row: Row,
    speeds: Throughputs,
    kind: str,
    scale: int,
    reference: str,
    types: Sequence[str],
    others: Sequence[str],
) -> tuple[Shape, Traits]:
    """The GPU types a job can run on, and its speeds, alone and sharing GPUs; only measured types."""
    named = {name.upper(): name for name in types}
    names = [*named.values(), *(name for name in speeds.types if name not in named)]
    found = {name: speeds.single(kind, scale, name) or 0.0 for name in names}
    pace = speeds.single(kind, scale, reference)
    if not pace:
        raise row.wrong(
            f"no throughput of {kind!r} on {scale} {reference.upper()} in {speeds.file}",
            "give the throughputs of this trace",
        )
    fits = tuple(name for name in names if found[name])
    shape = gang(scale, fits if len(fits) < len(names) else ())
    apart = {name: speeds.single(kind, scale, name, consolidated=False) for name in fits if scale > 1}
    beside = {
        name: {other: pair[0] / pace for other in others if (pair := speeds.pair(kind, other, scale, name))}
        for name in fits
    }
    profile = Profile(
        speeds={name: speed / pace for name, speed in found.items()},
        split={name: found[name] / speed for name, speed in apart.items() if speed} or 1.0,
        pace=pace,
        beside={name: measured for name, measured in beside.items() if measured},
    )
    return shape, Traits(profile=profile)
