"""`make bench`: every figure beside its limit; exit code 1 if one is missed.

python -m benchmarks                 all of them (about a quarter of an hour)
python -m benchmarks replay growth   some of them
"""

from __future__ import annotations

import json
import math
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.elastic import elastic
from benchmarks.figure import Figure
from benchmarks.gavel import gavel
from benchmarks.live import live
from benchmarks.policies import policies
from benchmarks.solve import solve
from benchmarks.solve_more import solve_more

# Times the yardstick for a million jobs on 812 nodes of 8 GPUs, load 0.95; tiresias-l in rounds of 60 s.
REPLAY_LIMITS = {"fifo": 4.0, "sjf": 5.0, "tiresias-l": 8.0, "backfill": 14.0, "srtf": 20.0}
MEMORY_LIMIT_MB = 1_500
COMPARE_LIMIT_SECONDS = 60.0
SLURM_LIMIT_SECONDS = 3.0  # `slurm` on the first 1,000 Philly jobs, a queue of hundreds throughout


def _replay(policy: str, jobs: int, nodes: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.replay", policy, str(jobs), str(nodes)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def replay() -> Iterator[Figure]:
    """A million jobs under each of five policies.

    A busy neighbour slows the loop and the replay unequally, by a quarter in bad moments. So what comes that
    near to its limit, from either side, is measured three times, and the median counts.
    """
    for policy, limit in REPLAY_LIMITS.items():
        runs = [_replay(policy, 1_000_000, 812)]
        if 0.75 < runs[0]["ratio"] / limit < 1.25:
            runs += [_replay(policy, 1_000_000, 812) for _ in range(2)]
        found = sorted(runs, key=lambda run: run["ratio"])[len(runs) // 2]
        took, loop = found["cpu_seconds"], found["yardstick"]
        note = f"{took:.1f} s, loop {loop:.1f} s, mean JCT {found['mean_jct']:,.0f} s"
        if len(runs) > 1:
            note += f"; of {', '.join(format(run['ratio'], '.2f') for run in runs)}"
        yield Figure(f"replay 1,000,000 jobs, {policy}", found["ratio"], limit, "x loop", note)
        yield Figure(f"memory of that, {policy}", found["megabytes"], MEMORY_LIMIT_MB, "MB")


def growth() -> Iterator[Figure]:
    """Cost a job from 10,000 to 1,000,000 jobs on clusters that grow along: no faster than log n."""
    sizes = ((10_000, 8), (100_000, 81), (1_000_000, 812))
    for policy in REPLAY_LIMITS:
        costs = [(jobs, _replay(policy, jobs, nodes)["ratio"] / jobs) for jobs, nodes in sizes]
        first, last = costs[0], costs[-1]
        allowed = math.log(last[0]) / math.log(first[0])
        shown = ", ".join(f"{jobs:,}: {cost * 1e6:.2f}" for jobs, cost in costs)
        yield Figure(f"growth, {policy}", last[1] / first[1], allowed, "x", f"loops a million jobs: {shown}")


def compare() -> Iterator[Figure]:
    """The five policies on the shipped Philly trace through the command line, children included."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.html"
        policies = ",".join(REPLAY_LIMITS)
        command = [sys.executable, "-m", "dovetail.cli", "compare", "philly", "--cluster", "52x8"]
        subprocess.run(
            [*command, "--policies", policies, "--report", str(report)], check=True, capture_output=True
        )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    yield Figure("compare of five on philly", spent, COMPARE_LIMIT_SECONDS, "CPU s")


def slurm() -> Iterator[Figure]:
    """Backfill with reservations through the command line, on clusters with and without room to spare."""
    for cluster in ("52x8", "8x8"):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, "-m", "dovetail.cli", "simulate", "philly", "--head", "1000"]
        more = ["--cluster", cluster, "--policy", "slurm", "--drop-unfit"]
        subprocess.run([*command, *more], check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        yield Figure(f"slurm, 1,000 Philly jobs on {cluster}", spent, SLURM_LIMIT_SECONDS, "CPU s")


def start_up() -> Iterator[Figure]:
    """`dovetail --help`."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "dovetail.cli", "--help"], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    yield Figure("dovetail --help", (after.ru_utime - before.ru_utime) * 1_000, 1_000, "CPU ms")


SUITES: dict[str, Callable[[], Iterator[Figure]]] = {
    "replay": replay,
    "growth": growth,
    "compare": compare,
    "slurm": slurm,
    "start-up": start_up,
    "live": live,
    "solve": solve,
    "solve-more": solve_more,
    "gavel": gavel,
    "elastic": elastic,
    "policies": policies,
}


def main(names: list[str]) -> int:
    missed = 0
    for name in names or list(SUITES):
        for figure in SUITES[name]():
            good = figure.value <= figure.limit
            missed += not good
            mark = "ok  " if good else "MISS"
            shown = f"{figure.value:9.2f} of {figure.limit:8.2f} {figure.unit:<7}"
            print(f"{mark} {figure.name:<36} {shown} {figure.note}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
