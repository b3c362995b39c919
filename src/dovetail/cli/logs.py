"""`dovetail logs`: the output of a job."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from dovetail.cli.connection import JobArgument, StateOption, connected, job_id
from dovetail.model.errors import InputError

if TYPE_CHECKING:
    from dovetail.client.client import Client


def logs(
    job: JobArgument,
    *,
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Follow the output until the job ends.")
    ] = False,
    attempt: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Output of this attempt; by default the last.", show_default=False
        ),
    ] = None,
    node: Annotated[
        str | None,
        typer.Option("--node", "--rank", metavar="NAME", help="Only this node or rank.", show_default=False),
    ] = None,
    tail: Annotated[
        int | None,
        typer.Option(
            "--tail", metavar="N", min=0, max=10_000, help="Only the last N lines.", show_default=False
        ),
    ] = None,
    state: StateOption = None,
) -> None:
    """Print the output of a job.

    \b
    dovetail logs k3v9q2
    dovetail logs -f k3v9q2 --tail 20
    """
    id = job_id(job)
    with connected(state, patience=600.0 if follow else 10.0) as client:
        seen = client.job_info(id)
        if "states" in seen.raw:
            raise InputError(f"{id} is an array; give one of its jobs, such as {id}_0")
        if not follow and not seen.attempt and attempt is None:
            raise InputError(f"{id} has not started yet ({seen.reason or seen.state}); see dovetail why {id}")
        if follow and node is None and seen.nodes > 1:
            for line in client.log_lines(id, attempt=attempt, tail=tail):
                write(line)
            return
        current = attempt or seen.attempt or None
        first = client.log_chunk(id, 0, attempt=current, node=node, tail=tail) if current else None
        if first is not None and first.files > 1 and node is None and not follow:
            for rank in range(first.files):
                write(f"==> rank {rank} <==\n")
                _print_one(client, id, current, str(rank), tail)
            return
        if first is not None:
            write(first.data.decode("utf-8", "replace"))
        if tail is not None and not follow:
            return
        offset = 0 if first is None else first.next
        for piece in client.logs(id, follow, attempt=attempt, node=node, offset=offset):
            write(piece)


def _print_one(client: Client, id: str, attempt: int | None, node: str, tail: int | None) -> None:
    piece = client.log_chunk(id, 0, attempt=attempt, node=node, tail=tail)
    write(piece.data.decode("utf-8", "replace"))
    for text in () if tail is not None else client.logs(id, attempt=attempt, node=node, offset=piece.next):
        write(text)


def write(text: str) -> None:
    """Write the output of a job unchanged: its colours and progress bars are meant for this terminal."""
    sys.stdout.write(text)
    sys.stdout.flush()
