"""`dovetail token`: who may talk to the plane."""

from __future__ import annotations

from typing import Annotated

import typer

from dovetail.cli.live import (
    Column,
    JsonOption,
    OutputOption,
    PlainOutputOption,
    Raw,
    StateOption,
    ago,
    connected,
    plain,
    print_items,
    print_value,
    read_form,
)
from dovetail.cli.outputs import count, note, plainly, say
from dovetail.model.errors import InputError, UnknownName

ROLES = ("admin", "user", "viewer")

token = typer.Typer(
    name="token", help="Say who may talk to the plane.", no_args_is_help=True, rich_markup_mode=None
)


@token.command()
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="For people: whose it is.", show_default=False)],
    *,
    tenant: Annotated[
        str | None,
        typer.Option("-A", "--tenant", metavar="NAME", help="Its jobs belong here.", show_default=False),
    ] = None,
    user: Annotated[
        str | None,
        typer.Option("-u", "--user", metavar="NAME", help="Who uses it; else NAME.", show_default=False),
    ] = None,
    role: Annotated[str, typer.Option(metavar="ROLE", help="admin, user or viewer.")] = "user",
    expires: Annotated[
        str | None,
        typer.Option("--expires", metavar="TIME", help="Good for so long: 30d.", show_default=False),
    ] = None,
    output: PlainOutputOption = "",
    as_json: JsonOption = False,
    state: StateOption = None,
) -> None:
    """Make a token. It is printed once, and the plane keeps only a hash of it.

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
    """List the tokens: whose they are, not what they are.

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
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="From the list.", show_default=False)],
    state: StateOption = None,
) -> None:
    """Make tokens worthless.

    \b
    dovetail token revoke t4k9
    """
    with connected(state) as client:
        for id in ids:
            client.revoke_token(id)
            say(plainly(f"{id} revoked"))


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
WIDE = (Column("made", lambda item: ago(item.get("created_at"))),)
