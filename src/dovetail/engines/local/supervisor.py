"""The program that runs one attempt from its start to its end, also when the plane dies meanwhile.

`python -I -S -c ... FOLDER` reads `launch.json` in the attempt's folder, starts the job's processes, stops
them when that is ordered or their time is over, and writes `exit.json` (see attempt_files.py for all
files).

Any number of supervisors may be started for one attempt. One that finds the lock held by another ends at
once. One that finds `started.json` but no `exit.json` follows a supervisor that died: it kills the job's
remaining processes and reports the attempt as `lost`, unless `ended.json` tells that the job had ended by
itself. The job's first processes die with their supervisor; the others are found then.

Thousands of supervisors may run at once. Hence each imports few and cheap modules of the standard library,
and of ours only those that do the same. All are imported at the start: the package may be replaced by a
newer version while the job runs.

An attempt is resized by a restart within it: the first processes are told to stop as for any other stop, and
when no process is left, they are started again on the new devices. If they end by themselves before they are
told, or say that the job is finished, the attempt has ended. If the supervisor dies meanwhile, the attempt is
lost as always, and holds no device. So a resize is complete, or there is no attempt.
"""

# ruff: noqa: SIM105  (contextlib costs too much to import)

from __future__ import annotations

import fcntl
import os
import sys
import time

from dovetail.engines.local import cgroup
from dovetail.engines.local.attempt_files import (
    ENDED,
    EXIT,
    FINISHED,
    LAUNCH,
    LOCK,
    RESIZED,
    RUN,
    SHORTAGES,
    STARTED,
    STOP,
    SUPERVISOR_LOG,
    UNSTARTABLE_CODE,
    attempt_name,
    boot_id,
    living_leaders,
    one_line,
    read_ended,
    read_exit,
    read_launch,
    read_resize,
    read_started,
    resized_number,
    since_boot_us,
    stop_order,
    wall_clock_us,
)
from dovetail.engines.local.doorbell import ring
from dovetail.engines.local.json_files import (
    Unreadable,
    drop_space,
    keep_space,
    write_json,
    write_json_at,
    write_json_to_space,
)
from dovetail.engines.local.output_limit import OutputLimit
from dovetail.engines.local.process_start import (
    SECOND,
    StoppedBeforeStart,
    Unstartable,
    retry_on_shortage,
    start_processes,
)
from dovetail.engines.local.processes import (
    all_pids,
    become_subreaper,
    descendants,
    handles_signal,
    has_stopped,
    send_signal,
    session_members,
)
from dovetail.model.formats import duration

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from typing import TextIO

    from dovetail.engines.local.attempt_files import (
        EndedFile,
        ExitFile,
        LaunchFile,
        ResizeFile,
        StartedFile,
        StopFile,
    )
else:
    import _signal as signal  # `signal` builds enums when it is imported

STOP_CHECK = 1.0  # seconds between two looks at the output and for stop.json, in case a signal was lost
HELPER_GRACE = 1.0  # seconds for helper processes that outlive the job's first processes
KILL_TIMEOUT = 60.0  # seconds to wait for killed processes to end
OTHERS_TIMEOUT = 10.0  # seconds for another supervisor of the same attempt to end
FREEZE_TIMEOUT = 0.5  # seconds to wait for processes to be suspended
KILLED_CODE = 128 + signal.SIGKILL
TERMINATED_CODE = 128 + signal.SIGTERM
SIGNALS = {getattr(signal, name): name for name in dir(signal) if name[:3] == "SIG" and name[3] != "_"}


# In place of a launch.json that cannot be read.
NOTHING: LaunchFile = {
    "argv": [],
    "base": {},
    "processes": [],
    "shares": [],
    "groups": [],
    "cwd": "",
    "checkpoint_dir": "",
    "own_checkpoints": False,
    "account": "",
    "time_limit": None,
    "warning": 0,
    "grace": 0,
    "stop_signal": int(signal.SIGTERM),
    "slurm_names": False,
    "output_limit": 0,
    "term": 0,
}


class Supervisor:
    """One attempt, from the lock to `exit.json`."""

    def __init__(self, folder: str, launch: LaunchFile, lock: int = -1) -> None:
        self.folder = folder
        self.lock = lock  # the open file
        self.launch = launch
        self.term = launch["term"]  # orders of older terms are refused
        self.groups: list[str] = [group for share in self.launch["groups"] for group, _ in share]
        files = [process["output"] for process in launch["processes"] if process["own_output"]]
        self.output = OutputLimit(files, launch["output_limit"])
        self.output_seen = 0.0  # when its size was last looked at
        self.started_at = wall_clock_us()
        self.started_monotonic = time.monotonic()
        self.started_since_boot = since_boot_us()  # 0: not known
        self.ranks: dict[int, int] = {}  # by pid: the job's first processes that still run
        self.failure: tuple[int, str] | None = None  # exit code and description of the first failure
        # Why the job is made to end; "" while it runs: stopped, timeout, lost, failed, helpers or resizing.
        self.ending = ""
        self.why = ""  # the same, as users read it
        self.kill_at: float | None = None
        self.killed = False
        self.stop_seen = -1  # `at` of the stop order that is being followed
        self.warned = False
        self.end_noted = False
        self.resized = resized_number(folder)  # the number of the last resize that is complete

    # --- from start to end -----------------------------------------------------------------------------

    def run(self) -> None:
        """Start the job and watch it until no process of it is left."""
        if (order := stop_order(self.folder, self.term)) is not None:
            self._end_unstarted(order["why"])
            return
        started: StartedFile = {
            "at": self.started_at,
            "boot": boot_id(),
            "pid": os.getpid(),
            "since_boot": self.started_since_boot,
        }
        retry_on_shortage(lambda: keep_space(self.folder, EXIT))
        retry_on_shortage(lambda: write_json(self.folder, STARTED, started))
        if not self._start(self._resize_order()):
            return
        while True:
            while self._watch():
                if self._is_removed():  # the plane has no other way to end it
                    self._kill_all()
                    self._remove_groups(self.groups)
                    return
            if self.ending != "resizing" or descendants():
                break
            if os.path.lexists(os.path.join(self.folder, FINISHED)):
                self.ending = ""  # its work was done before it stopped
                break
            if not self._start(self._resize_order()):
                return
        self.output.enforce()
        code, cause, detail = self._verdict()
        if left := descendants():
            detail += f"; these could not be killed: {_listed(left)}"
        if not self._is_removed():
            self.end(code, cause, detail)

    def _start(self, order: ResizeFile | None) -> bool:
        """Start the processes; with an order to resize those of the order. False if the attempt has ended."""
        again = self.ending == "resizing"
        self.ending, self.why, self.kill_at = "", "", None
        self.killed, self.failure, self.end_noted = False, None, False
        if order is not None:
            self._follow(order)
        try:
            start_processes(self.folder, self.launch, self.started_at, self.ranks)
        except StoppedBeforeStart as stopped:
            self._kill_all()
            if again:
                self.end(TERMINATED_CODE, "stopped", f"told to stop ({stopped})")
            else:
                self._end_unstarted(str(stopped))
            return False
        except (Unstartable, OSError) as problem:
            self._kill_all()
            self.end(UNSTARTABLE_CODE, "unstartable", one_line(problem))
            return False
        if order is not None:
            self._confirm(order)
        return True

    def recover(self, started: StartedFile | None, problem: str = "its supervisor died") -> None:
        """Follow a supervisor that died. A job without a supervisor is not left running.

        If the dead supervisor saw the first processes end by themselves, that is the end of the job.
        """
        ended = read_ended(self.folder)
        if (order := self._resize_order()) is not None:  # some of its processes may have been started
            self._follow(order)
        if started is not None:
            self.started_at = started["at"]
            self.started_since_boot = started["since_boot"]
        if started is not None and started["boot"] != boot_id():
            self.started_since_boot = 0
            detail = "the machine was restarted while it ran"
        else:
            detail = self._kill_left_behind(problem)
        if ended is not None:
            self.end(ended["code"], ended["cause"], ended["detail"])
        else:
            self.end(KILLED_CODE, "lost", detail)

    def _kill_left_behind(self, problem: str) -> str:
        """Kill the processes that a dead supervisor has left; returns the end of the attempt in words."""
        began = time.monotonic()
        while (left := self._left_behind()) and time.monotonic() < began + KILL_TIMEOUT:
            if self._others() and time.monotonic() < began + OTHERS_TIMEOUT:
                time.sleep(0.05)
                continue
            for group in self.groups:
                cgroup.kill(group)
            for pid in left:
                send_signal(pid, signal.SIGKILL)
            time.sleep(0.02)
        if left:
            return f"{problem}, and these could not be killed: {_listed(left)}"
        return f"{problem}; its remaining processes were killed"

    def end(self, code: int, cause: str, detail: str) -> None:
        """Write `exit.json`, however long that takes: until then the attempt counts as running."""
        left = [group for group in self.groups if not cgroup.remove(group)]
        found: ExitFile = {
            "code": code,
            "cause": cause,
            "detail": one_line(detail),
            "started_at": self.started_at,
            "ended_at": max(wall_clock_us(), self.started_at),
            "finished": os.path.lexists(os.path.join(self.folder, FINISHED)),
            "lasted": max(since_boot_us() - self.started_since_boot, 0) if self.started_since_boot else 0,
        }
        retry_on_shortage(lambda: self._write_end(found))
        self._ring()
        self._remove_groups(left)

    def _write_end(self, found: ExitFile) -> None:
        """On a full disk the end goes to the space that was kept for it."""
        try:
            write_json(self.folder, EXIT, found)
        except OSError as problem:
            if problem.errno not in SHORTAGES or not write_json_to_space(self.folder, EXIT, found):
                raise
        drop_space(self.folder, EXIT)

    def _end_unstarted(self, why: str) -> None:
        self.end(TERMINATED_CODE, "stopped", f"told to stop before its command ran ({why})")

    def _remove_groups(self, left: list[str]) -> None:
        """Remove control groups whose last process was still exiting. The end is reported by then."""
        until = time.monotonic() + KILL_TIMEOUT
        while left and time.monotonic() < until:
            left = [group for group in left if not cgroup.remove(group, 1.0)]
        if left:
            with _opened_log(self.folder) as log:
                log.write(f"control groups could not be removed: {' '.join(left)}\n")

    # --- watching --------------------------------------------------------------------------------------

    def _watch(self) -> bool:
        """Sleep until something happens, and act on it. False when no process of the job is left."""
        received = signal.sigtimedwait([signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP], self._pause())
        none_left = self._reap()
        self._note_end(exit_follows=none_left)
        if none_left:
            return False  # it ended before any order that has come meanwhile
        order = stop_order(self.folder, self.term)
        if order is not None and order["at"] != self.stop_seen:
            self.stop_seen = order["at"]
            if self.ending == "resizing":  # it was told to stop already
                self._show_to_job(order)
                self._stop_for_good("stopped", order["why"], order["grace"])
            elif not self.ending:
                self._ask_to_end("stopped", order["why"], order["grace"], order)
            elif self.kill_at is not None:  # the job is ending already; the new order may leave less time
                self._show_to_job(order)
                self.kill_at = min(self.kill_at, time.monotonic() + order["grace"] / SECOND)
        elif (
            received is not None
            and received.si_signo == signal.SIGTERM
            and stop_order(self.folder, 0) is None  # an order of an older term is refused
            and self.ending in ("", "resizing")
        ):
            why = f"its supervisor got SIGTERM from process {received.si_pid}"
            if self.ending == "resizing":
                self._stop_for_good("lost", why, self.launch["grace"])
            else:
                self._ask_to_end("lost", why, self.launch["grace"])
        now = time.monotonic()
        if now >= self.output_seen + STOP_CHECK:
            self.output.enforce()
            self.output_seen = now
        if not self.ending:
            self._check_time_limit(now)
        if not self.ending and self.failure and self.ranks:
            self._ask_to_end("failed", "", self.launch["grace"])
        if not self.ending and self.ranks and (resize := self._resize_order()) is not None:
            self._resize(resize)
        if not self.ranks and self.ending == "resizing" and self.kill_at is not None:
            self.kill_at = min(self.kill_at, now + HELPER_GRACE)
        if not self.ranks and self.ending in ("", "failed"):  # only helper processes are left
            if not self.ending:
                self._ask_to_end("helpers", "", int(HELPER_GRACE * SECOND))
            elif self.kill_at is not None:
                self.kill_at = min(self.kill_at, now + HELPER_GRACE)
                self.ending = "helpers"
        if self.kill_at is not None and now >= self.kill_at:
            self.killed = self.killed or self.ending in ("stopped", "timeout", "lost")
            self._kill()
            return now < self.kill_at + KILL_TIMEOUT
        return True

    def _resize_order(self) -> ResizeFile | None:
        """The last order to resize, unless it is complete. One that cannot be read resizes nothing."""
        try:
            order = read_resize(self.folder, self.term)
        except Unreadable:
            return None
        return None if order is None or order["number"] <= self.resized else order

    def _resize(self, order: ResizeFile) -> None:
        """Tell the processes to stop, so that they can be started again; or go on if nothing changes."""
        if order["shares"] == self.launch["shares"]:
            self._confirm(order)
        else:
            self._ask_to_end("resizing", "its devices change", self.launch["grace"])

    def _follow(self, order: ResizeFile) -> None:
        """Have the processes, devices and control groups of an order from now on."""
        launch: LaunchFile = {
            **self.launch,
            "shares": order["shares"],
            "processes": order["processes"],
            "groups": order["groups"],
        }
        self.launch = launch
        self.groups += [name for share in order["groups"] for name, _ in share if name not in self.groups]
        files = [process["output"] for process in launch["processes"] if process["own_output"]]
        self.output = OutputLimit(files, launch["output_limit"])

    def _confirm(self, order: ResizeFile) -> None:
        self.resized = order["number"]
        retry_on_shortage(lambda: write_json(self.folder, RESIZED, {"number": self.resized}))
        self._ring()

    def _stop_for_good(self, ending: str, why: str, grace: int) -> None:
        """Processes that were told to stop, so as to be started again, are not started again."""
        self.ending, self.why = ending, why
        until = time.monotonic() + grace / SECOND
        self.kill_at = until if self.kill_at is None else min(self.kill_at, until)

    def _ring(self) -> None:
        """Tell the engine to look at this attempt."""
        above, epoch = os.path.split(self.folder)
        root, job = os.path.split(above)
        ring(root, attempt_name(job, epoch))

    def _pause(self) -> float:
        """Seconds until something is due."""
        now = time.monotonic()
        due = now + STOP_CHECK
        if self.kill_at is not None:
            due = min(due, self.kill_at if self.kill_at > now else now + 0.02)
        limit = self.launch["time_limit"]
        if limit is not None and not self.ending:
            next_moment = limit if self.warned else self._warning_after(limit)
            due = min(due, self.started_monotonic + next_moment / SECOND)
        return max(due - now, 0.0)

    def _warning_after(self, limit: int) -> int:
        """When the job is warned of its time limit, in microseconds after its start."""
        return max(limit - self.launch["warning"], limit // 2)

    def _check_time_limit(self, now: float) -> None:
        limit = self.launch["time_limit"]
        if limit is None or not self.ranks:
            return
        spent = (now - self.started_monotonic) * SECOND
        if spent >= limit:
            self._ask_to_end(
                "timeout", f"over its time limit of {duration(limit / SECOND)}", self.launch["grace"]
            )
        elif spent >= self._warning_after(limit) and not self.warned:
            self.warned = True
            for pid in descendants():
                if handles_signal(pid, signal.SIGUSR1):  # the signal would kill other processes
                    send_signal(pid, signal.SIGUSR1)

    def _ask_to_end(self, ending: str, why: str, grace: int, order: StopFile | None = None) -> None:
        """Send the stop signal to all processes of the job, and set the time to kill them."""
        if ending in ("stopped", "timeout", "lost", "resizing") and self._have_all_ended():
            ending, why, grace = "helpers", "", int(HELPER_GRACE * SECOND)
            self._note_end()
        elif order is not None:  # not earlier: a job that saw the order would seem to end by itself
            self._show_to_job(order)
        self.ending, self.why = ending, why
        self.kill_at = time.monotonic() + grace / SECOND
        process_groups = set()
        for pid in descendants():
            try:
                process_groups.add(os.getpgid(pid))
            except OSError:
                pass
        for process_group in process_groups - {os.getpgrp()}:
            # A suspended process gets the first signal when the second resumes it.
            for number in (self.launch["stop_signal"], signal.SIGCONT):
                try:
                    os.killpg(process_group, number)
                except OSError:
                    pass

    def _have_all_ended(self) -> bool:
        """Whether the first processes have ended by themselves; if so, the end of the job is theirs.

        They are suspended before the look, or one could end between the look and the stop signal. That signal
        is sent at once, and resumes them.
        """
        for pid in self.ranks:
            send_signal(pid, signal.SIGSTOP)
        until = time.monotonic() + FREEZE_TIMEOUT
        while time.monotonic() < until and not all(map(has_stopped, self.ranks)):
            time.sleep(0.001)
        self._reap()
        return not self.ranks

    def _note_end(self, exit_follows: bool = False) -> None:
        """Once the first processes have ended by themselves, their end counts, whatever comes later.

        The note survives a power cut too. If `exit.json` is written at once, its sync is enough.
        """
        if self.ranks or self.end_noted or self.ending not in ("", "failed", "helpers"):
            return
        self.end_noted = True
        code, cause, detail = self._verdict()
        note: EndedFile = {"code": code, "cause": cause, "detail": one_line(detail)}
        try:
            write_json(self.folder, ENDED, note, durable=not exit_follows)
        except OSError:  # a full disk: exit.json has its space
            pass

    def _show_to_job(self, order: StopFile) -> None:
        """Copy an order to stop into the folder of the job. The plane does not read the copy."""
        try:
            handle = os.open(
                os.path.join(self.folder, RUN), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            )
            try:
                write_json_at(handle, STOP, order, 0o644, durable=False)
            finally:
                os.close(handle)
        except OSError:  # the job also gets a signal
            pass

    def _reap(self) -> bool:
        """Collect processes that have ended. True if none is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return True
            if not pid:
                return False
            rank = self.ranks.pop(pid, None)
            if rank is not None and status and self.failure is None:
                self.failure = self._failure(rank, status)

    def _failure(self, rank: int, status: int) -> tuple[int, str]:
        processes = self.launch["processes"]
        process = "it" if len(processes) == 1 else f"process {rank} on {processes[rank]['node']}"
        if os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            return 128 + number, f"{process} was killed by {SIGNALS.get(number, f'signal {number}')}"
        return os.WEXITSTATUS(status), f"{process} exited with code {os.WEXITSTATUS(status)}"

    def _verdict(self) -> tuple[int, str, str]:
        """Exit code, cause and detail of a job that has ended."""
        code, detail = self.failure or (0, "")
        killed = f", killed after {self._grace_text()}" if self.killed else ""
        if self.ending == "stopped":
            return code, "stopped", f"told to stop ({self.why}){killed}"
        if self.ending in ("timeout", "lost"):
            return code, self.ending, f"{self.why}{killed}"
        if self.ending == "resizing":  # some of its processes cannot be killed
            return KILLED_CODE, "lost", "it was stopped to get other devices"
        if code and any(map(cgroup.ran_out_of_memory, self.groups)):
            return KILLED_CODE, "oom", f"over its memory limit: {detail}"
        return code, "exited", detail

    def _grace_text(self) -> str:
        order = stop_order(self.folder, self.term) if self.ending == "stopped" else None
        return duration((order or self.launch)["grace"] / SECOND)

    def _is_removed(self) -> bool:
        """Whether the folder of the attempt was removed, perhaps made again by an engine that noticed."""
        try:
            found = os.stat(os.path.join(self.folder, LOCK), follow_symlinks=False)
        except FileNotFoundError:
            return self.lock >= 0
        except OSError:
            return False
        return self.lock >= 0 and not os.path.samestat(found, os.fstat(self.lock))

    # --- killing ---------------------------------------------------------------------------------------

    def _kill(self) -> None:
        for group in self.groups:
            cgroup.kill(group)
        for pid in descendants():
            send_signal(pid, signal.SIGKILL)

    def _kill_all(self) -> None:
        """Kill all processes, without asking them to stop."""
        until = time.monotonic() + KILL_TIMEOUT
        while not self._reap() and time.monotonic() < until:
            self._kill()
            signal.sigtimedwait([signal.SIGCHLD], 0.05)

    def _others(self) -> set[int]:
        """Other supervisors of this attempt. One lives on if the folder was removed, and ends its job."""
        words, name = b"\0" + os.fsencode(self.folder) + b"\0", b"dovetail.engines.local.supervisor"
        lines = {pid: _proc_file(pid, "cmdline") for pid in all_pids() if pid != os.getpid()}
        return {pid for pid, line in lines.items() if line.endswith(words) and name in line}

    def _left_behind(self) -> set[int]:
        """Processes of an earlier supervisor: by control group, by session, or by their DOVETAIL_RUN_DIR."""
        found = self._others()
        found |= {pid for group in self.groups for pid in cgroup.members(group)}
        found |= set(session_members(living_leaders(self.folder)))
        variable = b"\0DOVETAIL_RUN_DIR=" + os.fsencode(os.path.join(self.folder, RUN)) + b"\0"
        for pid in all_pids():
            if pid != os.getpid() and variable in b"\0" + _proc_file(pid, "environ"):  # a zombie has none
                found.add(pid)
        return found


def _proc_file(pid: int, name: str) -> bytes:
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read()
    except OSError:
        return b""


def _opened_log(folder: str) -> TextIO:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    return open(os.open(os.path.join(folder, SUPERVISOR_LOG), flags, 0o600), "a", encoding="utf-8")


def _belongs_to_this_account(folder: str) -> bool:
    """Whether no other account can have written here what this one would follow."""
    owners = {os.stat(part, follow_symlinks=False).st_uid for part in (folder, os.path.dirname(folder))}
    return owners == {os.geteuid()}


def _listed(pids: set[int] | list[int]) -> str:
    return " ".join(map(str, sorted(pids)))


def main(folder: str) -> None:
    try:
        os.setsid()
    except PermissionError:  # this process leads a session already
        pass
    signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())  # signals are waited for
    os.umask(0o022)
    if not _belongs_to_this_account(folder):
        return
    lock = os.open(os.path.join(folder, LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return  # another supervisor runs
    try:
        become_subreaper()
        _supervise(folder, lock)
    except BaseException:
        import traceback  # noqa: PLC0415

        with _opened_log(folder) as log:
            traceback.print_exc(file=log)
        raise


def _supervise(folder: str, lock: int) -> None:
    """Run the attempt, or end it if it was started before. A file that is wrong ends it with the reason."""
    was_started = os.path.lexists(os.path.join(folder, STARTED))
    problem, started, launch = "", None, NOTHING
    try:
        if read_exit(folder) is not None:
            return
    except Unreadable as wrong:
        problem, was_started = f"its {EXIT} cannot be read: {wrong}", True
    try:
        started = read_started(folder)
    except Unreadable as wrong:
        problem = problem or f"its {STARTED} cannot be read: {wrong}"
    try:
        launch = read_launch(folder)
    except Unreadable as wrong:
        problem = problem or f"its {LAUNCH} cannot be read: {wrong}"
    supervisor = Supervisor(folder, launch, lock)
    if was_started:
        supervisor.recover(started, problem or "its supervisor died")
    elif problem:
        supervisor.end(UNSTARTABLE_CODE, "unstartable", problem)
    else:
        supervisor.run()


if __name__ == "__main__":
    main(sys.argv[1])
