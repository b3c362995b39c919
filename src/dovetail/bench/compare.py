"""Comparisons of policies: a grid of runs over policies and seeds, one process for each core.

Over several seeds a figure is the mean with its 95 % confidence interval by Student's t:
mean ± t(0.975, n-1) s / sqrt(n), where s is the standard deviation over the n seeds. All policies run the
same traces, so differences are paired: a policy is *level* with the best one in a column if the confidence
interval of their difference, seed by seed, contains zero.
"""

from __future__ import annotations

import gc
import math
import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from typing import Any

from dovetail.bench.chart_data import ChartData, chart_data, shown_jobs
from dovetail.bench.fragmentation import Sampler, sampler
from dovetail.bench.metrics import Metrics, metrics
from dovetail.bench.policy_choice import PolicyChoice, make_policy
from dovetail.bench.resample import Source
from dovetail.core.core import Core, Step
from dovetail.model.cluster import Cluster
from dovetail.model.errors import DovetailError, InputError
from dovetail.model.estimate_errors import EstimateErrors
from dovetail.model.job import Job
from dovetail.model.units import WHOLE
from dovetail.sim.run import Run, run

# Student's t at 0.975 for 1 to 30 degrees of freedom; beyond, 1.96 + 2.4/df is right to three digits.
_T = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)


@dataclass(frozen=True, slots=True)
class Result:
    """One run of the grid."""

    label: str
    seed: int
    metrics: Metrics
    charts: ChartData | None = None
    stalled: tuple[str, ...] = ()
    stalled_gpus: int = 0  # held by stalled jobs


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean over seeds, and half the width of its 95 % interval (None for a single seed)."""

    mean: float
    half: float | None = None


@dataclass(frozen=True, slots=True)
class Column:
    """A figure by which policies are compared."""

    key: str
    title: str
    unit: str  # time | share | count | plain
    read: Callable[[Metrics], float | None]
    low: bool = True  # a lower value is better


COLUMNS = (
    Column("jct_mean", "mean completion", "time", lambda m: m.jct.mean),
    Column("jct_p50", "p50 completion", "time", lambda m: m.jct.p50),
    Column("jct_p99", "p99 completion", "time", lambda m: m.jct.p99),
    Column("wait_mean", "mean waiting", "time", lambda m: m.wait.mean),
    Column("first_start_mean", "mean first start", "time", lambda m: m.first_start.mean),
    Column("makespan", "makespan", "time", lambda m: m.makespan),
    Column("utilization", "in use", "share", lambda m: m.utilization, low=False),
    Column("preemptions", "preemptions", "count", lambda m: m.preemptions),
)
MORE_COLUMNS = (
    Column("rho_mean", "mean finish-time rho", "plain", lambda m: m.fairness.rho.mean),
    Column("rho_max", "worst finish-time rho", "plain", lambda m: m.fairness.rho.max),
    Column("jain", "Jain's index", "plain", lambda m: m.fairness.jain, low=False),
    Column("share_error", "share error", "share", lambda m: m.fairness.share_error),
    Column("missed", "deadlines missed", "share", lambda m: m.missed / m.deadlines if m.deadlines else None),
    Column("lost_gpu_hours", "GPU-hours lost", "count", lambda m: m.lost_gpu_seconds / 3_600),
    Column("stranded", "GPUs stranded", "share", lambda m: m.stranded),
    Column("cost", "cost", "count", lambda m: m.cost),
    Column("energy_kwh", "energy, kWh", "count", lambda m: m.energy_kwh),
)


@dataclass(frozen=True, slots=True)
class Comparison:
    """The runs of a grid, and the best policies."""

    trace: str
    cluster: str  # as the user wrote it
    gpus: int
    varies: str
    labels: tuple[str, ...]
    seeds: int
    results: Mapping[str, tuple[Result, ...]]  # by label, in the order of the seeds

    def values(self, label: str, column: Column) -> list[float] | None:
        """The values of a figure, seed by seed; None if a run lacks the figure."""
        found = [column.read(result.metrics) for result in self.results[label]]
        values = [value for value in found if value is not None]
        return values if values and len(values) == len(found) else None

    def interval(self, label: str, column: Column) -> Interval | None:
        values = self.values(label, column)
        return None if values is None else interval(values)

    def best(self, column: Column) -> frozenset[str]:
        """The policies with the best mean; empty if all are equal or there is only one policy.

        A policy that left jobs unfinished is no candidate: the jobs it finished may be the easy ones.
        """
        means = {
            label: found.mean
            for label in self.labels
            if (found := self.interval(label, column)) is not None and self.whole(label)
        }
        if len(means) < 2 or len(set(means.values())) < 2:
            return frozenset()
        least = min(means.values()) if column.low else max(means.values())
        return frozenset(label for label, mean in means.items() if mean == least)

    def level(self, column: Column) -> frozenset[str]:
        """The policies without a significant difference from the best; empty for a single seed."""
        best = self.best(column)
        if not best or self.seeds < 2:
            return frozenset()
        first = self.values(next(label for label in self.labels if label in best), column) or []
        found = set()
        for label in self.labels:
            values = self.values(label, column)
            if label in best or values is None or not self.whole(label):
                continue
            gap = interval([a - b for a, b in zip(values, first, strict=True)])
            if gap.half is not None and abs(gap.mean) <= gap.half:
                found.add(label)
        return frozenset(found)

    def marks(self, column: Column, printed: Mapping[str, str]) -> dict[str, str]:
        """`best` or `level`, by label. What is printed the same is marked the same.

        Digits that are not printed do not count. If all is printed the same, there is no best.
        """
        marks = {printed[label]: "level" for label in self.level(column)}
        marks |= {printed[label]: "best" for label in self.best(column)}
        if len(set(printed.values())) < 2:
            return {}
        return {label: marks[text] for label, text in printed.items() if text in marks and self.whole(label)}

    def whole(self, label: str) -> bool:
        """Whether every job ended, in all runs of this policy."""
        return not any(result.stalled or result.metrics.waiting for result in self.results[label])

    def first(self, label: str) -> Result:
        """The run of seed 0."""
        return self.results[label][0]


def interval(values: Sequence[float]) -> Interval:
    """Mean and half-width of the 95 % interval.

    >>> interval([5.0, 5.0, 5.0])
    Interval(mean=5.0, half=0.0)
    """
    count = len(values)
    mean = math.fsum(values) / count
    if count < 2:
        return Interval(mean)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1))
    freedom = count - 1
    t = _T[freedom - 1] if freedom <= len(_T) else 1.96 + 2.4 / freedom
    return Interval(mean, t * deviation / math.sqrt(count))


Progress = Callable[[str, int, float], None]  # of one run: label, seed, share of its jobs that have arrived


def compared(
    source: Source,
    cluster: Cluster,
    choices: Sequence[PolicyChoice],
    *,
    described: str = "",
    seeds: int = 1,
    draw: bool = False,
    workers: int | None = None,
    prepare: Callable[[list[Job]], list[Job]] | None = None,
    errors: EstimateErrors | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Run every policy on the trace of every seed.

    `prepare` is applied to the jobs of each seed (to take fewer jobs, or to set restart costs); `errors` of
    estimates are drawn anew for each seed; `draw` keeps the chart data of seed 0 for a report.
    """
    cells = [(choice, seed) for seed in range(seeds) for choice in choices]

    def work(cell: tuple[PolicyChoice, int], tell: Callable[[float], None] | None) -> Result:
        choice, seed = cell
        jobs = source.jobs(seed)
        if prepare:
            jobs = prepare(jobs)
        wrong = None if errors is None else replace(errors, seed=seed)
        return measured_run(
            choice, jobs, cluster, seed=seed, errors=wrong, draw=draw and seed == 0, tell=tell
        )

    found: dict[tuple[str, int], Result] = {}
    for result in _mapped(work, cells, workers or os.cpu_count() or 1, progress):
        found[result.label, result.seed] = result
    labels = tuple(choice.label for choice in choices)
    return Comparison(
        trace=source.name,
        cluster=described or f"{cluster.gpus} GPUs",
        gpus=cluster.gpus,
        varies=source.varies,
        labels=labels,
        seeds=seeds,
        results={label: tuple(found[label, seed] for seed in range(seeds)) for label in labels},
    )


def measured_run(
    choice: PolicyChoice,
    jobs: list[Job],
    cluster: Cluster,
    *,
    seed: int = 0,
    errors: EstimateErrors | None = None,
    draw: bool = False,
    tell: Callable[[float], None] | None = None,
) -> Result:
    """Run one policy and compute its metrics."""
    look = sampler(jobs) if draw else None
    made = run(
        WithProgress(jobs, tell) if tell else jobs,
        cluster,
        make_policy(choice),
        name=choice.policy,
        seed=seed,
        errors=errors,
        options=choice.options,
        trace=draw,
        on_step=look.watch if look else None,
    )
    return result_of(made, choice.label, look)


Hook = Callable[[Core, Step], None]


def watching(*hooks: Hook | None) -> Hook | None:
    """One hook that calls all hooks that are not None."""
    there = [hook for hook in hooks if hook is not None]
    if len(there) < 2:
        return there[0] if there else None

    def watch(core: Core, step: Step) -> None:
        for hook in there:
            hook(core, step)

    return watch


def result_of(made: Run, label: str, look: Sampler | None = None) -> Result:
    """The result of a run; with a sampler that watched the run, also its chart data."""
    drawn = None if look is None else chart_data(made, shown_jobs(made.jobs.job, made.cluster), look)
    shares = (look.fragmentation, look.stranded(made.cluster.gpus)) if look else (None, None)
    return Result(
        label=label,
        seed=made.seed,
        metrics=metrics(made, *shares),
        charts=drawn,
        stalled=tuple(made.stalled),
        stalled_gpus=-(-made.stalled_load // WHOLE),
    )


class WithProgress(Sequence[Job]):
    """Jobs that report how many of them have been read, about a hundred times."""

    def __init__(self, jobs: Sequence[Job], tell: Callable[[float], None]) -> None:
        self._jobs = jobs
        self._tell = tell

    def __len__(self) -> int:
        return len(self._jobs)

    def __getitem__(self, at: Any) -> Any:
        return self._jobs[at]

    def __iter__(self) -> Iterator[Job]:
        step = max(len(self._jobs) // 100, 1)
        for first in range(0, len(self._jobs), step):
            self._tell(first / len(self._jobs))
            yield from self._jobs[first : first + step]


# --- over processes --------------------------------------------------------------------------------

_Work = Callable[[tuple[PolicyChoice, int], Callable[[float], None] | None], Result]


def _mapped(
    work: _Work, cells: Sequence[tuple[PolicyChoice, int]], workers: int, progress: Progress | None
) -> Iterator[Result]:
    """Run each cell of the grid; yields results as they arrive.

    Each cell has its own forked process, so the trace is read once and shared. A process that dies (out of
    memory, say) is an error. On systems without fork the cells run one after another in this process.
    """
    if min(workers, len(cells)) < 2 or "fork" not in multiprocessing.get_all_start_methods():
        for cell in cells:
            tell = _teller(progress, cell)
            result = work(cell, tell)
            if tell:
                tell(1.0)
            yield result
        return
    context = multiprocessing.get_context("fork")
    gc.collect()
    gc.freeze()  # a garbage collection in a child would copy the memory of all shared jobs
    left = deque(cells)
    live: dict[Connection, tuple[ForkProcess, tuple[PolicyChoice, int]]] = {}
    try:
        while left or live:
            while left and len(live) < workers:
                cell = left.popleft()
                ours, theirs = context.Pipe(duplex=False)
                process = context.Process(
                    target=_answer, args=(work, cell, theirs, progress is not None), daemon=True
                )
                process.start()
                theirs.close()
                live[ours] = (process, cell)
            for ready in wait(list(live)):
                assert isinstance(ready, Connection)
                process, cell = live[ready]
                try:
                    said, value = ready.recv()
                except EOFError:
                    process.join()
                    raise DovetailError(
                        f"the run of {cell[0].label}, seed {cell[1]}, was killed (exit {process.exitcode}); "
                        "if memory ran out, try --workers 1 or --head"
                    ) from None
                if said == "at":
                    if progress:
                        progress(cell[0].label, cell[1], value)
                    continue
                del live[ready]
                ready.close()
                process.join()
                if said == "input error":
                    raise InputError(value)
                if said == "error":
                    raise DovetailError(f"{cell[0].label}, seed {cell[1]}: {value}")
                if progress:
                    progress(cell[0].label, cell[1], 1.0)
                yield value
    finally:
        gc.unfreeze()
        for process, _ in live.values():
            process.terminate()
        for process, _ in live.values():
            process.join()


def _teller(progress: Progress | None, cell: tuple[PolicyChoice, int]) -> Callable[[float], None] | None:
    if progress is None:
        return None
    return lambda share: progress(cell[0].label, cell[1], share)


def _answer(work: _Work, cell: tuple[PolicyChoice, int], pipe: Connection, talk: bool) -> None:
    """In the child process: do the work and send the result."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles ^C and terminates its children
    try:
        pipe.send(("done", work(cell, (lambda share: pipe.send(("at", share))) if talk else None)))
    except InputError as error:
        pipe.send(("input error", str(error)))
    except DovetailError as error:
        pipe.send(("error", str(error)))
    except Exception as error:
        pipe.send(("error", f"{type(error).__name__}: {error}"))
        raise
