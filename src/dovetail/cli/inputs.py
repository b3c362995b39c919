"""What the verbs are asked, turned into values: traces, clusters, policies with options."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dovetail.model.errors import BadOption, InputError, NeverFits

if TYPE_CHECKING:
    from dovetail.bench.compare import Entrant
    from dovetail.bench.resample import Source
    from dovetail.model.cluster import Cluster
    from dovetail.model.job import Job, Shape
    from dovetail.traces import Trace

TraceArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="TRACE", help="A shipped trace (philly, itp:3, openb) or a file.", show_default=False
    ),
]
ClusterOption = Annotated[
    str,
    typer.Option(
        "--cluster", metavar="SPEC", help="8x8, 4x8:A100,16x4:V100, or a YAML file.", show_default=False
    ),
]
HeadOption = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Take the first N jobs only.", show_default=False)
]
DropOption = Annotated[
    bool, typer.Option("--drop-unfit", help="Leave out the jobs that the cluster could never hold.")
]
RestartOption = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS", min=0.0, help="What a stopped job pays to come back.", show_default=False
    ),
]
ThroughputsOption = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Steps a second by GPU type, for a Gavel trace; gavel: those measured for its paper.",
        show_default=False,
    ),
]
LikeOption = Annotated[
    str | None, typer.Option(metavar="KIND", help="Make up a trace like this one.", show_default=False)
]
JobsOption = Annotated[int, typer.Option("--jobs", metavar="N", min=1, help="How many jobs, with --like.")]
LoadOption = Annotated[float, typer.Option(metavar="X", help="The load it offers, with --like.")]


@dataclass(frozen=True, slots=True)
class Question:
    """Jobs for a cluster, ready to be run."""

    source: Source
    cluster: Cluster
    described: str  # the cluster, as it was asked for
    prepare: Callable[[list[Job]], list[Job]]
    notes: tuple[str, ...]


def read_question(
    trace: str | None,
    cluster: str,
    *,
    like: str | None = None,
    jobs: int = 1000,
    load: float = 0.9,
    head: int | None = None,
    drop_unfit: bool = False,
    restart_cost: float | None = None,
    throughputs: str | None = None,
) -> Question:
    """The trace and the cluster that were named; a job that could never run is found before anything does."""
    from dovetail.bench.resample import Generated, Given
    from dovetail.cli.outputs import count
    from dovetail.traces import load_cluster

    if (trace is None) == (like is None):
        asked = "both a trace and --like" if trace else "no trace"
        raise InputError(f"{asked} was named; give a file, a shipped name such as philly, or --like philly")
    if like is not None and throughputs is not None:
        raise InputError("--throughputs goes with a Gavel trace; one made up with --like has its durations")
    built = load_cluster(cluster)
    source: Source
    notes: list[str] = []
    misfit = _misfit(built)
    if like is not None:
        source = Generated(like, jobs, built.gpus, load)
    else:
        assert trace is not None
        loaded = load_fitting(trace, built, throughputs)
        listed, notes = loaded.jobs[:head], list(loaded.notes)
        unfit = [job for job in listed if misfit(job)]
        if unfit and not drop_unfit:
            raise NeverFits(_too_large(trace, unfit, cluster, misfit))
        if unfit:
            listed = [job for job in listed if not misfit(job)]
            them = "it" if len(unfit) == 1 else "them"
            notes.append(f"{count(len(unfit), 'job')} left out: {cluster} could never hold {them}")
        if not listed:
            raise NeverFits(f"{trace}: {cluster} could hold none of its jobs; give a larger cluster")
        source = Given(replace(loaded, jobs=listed))

    def prepare(made: list[Job]) -> list[Job]:
        if like is not None:
            made = made[:head]
            if any(map(misfit, made)):  # sizes are drawn by GPUs in all; nodes may still be too small
                made = [job for job in made if not misfit(job)]
        return made if restart_cost is None else dearer(made, restart_cost)

    return Question(source, built, cluster, prepare, tuple(notes))


def load_fitting(trace: str, cluster: Cluster, throughputs: str | None = None) -> Trace:
    """A trace; a published one whose GPU types the cluster lacks takes any type, and says so.

    In our own formats a type is meant as it stands, and so are those on which throughputs were measured.
    """
    from dovetail.traces import load_trace
    from dovetail.traces.formats import sniffed
    from dovetail.traces.shipped import shipped_name

    published = shipped_name(trace) is not None
    format = ""
    if not published and Path(trace).exists():
        format = sniffed(Path(trace))
        published = format not in ("csv", "jsonl")
    types = tuple(dict.fromkeys(kind.name for kind in cluster.types))
    if throughputs is not None and (published or format):
        if format != "gavel":
            is_what = f"of the format {format}" if format else "a shipped trace"
            raise InputError(f"--throughputs goes with a Gavel trace; {trace} is {is_what}: leave it out")
        return load_trace(trace, throughputs=throughputs, types=types)
    return load_trace(trace, cluster_types=types) if published else load_trace(trace)


def _misfit(cluster: Cluster) -> Callable[[Job], bool]:
    """Whether a job would wait for ever; worked out once for each shape."""
    from dovetail.core.room import Room

    room, known = Room(cluster), dict[Any, bool]()

    def misfit(job: Job) -> bool:
        shape: Shape = job.shape
        fits = known.get(shape)
        if fits is None:
            fits = known[shape] = room.ever(shape)
        return not fits

    return misfit


def _too_large(trace: str, unfit: list[Job], cluster: str, misfit: Callable[[Job], bool]) -> str:
    job = unfit[0]
    shape = job.shape
    asks = f"{shape.gpus} GPU{'s' * (shape.gpus != 1)}"
    if shape.each > 1:
        asks += f" in tasks of {shape.each}"
    if shape.types:
        asks += f" of type {' or '.join(shape.types)}"
    if shape.cpus or shape.memory:
        asks += f" with {shape.cpus * shape.tasks / 1_000:g} cores and {shape.memory * shape.tasks:,} bytes"
    line = _line_of(trace, job.id)
    where = trace if line is None else f"{trace}, line {line}"
    others = f" (and {len(unfit) - 1:,} other jobs are too large)" if len(unfit) > 1 else ""
    return (
        f"{where}: job {job.id!r} asks for {asks}, which {cluster} could never hold{others}; "
        "give a larger cluster, or leave such jobs out with --drop-unfit"
    )


def _line_of(trace: str, job_id: str) -> int | None:
    """Where a job stands in a file of our own formats; only looked for to complain about it."""
    from dovetail.traces.table import opened

    path = Path(trace)
    if not path.is_file():
        return None
    try:
        with opened(path) as text:
            first = text.readline()
            if first.lstrip().startswith("{"):
                for number, line in enumerate((first, *text), 1):
                    if line.strip() and str(json.loads(line).get("id")) == job_id:
                        return number
                return None
            column = [name.strip() for name in next(csv.reader([first]))].index("id")
            reader = csv.reader(text)
            for cells in reader:
                if len(cells) > column and cells[column] == job_id:
                    return reader.line_num + 1
    except (ValueError, StopIteration, AttributeError, InputError):
        pass
    return None


def dearer(jobs: Iterable[Job], restart_cost: float) -> list[Job]:
    """The same jobs, each paying so many seconds whenever it comes back after a stop."""
    from dovetail.model.job import Traits
    from dovetail.model.units import micros

    known: dict[int, tuple[Traits, Traits]] = {}  # the key's owner too: an id is good while it lives

    def with_cost(traits: Traits) -> Traits:
        if id(traits) not in known:
            checkpoint = replace(traits.checkpoint, restore=micros(restart_cost))
            known[id(traits)] = (traits, replace(traits, checkpoint=checkpoint))
        return known[id(traits)][1]

    return [replace(job, traits=with_cost(job.traits)) for job in jobs]


# --- policies --------------------------------------------------------------------------------------


def read_settings(settings: Iterable[str]) -> dict[str, str]:
    """`key=value` each; a dash in a key is an underscore."""
    found: dict[str, str] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or not key.strip():
            raise BadOption(f"--set {setting!r} sets nothing; write --set key=value")
        found[key.strip().replace("-", "_")] = value.strip()
    return found


def read_entrants(text: str, settings: Iterable[str] = ()) -> list[Entrant]:
    """`fifo,fifo:discipline=skip,srtf:cost=30:placement=scattered`, with `policy.key=value` settings.

    A number after a comma goes on with the option before it: `tiresias-l:thresholds=100,1000`.
    """
    from dovetail.bench.entrants import read_entrant

    parts: list[str] = []
    for part in (part.strip() for part in text.split(",")):
        if parts and "=" in parts[-1] and re.fullmatch(r"[\d.eE+-]+(:.*)?", part):
            parts[-1] += f",{part}"
        elif part:
            parts.append(part)
    if not parts:
        raise InputError("no policies were named; give --policies fifo,sjf,srtf")
    names = {part.partition(":")[0].strip() for part in parts}
    shared: dict[str, dict[str, str]] = {}
    for setting in settings:
        name, dot, rest = setting.partition(".")
        if not dot or name not in names or "=" in name:
            among = f"one of {', '.join(sorted(names))}" if dot and "=" not in name else "policy.key=value"
            raise BadOption(f"--set {setting!r} sets an option of no policy compared; write {among}")
        shared.setdefault(name, {}).update(read_settings([rest]))
    entrants: list[Entrant] = []
    for part in parts:
        name, *inline = (piece.strip() for piece in part.split(":"))
        entrant = read_entrant(name, {**shared.get(name, {}), **read_settings(inline)})
        if any(entrant.label == other.label for other in entrants):
            raise InputError(f"{entrant.label} was named twice; name each policy once, or with other options")
        entrants.append(entrant)
    return entrants
