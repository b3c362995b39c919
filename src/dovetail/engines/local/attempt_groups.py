"""The control groups of attempts: how they are named, and the removal of those that are left over.

A name contains a digest of the attempt's folder, which tells the groups of one plane from those of another.
"""

from __future__ import annotations

import hashlib
import os
import re
from contextlib import suppress
from pathlib import Path

from dovetail.engines.local.attempt_files import EXIT
from dovetail.engines.local.cgroup_limits import PREFIX, Limits

JOB_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")  # also the name of a folder
_GROUP = re.compile(
    rf"{PREFIX}(?P<job>{JOB_NAME.pattern})-(?P<epoch>[0-9]+)-[0-9]+-(?P<digest>[0-9a-f]{{12}})"
)


def group_name(folder: Path, job: str, epoch: int, node: int) -> str:
    """The name of an attempt's group on one node, without the common prefix."""
    return f"{job}-{epoch}-{node}-{folder_digest(folder)}"


def folder_digest(folder: Path) -> str:
    return hashlib.blake2b(os.fsencode(folder), digest_size=6).hexdigest()


def remove_leftovers(root: Path, limits: Limits) -> None:
    """Remove the empty groups of attempts below `root` that have ended; their supervisors could not."""
    for base in {limits.memory, limits.cpu} - {""}:
        try:
            names = os.listdir(base)
        except OSError:
            continue
        for name in names:
            if (found := _GROUP.fullmatch(name)) is None:
                continue
            folder = root / found["job"] / found["epoch"]
            ended = (folder / EXIT).exists() or not folder.exists()
            if found["digest"] == folder_digest(folder) and ended:
                with suppress(OSError):  # a process is still in it
                    os.rmdir(os.path.join(base, name))
