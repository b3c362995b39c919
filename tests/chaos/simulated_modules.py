"""The modules of the standard library that the product uses, as the machine room offers them.

The seam is the name: a module of `dovetail.control` or `dovetail.engines` that says `import time` gets
the room's time instead, and so on for threads, files, signals, locks and random ids. The product's code
itself is as it is; nothing in it knows of a simulation. Files are real files in memory (/dev/shm): these
modules only add the yield points, the faults, and what belongs to one process (its pid, its handles, its
children).
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import concurrent.futures
import errno
import fcntl
import os
import pathlib
import secrets
import select
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from tests.chaos.disk import Disk
from tests.chaos.kernel import Kernel
from tests.chaos.room import SECOND, Exited, ProcessKilled, Room, Task, file_id

from dovetail.control import steady_time

_FLOCK = struct.Struct("hhqqi4x")


class _Beside:
    """A module of which some names are replaced."""

    def __init__(self, real: Any, room: Room, kernel: Kernel) -> None:
        self._real, self._room, self._kernel = real, room, kernel

    def __getattr__(self, name: str) -> Any:
        found = self.__dict__[name] = getattr(self._real, name)  # asked once
        return found


class Time(_Beside):
    def time_ns(self) -> int:
        return self._room.wall * 1_000

    def time(self) -> float:
        return self._room.wall / SECOND

    def monotonic(self) -> float:
        return self._room.now / SECOND

    def monotonic_ns(self) -> int:
        return self._room.now * 1_000

    def clock_gettime(self, clock: int) -> float:
        """CLOCK_BOOTTIME and CLOCK_MONOTONIC are alike here: no machine sleeps."""
        return self.time() if clock == time.CLOCK_REALTIME else self.monotonic()

    def clock_gettime_ns(self, clock: int) -> int:
        return self.time_ns() if clock == time.CLOCK_REALTIME else self.monotonic_ns()

    perf_counter, perf_counter_ns = monotonic, monotonic_ns

    def sleep(self, seconds: float) -> None:
        self._room.sleep(seconds)


def _full(path: Any, folder: int | None) -> str:
    """A path without a handle of a folder."""
    above = os.getcwd() if folder is None else os.readlink(f"/proc/self/fd/{folder}")
    return os.path.join(above, str(os.fspath(path)))


class Os(_Beside):
    def __init__(self, real: Any, room: Room, kernel: Kernel, disk: Disk | None) -> None:
        super().__init__(real, room, kernel)
        self._disk = disk

    def getpid(self) -> int:
        return self._room.process().pid

    def open(self, path: Any, flags: int, mode: int = 0o777, **more: Any) -> int:
        if flags & (os.O_CREAT | os.O_WRONLY | os.O_RDWR):
            self._room.io(f"open {os.path.basename(os.fspath(path))}")
        else:
            self._room.current()
        full = _full(path, more.get("dir_fd")) if flags & os.O_CREAT else ""
        is_new = bool(full) and not os.path.lexists(full)
        if is_new:  # opening needs no space
            self._space()
        handle = os.open(path, flags, mode, **more)
        self._own(handle)
        if is_new and self._disk is not None:
            self._disk.made(full)
        return handle

    def close(self, handle: int) -> None:
        task = self._room.current()
        if task is not None:
            task.process.handles.pop(handle, None)
        self._kernel.pidfds.pop(handle, None)
        os.close(handle)

    def write(self, handle: int, data: Any) -> int:
        self._room.io("write")
        self._writes(handle)
        written = os.write(handle, data)
        process = self._room.process()
        if any(handle == writing for _, writing in process.pipes[:1]):
            self._kernel.gate_opened(handle)
        return written

    def pwrite(self, handle: int, data: Any, offset: int) -> int:
        self._room.io("write")
        self._writes(handle)
        return os.pwrite(handle, data, offset)

    def ftruncate(self, handle: int, length: int) -> None:
        self._room.io("truncate")
        if self._disk is not None:
            self._disk.writes(handle)
        os.ftruncate(handle, length)

    def _writes(self, handle: int) -> None:
        self._space()
        if self._disk is not None:
            self._disk.writes(handle)

    def fsync(self, handle: int) -> None:
        self._room.io("fsync")
        self._space()
        if self._disk is not None:
            self._disk.synced(handle)

    def rename(
        self, old: Any, new: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None
    ) -> None:
        self._room.io(f"rename to {os.path.basename(os.fspath(new))}")
        before, after = _full(old, src_dir_fd), _full(new, dst_dir_fd)
        if self._disk is not None and os.path.lexists(before):
            self._disk.renames(before, after)
        os.rename(before, after)

    replace = rename

    def link(self, old: Any, new: Any, **more: Any) -> None:
        self._room.io(f"link {os.path.basename(os.fspath(new))}")
        os.link(old, new, **more)
        if self._disk is not None:
            self._disk.made(_full(new, None))

    def unlink(self, path: Any, *, dir_fd: int | None = None) -> None:
        full = _full(path, dir_fd)
        if not os.path.lexists(full):
            self._room.current()
        else:
            self._room.io(f"unlink {os.path.basename(full)}")
            if self._disk is not None and os.path.isfile(full):
                self._disk.unlinks(full)
        os.unlink(full)

    def mkdir(self, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        full = _full(path, dir_fd)
        if os.path.lexists(full):
            self._room.current()
        else:
            self._room.io("mkdir")
            self._space()
        os.mkdir(full, mode)
        if self._disk is not None:
            self._disk.made(full)

    def makedirs(self, name: Any, mode: int = 0o777, exist_ok: bool = False) -> None:
        above = os.path.dirname(os.fspath(name))
        if above and not os.path.exists(above):
            self.makedirs(above, exist_ok=True)
        try:
            self.mkdir(name, mode)
        except FileExistsError:
            if not exist_ok or not os.path.isdir(name):
                raise

    def rmdir(self, path: Any, *, dir_fd: int | None = None) -> None:
        full = _full(path, dir_fd)
        self._room.io("rmdir")
        os.rmdir(full)
        if self._disk is not None:
            self._disk.removed(full)

    def pipe(self) -> tuple[int, int]:
        made = os.pipe()
        process = self._room.process()
        process.pipes.append(made)
        self._own(*made)
        return made

    def eventfd(self, *args: int) -> int:
        handle = os.eventfd(*args)
        self._own(handle)
        return handle

    def eventfd_write(self, handle: int, value: int) -> None:
        process = self._room.process()
        os.eventfd_write(handle, value)
        self._room.wake_polling(process)

    def fdopen(self, handle: int, mode: str = "r", *args: Any, **named: Any) -> Any:
        self._room.process().handles.pop(handle, None)  # the file object closes it
        if self._disk is not None and not mode.startswith("r"):
            self._disk.writes(handle)
        return os.fdopen(handle, mode, *args, **named)

    def read(self, handle: int, size: int) -> bytes:
        ready = select.poll()
        ready.register(handle, select.POLLIN)
        while not ready.poll(0):
            self._room.wait(1.0)
        return os.read(handle, size)

    def statvfs(self, path: Any) -> Any:
        found = os.statvfs(path)
        free = 0 if self._room.disk_full else found.f_blocks
        return SimpleNamespace(f_frsize=found.f_frsize, f_blocks=found.f_blocks, f_bfree=free, f_bavail=free)

    def _own(self, *handles: int) -> None:
        self._room.process().handles.update({handle: file_id(handle) for handle in handles})

    def _space(self) -> None:
        if self._room.disk_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    # processes

    def fork(self) -> int:
        self._room.io("fork")
        return self._kernel.fork()

    def waitpid(self, pid: int, options: int) -> tuple[int, int]:
        return self._kernel.waitpid()

    def kill(self, pid: int, number: int) -> None:
        if number:
            self._room.io(f"signal {number}")
        if not self._kernel.exists(pid):
            raise ProcessLookupError(errno.ESRCH, "no such process")
        self._kernel.signal(pid, number)

    def killpg(self, pid: int, number: int) -> None:
        self.kill(pid, number)

    def getpgid(self, pid: int) -> int:
        return pid

    def getpgrp(self) -> int:
        return self.getpid()

    def setsid(self) -> None:
        pass

    def umask(self, mask: int) -> int:
        return mask

    def pidfd_open(self, pid: int, flags: int = 0) -> int:
        if self._room.living(pid) is None:
            raise ProcessLookupError(errno.ESRCH, "no such process")
        handle = os.open("/dev/null", os.O_RDONLY)
        self._kernel.pidfds[handle] = pid
        self._own(handle)
        return handle

    def _exit(self, code: int) -> None:
        raise Exited


class Signals(_Beside):
    def sigtimedwait(self, numbers: Any, timeout: float) -> Any:
        process = self._room.process()
        if not process.signals:
            self._room.wait(timeout)
        if not process.signals:
            return None
        number, sender = process.signals.pop(0)
        return SimpleNamespace(si_signo=number, si_pid=sender)

    def pthread_sigmask(self, how: int, mask: Any) -> set[int]:
        return set()

    def signal(self, number: int, handler: Any) -> None:
        pass

    def pidfd_send_signal(self, handle: int, number: int) -> None:
        self._room.io(f"signal {number}")
        self._kernel.signal(self._kernel.pidfds[handle], number)


class Fcntl(_Beside):
    def lockf(self, file: Any, operation: int, *more: int) -> None:
        self._take(file if isinstance(file, int) else file.fileno(), operation)

    def flock(self, file: Any, operation: int) -> None:
        self._take(file if isinstance(file, int) else file.fileno(), operation)

    def _take(self, handle: int, operation: int) -> None:
        self._room.io("lock")
        if operation & fcntl.LOCK_UN:
            self._kernel.unlock(handle)
        elif not self._kernel.lock(handle, self._room.process().pid):
            raise BlockingIOError(errno.EAGAIN, "the lock is held")

    def fcntl(self, handle: int, command: int, argument: Any = 0) -> Any:
        if command != fcntl.F_GETLK:
            return fcntl.fcntl(handle, command, argument)
        pid = self._kernel.holder(file_id(handle))
        return _FLOCK.pack(fcntl.F_WRLCK if pid else fcntl.F_UNLCK, 0, 0, 0, pid)


class Select(_Beside):
    def poll(self) -> Any:
        return _Poll(self._room)


class _Poll:
    def __init__(self, room: Room) -> None:
        self._room = room
        self._poll = select.poll()

    def register(self, handle: Any, mask: int) -> None:
        self._poll.register(handle, mask)

    def unregister(self, handle: Any) -> None:
        self._poll.unregister(handle)

    def poll(self, timeout: float) -> list[tuple[int, int]]:
        self._room.current()
        found = self._poll.poll(0)
        if not found and timeout <= 0:
            self._room.polled()
        if not found and timeout > 0:
            self._room.wait(timeout / 1000)
            found = self._poll.poll(0)
        return found


class Secrets(_Beside):
    def choice(self, choices: Any) -> Any:
        return self._room.random.choice(choices)

    def token_hex(self, size: int = 32) -> str:
        return self._room.random.randbytes(size).hex()

    def token_bytes(self, size: int = 32) -> bytes:
        return self._room.random.randbytes(size)

    def token_urlsafe(self, size: int = 32) -> str:
        return self.token_hex(size)


class Shutil(_Beside):
    removed: Callable[[str], None]

    def rmtree(self, path: Any, **more: Any) -> None:
        self._room.io(f"rmtree {os.path.basename(path)}")
        self.removed(os.fspath(path))
        shutil.rmtree(path, **more)


class Threading(_Beside):
    def Event(self) -> Any:
        return _Event(self._room)

    def Lock(self) -> Any:
        return _Lock(self._room)

    RLock = Lock


class _Event:
    def __init__(self, room: Room) -> None:
        self._room = room
        self._set = False
        self._waiting: list[Task] = []

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._room.current()
        self._set = True
        for task in self._waiting:
            self._room.wake(task)

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        task = self._room.current()
        assert task is not None
        if timeout is not None and timeout < 1.0:  # a plane that stands by looks again and again
            timeout = self._room.stretched(task, timeout, self._room.longest_stand_by)
        elif timeout is not None and 5.0 <= timeout < self._room.longest_rest:
            timeout = self._room.stretched(task, timeout, self._room.longest_rest)
        else:
            task.naps = 0
        until = None if timeout is None else self._room.now + round(timeout * SECOND)
        self._waiting.append(task)
        try:
            while not self._set and (until is None or self._room.now < until):
                task.waiting = True
                try:
                    self._room.sleep(3600.0 if until is None else (until - self._room.now) / SECOND)
                finally:
                    task.waiting = False
        finally:
            self._waiting.remove(task)
        return self._set


class _Lock:
    def __init__(self, room: Room) -> None:
        self._room = room
        self._held: Task | None = None
        self._depth = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        task = self._room.current()
        while self._depth and self._held is not task:
            if not blocking:
                return False
            self._room.sleep(0.001)
        self._held, self._depth = task, self._depth + 1
        return True

    def release(self) -> None:
        self._depth -= 1

    def locked(self) -> bool:
        return bool(self._depth)

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()


def _result(room: Room) -> Callable[..., Any]:
    real = concurrent.futures.Future.result

    def result(self: concurrent.futures.Future[Any], timeout: float | None = None) -> Any:
        task = room.current()
        if task is None:
            return real(self, 0)
        until = room.now + round((3600.0 if timeout is None else timeout) * SECOND)
        self.add_done_callback(lambda _: room.wake(task))
        while not self.done() and room.now < until:
            task.waiting = True
            try:
                room.sleep((until - room.now) / SECOND)
            finally:
                task.waiting = False
        return real(self, 0)

    return result


def _boot_id() -> Any:
    """The function that tells which start of the machine this is."""
    from dovetail.engines.local import attempt_files, supervisor

    return getattr(attempt_files, "boot_id", None) or vars(supervisor)["_boot_id"]


@contextmanager
def _threads(room: Room) -> Iterator[None]:
    """A thread that a process of the room starts is a task of this process."""
    tasks: dict[threading.Thread, Task] = {}

    def start(self: threading.Thread) -> None:
        def run() -> None:
            try:
                self.run()
            except Exception as error:
                room.note(f"thread {self.name} ended: {error!r}")

        tasks[self] = room.thread(room.process(), "thread", run)

    def is_alive(self: threading.Thread) -> bool:
        return self in tasks and not tasks[self].run.dead

    def join(self: threading.Thread, timeout: float | None = None) -> None:
        until = room.now + round((3600.0 if timeout is None else timeout) * SECOND)
        while is_alive(self) and room.now < until:
            room.sleep(0.05)

    with (
        patch.object(threading.Thread, "start", start),
        patch.object(threading.Thread, "is_alive", is_alive),
        patch.object(threading.Thread, "join", join),
    ):
        yield


class SteadyTimes:
    """The steady time of each process: the product has one in each, as a global."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._by_pid: dict[int, steady_time.SteadyTime] = {}

    def __getattr__(self, name: str) -> Any:
        pid = self._room.pid()
        if pid not in self._by_pid:
            self._by_pid[pid] = steady_time.SteadyTime(id=f"boot {self._room.boot}")
        return getattr(self._by_pid[pid], name)


@contextmanager
def simulated(
    room: Room, kernel: Kernel, disk: Disk | None, removed: Callable[[str], None]
) -> Iterator[None]:
    """The product's modules use the room in place of the machine, until the context ends.

    With a disk, what is not synced may be lost in a power cut.
    """
    from dovetail.engines.local import doorbell, processes, supervisor, supervisor_process

    shutil_here = Shutil(shutil, room, kernel)
    shutil_here.removed = removed
    modules: dict[Any, Any] = {
        time: Time(time, room, kernel),
        os: Os(os, room, kernel, disk),
        signal: Signals(signal, room, kernel),
        _signal: Signals(_signal, room, kernel),
        fcntl: Fcntl(fcntl, room, kernel),
        select: Select(select, room, kernel),
        secrets: Secrets(secrets, room, kernel),
        threading: Threading(threading, room, kernel),
        shutil: shutil_here,
        subprocess: None,  # whatever starts a program is replaced below; nothing else may
    }

    def start_supervisor(folder: Path) -> None:
        room.io("start a supervisor", 0.06)  # a shell and an interpreter: a tick starts few
        name = kernel.named(str(folder))

        def main() -> None:
            room.io("supervisor starts", 0.3)
            try:
                supervisor.main(str(folder))
            except (ProcessKilled, Exited):
                raise
            except BaseException as error:
                room.note(f"the supervisor failed: {error!r}")

        made = room.spawn(f"supervisor {name}", main)
        made.at_end.append(lambda: kernel.orphaned(made))

    real_ring = doorbell.ring

    def ring(root: str, message: str) -> None:
        kernel.reported(room.process())
        room.io("ring")
        real_ring(root, message)
        for process in list(room.processes.values()):
            if process.name.startswith("plane"):
                kernel.wake(process.pid)

    functions: dict[Any, Any] = {
        supervisor_process.start_supervisor: start_supervisor,
        doorbell.ring: ring,
        processes.descendants: kernel.children,
        processes.all_pids: lambda: list(kernel.jobs),
        processes.session_members: lambda leaders: [p for p in leaders if kernel.start_ticks(p)],
        processes.has_stopped: kernel.has_stopped,
        processes.handles_signal: lambda pid, number: False,
        processes.send_signal: kernel.signal,
        processes.start_ticks: kernel.start_ticks,
        processes.become_subreaper: lambda: None,
        _boot_id(): lambda: f"boot {room.boot}",
        steady_time.boot_id: lambda: f"boot {room.boot}",
        steady_time.STEADY: SteadyTimes(room),
        concurrent.futures.wait: None,
    }
    changed: list[tuple[dict[str, Any], str, Any]] = []
    for name, module in list(sys.modules.items()):
        if not name.startswith(("dovetail.control", "dovetail.engines")) or module is None:
            continue
        if ".api" in name or ".lab" in name:
            continue
        for attribute, value in list(vars(module).items()):
            try:
                new = modules.get(value) or functions.get(value)
            except TypeError:
                continue
            if new is not None:
                changed.append((vars(module), attribute, value))
                vars(module)[attribute] = new
    result = concurrent.futures.Future.result
    concurrent.futures.Future.result = _result(room)  # type: ignore[method-assign]
    try:
        with _threads(room), patch.object(pathlib, "os", modules[os]):
            yield
    finally:
        concurrent.futures.Future.result = result  # type: ignore[method-assign]
        for names, attribute, value in changed:
            names[attribute] = value
