"""Control groups: the kernel's way to keep a share to its memory and CPU, and to know what belongs to it.

There are two generations. In the first (v1) each controller has a tree of its own; in the second (v2) there
is one tree, a group that has children must not hold processes itself, and controllers must be handed down.
Nothing is assumed: a group is made, its files are looked for, and it is removed again, before limits are
promised. Groups are made below the plane's own, so that whatever bounds the plane bounds its jobs.

Only the standard library and cheap to import: every supervisor does.
"""

# ruff: noqa: SIM105  (contextlib costs more to import than all of this)

from __future__ import annotations

import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

PERIOD_US = 100_000  # of CPU quotas, the kernel's own default
LEAST_QUOTA_US = 1_000  # the kernel takes no less
PREFIX = "dovetail-"
TRIAL = PREFIX + "trial-"
LEAF = PREFIX + "plane"  # where v2 wants the plane itself to be
KILL = 9


class Limits:
    """Where groups can be made, and if they cannot, why."""

    __slots__ = ("cpu", "memory", "version", "why")

    def __init__(self, version: int = 0, memory: str = "", cpu: str = "", why: str = "") -> None:
        self.version = version
        self.memory = memory  # the folder to make groups in; "": memory is not limited
        self.cpu = cpu
        self.why = why

    def sentence(self) -> str:
        """What of a share is enforced, for people."""
        kept = [name for name, base in (("memory", self.memory), ("CPU", self.cpu)) if base]
        if len(kept) == 2:
            return f"Memory and CPU limits are enforced by control groups (v{self.version})."
        if kept:
            other = "CPU" if kept == ["memory"] else "memory"
            how = f"control groups v{self.version}"
            return f"Only {kept[0]} limits are enforced ({how}), {other} is not: {self.why}."
        return f"Memory and CPU limits are not enforced: {self.why}."


# --- finding out -----------------------------------------------------------------------------------


def detect(mountinfo: str = "/proc/self/mountinfo", membership: str = "/proc/self/cgroup") -> Limits:
    """What this process may do here: first v2 with its controllers handed down, then v1."""
    try:
        with open(mountinfo, encoding="utf-8", errors="surrogateescape") as file:
            mounts = _mounts(file.read())
        with open(membership, encoding="utf-8", errors="surrogateescape") as file:
            own = _membership(file.read())
    except OSError as problem:
        return Limits(why=f"{problem.filename} cannot be read ({problem.strerror})")
    if not mounts:
        return Limits(why="no control groups are mounted")
    whys = []
    if "" in mounts:
        base = _below(mounts[""], own.get("", "/"))
        if os.path.basename(base) == LEAF:  # this plane, or the one before it, has moved down already
            base = os.path.dirname(base)
        why = _second(base)
        if not why:
            return Limits(2, base, base)
        if not mounts.keys() & {"memory", "cpu"}:  # else v2 only stands beside v1, and v1's reasons count
            whys.append(why)
    found = {}
    for controller, file_name in (("memory", "memory.limit_in_bytes"), ("cpu", "cpu.cfs_quota_us")):
        if controller in mounts:
            base = _below(mounts[controller], own.get(controller, "/"))
            why = _trial(base, (file_name,))
            if why:
                whys.append(why)
            else:
                found[controller] = base
        elif "" not in mounts:
            whys.append(f"the {controller} controller is not mounted")
    if len(found) == 2:
        whys.clear()
    return Limits(1 if found else 0, found.get("memory", ""), found.get("cpu", ""), "; ".join(whys))


def _mounts(mountinfo: str) -> dict[str, tuple[str, str]]:
    """Controller to (the folder it is mounted on, the group seen there); v2 stands under the empty name."""
    found: dict[str, tuple[str, str]] = {}
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        fields, kind = left.split(), right.split()
        if len(fields) < 5 or len(kind) < 3:
            continue
        place = (_plain(fields[4]), _plain(fields[3]))
        if kind[0] == "cgroup2":
            found.setdefault("", place)
        elif kind[0] == "cgroup":
            for option in kind[2].split(","):
                if option in ("memory", "cpu"):
                    found.setdefault(option, place)
    return found


def _membership(text: str) -> dict[str, str]:
    own = {}
    for line in text.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        for controller in controllers.split(","):
            own[controller] = path
    return own


def _plain(field: str) -> str:
    """A path as it was before the kernel hid its blanks."""
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        field = field.replace(code, character)
    return field


def _below(mount: tuple[str, str], own: str) -> str:
    """The plane's own group as a folder, also where only part of the tree is mounted."""
    folder, seen = mount
    if seen != "/" and (own == seen or own.startswith(seen + "/")):
        own = own[len(seen) :]
    if own.startswith("/.."):  # outside of what this namespace shows
        own = "/"
    return folder.rstrip("/") + ("" if own in ("", "/") else own) or "/"


def _trial(base: str, files: Iterable[str]) -> str:
    """Why no useful group can be made in `base`; empty if one can."""
    group = os.path.join(base, TRIAL + str(os.getpid()))
    _clear_trials(base)
    try:
        os.mkdir(group)
    except OSError as problem:
        return f"{base} is not writable ({problem.strerror})"
    try:
        missing = [name for name in files if not os.access(os.path.join(group, name), os.W_OK)]
    finally:
        os.rmdir(group)
    return f"{base} does not offer {', '.join(missing)}" if missing else ""


def _clear_trials(base: str) -> None:
    """A plane that was killed in the middle of its trial left it behind."""
    try:
        names = [name for name in os.listdir(base) if name.startswith(TRIAL)]
    except OSError:
        return
    for name in names:
        if not os.path.exists(f"/proc/{name[len(TRIAL) :]}"):
            try:
                os.rmdir(os.path.join(base, name))
            except OSError:
                pass


def _second(base: str) -> str:
    """Make `base` hand its controllers down (v2); why it does not, or nothing if it does."""
    wanted = {"memory", "cpu"}
    try:
        missing = wanted - set(_read(os.path.join(base, "cgroup.controllers")).split())
        if missing:
            return f"{base} has no {' and no '.join(sorted(missing))} controller"
        if wanted - set(_read(os.path.join(base, "cgroup.subtree_control")).split()):
            _hand_down(base)
    except OSError as problem:
        return f"{base} is not delegated to the plane ({problem.strerror}); with systemd, set Delegate=yes"
    return _trial(base, ("memory.max", "cpu.max"))


def _hand_down(base: str) -> None:
    """A v2 group hands controllers down only when it is empty, so the plane moves into a leaf.

    Only the plane: others that live in this group were not asked, and then the kernel refuses.
    """
    control = os.path.join(base, "cgroup.subtree_control")
    try:
        _write(control, "+memory +cpu")
    except OSError:
        if {int(pid) for pid in _read(os.path.join(base, "cgroup.procs")).split()} - {os.getpid()}:
            raise
        leaf = os.path.join(base, LEAF)
        os.makedirs(leaf, exist_ok=True)
        _write(os.path.join(leaf, "cgroup.procs"), str(os.getpid()))
        _write(control, "+memory +cpu")


# --- the groups of one share ------------------------------------------------------------------------


def groups(limits: Limits, name: str, cpus: int, memory: int) -> list[tuple[str, list[tuple[str, str]]]]:
    """The groups to make for one share, each with what to write into its files (milli-cores, bytes)."""
    made: list[tuple[str, list[tuple[str, str]]]] = []
    quota = max(cpus * PERIOD_US // 1_000, LEAST_QUOTA_US)
    if limits.version == 2:
        files = []
        if memory:
            files += [("memory.max", str(memory)), ("?memory.swap.max", "0"), ("?memory.oom.group", "1")]
        if cpus:
            files.append(("cpu.max", f"{quota} {PERIOD_US}"))
        made.append((os.path.join(limits.memory, PREFIX + name), files))
    if limits.version == 1 and limits.memory:
        files = []
        if memory:
            files += [("memory.limit_in_bytes", str(memory)), ("?memory.memsw.limit_in_bytes", str(memory))]
        made.append((os.path.join(limits.memory, PREFIX + name), files))
    if limits.version == 1 and limits.cpu and cpus:
        files = [("cpu.cfs_period_us", str(PERIOD_US)), ("cpu.cfs_quota_us", str(quota))]
        folder = os.path.join(limits.cpu, PREFIX + name)
        if made and made[0][0] == folder:  # both controllers in one tree
            made[0][1].extend(files)
        else:
            made.append((folder, files))
    return made


def make(group: str, files: Iterable[tuple[str, str]]) -> None:
    """Make a group with its limits. A file that may be missing is marked by `?`."""
    try:
        os.mkdir(group)
    except FileExistsError:
        pass
    for name, value in files:
        if name.startswith("?"):
            try:
                _write(os.path.join(group, name[1:]), value)
            except OSError:
                pass
        else:
            _write(os.path.join(group, name), value)


def join(group: str) -> None:
    """Put this process into a group."""
    _write(os.path.join(group, "cgroup.procs"), str(os.getpid()))


def members(group: str) -> list[int]:
    """Who is in it."""
    try:
        return [int(pid) for pid in _read(os.path.join(group, "cgroup.procs")).split()]
    except (OSError, ValueError):
        return []


def ran_out_of_memory(group: str) -> bool:
    """Whether the kernel killed something in it for want of memory."""
    for name in ("memory.events", "memory.oom_control"):  # v2, v1
        try:
            lines = _read(os.path.join(group, name)).splitlines()
        except OSError:
            continue
        for line in lines:
            key, _, count = line.partition(" ")
            if key == "oom_kill":
                return int(count) > 0
    return False


def kill(group: str) -> None:
    """Kill all that is in it."""
    try:
        _write(os.path.join(group, "cgroup.kill"), "1")
        return
    except OSError:  # v1, or a kernel before 5.14
        pass
    for pid in members(group):
        try:
            os.kill(pid, KILL)
        except OSError:
            pass


def remove(group: str, patience: float = 2.0) -> bool:
    """Kill what is left in it and remove it."""
    until = time.monotonic() + patience
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


def _read(file: str) -> str:
    with open(file, encoding="utf-8") as text:
        return text.read()


def _write(file: str, value: str) -> None:
    handle = os.open(file, os.O_WRONLY | os.O_CLOEXEC)  # no O_CREAT: these files are the kernel's
    try:
        os.write(handle, value.encode())
    finally:
        os.close(handle)
