"""`dovetail tenant`: what teams may count on, borrow, and never exceed."""

from __future__ import annotations

from typing import Annotated

import typer

from dovetail.cli.live import StateOption, connected
from dovetail.cli.outputs import plainly, say

tenant = typer.Typer(
    name="tenant",
    help="Give teams their quotas, and take them back.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The tenant.", show_default=False)]


@tenant.command("set")
def set_tenant(
    name: NameArgument,
    *,
    quota: Annotated[
        int | None,
        typer.Option(metavar="GPUS", min=0, help="It may count on these.", show_default=False),
    ] = None,
    borrow: Annotated[
        int | None,
        typer.Option(
            metavar="GPUS", min=0, help="So many more while others do not need them.", show_default=False
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(metavar="GPUS", min=0, help="It never holds more.", show_default=False),
    ] = None,
    weight: Annotated[float, typer.Option(help="Against others, for policies that share by weight.")] = 1.0,
    parent: Annotated[
        str,
        typer.Option(metavar="NAME", help="Those under one parent lend to each other.", show_default=False),
    ] = "",
    account: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="The UNIX account its jobs run as (needs root).", show_default=False
        ),
    ] = "",
    state: StateOption = None,
) -> None:
    """Make a tenant, or change it; what is left out is as for a new one.

    \b
    dovetail tenant set lab
    dovetail tenant set research --quota 6 --parent lab
    dovetail tenant set product --quota 2 --parent lab --borrow 2
    """
    with connected(state) as client:
        client.set_tenant(
            name, quota=quota, borrow=borrow, limit=limit, weight=weight, parent=parent, account=account
        )
    say(f"tenant {plainly(name)} is set; see dovetail shares")


@tenant.command()
def drop(name: NameArgument, state: StateOption = None) -> None:
    """Forget what a tenant may have; its jobs stay, and share what nobody counts on.

    \b
    dovetail tenant drop product
    """
    with connected(state) as client:
        client.drop_tenant(name)
    say(f"tenant {plainly(name)} has no quota of its own any more")
