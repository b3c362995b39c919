"""`scancel`: cancel jobs by id, user, name or state. As in Slurm it prints nothing if all went well."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dovetail.cli.cancel import cancel_many
from dovetail.cli.connection import connected, job_id
from dovetail.cli.outputs import plainly
from dovetail.cli.ps import read_state
from dovetail.cli.slurm.formats import Options, listed
from dovetail.model.errors import InputError

if TYPE_CHECKING:
    from dovetail.client.client import Client


def scancel(words: Sequence[str]) -> None:
    options = Options("scancel", "dovetail cancel")
    options.add_argument("jobs", nargs="*")
    options.add_argument("-u", "--user")
    options.add_argument("--me", action="store_true")
    options.add_argument("-n", "--name", "--jobname")
    options.add_argument("-t", "--state")
    options.add_argument("-A", "--account", "-p", "--partition", "-q", "--qos")
    options.add_argument("-Q", "--quiet", action="store_true")
    options.add_argument("-s", "--signal")
    options.ignore("-f", "--full", why="the signal to stop goes to all processes anyway")
    options.ignore("-b", "--batch", why="the signal to stop goes to all processes")
    asked = options.read(words)
    if asked.signal and asked.signal.upper().removeprefix("SIG") not in ("TERM", "KILL", "15", "9"):
        raise InputError(
            f"scancel: --signal {plainly(asked.signal)} cannot be sent; scancel without it stops the job, "
            "and checkpoint.signal in its job file names the signal"
        )
    filters = {
        "user": asked.user,
        "mine": asked.me or None,
        "name": asked.name,
        "tenant": asked.account,
        "state": [read_state(word) for word in listed(asked.state)] or None,
    }
    chosen = any(value is not None for value in filters.values())
    if not asked.jobs and not chosen:
        raise InputError("scancel: no job was named; write scancel ID, or scancel --me")
    with connected(None) as client:
        if chosen:
            _cancel_chosen(client, asked.jobs, filters)
        else:
            _cancel_named(client, asked.jobs, quiet=asked.quiet)


def _cancel_chosen(client: Client, names: Sequence[str], filters: dict[str, Any]) -> None:
    """All active jobs that the options choose; of those named, if some are."""
    wanted = {job_id(name) for name in names}
    active = None if filters["state"] else True
    found = [
        job["id"]
        for job in client.pages("/jobs", **filters, active=active)
        if not wanted or {job["id"], (job.get("array") or {}).get("id")} & wanted
    ]
    cancel_many(client, found)


def _cancel_named(client: Client, names: Sequence[str], *, quiet: bool) -> None:
    """`k3v9q2`, `k3v9q2_7` or `k3v9q2_[3-7,9]`; those that do not exist are told at the end."""
    from dovetail.client.connection import Refused

    unknown = []
    for name in names:
        part = re.fullmatch(r"([A-Za-z0-9]+)_\[([0-9,:-]+)\]", name)
        try:
            if part:
                client.cancel_one(part[1], part[2])
            else:
                client.cancel_one(job_id(name))
        except Refused as error:
            if error.status == 404:
                unknown.append(name)
            elif error.status != 409:  # it has ended
                raise
    if unknown and not quiet:
        raise InputError(f"scancel: no job has the id {plainly(', '.join(unknown))}; see squeue")
