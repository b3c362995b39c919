"""`dovetail why`: why a job waits, which jobs hold the resources, and how it could start sooner."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dovetail.cli.connection import JobArgument, StateOption, connected, job_id
from dovetail.cli.outputs import count, plainly, say
from dovetail.cli.tables import Column, JsonOption, PlainOutputOption, print_table, print_value, read_form
from dovetail.cli.times import ago, clock, expected

if TYPE_CHECKING:
    from dovetail.client.client import Client
    from dovetail.client.documents import Why


def why(
    job: JobArgument,
    output: PlainOutputOption = "",
    as_json: JsonOption = False,
    state: StateOption = None,
) -> None:
    """Say why a job waits, and when it will start.

    The answer names the jobs that hold the resources, and what would let the job start sooner.

    \b
    dovetail why k3v9q2
    """
    form = read_form(output, as_json, ("json", "yaml"))
    with connected(state) as client:
        found = client.why(job_id(job))
        if print_value(found.raw, form):
            return
        say(plainly(waiting(client, found) or f"{found.job} is {found.state}"))
    if when := expected(found.starts):
        say(f"it will start {when}" if when != "now" else "it will start now")
    if found.assumed:
        say(plainly(found.assumed))
    if ahead := _ahead(found.ahead):
        say(ahead)
    if found.holders:
        say()
        print_table(found.holders, _columns(found))
    for number, text in enumerate(_sooner(found)):
        if not number:
            say()
        say(f"{'or' if number else 'to start sooner'}:  {plainly(text)}")
    if found.remedies_in:
        say(
            "\nwhat would let it start sooner was not tried: too many questions with this token; "
            f"ask again in {found.remedies_in} s"
        )


def waiting(client: Client, found: Why) -> str:
    """The reason as a sentence; with the time, if the job waits for one."""
    if found.reason != "BeginTime":
        return found.sentence
    at = found.raw.get("begin_at") or client.job_info(found.job).raw.get("begin_at")
    return f"{found.sentence.rstrip('.')}: it is {clock(at)} ({ago(at)})." if at else found.sentence


def _sooner(found: Why) -> list[str]:
    """What lets it start sooner than waiting does."""
    if not found.remedies:
        return [found.remedy] if found.remedy else []
    return [one.text for one in found.remedies if one.kind != "wait"]


def _ahead(ahead: Mapping[str, Any]) -> str:
    own, others = int(ahead.get("own") or 0), ahead.get("others")
    if not own and not others:
        return ""
    mine = f"{count(own, 'job')} of yours" if own else ""
    others = (
        (f"{count(others, 'job')} of other users" if type(others) is int else "jobs of other users")
        if others
        else ""
    )
    return f"ahead of it: {' and '.join(part for part in (mine, others) if part)}"


def _ends(holder: Mapping[str, Any]) -> str:
    at = holder.get("ends_at")
    return f"{clock(at)} ({ago(at)})" if at else "not known"


def _name(holder: Mapping[str, Any]) -> str:
    if job := holder.get("job"):
        return str(job)
    many = int(holder.get("jobs") or 1)
    if not holder.get("hidden"):
        return count(many, "more job")
    return "a job of another tenant" if many == 1 else f"{many} jobs of other tenants"


def _columns(found: Why) -> tuple[Column, ...]:
    """The holders, with the resources that are short."""
    short = {one.resource for one in found.short} or {"gpus"}
    columns = [
        Column("holder", _name),
        Column("tenant", lambda holder: str(holder.get("tenant") or "-")),
    ]
    if "gpus" in short:
        columns.append(Column("GPUs", lambda holder: f"{holder.get('gpus') or 0:g}", left=False))
    if "cpus" in short:
        columns.append(Column("CPUs", lambda holder: f"{holder.get('cpus') or 0:g}", left=False))
    if "memory" in short:
        columns.append(Column("GiB", lambda holder: f"{(holder.get('memory') or 0) / 2**30:.4g}", left=False))
    return (*columns, Column("expected end", _ends))
