"""A real plane with 10,000 jobs: what submit, ps and why take while the queue is full, and what it holds.

`dovetail up` runs as a process of its own with 64 virtual nodes and is asked over HTTP. A hundred arrays of a
hundred jobs fill it: the first two take all devices with real processes, the others wait. Wall time says
something on a quiet machine only, so beside every latency stands the CPU that the plane itself spent on the
call, whatever else ran meanwhile. Nothing is left behind.
"""

from __future__ import annotations

import json
import os
import random
import resource
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.figure import Figure
from dovetail.client.client import Client
from dovetail.client.connection import Refused

ARRAYS, MEMBERS = 100, 100
SIZES = (4, 8, 1, 2, 3, 5, 6, 7)  # GPUs of the jobs of an array: 100 x 4 and 14 x 8 are all there are
RUNNING = 114
WARM = 10  # arrays until the queue is long, and all that can run has started
SHORT = 300  # jobs that come and go beside the full queue
PACE = 0.025  # seconds between calls: one token may ask 50 times a second

LATENCY_LIMIT_MS = 200.0  # at p95
SUBMIT_LIMIT_MS, LIST_LIMIT_MS, FOLD_LIMIT_MS, WHY_LIMIT_MS = 40.0, 15.0, 30.0, 60.0  # CPU for a call
JOB_LIMIT_MS = 0.4  # CPU of the plane for each job of an array
DECISION_LIMIT_MS = 40.0  # CPU of the plane for each decision of the policy, all around it included
TURNOVER_LIMIT_MS = 10.0  # CPU of the plane for each job that starts and ends: a process, durable files
STARTING_LIMIT_MS = 1_000.0  # until the plane answers while many jobs start
COMMAND_LIMIT_MS = 500.0  # CPU of `dovetail ps` itself, the start of Python included
EXPANDED_LIMIT_MS = 2_000.0  # CPU of `dovetail ps --expand` itself, with a line for each of all jobs
REST_LIMIT_MS = 20.0  # CPU of the plane in a second in which nobody asks
ANSWER_LIMIT_KB = 200.0
MEMORY_LIMIT_MB = 300.0
ATTACKED_LIMIT_MS = 1_000.0  # at p99, for a tenant beside one that asks for all it can get
ATTACKED_SECONDS = 60.0


@dataclass(slots=True)
class Timed:
    """Calls of one kind: how long each took, and what they cost the plane."""

    walls: list[float] = field(default_factory=list)  # seconds
    cpu: float = 0.0  # seconds, of all of them

    def figures(self, name: str, cpu_limit: float) -> Iterator[Figure]:
        walls = sorted(self.walls)
        p50, p95 = (1_000 * walls[min(len(walls) - 1, int(part * len(walls)))] for part in (0.5, 0.95))
        note = f"wall; p50 {p50:.0f} ms, slowest {1_000 * walls[-1]:.0f} ms of {len(walls)}"
        yield Figure(f"{name}, p95", p95, LATENCY_LIMIT_MS, "ms", note)
        yield Figure(f"{name}, CPU of the plane", 1_000 * self.cpu / len(walls), cpu_limit, "CPU ms")


class Bench:
    """A plane that runs, and a client of it."""

    def __init__(self, process: subprocess.Popen[bytes], folder: Path, client: Client) -> None:
        self.process, self.folder, self.client = process, folder, client
        self.arrays: list[str] = []
        self.largest = (0, "")  # bytes, of which call

    def cpu(self) -> float:
        """Seconds of CPU that the plane has spent; those it has sent out do not count."""
        return cpu_of(self.process.pid)

    def status(self, name: str) -> float:
        """A size of the plane in MB."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return float(text.partition(f"{name}:")[2].split()[0]) / 1_024

    def metric(self, name: str) -> float:
        lines = self.client.connection.call("GET", "/metrics").body.decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))

    def timed(self, calls: Callable[[int], object], count: int) -> Timed:
        found = Timed()
        before = self.cpu()
        for number in range(count):
            began = time.perf_counter()
            calls(number)
            found.walls.append(time.perf_counter() - began)
            time.sleep(PACE)
        found.cpu = self.cpu() - before
        return found

    def get(self, path: str, **query: object) -> Any:
        answer = self.client.connection.call("GET", path, query=query, again=True)
        self.largest = max(self.largest, (len(answer.body), path))
        return json.loads(answer.body) if answer.body[:1] in (b"{", b"[") else answer.body

    def submit(self, number: int) -> None:
        made = self.client.submit(
            {
                "name": f"sweep-{number}",
                "run": "sleep 36000",
                "array": f"0-{MEMBERS - 1}",
                "resources": {"gpus": SIZES[number % len(SIZES)]},
                "time": "10h",
                "workdir": str(self.folder),
            }
        )
        self.arrays.append(made.id)

    def count(self, state: str) -> int:
        """Jobs in a state, from the arrays they are of."""
        return sum(self.get(f"/arrays/{array}")["states"].get(state, 0) for array in self.arrays)

    def wait(self, what: str, done: Callable[[], bool], patience: float = 300.0) -> None:
        until = time.monotonic() + patience
        while not done():
            if self.process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"the plane did not come to this: {what}; see {self.folder}/out")
            time.sleep(0.5)


def cpu_of(pid: int) -> float:
    after = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(after[11]) + int(after[12])) / os.sysconf("SC_CLK_TCK")


def processes_in(folder: Path) -> list[str]:
    """Supervisors and jobs that work there."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                at = (
                    str((entry / "cwd").readlink()),
                    (entry / "cmdline").read_bytes().decode(errors="replace"),
                )
            except OSError:  # it has ended, or is none of ours
                continue
            if any(str(folder) in text for text in at):
                found.append(at[1])
    return found


@contextmanager
def up() -> Iterator[Bench]:
    """A plane on an empty folder; its jobs are cancelled in the end, whatever happens."""
    with tempfile.TemporaryDirectory(prefix="dovetail-bench-") as name:
        folder = Path(name)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        command = [
            sys.executable,
            "-m",
            "dovetail.cli",
            "up",
            "--state",
            str(folder / "state"),
            "--port",
            str(port),
        ]
        with (folder / "out").open("wb") as out:
            process = subprocess.Popen(
                [*command, "--virtual", "64x8:A100"], stdout=out, stderr=subprocess.STDOUT, cwd=name
            )
        try:
            while not (folder / "state" / "address.json").exists():
                if process.poll() is not None:
                    raise RuntimeError(f"the plane did not start: {(folder / 'out').read_text()}")
                time.sleep(0.1)
            with Client(state=folder / "state") as client:
                bench = Bench(process, folder, client)
                try:
                    yield bench
                finally:
                    if process.poll() is None:
                        client.cancel(mine=True)
                        bench.wait("no job is left", lambda: not bench.get("/jobs", active=True)["items"])
        finally:
            process.terminate()
            process.wait(60)


def live() -> Iterator[Figure]:
    """10,000 jobs in arrays on 64 virtual nodes."""
    with up() as bench:
        yield from _submitted(bench)
        bench.wait("all devices are taken", lambda: bench.count("running") == RUNNING)
        yield from _asked(bench)
        yield from _sizes(bench)
        yield from _attacked(bench)
        yield from _turned_over(bench)
        yield from _cancelled(bench)
        yield Figure("memory of the plane, at most", bench.status("VmHWM"), MEMORY_LIMIT_MB, "MB")
    left = processes_in(bench.folder)
    yield Figure("processes left behind", len(left), 0, "", ", ".join(left)[:200])


def _submitted(bench: Bench) -> Iterator[Figure]:
    begun = bench.cpu()
    for number in range(WARM):
        bench.submit(number)
    bench.wait("the first have started", lambda: bench.count("running") == RUNNING)
    decisions = bench.metric("dovetail_decisions_total")
    before = bench.cpu()
    timed = bench.timed(lambda number: bench.submit(WARM + number), ARRAYS - WARM)
    spent = bench.cpu() - before
    made = bench.metric("dovetail_decisions_total") - decisions
    yield from timed.figures(f"submit of {MEMBERS} jobs", SUBMIT_LIMIT_MS)
    jobs = MEMBERS * (ARRAYS - WARM)
    note = f"{1_000 * (before - begun):.0f} ms for the first {MEMBERS * WARM}, of which {RUNNING} start"
    yield Figure("CPU of the plane a submitted job", 1_000 * spent / jobs, JOB_LIMIT_MS, "CPU ms", note)
    note = f"{made:.0f} decisions"
    yield Figure(
        "CPU of the plane a decision", 1_000 * spent / max(made, 1), DECISION_LIMIT_MS, "CPU ms", note
    )


def _asked(bench: Bench) -> Iterator[Figure]:
    waiting = random.Random(3)
    jobs = [f"{waiting.choice(bench.arrays[2:])}_{waiting.randrange(MEMBERS)}" for _ in range(100)]
    listed = bench.timed(lambda _: bench.get("/jobs", active=True, limit=100), 60)
    yield from listed.figures("GET /jobs, 100 rows", LIST_LIMIT_MS)
    states = bench.timed(lambda _: bench.get("/jobs", state="running,stopping", limit=100), 40)
    yield from states.figures("GET /jobs?state=running", LIST_LIMIT_MS)
    folded = bench.timed(lambda _: bench.get("/jobs", active=True, fold=True, limit=100), 40)
    yield from folded.figures("GET /jobs, 100 arrays folded", FOLD_LIMIT_MS)
    summary = bench.timed(lambda number: bench.get(f"/arrays/{bench.arrays[number]}"), 40)
    yield from summary.figures("GET /arrays/ID", LIST_LIMIT_MS)
    yield from bench.timed(lambda number: bench.get(f"/jobs/{jobs[number]}/why"), 100).figures(
        "why of a waiting job", WHY_LIMIT_MS
    )
    yield from _command(bench)
    before = bench.cpu()
    time.sleep(10)
    rest = 100 * (bench.cpu() - before)
    yield Figure("a second at rest", rest, REST_LIMIT_MS, "CPU ms", f"{RUNNING} jobs run, the others wait")


def _command(bench: Bench) -> Iterator[Figure]:
    """`dovetail ps` as a whole, and what it costs the plane."""
    every = ("--expand", "--limit", str(2 * ARRAYS * MEMBERS))
    for words, times, limit in (((), 5, COMMAND_LIMIT_MS), (every, 1, EXPANDED_LIMIT_MS)):
        before, own = resource.getrusage(resource.RUSAGE_CHILDREN), bench.cpu()
        command = [sys.executable, "-m", "dovetail.cli", "ps", "--state", str(bench.folder / "state"), *words]
        shown = [subprocess.run(command, check=True, capture_output=True, text=True) for _ in range(times)]
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        note = f"and {1_000 * (bench.cpu() - own) / times:.0f} ms of the plane; "
        note += f"{len(shown[0].stdout.splitlines()):,} lines; {shown[0].stdout.splitlines()[0]}"
        name = " ".join(["dovetail ps", *words[:1]])
        yield Figure(name, 1_000 * spent / times, limit, "CPU ms", note)


def _sizes(bench: Bench) -> Iterator[Figure]:
    """Every question that the API describes, with as many rows as it gives at once."""
    described = json.loads(bench.client.connection.call("GET", "/openapi.json").body)
    for path, methods in described["paths"].items():
        asked = methods.get("get")
        if asked is None or any(word in path for word in ("watch", "stream", "openapi")):
            continue
        query: dict[str, object] = {}
        for parameter in asked.get("parameters", ()):
            if parameter["in"] == "query" and parameter["name"] == "limit":
                query["limit"] = parameter["schema"].get("maximum", 200)
        short = path.removeprefix("/api/v1")
        for id in (f"{bench.arrays[0]}_0", bench.arrays[0]):
            at = short.replace("{id}", id).replace("{name}", "n0")
            with suppress(Refused):  # not everything is asked of jobs and arrays alike
                answer = bench.client.connection.call("GET", at, query=query, again=True)
                bench.largest = max(bench.largest, (len(answer.body), short))
            time.sleep(PACE)
    size, path = bench.largest
    yield Figure("largest answer", size / 1_000, ANSWER_LIMIT_KB, "kB", f"GET {path}")


def _attacked(bench: Bench) -> Iterator[Figure]:
    """Submit and cancel of one tenant while another does all it can (`benchmarks.hostile`)."""
    if os.geteuid() == 0:  # a plane of root runs no jobs of a tenant without an account
        tenant = ("tenant", "set", "other", "--account", "root", "--allow-root")
        state = ("--state", str(bench.folder / "state"))
        subprocess.run(
            [sys.executable, "-m", "dovetail.cli", *tenant, *state], check=True, capture_output=True
        )
    tokens = [
        bench.client.connection.post(
            "/tokens", {"name": name, "tenant": tenant, "user": name, "role": "user"}
        )
        for name, tenant in (("hostile", "default"), ("other", "other"))
    ]
    hostile, other = (made["token"] for made in tokens)
    url, job = bench.client.connection.url, f"{bench.arrays[-1]}_0"
    command = [sys.executable, "-m", "benchmarks.hostile", url, hostile, job]
    submitted, cancelled, before, began = Timed(), Timed(), bench.cpu(), time.monotonic()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as attack:
        assert attack.stdout is not None
        attack.stdout.readline()
        while time.monotonic() < began + ATTACKED_SECONDS:
            with Client(url=url, token=other) as client:  # which opens a connection of its own
                asked = time.perf_counter()
                made = client.submit({"run": "true", "resources": {"gpus": 8}, "workdir": str(bench.folder)})
                submitted.walls.append(time.perf_counter() - asked)
                asked = time.perf_counter()
                client.cancel(made.id)
                cancelled.walls.append(time.perf_counter() - asked)
            time.sleep(PACE)
        said = attack.communicate("", timeout=120)[0]
    share = 100 * (bench.cpu() - before) / (time.monotonic() - began)
    answers = ", ".join(f"{count} x {what}" for what, count in sorted(json.loads(said).items()))
    beside = {"submit": f"the plane took {share:.0f} % of a CPU", "cancel": f"the other got {answers}"}
    for name, timed in (("submit", submitted), ("cancel", cancelled)):
        walls = sorted(timed.walls)
        p50, p99 = (1_000 * walls[min(len(walls) - 1, int(part * len(walls)))] for part in (0.5, 0.99))
        note = f"wall; p50 {p50:.0f} ms, slowest {1_000 * walls[-1]:.0f} ms of {len(walls)}; {beside[name]}"
        yield Figure(f"{name} beside a hostile tenant, p99", p99, ATTACKED_LIMIT_MS, "ms", note)


def _turned_over(bench: Bench) -> Iterator[Figure]:
    """Jobs without GPUs, which need not wait: each is a process, an attempt and two changes of state."""
    began, before, ticks = time.monotonic(), bench.cpu(), bench.metric("dovetail_decisions_total")
    made = bench.client.submit(
        {"name": "short", "run": "true", "array": f"0-{SHORT - 1}", "workdir": str(bench.folder)}
    )
    slowest = 0.0

    def ended() -> bool:
        nonlocal slowest
        asked = time.perf_counter()
        bench.get("/nodes")  # which the plane's own thread answers, in between
        slowest = max(slowest, time.perf_counter() - asked)
        return bool(bench.get(f"/arrays/{made.id}")["states"] == {"completed": SHORT})

    bench.wait("the short jobs have ended", ended)
    took, spent = time.monotonic() - began, bench.cpu() - before
    made_up = bench.metric("dovetail_decisions_total") - ticks
    note = f"{SHORT} in {took:.0f} s, {made_up:.0f} decisions"
    yield Figure("a job that starts and ends", 1_000 * spent / SHORT, TURNOVER_LIMIT_MS, "CPU ms", note)
    note = "wall; GET /nodes"
    yield Figure(f"slowest answer while {SHORT} start", 1_000 * slowest, STARTING_LIMIT_MS, "ms", note)


def _cancelled(bench: Bench) -> Iterator[Figure]:
    before = bench.cpu()
    began = time.perf_counter()
    count = bench.client.cancel(mine=True)
    took = time.perf_counter() - began
    bench.wait("no job is left", lambda: not bench.get("/jobs", active=True)["items"])
    spent = bench.cpu() - before
    note = f"{count:,} jobs; the answer took {took:.1f} s"
    yield Figure("cancel, a job", 1_000 * spent / max(count, 1), JOB_LIMIT_MS, "CPU ms", note)
