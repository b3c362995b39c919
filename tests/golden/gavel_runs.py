"""What Gavel's simulator printed, run by run and job by job, and the traces it was given.

One GPU a node; rounds of 360 s; seed 0; its own throughputs, which come with Dovetail as `gavel`. A job that
it dropped after five failures of its simulated workers has no completion time and is not in the mean.
"""

from __future__ import annotations

import csv
import gzip
from functools import cache
from pathlib import Path
from typing import NamedTuple

DATA = Path(__file__).parent / "data"


class Run(NamedTuple):
    trace: str
    cluster: dict[str, int]  # GPUs by type: V100, P100, K80
    policy: str  # in Gavel's words
    mean: float  # job completion time in seconds, of those that finished
    makespan: float

    @property
    def name(self) -> str:
        return f"{self.trace}__c{'-'.join(map(str, self.cluster.values()))}__{self.policy}"

    @property
    def spec(self) -> str:
        """The cluster as the command line takes it."""
        return ",".join(f"{count}x1:{kind}" for kind, count in self.cluster.items())


def trace(name: str) -> Path:
    """The file of a trace, as Gavel read it."""
    return DATA / f"{name}.trace.gz"


def runs() -> list[Run]:
    """All of them, in the order of their names."""
    return [run for run, _ in _read().values()]


def printed(run: Run | str) -> dict[int, float]:
    """Completion times in seconds, by a job's place in the trace."""
    return dict(_read()[run if isinstance(run, str) else run.name][1])


@cache
def _read() -> dict[str, tuple[Run, dict[int, float]]]:
    found = {}
    with gzip.open(DATA / "gavel_runs.csv.gz", "rt") as file:
        for row in csv.DictReader(file):
            cluster = {kind.upper(): int(row[kind]) for kind in ("v100", "p100", "k80")}
            run = Run(row["trace"], cluster, row["policy"], float(row["mean"]), float(row["makespan"]))
            jobs = (pair.split(":") for pair in row["jcts"].split())
            found[run.name] = run, {int(job): float(jct) for job, jct in jobs}
    return found
