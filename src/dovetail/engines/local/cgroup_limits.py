"""Which limits on memory and CPU can be enforced on this machine, and the control groups that enforce them.

There are two generations of control groups. In the first (v1) each controller has a tree of its own. In the
second (v2) there is one tree, a group with children must not contain processes, and controllers must be
enabled for the children. Nothing is assumed: before limits are promised a group is made, its files are
looked for, and the group is removed again. Groups are made below the plane's own, so a limit on the plane
also limits its jobs.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress

from dovetail.engines.local.cgroup import read_setting, write_setting

PERIOD_US = 100_000  # of CPU quotas, the kernel's own default
LEAST_QUOTA_US = 1_000  # the kernel accepts no less
PREFIX = "dovetail-"
TRIAL = PREFIX + "trial-"
LEAF = PREFIX + "plane"  # the group that the plane moves into, as v2 requires


class Limits:
    """Where control groups can be made; if they cannot, why not."""

    __slots__ = ("cpu", "memory", "version", "why")

    def __init__(self, version: int = 0, memory: str = "", cpu: str = "", why: str = "") -> None:
        self.version = version
        self.memory = memory  # the folder to make groups in; "": memory is not limited
        self.cpu = cpu
        self.why = why

    def sentence(self) -> str:
        """Which limits are enforced, as a sentence for people."""
        enforced = [name for name, base in (("memory", self.memory), ("CPU", self.cpu)) if base]
        if len(enforced) == 2:
            return f"Memory and CPU limits are enforced by control groups (v{self.version})."
        if enforced:
            other = "CPU" if enforced == ["memory"] else "memory"
            how = f"control groups v{self.version}"
            return f"Only {enforced[0]} limits are enforced ({how}), {other} is not: {self.why}."
        return f"Memory and CPU limits are not enforced: {self.why}."


# --- detection -----------------------------------------------------------------------------------


def detect(mountinfo: str = "/proc/self/mountinfo", membership: str = "/proc/self/cgroup") -> Limits:
    """The limits that this process can enforce: by v2 if its controllers can be enabled, else by v1."""
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
        base = _own_folder(mounts[""], own.get("", "/"))
        if os.path.basename(base) == LEAF:  # this plane or an earlier one has moved there already
            base = os.path.dirname(base)
        why = _enabled_v2(base)
        if not why:
            return Limits(2, base, base)
        if not mounts.keys() & {"memory", "cpu"}:  # with v1 beside v2, the reasons of v1 count
            whys.append(why)
    found = {}
    for controller, file_name in (("memory", "memory.limit_in_bytes"), ("cpu", "cpu.cfs_quota_us")):
        if controller in mounts:
            base = _own_folder(mounts[controller], own.get(controller, "/"))
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
    """By controller: its mount point, and the group that is mounted there. v2 has the empty name."""
    found: dict[str, tuple[str, str]] = {}
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        fields, kind = left.split(), right.split()
        if len(fields) < 5 or len(kind) < 3:
            continue
        place = (_unescaped(fields[4]), _unescaped(fields[3]))
        if kind[0] == "cgroup2":
            found.setdefault("", place)
        elif kind[0] == "cgroup":
            for option in kind[2].split(","):
                if option in ("memory", "cpu"):
                    found.setdefault(option, place)
    return found


def _membership(text: str) -> dict[str, str]:
    found = {}
    for line in text.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        for controller in controllers.split(","):
            found[controller] = path
    return found


def _unescaped(field: str) -> str:
    """A path of mountinfo without the escapes for blanks."""
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        field = field.replace(code, character)
    return field


def _own_folder(mount: tuple[str, str], own: str) -> str:
    """The plane's own group as a folder, also where only part of the tree is mounted."""
    folder, seen = mount
    if seen != "/" and (own == seen or own.startswith(seen + "/")):
        own = own[len(seen) :]
    if own.startswith("/.."):  # outside of this namespace
        own = "/"
    return folder.rstrip("/") + ("" if own in ("", "/") else own) or "/"


def _trial(base: str, files: Iterable[str]) -> str:
    """Make a group in `base` and remove it. The reason why that fails; empty if it works."""
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
    """Remove the trial groups of planes that were killed during their trial."""
    try:
        names = [name for name in os.listdir(base) if name.startswith(TRIAL)]
    except OSError:
        return
    for name in names:
        if not os.path.exists(f"/proc/{name[len(TRIAL) :]}"):
            with suppress(OSError):
                os.rmdir(os.path.join(base, name))


def _enabled_v2(base: str) -> str:
    """Enable the controllers for the children of `base` (v2). Why that fails; empty if it works."""
    wanted = {"memory", "cpu"}
    try:
        missing = wanted - set(read_setting(os.path.join(base, "cgroup.controllers")).split())
        if missing:
            return f"{base} has no {' and no '.join(sorted(missing))} controller"
        if wanted - set(read_setting(os.path.join(base, "cgroup.subtree_control")).split()):
            _enable_controllers(base)
    except OSError as problem:
        return f"{base} is not delegated to the plane ({problem.strerror}); with systemd, set Delegate=yes"
    return _trial(base, ("memory.max", "cpu.max"))


def _enable_controllers(base: str) -> None:
    """A v2 group can enable controllers only if it has no processes, so the plane moves into a child group.

    Other processes in the group are not moved; with them the kernel refuses.
    """
    control = os.path.join(base, "cgroup.subtree_control")
    try:
        write_setting(control, "+memory +cpu")
    except OSError:
        if {int(pid) for pid in read_setting(os.path.join(base, "cgroup.procs")).split()} - {os.getpid()}:
            raise
        leaf = os.path.join(base, LEAF)
        os.makedirs(leaf, exist_ok=True)
        write_setting(os.path.join(leaf, "cgroup.procs"), str(os.getpid()))
        write_setting(control, "+memory +cpu")


# --- the groups of an attempt on one node -------------------------------------------------------------


def groups(limits: Limits, name: str, cpus: int, memory: int) -> list[tuple[str, list[tuple[str, str]]]]:
    """The groups to make for an attempt on one node, each with its settings (milli-cores, bytes)."""
    made: list[tuple[str, list[tuple[str, str]]]] = []
    quota = max(cpus * PERIOD_US // 1_000, LEAST_QUOTA_US)
    if limits.version == 2:
        settings = []
        if memory:
            settings += [("memory.max", str(memory)), ("?memory.swap.max", "0"), ("?memory.oom.group", "1")]
        if cpus:
            settings.append(("cpu.max", f"{quota} {PERIOD_US}"))
        made.append((os.path.join(limits.memory, PREFIX + name), settings))
    if limits.version == 1 and limits.memory:
        settings = []
        if memory:
            settings += [
                ("memory.limit_in_bytes", str(memory)),
                ("?memory.memsw.limit_in_bytes", str(memory)),
            ]
        made.append((os.path.join(limits.memory, PREFIX + name), settings))
    if limits.version == 1 and limits.cpu and cpus:
        settings = [("cpu.cfs_period_us", str(PERIOD_US)), ("cpu.cfs_quota_us", str(quota))]
        folder = os.path.join(limits.cpu, PREFIX + name)
        if made and made[0][0] == folder:  # both controllers in one tree
            made[0][1].extend(settings)
        else:
            made.append((folder, settings))
    return made
