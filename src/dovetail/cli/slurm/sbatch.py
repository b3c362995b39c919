"""`sbatch`: submit a script. As in Slurm the options of the command line override those of the script."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer

from dovetail.cli.connection import connected
from dovetail.cli.outputs import note, plainly, say
from dovetail.cli.submit import exit_code, note_ignored, told_with_lines
from dovetail.client.client import placed_here
from dovetail.client.jobfile import JobFile, read_jobfile
from dovetail.client.sbatch import Option, options_of, typed_options
from dovetail.model.errors import InputError

OF_THE_COMMAND = ("wrap", "parsable", "wait", "test-only", "quiet", "verbose")


def sbatch(words: Sequence[str]) -> None:
    options, rest = typed_options(words, "sbatch", OF_THE_COMMAND)
    own = {option.name: option.value for option in options if option.name in OF_THE_COMMAND}
    given = [option for option in options if option.name not in OF_THE_COMMAND]
    request = _request(own, with_environment(given, _script_text(own, rest)), rest)
    note_ignored(request)
    with connected(None, patience=600.0 if "wait" in own else 30.0) as client:
        if client.connection.local:
            request = placed_here(request)
        if "test-only" in own:
            from dovetail.cli.plan import answer

            with told_with_lines(request):
                say(f"sbatch: {answer(client.plan(request))}")
            return
        with told_with_lines(request):
            handle = client.submit(request)
        for text in handle.notes:
            note(plainly(text))
        if "quiet" not in own or "parsable" in own:
            say(handle.id if "parsable" in own else f"Submitted batch job {handle.id}")
        sys.stdout.flush()
        if "wait" in own:
            ended = handle.wait()
            raise typer.Exit(exit_code(ended.state, ended.exit_code))


def _script_text(own: dict[str, str], rest: Sequence[str]) -> str:
    """The script that will be read, as far as it may name the variables to pass on; "" if it is no file."""
    if "wrap" in own or not rest:
        return ""
    try:
        with open(rest[0], encoding="utf-8") as file:
            return file.read(1_000_000)
    except (OSError, UnicodeDecodeError):
        return ""


def _request(own: dict[str, str], given: Sequence[Option], rest: list[str]) -> JobFile:
    if "wrap" in own:
        if rest:
            raise InputError(f"sbatch: --wrap has the commands, so {rest[0]} is too much; leave one out")
        found = read_jobfile(f"#!/bin/bash\n{own['wrap']}\n", given=given)
        found.setdefault("name", "wrap")
        return found
    if not rest and sys.stdin.isatty():
        raise InputError("sbatch: no script was given; write sbatch job.sh")
    source = rest[0] if rest else sys.stdin.read() + "\n"
    return read_jobfile(source, given=given, arguments=rest[1:])


def with_environment(given: Sequence[Option], script: str = "") -> list[Option]:
    """These options, and `--export=ALL`, which is Slurm's default, if neither they nor the script say."""
    try:
        said = any(option.name == "export" for option in (*given, *options_of(script, "")))
    except InputError:  # which is told with its line when the script is read
        said = True
    return list(given) if said else [*given, Option("export", "ALL", None, "--export")]
