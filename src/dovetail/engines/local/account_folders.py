"""The folders that a supervisor which is root hands over to the account of a job.

There are two: the attempt's `run` folder, and the folder for checkpoints that the plane makes for each job.
Both are reached from the state folder by file descriptors and without following links, and every folder on
the way must belong to this account. No path that a user has named is touched here: the processes of the job
open those under their own account.

Every supervisor imports this module, so it uses only the cheapest parts of the standard library.
"""

# ruff: noqa: SIM105  (contextlib costs too much to import)

from __future__ import annotations

import errno
import os

from dovetail.engines.local.attempt_files import CHECKPOINTS, RUN

PASSABLE = 0o711  # other accounts may enter a folder below it, and see nothing
FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def hand_over_run_folder(folder: str, uid: int, gid: int) -> None:
    """Give the `run` folder of an attempt to an account."""
    root, job, epoch = _parts(folder)
    with _Opened(os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as above:
        _make_passable(above)
        with _inside(above, job) as job_folder:
            _make_passable(job_folder)
            with _inside(job_folder, epoch) as attempt:
                _make_passable(attempt)
                with _inside(attempt, RUN) as run:
                    os.fchown(run, uid, gid)


def hand_over_checkpoints(folder: str, uid: int, gid: int) -> None:
    """Make the plane's folder for checkpoints of a job, and give it to an account."""
    root, job, _ = _parts(folder)
    with _Opened(os.open(os.path.dirname(root), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as state:
        _check_owner(state)
        _make(state, CHECKPOINTS)
        with _inside(state, CHECKPOINTS) as checkpoints:
            _make_passable(checkpoints)
            _make(checkpoints, job)
            with _inside(checkpoints, job) as own:
                os.fchown(own, uid, gid)


class _Opened:
    """A file descriptor that is closed at the end of a block."""

    def __init__(self, handle: int) -> None:
        self.handle = handle

    def __enter__(self) -> int:
        return self.handle

    def __exit__(self, *_: object) -> None:
        os.close(self.handle)


def _inside(above: int, name: str) -> _Opened:
    return _Opened(os.open(name, FLAGS, dir_fd=above))


def _make(above: int, name: str) -> None:
    try:
        os.mkdir(name, 0o700, dir_fd=above)
    except FileExistsError:
        pass


def _make_passable(handle: int) -> None:
    _check_owner(handle)
    os.fchmod(handle, PASSABLE)


def _check_owner(handle: int) -> None:
    if os.fstat(handle).st_uid != os.geteuid():
        raise PermissionError(errno.EPERM, "a folder of the plane belongs to another account")


def _parts(folder: str) -> tuple[str, str, str]:
    above, epoch = os.path.split(folder)
    root, job = os.path.split(above)
    return root, job, epoch
