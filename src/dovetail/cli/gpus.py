"""`dovetail gpus`: each device, its state, and the jobs on it."""

from __future__ import annotations

from typing import Annotated

import typer

from dovetail.cli.connection import StateOption, connected
from dovetail.cli.outputs import count
from dovetail.cli.tables import Column, JsonOption, OutputOption, Raw, plain, print_items, read_form
from dovetail.model.formats import number


def gpus(
    free: Annotated[bool, typer.Option("--free", help="Only GPUs without a job.")] = False,
    output: OutputOption = "",
    as_json: JsonOption = False,
    state: StateOption = None,
) -> None:
    """List the GPUs and the jobs on them.

    \b
    dovetail gpus
    dovetail gpus --free -o json
    """
    form = read_form(output, as_json)
    with connected(state) as client:
        items = client.gpus()
    idle = [item for item in items if not _used(item) and item.get("state") == "idle"]
    types: dict[str, int] = {}
    for item in idle:
        types[str(item.get("type"))] = types.get(str(item.get("type")), 0) + 1
    told = ", ".join(f"{number} {kind}" for kind, number in sorted(types.items()))
    head = f"{len(idle):,} of {count(len(items), 'GPU')} free" + (f" ({told})" if told else "")
    if shared := sum(item.get("state") == "shared" for item in items):
        head += f", {shared:,} shared"
    listed = idle if free else items
    if form.kind == "name":
        listed = [{"node": f"{item.get('node')}:{item.get('index')}"} for item in listed]
    print_items(listed, form, key="gpus", name="node", columns=COLUMNS, wide=WIDE, head=head)


def _jobs(item: Raw, most: int) -> str:
    """The jobs on a device; several jobs may share it."""
    jobs = [str(job) for job in item.get("jobs") or filter(None, (item.get("job"),))]
    others = max(0, len(jobs) - most) + int(item.get("others") or 0)
    parts = [",".join(jobs[:most])] if jobs else []
    parts += [f"{others} more"] if jobs and others else ["a job of another tenant"] if others else []
    return " and ".join(parts) or "-"


def _used(item: Raw) -> float:
    """The used share of the device, from 0 to 1."""
    return float(item.get("used") or 0)


COLUMNS = (
    plain("node"),
    plain("index", head="GPU", left=False),
    plain("type"),
    plain("state"),
    Column("used", lambda item: number(_used(item), 3), left=False),
    Column("job", lambda item: _jobs(item, 3)),
)
WIDE = (Column("all its jobs", lambda item: _jobs(item, 1_000)),)
