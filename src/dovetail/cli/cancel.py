"""`dovetail cancel`: end jobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dovetail.cli.connection import StateOption, TasksOption, connected, job_id, told_states
from dovetail.cli.outputs import count, plainly, say
from dovetail.model.errors import InputError

if TYPE_CHECKING:
    from dovetail.client.client import Client

BATCH = 1_000  # ids in one request
FEW = 20  # up to this many jobs, each gets a line of its own


def cancel(
    jobs: Annotated[
        list[str] | None,
        typer.Argument(metavar="JOB...", help="Ids of jobs or arrays.", show_default=False),
    ] = None,
    mine: Annotated[bool, typer.Option("--mine", help="All my jobs.")] = False,
    user: Annotated[
        str | None,
        typer.Option("-u", "--user", metavar="NAME", help="All jobs of this user.", show_default=False),
    ] = None,
    tasks: TasksOption = None,
    state: StateOption = None,
) -> None:
    """Cancel jobs.

    Running jobs are told to stop and have their grace period. Waiting jobs leave the queue. Jobs that have
    ended stay as they are.

    \b
    dovetail cancel k3v9q2 m8x0aa
    dovetail cancel k3v9q2 --array 3-7
    dovetail cancel --mine
    """
    ids = list(dict.fromkeys(job_id(job) for job in jobs or ()))
    if sum((bool(ids), mine, user is not None)) != 1:
        raise InputError("give job ids, or --mine, or --user NAME, and only one of these")
    if tasks is not None and len(ids) != 1:
        raise InputError(f"--array {plainly(tasks)} needs exactly one array id")
    with connected(state) as client:
        if mine:
            say(f"{count(client.cancel(mine=True), 'job')} cancelled")
        elif user is not None:
            active = [job.id for job in client.jobs(user=user, active=True)]
            say(f"{count(cancel_many(client, active)[0], 'job')} cancelled")
        else:
            _named(client, ids, tasks)


def _named(client: Client, ids: list[str], tasks: str | None) -> None:
    """Cancel the jobs that exist; ids that do not exist are reported at the end, with exit code 2."""
    if len(ids) > FEW:
        done, unknown = cancel_many(client, ids)
        say(f"{count(done, 'job')} cancelled")
    else:
        told = {id: _one(client, id, tasks) for id in ids}
        unknown = [id for id, text in told.items() if text is None]
        for text in filter(None, told.values()):
            say(plainly(text))
    if unknown:
        names = ", ".join(unknown[:FEW]) + (", ..." if len(unknown) > FEW else "")
        raise InputError(f"no job has the id {names}; see them with dovetail ps -a")


def cancel_many(client: Client, ids: list[str]) -> tuple[int, list[str]]:
    """The number of cancelled jobs, and the ids that do not exist."""
    answers = [client.cancel_many(*ids[at : at + BATCH]) for at in range(0, len(ids), BATCH)]
    missing = [str(id) for answer in answers for id in answer.get("missing") or ()]
    return sum(int(answer["count"]) for answer in answers), missing


def _one(client: Client, id: str, tasks: str | None) -> str | None:
    """The outcome as a sentence; None if there is no such job."""
    from dovetail.client.connection import Refused

    try:
        before = client.job_info(id)
        if before.done:  # ended by itself, or cancelled before
            return _already(id, before.raw)
        now = client.cancel_one(id, tasks)
    except Refused as error:
        if error.status != 404 or tasks is not None:
            raise
        return None
    which = "" if tasks is None else f": {tasks}"
    if "states" in now:
        done = int(now.get("acted", 1))
        what = f"{id} cancelled{which} ({count(done, 'job')})"
        return what if done else f"{id}{which} had already ended: {told_states(now)}"
    if now.get("state") == "stopping":
        return f"{id} cancelled; it is stopping"
    return f"{id} cancelled{which}" if now.get("state") == "cancelled" else _already(id, now)


def _already(id: str, job: Mapping[str, Any]) -> str:
    if "states" in job:
        return f"{id} had already ended: {told_states(job)}"
    how = {"completed": "completed", "failed": "failed", "cancelled": "been cancelled"}
    return f"{id} had already {how.get(state := str(job.get('state')), f'ended: {state}')}"
