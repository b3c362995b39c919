"""Runs attempts on this machine: a folder for each, and a supervisor that outlives the plane.

    ROOT/JOB/EPOCH/       launch.json, logs.json, run/ and what the supervisor writes (see there)
    ROOT/.active/JOB@EPOCH   an empty file for each attempt that is not forgotten: all that `poll` looks at
    ROOT/.doorbell        a socket on which a supervisor says that its attempt has ended

The folder is the truth and this class only reads it, so a plane that comes back knows what the one before it
knew. At most once: `launch.json` is written whole before a supervisor is sent, and of the supervisors sent
for an attempt, by this plane or by one that was killed meanwhile, the lock lets one start the job, once.
Whether a supervisor lives is asked of the kernel (F_GETLK), which takes no lock and so never keeps one out.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
import re
import select
import shlex
import signal as signals
import socket
import stat
import struct
import subprocess
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import BinaryIO

from dovetail.engines import cgroup, supervisor
from dovetail.engines.environment import free_port, inherited, processes
from dovetail.engines.launch import Exit, Launch, Report
from dovetail.model.errors import InputError

FULL_LOOK = 1.0  # seconds between two looks at every attempt; those that ring are looked at when they do
LIFE_CHECK = 4.0  # seconds between two questions whether an attempt's supervisor lives
TRIES = 6  # supervisors sent for an attempt before it is given up
MOST_READ = 1 << 20
SHELL = "/bin/bash"

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")
_FLOCK = struct.Struct("hhqqi4x")
# Imported, not run as a file: so its compiled form is kept. And from a package whose own first page is left
# unread, for that serves other people and imports what they need.
_PROGRAM = (
    "import sys; bare = type(sys)('dovetail'); "
    f"bare.__path__ = [{str(Path(__file__).resolve().parents[1])!r}]; sys.modules['dovetail'] = bare; "
    "from dovetail.engines.supervisor import main; main(sys.argv[1])"
)
# What the interpreter itself may need; a job's variables come by launch.json, a plane's secrets not at all.
_SUPERVISOR_ENV = ("LANG", "LC_ALL", "LD_LIBRARY_PATH", "PATH", "TZ")

Attempt = tuple[str, int]


class LocalEngine:
    """Attempts as processes of this machine."""

    def __init__(
        self, root: Path, *, secrets: Collection[str] = (), limits: cgroup.Limits | None = None
    ) -> None:
        """`secrets` names variables of the plane's environment that no job may see."""
        self._root = Path(os.path.abspath(root))
        self._active = self._root / ".active"
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._active.mkdir(mode=0o700, exist_ok=True)
        self._secrets = frozenset(secrets)
        self._limits = limits
        self._ended: dict[Attempt, Report] = {}  # read from disk, or what could not even be written there
        self._tries: dict[Attempt, int] = {}
        self._check_at: dict[Attempt, float] = {}
        self._ports: dict[Attempt, int] = {}
        self._rung: set[Attempt] = set()
        self._looked_at = -math.inf
        self._bell: socket.socket | None = None
        self._alarm = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def close(self) -> None:
        """Let go of the doorbell. Attempts run on."""
        if self._bell is not None:
            self._bell.close()
            self._bell = None
        if self._alarm >= 0:
            os.close(self._alarm)
            self._alarm = -1

    def describe_limits(self) -> str:
        """One sentence on whether shares of memory and CPU are enforced, and if not, why."""
        return self._enforced().sentence()

    def folder(self, job: str, epoch: int) -> Path:
        """Where an attempt lives."""
        if not _NAME.fullmatch(job) or epoch < 0:
            raise InputError(
                f"{job!r} attempt {epoch} cannot name a folder; "
                "an id has letters, digits and _ . - only, and no . or - at its beginning"
            )
        return self._root / job / str(epoch)

    # --- orders -------------------------------------------------------------------------------------

    def start(self, launch: Launch) -> None:
        folder, attempt = self.folder(launch.job, launch.epoch), (launch.job, launch.epoch)
        try:
            if not (folder / "launch.json").exists():
                self._write(launch, folder)
            if (folder / "exit.json").exists():
                return
            (self._active / _marker(attempt)).touch(mode=0o600)
        except (OSError, ValueError) as problem:
            if isinstance(problem, OSError) and problem.errno in supervisor.SHORTAGE:
                raise  # no fault of the job's: it can be started when there is room again
            now = supervisor.now_us()
            detail = " ".join(f"cannot write {folder}: {problem}".split())
            self._ended[attempt] = Report(
                *attempt, Exit(supervisor.UNSTARTABLE, "unstartable", detail, now, now)
            )
            self.ring()
            return
        self._ended.pop(attempt, None)
        if not self._supervisor(folder):
            self._send(attempt, folder)

    def stop(self, job: str, epoch: int, why: str, grace: int) -> None:
        folder = self.folder(job, epoch)
        if not (folder / "launch.json").exists() or (folder / "exit.json").exists():
            return
        grace, now = max(grace, 0), supervisor.now_us()
        given = supervisor.read_json(str(folder / "stop.json"))
        if given is None or now + grace < given["at"] + given["grace"]:  # else it is told already
            order = {"why": why, "grace": grace, "at": now}
            supervisor.write_json(str(folder), "stop.json", order, 0o644)
        self._signal_supervisor(folder, signals.SIGTERM)

    def signal(self, job: str, epoch: int, number: int) -> None:
        folder = self.folder(job, epoch)
        if (folder / "exit.json").exists():
            return
        leaders = supervisor.pids_of(str(folder))
        if number in (signals.SIGUSR1, signals.SIGUSR2):  # who does not know of these would die of them
            for pid in supervisor.sessions_of(leaders):
                if supervisor.waits_for(pid, number):
                    supervisor.send(pid, number)
            return
        for pid in leaders:
            with suppress(OSError):
                os.killpg(pid, number)

    def forget(self, job: str, epoch: int) -> None:
        attempt = (job, epoch)
        (self._active / _marker(attempt)).unlink(missing_ok=True)
        for memory in (self._ended, self._tries, self._check_at, self._ports):
            memory.pop(attempt, None)

    # --- what has become of them --------------------------------------------------------------------

    def poll(self) -> list[Report]:
        now = time.monotonic()
        rung, self._rung = self._rung, set()
        if now - self._looked_at >= FULL_LOOK:
            self._looked_at = now
            due = self.known()
        else:
            due = {attempt for attempt in rung if os.path.exists(f"{self._active}/{_marker(attempt)}")}
        for attempt in due - self._ended.keys():
            self._look(attempt, now)
        return sorted(
            self._ended.values(), key=lambda report: (report.exit.ended_at, report.job, report.epoch)
        )

    def known(self) -> set[Attempt]:
        found = set(self._ended)
        for name in os.listdir(self._active):
            job, _, epoch = name.rpartition("@")
            if _NAME.fullmatch(job) and epoch.isdecimal():
                found.add((job, int(epoch)))
        return found

    def wait(self, timeout: float) -> None:
        bell = self._doorbell()
        poll = select.poll()
        poll.register(self._alarm, select.POLLIN)
        poll.register(bell, select.POLLIN)
        heard = {handle for handle, _ in poll.poll(max(timeout, 0.0) * 1000)}
        if self._alarm in heard:
            with suppress(BlockingIOError):
                os.eventfd_read(self._alarm)
        with suppress(BlockingIOError):
            while True:
                job, _, epoch = bell.recv(512).decode(errors="replace").rpartition("@")
                if _NAME.fullmatch(job) and epoch.isdecimal():
                    self._rung.add((job, int(epoch)))

    def ring(self) -> None:
        os.eventfd_write(self._alarm, 1)

    def logs(self, job: str, epoch: int) -> list[Path]:
        """Its output files by rank, then those for errors: those that are there and its own to show."""
        found = []
        for file in self._log_names(job, epoch):
            with suppress(OSError), self.open_log(job, epoch, file):
                found.append(file)
        return found

    @contextmanager
    def open_log(self, job: str, epoch: int, file: Path) -> Iterator[BinaryIO]:
        """Read one of its logs, safely: a job run under an account may show its own files and no others.

        A plane that is root could read anything, and where a user's output file lies is up to that user.
        """
        folder = self.folder(job, epoch)
        if file not in self._log_names(job, epoch):
            raise FileNotFoundError(f"{file} is no log of {job} attempt {epoch}")
        handle = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(handle, "rb") as opened:
            found = os.fstat(handle)
            owner = _owner(folder)
            if not stat.S_ISREG(found.st_mode):
                raise PermissionError(f"{file} is no plain file")
            if file.parent != folder and owner is not None and found.st_uid != owner:
                raise PermissionError(f"{file} does not belong to the account that {job} runs as")
            yield opened

    def reports(self, job: str, epoch: int, offset: int) -> tuple[list[dict[str, object]], int]:
        file = self.folder(job, epoch) / "run" / "reports.jsonl"
        try:
            handle = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return [], offset
        with os.fdopen(handle, "rb") as opened:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                return [], offset
            opened.seek(max(offset, 0))
            data = opened.read(MOST_READ)
        whole = data.rfind(b"\n") + 1
        if not whole:  # nothing yet, or a line beyond all measure: go on behind what was read of it
            return [], offset + (len(data) if len(data) == MOST_READ else 0)
        found = []
        for line in data[:whole].splitlines():
            with suppress(ValueError, RecursionError):
                said = json.loads(line)
                if isinstance(said, dict):
                    found.append(said)
        return found, offset + whole

    # --- inside -------------------------------------------------------------------------------------

    def _write(self, launch: Launch, folder: Path) -> None:
        """All that a supervisor will need, in one durable file."""
        attempt = (launch.job, launch.epoch)
        for made in (folder.parent, folder, folder / "run"):
            made.mkdir(mode=0o700, exist_ok=True)
        with suppress(FileExistsError):
            (folder / "run" / "stop.json").symlink_to("../stop.json")  # seen by the job, not in its hands
        port = self._ports[attempt] = free_port(*attempt, taken=set(self._ports.values()))
        run = folder / "run"
        cwd = os.path.join(run, launch.workdir) if launch.workdir else str(run)
        if launch.checkpoint_dir:
            launch = replace(launch, checkpoint_dir=os.path.join(cwd, launch.checkpoint_dir))
        base = inherited(os.environ, self._secrets)
        if launch.account:
            base = {name: value for name, value in base.items() if not name.startswith(("XDG_", "SUDO_"))}
        planned = []
        for process in processes(launch, run, port):
            own = folder / ("output.log" if process.rank == 0 else f"output.{process.rank}.log")
            planned.append({
                **process._asdict(),
                "own_output": not launch.output,
                "output": _filled(launch.output, cwd, process.node, process.rank) or str(own),
                "error": _filled(launch.error, cwd, process.node, process.rank),
            })  # fmt: skip
        files = [process["output"] for process in planned] + [p["error"] for p in planned if p["error"]]
        supervisor.write_json(str(folder), "logs.json", list(dict.fromkeys(files)), durable=False)
        limits = self._enforced()
        mark = hashlib.blake2b(os.fsencode(folder), digest_size=6).hexdigest()
        groups = [
            cgroup.groups(limits, f"{launch.job}-{launch.epoch}-{number}-{mark}", share.cpus, share.memory)
            for number, share in enumerate(launch.shares)
        ]
        own_checkpoints = Path(launch.checkpoint_dir).parent == self._root.parent / "checkpoints"
        said = {
            **asdict(launch),
            "argv": argv(launch),
            "base": base,
            "checkpoints": launch.checkpoint_dir if own_checkpoints else "",
            "cwd": cwd,
            "groups": groups,
            "processes": planned,
        }
        supervisor.write_json(str(folder), "launch.json", said)
        supervisor.sync(str(folder.parent))
        supervisor.sync(str(self._root))

    def _enforced(self) -> cgroup.Limits:
        """Asked by whoever starts jobs, not by those who only read: asking may move this process (v2)."""
        if self._limits is None:
            self._limits = cgroup.detect()
        return self._limits

    def _look(self, attempt: Attempt, now: float) -> None:
        """Has it ended? If not: does somebody stand by it?"""
        folder = Path(f"{self._root}/{attempt[0]}/{attempt[1]}")
        if self._ends(attempt, folder):
            return
        if now < self._check_at.setdefault(attempt, now):
            return
        self._check_at[attempt] = now + LIFE_CHECK
        if self._supervisor(folder):
            self._tries.pop(attempt, None)
        elif not self._ends(attempt, folder):  # it may have ended between the two looks
            if self._tries.get(attempt, 0) >= TRIES:
                self._give_up(attempt, folder)
            else:
                self._send(attempt, folder)

    def _ends(self, attempt: Attempt, folder: Path) -> bool:
        file = f"{folder}/exit.json"
        if not os.path.exists(file):
            return False
        said = supervisor.read_json(file)
        self._ended[attempt] = Report(*attempt, Exit(*(said[field] for field in Exit._fields)))
        return True

    def _send(self, attempt: Attempt, folder: Path) -> None:
        """Send a supervisor. A shell lets go of it at once, so it is not our child and no zombie of ours."""
        self._tries[attempt] = self._tries.get(attempt, 0) + 1
        self._check_at[attempt] = time.monotonic() + LIFE_CHECK
        with suppress(OSError):  # too many processes, no memory: the next look tries again
            subprocess.run(
                ["/bin/sh", "-c", '"$@" &', "sh", sys.executable, "-I", "-S", "-c", _PROGRAM, str(folder)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={name: os.environ[name] for name in _SUPERVISOR_ENV if name in os.environ},
                cwd="/",
                start_new_session=True,
                check=False,
            )

    def _give_up(self, attempt: Attempt, folder: Path) -> None:
        """Supervisors were sent and none came up: say so in their place, holding their lock."""
        now = supervisor.now_us()
        try:
            why = (folder / "supervisor.log").read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            why = ""
        started = (folder / "started.json").exists()
        why = why.rpartition("\n")[2] or f"{sys.executable} does not run"
        detail = f"no supervisor came up in {TRIES} tries: {why}"
        cause = "lost" if started else "unstartable"
        report = Report(*attempt, Exit(supervisor.UNSTARTABLE, cause, detail, now, now))
        try:
            with open(folder / "lock", "ab") as lock:
                fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not self._ends(attempt, folder):
                    supervisor.write_json(str(folder), "exit.json", report.exit._asdict())
                    self._ended[attempt] = report
        except BlockingIOError:
            self._tries.pop(attempt, None)  # one has come after all
        except OSError:
            self._ended[attempt] = report

    def _supervisor(self, folder: Path) -> int:
        """The pid of the supervisor that holds the lock; 0 if none does."""
        try:
            handle = os.open(folder / "lock", os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return 0
        try:
            asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(handle, fcntl.F_GETLK, asked))
        finally:
            os.close(handle)
        return 0 if kind == fcntl.F_UNLCK else int(pid)

    def _signal_supervisor(self, folder: Path, number: int) -> None:
        """By a handle on the process, asked for between two looks at the lock: never to somebody else."""
        pid = self._supervisor(folder)
        if pid <= 0:
            return
        with suppress(OSError):
            handle = os.pidfd_open(pid)
            try:
                if self._supervisor(folder) == pid:
                    signals.pidfd_send_signal(handle, number)
            finally:
                os.close(handle)

    def _doorbell(self) -> socket.socket:
        """Bound by whoever waits first; reading logs in another process does not take it away."""
        if self._bell is None:
            bell = socket.socket(
                socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
            )
            root = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                with suppress(FileNotFoundError):
                    os.unlink(".doorbell", dir_fd=root)
                bell.bind(f"/proc/self/fd/{root}/.doorbell")  # its own path may be longer than a socket's may
            except OSError:
                bell.close()
                raise
            finally:
                os.close(root)
            self._bell = bell
        return self._bell

    def _log_names(self, job: str, epoch: int) -> list[Path]:
        return [Path(file) for file in supervisor.read_json(str(self.folder(job, epoch) / "logs.json")) or []]


def argv(launch: Launch) -> list[str]:
    """The command, behind its setup if it has one.

    Setup and script share a shell, so what one sets the other sees; setup that fails ends it there and then.
    Each is one quoted word to `eval`: a quote left open in the one does not swallow the other.
    """
    command = list(launch.command)
    if not launch.setup.strip():
        return command
    if len(command) == 3 and command[0] in (SHELL, "bash") and command[1] == "-c":
        rest = f"eval {shlex.quote(command[2])}"
    else:
        rest = f"exec {shlex.join(command)}"
    return [SHELL, "-c", f"set -e\neval {shlex.quote(launch.setup)}\nset +e\n{rest}"]


def _filled(pattern: str, cwd: str, node: str, rank: int) -> str:
    """A file name with %N and %t filled in, from the workdir on."""
    if not pattern:
        return ""
    name = re.sub("%[Nt]", lambda match: node if match[0] == "%N" else str(rank), pattern)
    return os.path.join(cwd, name)


def _marker(attempt: Attempt) -> str:
    job, epoch = attempt
    if not _NAME.fullmatch(job):
        raise InputError(f"{job!r} is no id of a job")
    return f"{job}@{epoch}"


def _owner(folder: Path) -> int | None:
    """Who owns what the job writes, if it runs as another account than the plane."""
    owner = (folder / "run").stat().st_uid
    return None if owner == os.geteuid() else owner
