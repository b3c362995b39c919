"""`dovetail shell`: a shell beside a running job, with the job's environment."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Annotated

import typer

from dovetail.cli.live import JobArgument, StateOption, connected, job_id
from dovetail.cli.outputs import note
from dovetail.model.errors import InputError


def shell(
    job: JobArgument,
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- COMMAND]...", help="Instead of a shell.", show_default=False),
    ] = None,
    state: StateOption = None,
) -> None:
    """Open a shell beside a running job.

    It has the job's environment: its devices, its folders, its variables.

    Only on the machine of the plane, and by who may read the plane's state folder. It is not stopped with
    the job and is under none of its limits.

    \b
    dovetail shell k3v9q2
    dovetail shell k3v9q2 -- nvidia-smi
    """
    from dovetail.client.connection import find_address, state_folder
    from dovetail.engines.environment import environment_of

    id = job_id(job)
    with connected(state) as client:
        seen = client.job_info(id)
        folder = client.connection.state
    if "states" in seen.raw:
        raise InputError(f"{id} is an array; name one of its jobs, such as {id}_0")
    if seen.state not in ("running", "stopping"):
        raise InputError(f"{id} is {seen.state}; a shell opens beside a running job only")
    if folder is None:
        folder = state_folder(state)
        if find_address(state=folder).url != find_address().url:
            raise InputError("the plane is on another machine; open the shell there")
    attempt = folder / "attempts" / id / str(seen.attempt)
    environment = environment_of(attempt)
    if not environment:
        raise InputError(f"{attempt}: holds no environment yet; is the job on this machine? try again")
    typed = list(command or ()) or [os.environ.get("SHELL") or "/bin/sh"]
    workdir = environment.get("PWD", "")
    devices = environment.get("CUDA_VISIBLE_DEVICES")
    note(f"beside {id}, attempt {seen.attempt}, " + (f"with GPU {devices}" if devices else "without GPUs"))
    keep = {name: os.environ[name] for name in ("TERM", "COLORTERM") if name in os.environ}
    try:
        done = subprocess.run(
            typed,
            env={**environment, **keep},
            cwd=workdir if workdir and Path(workdir).is_dir() else attempt,
            check=False,
        )
    except OSError as error:
        raise InputError(f"{typed[0]}: cannot be started ({error.strerror})") from None
    raise typer.Exit(done.returncode if done.returncode >= 0 else 128 - done.returncode)
