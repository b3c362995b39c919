"""The tournament: every working policy on the same workloads, each judged by what it claims.

The objectives in the catalogue say what a system was published for. A policy *falls short* on a workload if
it claims to be better in a figure, and is worse than `fifo` there in the mean over the seeds, by more than
SLACK. A shortfall says on how many seeds: a long job on a slow GPU can decide one makespan.

The figures are

- completion time: the mean JCT, on every workload;
- utilisation: the makespan, on every workload (all policies have the same work to do);
- fairness of finish times (mechanism `fair.ftf`): the worst rho, on every workload;
- fairness of shares: Jain's index, where tenants have quotas;
- deadlines: the part that was missed, where jobs have deadlines.

A policy that leaves jobs unfinished falls short in whatever it claims. Cost is not judged, since the nodes
have no prices. Figures depend on the workload and the seeds alone, except CPU seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from statistics import fmean

from dovetail.bench.compare import COLUMNS, MORE_COLUMNS, Column, Comparison, compared
from dovetail.bench.policy_choice import PolicyChoice
from dovetail.bench.workloads import Workload
from dovetail.model.job import Job
from dovetail.policies.catalogue import System, read_systems

BASELINE = "fifo"
SEEDS = 3
SLACK = 0.02
_SOLVERS = ("clarabel", "highspy", "scipy.optimize")

_KNOWN = {column.key: column for column in (*COLUMNS, *MORE_COLUMNS)}
CPU = Column(
    "cpu_per_thousand", "CPU s per 1,000 jobs", "plain", lambda m: 1_000 * m.cpu_seconds / max(m.jobs, 1)
)
UNFINISHED = Column("unfinished", "jobs unfinished", "count", lambda m: m.jobs - m.finished)
FIGURES = (
    _KNOWN["jct_mean"],
    _KNOWN["jct_p99"],
    _KNOWN["makespan"],
    _KNOWN["rho_max"],
    _KNOWN["jain"],
    _KNOWN["missed"],
    _KNOWN["preemptions"],
    _KNOWN["lost_gpu_hours"],
    UNFINISHED,
    CPU,
)


@dataclass(frozen=True, slots=True)
class Claim:
    """An objective of a system, and the figure by which it is judged."""

    objective: str
    column: Column
    where: Callable[[Workload], bool]


def _everywhere(workload: Workload) -> bool:
    return True


def claims_of(system: System) -> Iterator[Claim]:
    """What a system claims to do better than `fifo`; nothing if it is a reference itself."""
    for objective in system.objectives:
        if objective == "jct":
            yield Claim("completion time", _KNOWN["jct_mean"], _everywhere)
        elif objective == "util":
            yield Claim("utilisation", _KNOWN["makespan"], _everywhere)
        elif objective == "fair" and "fair.ftf" in system.mechanisms:
            yield Claim("fairness", _KNOWN["rho_max"], _everywhere)
        elif objective == "fair":
            yield Claim("fairness", _KNOWN["jain"], lambda workload: bool(workload.tenants))
        elif objective == "ddl":
            yield Claim("deadlines", _KNOWN["missed"], lambda workload: workload.dated)


@dataclass(frozen=True, slots=True)
class Shortfall:
    """A policy is worse than the baseline where it claims to be better."""

    label: str
    workload: str
    claim: Claim
    value: float
    baseline: float
    worse: int  # on this many seeds
    seeds: int
    unfinished: float  # jobs that did not end


@dataclass(frozen=True, slots=True)
class Tournament:
    """The figures of every policy on every workload."""

    workloads: tuple[Workload, ...]
    choices: tuple[PolicyChoice, ...]
    seeds: int
    jobs: int  # of one run
    played: Mapping[str, Comparison]  # by workload
    systems: Mapping[str, System] = field(repr=False)

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(choice.label for choice in self.choices)

    def figure(self, workload: str, label: str, column: Column) -> float | None:
        """The mean over the seeds; None if the workload does not have this figure."""
        found = self.played[workload].interval(label, column)
        return None if found is None else found.mean

    def columns(self, workload: str) -> list[Column]:
        """The figures of a workload: without deadlines if no job has one, and so on."""
        shown = [
            column
            for column in FIGURES
            if any(self.figure(workload, label, column) is not None for label in self.labels)
        ]
        whole = all(self.figure(workload, label, UNFINISHED) == 0 for label in self.labels)
        return [column for column in shown if column is not UNFINISHED or not whole]

    def against_baseline(self, workload: str, label: str) -> float | None:
        """Mean JCT over that of the baseline; None if not every job finished."""
        found = self.played[workload]
        mine = self.figure(workload, label, _KNOWN["jct_mean"])
        other = self.figure(workload, BASELINE, _KNOWN["jct_mean"])
        return mine / other if mine is not None and other and found.whole(label) else None

    def cpu(self, label: str) -> float:
        """CPU seconds per thousand jobs, the mean over the workloads."""
        values = [self.figure(workload.name, label, CPU) or 0.0 for workload in self.workloads]
        return sum(values) / len(values)

    def shortfalls(self, label: str) -> list[Shortfall]:
        """Where the policy is worse than the baseline in what it claims."""
        choice = next(choice for choice in self.choices if choice.label == label)
        system = self.systems.get(choice.policy)
        return [
            found
            for workload in self.workloads
            for claim in (claims_of(system) if system else ())
            if claim.where(workload) and (found := self._judged(label, workload.name, claim))
        ]

    def _judged(self, label: str, workload: str, claim: Claim) -> Shortfall | None:
        grid = self.played[workload]
        mine, other = grid.values(label, claim.column), grid.values(BASELINE, claim.column)
        if mine is None or other is None:
            return None
        sign = 1.0 if claim.column.low else -1.0
        gaps = [sign * (a - b) for a, b in zip(mine, other, strict=True)]
        value, baseline = fmean(mine), fmean(other)
        left = self.figure(workload, label, UNFINISHED) or 0.0
        if not left and fmean(gaps) <= SLACK * abs(baseline):
            return None
        worse = sum(1 for gap in gaps if gap > 0)
        return Shortfall(label, workload, claim, value, baseline, worse, len(gaps), left)


def working_policies() -> list[PolicyChoice]:
    """Every system of the catalogue that works, with its default options."""
    return [PolicyChoice(system.name) for system in read_systems().values() if system.works]


@dataclass(frozen=True, slots=True)
class _Drawn:
    """The jobs of a workload, drawn before the processes start."""

    workload: Workload
    by_seed: Sequence[list[Job]]

    @property
    def name(self) -> str:
        return self.workload.name

    @property
    def varies(self) -> str:
        return "the jobs are drawn again for each seed"

    def jobs(self, seed: int) -> list[Job]:
        return self.by_seed[seed]


Progress = Callable[[str, str, int, float], None]  # workload, label, seed, share of the run


def played(
    workloads: Sequence[Workload],
    choices: Sequence[PolicyChoice],
    *,
    jobs: int,
    seeds: int = SEEDS,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Tournament:
    """Run every policy on every workload. The baseline is added if it was not chosen."""
    systems = read_systems()
    if all(choice.label != BASELINE for choice in choices):
        choices = [PolicyChoice(BASELINE), *choices]
    _load_solvers()
    found = {}
    for workload in workloads:
        drawn = _Drawn(workload, [workload.jobs(seed, jobs) for seed in range(seeds)])
        found[workload.name] = compared(
            drawn,
            workload.cluster,
            choices,
            described=workload.spec,
            seeds=seeds,
            workers=workers,
            progress=_told(progress, workload.name),
        )
    return Tournament(tuple(workloads), tuple(choices), seeds, jobs, found, systems)


def _told(progress: Progress | None, workload: str) -> Callable[[str, int, float], None] | None:
    if progress is None:
        return None
    return lambda label, seed, share: progress(workload, label, seed, share)


def _load_solvers() -> None:
    """Import the solvers once, before any CPU time is measured: each run has a process of its own."""
    for name in _SOLVERS:
        with suppress(ImportError):
            import_module(name)
