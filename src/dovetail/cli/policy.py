"""`dovetail policy`: which policy the plane runs; switch it while jobs go on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from dovetail.cli.live import (
    JsonOption,
    PlainOutputOption,
    StateOption,
    connected,
    print_value,
    read_form,
)
from dovetail.cli.outputs import plainly, say
from dovetail.model.errors import InputError


def policy(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Switch to this one.", show_default=False)
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Set an option of it.", show_default=False),
    ] = None,
    output: PlainOutputOption = "",
    as_json: JsonOption = False,
    state: StateOption = None,
) -> None:
    """Show or switch the policy of the plane.

    All jobs stay. What there is to choose from:  dovetail policies --working

    \b
    dovetail policy
    dovetail policy tiresias-l --set quantum=60
    """
    form = read_form(output, as_json, ("json", "yaml"))
    if name is None and settings:
        raise InputError("--set sets an option of a policy; name it too")
    options: dict[str, Any] = read_options(name, settings or []) if name is not None else {}
    with connected(state) as client:
        found = client.policy() if name is None else client.set_policy(name, **options)
    if print_value(found, form):
        return
    say(_told(found) if name is None else f"now {_told(found or {'name': name, 'options': options})}")
    if name is None:
        say()
        say("the others:  dovetail policies --working")


def read_options(name: str, settings: list[str]) -> dict[str, Any]:
    """Options in their types; a policy that only the plane knows gets them as they were typed."""
    from dovetail.cli.inputs import read_settings
    from dovetail.model.errors import BadOption
    from dovetail.model.registry import read_option
    from dovetail.policies.table import POLICIES

    typed = read_settings(settings)
    if not typed or name not in POLICIES.names():
        return dict(typed)
    known = POLICIES.options(name)
    for option in typed:
        if option not in known:
            raise BadOption(f"policy {name} has no option {option!r}; it takes {', '.join(known) or 'none'}")
    return {option: read_option("policy", name, known[option], text) for option, text in typed.items()}


def _told(found: Mapping[str, Any]) -> str:
    options = found.get("options") or {}
    told = ", ".join(f"{key}={value}" for key, value in options.items())
    return plainly(f"{found.get('name')}" + (f" with {told}" if told else ""))
