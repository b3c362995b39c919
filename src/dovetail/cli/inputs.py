"""Reads the inputs of the commands: traces, clusters, policies with options."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dovetail.model.errors import BadOption, InputError, NeverFits
from dovetail.model.formats import number, size

if TYPE_CHECKING:
    from dovetail.bench.policy_choice import PolicyChoice
    from dovetail.bench.resample import Source
    from dovetail.model.cluster import Cluster
    from dovetail.model.estimate_errors import EstimateErrors
    from dovetail.model.job import Job
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
    int | None, typer.Option(metavar="N", min=1, help="Use only the first N jobs.", show_default=False)
]
DropOption = Annotated[
    bool, typer.Option("--drop-unfit", help="Drop jobs that can never fit on the cluster.")
]
RestartOption = Annotated[
    str | None,
    typer.Option(
        metavar="TIME", help="How long each restart of a preempted job takes: 30s.", show_default=False
    ),
]
SuspendOption = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="How long it takes if the job resumes where it was: 1s; by default as long as any restart.",
        show_default=False,
    ),
]
EstimatesOption = Annotated[
    str | None,
    typer.Option(
        metavar="ERRORS",
        help="How wrong policies are about durations and speeds: noise=0.2,bias=1.5,cold.",
        show_default=False,
    ),
]
ThroughputsOption = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Steps per second by GPU type, for a Gavel trace; gavel: the measurements of the paper.",
        show_default=False,
    ),
]
LikeOption = Annotated[
    str | None,
    typer.Option(
        metavar="KIND", help="Generate a trace like this published one: philly, itp, ...", show_default=False
    ),
]
JobsOption = Annotated[int, typer.Option("--jobs", metavar="N", min=1, help="Number of jobs, with --like.")]
LoadOption = Annotated[float, typer.Option(metavar="X", help="Offered load, with --like.")]


@dataclass(frozen=True, slots=True)
class Question:
    """Jobs for a cluster, ready to be run."""

    source: Source
    cluster: Cluster
    described: str  # the cluster, as the user wrote it
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
    restart_cost: str | None = None,
    suspend_cost: str | None = None,
    throughputs: str | None = None,
    seed: int = 0,
    silent: bool = False,
) -> Question:
    """Load the trace and the cluster. A job that can never fit is reported before anything runs.

    `seed` is the generated trace whose notes are told.
    """
    from dovetail.bench.resample import Generated, Given
    from dovetail.cli.outputs import count
    from dovetail.cli.progress import progress
    from dovetail.traces import load_cluster
    from dovetail.traces.files import reading_told

    if (trace is None) == (like is None):
        asked = "both a trace and --like" if trace else "no trace"
        raise InputError(
            f"{asked} was given; give a file, the name of a shipped trace such as philly, or --like philly"
        )
    if like is not None and throughputs is not None:
        raise InputError(
            "--throughputs is for Gavel traces; a trace generated with --like has durations already"
        )
    restart = None if restart_cost is None else read_time("--restart-cost", restart_cost)
    suspend = None if suspend_cost is None else read_time("--suspend-cost", suspend_cost)
    built = load_cluster(cluster)
    source: Source
    notes: list[str] = []
    misfit = _misfit(built)
    if like is not None:
        source = Generated(like, jobs, built.gpus, load)
        notes = list(source.notes(seed))
    else:
        assert trace is not None
        with progress(f"reading {trace}", silent=silent) as tell, reading_told(tell):
            loaded = load_fitting(trace, built, throughputs)
        listed, notes = loaded.jobs[:head], list(loaded.notes)
        unfit = [job for job in listed if misfit(job)]
        if unfit and not drop_unfit:
            raise NeverFits(_too_large(trace, unfit, cluster, misfit))
        if unfit:
            listed = [job for job in listed if not misfit(job)]
            them = "it" if len(unfit) == 1 else "them"
            notes.append(f"{count(len(unfit), 'job')} dropped: {them} can never fit on {cluster}")
        if not listed:
            raise NeverFits(f"{trace}: none of its jobs fits on {cluster}; give a larger cluster")
        source = Given(replace(loaded, jobs=listed))

    def prepare(made: list[Job]) -> list[Job]:
        if like is not None:
            made = made[:head]
            if any(map(misfit, made)):
                made = [job for job in made if not misfit(job)]
        return made if restart is None and suspend is None else with_costs(made, restart, suspend)

    return Question(source, built, cluster, prepare, tuple(notes))


def load_fitting(trace: str, cluster: Cluster, throughputs: str | None = None) -> Trace:
    """Load a trace. Jobs of a published trace take any GPU type, with a note, if the cluster lacks theirs.

    In Dovetail's own formats a GPU type is binding, and so are types with measured throughputs.
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
            raise InputError(f"--throughputs is for Gavel traces; {trace} is {is_what}: leave it out")
        return load_trace(trace, throughputs=throughputs, types=types)
    return load_trace(trace, cluster_types=types) if published else load_trace(trace)


def _misfit(cluster: Cluster) -> Callable[[Job], bool]:
    """Whether a job can never run on the cluster; computed once for each shape and its least size."""
    from dovetail.core.fitting import fitting
    from dovetail.core.room import Room

    room, known = Room(cluster), dict[Any, bool]()

    def misfit(job: Job) -> bool:
        key = (job.shape, job.traits.least)
        fits = known.get(key)
        if fits is None:
            fits = known[key] = fitting(room, job) is not None
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
        cores, memory = number(shape.cpus * shape.tasks / 1_000, 3), size(shape.memory * shape.tasks)
        asks += f" with {cores} cores and {memory} of memory"
    line = _line_of(trace, job.id)
    where = trace if line is None else f"{trace}, line {line}"
    from dovetail.cli.outputs import count

    more = len(unfit) - 1
    others = f" ({count(more, 'other job')} {'is' if more == 1 else 'are'} too large as well)" if more else ""
    return (
        f"{where}: job {job.id!r} asks for {asks}, which can never fit on {cluster}{others}; "
        "give a larger cluster, or drop such jobs with --drop-unfit"
    )


def _line_of(trace: str, job_id: str) -> int | None:
    """The line of a job in a Dovetail CSV or JSONL file, for error messages."""
    from dovetail.traces.files import opened

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


def read_time(option: str, text: str) -> int:
    """The microseconds of an option."""
    from dovetail.model.units import parse_duration

    try:
        return parse_duration(text)
    except ValueError as error:
        raise BadOption(f"{option}: {error}") from None


def read_errors(text: str | None, seed: int) -> EstimateErrors | None:
    """The errors of --estimates."""
    from dovetail.model.estimate_errors import EstimateErrors

    try:
        return None if text is None else EstimateErrors.parsed(text, seed)
    except ValueError as error:
        raise BadOption(f"--estimates {text}: {error}") from None


def with_costs(jobs: Iterable[Job], restart: int | None, suspend: int | None) -> list[Job]:
    """The same jobs, with restarts that take this many microseconds anywhere, and in place."""
    from dovetail.model.job import Traits

    known: dict[
        int, tuple[Traits, Traits]
    ] = {}  # keeps the traits alive: an id() is valid only while its object lives

    def with_cost(traits: Traits) -> Traits:
        if id(traits) not in known:
            checkpoint = traits.checkpoint
            if restart is not None:
                checkpoint = replace(checkpoint, restore=restart)
            if suspend is not None:
                checkpoint = replace(checkpoint, suspend=suspend)
            known[id(traits)] = (traits, replace(traits, checkpoint=checkpoint))
        return known[id(traits)][1]

    return [replace(job, traits=with_cost(job.traits)) for job in jobs]


# --- policies --------------------------------------------------------------------------------------


def read_settings(settings: Iterable[str]) -> dict[str, str]:
    """Settings of the form `key=value`; a dash in a key is read as an underscore."""
    found: dict[str, str] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or not key.strip():
            raise BadOption(f"--set {setting!r} has no value; write --set key=value")
        found[key.strip().replace("-", "_")] = value.strip()
    return found


def local_policy(name: str, typed: Mapping[str, str]) -> PolicyChoice:
    """A policy as it was typed on this machine.

    `default` is that of a new plane, and `my_policy.py:mine` a function in a file.
    """
    from dovetail.bench.policy_choice import PolicyChoice, read_policy_choice
    from dovetail.control.chosen_policy import DEFAULT, named_policy

    if name == DEFAULT:
        from dovetail.cli.policies import _typed as as_typed

        plain = named_policy(name, typed)
        shown = {option: as_typed(value) for option, value in plain.options.items()}
        return PolicyChoice(plain.name, plain.options, shown)
    return read_policy_choice(name, typed, files=True)


def read_policy_choices(text: str, settings: Iterable[str] = ()) -> list[PolicyChoice]:
    """`fifo,fifo:discipline=skip,srtf:cost=30:placement=scattered`, with `policy.key=value` settings.

    A number after a comma continues the option before it: `tiresias-l:thresholds=100,1000`. A function in a
    file is a name too: `my_policy.py:mine:quantum=60`.
    """
    parts: list[str] = []
    for part in (part.strip() for part in text.split(",")):
        if parts and "=" in parts[-1] and re.fullmatch(r"[\d.eE+-]+(:.*)?", part):
            parts[-1] += f",{part}"
        elif part:
            parts.append(part)
    if not parts:
        raise InputError("no policy was given; give --policies fifo,sjf,srtf")
    named = [_name_and_options(part) for part in parts]
    names = {name for name, _ in named}
    shared: dict[str, dict[str, str]] = {}
    for setting in settings:
        name = next((name for name in names if setting.startswith(f"{name}.")), "")
        if not name:
            before, dot, _ = setting.partition(".")
            among = f"one of {', '.join(sorted(names))}" if dot and "=" not in before else "policy.key=value"
            raise BadOption(f"--set {setting!r} names none of the compared policies; write {among}")
        shared.setdefault(name, {}).update(read_settings([setting.removeprefix(f"{name}.")]))
    choices: list[PolicyChoice] = []
    for name, inline in named:
        choice = local_policy(name, {**shared.get(name, {}), **read_settings(inline)})
        if any(choice.label == other.label for other in choices):
            raise InputError(
                f"{choice.label} was given twice; give each policy once, or with different options"
            )
        choices.append(choice)
    return choices


def _name_and_options(part: str) -> tuple[str, list[str]]:
    """`my_policy.py:mine:quantum=60`: the name of a policy, which may hold a colon, and its options."""
    name, *inline = (piece.strip() for piece in part.split(":"))
    if name.endswith(".py") and inline:
        name = f"{name}:{inline.pop(0)}"
    return name, inline
