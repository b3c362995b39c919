"""The machine room: simulated time, and processes that run one at a time on a seeded scheduler.

A task is a greenlet. It gives control back at every yield point (`Room.io`, `Room.sleep`): wherever the
product touches a disk, a database, a signal or a clock that it waits for. The room then continues the
task that is due next. All chance comes from one `random.Random(seed)`, so one seed gives the same steps
byte for byte.

A process is a group of tasks with one fate. It can be killed (each task unwinds with `ProcessKilled`,
and whatever it calls while it unwinds raises that again, so that no `finally` leaves a trace), stopped
and resumed, at any yield point. A trap does that at the n-th yield point from now: faults find the
middle of a tick this way.
"""

from __future__ import annotations

import hashlib
import os
import random
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

from greenlet import getcurrent, greenlet

SECOND = 1_000_000
FIRST_PID = 5_000_000  # above the largest pid of Linux: no real process is ever meant
WALL_BEGINS = 1_767_225_600 * SECOND  # 2026-01-01
LOG_TAIL = 4_000
MOST_POLLS = 10_000  # in one moment
FileId = tuple[int, int]
CLOSED: FileId = (0, 0)


class ProcessKilled(BaseException):
    """The process of the running task is dead."""


class Exited(BaseException):
    """A process ends itself."""


@dataclass(eq=False)
class Trap:
    """What happens to a process at one of its next yield points."""

    left: int  # yield points
    deed: str  # kill | stop | power
    fault: str  # that set it


@dataclass(eq=False)
class Process:
    """Tasks with one fate, and what the kernel keeps for them."""

    name: str
    pid: int
    parent: int = 1
    alive: bool = True
    doomed: bool = False  # killed at the next return to the scheduler
    stopped: bool = False
    trap: Trap | None = None
    tasks: list[Task] = field(default_factory=list)
    frozen: list[Task] = field(default_factory=list)  # due while the process was stopped
    handles: dict[int, FileId] = field(default_factory=dict)  # closed when it ends; their files
    pipes: list[tuple[int, int]] = field(default_factory=list)
    signals: list[tuple[int, int]] = field(default_factory=list)  # pending: number and sender
    at_end: list[Callable[[], None]] = field(default_factory=list)
    machine: str = "m0"


@dataclass(eq=False)
class Task:
    """One thread of a process."""

    process: Process
    name: str
    run: greenlet
    token: int = 0  # of its valid entry in the queue
    waiting: bool = False  # may be woken before its time
    polling: bool = False  # waits for signals or files, not for another thread of its process
    naps: int = 0  # long waits in a row that nothing ended early


class Room:
    """The scheduler."""

    def __init__(self, seed: int, *, keep_log: bool = False) -> None:
        self.random = random.Random(seed)
        self.now = 0  # true microseconds since the beginning
        self.wall_offset = WALL_BEGINS  # added to `now` by the wall clock; a jump changes it
        self.boot = 1
        self.steps = 0
        self.slow_until = 0
        self.disk_full = False
        self.longest_nap = 1.0  # seconds; an idle wait may be stretched up to this
        self.longest_stand_by = 1.0  # the same for a plane that waits for the lead
        self.growth = 2.0  # of a wait that comes to nothing, from one to the next
        self.longest_rest = (
            0.0  # the same for a thread that looks after something every few seconds; 0: never
        )
        self.processes: dict[int, Process] = {}
        self.struck: Counter[str] = Counter()  # faults, by their names
        self.hub = getcurrent()
        self.tail: deque[str] | list[str] = [] if keep_log else deque(maxlen=LOG_TAIL)
        self.on_step: Callable[[], None] = lambda: None
        self.on_spin: Callable[[], None] = lambda: None
        self.cut_power: Callable[[], None] = lambda: None
        self._digest = hashlib.blake2b(digest_size=8)
        self._queue: list[tuple[int, float, int, Task | Callable[[], None]]] = []
        self._next_pid = FIRST_PID
        self._examined: Process | None = None
        self._polls = (0, 0)  # at which moment, and how many
        self._tasks: dict[greenlet, Task] = {}

    # -- clocks

    @property
    def wall(self) -> int:
        """The wall clock, in microseconds since 1970."""
        return self.now + self.wall_offset

    # -- the log

    def note(self, text: str) -> None:
        task = self._tasks.get(getcurrent())
        line = f"{self.now / SECOND:.6f} {task.process.name if task else 'room'}: {text}"
        self._digest.update(line.encode())
        self.tail.append(line)

    @property
    def digest(self) -> str:
        """Of all lines of the log so far."""
        return self._digest.hexdigest()

    # -- processes

    def spawn(self, name: str, main: Callable[[], None], *, parent: int = 1, machine: str = "m0") -> Process:
        self._next_pid += 1
        process = Process(name, self._next_pid, parent, machine=machine)
        self.processes[process.pid] = process
        self.thread(process, "main", main, ends_process=True)
        return process

    def thread(
        self, process: Process, name: str, main: Callable[[], None], *, ends_process: bool = False
    ) -> Task:
        """Another task of a process."""

        def run() -> None:
            with suppress(ProcessKilled, Exited):
                main()
            if ends_process:
                process.doomed = True

        task = Task(process, name, greenlet(run, self.hub))
        process.tasks.append(task)
        self._tasks[task.run] = task
        self._schedule(task, self.now + self.random.randrange(1, 500))
        return task

    def current(self) -> Task | None:
        """The running task; None in the scheduler itself."""
        task = self._tasks.get(getcurrent())
        if task is not None and not task.process.alive:
            raise ProcessKilled
        return task

    def process(self) -> Process:
        task = self.current()
        if task is None:
            raise RuntimeError("the scheduler is not a process")
        return task.process

    def pid(self) -> int:
        """Of the running task, or of the process whose state the scheduler looks at; else 0."""
        task = self.current()
        process = self._examined if task is None else task.process
        return 0 if process is None else process.pid

    @contextmanager
    def examining(self, process: Process) -> Iterator[None]:
        """The scheduler calls what belongs to this process."""
        self._examined = process
        try:
            yield
        finally:
            self._examined = None

    def living(self, pid: int) -> Process | None:
        found = self.processes.get(pid)
        return found if found is not None and found.alive else None

    def kill(self, process: Process) -> None:
        """End a process at once. Only the scheduler and timers may call this."""
        if not process.alive:
            return
        process.alive = False
        del self.processes[process.pid]
        for task in process.tasks:
            if task.run:  # it has begun, and has not ended
                task.run.throw(ProcessKilled)
            self._tasks.pop(task.run, None)
        process.tasks.clear()
        for handle, file in process.handles.items():
            if file_id(handle) == file:  # else it was closed, and the number is another file's
                os.close(handle)
        process.handles.clear()
        for call in process.at_end:
            call()

    def stop(self, process: Process) -> None:
        process.stopped = True

    def resume(self, process: Process) -> None:
        process.stopped = False
        frozen, process.frozen = process.frozen, []
        for task in frozen:
            self._schedule(task, self.now + self.random.randrange(1, 1_000))

    # -- yield points

    def io(self, what: str, slow: float = 0.003) -> None:
        """The product touches the world: other tasks may run before, and a fault may strike."""
        task = self.current()
        if task is None:
            return
        self.note(what)
        process = task.process
        if process.trap is not None:
            process.trap.left -= 1
            if process.trap.left <= 0:
                deed = process.trap.deed
                self.struck[process.trap.fault] += 1
                process.trap = None
                self.note(f"trap: {deed}")
                if deed == "kill":
                    process.doomed = True
                elif deed == "stop":
                    process.stopped = True
                else:
                    self.at(self.now, self.cut_power)
        factor = 200.0 if self.now < self.slow_until else 1.0
        self._pause(task, self.random.random() * slow * factor)

    def sleep(self, seconds: float) -> None:
        """Wait this long."""
        task = self.current()
        assert task is not None
        self._pause(task, seconds)

    def wait(self, seconds: float | None) -> None:
        """Wait until `wake`, at most this long. A wait of a second or more is stretched while it is idle."""
        task = self.current()
        assert task is not None
        task.waiting = task.polling = True
        if seconds is None:
            seconds = 3600.0
        if 0.999 <= seconds < self.longest_nap:
            seconds = self.stretched(task, seconds, self.longest_nap)
        else:
            task.naps = 0
        try:
            self._pause(task, seconds)
        finally:
            task.waiting = task.polling = False

    def stretched(self, task: Task, seconds: float, longest: float) -> float:
        """A wait that is longer the more often nothing came of it."""
        seconds = min(seconds * self.growth**task.naps, longest)
        task.naps = min(task.naps + 1, 10)
        return seconds

    def wake(self, task: Task) -> None:
        if task.waiting:
            task.waiting = False
            task.naps = 0
            self._schedule(task, self.now + self.random.randrange(1, 2_000))

    def wake_polling(self, process: Process) -> None:
        """A signal or a message has come for a process."""
        for task in process.tasks:
            if task.polling:
                self.wake(task)

    def polled(self) -> None:
        """A task has looked for messages without waiting. If no time passes, it does so for ever."""
        self._polls = (self.now, self._polls[1] + 1 if self._polls[0] == self.now else 1)
        if self._polls[1] > MOST_POLLS:
            self.on_spin()
            raise RuntimeError("it does not wait")

    def at(self, moment: int, call: Callable[[], None]) -> None:
        """Call this at a moment, in the scheduler."""
        heappush(self._queue, (max(moment, self.now), self.random.random(), 0, call))

    def _pause(self, task: Task, seconds: float) -> None:
        self._schedule(task, self.now + max(1, round(seconds * SECOND)))
        self.hub.switch()
        if not task.process.alive:
            raise ProcessKilled

    def _schedule(self, task: Task, moment: int) -> None:
        task.token += 1
        heappush(self._queue, (moment, self.random.random(), task.token, task))

    # -- the loop

    def run(self, until: int, done: Callable[[], bool] = lambda: False) -> None:
        """Play until that time, or until `done` says so."""
        queue = self._queue
        while queue and queue[0][0] <= until:
            moment, _, token, entry = heappop(queue)
            if not isinstance(entry, Task):
                self.now = max(self.now, moment)
                entry()
                self.on_step()
                continue
            process = entry.process
            if entry.token != token or entry.run.dead or not process.alive:  # it may not have begun
                continue
            if process.stopped:
                process.frozen.append(entry)
                continue
            self.now = max(self.now, moment)
            self.steps += 1
            entry.run.switch()
            if process.doomed:
                self.kill(process)
            elif entry.run.dead:
                self._tasks.pop(entry.run, None)
                if entry in process.tasks:
                    process.tasks.remove(entry)
            self.on_step()
            if done():
                return
        self.now = max(self.now, until)

    def end(self) -> None:
        for process in list(self.processes.values()):
            self.kill(process)


def file_id(handle: int) -> FileId:
    """Tells the file behind a handle from all others; CLOSED if there is none."""
    try:
        found = os.fstat(handle)
    except OSError:
        return CLOSED
    return found.st_dev, found.st_ino


def any_of(room: Room, things: dict[str, float]) -> Any:
    """One of the keys, by weight."""
    return room.random.choices(list(things), list(things.values()))[0]
