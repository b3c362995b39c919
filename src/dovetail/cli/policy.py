"""`dovetail policy`: show the scheduling policy of the plane, or switch it while jobs run."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from dovetail.cli.connection import StateOption, connected
from dovetail.cli.outputs import aligned, plainly, say
from dovetail.cli.policies import _typed as typed_as
from dovetail.cli.tables import JsonOption, PlainOutputOption, Raw, print_value, read_form
from dovetail.cli.times import ago
from dovetail.model.code_files import whole_path
from dovetail.model.errors import CannotLoad, InputError, UnknownName


def policy(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="The policy to switch to.", show_default=False)
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="An option of that policy.", show_default=False),
    ] = None,
    output: PlainOutputOption = "",
    as_json: JsonOption = False,
    state: StateOption = None,
) -> None:
    """Show or switch the policy of the plane.

    Jobs keep running and waiting. List the policies with dovetail policies --working. `default` is the policy
    of a new plane; a name alone means that policy with its default options. FILE.py:FUNCTION is a policy in a
    file of the plane's machine.

    \b
    dovetail policy
    dovetail policy default
    dovetail policy tiresias-l --set quantum=60
    dovetail policy my_policy.py:mine
    """
    form = read_form(output, as_json, ("json", "yaml"))
    if name is None and settings:
        raise InputError("--set needs the name of a policy")
    if name == "default" and settings:
        raise InputError("default includes its options; to set options, give the name of the policy")
    with connected(state) as client:
        if name is not None and client.connection.local:
            name = whole_path(name)  # the plane may have been started in another folder
        options: dict[str, Any] = read_options(name, settings or []) if name is not None else {}
        before = client.policy()
        found = before if name is None else client.set_policy(name, **options)
    if print_value(found, form):
        return
    if name is None:
        _show(found)
    else:
        say(plainly(_change(before, found or {"name": name, "options": options})))


def _show(found: Raw) -> None:
    """The policy with all options in force, and how to see others."""
    name, given = str(found.get("name")), found.get("options") or {}
    defaults = _defaults(name)
    say(plainly(told_policy(name, given)))
    if failure := policy_failure(found):
        say(plainly(failure))
    if rows := [
        [plainly(option), plainly(typed_as(value)), plainly(typed_as(defaults.get(option, "-")))]
        for option, value in _in_force(found).items()
    ]:
        say()
        say(aligned([["option", "in force", "its own default"], *rows], left=(0, 1, 2)))
    say()
    if found.get("default") is True:
        say("this is the default of a new plane")
    else:
        say("the default of a new plane:  dovetail policy default")
    say("other policies:  dovetail policies --working")


def policy_failure(policy: Raw) -> str:
    """Which policy decides instead while the chosen one fails; "" if the chosen one decides."""
    stand_in = policy.get("stand_in")
    if not stand_in:
        return ""
    name, again = policy.get("name"), ago(stand_in.get("retry_at"))
    reason, other = stand_in.get("reason"), stand_in.get("policy")
    return f"{name} fails ({reason}): {other} decides instead; {name} is tried again {again}"


def _change(before: Raw, after: Raw) -> str:
    """What has changed: the policy, or the options of the same policy."""
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
    return f"now {now}; changed: {', '.join(changed)}" if changed else f"unchanged: {now}"


def told_policy(name: str, options: Raw) -> str:
    """`kueue with whole=true, score=pack`: a policy and the options that were set."""
    told = [f"{key}={typed_as(value)}" for key, value in options.items()]
    return f"{name} with {', '.join(told)}" if told else name


def _in_force(found: Raw) -> dict[str, Any]:
    """All options of the policy, from the plane or else from the registry."""
    told = found.get("in_force")
    return dict(told) if told else {**_defaults(str(found.get("name"))), **(found.get("options") or {})}


def _defaults(name: str) -> dict[str, Any]:
    """The default options of a policy; none if only the plane has that policy."""
    from dovetail.policies.catalogue import options_of
    from dovetail.policies.registry import TRUSTED_POLICIES

    try:
        return {option["name"]: option["default"] for option in options_of(name, TRUSTED_POLICIES)}
    except (UnknownName, CannotLoad):
        return {}


def read_options(name: str, settings: list[str]) -> dict[str, Any]:
    """Options converted to their types; as text if only the plane has that policy."""
    from dovetail.cli.inputs import read_settings
    from dovetail.model.errors import BadOption
    from dovetail.model.registry import read_option
    from dovetail.policies.registry import TRUSTED_POLICIES

    typed = read_settings(settings)
    if not typed:
        return {}
    try:
        known = TRUSTED_POLICIES.options(name)
    except (UnknownName, CannotLoad):
        return dict(typed)
    for option in typed:
        if option not in known:
            raise BadOption(f"policy {name} has no option {option!r}; it takes {', '.join(known) or 'none'}")
    return {option: read_option("policy", name, known[option], text) for option, text in typed.items()}
