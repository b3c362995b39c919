"""`dovetail slurm-commands`: write sbatch, squeue and the others as scripts, for users who want them."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from dovetail.cli.outputs import note, plainly, say
from dovetail.cli.slurm import COMMANDS
from dovetail.model.errors import InputError, UnknownName

MARK = "# written by dovetail slurm-commands"


def slurm_commands(
    into: Annotated[
        Path,
        typer.Option("--into", metavar="DIR", help="The folder to write them to.", show_default=False),
    ],
) -> None:
    """Write Slurm's commands as scripts that call Dovetail.

    They are sbatch, srun, squeue, scancel, sinfo and scontrol. Nothing else is changed: put the folder on
    your PATH to use them. A file of that name that was not written by this command is left alone.

    \b
    dovetail slurm-commands --into ~/slurm-commands
    """
    others = [name for name in COMMANDS if not _is_ours(into / name)]
    if others:
        raise InputError(f"{into / others[0]}: is another program; choose an empty folder")
    found = {name: shutil.which(name) for name in COMMANDS}
    theirs = sorted(name for name, path in found.items() if path and not _is_ours(Path(path)))
    try:
        into.mkdir(parents=True, exist_ok=True)
        for name in COMMANDS:
            _write(into / name, _script(name))
    except OSError as error:
        raise InputError(f"{into}: cannot be written to ({error.strerror}); choose another folder") from None
    if theirs:
        note(plainly(f"{', '.join(theirs)} of another Slurm would be hidden by these: {found[theirs[0]]}"))
    say(f"{len(COMMANDS)} commands in {into}: {', '.join(COMMANDS)}")
    say()
    say(f'use them:  export PATH={shlex.quote(str(into.resolve()))}:"$PATH"')


def _is_ours(path: Path) -> bool:
    """Whether a file may be written: it is not there, or this command has made it."""
    try:
        return MARK in path.read_text(encoding="utf-8", errors="replace")[:500]
    except FileNotFoundError:
        return True
    except OSError:
        return False


def _script(name: str) -> str:
    return f'#!/bin/sh\n{MARK}\nexec {shlex.quote(sys.executable)} -m dovetail.cli slurm {name} "$@"\n'


def _write(path: Path, text: str) -> None:
    """The whole script or nothing: it may be in use."""
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        new.write_text(text, encoding="utf-8")
        new.chmod(0o755)
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


slurm = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@slurm.command(
    "slurm",
    context_settings={
        "allow_interspersed_args": False,
        "allow_extra_args": True,
        "ignore_unknown_options": True,
    },
)
def slurm_command(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="COMMAND", help=", ".join(COMMANDS), show_default=False)],
) -> None:
    """Do what a command of Slurm does, with its options."""
    if name not in COMMANDS:
        raise UnknownName("Slurm command", name, COMMANDS)
    if context.args[:1] == ["--help"]:
        say(f"{name} takes Slurm's options and asks a Dovetail plane. It says which options have no effect.")
        return
    module, _, function = COMMANDS[name].partition(":")
    getattr(import_module(module), function)(list(context.args))
