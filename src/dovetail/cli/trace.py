"""`dovetail trace`: inspect, generate and convert traces."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dovetail.cli.progress import QuietOption, progress, ticking

if TYPE_CHECKING:
    from dovetail.traces import Summary, Trace

trace = typer.Typer(
    name="trace",
    help="Inspect, generate and convert traces.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

FormatOption = Annotated[
    str | None,
    typer.Option("--format", metavar="F", help="Format of the file; by default detected."),
]


@trace.command()
def info(
    name: Annotated[str, typer.Argument(metavar="TRACE", help="A shipped trace or a file.")],
    gpus: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Show the offered load on this many GPUs.")
    ] = None,
    format: FormatOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    quiet: QuietOption = False,
) -> None:
    """Summarise a trace.

    \b
    dovetail trace info philly --gpus 416
    """
    from dovetail.cli.outputs import print_json
    from dovetail.traces import describe

    summary = describe(_loaded(name, format, silent=as_json or quiet), gpus)
    if as_json:
        print_json(_as_json(summary))
    else:
        _print(summary, gpus)


@trace.command()
def generate(
    *,
    like: Annotated[
        str,
        typer.Option(
            metavar="KIND",
            help="philly, itp, helios-venus, helios-saturn, pai or acme-seren.",
            show_default=False,
        ),
    ],
    jobs: Annotated[int, typer.Option(metavar="N", help="How many.", show_default=False)],
    gpus: Annotated[
        int,
        typer.Option(metavar="N", help="GPUs of the cluster that the load refers to.", show_default=False),
    ],
    load: Annotated[
        float, typer.Option(metavar="X", help="Part of the GPU time that the jobs use while they arrive.")
    ] = 0.9,
    seed: Annotated[int, typer.Option(metavar="N", help="The same seed gives the same jobs.")] = 0,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="CSV or JSONL by extension, compressed if .gz or .xz; standard output if piped.",
            show_default=False,
        ),
    ] = None,
    quiet: QuietOption = False,
) -> None:
    """Generate a trace like a published one.

    \b
    dovetail trace generate --like philly --jobs 1000 --gpus 64 --load 0.9 --seed 1 -o mine.csv
    """
    import sys

    from dovetail.cli.outputs import check_writable, note
    from dovetail.model.errors import InputError
    from dovetail.traces import generate as made_up

    if output is None and sys.stdout.isatty():
        raise InputError(f"{jobs:,} jobs would fill the screen; give a file with -o, or pipe the output")
    check_writable(output)
    if output is not None:
        written_as(output)
    with ticking(f"generating {jobs:,} jobs", silent=quiet):
        made = made_up(like, jobs, gpus, load, seed)
    if output is None:
        _to_stdout(made, silent=quiet)
        for told in made.notes[1:]:
            note(told)
    else:
        write(made, output, silent=quiet)
        _generated(made, output, gpus, load)


@trace.command()
def convert(
    source: Annotated[str, typer.Argument(metavar="IN", help="A shipped trace or a file.")],
    target: Annotated[
        Path, typer.Argument(metavar="OUT", help="CSV or JSONL by extension, compressed if .gz or .xz.")
    ],
    format: FormatOption = None,
    quiet: QuietOption = False,
) -> None:
    """Convert a trace of any format to Dovetail CSV or JSONL.

    \b
    dovetail trace convert cluster_log.csv mine.jsonl.gz --format helios
    """
    from dovetail.cli.outputs import check_writable

    check_writable(target, reads=(source,))
    written_as(target)
    loaded = _loaded(source, format, silent=quiet)
    write(loaded, target, silent=quiet)
    _written(loaded, target)


def _loaded(name: str, format: str | None, *, silent: bool) -> Trace:
    from dovetail.traces import load_trace
    from dovetail.traces.files import reading_told

    with progress(f"reading {name}", silent=silent) as tell, reading_told(tell):
        return load_trace(name, format=format)


def written_as(path: Path) -> str:
    """csv or jsonl, by the file extension."""
    from dovetail.model.errors import InputError

    suffixes = [suffix for suffix in path.suffixes if suffix not in (".gz", ".xz")]
    kind = suffixes[-1].lstrip(".") if suffixes else ""
    if kind not in ("csv", "jsonl"):
        raise InputError(
            f"{path}: traces are written as .csv or .jsonl (.gz, .xz); use one of these extensions"
        )
    return kind


def write(made: Trace, path: Path, *, silent: bool = True) -> None:
    """Write the jobs as CSV or JSONL; the file appears only when it is complete."""
    from dovetail.bench.compare import WithProgress
    from dovetail.traces import write_csv, write_jsonl

    with progress(f"writing {path.name}", silent=silent) as tell:
        jobs = made.jobs if tell is None else WithProgress(made.jobs, tell)
        (write_csv if written_as(path) == "csv" else write_jsonl)(jobs, path)


def _to_stdout(made: Trace, *, silent: bool) -> None:
    import shutil
    import sys
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.csv"
        write(made, path, silent=silent)
        with path.open(encoding="utf-8", newline="") as text:
            shutil.copyfileobj(text, sys.stdout)


def _generated(made: Trace, path: Path, gpus: int, load: float) -> None:
    """The load is what is in use while jobs arrive; the work that they offer may be more."""
    from dovetail.cli.outputs import count, note, percent, say
    from dovetail.traces import describe
    from dovetail.traces.loads import in_use_while_arriving

    say(f"{_length(made, path)}, load {load:g} on {count(gpus, 'GPU')}")
    offered = describe(made, gpus).load
    if offered is not None:
        used = percent(in_use_while_arriving(made.jobs, gpus))
        say(f"while they arrive {used} of the GPU time can be in use; offered load {offered:.2f}")
    for told in made.notes[1:]:  # the first repeats the command
        note(told)


def _written(made: Trace, path: Path) -> None:
    from dovetail.cli.outputs import note, say

    say(_length(made, path))
    for told in made.notes:
        note(told)


def _length(made: Trace, path: Path) -> str:
    from dovetail.cli.outputs import count
    from dovetail.model.units import spoken
    from dovetail.traces import describe

    summary = describe(made)
    return f"{path}: {count(summary.jobs, 'job')} over {spoken(summary.span)}"


def _as_json(summary: Summary) -> dict[str, Any]:
    from dovetail.model.units import SECOND

    return {
        "name": summary.name,
        "format": summary.format,
        "began": summary.began,
        "jobs": summary.jobs,
        "tenants": summary.tenants,
        "users": summary.users,
        "models": summary.models,
        "span": summary.span / SECOND,
        "gpu_hours": summary.gpu_hours,
        "sizes": {str(size): jobs for size, jobs in summary.sizes.items()},
        "shared": summary.shared,
        "mean_duration": summary.mean_duration / SECOND,
        "durations": {f"p{100 * q:g}": value / SECOND for q, value in summary.durations.items()},
        "load": summary.load,
        "notes": list(summary.notes),
    }


def _print(summary: Summary, gpus: int | None) -> None:
    from dovetail.cli.outputs import aligned, count, note, percent, say
    from dovetail.model.formats import hours
    from dovetail.model.units import spoken

    load = f", offered load {summary.load:.2f} on {gpus:,} GPUs" if summary.load is not None else ""
    say(
        f"{summary.name}: {count(summary.jobs, 'job')} over {spoken(summary.span)}, "
        f"{hours(summary.gpu_hours)} GPU h{load}"
    )
    say()
    heads = [f"p{100 * q:g}" if q < 1 else "max" for q in summary.durations]
    say(
        aligned(
            [
                ["", "mean", *heads],
                ["duration", spoken(summary.mean_duration), *map(spoken, summary.durations.values())],
            ]
        )
    )
    say()
    top = sorted(summary.sizes.items(), key=lambda item: (-item[1], item[0]))[:12]
    sizes = [["GPUs", *(f"{size:,}" for size, _ in sorted(top))]]
    sizes += [["jobs", *(percent(jobs / summary.jobs) for _, jobs in sorted(top))]]
    say(aligned(sizes))
    if len(summary.sizes) > len(top):
        say(f"  and {len(summary.sizes) - len(top)} rarer sizes")
    say()
    facts = [
        ("tenants", summary.tenants),
        ("users", summary.users),
        ("models", summary.models),
        ("jobs on parts of a GPU", summary.shared),
    ]
    told = ", ".join(f"{number:,} {name}" for name, number in facts if number)
    began = f"began {summary.began}" if summary.began else ""
    if told or began:
        say("; ".join(part for part in (told, began, f"format {summary.format}") if part))
    for line in summary.notes:
        note(line)
    if gpus is None:
        say("its offered load:  --gpus N")
