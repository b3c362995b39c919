"""The local engine: attempts as processes of this machine, each with a supervisor that outlives the plane.

The attempt's folder is the truth (attempt_files.py) and this class only reads it, so a plane that was
restarted knows what the one before it knew. An attempt starts at most once: `launch.json` is complete
before a supervisor is started, and of all supervisors started for an attempt, by this plane or by an
earlier one, the lock lets only one start the job. Of several planes the one with the newest term gives
orders (terms.py).

What lies in the folder is not trusted: a job may run under the account of the plane. A file that is wrong, or
that cannot be written, fails its own attempt, and no method raises for it. On a full disk an attempt is
started when there is space again.
"""

from __future__ import annotations

import fcntl
import logging
import math
import os
import select
import signal as signals
import sys
import time
from collections.abc import Collection
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

from dovetail.engines.contract import (
    AttemptEnd,
    AttemptKey,
    Capabilities,
    Exit,
    Launch,
    NodeShare,
    NodeUp,
    Resized,
    StartStopEngine,
)
from dovetail.engines.local import cgroup_limits, job_output
from dovetail.engines.local.attempt_files import (
    ACTIVE,
    EXIT,
    LAUNCH,
    LOCK,
    RESIZE,
    SHORTAGES,
    STARTED,
    STOP,
    SUPERVISOR_LOG,
    UNSTARTABLE_CODE,
    attempt_name,
    boot_id,
    living_leaders,
    one_line,
    read_exit,
    read_resize,
    read_stop,
    resized_number,
    wall_clock_us,
)
from dovetail.engines.local.attempt_groups import JOB_NAME, remove_leftovers
from dovetail.engines.local.doorbell import NAME as DOORBELL
from dovetail.engines.local.doorbell import Doorbell
from dovetail.engines.local.environment import free_port
from dovetail.engines.local.json_files import Unreadable, write_json
from dovetail.engines.local.launch_file import resize_order, write_launch
from dovetail.engines.local.processes import handles_signal, send_signal, session_members
from dovetail.engines.local.supervisor_process import signal_supervisor, start_supervisor, supervisor_pid
from dovetail.engines.local.terms import Term
from dovetail.model.errors import InputError

SCAN_EVERY = 1.0  # seconds between two scans of all attempts; one that rings is checked immediately
SUPERVISOR_CHECK_EVERY = 4.0  # seconds between two checks whether the supervisor of an attempt lives
MOST_SUPERVISORS = 6  # started for one attempt before the engine gives up
UNRESIZABLE_GRACE = 10_000_000  # microseconds
LARGEST_EPOCH = 1_000_000_000
LONGEST_ERROR = 10_000  # bytes at the end of a supervisor's log that are looked at

log = logging.getLogger("dovetail.engine")


class LocalEngine(StartStopEngine):
    """Attempts as processes of this machine.

    With `resizes` it resizes an attempt by a restart within it: the supervisor stops the processes and
    starts them again on the new devices.
    """

    def __init__(
        self,
        root: Path,
        *,
        passed: Collection[str] = (),
        output_limit: int = 0,
        limits: cgroup_limits.Limits | None = None,
        resizes: bool = False,
    ) -> None:
        """`passed` names variables of the plane's environment that jobs get besides the usual ones.

        `output_limit` is for the output files that the engine makes for an attempt, in bytes; 0: no limit.
        """
        self._root = Path(os.path.abspath(root))
        self._active = self._root / ACTIVE
        self._make_folders()
        self._term = Term(str(self._active))
        self._passed = frozenset(passed)
        self._output_limit = output_limit
        self._limits = limits
        self.capabilities = Capabilities(resize=resizes)
        self._confirmed: list[Resized | NodeUp] = []
        self._resizing: dict[AttemptKey, int] = {}  # the number of the last order, until it is complete
        self._unordered: dict[AttemptKey, tuple[int, tuple[NodeShare, ...]]] = {}  # when the disk has space
        self._leftovers_removed = False
        self._ended: dict[
            AttemptKey, AttemptEnd
        ] = {}  # read from disk, or of attempts that could not be written to disk
        self._unwritten: dict[AttemptKey, Launch] = {}  # to be started when the disk has space
        self._supervisors: dict[AttemptKey, int] = {}  # how many were started
        self._check_at: dict[AttemptKey, float] = {}  # when to check next that a supervisor lives
        self._pids: dict[AttemptKey, int] = {}  # of supervisors that held the lock at the last check
        self._seen: set[AttemptKey] = set()  # all that are not forgotten, as of the last scan
        self._forgotten: set[AttemptKey] = set()  # with a marker that cannot be removed
        self._told: set[tuple[AttemptKey, str]] = set()  # problems that are in the log
        self._ports: dict[AttemptKey, int] = {}
        self._rang: set[AttemptKey] = set()
        self._scanned_at = -math.inf
        self._doorbell: Doorbell | None = None
        self._wake_up = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def close(self) -> None:
        """Close the doorbell. Attempts keep running."""
        if self._doorbell is not None:
            self._doorbell.close()
            self._doorbell = None
        if self._wake_up >= 0:
            os.close(self._wake_up)
            self._wake_up = -1

    def describe_limits(self) -> str:
        """One sentence on whether limits on memory and CPU are enforced, and if not, why."""
        return self._enforced_limits().sentence()

    def folder(self, job: str, epoch: int) -> Path:
        """The folder of an attempt."""
        if not JOB_NAME.fullmatch(job) or epoch < 0:
            raise InputError(
                f"{job!r} attempt {epoch} cannot name a folder; "
                "an id has letters, digits and _ . - only, and no . or - at its beginning"
            )
        return self._root / job / str(epoch)

    # --- leading ------------------------------------------------------------------------------------

    def newest_term(self) -> int:
        return self._term.newest()

    def lead(self, term: int) -> None:
        self._term.begin(term)
        for by_attempt in self._by_attempt():
            by_attempt.clear()  # other planes may have led since
        self._seen.clear()
        self._scanned_at = -math.inf
        if self._doorbell is not None:  # the newest one made receives the messages
            self._doorbell.close()
            self._doorbell = None

    # --- orders -------------------------------------------------------------------------------------

    def start(self, launch: Launch) -> None:
        folder, attempt = self.folder(launch.job, launch.epoch), (launch.job, launch.epoch)
        self._term.check()
        try:
            if not os.path.lexists(folder / LAUNCH):
                self._write(launch, folder)
            self._mark(attempt)  # from here on the attempt exists for every plane
        except (OSError, ValueError) as problem:
            if isinstance(problem, OSError) and problem.errno in SHORTAGES:  # not the fault of the job
                self._warn(attempt, f"it cannot be started yet: {problem.strerror}")
                self._unwritten[attempt] = launch
                return
            self._end(attempt, "unstartable", f"cannot write {folder}: {problem}")
            self.ring()
            return
        self._ended.pop(attempt, None)
        self._unwritten.pop(attempt, None)
        if self._has_ended(attempt, folder):  # the plane does not know how it ended: report it again
            self.ring()
        elif not supervisor_pid(folder):
            self._send_supervisor(attempt, folder)

    def stop(self, job: str, epoch: int, why: str, grace: int) -> None:
        folder = self.folder(job, epoch)
        self._term.check()
        if self._unwritten.pop((job, epoch), None) is not None:
            detail = f"told to stop before its command ran ({why})"
            self._end((job, epoch), "stopped", detail, 128 + signals.SIGTERM)
            self.ring()
            return
        if not os.path.lexists(folder / LAUNCH) or _is_over(folder):
            return
        grace, now, term = max(grace, 0), wall_clock_us(), self._term.number
        try:
            earlier = read_stop(str(folder), term)
        except Unreadable as problem:
            self._warn((job, epoch), f"its {STOP} cannot be read: {problem}")
            earlier = None
        try:
            if earlier is None or now + grace < earlier["at"] + earlier["grace"]:  # else it is as strict
                self._term.write(str(folder), STOP, {"why": why, "grace": grace, "at": now, "term": term})
        except OSError as problem:  # the signal alone stops it too, with the grace that the job asked for
            self._warn((job, epoch), f"its {STOP} cannot be written: {problem.strerror}")
        signal_supervisor(folder, signals.SIGTERM)

    def resize(self, job: str, epoch: int, number: int, shares: tuple[NodeShare, ...]) -> None:
        if not self.capabilities.resize:
            self._refuse("resize running jobs")
        attempt, folder = (job, epoch), self.folder(job, epoch)
        self._term.check()
        self._unordered.pop(attempt, None)
        if (unwritten := self._unwritten.get(attempt)) is not None:  # it starts with these
            self._unwritten[attempt] = replace(unwritten, shares=shares)
            self._confirmed.append(Resized(job, epoch, number))
            self.ring()
            return
        if not os.path.lexists(folder / LAUNCH) or _is_over(folder):
            return
        try:
            last = read_resize(str(folder))
        except Unreadable as problem:
            self._warn(attempt, f"its {RESIZE} cannot be read: {problem}")
            last = None
        if last is not None and number < last["number"]:
            return
        try:
            if last is None or number > last["number"]:
                self._order_resize(attempt, folder, number, shares)
        except Unreadable as problem:  # its supervisor has read the file before, and may go on for long
            self._warn(attempt, f"it cannot be resized, and is stopped: {problem}")
            self.stop(job, epoch, "it cannot be resized: a file of its attempt is wrong", UNRESIZABLE_GRACE)
            return
        except OSError as problem:
            self._warn(attempt, f"its {RESIZE} cannot be written yet: {problem.strerror}")
            self._unordered[attempt] = number, shares
            return
        self._resizing[attempt] = number
        signal_supervisor(folder, signals.SIGHUP)

    def _order_resize(
        self, attempt: AttemptKey, folder: Path, number: int, shares: tuple[NodeShare, ...]
    ) -> None:
        term = self._term.number
        limits = self._enforced_limits()
        order = resize_order(folder, *attempt, number, shares, limits=limits, term=term)
        self._term.write(str(folder), RESIZE, order)

    def confirmations(self) -> list[Resized | NodeUp]:
        if not (self._confirmed or self._resizing or self._unordered) or not self._term.in_force:
            return []  # they are for the plane that leads
        for attempt, (number, shares) in list(self._unordered.items()):
            self.resize(*attempt, number, shares)
        found, self._confirmed = self._confirmed, []
        for attempt, number in list(self._resizing.items()):
            if resized_number(str(self.folder(*attempt))) >= number:
                del self._resizing[attempt]
                found.append(Resized(*attempt, number))
        return found

    def signal(self, job: str, epoch: int, number: int) -> None:
        folder = self.folder(job, epoch)
        self._term.check()
        if _is_over(folder):
            return
        leaders = living_leaders(str(folder))
        if number in (
            signals.SIGUSR1,
            signals.SIGUSR2,
        ):  # they would kill a process that does not handle them
            for pid in session_members(leaders):
                if handles_signal(pid, number):
                    send_signal(pid, number)
            return
        for pid in leaders:
            with suppress(OSError):
                os.killpg(pid, number)

    def forget(self, job: str, epoch: int) -> None:
        attempt = (job, epoch)
        try:
            self._term.unmark(_checked_name(attempt))
        except OSError as problem:
            self._warn(attempt, f"it cannot be forgotten: {problem.strerror}")
            self._forgotten.add(attempt)
        self._seen.discard(attempt)
        for by_attempt in self._by_attempt():
            by_attempt.pop(attempt, None)
        self._told = {told for told in self._told if told[0] != attempt}

    # --- ends of attempts ---------------------------------------------------------------------------

    def poll(self) -> list[AttemptEnd]:
        now = time.monotonic()
        rang, self._rang = self._rang, set()
        if now - self._scanned_at >= SCAN_EVERY:
            self._scanned_at = now
            self._restore_removed()
            for launch in list(self._unwritten.values()):
                self.start(launch)
            due = self._seen
        else:
            due = {attempt for attempt in rang if self._term.has(_checked_name(attempt))}
        for attempt in due - self._ended.keys() - self._unwritten.keys():
            self._look(attempt, now)
        return sorted(
            self._ended.values(), key=lambda report: (report.exit.ended_at, report.job, report.epoch)
        )

    def known(self) -> set[AttemptKey]:
        marked = {attempt for attempt in map(_parsed_name, self._term.names()) if attempt is not None}
        return (marked - self._forgotten) | set(self._ended) | set(self._unwritten)

    def wait(self, timeout: float) -> None:
        if (
            self._doorbell is None
        ):  # made by the process that waits; one that only reads logs must not take it
            self._make_folders()
            self._doorbell = Doorbell(str(self._root))
        poll = select.poll()
        poll.register(self._wake_up, select.POLLIN)
        poll.register(self._doorbell, select.POLLIN)
        ready = {handle for handle, _ in poll.poll(max(timeout, 0.0) * 1000)}
        if self._wake_up in ready:
            with suppress(BlockingIOError):
                os.eventfd_read(self._wake_up)
        found = map(_parsed_name, self._doorbell.messages())
        self._rang |= {attempt for attempt in found if attempt is not None}

    def ring(self) -> None:
        os.eventfd_write(self._wake_up, 1)

    def logs(self, job: str, epoch: int) -> list[Path]:
        """The output files by rank, then the error files: those that exist and may be shown."""
        return job_output.readable_logs(self.folder(job, epoch))

    def open_log(self, job: str, epoch: int, file: Path) -> AbstractContextManager[BinaryIO]:
        """One of the logs, open for reading. A job with an account of its own may show only its own files."""
        return job_output.opened_log(self.folder(job, epoch), file)

    def reports(self, job: str, epoch: int, offset: int) -> tuple[list[dict[str, object]], int]:
        return job_output.reports_from(self.folder(job, epoch), offset)

    # --- supervisors --------------------------------------------------------------------------------

    def _write(self, launch: Launch, folder: Path) -> None:
        attempt = (launch.job, launch.epoch)
        port = self._ports[attempt] = free_port(*attempt, taken=set(self._ports.values()))
        write_launch(
            launch,
            folder,
            port=port,
            limits=self._enforced_limits(),
            term=self._term.number,
            passed=self._passed,
            output_limit=self._output_limit,
        )

    def _enforced_limits(self) -> cgroup_limits.Limits:
        """Called only by a plane that starts jobs: with v2 the detection may move this process."""
        if self._limits is None:
            self._limits = cgroup_limits.detect()
        if not self._leftovers_removed:
            self._leftovers_removed = True
            remove_leftovers(self._root, self._limits)
        return self._limits

    def _make_folders(self) -> None:
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._active.mkdir(mode=0o700, exist_ok=True)

    def _by_attempt(self) -> tuple[dict[AttemptKey, Any], ...]:
        """What is remembered of attempts, besides what is on disk."""
        return (
            self._ended,
            self._unwritten,
            self._supervisors,
            self._check_at,
            self._pids,
            self._ports,
            self._resizing,
            self._unordered,
        )

    def _mark(self, attempt: AttemptKey) -> None:
        """Leave the marker by which every plane knows the attempt."""
        self._term.mark(_checked_name(attempt))
        self._seen.add(attempt)
        self._forgotten.discard(attempt)

    def _restore_removed(self) -> None:
        """Make folders again that were removed while this engine ran, for attempts that it knows.

        If only the marker of an attempt is gone, another plane has forgotten the attempt.
        """
        marked = set() if (all_gone := not self._active.is_dir()) else self.known()
        removed = {
            attempt
            for attempt in self._seen - marked
            if all_gone or not os.path.lexists(self.folder(*attempt) / LAUNCH)
        }
        self._seen = marked | removed
        if not all_gone and not removed:
            return
        log.error("%s was removed, with %d attempts that had not ended", self._root, len(removed))
        self._make_folders()
        if self._doorbell is not None and not os.path.lexists(self._root / DOORBELL):
            self._doorbell.close()
            self._doorbell = Doorbell(str(self._root))
        for attempt in removed - self._ended.keys() - self._unwritten.keys():
            self._restore(attempt)
            self._check_at.pop(attempt, None)

    def _restore(self, attempt: AttemptKey) -> None:
        """Make what a supervisor needs to end an attempt whose folder was removed."""
        folder = self.folder(*attempt)
        try:
            if not os.path.lexists(folder / LAUNCH) and not os.path.lexists(folder / STARTED):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                write_json(str(folder), STARTED, {"at": wall_clock_us(), "boot": boot_id(), "pid": 0})
            self._mark(attempt)
        except OSError as problem:  # it is tried again
            self._warn(attempt, f"its folder was removed and cannot be made again: {problem.strerror}")

    def _look(self, attempt: AttemptKey, now: float) -> None:
        """Note the end of an attempt. One that has not ended must have a supervisor."""
        folder = Path(f"{self._root}/{attempt[0]}/{attempt[1]}")
        if self._has_ended(attempt, folder):
            return
        has_died = self._is_dead(attempt)
        due = has_died or now >= self._check_at.setdefault(attempt, now)
        if attempt in self._pids and not due:
            return
        if pid := supervisor_pid(folder):
            self._pids[attempt] = pid
            self._check_at[attempt] = now + SUPERVISOR_CHECK_EVERY
            self._supervisors.pop(attempt, None)
        elif not self._term.in_force:
            return  # another plane looks after it
        elif due and not self._has_ended(attempt, folder):  # it may have ended between the two looks
            self._pids.pop(attempt, None)
            if problem := _foreign(folder):
                self._end(attempt, "lost", problem)
            elif self._supervisors.get(attempt, 0) >= MOST_SUPERVISORS:
                self._give_up(attempt, folder)
            else:
                self._restore(attempt)
                self._send_supervisor(attempt, folder)

    def _is_dead(self, attempt: AttemptKey) -> bool:
        """Whether the supervisor has died since the last check: quicker than to ask for its lock."""
        pid = self._pids.get(attempt)
        if pid is None:
            return False
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            del self._pids[attempt]
            return True
        except OSError:
            pass
        return False

    def _has_ended(self, attempt: AttemptKey, folder: Path) -> bool:
        """Whether its end is on disk. An end that cannot be read is none: its supervisor writes another."""
        try:
            found = read_exit(str(folder))
        except Unreadable as problem:
            self._warn(attempt, f"its {EXIT} cannot be read: {problem}")
            return False
        if found is None:
            return False
        self._ended[attempt] = AttemptEnd(*attempt, Exit(**found))
        return True

    def _end(self, attempt: AttemptKey, cause: str, detail: str, code: int = UNSTARTABLE_CODE) -> None:
        """Note an end that cannot be written to disk."""
        now = wall_clock_us()
        self._warn(attempt, detail)
        exit = Exit(code, cause, one_line(detail), now, now)
        self._ended[attempt] = AttemptEnd(*attempt, exit)

    def _warn(self, attempt: AttemptKey, problem: str) -> None:
        if (attempt, problem) not in self._told:
            self._told.add((attempt, problem))
            log.warning("job %s attempt %d: %s", *attempt, problem)

    def _send_supervisor(self, attempt: AttemptKey, folder: Path) -> None:
        self._supervisors[attempt] = self._supervisors.get(attempt, 0) + 1
        self._check_at[attempt] = time.monotonic() + SUPERVISOR_CHECK_EVERY
        start_supervisor(folder)

    def _give_up(self, attempt: AttemptKey, folder: Path) -> None:
        """No supervisor came up: write `exit.json` in its place, holding its lock."""
        why = _last_line(folder / SUPERVISOR_LOG) or f"{sys.executable} does not run"
        detail = f"no supervisor came up in {MOST_SUPERVISORS} tries: {why}"
        self._end(attempt, "lost" if os.path.lexists(folder / STARTED) else "unstartable", detail)
        report = self._ended.pop(attempt)
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            with open(os.open(folder / LOCK, flags, 0o600), "ab") as lock:
                fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not self._has_ended(attempt, folder):
                    write_json(str(folder), EXIT, report.exit._asdict())
                    self._ended[attempt] = report
        except BlockingIOError:
            self._supervisors.pop(attempt, None)  # a supervisor has come up after all
        except OSError:
            self._ended[attempt] = report


def _is_over(folder: Path) -> bool:
    """Whether the end of an attempt is on disk. One that cannot be read may be of the job's making."""
    try:
        return read_exit(str(folder)) is not None
    except Unreadable:
        return False


def _foreign(folder: Path) -> str:
    """Why a supervisor would not touch this folder, if another account can write to it."""
    for part in (folder.parent, folder):
        try:
            if os.lstat(part).st_uid != os.geteuid():
                return f"{part} belongs to another account"
        except OSError:
            return ""
    return ""


def _last_line(file: Path) -> str:
    """The last line of a supervisor's log."""
    try:
        handle = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(handle, "rb") as opened:
            opened.seek(max(0, os.fstat(handle).st_size - LONGEST_ERROR))
            text = opened.read(LONGEST_ERROR).decode(errors="replace")
    except OSError:
        return ""
    return one_line(text.strip().rpartition("\n")[2])


def _checked_name(attempt: AttemptKey) -> str:
    job, epoch = attempt
    if not JOB_NAME.fullmatch(job):
        raise InputError(f"{job!r} is not the id of a job")
    return attempt_name(job, epoch)


def _parsed_name(name: str) -> AttemptKey | None:
    """The attempt in the name of a marker or a message of the doorbell; only as `attempt_name` writes it."""
    job, _, epoch = name.rpartition("@")
    if not (JOB_NAME.fullmatch(job) and epoch.isascii() and epoch.isdecimal() and len(epoch) < 11):
        return None
    number = int(epoch)
    return (job, number) if str(number) == epoch and number <= LARGEST_EPOCH else None
