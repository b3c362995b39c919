"""`dovetail logs`: the output of a job, or of all members of an array."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dovetail.cli.connection import JobArgument, StateOption, connected, job_id
from dovetail.cli.outputs import note, plainly
from dovetail.cli.waiting import SOON, until_started
from dovetail.model.errors import InputError

if TYPE_CHECKING:
    from dovetail.client.client import Client
    from dovetail.client.documents import Job

LOOK = 0.5  # seconds between two looks at the members of an array


def logs(
    job: JobArgument,
    *,
    following: Annotated[
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

    Of an array, the output of each member that has started, under its id. With -f each line begins with the
    number of its member.

    \b
    dovetail logs k3v9q2
    dovetail logs -f k3v9q2 --tail 20
    """
    id = job_id(job)
    with connected(state, patience=600.0 if following else 10.0) as client:
        seen = client.job_info(id)
        if "states" in seen.raw:
            if attempt is not None or node is not None:
                raise InputError(f"{id} is an array; name one of its jobs, such as {id}_0")
            _array(client, id, follow=following, tail=tail)
            return
        if not seen.attempt and attempt is None:
            _check_started(seen, following)
            seen = until_started(client, id) if following else seen
        if following and node is None and seen.nodes > 1:
            for line in client.log_lines(id, attempt=attempt, tail=tail):
                write(line)
        else:
            _print_job(client, seen, follow=following, attempt=attempt, node=node, tail=tail)
        _explain_no_start(client.job_info(id) if following else seen)


def follow(client: Client, id: str, *, several: bool) -> None:
    """Write the output of a job until it ends; that of several processes line by line, with their ranks."""
    for piece in client.log_lines(id) if several else client.logs(id, follow=True):
        write(piece)


def _check_started(seen: Job, follow: bool) -> None:
    """A job without an attempt has no output; say whether it ever will."""
    if seen.done:
        why = f": {seen.detail or seen.reason}" if seen.detail or seen.reason else ""
        raise InputError(plainly(f"{seen.id} never started; it is {seen.state}{why}"))
    if not follow:
        why = seen.reason or seen.state
        raise InputError(plainly(f"{seen.id} has not started yet ({why}); see dovetail why {seen.id}"))


def _explain_no_start(seen: Job) -> None:
    """A job that could not be started printed nothing: the reason is the answer."""
    if seen.raw.get("cause") == "unstartable":
        sys.stdout.flush()
        note(plainly(f"{seen.id} could not be started: {seen.detail or 'the reason is not known'}"))


def _print_job(
    client: Client, seen: Job, *, follow: bool, attempt: int | None, node: str | None, tail: int | None
) -> None:
    id = seen.id
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


# --- arrays ----------------------------------------------------------------------------------------


def _array(client: Client, id: str, *, follow: bool, tail: int | None) -> None:
    if follow:
        for line in _followed(client, id, tail):
            write(line)
        return
    members = _members(client, id)
    started = [member for member in members if member.attempt]
    if not started:
        reason = next((member.reason for member in members if member.reason), "it waits")
        raise InputError(plainly(f"no job of {id} has started yet ({reason}); see dovetail why {id}_0"))
    for member in started:
        write(f"==> {member.id} <==\n")
        _print_job(client, member, follow=False, attempt=None, node=None, tail=tail)
        _explain_no_start(member)
    if len(started) < len(members):
        sys.stdout.flush()
        note(f"{len(members) - len(started):,} of {len(members):,} jobs of {id} have not started")


def _members(client: Client, id: str) -> list[Job]:
    """The jobs of an array by their index."""

    def index(member: Job) -> int:
        return int((member.raw.get("array") or {}).get("index") or 0)

    return sorted(client.jobs(array=id), key=index)


class _Following:
    """How far the output of one member was read, and its last line if that is not finished."""

    def __init__(self) -> None:
        self.attempt, self.offset, self.rest = 0, 0, ""
        self.over = False


def _followed(client: Client, id: str, tail: int | None) -> Iterator[str]:
    """The lines of all members as they come, until all have ended; each begins with the member's index."""
    following: dict[str, _Following] = {}
    began, told = time.monotonic(), False
    while True:
        members = _members(client, id)
        if not (told or any(member.attempt or member.done for member in members)):
            told = time.monotonic() - began > SOON
            if told and members:
                note(f"no job of {id} has started yet; see dovetail why {members[0].id}")
        said = False
        for member in members:
            one = following.setdefault(member.id, _Following())
            if one.over or not member.attempt:
                continue
            for line in _new_lines(client, member, one, tail):
                said = True
                yield f"[{member.id.rpartition('_')[2]}] {line}\n"
        if all(member.done and (not member.attempt or following[member.id].over) for member in members):
            return
        if not said:
            time.sleep(LOOK)


def _new_lines(client: Client, member: Job, one: _Following, tail: int | None) -> Iterator[str]:
    """The finished lines of a member since the last look; all that is left once it has ended."""
    newest = member.attempt
    if one.attempt != newest:
        yield from [one.rest] if one.rest else []
        one.attempt, one.offset, one.rest = newest, 0, ""
    first: dict[str, Any] = {"tail": tail} if tail is not None and not one.offset else {}
    while True:
        piece = client.log_chunk(member.id, one.offset, attempt=newest, **first)
        first = {}
        one.offset = piece.next
        text = one.rest + piece.data.decode("utf-8", "replace")
        *lines, one.rest = text.split("\n")
        yield from lines
        if not piece.data:
            break
    if member.done:
        one.over = True
        if one.rest:
            yield one.rest
        if member.raw.get("cause") == "unstartable":
            yield f"could not be started: {plainly(member.detail or '')}"


def write(text: str) -> None:
    """Write the output of a job unchanged: its colours and progress bars are meant for this terminal."""
    sys.stdout.write(text)
    sys.stdout.flush()
