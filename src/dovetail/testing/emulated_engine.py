"""An engine without processes: its attempts make progress as its clock advances.

It has every capability of the engine contract, so it shows what an engine does for a resize. It also serves
tests of the control plane that need no processes. Work is counted in device-microseconds: an attempt on four
devices does four per microsecond, and after a resize to two devices it does two.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from dovetail.engines.contract import (
    AttemptEnd,
    AttemptKey,
    Capabilities,
    Exit,
    Fenced,
    Launch,
    NodeShare,
    NodeUp,
    Resized,
)


@dataclass(slots=True)
class EmulatedAttempt:
    """One attempt that was started."""

    launch: Launch
    shares: tuple[NodeShare, ...]
    work: int | None  # device-microseconds; None: it runs until it is stopped or ended by the test
    started_at: int
    settled_at: int
    done: int = 0
    resize_number: int = 0
    why: str = ""  # the reason of a stop; "": not told to stop
    stops_at: int | None = None  # when it stops after that
    stop_code: int = 0  # its exit code then
    exit: Exit | None = None
    forgotten: bool = False

    @property
    def devices(self) -> int:
        return max(1, sum(len(share.devices) for share in self.shares))

    @property
    def completes_at(self) -> int | None:
        if self.work is None:
            return None
        return self.settled_at + -(-max(self.work - self.done, 0) // self.devices)

    def settle(self, now: int) -> None:
        """Count the work up to now."""
        self.done += (now - self.settled_at) * self.devices
        self.settled_at = now


@dataclass
class EmulatedMachines:
    """What survives a restart of the plane: the attempts, the nodes that are starting up, the newest term."""

    attempts: dict[AttemptKey, EmulatedAttempt] = field(default_factory=dict)
    booting: dict[str, int] = field(default_factory=dict)  # by node: when it is up
    term: int = 0
    lock: threading.RLock = field(default_factory=threading.RLock)


def runs_until_stopped(launch: Launch) -> int | None:
    return None


class EmulatedEngine:
    """Attempts on emulated machines. `clock` is the time in microseconds, `work` the work of a launch."""

    capabilities = Capabilities(resize=True, power=True, rent=True)

    def __init__(
        self,
        machines: EmulatedMachines | None = None,
        *,
        clock: Callable[[], int] = lambda: time.time_ns() // 1_000,
        work: Callable[[Launch], int | None] = runs_until_stopped,
        save_time: int = 0,
        boot_time: int = 0,
    ) -> None:
        self.machines = machines or EmulatedMachines()
        self._clock = clock
        self._work = work
        self._save_time = save_time
        self._boot_time = boot_time
        self._confirmed: list[Resized | NodeUp] = []
        self._bell = threading.Event()
        self._term = 0  # in which this engine was told to lead

    def newest_term(self) -> int:
        with self.machines.lock:
            return self.machines.term

    def lead(self, term: int) -> None:
        with self.machines.lock:
            if term <= self.machines.term:
                raise Fenced(f"term {term} is not newer than term {self.machines.term}")
            self.machines.term = self._term = term

    def start(self, launch: Launch) -> None:
        now = self._clock()
        with self._ordering():
            attempt = self.machines.attempts.get((launch.job, launch.epoch))
            if attempt is None:
                attempt = EmulatedAttempt(launch, launch.shares, self._work(launch), now, now)
                self.machines.attempts[launch.job, launch.epoch] = attempt
            attempt.forgotten = False
        self.ring()

    def stop(self, job: str, epoch: int, why: str, grace: int) -> None:
        with self._ordering():
            attempt = self._running(job, epoch)
            if attempt is None:
                return
            now = self._clock()
            killed = grace < self._save_time
            stops_at = now + min(grace, self._save_time)
            if attempt.stops_at is None or stops_at < attempt.stops_at:
                attempt.why, attempt.stops_at = attempt.why or why, stops_at
                attempt.stop_code = 137 if killed else 143
        self.ring()

    def resize(self, job: str, epoch: int, number: int, shares: tuple[NodeShare, ...]) -> None:
        with self._ordering():
            attempt = self._running(job, epoch)
            if attempt is None or number < attempt.resize_number:
                return
            if number > attempt.resize_number:
                attempt.settle(self._clock())
                attempt.shares, attempt.resize_number = shares, number
            self._confirmed.append(Resized(job, epoch, number))
        self.ring()

    def power(self, node: str, on: bool) -> None:
        with self._ordering():
            if on:
                self.machines.booting.setdefault(node, self._clock() + self._boot_time)
            else:
                self.machines.booting.pop(node, None)
        self.ring()

    def rent(self, node: str, keep: bool, owner: str) -> None:
        self.power(node, keep)

    def signal(self, job: str, epoch: int, number: int) -> None:
        """Does nothing in its term: there are no processes to signal."""
        with self._ordering():
            pass

    def end(self, job: str, epoch: int, code: int = 0, cause: str = "exited", detail: str = "") -> None:
        """End an attempt now, whatever work is left."""
        with self.machines.lock:
            attempt = self._running(job, epoch)
            if attempt is not None:
                now = self._clock()
                attempt.exit = Exit(code, cause, detail, attempt.started_at, now)
        self.ring()

    def poll(self) -> list[AttemptEnd]:
        now = self._clock()
        with self.machines.lock:
            for attempt in self.machines.attempts.values():
                if attempt.exit is None:
                    attempt.exit = _exit_by(attempt, now)
            found = [
                AttemptEnd(*key, attempt.exit)
                for key, attempt in self.machines.attempts.items()
                if attempt.exit is not None and not attempt.forgotten
            ]
        return sorted(found, key=lambda report: (report.exit.ended_at, report.job, report.epoch))

    def confirmations(self) -> list[Resized | NodeUp]:
        now = self._clock()
        with self.machines.lock:
            if self._term != self.machines.term:
                return []  # they are for the plane that leads
            up = sorted(node for node, at in self.machines.booting.items() if at <= now)
            for node in up:
                del self.machines.booting[node]
            found, self._confirmed = self._confirmed, []
        return [*found, *map(NodeUp, up)]

    def known(self) -> set[AttemptKey]:
        with self.machines.lock:
            return {key for key, attempt in self.machines.attempts.items() if not attempt.forgotten}

    def forget(self, job: str, epoch: int) -> None:
        with self._ordering():
            attempt = self.machines.attempts.get((job, epoch))
            if attempt is not None:
                attempt.forgotten = True

    def wait(self, timeout: float) -> None:
        self._bell.wait(timeout)
        self._bell.clear()

    def ring(self) -> None:
        self._bell.set()

    def logs(self, job: str, epoch: int) -> Sequence[Path]:
        return []

    def reports(self, job: str, epoch: int, offset: int) -> tuple[list[dict[str, object]], int]:
        return [], offset

    @contextmanager
    def _ordering(self) -> Iterator[None]:
        """Carry out an order, unless a newer term has begun."""
        with self.machines.lock:
            if not self._term or self._term != self.machines.term:
                raise Fenced(f"the newest term is {self.machines.term}; this order is of term {self._term}")
            yield

    def _running(self, job: str, epoch: int) -> EmulatedAttempt | None:
        """The attempt, if it has not ended by now."""
        attempt = self.machines.attempts.get((job, epoch))
        if attempt is None or attempt.exit is not None:
            return None
        attempt.exit = _exit_by(attempt, self._clock())
        return attempt if attempt.exit is None else None


def _exit_by(attempt: EmulatedAttempt, now: int) -> Exit | None:
    """How the attempt has ended by now, if it has."""
    completes, stops = attempt.completes_at, attempt.stops_at
    if completes is not None and completes <= now and (stops is None or completes <= stops):
        return Exit(0, "exited", "", attempt.started_at, completes, finished=True)
    if stops is not None and stops <= now:
        killed = ", killed" if attempt.stop_code == 137 else ""
        detail = f"told to stop ({attempt.why}){killed}"
        return Exit(attempt.stop_code, "stopped", detail, attempt.started_at, stops)
    return None
