"""`dovetail hold`, `release`, `requeue`, `priority`: jobs in the queue, and back to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from dovetail.cli.live import JobArgument, JobsArgument, StateOption, TasksOption, connected, job_id
from dovetail.cli.outputs import plainly, say
from dovetail.model.errors import InputError


def hold(jobs: JobsArgument, tasks: TasksOption = None, state: StateOption = None) -> None:
    """Keep jobs from starting until they are released.

    \b
    dovetail hold k3v9q2
    """
    _each("hold", jobs, tasks, state)


def release(jobs: JobsArgument, tasks: TasksOption = None, state: StateOption = None) -> None:
    """Let held jobs start again.

    \b
    dovetail release k3v9q2
    """
    _each("release", jobs, tasks, state)


def requeue(jobs: JobsArgument, tasks: TasksOption = None, state: StateOption = None) -> None:
    """Stop jobs that run and put them back into the queue.

    \b
    dovetail requeue k3v9q2
    """
    _each("requeue", jobs, tasks, state)


def priority(
    job: JobArgument,
    value: Annotated[
        str, typer.Argument(metavar="N", help="A number, or low, normal, high.", show_default=False)
    ],
    state: StateOption = None,
) -> None:
    """Set the priority of a job; a higher number goes first.

    \b
    dovetail priority k3v9q2 100
    """
    try:
        wanted: int | str = int(value)
    except ValueError:
        if not value.isalpha():
            raise InputError(
                f"{plainly(value)!r} is no priority; write a whole number, or low, normal or high"
            ) from None
        wanted = value.lower()
    with connected(state) as client:
        changed = client.set_priority(job_id(job), wanted)
    say(f"{job_id(job)} has priority {changed.get('priority', wanted)}")


def _each(verb: str, jobs: list[str], tasks: str | None, state: str | None) -> None:
    ids = [job_id(job) for job in jobs]
    if tasks is not None and len(ids) != 1:
        raise InputError(f"--array {tasks} of which array? give one id")
    with connected(state) as client:
        for id in ids:
            say(_told(id, getattr(client, verb)(id, tasks)))


def _told(id: str, now: Mapping[str, Any]) -> str:
    if now.get("states"):
        return f"{id}: " + ", ".join(f"{number} {word}" for word, number in now["states"].items() if number)
    reason = f", {now['reason']}" if now.get("reason") else ""
    return plainly(f"{id} is {now.get('state', 'changed')}{reason}")
