"""`dovetail limits`: what users may ask for, by role, tenant and user."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from dovetail.cli.connection import StateOption, connected
from dovetail.cli.outputs import note, plainly, say
from dovetail.cli.tables import (
    Column,
    JsonOption,
    PlainOutputOption,
    Raw,
    print_table,
    print_value,
    read_form,
)
from dovetail.cli.times import lasting
from dovetail.model.errors import InputError, UnknownName

limits = typer.Typer(
    name="limits",
    help="Show and set what users may ask for.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

KINDS = ("role", "tenant", "user")
KindArgument = Annotated[
    str, typer.Argument(metavar="KIND", help="role, tenant or user.", show_default=False)
]
NameArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="Of the role, tenant or user.", show_default=False)
]


def _amount(meaning: str, metavar: str = "N") -> Any:
    return typer.Option(metavar=metavar, help=f"{meaning}; none: no limit.", show_default=False)


@limits.command("list")
def list_limits(
    output: PlainOutputOption = "", as_json: JsonOption = False, state: StateOption = None
) -> None:
    """Show your limits and where they are set; administrators see all that are set.

    \b
    dovetail limits list
    """
    form = read_form(output, as_json, ("json", "yaml"))
    with connected(state) as client:
        found = client.limits()
    if print_value(found, form):
        return
    own = list(found.get("own") or ())
    if own:
        say("you may ask for:")
        print_table(own, OWN)
        say()
    say("limits are set for:")
    print_table(list(found.get("items") or ()), ROWS)
    if found.get("more"):
        say(f"and {found['more']} more")


@limits.command("set")
def set_limits(
    kind: KindArgument,
    name: NameArgument,
    *,
    priority: Annotated[str | None, _amount("Highest priority of a job")] = None,
    gpus: Annotated[str | None, _amount("GPUs of one job")] = None,
    time: Annotated[str | None, _amount("Time limit of one job, which it must then have", "TIME")] = None,
    jobs: Annotated[
        str | None, _amount("Jobs that have not ended: of each user, or of a tenant together")
    ] = None,
    state: StateOption = None,
) -> None:
    """Set limits of a role, a tenant or a user; options that are left out stay as they are.

    A limit of a user goes before that of the tenant, and that before the one of the role. Administrators have
    no limits unless they are set for the role admin.

    \b
    dovetail limits set role user --priority 50 --time 7d
    dovetail limits set tenant vision --jobs 500
    dovetail limits set user ada --priority 1000 --gpus none
    """
    scope = _kind(kind)
    given: dict[str, float | None] = {}
    for what, text in (("priority", priority), ("gpus", gpus), ("jobs", jobs)):
        if text is not None:
            given[what] = _number(what, text)
    if time is not None:
        given["time"] = _seconds(time)
    if not given:
        raise InputError("nothing to set; give --priority, --gpus, --time or --jobs")
    with connected(state) as client:
        changed = client.set_limits(scope, name, **given)
    told = ", ".join(f"{what} {_shown(what, most)}" for what, most in (changed.get("limits") or {}).items())
    say(plainly(f"limits of {kind} {name}: {told}"))
    for text in changed.get("notes") or ():
        note(plainly(str(text)))


@limits.command()
def drop(kind: KindArgument, name: NameArgument, state: StateOption = None) -> None:
    """Forget what was set for a role, a tenant or a user.

    \b
    dovetail limits drop user ada
    """
    scope = _kind(kind)
    with connected(state) as client:
        client.drop_limits(scope, name)
    say(plainly(f"no limits are set for {kind} {name} any more; see dovetail limits list"))


def _kind(text: str) -> str:
    if text not in KINDS:
        raise UnknownName("kind of limit", text, KINDS)
    return text


def _number(what: str, text: str) -> int | None:
    if text == "none":
        return None
    digits = text.removeprefix("-") if what == "priority" else text
    if not (digits.isascii() and digits.isdigit() and len(digits) < 10):
        raise InputError(f"--{what} {plainly(text)!r} is not a whole number; give one, or none")
    return int(text)


def _seconds(text: str) -> float | None:
    from dovetail.model.units import parse_duration, seconds

    if text == "none":
        return None
    if text.strip().replace(".", "").isdecimal():
        raise InputError(f"--time {text} has no unit; write {text}h, {text}m, or 1-12:00:00")
    try:
        return seconds(parse_duration(text))
    except ValueError as error:
        raise InputError(f"--time: {error}") from None


def _shown(what: Any, most: Any) -> str:
    if most is None:
        return "none"
    return lasting(most) if what == "time" else f"{most:,.0f}"


WORDS = {
    "priority": "priority of a job",
    "gpus": "GPUs of a job",
    "time": "time limit of a job",
    "jobs": "jobs that have not ended",
}


def _whose(limit: Raw) -> str:
    if not limit.get("kind"):
        return "-"
    now = f" ({limit['used']:,} now)" if limit.get("used") is not None else ""
    return f"{limit['kind']} {limit['name']}{now}"


def _set_here(what: str) -> Column:
    def shown(row: Raw) -> str:
        amounts = row.get("limits") or {}
        return _shown(what, amounts[what]) if what in amounts else "-"

    return Column("GPUs" if what == "gpus" else what, shown, left=False)


OWN = (
    Column("limit", lambda limit: WORDS.get(str(limit.get("what")), str(limit.get("what")))),
    Column("at most", lambda limit: _shown(limit.get("what"), limit.get("most")), left=False),
    Column("set for", _whose),
)
ROWS = (
    Column("set for", lambda row: f"{row.get('kind')} {row.get('name')}"),
    *(_set_here(what) for what in WORDS),
)
