"""`dovetail submit`: submit a job file or an `#SBATCH` script. Flags override the job file.

`submit`, `run` and `plan` have the same flags, with the letters of sbatch. On the machine of the plane a job
starts in the folder it was submitted from and finds the same programs as its user: PATH and the like are
passed on, the rest of the environment is not.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand

from dovetail.cli.connection import StateOption, connected
from dovetail.cli.job_words import (
    SLURM_ONLY_VALUED,
    begins_command,
    check_is_there,
    check_not_program,
    first_word,
    is_script_file,
    options_with_values,
    parted,
)
from dovetail.cli.outputs import count, note, plainly, print_json, say
from dovetail.cli.times import clock
from dovetail.model.errors import InputError

if TYPE_CHECKING:
    from datetime import datetime

    from dovetail.client.client import Client, JobHandle
    from dovetail.client.connection import Connection

Flags = Mapping[str, Any]

FileArgument = Annotated[
    str | None,
    typer.Argument(metavar="FILE", help="job.yaml, job.sh, or - for standard input.", show_default=False),
]


def _flag(kind: Any, help: str, *names: str, metavar: str | None = None) -> Any:
    return Annotated[kind, typer.Option(*names, metavar=metavar, help=help, show_default=False)]


FLAGS: dict[str, Any] = {
    "name": _flag(str | None, "Name of the job.", "-J", "--name", "--job-name", metavar="NAME"),
    "gpus": _flag(
        str | None, "GPUs per task: 4, A100:4; 2..8 of an elastic job.", "-G", "--gpus", metavar="[TYPE:]N"
    ),
    "nodes": _flag(
        int | None, "Number of tasks; all start together, each on one node.", "-N", "--nodes", metavar="N"
    ),
    "cpus": _flag(str | None, "CPU cores per task.", "-c", "--cpus", "--cpus-per-task", metavar="N"),
    "memory": _flag(str | None, "Memory per task: 32G.", "--memory", "--mem", metavar="SIZE"),
    "gpu_memory": _flag(str | None, "Minimum memory of each GPU: 70GB.", "--gpu-memory", metavar="RANGE"),
    "gpu_share": _flag(str | None, "Share of each GPU: 50%, 0.5.", "--gpu-share", metavar="SHARE"),
    "time": _flag(str | None, "Time limit: 45m, 2h30m, 1-12:00:00.", "-t", "--time", metavar="TIME"),
    "expected": _flag(str | None, "Expected run time (estimate): 45m.", "--expected", metavar="TIME"),
    "queue": _flag(
        str | None,
        "Tenant of the job.",
        *("-A", "--queue", "--account", "-p", "--partition", "-q", "--qos"),
        metavar="NAME",
    ),
    "priority": _flag(str | None, "low, normal, high, urgent or a number.", "--priority", metavar="N"),
    "array": _flag(str | None, "Job array: 0-99%8.", "-a", "--array", metavar="RANGE"),
    "dependency": _flag(
        str | None, "Dependencies: afterok:JOB, afterany:JOB, ...", "-d", "--dependency", metavar="WHAT"
    ),
    "begin": _flag(str | None, "Earliest start: +2h, 2026-12-01T09:00.", "-b", "--begin", metavar="WHEN"),
    "deadline": _flag(
        str | None,
        "Time by which the job should finish, for policies that use it: 18:00, +6h.",
        "--deadline",
        metavar="WHEN",
    ),
    "hold": _flag(bool | None, "Hold the job until it is released.", "-H", "--hold"),
    "preemptible": _flag(bool | None, "Whether the job may be preempted.", "--preemptible/--not-preemptible"),
    "checkpoint_every": _flag(
        str | None, "Time between checkpoints of the job.", "--checkpoint-every", metavar="TIME"
    ),
    "grace": _flag(
        str | None, "Time to save between the signal to stop and the kill: 120s.", "--grace", metavar="TIME"
    ),
    "retry": _flag(str | None, "Restarts after a failure: 3, exit:33,timeout@3.", "--retry", metavar="WHAT"),
    "env": _flag(
        list[str] | None,
        "Set a variable, or pass on its value from here.",
        "--env",
        "--export",
        metavar="NAME[=VALUE]",
    ),
    "workdir": _flag(str | None, "Working directory.", "-D", "--workdir", "--chdir", metavar="DIR"),
    "output": _flag(str | None, "File for standard output: %j.out.", "-o", "--output", metavar="FILE"),
    "error": _flag(str | None, "File for standard error.", "-e", "--error", metavar="FILE"),
    "per_gpu": _flag(bool | None, "Start one process per GPU instead of per task.", "--per-gpu"),
    "model": _flag(str | None, "Model name; measured speeds are kept by model.", "--model", metavar="NAME"),
    "slurm_env": _flag(bool | None, "Also set SLURM_* variables.", "--slurm-env"),
    "comment": _flag(str | None, "Free text, shown with the job.", "--comment", metavar="TEXT"),
}


def flagged(verb: Callable[..., None]) -> Callable[..., None]:
    """Adds the flags of a job to a command, which gets those that were given as one mapping `flags`."""
    signature = inspect.signature(verb, eval_str=True)
    own = [parameter for name, parameter in signature.parameters.items() if name != "flags"]
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        for name, annotation in FLAGS.items()
    ]

    @functools.wraps(verb)
    def called(*args: Any, **typed: Any) -> None:
        flags = {name: typed.pop(name) for name in FLAGS}
        verb(*args, **typed, flags={name: value for name, value in flags.items() if value not in (None, [])})

    first = [parameter for parameter in own if parameter.kind is not inspect.Parameter.KEYWORD_ONLY]
    last = [parameter for parameter in own if parameter.kind is inspect.Parameter.KEYWORD_ONLY]
    called.__signature__ = signature.replace(parameters=[*first, *added, *last])  # type: ignore[attr-defined]
    called.__annotations__ = {parameter.name: parameter.annotation for parameter in (*first, *added, *last)}
    del called.__wrapped__  # else typer would read the original signature
    return called


class Typed(NamedTuple):
    """What was typed besides flags: options that only Slurm has, and the arguments of a script."""

    slurm: Sequence[str] = ()
    arguments: Sequence[str] = ()


class WithCommand(TyperCommand):
    """A command with a job file or with a job's command line, which it finds in its context."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        first = first_word(args, {*options_with_values(self.params), *SLURM_ONLY_VALUED})
        check_not_program(str(self.name), args, first)
        check_is_there(args, first)
        valued = options_with_values(self.params)
        at = args.index("--") if "--" in args else len(args)
        if first < at and begins_command(args[first]):
            own, slurm, words = parted(args[:first], valued)
            command = args[first:]
        else:
            own, slurm, words = parted(args[:at], valued)
            command = args[at + 1 :]
        if "--test-only" in slurm:
            raise InputError("--test-only submits nothing; dovetail plan says where and when it would start")
        arguments: list[str] = []
        if words and is_script_file(words[0]):
            arguments, words, command = [*words[1:], *command], words[:1], []
        ctx.meta["command"] = command or None
        ctx.meta["typed"] = Typed(slurm, arguments)
        return super().parse_args(ctx, [*own, *words])

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- COMMAND...]"]


submit = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@submit.command("submit", cls=WithCommand)
@flagged
def submit_job(
    context: typer.Context,
    file: FileArgument = None,
    *,
    flags: Flags,
    wrap: Annotated[
        str | None,
        typer.Option("--wrap", metavar="TEXT", help="Shell commands instead of a file.", show_default=False),
    ] = None,
    wait: Annotated[
        bool, typer.Option("-W", "--wait", help="Wait until the job ends; exit with its exit code.")
    ] = False,
    parsable: Annotated[bool, typer.Option("--parsable", help="Print only the job id.")] = False,
    key: Annotated[
        str | None,
        typer.Option(
            "--key",
            metavar="TEXT",
            help="Idempotency key: a second submit with it creates no job.",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the id, the ids of array members and their number as JSON.")
    ] = False,
    state: StateOption = None,
) -> None:
    """Submit a job file, or a script with #SBATCH lines.

    Flags override the job file. Without a job file, give a command; its own options come after it. Write --
    before a command that is not on the PATH here. Options of sbatch such as --gres=gpu:2 are understood too.

    \b
    dovetail submit train.yaml --gpus A100:4
    dovetail submit job.sh --array 0-99%8 --parsable
    dovetail submit --gpus 1 -- python train.py
    """
    with ExitStack() as stack, connected(state, patience=600.0 if wait else 30.0) as client:
        command = context.meta["command"]
        typed = context.meta["typed"]
        request = read_job(
            file, flags, wrap=wrap, command=command, local=client.connection.local, typed=typed
        )
        with told_with_lines(request):
            handle = client.submit(request, key=key)
        promised_by = promise(client, handle, request)
        stack.enter_context(_said_to_go_on(handle.id))
        for text in handle.notes:
            note(plainly(text))
        note_about_tunnel(client.connection, request)
        if as_json:
            print_json({"id": handle.id, "ids": list(handle.ids), "count": handle.count})
        elif parsable:
            say(handle.id)
        else:
            many = f", an array of {count(handle.count, 'job')}" if handle.count > 1 else ""
            say(f"submitted {handle.id}{many}")
            if promised_by is not None:
                say(f"promised to end by {clock(promised_by)}")
            if not wait:
                say()
                one = handle.ids[0]
                say(f"follow it:  dovetail logs -f {one}\nif it waits:  dovetail why {one}")
        sys.stdout.flush()
        if wait:
            ended = handle.wait()
            if not (parsable or as_json):
                say(plainly(f"{handle.id} {ended.state}" + (f": {ended.detail}" if ended.detail else "")))
            raise typer.Exit(exit_code(ended.state, ended.exit_code))


def promise(client: Client, handle: JobHandle, request: Mapping[str, Any]) -> datetime | None:
    """The moment by which the policy promises the end of a job with a deadline. A refused job is an error.

    The policy has answered by now: the plane accepts a job and decides in one tick.
    """
    if "deadline" not in request or handle.count > 1:
        return None
    job = client.job_info(handle.id)
    if job.state == "refused":
        raise InputError(plainly(f"{handle.id} was refused: {job.detail}"))
    if job.promised_by is None and not job.done:
        note(f"the policy does not promise that {handle.id} meets its deadline")
    return job.promised_by


@contextmanager
def _said_to_go_on(id: str) -> Iterator[None]:
    """^C ends this command and not the job, unlike that of `run`; say so."""
    try:
        yield
    except KeyboardInterrupt:
        note(f"no longer waiting for {id}, which goes on; dovetail cancel {id} ends it")
        raise


def exit_code(state: str, code: int | None) -> int:
    """The exit code of a command that waited for a job: the exit code of the job, if it has one."""
    if state == "completed":
        return 0
    return code or {"timeout": 124, "cancelled": 130, "out-of-memory": 137}.get(state, 1)


# --- what was asked --------------------------------------------------------------------------------


def read_job(
    file: str | None,
    flags: Flags,
    *,
    wrap: str | None = None,
    command: list[str] | None = None,
    local: bool,
    typed: Typed | None = None,
) -> dict[str, Any]:
    """The request: the job file, overridden by flags, with the working directory and PATH of the user."""
    from dovetail.client.client import placed_here
    from dovetail.client.jobfile import from_flags, merged, read_jobfile
    from dovetail.client.sbatch import typed_options

    typed = typed or Typed()
    if sum(given is not None for given in (file, wrap, command)) != 1:
        raise InputError("give exactly one of: a job file, - for standard input, or a command after --")
    if wrap is not None and not wrap.strip():
        raise InputError("--wrap is empty; give the commands to run")
    plain = {name: value for name, value in flags.items() if name not in BESIDES}
    overrides = merged(from_flags(**plain, command=command, local=local), _besides(flags))
    if file is not None:
        source = _standard_input() if file == "-" else file
        if is_script_file(file):
            given, _ = typed_options(typed.slurm, "submit")
            request: dict[str, Any] = read_jobfile(source, overrides, given=given, arguments=typed.arguments)
        else:
            request = read_jobfile(source, merged(_in_slurms_words(typed.slurm), overrides))
        note_ignored(request)
    else:
        overrides = merged(_in_slurms_words(typed.slurm), overrides)
        request = overrides if wrap is None else merged({"run": wrap, "name": "wrap"}, overrides)
    if not local:
        return request
    request = placed_here(request)
    _check_outputs(request, [word for word in (file, *(command or ())[:2]) if word])
    return request


def _in_slurms_words(words: Sequence[str]) -> dict[str, Any]:
    """Slurm's options for a job that is no script."""
    from dovetail.client.sbatch import read_script, typed_options

    if not words:
        return {}
    given, _ = typed_options(words, "Slurm's options")
    found = read_script("#!/bin/bash\n", "Slurm's options", given=given)
    note_ignored(found)
    kept = ("nodes", "resources", "retry", "priority", "signal_before", "env")
    return {key: found[key] for key in kept if key in found}


def note_ignored(request: Mapping[str, Any]) -> None:
    """Name the parts of a job file that have no effect."""
    from dovetail.client.jobfile import JobFile

    if not isinstance(request, JobFile):
        return
    for left_out in request.ignored:
        where = f"line {left_out.line}: " if left_out.line else ""
        note(plainly(f"{request.file}: {where}{left_out.what} is ignored: {left_out.why}"))


def _check_outputs(request: Mapping[str, Any], reads: Sequence[str]) -> None:
    """Refuse to write the output of a job over its job file, its program or its script."""
    from pathlib import Path

    from dovetail.cli.outputs import is_same_file

    folder = Path(str(request.get("workdir") or "."))
    for key in ("output", "error"):
        path = folder / str(request.get(key) or "")
        if request.get(key) and any(is_same_file(path, Path(word)) for word in reads if Path(word).exists()):
            raise InputError(
                plainly(f"--{key} {request[key]} would write over what the job runs; name another file")
            )


BESIDES = ("gpu_memory", "gpu_share", "expected", "deadline", "slurm_env")


def _besides(flags: Flags) -> dict[str, Any]:
    """Flags that are keys of a job file under the same name."""
    from dovetail.client.flags import checked
    from dovetail.client.job_request import zoned
    from dovetail.model.units import WHOLE, parse_duration, parse_share

    found = {name: flags[name] for name in BESIDES if name in flags}
    checked("--expected", found.get("expected"), parse_duration)
    if "gpu_share" in found:
        checked("--gpu-share", found["gpu_share"], parse_share)
        found["gpu_share"] = parse_share(found["gpu_share"]) / WHOLE
    if "deadline" in found:
        found["deadline"] = zoned(found["deadline"])
    if "gpu_memory" in found:
        found["resources"] = {"gpu_memory": found.pop("gpu_memory")}
    return found


def note_about_tunnel(connection: Connection, request: Mapping[str, Any]) -> None:
    """Note that a plane behind a loopback address may be on another machine, without this folder."""
    from dovetail.client.connection import is_loopback

    if not connection.local and is_loopback(connection.url) and "workdir" not in request:
        note(
            f"{connection.url} may be a tunnel, so the job does not start in this folder; give --workdir, "
            "or set DOVETAIL_STATE to the plane's state folder if it is on this machine"
        )


def _standard_input() -> str:
    return sys.stdin.read() + "\n"  # with a line end it is read as text, not as a file name


@contextmanager
def told_with_lines(request: Mapping[str, Any]) -> Iterator[None]:
    """Errors that the plane finds in a job file, with their lines."""
    from dovetail.client.connection import Refused

    try:
        yield
    except Refused as error:
        lines, where = getattr(request, "lines", {}), getattr(request, "where", None)
        for problem in error.problems:
            pointer = problem.get("pointer", "") if isinstance(problem, Mapping) else ""
            if where is not None and pointer in lines and pointer:
                raise InputError(plainly(f"{where(pointer)}: {problem.get('detail', error)}")) from None
        raise
