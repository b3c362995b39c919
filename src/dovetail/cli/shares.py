"""`dovetail shares`: quota, fair share and use of each tenant."""

from __future__ import annotations

from dovetail.cli.connection import StateOption, connected
from dovetail.cli.outputs import count
from dovetail.cli.tables import (
    Column,
    JsonOption,
    OutputOption,
    Raw,
    plain,
    print_items,
    print_value,
    read_form,
)
from dovetail.model.formats import number


def shares(output: OutputOption = "", as_json: JsonOption = False, state: StateOption = None) -> None:
    """Show the quota of each tenant, the GPUs it uses and those it borrows.

    Users see their own tenant and the totals.

    \b
    dovetail shares -o wide
    """
    form = read_form(output, as_json)
    with connected(state) as client:
        found = client.shares()
    if print_value(found, form):
        return
    items = list(found.get("items") or ())
    total = found.get("total") or {}
    head = f"{number(_number(total, 'used'))} of {count(_number(total, 'gpus'), 'GPU')} in use"
    print_items(items, form, key="tenants", name="tenant", columns=COLUMNS, wide=WIDE, head=head)


def _number(item: Raw, key: str) -> float:
    return float(item.get(key) or 0)


COLUMNS = (
    Column("tenant", lambda item: str(item.get("tenant") or "-")),
    plain("weight", left=False),
    plain("quota", left=False),
    Column("used", lambda item: number(_number(item, "used")), left=False),
    Column("borrowed", lambda item: number(_number(item, "borrowed")), left=False),
    plain("limit", left=False),
    plain("running", left=False),
    plain("pending", head="waiting", left=False),
)
WIDE = (
    plain("borrow", head="may borrow", left=False),
    Column("fair share", lambda item: number(_number(item, "fair")), left=False),
    plain("parent"),
)
