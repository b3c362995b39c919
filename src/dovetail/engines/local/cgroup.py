"""Control groups: the kernel's limits on memory and CPU, and its list of the processes in a group.

This module works on groups that exist or are to be made; cgroup_limits.py finds out where that is possible.
Every supervisor imports this module, so it uses only the cheapest parts of the standard library.
"""

# ruff: noqa: SIM105  (contextlib costs more to import than all of this)

from __future__ import annotations

import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

SIGKILL = 9


def make(group: str, settings: Iterable[tuple[str, str]]) -> None:
    """Make a group and write its settings. A setting that the kernel may not offer is marked by `?`."""
    try:
        os.mkdir(group)
    except FileExistsError:
        pass
    for name, value in settings:
        if name.startswith("?"):
            try:
                write_setting(os.path.join(group, name[1:]), value)
            except OSError:
                pass
        else:
            write_setting(os.path.join(group, name), value)


def join(group: str) -> None:
    """Put this process into a group."""
    write_setting(os.path.join(group, "cgroup.procs"), str(os.getpid()))


def members(group: str) -> list[int]:
    """The pids of the processes in a group."""
    try:
        return [int(pid) for pid in read_setting(os.path.join(group, "cgroup.procs")).split()]
    except (OSError, ValueError):
        return []


def ran_out_of_memory(group: str) -> bool:
    """Whether the kernel killed a process of the group because the group was out of memory."""
    for name in ("memory.events", "memory.oom_control"):  # v2, v1
        try:
            lines = read_setting(os.path.join(group, name)).splitlines()
        except OSError:
            continue
        for line in lines:
            key, _, count = line.partition(" ")
            if key == "oom_kill":
                return int(count) > 0
    return False


def kill(group: str) -> None:
    """Kill all processes in a group."""
    try:
        write_setting(os.path.join(group, "cgroup.kill"), "1")
        return
    except OSError:  # v1, or a kernel before 5.14
        pass
    for pid in members(group):
        try:
            os.kill(pid, SIGKILL)
        except OSError:
            pass


def remove(group: str, timeout: float = 2.0) -> bool:
    """Kill the processes in a group and remove it. False if that takes longer than `timeout` seconds."""
    until = time.monotonic() + timeout
    while True:
        try:
            os.rmdir(group)
            return True
        except FileNotFoundError:
            return True
        except OSError:
            if time.monotonic() > until:
                return False
            kill(group)
            time.sleep(0.01)


def read_setting(file: str) -> str:
    with open(file, encoding="utf-8") as text:
        return text.read()


def write_setting(file: str, value: str) -> None:
    handle = os.open(file, os.O_WRONLY | os.O_CLOEXEC)  # no O_CREAT: the kernel makes these files
    try:
        os.write(handle, value.encode())
    finally:
        os.close(handle)
