"""What an engine is told and what it tells: attempts, and how they ended.

An attempt is one start of a job, known everywhere by (job, epoch). Orders are idempotent by that pair, so a
plane that crashed between deciding and doing may simply do it again. Times here are of the wall: real
microseconds, since 1970 for moments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from dovetail.model.units import SECOND


@dataclass(frozen=True, slots=True)
class Share:
    """What an attempt is given on one node."""

    node: str
    devices: tuple[str, ...]  # as CUDA_VISIBLE_DEVICES wants them: UUIDs or indices
    cpus: int = 0  # milli-cores; 0: no limit
    memory: int = 0  # bytes; 0: no limit


@dataclass(frozen=True, slots=True)
class Launch:
    """One attempt, whole enough to print, to compare and to try without doing it."""

    job: str
    epoch: int
    shares: tuple[Share, ...]
    command: tuple[str, ...]
    name: str = ""
    setup: str = ""  # shell text that each node runs first
    env: tuple[tuple[str, str], ...] = ()
    workdir: str = ""  # "": the attempt's own folder
    output: str = ""  # file names; only %N (node) and %t (rank) are left to fill in
    error: str = ""  # "": with the output
    time_limit: int | None = None
    warning: int = 120 * SECOND  # USR1 so long before the limit
    stop_signal: int = 15  # how it is told to leave: SIGTERM, unless it wants another
    grace: int = 30 * SECOND  # between that and SIGKILL
    per_gpu: bool = False  # a process for each device rather than for each node
    slurm_names: bool = False  # SLURM_* besides the others
    account: str = ""  # the UNIX account to run as; "": the plane's own
    checkpoint_dir: str = ""  # one for all attempts of a job


class Exit(NamedTuple):
    """How an attempt ended."""

    code: int  # 128 + signal if killed; of the first process that failed
    cause: str  # exited | stopped | timeout | oom | lost | unstartable
    detail: str  # one line for people
    started_at: int
    ended_at: int
    finished: bool = False  # the job itself said that its work is done


class Report(NamedTuple):
    """An attempt has ended."""

    job: str
    epoch: int
    exit: Exit


class Engine(Protocol):
    """Starts, stops and watches attempts."""

    def start(self, launch: Launch) -> None:
        """Run an attempt; once started it is never started again. What cannot start is reported by `poll`."""

    def stop(self, job: str, epoch: int, why: str, grace: int) -> None:
        """Ask it to save and leave; kill it after the grace. One that is unknown or over stays so."""

    def signal(self, job: str, epoch: int, number: int) -> None:
        """Pass a signal on to its processes."""

    def poll(self) -> list[Report]:
        """All that have ended and were not forgotten yet; what is known is on disk, not in memory."""

    def known(self) -> set[tuple[str, int]]:
        """Attempts that were started and not forgotten."""

    def forget(self, job: str, epoch: int) -> None:
        """Its end is recorded elsewhere; do not report it again. Its logs stay."""

    def wait(self, timeout: float) -> None:
        """Sleep until something may have happened, at most so many seconds."""

    def ring(self) -> None:
        """End a `wait`, from any thread."""

    def logs(self, job: str, epoch: int) -> Sequence[Path]:
        """Its output files, by node and rank."""

    def reports(self, job: str, epoch: int, offset: int) -> tuple[list[dict[str, object]], int]:
        """What it reported of its progress from an offset on, and the offset to ask from next time."""
