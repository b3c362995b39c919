"""`dovetail run`: run a command as a job, show its output, exit with its exit code."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from dovetail.cli.connection import StateOption, connected
from dovetail.cli.logs import write
from dovetail.cli.outputs import note, plainly, say
from dovetail.cli.submit import Flags, exit_code, flagged, note_about_tunnel, read_job

if TYPE_CHECKING:
    from dovetail.client.client import Client, JobHandle

PATIENCE = 600.0  # seconds that a plane may be unreachable while we wait for a job
SOON = 1.0  # seconds after which the reason for waiting is printed

run = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@run.command("run", context_settings={"allow_interspersed_args": False})
@flagged
def run_command(
    command: Annotated[
        list[str], typer.Argument(metavar="COMMAND...", help="What to run.", show_default=False)
    ],
    *,
    flags: Flags,
    detach: Annotated[bool, typer.Option("--detach", help="Print the job id and do not wait.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print only the output of the job.")] = False,
    state: StateOption = None,
) -> None:
    """Run a command as a job and wait for it.

    The output of the job is shown, and this command exits with the job's exit code. ^C cancels the job and
    waits until it has stopped; a second ^C returns at once, and the job keeps stopping.

    \b
    dovetail run --gpus 4 -- torchrun --nproc-per-node 4 train.py
    dovetail run --gpus A100:1 --detach -- python train.py
    """
    with connected(state, patience=PATIENCE) as client:
        request = read_job(None, flags, command=command, local=client.connection.local)
        handle = client.submit(request)
        if not quiet:
            for text in handle.notes:
                note(plainly(text))
            note_about_tunnel(client.connection, request)
        if detach:
            say(handle.id)
            return
        if handle.count > 1:
            note(f"{handle.id} is an array; list its jobs with dovetail ps")
        with _cancelled_by_interrupt(handle, state) as interrupted:
            _explain_waiting(client, handle, quiet)
            for piece in client.logs(handle.ids[0], follow=True) if handle.count == 1 else ():
                write(piece)
            ended = handle.wait()
    if ended.state != "completed" and not quiet:
        sys.stdout.flush()
        note(plainly(f"job {handle.id} {ended.state}" + (f": {ended.detail}" if ended.detail else "")))
    raise typer.Exit(130 if interrupted.is_set() else exit_code(ended.state, ended.exit_code))


def _explain_waiting(client: Client, handle: JobHandle, quiet: bool) -> None:
    """Wait for the start; print the reason if that takes longer than a moment."""
    began, told, pause = time.monotonic(), "", 0.05
    while not (seen := handle.refresh()).done and not seen.attempt and handle.count == 1:
        if not quiet and time.monotonic() - began > SOON and seen.reason != told:
            told = seen.reason
            note(plainly(f"{handle.id} waits: {client.why(handle.id).sentence or seen.reason}"))
        time.sleep(pause)
        pause = min(1.5 * pause, 1.0)


@contextmanager
def _cancelled_by_interrupt(handle: JobHandle, state: str | None) -> Iterator[threading.Event]:
    """The first ^C cancels the job, over a connection of its own; the second ^C interrupts this command."""
    interrupted = threading.Event()

    def cancel() -> None:
        with connected(state, patience=30.0) as other:
            other.cancel(handle.id)

    def caught(number: int, frame: object) -> None:
        if interrupted.is_set():
            note(f"no longer waiting for {handle.id}; see dovetail ps")
            raise KeyboardInterrupt
        interrupted.set()
        note(f"cancelling {handle.id}; ^C again stops waiting for it")
        threading.Thread(target=cancel, daemon=True).start()

    if threading.current_thread() is not threading.main_thread():
        yield interrupted
        return
    before = signal.signal(signal.SIGINT, caught)
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, before)
