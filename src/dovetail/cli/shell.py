"""`dovetail shell`: a shell with the environment and the GPUs of a running job."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Annotated, Any

import typer

from dovetail.cli.connection import JobArgument, StateOption, connected, job_id
from dovetail.cli.outputs import note
from dovetail.model.errors import InputError


def shell(
    job: JobArgument,
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="-- COMMAND...", help="Command to run instead of a shell.", show_default=False
        ),
    ] = None,
    state: StateOption = None,
) -> None:
    """Open a shell with the environment and the GPUs of a running job.

    It works only on the machine of the plane, for accounts that may read the state folder of the plane. Root
    gets the shell under the account of the job. The shell is not stopped with the job, and the limits of the
    job do not apply to it.

    \b
    dovetail shell k3v9q2
    dovetail shell k3v9q2 -- nvidia-smi
    """
    from dovetail.engines.local.environment import environment_of

    id = job_id(job)
    with connected(state) as client:
        seen = client.job_info(id)
        folder = client.connection.state
    if "states" in seen.raw:
        raise InputError(f"{id} is an array; give one of its jobs, such as {id}_0")
    if seen.state not in ("running", "stopping"):
        raise InputError(f"{id} is {seen.state}; a shell needs a running job")
    if folder is None:
        raise InputError(
            "the plane is on another machine; open the shell there (or give its state folder with --state)"
        )
    attempt = folder / "attempts" / id / str(seen.attempt)
    environment = environment_of(attempt)
    if not environment:
        raise InputError(
            f"{attempt}: has no environment yet; check that the job is on this machine, and try again"
        )
    typed = list(command or ()) or [os.environ.get("SHELL") or "/bin/sh"]
    workdir = environment.get("PWD", "")
    devices = environment.get("CUDA_VISIBLE_DEVICES")
    note(
        f"environment of {id}, attempt {seen.attempt}, "
        + (f"with GPU {devices}" if devices else "without GPUs")
    )
    keep = {name: os.environ[name] for name in ("TERM", "COLORTERM") if name in os.environ}
    try:
        done = subprocess.run(
            typed,
            env={**environment, **keep},
            cwd=workdir if workdir and Path(workdir).is_dir() else attempt,
            check=False,
            **_account_of(attempt),
        )
    except OSError as error:
        raise InputError(f"{typed[0]}: cannot be started ({error.strerror})") from None
    raise typer.Exit(done.returncode if done.returncode >= 0 else 128 - done.returncode)


def _account_of(attempt: Path) -> dict[str, Any]:
    """The account of the job, for `subprocess`: its environment can make any program run its user's code."""
    import pwd

    try:
        owner = (attempt / "run").stat()
    except OSError:
        return {}
    if os.geteuid() != 0 or owner.st_uid == 0:
        return {}
    try:
        groups = os.getgrouplist(pwd.getpwuid(owner.st_uid).pw_name, owner.st_gid)
    except KeyError:
        groups = []
    return {"user": owner.st_uid, "group": owner.st_gid, "extra_groups": groups}
