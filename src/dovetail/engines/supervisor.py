"""The process that stands by one attempt from its start to its end, whatever becomes of the plane.

`python -I -S -c ... FOLDER` reads `launch.json` in the attempt's folder and leaves there, in this order:

    lock             held (fcntl) for as long as it lives; the kernel knows its pid
    started.json     durable, before anything of the job runs: from here on it is never started again
    pids.json        who they are, before they may run the job's own code
    environment.json what the first of them got
    exit.json        durable: how it ended; nothing of the job is left by then

A supervisor that finds `started.json` and no `exit.json` follows one that died: it kills what is left and
writes the cause `lost`. One that finds the lock taken leaves at once. So a plane may send as many as it
likes.

The job has `run/` (its DOVETAIL_RUN_DIR, and its workdir if it named none); the rest is the supervisor's.

Thousands of these may run at once, hence the standard library's quickest parts only: `json` and `signal`
proper would double the start-up (they build regular expressions and enums), so their C halves are used.
"""

# ruff: noqa: SIM105  (so would contextlib)

from __future__ import annotations

import _json
import errno
import fcntl
import os
import select
import sys
import time

from dovetail.engines import cgroup

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable
    from typing import Any, NoReturn, TypeVar

    Result = TypeVar("Result")
else:
    import _signal as signal

SECOND = 1_000_000
LOOK = 1.0  # seconds between two looks for stop.json, in case the signal was lost
LEFTOVERS = 1.0  # seconds that helpers get which outlive the job's own processes
PATIENCE = 60.0  # seconds to wait for killed processes to be gone
SUBREAPER = 36  # prctl: orphans of the job become children of the supervisor
NOT_LAUNCHED = 125
UNSTARTABLE = 127
FROM_MEMORY = 137
TOLD = 128 + signal.SIGTERM
SHORTAGE = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ENOMEM)  # of the machine, for a while
SIGNALS = {getattr(signal, name): name for name in dir(signal) if name[:3] == "SIG" and name[3] != "_"}


# --- files -----------------------------------------------------------------------------------------


class _Reading:
    """What the C scanner of `json` asks its decoder for."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = float
    array_hook = None


def read_json(file: str) -> Any:
    """The value in a file; None if it is not there."""
    try:
        with open(file, encoding="utf-8") as text:
            return _json.make_scanner(_Reading)(text.read().strip(), 0)[0]  # type: ignore[arg-type]
    except (FileNotFoundError, StopIteration):
        return None


def as_json(value: Any) -> str:
    """A value as text, as `json.dumps` would give it."""
    if isinstance(value, str):
        return _json.encode_basestring_ascii(value)
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, dict):
        return "{" + ", ".join(f"{as_json(str(k))}: {as_json(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(as_json, value)) + "]"
    return repr(value)


def write_json(folder: str, name: str, value: Any, mode: int = 0o600, durable: bool = True) -> None:
    """The whole file or none, also after a power cut."""
    rough = os.path.join(folder, f".{name}.{os.getpid()}")
    handle = os.open(rough, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        os.fchmod(handle, mode)
        data = memoryview((as_json(value) + "\n").encode())
        while data:
            data = data[os.write(handle, data) :]
        if durable:
            os.fsync(handle)
    finally:
        os.close(handle)
    os.rename(rough, os.path.join(folder, name))
    if durable:
        sync(folder)


def sync(folder: str) -> None:
    """Make the names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def now_us() -> int:
    return time.time_ns() // 1_000


# --- processes -------------------------------------------------------------------------------------


def born(pid: int) -> int:
    """When a process started, in ticks; 0 if there is none. With its pid this names it for good."""
    fields = _stat(pid)
    return int(fields[19]) if fields and fields[0] != "Z" else 0


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on (its name may hold anything, hence from the right)."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].decode().split()
    except (OSError, ValueError):
        return []


def descendants() -> list[int]:
    """All that descend from this process; being a subreaper it loses none of them."""
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
    for name in os.listdir("/proc"):
        if name.isdigit() and (fields := _stat(int(name))):
            children.setdefault(int(fields[1]), []).append(int(name))
    found: list[int] = []
    todo = children.get(os.getpid(), [])
    while todo:
        pid = todo.pop()
        found.append(pid)
        todo += children.get(pid, [])
    return found


def sessions_of(leaders: set[int]) -> list[int]:
    """All living processes in the sessions or groups that these lead."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or not (fields := _stat(int(name))) or fields[0] in "ZX":
            continue
        if leaders & {int(name), int(fields[2]), int(fields[3])}:  # itself, its group, its session
            found.append(int(name))
    return found


def waits_for(pid: int, number: int) -> bool:
    """Whether a process does something about a signal rather than die of it: catches or collects it."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            lines = file.read().split(b"\n")
    except OSError:
        return False
    bit = 1 << (number - 1)
    return any(line[:7] in (b"SigCgt:", b"SigBlk:") and int(line[7:], 16) & bit for line in lines)


def send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except OSError:
        pass


def adopt_orphans() -> None:
    """PR_SET_CHILD_SUBREAPER; `ctypes` proper costs more than all the rest of the start-up."""
    try:
        import _ctypes  # noqa: PLC0415

        call = _ctypes.dlsym(_ctypes.dlopen(None, os.RTLD_NOW), "prctl")  # type: ignore[arg-type]
        refused = _ctypes.call_function(call, (SUBREAPER, 1, 0, 0, 0))
    except (AttributeError, TypeError):  # an interpreter whose inside looks different
        import ctypes  # noqa: PLC0415

        refused = ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
    if refused:
        raise OSError("orphans cannot be adopted: prctl refused")


def pids_of(folder: str) -> set[int]:
    """The processes that an attempt began with, as far as they live: same number, same birth."""
    said = read_json(os.path.join(folder, "pids.json")) or {"processes": []}
    return {pid for pid, start in said["processes"] if start and born(pid) == start}


class Unstartable(Exception):
    """Said to people as the attempt's end."""


def patiently(work: Callable[[], Result]) -> Result:
    """Do it, however often that takes: a full disk is emptied by somebody, sooner or later."""
    while True:
        try:
            return work()
        except OSError as problem:
            if problem.errno not in SHORTAGE:
                raise
            time.sleep(2.0)


# --- one attempt -----------------------------------------------------------------------------------


class Attempt:
    """From the lock to `exit.json`."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.launch: dict[str, Any] = read_json(os.path.join(folder, "launch.json")) or {}
        self.groups: list[str] = [group for share in self.launch["groups"] for group, _ in share]
        self.started_at = now_us()
        self.began = time.monotonic()
        self.leaders: dict[int, int] = {}  # pid of each process we started and that runs, its rank
        self.failure: tuple[int, str] | None = None  # the first
        self.cause = ""  # why it is made to end, if it is
        self.why = ""
        self.kill_at: float | None = None
        self.killed = False
        self.stop_seen = 0  # when the order was given that is being followed
        self.warned = False

    # the three ways through

    def recover(self, started: dict[str, Any]) -> None:
        """The supervisor before this one died. What it watched over is not trusted to go on alone."""
        self.started_at = int(started["at"])
        if started.get("boot") != _boot():
            self.end(FROM_MEMORY, "lost", "the machine was restarted while it ran")
            return
        until = time.monotonic() + PATIENCE
        while (left := self._left_behind()) and time.monotonic() < until:
            for pid in left:
                send(pid, signal.SIGKILL)
            time.sleep(0.02)
        detail = "its supervisor died; what was left of it was killed"
        if left:
            detail = f"its supervisor died, and these could not be killed: {' '.join(map(str, sorted(left)))}"
        self.end(FROM_MEMORY, "lost", detail)

    def run(self) -> None:
        if (stop := self._stop_order()) is not None:
            self.end(TOLD, "stopped", f"told to stop before it was started ({stop.get('why', '')})")
            return
        self._write_down("started.json", {"at": self.started_at, "boot": _boot(), "pid": os.getpid()})
        try:
            self._launch()
        except (Unstartable, OSError) as problem:
            self._clear_away()
            if self.cause:
                self.end(TOLD, self.cause, f"told to stop before it was started ({self.why})")
            else:
                self.end(UNSTARTABLE, "unstartable", _one_line(problem))
            return
        while self._goes_on():
            pass
        code, cause, detail = self._verdict()
        if left := descendants():
            detail += f"; these could not be killed: {' '.join(map(str, sorted(left)))}"
        self.end(code, cause, detail)

    def end(self, code: int, cause: str, detail: str) -> None:
        """Write it down, come what may: until then the attempt counts as running."""
        left = [group for group in self.groups if not cgroup.remove(group)]
        said = {
            "code": code,
            "cause": cause,
            "detail": detail,
            "started_at": self.started_at,
            "ended_at": max(now_us(), self.started_at),
            "finished": os.path.lexists(os.path.join(self.folder, "run", "finished")),
        }
        self._write_down("exit.json", said)
        above, epoch = os.path.split(self.folder)
        root, job = os.path.split(above)
        ring(root, f"{job}@{epoch}")
        self._tidy(left)

    def _tidy(self, left: list[str]) -> None:
        """Groups whose last process was still on its way out: nobody waits for these any more."""
        until = time.monotonic() + PATIENCE
        while left and time.monotonic() < until:
            left = [group for group in left if not cgroup.remove(group, 1.0)]
        if left:
            with open(os.path.join(self.folder, "supervisor.log"), "a", encoding="utf-8") as log:
                log.write(f"control groups could not be removed: {' '.join(left)}\n")

    def _write_down(self, name: str, said: dict[str, Any], *, durable: bool = True) -> None:
        patiently(lambda: write_json(self.folder, name, said, durable=durable))

    # starting

    def _launch(self) -> None:
        """Start all processes or none: each gets ready, and only when all are do they run the job's code."""
        launch = self.launch
        account = self._account()
        for share in launch["groups"]:
            for group, files in share:
                try:
                    cgroup.make(group, files)
                except OSError as problem:
                    raise Unstartable(f"no control group {group}: {problem.strerror}") from problem
        base, moment = {**launch["base"], **_person(account)}, self._moment()
        envs = [{**base, **process["env"], **moment} for process in launch["processes"]]
        gate, opener = os.pipe()
        pipes: dict[int, int] = {}  # where each process says that it is ready, or what is wrong; its rank
        pids = []
        for process in launch["processes"]:
            hears, says = os.pipe()
            pid = os.fork()
            if not pid:
                os.close(opener)
                self._become(process, envs[process["rank"]], account, gate, says)
            os.close(says)
            pipes[hears] = process["rank"]
            self.leaders[pid] = process["rank"]
            pids.append(pid)
        os.close(gate)
        try:
            self._hear(pipes, b"R")
            known = [[pid, born(pid)] for pid in pids]
            self._write_down("pids.json", {"processes": known}, durable=False)
            first = {**envs[0], "PWD": launch["cwd"]}
            self._write_down("environment.json", first, durable=False)
            os.write(opener, b"G" * len(pids))
            self._hear(pipes, b"")
        finally:
            os.close(opener)
            for pipe in pipes:
                os.close(pipe)

    def _hear(self, pipes: dict[int, int], good: bytes) -> None:
        """Hear from every process once: that it is ready (R), or by silence that it runs the job's code."""
        waiting = dict(pipes)
        poll = select.poll()
        for pipe in waiting:
            poll.register(pipe, select.POLLIN)
        while waiting:
            for pipe, _ in poll.poll(LOOK * 1000):
                said = os.read(pipe, 4096)
                if said != good:
                    raise Unstartable(
                        said.decode(errors="replace") or f"process {waiting[pipe]} did not start"
                    )
                poll.unregister(pipe)
                del waiting[pipe]
            if waiting and (stop := self._stop_order()) is not None:
                self.cause, self.why = "stopped", str(stop.get("why", ""))
                raise Unstartable("told to stop")

    def _account(self) -> Any:
        """The account to run as, and what of the folder it may use."""
        name, run = self.launch["account"], os.path.join(self.folder, "run")
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
            for folder in (
                self.folder,
                os.path.dirname(self.folder),
                os.path.dirname(os.path.dirname(self.folder)),
            ):
                os.chmod(folder, 0o711)
            os.chown(run, account.pw_uid, account.pw_gid, follow_symlinks=False)
            made = self.launch["checkpoints"]
            if made:
                os.makedirs(made, 0o700, exist_ok=True)
                os.chmod(os.path.dirname(made), 0o711)
                os.chown(made, account.pw_uid, account.pw_gid, follow_symlinks=False)
        return account

    def _moment(self) -> dict[str, str]:
        """What is only known now; nobody else knows it better."""
        launch = self.launch
        env = {"DOVETAIL_STARTED_AT": f"{self.started_at / SECOND:.6f}"}
        if launch["time_limit"] is not None:
            deadline = (self.started_at + launch["time_limit"]) / SECOND
            env["DOVETAIL_DEADLINE"] = f"{deadline:.3f}"
            if launch["slurm_names"]:
                env["SLURM_JOB_END_TIME"] = str(int(deadline))
        return env

    def _become(
        self, process: dict[str, Any], env: dict[str, str], account: Any, gate: int, says: int
    ) -> NoReturn:
        """In the new process: get ready, say so, wait for the others, and become the job's process."""
        step = "cannot prepare the process"
        try:
            os.setsid()
            for group, _ in self.launch["groups"][process["share"]]:
                step = f"cannot enter control group {group}"
                cgroup.join(group)
            nothing = os.open("/dev/null", os.O_RDONLY)
            out = -1
            if process["own_output"]:
                step = f"cannot open {process['output']!r}"
                flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
                out = patiently(lambda: os.open(process["output"], flags, 0o640))
            run = os.path.join(self.folder, "run")
            if account is not None and os.geteuid() == 0:
                step = f"cannot run as {account.pw_name!r}"
                os.initgroups(account.pw_name, account.pw_gid)
                os.setgid(account.pw_gid)
                os.setuid(account.pw_uid)
                if not os.access(run, os.W_OK | os.X_OK):
                    step = f"{account.pw_name!r} cannot reach {run!r}; each folder above it needs o+x"
                    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            if self.launch["checkpoint_dir"]:
                step = f"cannot make the checkpoint folder {self.launch['checkpoint_dir']!r}"
                patiently(lambda: os.makedirs(self.launch["checkpoint_dir"], exist_ok=True))
            workdir = self.launch["cwd"]
            step = f"cannot enter the workdir {workdir!r}"
            os.chdir(workdir)
            env["PWD"] = workdir
            if out < 0:
                step = f"cannot open the output file {process['output']!r}"
                out = _open_log(process["output"])
            err = out
            if process["error"]:
                step = f"cannot open the error file {process['error']!r}"
                err = _open_log(process["error"])
            os.write(says, b"R")
            if not os.read(gate, 1):  # the supervisor is gone, and nobody knows of this process
                os._exit(NOT_LAUNCHED)
            command = self.launch["argv"]
            step = f"cannot run {command[0]!r}"
            for target, source in enumerate((nothing, out, err)):
                os.dup2(source, target)
            for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, [])
            _execute(command, env)
        except BaseException as problem:
            text = problem.strerror if isinstance(problem, OSError) and problem.strerror else str(problem)
            try:
                os.write(says, _one_line(f"{step}: {text}").encode(errors="replace"))
            finally:
                os._exit(UNSTARTABLE)
        os._exit(UNSTARTABLE)

    # watching

    def _goes_on(self) -> bool:
        """Sleep until something happens, and do what it calls for. False when nothing of the job is left."""
        heard = signal.sigtimedwait([signal.SIGCHLD, signal.SIGTERM], self._pause())
        alone = self._reap()
        order = self._stop_order()
        if order is not None and int(order.get("at", 0)) != self.stop_seen:
            self.stop_seen = int(order.get("at", 0))
            if not self.cause:
                self._tell("stopped", str(order.get("why", "")), int(order["grace"]))
            elif self.kill_at is not None:  # it is leaving already, but now there is more of a hurry
                self.kill_at = min(self.kill_at, time.monotonic() + int(order["grace"]) / SECOND)
        elif heard is not None and heard.si_signo == signal.SIGTERM and order is None and not self.cause:
            self._tell(
                "lost", f"its supervisor got SIGTERM from process {heard.si_pid}", self.launch["grace"]
            )
        if alone:
            return False
        now = time.monotonic()
        if not self.cause:
            self._mind_the_time(now)
        if not self.cause and self.failure and self.leaders:
            self._tell("failed", "", self.launch["grace"])
        if not self.leaders and self.cause in ("", "failed"):  # only helpers are left, and nothing to save
            if not self.cause:
                self._tell("over", "", int(LEFTOVERS * SECOND))
            elif self.kill_at is not None:
                self.kill_at = min(self.kill_at, now + LEFTOVERS)
                self.cause = "over"
        if self.kill_at is not None and now >= self.kill_at:
            self.killed = self.killed or self.cause in ("stopped", "timeout", "lost")
            self._kill()
            return now < self.kill_at + PATIENCE
        return True

    def _pause(self) -> float:
        """How long nothing will be due."""
        now = time.monotonic()
        due = now + LOOK
        if self.kill_at is not None:
            due = min(due, self.kill_at if self.kill_at > now else now + 0.02)
        limit = self.launch["time_limit"]
        if limit is not None and not self.cause:
            due = min(due, self.began + (limit if self.warned else self._warning()) / SECOND)
        return max(due - now, 0.0)

    def _warning(self) -> int:
        limit = int(self.launch["time_limit"])
        return max(limit - int(self.launch["warning"]), limit // 2)

    def _mind_the_time(self, now: float) -> None:
        limit = self.launch["time_limit"]
        if limit is None or not self.leaders:
            return
        spent = (now - self.began) * SECOND
        if spent >= limit:
            self._tell("timeout", f"over its time limit of {limit / SECOND:g} s", self.launch["grace"])
        elif spent >= self._warning() and not self.warned:
            self.warned = True
            for pid in descendants():
                if waits_for(pid, signal.SIGUSR1):  # who does not know of it would only die of it
                    send(pid, signal.SIGUSR1)

    def _tell(self, cause: str, why: str, grace: int) -> None:
        """Ask all of the job to leave, and note when to stop asking."""
        self.cause, self.why = cause, why
        self.kill_at = time.monotonic() + grace / SECOND
        own = os.getpgrp()
        told = set()
        for pid in descendants():
            try:
                told.add(os.getpgid(pid))
            except OSError:
                pass
        for group in told - {own}:
            for number in (self.launch["stop_signal"], signal.SIGCONT):  # one that is stopped hears it after
                try:
                    os.killpg(group, number)
                except OSError:
                    pass

    def _reap(self) -> bool:
        """Take note of the dead. True if nobody is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return True
            if not pid:
                return False
            rank = self.leaders.pop(pid, None)
            if rank is not None and status and self.failure is None:
                self.failure = self._failure(rank, status)

    def _failure(self, rank: int, status: int) -> tuple[int, str]:
        processes = self.launch["processes"]
        who = "it" if len(processes) == 1 else f"process {rank} on {processes[rank]['node']}"
        if os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            return 128 + number, f"{who} was killed by {SIGNALS.get(number, f'signal {number}')}"
        return os.WEXITSTATUS(status), f"{who} left with exit code {os.WEXITSTATUS(status)}"

    def _verdict(self) -> tuple[int, str, str]:
        code, detail = self.failure or (0, "")
        late = f", killed after {self._grace_text()}" if self.killed else ""
        if self.cause == "stopped":
            return code, "stopped", f"told to stop ({self.why}){late}"
        if self.cause in ("timeout", "lost"):
            return code, self.cause, f"{self.why}{late}"
        if code and any(map(cgroup.ran_out_of_memory, self.groups)):
            return FROM_MEMORY, "oom", f"over its memory limit: {detail}"
        return code, "exited", detail

    def _grace_text(self) -> str:
        order = self._stop_order() if self.cause == "stopped" else None
        return f"{(order or self.launch)['grace'] / SECOND:g} s"

    def _kill(self) -> None:
        for group in self.groups:
            cgroup.kill(group)
        for pid in descendants():
            send(pid, signal.SIGKILL)

    def _clear_away(self) -> None:
        """Nothing of a start that failed halfway stays."""
        until = time.monotonic() + PATIENCE
        while not self._reap() and time.monotonic() < until:
            self._kill()
            signal.sigtimedwait([signal.SIGCHLD], 0.05)

    def _left_behind(self) -> set[int]:
        """What an earlier supervisor left running: by its groups, its pids, or the folder it was given."""
        found = {pid for group in self.groups for pid in cgroup.members(group)}
        found |= set(sessions_of(pids_of(self.folder)))
        mark = b"\0DOVETAIL_RUN_DIR=" + os.fsencode(os.path.join(self.folder, "run")) + b"\0"
        for name in os.listdir("/proc"):
            if not name.isdigit() or int(name) == os.getpid():
                continue
            try:
                with open(f"/proc/{name}/environ", "rb") as file:  # that of a zombie is empty
                    if mark in b"\0" + file.read():
                        found.add(int(name))
            except OSError:
                pass
        return found

    def _stop_order(self) -> dict[str, Any] | None:
        order = read_json(os.path.join(self.folder, "stop.json"))
        return order if isinstance(order, dict) else None


def _person(account: Any) -> dict[str, str]:
    """What a login would set."""
    if account is None:
        return {}
    name, shell = account.pw_name, account.pw_shell or "/bin/sh"
    return {"HOME": account.pw_dir, "USER": name, "LOGNAME": name, "SHELL": shell}


def _open_log(file: str) -> int:
    """A file the user named. A pipe that nobody reads is refused rather than waited for."""
    if os.path.dirname(file):
        os.makedirs(os.path.dirname(file), exist_ok=True)
    handle = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_NOCTTY, 0o644)
    os.set_blocking(handle, True)
    return handle


def _execute(command: list[str], env: dict[str, str]) -> None:
    """Like execvpe, by the job's own PATH."""
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


def _boot() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def _one_line(problem: object) -> str:
    return " ".join(str(problem).split())[:1000]


def ring(root: str, name: str) -> None:
    """Tell the plane, if there is one. By way of the open folder: a socket's path may not be long."""
    import _socket  # noqa: PLC0415

    try:
        handle = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            bell = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM)
            try:
                bell.sendto(name.encode(), _socket.MSG_DONTWAIT, f"/proc/self/fd/{handle}/.doorbell")
            finally:
                bell.close()
        finally:
            os.close(handle)
    except OSError:
        pass


def main(folder: str) -> None:
    try:
        os.setsid()
    except PermissionError:  # it leads its session already
        pass
    signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())  # they are waited for, not suffered
    os.umask(0o022)
    lock = os.open(os.path.join(folder, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return  # somebody stands by it already
    if os.path.exists(os.path.join(folder, "exit.json")):
        return
    try:
        adopt_orphans()
        attempt = Attempt(folder)
        started = read_json(os.path.join(folder, "started.json"))
        if started is None:
            attempt.run()
        else:
            attempt.recover(started)
    except BaseException:
        import traceback  # noqa: PLC0415

        with open(os.path.join(folder, "supervisor.log"), "a", encoding="utf-8") as log:
            traceback.print_exc(file=log)
        raise


if __name__ == "__main__":
    main(sys.argv[1])
