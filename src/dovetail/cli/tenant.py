"""`dovetail tenant`: quotas, borrowing limits and hard limits of tenants."""

from __future__ import annotations

from typing import Annotated

import typer

from dovetail.cli.connection import StateOption, connected
from dovetail.cli.outputs import note, plainly, say
from dovetail.model.errors import InputError

tenant = typer.Typer(
    name="tenant",
    help="Set and remove quotas of tenants.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The tenant.", show_default=False)]


@tenant.command("set")
def set_tenant(
    name: NameArgument,
    *,
    quota: Annotated[
        str | None,
        typer.Option(metavar="GPUS", help="Guaranteed GPUs; none: no quota.", show_default=False),
    ] = None,
    borrow: Annotated[
        str | None,
        typer.Option(
            metavar="GPUS",
            help="GPUs it may borrow while other tenants do not use them; none: no maximum.",
            show_default=False,
        ),
    ] = None,
    limit: Annotated[
        str | None,
        typer.Option(metavar="GPUS", help="Maximum number of GPUs; none: no limit.", show_default=False),
    ] = None,
    weight: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            help="Weight against other tenants, for fair-share policies; 1 for a new tenant.",
            show_default=False,
        ),
    ] = None,
    parent: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Tenants with the same parent lend to each other.", show_default=False
        ),
    ] = None,
    account: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="The UNIX account its jobs run as (needs root).", show_default=False
        ),
    ] = None,
    allow_root: Annotated[
        bool, typer.Option("--allow-root", help="Allow the account root, so that its jobs run as root.")
    ] = False,
    state: StateOption = None,
) -> None:
    """Create or change a tenant; options that are left out stay as they are.

    \b
    dovetail tenant set lab
    dovetail tenant set research --quota 6 --parent lab
    dovetail tenant set product --quota 2 --parent lab --borrow 2
    """
    gpus = {"quota": quota, "borrow": borrow, "limit": limit}
    given: dict[str, object] = {key: _gpus(key, text) for key, text in gpus.items() if text is not None}
    words = {"weight": weight, "parent": parent, "account": account}
    given |= {key: value for key, value in words.items() if value is not None}
    if allow_root:
        given["allow_root"] = True
    with connected(state) as client:
        changed = client.set_tenant(name, **given)
    say(f"tenant {plainly(name)} is set; see dovetail shares")
    for text in changed.get("notes") or ():
        note(plainly(str(text)))


def _gpus(option: str, text: str) -> int | None:
    """A number of GPUs; None for "none"."""
    if text == "none":
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise InputError(f"--{option} {text!r} is not a number of GPUs; give 0 or more, or none")
    return int(text)


@tenant.command()
def drop(name: NameArgument, state: StateOption = None) -> None:
    """Remove the quota of a tenant; its jobs stay, and share the GPUs that no quota guarantees.

    \b
    dovetail tenant drop product
    """
    with connected(state) as client:
        client.drop_tenant(name)
    say(f"tenant {plainly(name)} has no quota any more")
