"""`dovetail plan`: where and when a job would start, without submitting it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dovetail.cli.connection import StateOption, connected
from dovetail.cli.outputs import count, note, plainly, say
from dovetail.cli.submit import FileArgument, Flags, WithCommand, flagged, read_job, told_with_lines
from dovetail.cli.tables import Column, print_table, print_value, read_form
from dovetail.cli.times import clock, expected
from dovetail.model.errors import InputError
from dovetail.model.formats import number

if TYPE_CHECKING:
    from dovetail.client.documents import Plan


plan = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@plan.command("plan", cls=WithCommand)
@flagged
def plan_job(
    context: typer.Context,
    file: FileArgument = None,
    *,
    flags: Flags,
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")] = False,
    state: StateOption = None,
) -> None:
    """Say where and when a job would start.

    Nothing is submitted. The plane simulates its queue under the current policy until the job starts.

    \b
    dovetail plan train.yaml
    dovetail plan --gpus A100:4 --time 2h
    """
    with connected(state) as client:
        command = context.meta["command"]
        if file is None and command is None:
            command = ["true"]  # the command does not affect where the job starts
        typed = context.meta["typed"]
        request = read_job(file, flags, command=command, local=client.connection.local, typed=typed)
        with told_with_lines(request):
            found = client.plan(request)
    if print_value(found.raw, read_form("", as_json)):
        return
    if found.refused:
        raise InputError(plainly(f"the policy would refuse it: {found.refused}"))
    say(answer(found))
    if found.promised_by is not None:
        say(f"it would be promised to end by {clock(found.promised_by)}")
    if found.placement:
        say()
        print_table(found.placement, PLACES)
    if found.preempts or found.raw.get("preempts_others"):
        say()
        say(f"it would preempt {_stopped(found)}")
    for text in found.raw.get("notes") or () if found.fits else ():
        note(plainly(str(text)))
    if found.cost is not None:
        say(f"cost: {number(found.cost)}")


def answer(found: Plan) -> str:
    """Where and when, in one sentence."""
    if not found.fits:
        return plainly(str(found.raw.get("detail") or found.raw.get("reason") or "it would never start"))
    when = expected(found.starts)
    where = ", ".join(str(spot.get("node")) for spot in found.placement)
    if not when:
        return "it would wait; the start time is unknown"
    return plainly(f"it would start {when}" + (f" on {where}" if where else ""))


def _stopped(found: Plan) -> str:
    """The ids of the user's own jobs; only the number of other jobs."""
    own, others = [str(id) for id in found.preempts], int(found.raw.get("preempts_others") or 0)
    parts = [", ".join(own)] if own else []
    if others:
        parts.append(f"{count(others, 'job')} of other users")
    return plainly(" and ".join(parts) or "nothing")


PLACES = (
    Column("node", lambda spot: str(spot.get("node"))),
    Column("GPUs", lambda spot: number(spot.get("gpus") or 0, 3), left=False),
)
