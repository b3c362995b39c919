"""`dovetail nodes`: the nodes and their state; `drain` and `resume`: take nodes out of service and back."""

from __future__ import annotations

from typing import Annotated

import typer

from dovetail.cli.connection import StateOption, connected, say_each
from dovetail.cli.node_ranges import node_names
from dovetail.cli.outputs import count, plainly
from dovetail.cli.tables import Column, JsonOption, OutputOption, Raw, plain, print_items, read_form
from dovetail.model.errors import InputError
from dovetail.model.formats import number, size

NodesArgument = Annotated[
    list[str], typer.Argument(metavar="NODE...", help="n0, n0,n1 or gpu[01-08].", show_default=False)
]
ReasonOption = Annotated[
    str,
    typer.Option(
        "-r", "--reason", metavar="TEXT", help="Reason, shown in the list of nodes.", show_default=False
    ),
]

node = typer.Typer(
    name="node", help="Take nodes out of service and back.", no_args_is_help=True, rich_markup_mode=None
)


def nodes(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NODE...", help="Only these nodes: n0, gpu[01-08].", show_default=False),
    ] = None,
    output: OutputOption = "",
    as_json: JsonOption = False,
    state: StateOption = None,
) -> None:
    """List the nodes, their GPUs and free resources.

    \b
    dovetail nodes
    dovetail nodes gpu[01-08] -o wide
    """
    form = read_form(output, as_json)
    wanted = node_names(names) if names else []
    with connected(state) as client:
        items = client.node_list()
    known = {str(item.get("name")) for item in items}
    if unknown := [name for name in wanted if name not in known]:
        raise InputError(f"no node is named {plainly(unknown[0])}; list them with dovetail nodes")
    items = [item for item in items if not wanted or item.get("name") in wanted]
    gpus = sum(_number(item, "gpus") for item in items)
    free = sum(_number(item, "free") for item in items)
    out = sum(item.get("state") != "up" for item in items)
    head = f"{count(len(items), 'node')}, {number(free)} of {count(gpus, 'GPU')} free" + (
        f", {count(out, 'node')} out of service" if out else ""
    )
    print_items(items, form, key="nodes", name="name", columns=COLUMNS, wide=WIDE, head=head)


@node.command("drain")
def drain(names: NodesArgument, reason: ReasonOption = "", state: StateOption = None) -> None:
    """Start no new jobs on nodes; running jobs continue.

    \b
    dovetail drain gpu[01-08] --reason "new driver"
    """
    with connected(state) as client:

        def drained(name: str) -> str:
            client.drain(name, reason)
            return f"{name} is draining"

        say_each(node_names(names), drained)


@node.command("resume")
def resume(names: NodesArgument, state: StateOption = None) -> None:
    """Let drained nodes accept jobs again.

    \b
    dovetail resume gpu[01-08]
    """
    with connected(state) as client:

        def resumed(name: str) -> str:
            client.resume(name)
            return f"{name} accepts jobs again"

        say_each(node_names(names), resumed)


def _number(item: Raw, key: str) -> float:
    return float(item.get(key) or 0)


def _jobs(item: Raw) -> str:
    return number(len(item.get("jobs") or ()) + _number(item, "others"))


COLUMNS = (
    Column("node", lambda item: str(item.get("name"))),
    plain("state"),
    plain("type"),
    Column("GPUs", lambda item: number(_number(item, "gpus")), left=False),
    Column("free", lambda item: number(_number(item, "free")), left=False),
    Column("jobs", _jobs, left=False),
    plain("reason"),
)
WIDE = (
    plain("cpus", head="CPUs", left=False),
    Column("memory", lambda item: size(_number(item, "memory")), left=False),
    plain("jobs", head="my jobs"),
)
