"""`dovetail policy`: which policy the plane runs; switch it while jobs go on."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from dovetail.cli.live import (
    JsonOption,
    PlainOutputOption,
    Raw,
    StateOption,
    connected,
    print_value,
    read_form,
)
from dovetail.cli.outputs import aligned, plainly, say
from dovetail.cli.policies import _typed as typed_as
from dovetail.model.errors import InputError


def policy(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Switch to this one.", show_default=False)
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

    All jobs stay. What there is to choose from:  dovetail policies --working. `default` is what a new plane
    begins with; a name alone means that policy with its own defaults.

    \b
    dovetail policy
    dovetail policy default
    dovetail policy tiresias-l --set quantum=60
    """
    form = read_form(output, as_json, ("json", "yaml"))
    if name is None and settings:
        raise InputError("--set sets an option of a policy; name it too")
    if name == "default" and settings:
        raise InputError("default is a policy with its options; to set others, name the policy")
    options: dict[str, Any] = read_options(name, settings or []) if name is not None else {}
    with connected(state) as client:
        before = client.policy()
        found = before if name is None else client.set_policy(name, **options)
    if print_value(found, form):
        return
    if name is None:
        _show(found)
    else:
        say(plainly(_change(before, found or {"name": name, "options": options})))


def _show(found: Raw) -> None:
    """The policy, all its options as they are in force, and the way to others."""
    name, given = str(found.get("name")), found.get("options") or {}
    defaults = _defaults(name)
    say(plainly(told_policy(name, given)))
    if rows := [
        [plainly(option), plainly(typed_as(value)), plainly(typed_as(defaults.get(option, "-")))]
        for option, value in _in_force(found).items()
    ]:
        say()
        say(aligned([["option", "in force", "its own default"], *rows], left=(0, 1, 2)))
    say()
    if found.get("default") is True:
        say("this is what a new plane begins with")
    else:
        say("what a new plane begins with:  dovetail policy default")
    say("the others:  dovetail policies --working")


def _change(before: Raw, after: Raw) -> str:
    """What is different now; of the same policy, which options."""
    name, given = str(after.get("name")), after.get("options") or {}
    old, had = str(before.get("name")), before.get("options") or {}
    now = told_policy(name, given)
    if name != old:
        return f"now {now}; it was {told_policy(old, had)}"
    mine, theirs = _in_force(after), _in_force(before)
    changed = [
        f"{option} {typed_as(theirs.get(option))} -> {typed_as(mine.get(option))}"
        for option in {**mine, **theirs}
        if mine.get(option) != theirs.get(option)
    ]
    return f"now {now}; changed: {', '.join(changed)}" if changed else f"it is {now} as before"


def told_policy(name: str, options: Raw) -> str:
    """`kueue with whole=true, score=pack`: what it was told, as one would type it."""
    told = [f"{key}={typed_as(value)}" for key, value in options.items()]
    return f"{name} with {', '.join(told)}" if told else name


def _in_force(found: Raw) -> dict[str, Any]:
    """All its options, as the plane says or as the registry has them."""
    told = found.get("in_force")
    return dict(told) if told else {**_defaults(str(found.get("name"))), **(found.get("options") or {})}


def _defaults(name: str) -> dict[str, Any]:
    """The options of a policy as registered here; a plane may know policies that we do not."""
    from dovetail.policies.catalogue import options_of
    from dovetail.policies.table import POLICIES

    if name not in POLICIES.names():
        return {}
    return {option["name"]: option["default"] for option in options_of(name)}


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
