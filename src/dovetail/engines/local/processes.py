"""Processes as /proc shows them: identity, descendants, sessions, signals.

Every supervisor imports this module, so it uses only the cheapest parts of the standard library.
"""

# ruff: noqa: SIM105  (contextlib costs too much to import)

from __future__ import annotations

import os

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def start_ticks(pid: int) -> int:
    """When a process started, in clock ticks; 0 if it does not run.

    Pids are reused. The pair (pid, start ticks) identifies one process.
    """
    fields = _stat_fields(pid)
    return int(fields[19]) if fields and fields[0] != "Z" else 0


def has_stopped(pid: int) -> bool:
    """Whether a process has ended, or is suspended."""
    fields = _stat_fields(pid)
    return not fields or fields[0] in "TtZX"


def _stat_fields(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on; the name before it may contain any character."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].decode().split()
    except (OSError, ValueError):
        return []


def descendants() -> list[int]:
    """All descendants of this process. A subreaper keeps its orphaned descendants, so none is missed."""
    found: list[int] = []
    todo = [os.getpid()]
    while todo:
        pid = todo.pop()
        try:
            for thread in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                    todo += map(int, file.read().split())
        except FileNotFoundError:
            if pid == os.getpid():  # a kernel without these files
                return _descendants_by_parent()
        except OSError:
            pass
        if pid != os.getpid():
            found.append(pid)
    return found


def _descendants_by_parent() -> list[int]:
    children: dict[int, list[int]] = {}
    for pid in all_pids():
        if fields := _stat_fields(pid):
            children.setdefault(int(fields[1]), []).append(pid)
    found: list[int] = []
    todo = children.get(os.getpid(), [])
    while todo:
        pid = todo.pop()
        found.append(pid)
        todo += children.get(pid, [])
    return found


def all_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def session_members(leaders: set[int]) -> list[int]:
    """All living processes in the sessions or process groups of these leaders."""
    found = []
    for pid in all_pids():
        fields = _stat_fields(pid)
        if not fields or fields[0] in "ZX":
            continue
        if leaders & {pid, int(fields[2]), int(fields[3])}:  # the process itself, its group, its session
            found.append(pid)
    return found


def handles_signal(pid: int, number: int) -> bool:
    """Whether a process catches or blocks a signal, so that the signal would not kill it."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            lines = file.read().split(b"\n")
    except OSError:
        return False
    bit = 1 << (number - 1)
    return any(line[:7] in (b"SigCgt:", b"SigBlk:") and int(line[7:], 16) & bit for line in lines)


def send_signal(pid: int, number: int) -> None:
    """Send a signal; a process that has ended is not an error."""
    try:
        os.kill(pid, number)
    except OSError:
        pass


def become_subreaper() -> None:
    """Adopt orphaned descendants."""
    if _prctl(PR_SET_CHILD_SUBREAPER, 1):
        raise OSError("orphaned processes cannot be adopted: prctl refused")


def die_with_parent(number: int) -> None:
    """Get this signal when the parent dies. A later change of the account would undo it."""
    if _prctl(PR_SET_PDEATHSIG, number):
        raise OSError("the process cannot be tied to its supervisor: prctl refused")


def _prctl(option: int, value: int) -> int:
    """`ctypes` would cost more to import than the rest of the start-up of a supervisor."""
    try:
        import _ctypes  # noqa: PLC0415

        call = _ctypes.dlsym(_ctypes.dlopen(None, os.RTLD_NOW), "prctl")  # type: ignore[arg-type]
        return int(_ctypes.call_function(call, (option, value, 0, 0, 0)))
    except (AttributeError, TypeError):  # an interpreter with other internals
        import ctypes  # noqa: PLC0415

        return int(ctypes.CDLL(None).prctl(option, value, 0, 0, 0))
