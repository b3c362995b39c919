"""`dovetail token`: access tokens of the plane."""

from __future__ import annotations

from typing import Annotated

import typer

from dovetail.cli.connection import StateOption, connected, say_each
from dovetail.cli.outputs import count, note, plainly, say
from dovetail.cli.tables import (
    Column,
    JsonOption,
    OutputOption,
    PlainOutputOption,
    Raw,
    plain,
    print_items,
    print_value,
    read_form,
)
from dovetail.cli.times import ago
from dovetail.model.errors import InputError, UnknownName

ROLES = ("admin", "user", "viewer")

token = typer.Typer(
    name="token", help="Create, list and revoke access tokens.", no_args_is_help=True, rich_markup_mode=None
)


@token.command()
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the token.", show_default=False)],
    *,
    tenant: Annotated[
        str | None,
        typer.Option("-A", "--tenant", metavar="NAME", help="Tenant of its jobs.", show_default=False),
    ] = None,
    user: Annotated[
        str | None,
        typer.Option(
            "-u", "--user", metavar="NAME", help="User of its jobs; by default NAME.", show_default=False
        ),
    ] = None,
    role: Annotated[str, typer.Option(metavar="ROLE", help="admin, user or viewer.")] = "user",
    expires: Annotated[
        str | None,
        typer.Option("--expires", metavar="TIME", help="Lifetime: 30d.", show_default=False),
    ] = None,
    output: PlainOutputOption = "",
    as_json: JsonOption = False,
    state: StateOption = None,
) -> None:
    """Create a token. It is printed once; the plane keeps only a hash of it.

    \b
    dovetail token create alice --tenant research --expires 90d
    """
    from dovetail.model.units import parse_duration, seconds

    form = read_form(output, as_json, ("json", "yaml"))
    if role not in ROLES:
        raise UnknownName("role", role, ROLES)
    try:
        good_for = None if expires is None else seconds(parse_duration(expires))
    except ValueError as error:
        raise InputError(f"--expires: {error}") from None
    with connected(state) as client:
        made = client.create_token(name, tenant=tenant, user=user or name, role=role, expires_in=good_for)
    if print_value(made, form):
        return
    say(str(made["token"]))
    note(f"token {plainly(str(made.get('id')))} of {plainly(name)}; it is not shown again")


@token.command("list")
def list_tokens(output: OutputOption = "", as_json: JsonOption = False, state: StateOption = None) -> None:
    """List the tokens, without their secrets.

    \b
    dovetail token list -o wide
    """
    form = read_form(output, as_json)
    with connected(state) as client:
        items = sorted(client.tokens(), key=lambda item: str(item.get("created_at")))
    print_items(
        items, form, key="tokens", name="id", columns=COLUMNS, wide=WIDE, head=count(len(items), "token")
    )


@token.command()
def revoke(
    ids: Annotated[
        list[str], typer.Argument(metavar="ID...", help="Ids from dovetail token list.", show_default=False)
    ],
    state: StateOption = None,
) -> None:
    """Revoke tokens.

    \b
    dovetail token revoke t4k9
    """
    with connected(state) as client:

        def revoked(id: str) -> str:
            client.revoke_token(id)
            return f"{id} revoked"

        say_each(ids, revoked)


def _expiry(item: Raw) -> str:
    if item.get("revoked_at"):
        return f"revoked {ago(item['revoked_at'])}"
    return ago(item["expires_at"]) if item.get("expires_at") else "never"


COLUMNS = (
    plain("id"),
    plain("name"),
    plain("tenant"),
    plain("user"),
    plain("role"),
    Column("expires", _expiry),
)
WIDE = (Column("created", lambda item: ago(item.get("created_at"))),)
