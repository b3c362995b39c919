"""`dovetail run`: run a command as a job, show its output, exit with its exit code."""

from __future__ import annotations

import re
import shutil
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from dovetail.cli.connection import StateOption, connected
from dovetail.cli.logs import follow
from dovetail.cli.outputs import note, plainly, say
from dovetail.cli.submit import Flags, Typed, exit_code, flagged, note_about_tunnel, promise, read_job
from dovetail.cli.waiting import until_started
from dovetail.model.errors import DovetailError, InputError

if TYPE_CHECKING:
    from dovetail.client.client import Client, JobHandle

CANCEL_PATIENCE = 30.0  # seconds that a plane may be unreachable when the job is to be cancelled
PATIENCE = 600.0  # seconds that a plane may be unreachable while we wait for a job

run = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


class WithTerminal(TyperCommand):
    """`-t 2h` is a time limit, as in Slurm; `-t` alone asks for a terminal, as in `docker run -it`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        from dovetail.cli.job_words import (
            SLURM_ONLY_VALUED,
            check_not_program,
            first_word,
            options_with_values,
            parted,
        )

        own = options_with_values(self.params)
        valued = own | SLURM_ONLY_VALUED
        words: list[str] = []
        for at, word in enumerate(args):
            if word == "--" or (not word.startswith("-") and first_word(args, valued) == at):
                words += args[at:]
                break
            words += _terminal_flags(word, args[at + 1 : at + 2])
        first = first_word(words, valued)
        if first < len(words) and shutil.which(words[first]) is None:
            check_not_program(str(self.name), words, first)
        plain, slurm, _ = parted(words[:first], own)
        ctx.meta["typed"] = Typed(slurm)
        return super().parse_args(ctx, [*plain, *words[first:]])


def _terminal_flags(word: str, following: list[str]) -> list[str]:
    if word in ("-it", "-ti"):
        return ["-i", "--tty"]
    is_time = bool(following) and re.match(r"[0-9]", following[0]) is not None
    return ["--tty"] if word == "-t" and not is_time else [word]


@run.command("run", cls=WithTerminal, context_settings={"allow_interspersed_args": False})
@flagged
def run_command(
    context: typer.Context,
    command: Annotated[
        list[str], typer.Argument(metavar="COMMAND...", help="What to run.", show_default=False)
    ],
    *,
    flags: Flags,
    interactive: Annotated[
        bool, typer.Option("-i", "--interactive", help="Pass the standard input on to the job.")
    ] = False,
    terminal: Annotated[
        bool,
        typer.Option(
            "--tty",
            "--pty",
            help="Give the job a terminal, as -it does.",
        ),
    ] = False,
    detach: Annotated[bool, typer.Option("--detach", help="Print the job id and do not wait.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print only the output of the job.")] = False,
    state: StateOption = None,
) -> None:
    """Run a command as a job and wait for it.

    The output of the job is shown, and this command exits with the job's exit code. ^C (or SIGTERM, SIGHUP)
    cancels the job and waits until it has stopped; a second ^C returns at once, and the job keeps stopping.
    Options of sbatch such as --gres=gpu:2 are understood too.

    \b
    dovetail run --gpus 4 -- torchrun --nproc-per-node 4 train.py
    dovetail run --gpus A100:1 --detach -- python train.py
    dovetail run --gpus 1 -it bash
    """
    with connected(state, patience=PATIENCE) as client:
        typed = context.meta["typed"]
        request = read_job(None, flags, command=command, local=client.connection.local, typed=typed)
        run_request(client, request, state, interactive=interactive, tty=terminal, detach=detach, quiet=quiet)


def run_request(
    client: Client,
    request: Mapping[str, Any],
    state: str | None,
    *,
    interactive: bool = False,
    tty: bool = False,
    detach: bool = False,
    quiet: bool = False,
) -> None:
    """Submit it, show its output, and exit with its exit code."""
    with ExitStack() as stack:
        calls = None
        if interactive or tty:
            from dovetail.cli import interactive as calling

            if detach:
                raise InputError("--detach does not wait for the job, which -i and -t need; leave one out")
            calling.check(request, local=client.connection.local, terminal=tty)
            calls = calling.Calls(terminal=tty)
            stack.callback(calls.close)
            request = calls.wrapped(request)
        handle = client.submit(request)
        promise(client, handle, request)
        if not quiet:
            for text in handle.notes:
                note(plainly(text))
            note_about_tunnel(client.connection, request)
        if detach:
            say(handle.id)
            return
        if handle.count > 1:
            note(f"{handle.id} is an array; list its jobs with dovetail ps")
        with _cancelled_by_signals(handle, state) as interrupted:
            if handle.count == 1:
                until_started(client, handle.ids[0], quiet=quiet)
            line = None if calls is None else calls.answered(lambda: handle.refresh().done)
            if line is not None and tty:
                calling.pass_terminal(line)
            else:
                if line is not None:
                    calling.pass_input(line)
                if handle.count == 1:
                    several = request.get("nodes", 1) > 1 or request.get("launch") == "gpu"
                    follow(client, handle.ids[0], several=several)
            ended = handle.wait()
    if ended.state != "completed" and not quiet:
        sys.stdout.flush()
        note(plainly(f"job {handle.id} {ended.state}" + (f": {ended.detail}" if ended.detail else "")))
    code = 128 + interrupted.number if interrupted.number else exit_code(ended.state, ended.exit_code)
    raise typer.Exit(code)


class Interrupted:
    """Which signal told this command to end, if one did."""

    number = 0


@contextmanager
def _cancelled_by_signals(handle: JobHandle, state: str | None) -> Iterator[Interrupted]:
    """The first ^C, SIGTERM or SIGHUP cancels the job; the second one interrupts this command.

    The request goes over a connection of its own. This command does not end before it was sent, unless a
    third signal comes.
    """
    interrupted, asked = Interrupted(), threading.Event()

    def cancel() -> None:
        try:
            with connected(state, patience=CANCEL_PATIENCE) as other:
                other.cancel(handle.id)
        except DovetailError as error:
            _note(f"{handle.id} was not cancelled: {error}")
        finally:
            asked.set()

    def caught(number: int, frame: object) -> None:
        if interrupted.number:
            _note(f"no longer waiting for {handle.id}; see dovetail ps")
            raise KeyboardInterrupt
        interrupted.number = number
        threading.Thread(target=cancel, daemon=True).start()
        _note(f"cancelling {handle.id}; ^C again stops waiting for it")

    if threading.current_thread() is not threading.main_thread():
        yield interrupted
        return
    # A signal that is ignored stays so: nohup ignores SIGHUP, and a shell SIGINT of what runs in background.
    before = {one: signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    before = {one: old for one, old in before.items() if old is not signal.SIG_IGN}
    for one in before:
        signal.signal(one, caught)
    try:
        yield interrupted
    finally:
        try:
            if interrupted.number:
                asked.wait()
        finally:
            for one, old in before.items():
                signal.signal(one, old)


def _note(text: str) -> None:
    """A note to a terminal that may be gone."""
    with suppress(OSError):
        note(plainly(text))
