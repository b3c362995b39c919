"""The contract of an engine: what the plane orders, and what the engine reports.

An attempt is one start of a job, known everywhere by (job, epoch). Orders are idempotent by that pair, so a
plane that crashed between a decision and its order may repeat the order. Times are real microseconds, moments
since 1970. `dovetail.testing.engine_contract` tests whether an engine keeps this contract.

Orders are given in a term (`Engine.lead`). Of several planes the one with the newest term leads; the engine
itself refuses the orders of the others, because a plane may be stopped for any time between its last check
and its order. Reading is free: any plane may poll, and read logs and reports.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, NoReturn, Protocol

from dovetail.model.errors import DovetailError
from dovetail.model.units import SECOND

AttemptKey = tuple[str, int]  # job and epoch


@dataclass(frozen=True, slots=True)
class NodeShare:
    """The devices, CPU and memory that one task of an attempt has on its node."""

    node: str
    devices: tuple[str, ...]  # as CUDA_VISIBLE_DEVICES expects them: UUIDs or indices
    cpus: int = 0  # milli-cores; 0: no limit
    memory: int = 0  # bytes; 0: no limit


@dataclass(frozen=True, slots=True)
class Launch:
    """All that an engine needs to start one attempt."""

    job: str
    epoch: int
    shares: tuple[NodeShare, ...]  # one for each task, by rank; several tasks may be on one node
    command: tuple[str, ...]
    name: str = ""
    setup: str = ""  # shell text that each process runs first
    env: tuple[tuple[str, str], ...] = ()
    workdir: str = ""  # "": the attempt's own folder
    output: str = ""  # file names; only %N (node) and %t (rank) are left to fill in
    error: str = ""  # "": errors go to the output file
    time_limit: int | None = None
    warning: int = 120 * SECOND  # SIGUSR1 this long before the time limit
    stop_signal: int = 15  # the signal that asks the job to stop: SIGTERM unless the user chose another
    grace: int = 30 * SECOND  # between that signal and SIGKILL
    per_gpu: bool = False  # one process for each device rather than for each task
    slurm_names: bool = False  # set SLURM_* variables too
    account: str = ""  # the UNIX account to run as; "": the plane's own
    checkpoint_dir: str = ""  # the same for all attempts of a job


class Exit(NamedTuple):
    """How an attempt ended."""

    code: int  # of the first process that failed; 128 + signal if it was killed
    cause: str  # exited | stopped | timeout | oom | lost | unstartable
    detail: str  # one line for people
    started_at: int
    ended_at: int
    finished: bool = False  # the job itself said that its work is done
    lasted: int = 0  # microseconds by a clock that cannot be set; 0 if that is not known


class AttemptEnd(NamedTuple):
    """An attempt has ended."""

    job: str
    epoch: int
    exit: Exit


class Resized(NamedTuple):
    """An attempt runs on its new devices; those it gave up are free."""

    job: str
    epoch: int
    number: int  # of the order


class NodeUp(NamedTuple):
    """A node that was switched on or rented can run jobs."""

    node: str


class Capabilities(NamedTuple):
    """Which orders besides start and stop an engine can perform. The plane refuses plans that need others."""

    resize: bool = False  # change the devices of a running attempt
    power: bool = False  # switch nodes on and off
    rent: bool = False  # take nodes from a provider and give them back


class Unsupported(DovetailError):
    """An engine was given an order that its capabilities exclude."""


class Fenced(DovetailError):
    """An order of a plane that does not lead: another plane has begun a newer term, or this one none."""


class Engine(Protocol):
    """Starts, stops and watches attempts.

    These are orders, which raise `Fenced` in an older term than the newest: start, stop, resize, power, rent,
    signal, forget. A refused order changes nothing.
    """

    @property
    def capabilities(self) -> Capabilities: ...

    def newest_term(self) -> int:
        """The newest term in which a plane has led; 0 if none has. It outlives the plane."""

    def lead(self, term: int) -> None:
        """Give orders in this term, which must be newer than all before it, else `Fenced` is raised.

        When this returns, no order of an older term can be carried out any more, and `known` has all attempts
        that such orders have started. It does not wait for another plane, which may have been stopped.
        """

    def start(self, launch: Launch) -> None:
        """Run an attempt; it is started at most once. `poll` reports one that cannot be started."""

    def stop(self, job: str, epoch: int, why: str, grace: int) -> None:
        """Ask an attempt to save and stop; kill it after the grace. Ignored if it has ended or is unknown."""

    def resize(self, job: str, epoch: int, number: int, shares: tuple[NodeShare, ...]) -> None:
        """Move a running attempt to these shares. `confirmations` tells when that is done.

        An engine may save the attempt and start its processes again for it: the attempt stays the same.

        The number orders the resizes of an attempt. A repeated one is confirmed again; one that is older than
        the last is ignored, as is one for an attempt that has ended or is unknown.
        """

    def power(self, node: str, on: bool) -> None:
        """Switch a node on or off."""

    def rent(self, node: str, keep: bool, owner: str) -> None:
        """Take a node from its owner ("": the market), or give it back."""

    def signal(self, job: str, epoch: int, number: int) -> None:
        """Send a signal to the attempt's processes."""

    def poll(self) -> list[AttemptEnd]:
        """All attempts that have ended and are not forgotten; known from disk, not from memory."""

    def confirmations(self) -> list[Resized | NodeUp]:
        """The orders that were completed since the last call. An order is repeated if its answer was lost."""

    def known(self) -> set[AttemptKey]:
        """Attempts that were started and are not forgotten."""

    def forget(self, job: str, epoch: int) -> None:
        """Do not report the end of this attempt again: it is recorded elsewhere. Its logs stay."""

    def wait(self, timeout: float) -> None:
        """Sleep until something may have happened, at most this many seconds."""

    def ring(self) -> None:
        """End a `wait`, from any thread."""

    def logs(self, job: str, epoch: int) -> Sequence[Path]:
        """The output files of an attempt, by node and rank."""

    def reports(self, job: str, epoch: int, offset: int) -> tuple[list[dict[str, object]], int]:
        """The job's reports of its progress from an offset on, and the offset to continue from."""


class StartStopEngine:
    """Base of engines that can only start and stop: every other order is refused in any term."""

    capabilities = Capabilities()

    def resize(self, job: str, epoch: int, number: int, shares: tuple[NodeShare, ...]) -> None:
        self._refuse("resize running jobs")

    def power(self, node: str, on: bool) -> None:
        self._refuse("switch nodes on or off")

    def rent(self, node: str, keep: bool, owner: str) -> None:
        self._refuse("rent nodes or give them back")

    def confirmations(self) -> list[Resized | NodeUp]:
        return []

    def _refuse(self, order: str) -> NoReturn:
        raise Unsupported(f"{type(self).__name__} cannot {order}; ask its capabilities first")
