"""`dovetail hold`, `release`, `requeue`, `priority`: change waiting jobs, or make running jobs wait again."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from dovetail.cli.connection import (
    JobArgument,
    JobsArgument,
    StateOption,
    TasksOption,
    connected,
    job_id,
    say_each,
    told_states,
)
from dovetail.cli.outputs import plainly, say
from dovetail.cli.why import waiting
from dovetail.model.errors import InputError

if TYPE_CHECKING:
    from dovetail.client.client import Client

HELD = ("JobHeldUser", "JobHeldAdmin")


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
    """Stop running jobs and put them back into the queue.

    \b
    dovetail requeue k3v9q2
    """
    _each("requeue", jobs, tasks, state)


class WithNumber(TyperCommand):
    """A command that reads `-5` as a number, not as an option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        numbers = [word for word in args if re.fullmatch("-[0-9]+", word)]
        if numbers and "--" not in args:
            args = [*(word for word in args if word not in numbers), "--", *numbers]
        return super().parse_args(ctx, args)


priority = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@priority.command("priority", cls=WithNumber)
def set_priority(
    job: JobArgument,
    value: Annotated[
        str, typer.Argument(metavar="N", help="A number, or low, normal, high, urgent.", show_default=False)
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
                f"{plainly(value)!r} is not a priority; give a whole number, or low, normal, high or urgent"
            ) from None
        wanted = value.lower()
    with connected(state) as client:
        changed = client.set_priority(job_id(job), wanted)
    say(f"{job_id(job)} has priority {changed.get('priority', wanted)}")


def _each(verb: str, jobs: list[str], tasks: str | None, state: str | None) -> None:
    ids = [job_id(job) for job in jobs]
    if tasks is not None and len(ids) != 1:
        raise InputError(f"--array {tasks} needs exactly one array id")
    with connected(state) as client:
        say_each(ids, lambda id: _told(client, id, _acted(client, verb, id, tasks)))


def _acted(client: Client, verb: str, id: str, tasks: str | None) -> Mapping[str, Any]:
    """The job after the action; releasing a job that is not held is an error that says why it waits."""
    from dovetail.client.connection import Refused

    try:
        found: Mapping[str, Any] = getattr(client, verb)(id, tasks)
        return found
    except Refused as error:
        if verb == "release" and error.status == 409 and tasks is None:
            job = client.job_info(id)
            if job.state in ("held", "pending") and "states" not in job.raw:
                raise InputError(
                    f"{id} is not held, so there is nothing to release: {_lacks(client, id, job.reason)}"
                ) from None
        raise


def _told(client: Client, id: str, now: Mapping[str, Any]) -> str:
    if now.get("states"):
        return f"{id}: {told_states(now)}"
    state, reason = now.get("state", "changed"), str(now.get("reason") or "")
    if state == "held" and reason not in HELD:  # released, but not in the queue
        return f"{id} is released, but still waits: {_lacks(client, id, reason)}"
    return f"{id} is {state}" + (f", {reason}" if reason else "")


def _lacks(client: Client, id: str, reason: str) -> str:
    return waiting(client, client.why(id)) or reason
