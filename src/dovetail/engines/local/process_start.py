"""Starts the processes of an attempt: all of them or none.

Each process is forked, prepares itself (session, control groups, account, output files) and says that it is
ready. Only when all are ready does the supervisor let them execute the job's command.
"""

from __future__ import annotations

import errno
import os
import select
import time

from dovetail.engines.local import cgroup
from dovetail.engines.local.account_folders import hand_over_checkpoints, hand_over_run_folder
from dovetail.engines.local.attempt_files import (
    ENVIRONMENT,
    PIDS,
    SHORTAGES,
    UNSTARTABLE_CODE,
    one_line,
    stop_order,
)
from dovetail.engines.local.json_files import write_json
from dovetail.engines.local.processes import die_with_parent, start_ticks
from dovetail.engines.local.state_paths import StatePaths

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable
    from typing import Any, NoReturn, TypeVar

    from dovetail.engines.local.attempt_files import LaunchFile, ProcessEntry

    Result = TypeVar("Result")
else:
    import _signal as signal  # `signal` builds enums when it is imported

SECOND = 1_000_000
STOP_CHECK_MS = 1_000  # between two looks for an order to stop while processes get ready
RETRY_SECONDS = 2.0
READY, GO = b"R", b"G"
NOT_RELEASED_CODE = 125  # of a process whose supervisor died before all were ready


class Unstartable(Exception):
    """The attempt cannot be started; the message becomes the detail of its end."""


class StoppedBeforeStart(Exception):
    """An order to stop came before any process was let go; the message is its reason."""


def start_processes(folder: str, launch: LaunchFile, started_at: int, ranks: dict[int, int]) -> None:
    """Start all processes. `ranks` is filled, pid by pid, also if a later process cannot be started."""
    account = _prepared_account(folder, launch)
    for share in launch["groups"]:
        for group, settings in share:
            try:
                cgroup.make(group, settings)
            except OSError as problem:
                raise Unstartable(f"cannot make control group {group}: {problem.strerror}") from problem
    base = {**launch["base"], **_login_variables(account)}
    moment = _time_variables(launch, started_at)
    environments = [{**base, **process["env"], **moment} for process in launch["processes"]]
    paths = StatePaths(folder)
    gate, opener = os.pipe()
    pipes: dict[int, int] = {}  # by pipe on which a process reports (ready, or an error): its rank
    pids = []
    for process in launch["processes"]:
        reading, writing = os.pipe()
        pid = os.fork()
        if not pid:
            os.close(opener)
            _become(paths, launch, process, environments[process["rank"]], account, gate, writing)
        os.close(writing)
        pipes[reading] = process["rank"]
        ranks[pid] = process["rank"]
        pids.append(pid)
    os.close(gate)
    try:
        _await(folder, launch.get("term", 0), pipes, READY)
        entries = [[pid, start_ticks(pid)] for pid in pids]
        retry_on_shortage(lambda: write_json(folder, PIDS, {"processes": entries}, durable=False))
        first = {**environments[0], "PWD": launch["cwd"]}
        retry_on_shortage(lambda: write_json(folder, ENVIRONMENT, first, durable=False))
        os.write(opener, GO * len(pids))
        _await(
            folder, launch.get("term", 0), pipes, b""
        )  # a pipe is closed when its process executes the command
    finally:
        os.close(opener)
        for pipe in pipes:
            os.close(pipe)


def retry_on_shortage(work: Callable[[], Result]) -> Result:
    """Repeat until it succeeds: a full disk is temporary."""
    while True:
        try:
            return work()
        except OSError as problem:
            if problem.errno not in SHORTAGES:
                raise
            time.sleep(RETRY_SECONDS)


def _await(folder: str, term: int, pipes: dict[int, int], expected: bytes) -> None:
    """Wait until every process has written what is expected; anything else is an error message.

    Processes that were let go have started: an order to stop ends this wait, and is carried out next.
    """
    waiting = dict(pipes)
    poll = select.poll()
    for pipe in waiting:
        poll.register(pipe, select.POLLIN)
    while waiting:
        for pipe, _ in poll.poll(STOP_CHECK_MS):
            message = os.read(pipe, 4096)
            if message != expected:
                raise Unstartable(
                    message.decode(errors="replace") or f"process {waiting[pipe]} did not start"
                )
            poll.unregister(pipe)
            del waiting[pipe]
        if waiting and (order := stop_order(folder, term)) is not None:
            if not expected:
                return
            raise StoppedBeforeStart(order["why"])


def _prepared_account(folder: str, launch: LaunchFile) -> Any:
    """The account to run as, if not the plane's own. It gets access to the folders that it needs."""
    name = launch["account"]
    if not name:
        return None
    import pwd  # noqa: PLC0415

    try:
        account = pwd.getpwnam(name)
    except (KeyError, ValueError):
        raise Unstartable(f"no account is named {name!r} on this machine") from None
    if os.geteuid() != 0 and account.pw_uid != os.geteuid():
        raise Unstartable(f"only a plane that runs as root can run jobs as {name!r}")
    if os.geteuid() == 0:
        hand_over_run_folder(folder, account.pw_uid, account.pw_gid)
        if launch["own_checkpoints"]:
            hand_over_checkpoints(folder, account.pw_uid, account.pw_gid)
    return account


def _login_variables(account: Any) -> dict[str, str]:
    """The variables that a login would set."""
    if account is None:
        return {}
    name, shell = account.pw_name, account.pw_shell or "/bin/sh"
    return {"HOME": account.pw_dir, "USER": name, "LOGNAME": name, "SHELL": shell}


def _time_variables(launch: LaunchFile, started_at: int) -> dict[str, str]:
    """The variables that are known only at the start."""
    env = {"DOVETAIL_STARTED_AT": f"{started_at / SECOND:.6f}"}
    if launch["time_limit"] is not None:
        deadline = (started_at + launch["time_limit"]) / SECOND
        env["DOVETAIL_DEADLINE"] = f"{deadline:.3f}"
        if launch["slurm_names"]:
            env["SLURM_JOB_END_TIME"] = str(int(deadline))
    return env


def _become(
    paths: StatePaths,
    launch: LaunchFile,
    process: ProcessEntry,
    env: dict[str, str],
    account: Any,
    gate: int,
    ready: int,
) -> NoReturn:
    """In the forked process: prepare, report to `ready`, wait at `gate`, execute the job's command."""
    step = "cannot prepare the process"
    supervisor = os.getppid()
    try:
        os.setsid()
        for group, _ in launch["groups"][process["share"]]:
            step = f"cannot enter control group {group}"
            cgroup.join(group)
        null = os.open("/dev/null", os.O_RDONLY)
        out = -1
        if process["own_output"]:
            step = f"cannot open {process['output']!r}"
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
            out = retry_on_shortage(lambda: os.open(process["output"], flags, 0o640))
        if account is not None and os.geteuid() == 0:
            step = f"cannot run as {account.pw_name!r}"
            os.initgroups(account.pw_name, account.pw_gid)
            os.setgid(account.pw_gid)
            os.setuid(account.pw_uid)
            if not os.access(paths.run, os.W_OK | os.X_OK):
                step = f"{account.pw_name!r} cannot reach {paths.run!r}; each folder above it needs o+x"
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        if launch["checkpoint_dir"]:
            step = f"cannot make the checkpoint folder {launch['checkpoint_dir']!r}"
            if not launch["own_checkpoints"]:
                _refuse_private(launch["checkpoint_dir"], paths)
            retry_on_shortage(lambda: os.makedirs(launch["checkpoint_dir"], exist_ok=True))
        workdir = launch["cwd"]
        step = f"cannot enter the workdir {workdir!r}"
        _refuse_private(workdir, paths)
        os.chdir(workdir)
        env["PWD"] = workdir
        if out < 0:
            step = f"cannot open the output file {process['output']!r}"
            out = _open_user_file(process["output"], paths)
        err = out
        if process["error"]:
            step = f"cannot open the error file {process['error']!r}"
            err = _open_user_file(process["error"], paths)
        os.write(ready, READY)
        if not os.read(gate, 1):  # the supervisor died, and this process is not in pids.json
            os._exit(NOT_RELEASED_CODE)
        command = launch["argv"]
        step = f"cannot run {command[0]!r}"
        for target, source in enumerate((null, out, err)):
            os.dup2(source, target)
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        die_with_parent(signal.SIGKILL)  # not earlier: a change of the account undoes it
        if os.getppid() != supervisor:  # it died before that
            os._exit(NOT_RELEASED_CODE)
        _execute(command, env)
    except BaseException as problem:
        text = problem.strerror if isinstance(problem, OSError) and problem.strerror else str(problem)
        try:
            os.write(ready, one_line(f"{step}: {text}").encode(errors="replace"))
        finally:
            os._exit(UNSTARTABLE_CODE)
    os._exit(UNSTARTABLE_CODE)


def _refuse_private(path: str, paths: StatePaths) -> None:
    """A path of the user must not lead into the state folder, except into the job's own `run` folder."""
    if paths.private(path):
        raise PermissionError(errno.EPERM, "it lies in the state folder of the plane; name another")


def _open_user_file(file: str, paths: StatePaths) -> int:
    """Open an output file that the user named. A pipe without a reader is refused rather than waited for."""
    _refuse_private(file, paths)
    if os.path.dirname(file):
        os.makedirs(os.path.dirname(file), exist_ok=True)
    handle = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_NOCTTY, 0o644)
    os.set_blocking(handle, True)
    return handle


def _execute(command: list[str], env: dict[str, str]) -> None:
    """Like `os.execvpe`; the error says that the command is not in the PATH of the job."""
    if "/" in command[0]:
        os.execve(command[0], command, env)
    problem: OSError = FileNotFoundError(errno.ENOENT, "not found in PATH")
    for folder in env.get("PATH", os.defpath).split(":"):
        try:
            os.execve(os.path.join(folder or ".", command[0]), command, env)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except PermissionError as refused:
            problem = refused
    raise problem
