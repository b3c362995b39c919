"""Reads what a job has written, its logs and its reports, without trusting it.

A job may put links, pipes and endless lines where its files are expected. A plane that is root could read any
file, and the user chooses where an output file lies. So nothing in the state folder is shown but the output
that the plane itself collects and the `run` folder of the attempt, wherever links lead; and a job that runs
under an account of its own only has files shown that belong to this account.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from dovetail.engines.local.attempt_files import LOGS, REPORTS, RUN
from dovetail.engines.local.json_files import Unreadable, check_shape, read_json
from dovetail.engines.local.state_paths import StatePaths

LONGEST_READ = 1 << 20  # bytes
LARGEST_LIST = 1 << 26  # bytes of the names of all logs
_OWN_LOG = re.compile(r"output(\.[0-9]+)?\.log")  # made by the supervisor, in the attempt's folder


def readable_logs(folder: Path) -> list[Path]:
    """The output files by rank, then the error files: those that exist and may be shown."""
    found = []
    for file in _log_names(folder):
        with suppress(OSError, ValueError), opened_log(folder, file):
            found.append(file)
    return found


@contextmanager
def opened_log(folder: Path, file: Path) -> Iterator[BinaryIO]:
    """One of the attempt's logs, open for reading; OSError if it may not be shown."""
    if file not in _log_names(folder):
        raise FileNotFoundError(f"{file} is not a log of {folder.parent.name} attempt {folder.name}")
    handle = _open_without_links(file)
    with os.fdopen(handle, "rb") as opened:
        found = os.fstat(handle)
        owner = _account_of_job(folder)
        if not stat.S_ISREG(found.st_mode):
            raise PermissionError(f"{file} is not a regular file")
        if file.parent == folder and _OWN_LOG.fullmatch(file.name):
            yield opened
            return
        if StatePaths(str(folder)).private(f"/proc/self/fd/{handle}"):
            raise PermissionError(f"{file} lies in the state folder of the plane")
        if owner is not None and found.st_uid != owner:
            raise PermissionError(f"{file} does not belong to the account that {folder.parent.name} runs as")
        yield opened


def reports_from(folder: Path, offset: int) -> tuple[list[dict[str, object]], int]:
    """The reports from an offset on, whole lines only, and the offset after them."""
    try:
        handle = _open_without_links(folder / REPORTS)
    except OSError:
        return [], offset
    with os.fdopen(handle, "rb") as opened:
        found = os.fstat(handle)
        owner = _account_of_job(folder)
        if not stat.S_ISREG(found.st_mode) or (owner is not None and found.st_uid != owner):
            return [], offset
        opened.seek(max(offset, 0))
        data = opened.read(LONGEST_READ)
    end = data.rfind(b"\n") + 1
    if not end:  # no whole line yet; of a line that is too long, the part that was read is skipped
        return [], offset + (len(data) if len(data) == LONGEST_READ else 0)
    reports = []
    for line in data[:end].splitlines():
        with suppress(ValueError, RecursionError):
            report = json.loads(line)
            if isinstance(report, dict):
                reports.append(report)
    return reports, offset + end


def _open_without_links(file: Path) -> int:
    return os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)


def _log_names(folder: Path) -> list[Path]:
    try:
        names = read_json(str(folder / LOGS), LARGEST_LIST)
        check_shape(names or [], [str])
    except Unreadable:
        return []
    return [Path(file) for file in names or [] if file.startswith("/")]


def _account_of_job(folder: Path) -> int | None:
    """The uid of the job's account; None if it is the plane's own."""
    owner = (folder / RUN).stat().st_uid
    return None if owner == os.geteuid() else owner
