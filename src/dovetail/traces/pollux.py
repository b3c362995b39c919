"""Workloads of Pollux (Qiao et al., OSDI 2021) and Sia (Jayaram Subramanya et al., SOSP 2023).

They give the application and the number of replicas, but no duration. The durations are in tables of
measurements that come with them, one directory for each application. `data/pollux_models.json` has the same
in short: the iterations of the training of each application, and a model of its goodput fitted to the tables.
"""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path

from dovetail.model.errors import TraceError
from dovetail.model.goodput import Goodput, StepTime, step_time
from dovetail.model.job import Job, Profile, Traits, gang
from dovetail.model.units import micros
from dovetail.traces.csv_rows import Row, rows
from dovetail.traces.files import stem
from dovetail.traces.trace import Dropped, Trace, assembled

FITTED = "pollux"  # in place of a directory: the fitted models that are shipped
_MODELS = Path(__file__).parent / "data" / "pollux_models.json"
_MOST_REPLICAS = 64  # of an elastic job

# Yolov3's memory allows less than was measured (AdaptDL's simulator/applications.py).
_MOST_LOCAL = {"yolov3": 8.0}

_Times = dict[
    float, tuple[float, float]
]  # by local batch size: seconds of a step, and of its gradient exchange


def read_pollux(path: Path, profiles: Path | str | None = None, gpu: str = "", node: int = 4) -> Trace:
    """Pollux' and Sia's workload CSV with durations from measured tables.

    `profiles` is the directory with <application>/placements.csv, scalability.csv and validation-*.csv;
    `gpu` picks the tables of one GPU type (aws, rtx, dgx-ext ...), `node` is how many GPUs its nodes have.
    The rule: the number of steps is that of the validation run with the nearest batch size. The time of a
    step is the one measured for the replicas on the fewest nodes and the local batch size, interpolated
    linearly; gradients are accumulated over several passes if the local batch size is larger than any
    measured. Pollux itself changes batch size and replicas while a job runs; the fixed duration is that
    without changes.

    With profiles="pollux" it does so: jobs are elastic and have the model of goodput that is shipped for
    their application (measured on T4, four a node). Their work is that of a run with the application's first
    batch size; the batch size of the workload does not count, because jobs set their own.
    """
    if profiles == FITTED:
        return _adaptive(path, node)
    if profiles is None:
        raise TraceError(
            str(path),
            None,
            "has no durations",
            f"give profiles=DIRECTORY, the measured tables that came with it, or profiles={FITTED}",
        )
    tables = _Tables(Path(profiles), f"-{gpu}" if gpu else "", node)
    dropped = Dropped()
    kept: dict[tuple[str, int], Traits] = {}
    jobs = []
    for row in rows(path, ("name", "time", "application", "num_replicas", "batch_size")):
        model, replicas, batch = row.text("application"), row.whole("num_replicas"), row.whole("batch_size")
        if not replicas:
            dropped.add("no GPUs")
            continue
        if not batch:
            raise row.wrong("batch_size is 0", "give the global batch size")
        work = micros(tables.steps(row, model, batch) * tables.step_time(row, model, replicas, batch))
        if (model, batch) not in kept:
            kept[model, batch] = Traits(profile=Profile(batch=batch))
        submit, name = row.span("time"), row.text("name")
        jobs.append(Job(name, submit, gang(replicas), work, work, model=model, traits=kept[model, batch]))
    note = f"durations by the {gpu or 'default'} tables on the fewest nodes of {node} GPUs"
    return assembled(str(path), stem(path), "pollux", jobs, dropped, notes=(note,))


def _adaptive(path: Path, node: int) -> Trace:
    """Jobs with the models that are shipped."""
    models = _models()
    dropped, jobs = Dropped(), []
    for row in rows(path, ("name", "time", "application", "num_replicas")):
        name, replicas = row.text("application"), row.whole("num_replicas")
        if not replicas:
            dropped.add("no GPUs")
            continue
        if name not in models:
            raise row.wrong(f"no model of {name}; there are {', '.join(models)}", "give profiles=DIRECTORY")
        model, traits, iterations = models[name]
        work = micros(iterations * step_time(model, "", replicas, replicas > node, model.batch))
        jobs.append(
            Job(row.text("name"), row.span("time"), gang(replicas), work, work, model=name, traits=traits)
        )
    note = f"elastic, with the goodput fitted to Pollux' measurements, on nodes of {node} GPUs"
    return assembled(str(path), stem(path), "pollux", jobs, dropped, notes=(note,))


@cache
def _models() -> dict[str, tuple[Goodput, Traits, int]]:
    """For each application its model, the traits of its jobs, and its iterations at the first batch."""
    found = {}
    for name, read in json.loads(_MODELS.read_text()).items():
        figures = read["goodput"]
        steps = {kind: StepTime(**step) for kind, step in figures["steps"].items()}
        model = Goodput(**(figures | {"steps": steps}))
        traits = Traits(least=1, most=_MOST_REPLICAS, profile=Profile(goodput=model))
        found[name] = model, traits, read["iterations"]
    return found


class _Tables:
    """The tables of measurements of a directory, each read once."""

    def __init__(self, folder: Path, suffix: str, node: int) -> None:
        self._folder, self._suffix, self._node = folder, suffix, node
        self._runs = cache(self._read_runs)
        self._times = cache(self._read_times)

    def steps(self, row: Row, model: str, batch: int) -> float:
        runs = self._runs(model)
        if not runs:
            raise row.wrong(f"no validation runs of {model} in {self._folder}", "check profiles=DIRECTORY")
        return runs[min(runs, key=lambda size: (abs(size - batch), size))]

    def step_time(self, row: Row, model: str, replicas: int, batch: int) -> float:
        times = self._times(model)
        if not times:
            raise row.wrong(
                f"no step times of {model} in {self._folder}", "check profiles=DIRECTORY and gpu=TYPE"
            )
        nodes = -(-replicas // self._node)
        where = min(times, key=lambda count: (abs(count[1] - replicas), abs(count[0] - nodes), count))
        measured = times[where]
        local = batch / replicas
        passes = math.ceil(local / _MOST_LOCAL.get(model, max(measured)) - 1e-8)
        step, sync = _between(measured, local / passes)
        return step + (passes - 1) * (step - sync)

    def _read_runs(self, model: str) -> dict[int, float]:
        """Total steps, by global batch size."""
        runs: dict[int, float] = {}
        for path in sorted((self._folder / model).glob("validation-*.csv")):
            size = path.stem.rpartition("-")[2]
            if size.isdecimal():
                runs[int(size)] = max(row.number("iteration") for row in rows(path, ("iteration",)))
        return runs

    def _read_times(self, model: str) -> dict[tuple[int, int], _Times]:
        """Step times by (nodes, replicas); of several splits over nodes, the one that fills the nodes."""
        packed: dict[tuple[int, int], _Times] = {}
        others: dict[tuple[int, int], _Times] = {}
        placements = self._folder / model / f"placements{self._suffix}.csv"
        if placements.exists():
            for row in rows(placements, ("placement", "local_bsz", "step_time", "sync_time")):
                hosts = sorted(int(digit) for digit in row.text("placement") if digit.isdecimal())
                if not hosts:
                    raise row.wrong(
                        f"placement is {row.text('placement')!r}", "write the GPUs of each node, as 22"
                    )
                full = all(gpus == self._node for gpus in hosts[1:])
                table = (packed if full else others).setdefault((len(hosts), sum(hosts)), {})
                table.setdefault(row.number("local_bsz"), (row.number("step_time"), row.number("sync_time")))
        scalability = self._folder / model / f"scalability{self._suffix}.csv"
        if scalability.exists():
            for row in rows(
                scalability, ("num_nodes", "num_replicas", "local_bsz", "step_time", "sync_time")
            ):
                table = others.setdefault((row.whole("num_nodes"), row.whole("num_replicas")), {})
                table.setdefault(row.number("local_bsz"), (row.number("step_time"), row.number("sync_time")))
        return others | packed


def _between(known: _Times, at: float) -> tuple[float, float]:
    """Linear interpolation between measured points; constant beyond the outermost points."""
    above = min((point for point in known if point >= at), default=max(known))
    below = max((point for point in known if point <= at), default=min(known))
    if above == below:
        return known[above]
    part = (at - below) / (above - below)
    (step, sync), (step_above, sync_above) = known[below], known[above]
    return step + (step_above - step) * part, sync + (sync_above - sync) * part
