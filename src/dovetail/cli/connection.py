"""What the commands that talk to a plane share: options and arguments, and the connection."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dovetail.cli.outputs import plainly, say
from dovetail.model.errors import InputError

if TYPE_CHECKING:
    from dovetail.client.client import Client

StateOption = Annotated[
    str | None,
    typer.Option(
        "--state",
        metavar="DIR",
        help="The plane's state folder. [default: DOVETAIL_STATE, or ~/.local/state/dovetail]",
        show_default=False,
    ),
]
JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="The job's id.", show_default=False)]
JobsArgument = Annotated[
    list[str], typer.Argument(metavar="JOB...", help="Ids of jobs or arrays.", show_default=False)
]
TasksOption = Annotated[
    str | None,
    typer.Option("--array", metavar="3-7", help="Only these members of an array.", show_default=False),
]


def connected(state: str | None, *, patience: float = 10.0) -> Client:
    """A client of the plane: of --state, of DOVETAIL_URL, or of this machine."""
    from dovetail.client.client import Client

    return Client(state=state, patience=patience)


def job_id(text: str) -> str:
    """The id in what the user typed; `job/ID`, as in kubectl, is accepted too."""
    found = text.strip().removeprefix("job/").removeprefix("jobs/")
    if not re.fullmatch(r"[A-Za-z0-9]{1,64}(_\d{1,9})?", found):
        raise InputError(f"{plainly(text)!r} is not a job id; list jobs with dovetail ps")
    return found


def say_each(names: Iterable[str], told: Callable[[str], str]) -> None:
    """Call `told` for each name and print its answer; an error for one name does not stop the others."""
    wrong: dict[str, None] = {}
    for name in names:
        try:
            say(plainly(told(name)))
        except InputError as error:
            wrong[str(error)] = None
    if wrong:
        raise InputError("; ".join(wrong))


def told_states(array: Mapping[str, Any]) -> str:
    """The states of an array: `2 completed, 1 failed`."""
    return ", ".join(f"{number} {word}" for word, number in array["states"].items() if number)
