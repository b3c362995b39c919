"""The kernel as a supervisor meets it: forked processes of jobs, their signals and ends, and file locks.

A supervisor is a process of the room that runs the product's code. A process of a job is a small machine
with timers: it gets ready, runs for as long as its kind says, writes reports, reacts to signals, and
ends. It lives on when its supervisor dies, as on Linux, unless the supervisor's code asked the kernel
for something else.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from tests.chaos.disk import WRITTEN_BACK, Disk
from tests.chaos.room import SECOND, FileId, Process, Room, file_id

from dovetail.engines.local import processes

REPARENTED = 1
# What a forked process does before it executes the job's command is not simulated, but for this: whether it
# asks the kernel to be killed when its supervisor dies.
DEATH_SIGNAL = hasattr(processes, "PR_SET_PDEATHSIG")
NOT_RELEASED = 125
HOSTILE_REPORTS = (
    '{"steps_per_second": NaN}',
    '{"steps_per_second": Infinity}',
    '{"steps_per_second": -Infinity, "step": NaN}',
    '{"steps_per_second": 1' + "0" * 400 + "}",
    '{"step": 1' + "0" * 400 + "}",
    '{"steps_per_second": 1e308}\n{"steps_per_second": 1e-308}',
    '{"steps_per_second": 5e-324}',
    "[1, 2, 3]\nnull\n{",
    '{"\\ud800": "\\udfff", "steps_per_second": 3}',
    '{"steps_per_second": true, "loss": "\\u0000"}',
)


@dataclass(eq=False)
class JobProcess:
    """One rank of an attempt."""

    pid: int
    parent: int
    ready: int  # the write end of the pipe on which it says that it is ready
    waits_at: int  # the read end of the pipe that lets it go
    gate: int  # the inode of that pipe
    born: int
    folder: str = ""
    rank: int = 0
    released: bool = False
    alive: bool = True
    status: int | None = None  # as waitpid gives it, until it is collected
    told: bool = False  # a signal has reached it
    suspended: bool = False
    kind: str = ""
    ends_at: int = 0


@dataclass(eq=False)
class Attempt:
    """What the room knows of one attempt: the truth, whatever anybody has recorded."""

    job: str
    epoch: int
    folder: str
    began: int
    devices: list[tuple[str, str]]
    ranks: list[JobProcess] = field(default_factory=list)
    codes: list[int] = field(default_factory=list)
    told: bool = False  # a signal reached one of its processes before its end
    ended: int | None = None
    reported: bool = False  # its supervisor has written its end, and told the plane

    @property
    def key(self) -> tuple[str, int]:
        return self.job, self.epoch


class Kernel:
    """Processes of jobs, and locks."""

    def __init__(self, room: Room) -> None:
        self.room = room
        self.jobs: dict[int, JobProcess] = {}  # by pid: living, or not collected yet
        self.attempts: dict[str, Attempt] = {}  # by folder: those that have a process
        self.work_left: dict[str, float] = {}  # seconds, of jobs that save
        self.locks: dict[FileId, tuple[int, int]] = {}  # by file: the handle, and the pid of the holder
        self.pidfds: dict[int, int] = {}
        self.began: Callable[[Attempt], None] = lambda attempt: None
        self.over: Callable[[Attempt], None] = lambda attempt: None
        self.forgotten: Callable[[Attempt], None] = lambda attempt: None  # its end died with its supervisor
        self.ended: dict[str, Attempt] = {}  # by folder: whose end may not be on record, or not durable
        self._pid = 6_000_000
        self._real: dict[str, str] = {}  # the folders behind the names that the log shows

    # -- starting

    def fork(self) -> int:
        """A child of the running process. It says on the last pipe that was made when it is ready."""
        process = self.room.process()
        self._pid += 1
        gate, ready = os.dup(process.pipes[0][0]), os.dup(process.pipes[-1][1])
        child = JobProcess(self._pid, process.pid, ready, gate, os.fstat(gate).st_ino, self.room.now)
        self.jobs[child.pid] = child
        self.room.at(self.room.now + self.room.random.randrange(1_000, 40_000), lambda: self._ready(child))
        return child.pid

    def _ready(self, child: JobProcess) -> None:
        if child.alive and not child.released:
            with suppress(BrokenPipeError):  # the supervisor is dead
                os.write(child.ready, b"R")
            self.wake(child.parent)

    def gate_opened(self, handle: int) -> None:
        """A supervisor wrote to this pipe: children that wait at it execute the job's command."""
        inode = os.fstat(handle).st_ino
        process = self.room.process()
        folder = self.folder_of(process)
        waiting = [c for c in self.jobs.values() if c.alive and not c.released and c.gate == inode]
        for rank, child in enumerate(waiting):
            child.released, child.folder, child.rank = True, folder, rank
            os.close(child.ready)
            os.close(child.waits_at)
        if waiting:
            self._begin(folder, waiting)
            self.wake(process.pid)

    def folder_of(self, process: Process) -> str:
        return process.name.partition(" ")[2]

    def _begin(self, folder: str, ranks: list[JobProcess]) -> None:
        with open(os.path.join(self.root(ranks[0]), "launch.json"), encoding="utf-8") as file:
            launch = json.load(file)
        now = self.room.now
        devices = [(share["node"], device) for share in launch["shares"] for device in share["devices"]]
        attempt = Attempt(launch["job"], launch["epoch"], folder, now, devices, ranks)
        _, kind, seconds = launch["command"]
        left = self.work_left.get(attempt.job, float(seconds))
        for child in ranks:
            child.kind = kind
            child.ends_at = now + round(left * SECOND) + self.room.random.randrange(1, 300_000)
            self.room.at(child.ends_at, lambda child=child: self._natural_end(child))  # type: ignore[misc]
        self.attempts[folder] = attempt
        if kind.startswith("reports"):
            self.room.at(now + round(left * SECOND * 0.3), lambda: self._report(ranks[0], kind))
        if kind == "vandal":
            self.room.at(now + round(left * SECOND * 0.3), lambda: self._vandalise(ranks[0]))
        self.room.note(f"job {attempt.job} attempt {attempt.epoch} begins as {kind} for {left:.0f} s")
        self.began(attempt)

    def root(self, child: JobProcess) -> str:
        """The real folder of its attempt."""
        return self._real[child.folder]

    def named(self, real: str) -> str:
        """A name for the folder of an attempt that is the same in each run."""
        above, epoch = os.path.split(real)
        root, job = os.path.split(above)
        name = f"{os.path.basename(os.path.dirname(root))}/{job}/{epoch}"
        self._real[name] = real
        return name

    # -- running

    def _report(self, child: JobProcess, kind: str) -> None:
        if not child.alive:
            return
        pick = self.room.random
        line = f'{{"steps_per_second": {pick.choice((1.0, 2.5, 40.0))}, "step": {pick.randrange(1000)}}}'
        if kind == "reports-rubbish":
            line = pick.choice(HOSTILE_REPORTS)
            self.room.struck["rubbish"] += 1
            self.room.note(f"report of {child.folder}: {line[:60]}")
        with open(os.path.join(self.root(child), "run", "reports.jsonl"), "a", encoding="utf-8") as file:
            file.write(line + "\n")
        again = self.room.now + pick.randrange(5, 600) * SECOND
        self.room.at(again, lambda: self._report(child, kind))

    def _vandalise(self, child: JobProcess) -> None:
        """The job writes to all that it can reach from its folder."""
        if not child.alive:
            return
        text = self.room.random.choice(("", "{", "[]", "{}", '{"why": 7, "grace": "x", "at": []}', "\0" * 64))
        target = os.path.join(self.root(child), "run", "stop.json")
        self.room.note(f"{child.folder} writes {text[:20]!r} to run/stop.json")
        try:
            with open(target, "w", encoding="utf-8") as file:
                file.write(text)
            self.room.struck["vandals"] += 1
        except OSError:
            pass

    def _natural_end(self, child: JobProcess) -> None:
        if child.alive and child.released and child.ends_at <= self.room.now and not child.suspended:
            attempt = self.attempts.get(child.folder)
            codes = {"broken": 4, "again": 75}
            code = codes.get(child.kind, 0)
            if child.kind == "again" and attempt is not None and attempt.epoch > 1:
                code = 0
            self._exit(child, code << 8)

    def exists(self, pid: int) -> bool:
        """Whether there is such a process: one that has ended and is not collected counts."""
        return pid in self.jobs or self.room.living(pid) is not None

    def signal(self, pid: int, number: int) -> None:
        """As `kill` does; nothing if there is no such process."""
        if number == 0:
            return
        process = self.room.living(pid)
        if process is not None:
            if number == signal.SIGKILL:
                self.room.at(self.room.now + 1, lambda: self.room.kill(process))
            else:
                process.signals.append((number, self.room.process().pid if self.room.current() else 0))
                self.wake(pid)
            return
        child = self.jobs.get(pid)
        if child is None or not child.alive:
            return
        if number == signal.SIGSTOP:
            child.suspended = True
        elif number == signal.SIGCONT:
            child.suspended = False
            self.room.at(self.room.now, lambda: self._natural_end(child))
        elif number == signal.SIGKILL:
            self._mark(child)
            delay = self.room.random.randrange(100, 20_000)
            self.room.at(self.room.now + delay, lambda: self._exit(child, signal.SIGKILL))
        elif not child.told:
            self._mark(child)
            self._leave(child)

    def _mark(self, child: JobProcess) -> None:
        child.told = True
        if (attempt := self.attempts.get(child.folder)) is not None and attempt.ended is None:
            attempt.told = True

    def _leave(self, child: JobProcess) -> None:
        """A job that was asked to stop saves and leaves, by its kind."""
        if not child.released:
            self.room.at(self.room.now + 1_000, lambda: self._exit(child, signal.SIGTERM))
        elif child.kind != "deaf":
            attempt = self.attempts[child.folder]
            if child.kind == "saves":
                left = max(1.0, (child.ends_at - self.room.now) / SECOND)
                self.work_left[attempt.job] = min(left, self.work_left.get(attempt.job, left))
            delay = self.room.random.randrange(50_000, 8 * SECOND)
            self.room.at(self.room.now + delay, lambda: self._exit(child, 143 << 8))

    # -- ending

    def _exit(self, child: JobProcess, status: int) -> None:
        if not child.alive:
            return
        child.alive, child.status = False, status
        if not child.released:
            os.close(child.ready)
            os.close(child.waits_at)
        if self.room.living(child.parent) is None:
            self.jobs.pop(child.pid, None)
        else:
            self.room.living(child.parent).signals.append((int(signal.SIGCHLD), child.pid))  # type: ignore[union-attr]
            self.wake(child.parent)
        attempt = self.attempts.get(child.folder)
        if attempt is not None:
            attempt.codes.append(status)
            if not any(rank.alive for rank in attempt.ranks):
                attempt.ended = self.room.now
                del self.attempts[child.folder]
                self._keep_ended(child.folder, attempt)
                self.room.note(f"job {attempt.job} attempt {attempt.epoch} is over: {attempt.codes}")
                self.over(attempt)

    def orphaned(self, process: Process) -> None:
        """A supervisor has died. Children that were not let go end; the others live on if they may."""
        self._forget_unrecorded(self.folder_of(process))
        for child in list(self.jobs.values()):
            if child.parent == process.pid:
                child.parent = REPARENTED
                if not child.alive:
                    del self.jobs[child.pid]
                elif not child.released:
                    self._exit(child, NOT_RELEASED << 8)
                elif DEATH_SIGNAL:
                    self.signal(child.pid, signal.SIGKILL)

    def _keep_ended(self, folder: str, attempt: Attempt) -> None:
        before = self.room.now - WRITTEN_BACK
        self.ended = {
            name: ended
            for name, ended in self.ended.items()
            if (ended.ended or 0) > before or self.room.living(ended.ranks[0].parent) is not None
        }
        self.ended[folder] = attempt

    def _forget_unrecorded(self, folder: str, disk: Disk | None = None) -> None:
        """Whatever the supervisor has not written down, is not known to anybody.

        With a disk, which is about to lose power, only what is durable counts as written, until the
        supervisor has told the plane: from then on the end has to last.
        """
        ended = self.ended.get(folder)
        if ended is None or ended.reported:
            return
        for name in ("exit.json", "ended.json"):
            path = os.path.join(self._real[folder], name)
            if disk is not None and not disk.is_durable(path):
                continue
            with suppress(OSError, ValueError), open(path, "rb") as file:
                if isinstance(json.load(file), dict):
                    return
        del self.ended[folder]
        self.forgotten(ended)

    def power_lost(self, disk: Disk | None) -> None:
        """The machine stops at once."""
        for folder in list(self.ended):  # before all: a supervisor that dies now has noted its end or not
            self._forget_unrecorded(folder, disk)
        for process in list(self.room.processes.values()):
            if process.machine != "outside":
                self.room.kill(process)
        for child in list(self.jobs.values()):
            self._mark(child)
            self._exit(child, signal.SIGKILL)
        self.jobs.clear()
        if disk is not None:
            disk.power_lost()

    def reported(self, process: Process) -> None:
        """A supervisor rings: it has written down how its attempt ended."""
        ended = self.ended.get(self.folder_of(process))
        if ended is not None:
            ended.reported = True

    def waitpid(self) -> tuple[int, int]:
        process = self.room.process()
        children = [c for c in self.jobs.values() if c.parent == process.pid]
        if not children:
            raise ChildProcessError
        for child in children:
            if not child.alive:
                del self.jobs[child.pid]
                assert child.status is not None
                return child.pid, child.status
        return 0, 0

    def children(self) -> list[int]:
        pid = self.room.process().pid
        return [c.pid for c in self.jobs.values() if c.parent == pid and c.alive]

    def start_ticks(self, pid: int) -> int:
        child = self.jobs.get(pid)
        return child.born // 10_000 + 1 if child is not None and child.alive else 0

    def has_stopped(self, pid: int) -> bool:
        child = self.jobs.get(pid)
        return child is None or child.suspended or not child.alive

    def wake(self, pid: int) -> None:
        process = self.room.living(pid)
        if process is not None:
            self.room.wake_polling(process)

    # -- locks: valid as long as the handle that took them is open

    def lock(self, handle: int, holder: int) -> bool:
        file = file_id(handle)
        if self.holder(file) not in (0, holder):
            return False
        self.locks[file] = (handle, holder)
        return True

    def unlock(self, handle: int) -> None:
        self.locks.pop(file_id(handle), None)

    def holder(self, file: FileId) -> int:
        """The pid of the process that holds the lock on a file; 0 if there is none."""
        handle, pid = self.locks.get(file, (-1, 0))
        if pid and (file_id(handle) != file or self.room.living(pid) is None):
            del self.locks[file]
            return 0
        return pid
