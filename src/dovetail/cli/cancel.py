"""`dovetail cancel`: end jobs."""

from __future__ import annotations

from typing import Annotated

import typer

from dovetail.cli.live import StateOption, TasksOption, connected, job_id
from dovetail.cli.outputs import count, say
from dovetail.model.errors import InputError

BATCH = 1_000  # ids in one request


def cancel(
    jobs: Annotated[
        list[str] | None,
        typer.Argument(metavar="[JOB]...", help="Ids of jobs or arrays.", show_default=False),
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

    Those that run are told to stop and have their grace; those that wait leave the queue.

    \b
    dovetail cancel k3v9q2 m8x0aa
    dovetail cancel k3v9q2 --array 3-7
    dovetail cancel --mine
    """
    ids = [job_id(job) for job in jobs or ()]
    if sum((bool(ids), mine, user is not None)) != 1:
        raise InputError("cancel what? give ids, or --mine, or --user NAME, and only one of these")
    if tasks is not None and len(ids) != 1:
        raise InputError(f"--array {tasks} of which array? give one id")
    with connected(state) as client:
        if len(ids) == 1:
            client.cancel(ids[0], tasks=tasks)
            say(f"{ids[0]} cancelled" if tasks is None else f"{ids[0]} cancelled: {tasks}")
            return
        if mine:
            ended = client.cancel(mine=True)
        else:
            ids = ids or [job.id for job in client.jobs(user=user, active=True)]
            ended = sum(client.cancel(*ids[at : at + BATCH]) for at in range(0, len(ids), BATCH))
        say(f"{count(ended, 'job')} cancelled")
