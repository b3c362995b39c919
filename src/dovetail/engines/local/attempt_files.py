"""The files of one attempt, which the engine and the supervisor share.

    ROOT/JOB/EPOCH/           written by
      launch.json             engine: all that the supervisor needs; durable before a supervisor is started
      logs.json               engine: the output files by rank
      stop.json               engine: the order to stop
      resize.json             engine: the last order to go on with other devices: processes and control groups
      lock                    supervisor: held (fcntl) while it lives, so the kernel knows its pid
      started.json            supervisor: durable before any code of the job runs; an attempt starts once
      pids.json               supervisor: the job's first processes, before they run the job's code
      environment.json        supervisor: the environment of the first process
      ended.json              supervisor: how the first processes ended by themselves; durable while others
                              are left
      exit.json               supervisor: how it ended; durable; no process of the job is left by then
      resized.json            supervisor: the number of the last resize that is complete; durable. No process
                              runs on the devices that were given up
      supervisor.log          supervisor: its own errors
      run/                    job: DOVETAIL_RUN_DIR, and the workdir unless the job names another
      run/stop.json           supervisor: a copy of the order to stop, for the job; not read by the plane
    ROOT/.active/TERM/        engine: an empty file JOB@EPOCH for each attempt that is not forgotten; terms.py
    ROOT/.doorbell            engine: a socket; a supervisor writes JOB@EPOCH to it when its attempt has ended

A job with an account of its own can write to `run` only. Other jobs run under the account of the supervisor
and can write to all of this. So each file is read as hostile: one that is wrong raises `Unreadable`, and
fails its own attempt.

Times are microseconds: of the wall clock for moments (`at`, `started_at`), plain for durations (`grace`).
"""

from __future__ import annotations

import errno
import os
import time

from dovetail.engines.local.json_files import Unreadable, check_range, check_shape, read_json
from dovetail.engines.local.processes import start_ticks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypedDict

    class ProcessEntry(TypedDict):
        """One process of launch.json."""

        rank: int
        share: int  # the number of its task
        node: str
        env: dict[str, str]
        own_output: bool  # the output file lies in the attempt's folder, not where the user said
        output: str
        error: str  # "": errors go to the output file

    class LaunchFile(TypedDict):
        """launch.json, as far as a supervisor reads it."""

        argv: list[str]
        base: dict[str, str]  # variables of the plane's environment that are passed on
        processes: list[ProcessEntry]
        shares: list[dict[str, Any]]  # contract.NodeShare, by number
        groups: list[list[tuple[str, list[tuple[str, str]]]]]  # by share: control groups and their settings
        cwd: str
        checkpoint_dir: str
        own_checkpoints: bool  # it is the folder that the plane makes for this job
        account: str
        time_limit: int | None
        warning: int
        grace: int
        stop_signal: int
        slurm_names: bool
        output_limit: int  # bytes of all output files that the supervisor makes; 0: no limit
        term: int  # in which the start was ordered

    class StartedFile(TypedDict):
        at: int
        boot: str  # boot id of the machine
        pid: int  # of the supervisor
        since_boot: int  # the same moment as `at`, by a clock that cannot be set

    class StopFile(TypedDict):
        why: str
        grace: int
        at: int
        term: int

    class ResizeFile(TypedDict):
        """resize.json: what takes the place of the same fields of launch.json."""

        number: int
        term: int
        shares: list[dict[str, Any]]
        processes: list[ProcessEntry]
        groups: list[list[tuple[str, list[tuple[str, str]]]]]

    class EndedFile(TypedDict):
        code: int
        cause: str
        detail: str

    class ExitFile(TypedDict):
        """exit.json: the fields of `contract.Exit`."""

        code: int
        cause: str
        detail: str
        started_at: int
        ended_at: int
        finished: bool
        lasted: int


LAUNCH = "launch.json"
LOGS = "logs.json"
STOP = "stop.json"
RESIZE = "resize.json"
RESIZED = "resized.json"
LOCK = "lock"
STARTED = "started.json"
PIDS = "pids.json"
ENVIRONMENT = "environment.json"
ENDED = "ended.json"
EXIT = "exit.json"
SUPERVISOR_LOG = "supervisor.log"
RUN = "run"
FINISHED = "run/finished"  # made by a job to say that its work is done
REPORTS = "run/reports.jsonl"
ACTIVE = ".active"
CHECKPOINTS = "checkpoints"  # in the state folder, beside ROOT: a folder for each job

UNSTARTABLE_CODE = 127  # exit code of an attempt that could not be started
SHORTAGES = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ENOMEM)  # of the machine, and temporary


UNREADABLE_GRACE = 10_000_000  # microseconds to stop if the order does not tell
LARGEST_LAUNCH = 1 << 28  # bytes: the environment is repeated for each process
LARGEST_SMALL = 1 << 16
LATEST = 1 << 53  # microseconds: moments and durations beyond this are nonsense
LONGEST_TEXT = 2_000
CAUSES = frozenset({"exited", "stopped", "timeout", "oom", "lost", "unstartable"})
_PROCESS_SHAPE = {
    "rank": int,
    "share": int,
    "node": str,
    "env": {str: str},
    "own_output": bool,
    "output": str,
    "error": str,
}
_SHARE_SHAPE = {"node": str, "devices": [str], "cpus": int, "memory": int}
_LAUNCH_SHAPE = {
    "argv": [str],
    "base": {str: str},
    "processes": [_PROCESS_SHAPE],
    "shares": [_SHARE_SHAPE],
    "groups": [[list]],
    "cwd": str,
    "checkpoint_dir": str,
    "own_checkpoints": bool,
    "account": str,
    "time_limit": (int, type(None)),
    "warning": int,
    "grace": int,
    "stop_signal": int,
    "slurm_names": bool,
    "output_limit": int,
    "term": int,
}
_LATER_FIELDS = {
    "own_checkpoints": False,
    "output_limit": 0,
    "term": 0,
    "shares": [],
}  # not in files of earlier versions
_RESIZE_SHAPE = {
    "number": int,
    "term": int,
    "shares": [_SHARE_SHAPE],
    "processes": [_PROCESS_SHAPE],
    "groups": [[list]],
}
_STOP_SHAPE = {"why": str, "grace": int, "at": int, "term": int}
_EXIT_SHAPE = {
    "code": int,
    "cause": str,
    "detail": str,
    "started_at": int,
    "ended_at": int,
    "finished": bool,
    "lasted": int,
}


def read_launch(folder: str) -> LaunchFile:
    content = read_json(os.path.join(folder, LAUNCH), LARGEST_LAUNCH)
    if content is None:
        raise Unreadable("it is gone")
    check_shape(content, {})
    for name, default in _LATER_FIELDS.items():
        content.setdefault(name, default)
    check_shape(content, _LAUNCH_SHAPE)
    launch: LaunchFile = content
    if not launch["argv"] or not launch["processes"]:
        raise Unreadable("it names nothing to run")
    for name, span in (("warning", launch["warning"]), ("grace", launch["grace"])):
        check_range(span, 0, LATEST, name)
    check_range(launch["time_limit"] or 0, 0, LATEST, "time_limit")
    check_range(launch["stop_signal"], 1, 64, "stop_signal")
    _check_processes(launch)
    return launch


def _check_processes(found: LaunchFile | ResizeFile) -> None:
    for rank, process in enumerate(found["processes"]):
        check_range(process["rank"], rank, rank, "rank")
        check_range(process["share"], 0, len(found["groups"]) - 1, "share")
    for share in found["groups"]:
        for group in share:
            check_shape(group[:1], [str], "a control group")
            check_shape(group[1:], [[[str]]], "the settings of a control group")
            check_range(len(group), 2, 2, "groups")
            for setting in group[1]:
                check_range(len(setting), 2, 2, "groups")


def read_resize(folder: str, since: int = 0) -> ResizeFile | None:
    """The last order to resize, if it was given in this term or a newer one."""
    order: ResizeFile | None = read_json(os.path.join(folder, RESIZE), LARGEST_LAUNCH)
    if order is None:
        return None
    check_shape(order, _RESIZE_SHAPE)
    if not order["processes"]:
        raise Unreadable("it names nothing to run")
    for name in ("number", "term"):
        check_range(order[name], 0, LATEST, name)
    _check_processes(order)
    return order if order["term"] >= since else None


def resized_number(folder: str) -> int:
    """The number of the last resize that is complete; -1 if there is none, or if that cannot be read."""
    try:
        found = read_json(os.path.join(folder, RESIZED), LARGEST_SMALL)
        if found is None:
            return -1
        check_shape(found, {"number": int})
    except Unreadable:
        return -1
    number: int = found["number"]
    return number


def read_started(folder: str) -> StartedFile | None:
    """When and by which supervisor it was started; None before that."""
    started: StartedFile | None = read_json(os.path.join(folder, STARTED), LARGEST_SMALL)
    if started is not None:
        check_shape(started, {})
        started.setdefault("since_boot", 0)  # not in files of earlier versions
        check_shape(started, {"at": int, "boot": str, "pid": int, "since_boot": int})
        for name in ("at", "since_boot"):
            check_range(started[name], 0, LATEST, name)
    return started


def read_stop(folder: str, since: int = 0) -> StopFile | None:
    """The order to stop, if one was given in this term or a newer one."""
    order: StopFile | None = read_json(os.path.join(folder, STOP), LARGEST_SMALL)
    if order is None:
        return None
    check_shape(order, {})
    order.setdefault("term", 0)  # not in files of earlier versions
    check_shape(order, _STOP_SHAPE)
    for name in ("grace", "at", "term"):
        check_range(order[name], 0, LATEST, name)
    return order if order["term"] >= since else None


def stop_order(folder: str, since: int) -> StopFile | None:
    """The order to stop, for a supervisor. One that cannot be read is followed too: it was an order once."""
    try:
        return read_stop(folder, since)
    except Unreadable as problem:
        why = f"its {STOP} cannot be read: {problem}"
        return {"why": why, "grace": UNREADABLE_GRACE, "at": 0, "term": since}


def read_ended(folder: str) -> EndedFile | None:
    """How the first processes ended by themselves; None if they did not, or if that cannot be read."""
    try:
        found: EndedFile | None = read_json(os.path.join(folder, ENDED), LARGEST_SMALL)
        if found is None:
            return None
        check_shape(found, {"code": int, "cause": str, "detail": str})
        check_range(found["code"], 0, 255, "code")
    except Unreadable:
        return None
    return found if found["cause"] in ("exited", "oom") else None


def read_exit(folder: str) -> ExitFile | None:
    """How the attempt ended; None while it runs."""
    found: ExitFile | None = read_json(os.path.join(folder, EXIT), LARGEST_SMALL)
    if found is None:
        return None
    check_shape(found, {})
    found.setdefault("lasted", 0)  # not in files of earlier versions
    check_shape(found, _EXIT_SHAPE)
    check_range(found["code"], 0, 255, "code")
    for name in ("started_at", "ended_at", "lasted"):
        check_range(found[name], 0, LATEST, name)
    if found["cause"] not in CAUSES:
        raise Unreadable("'cause' is not one of the known ones")
    return {
        "code": found["code"],
        "cause": found["cause"],
        "detail": one_line(found["detail"], LONGEST_TEXT),
        "started_at": found["started_at"],
        "ended_at": found["ended_at"],
        "finished": found["finished"],
        "lasted": found["lasted"],
    }


def living_leaders(folder: str) -> set[int]:
    """The first processes of an attempt that still live. A reused pid is recognised by its start time."""
    try:
        content = read_json(os.path.join(folder, PIDS))
        if content is None:
            return set()
        check_shape(content, {"processes": [[int]]})
    except Unreadable:
        return set()
    entries = [entry for entry in content["processes"] if len(entry) == 2]
    return {pid for pid, ticks in entries if 1 < pid < 1 << 31 and ticks and start_ticks(pid) == ticks}


def one_line(text: object, longest: int = 1_000) -> str:
    """A text that can be printed and stored: without line ends, control characters and lone surrogates."""
    plain = str(text).encode(errors="replace").decode()
    return " ".join("".join(c if c.isprintable() else " " for c in plain).split())[:longest]


def attempt_name(job: str, epoch: int | str) -> str:
    """How an attempt is called in `.active` and on the doorbell."""
    return f"{job}@{epoch}"


def wall_clock_us() -> int:
    return time.time_ns() // 1_000


def since_boot_us() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000


def boot_id() -> str:
    """What tells this run of the machine from the one before."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""
