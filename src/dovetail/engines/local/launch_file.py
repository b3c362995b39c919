"""The content of launch.json: what a supervisor needs to run an attempt, worked out by the engine."""

from __future__ import annotations

import os
import pwd
import re
import shlex
from collections.abc import Collection
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from dovetail.engines.contract import Launch, NodeShare
from dovetail.engines.local.attempt_files import CHECKPOINTS, LARGEST_LAUNCH, LAUNCH, LOGS, RUN
from dovetail.engines.local.attempt_groups import group_name
from dovetail.engines.local.cgroup_limits import Limits, groups
from dovetail.engines.local.environment import inherited, processes
from dovetail.engines.local.json_files import check_shape, read_json, sync, write_json

if TYPE_CHECKING:
    from dovetail.engines.local.attempt_files import ProcessEntry, ResizeFile

SHELL = "/bin/bash"


def write_launch(
    launch: Launch,
    folder: Path,
    *,
    port: int,
    limits: Limits,
    term: int,
    passed: Collection[str] = (),
    output_limit: int = 0,
) -> None:
    """Make the attempt's folder. It is durable, and `launch.json` is written last.

    `passed` names variables of the plane's environment that jobs get besides the usual ones.
    """
    root, run = folder.parent.parent, folder / RUN
    for made in (folder.parent, folder, run):
        made.mkdir(mode=0o700, exist_ok=True)
    cwd = os.path.join(run, launch.workdir) if launch.workdir else str(run)
    own_checkpoints = str(root.parent / CHECKPOINTS / launch.job)
    if launch.checkpoint_dir:
        named = os.path.join(cwd, launch.checkpoint_dir)
        is_own = os.path.abspath(named) == own_checkpoints
        launch = replace(launch, checkpoint_dir=own_checkpoints if is_own else named)
    entries = _process_entries(launch, folder, cwd, port)
    files = [entry["output"] for entry in entries] + [entry["error"] for entry in entries if entry["error"]]
    write_json(str(folder), LOGS, list(dict.fromkeys(files)), durable=False)
    content = {
        **asdict(launch),
        "argv": argv(launch),
        "base": _login_variables(launch)
        | inherited(os.environ, passed=passed, own_account=bool(launch.account)),
        "own_checkpoints": launch.checkpoint_dir == own_checkpoints,
        "cwd": cwd,
        "groups": [
            groups(limits, group_name(folder, launch.job, launch.epoch, node), share.cpus, share.memory)
            for node, share in enumerate(launch.shares)
        ],
        "output_limit": output_limit,
        "processes": entries,
        "term": term,
    }
    write_json(str(folder), LAUNCH, content)
    sync(str(folder.parent))
    sync(str(root))


def resize_order(
    folder: Path,
    job: str,
    epoch: int,
    number: int,
    shares: tuple[NodeShare, ...],
    *,
    limits: Limits,
    term: int,
) -> ResizeFile:
    """The content of resize.json: the processes of an attempt on other devices. Its log files are added."""
    content = read_json(str(folder / LAUNCH), LARGEST_LAUNCH)
    check_shape(content, _LAUNCHED)
    named = {one.name: content[one.name] for one in fields(Launch) if one.name in content}
    named["env"] = tuple((str(name), str(value)) for name, value in content["env"])
    named["command"] = tuple(content["command"])
    launch = Launch(**{**named, "job": job, "epoch": epoch, "shares": shares})
    port = content["processes"][0]["env"].get("MASTER_PORT", "")
    entries = _process_entries(launch, folder, content["cwd"], int(port) if port.isdecimal() else 0)
    known = read_json(str(folder / LOGS))
    check_shape(known, [str])
    files = [entry["output"] for entry in entries] + [entry["error"] for entry in entries if entry["error"]]
    write_json(str(folder), LOGS, list(dict.fromkeys([*known, *files])), durable=False)
    order: ResizeFile = {
        "number": number,
        "term": term,
        "shares": [asdict(share) for share in shares],
        "processes": entries,
        "groups": [
            groups(limits, group_name(folder, job, epoch, node), share.cpus, share.memory)
            for node, share in enumerate(shares)
        ],
    }
    return order


# What launch.json has of `Launch` that the processes depend on. A job may have written to the file.
_LAUNCHED = {
    "name": str,
    "command": [str],
    "env": [[str]],
    "output": str,
    "error": str,
    "per_gpu": bool,
    "slurm_names": bool,
    "checkpoint_dir": str,
    "cwd": str,
    "processes": [{"env": {str: str}}],
}


def argv(launch: Launch) -> list[str]:
    """The command, after the setup if there is one.

    Setup and script run in one shell, so the script sees the variables of the setup. If the setup fails, the
    attempt ends there. Each is one quoted word for `eval`, so an open quote in one cannot swallow the other.
    """
    command = list(launch.command)
    if not launch.setup.strip():
        return command
    if len(command) == 3 and command[0] in (SHELL, "bash") and command[1] == "-c":
        rest = f"eval {shlex.quote(command[2])}"
    else:
        rest = f"exec {shlex.join(command)}"
    return [SHELL, "-c", f"set -e\neval {shlex.quote(launch.setup)}\nset +e\n{rest}"]


def _process_entries(launch: Launch, folder: Path, cwd: str, port: int) -> list[ProcessEntry]:
    entries: list[ProcessEntry] = []
    for process in processes(launch, folder / RUN, port):
        default = folder / ("output.log" if process.rank == 0 else f"output.{process.rank}.log")
        entries.append({
            "rank": process.rank,
            "share": process.share,
            "node": process.node,
            "env": process.env,
            "own_output": not launch.output,
            "output": _file_name(launch.output, cwd, process.node, process.rank) or str(default),
            "error": _file_name(launch.error, cwd, process.node, process.rank),
        })  # fmt: skip
    return entries


def _login_variables(launch: Launch) -> dict[str, str]:
    """Those of the plane's own account, which a service manager may not have set."""
    if launch.account:  # the supervisor knows its own
        return {}
    try:
        found = pwd.getpwuid(os.geteuid())
    except KeyError:
        return {}
    return {"HOME": found.pw_dir, "USER": found.pw_name, "LOGNAME": found.pw_name, "SHELL": found.pw_shell}


def _file_name(pattern: str, cwd: str, node: str, rank: int) -> str:
    """A file name, relative to the workdir, with %N and %t filled in."""
    if not pattern:
        return ""
    name = re.sub("%[Nt]", lambda match: node if match[0] == "%N" else str(rank), pattern)
    return os.path.join(cwd, name)
