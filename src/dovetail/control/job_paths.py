"""The paths in a request: none may lie in the state folder of the plane.

Here they are compared as text, so that a user is told at once. Links are followed only under the account of
the job: an engine resolves each path at the start of an attempt, and refuses it there.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from string import Template

from dovetail.control.problems import Problem, RequestError
from dovetail.control.request import JobRequest

ANY_RUN_FOLDER = "attempts/JOB/1/run"  # where a job runs that names no workdir


def checkpoint_path(request: JobRequest, env: Mapping[str, str]) -> str:
    """The folder for checkpoints that a request names, with its variables filled in; "" if it names none."""
    return Template(request.checkpoint.path).safe_substitute(env) if request.checkpoint else ""


def check_paths(request: JobRequest, state_folder: Path) -> None:
    """Refuse paths in the state folder of the plane, except those in the job's own folder."""
    states = {os.path.abspath(state_folder), os.path.realpath(state_folder)}
    named = {
        "/workdir": request.workdir,
        "/output": request.output,
        "/error": request.error,
        "/checkpoint/path": checkpoint_path(request, request.env),
    }
    wrong = []
    for state in sorted(states):
        run = os.path.join(state, ANY_RUN_FOLDER)
        workdir = os.path.join(run, request.workdir)
        for pointer, path in named.items():
            found = os.path.normpath(os.path.join(workdir, path))
            if path and _is_inside(found, state) and not _is_inside(found, run):
                wrong.append(Problem(pointer, f"{path} lies in the state folder of the plane; name another"))
    if wrong:
        raise RequestError(list(dict.fromkeys(wrong)))


def _is_inside(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")
