"""`srun`: run a command as a job and wait for it; inside a job, run it in place.

A job's script runs on each of its nodes already, so a step of a job is the command itself.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dovetail.cli.connection import connected
from dovetail.cli.run import PATIENCE, run_request
from dovetail.cli.shell import shell
from dovetail.cli.slurm.sbatch import with_environment
from dovetail.cli.submit import note_ignored
from dovetail.client.client import placed_here
from dovetail.client.sbatch import Option, read_script, typed_options
from dovetail.model.errors import InputError

OF_THE_COMMAND = ("pty", "overlap", "jobid", "quiet", "verbose", "exact", "unbuffered", "label")


def srun(words: Sequence[str]) -> None:
    options, command = typed_options(words, "srun", OF_THE_COMMAND)
    own = {option.name: option.value for option in options if option.name in OF_THE_COMMAND}
    given = [option for option in options if option.name not in OF_THE_COMMAND]
    if "jobid" in own:
        shell(own["jobid"], command or None, None)
        return
    if not command:
        raise InputError("srun: no command was given; write srun --gpus=1 python train.py")
    if "DOVETAIL_JOB_ID" in os.environ:
        try:
            os.execvp(command[0], command)
        except OSError as error:
            raise InputError(f"srun: cannot run {command[0]} ({error.strerror})") from None
    terminal = "pty" in own
    with connected(None, patience=PATIENCE) as client:
        request = _request(command, with_environment(given), local=client.connection.local)
        alone = not {"array", "launch"} & request.keys() and request.get("nodes", 1) == 1
        run_request(
            client,
            request,
            None,
            interactive=alone and client.connection.local and not terminal and not sys.stdin.isatty(),
            tty=terminal,
            quiet="quiet" in own,
        )


def _request(command: list[str], given: Sequence[Option], *, local: bool) -> dict[str, Any]:
    """The options as those of a script that runs this command with srun."""
    found = read_script("#!/bin/bash\nsrun true\n", "srun", given=given)
    note_ignored(found)
    request = {key: value for key, value in found.items() if key != "run"}
    if not any(option.name == "output" for option in given):
        del request["output"]
    request |= {"command": command, "name": request.get("name") or Path(command[0]).name}
    return placed_here(request) if local else request
