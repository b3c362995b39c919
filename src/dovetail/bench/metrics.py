"""The metrics of a run.

Times are seconds. JCT is the time from arrival to finish, of the jobs that finished. Waiting is the time in
which a job could run and did not, after preemptions too, up to its end or the last instant of the run; see
`model/waiting.py`. The time to first start is a figure of its own, of the jobs that started. Percentiles
interpolate linearly between neighbours, so that p50 is the usual median.

Fairness
    *rho* is the finish-time fairness of a job (Mahajan et al., "Themis", NSDI 2020): its JCT over the time it
    would take alone on a 1/n share of the cluster. n is the number of jobs in the system, averaged over the
    stay of the job (as in Gavel and Shockwave). With G GPUs in the cluster and g requested, that time is
    work * max(1, g n / G): the speed is taken to be proportional to the GPUs. Above 1 the job did worse.

    The GPUs *due* to a tenant are its weighted max-min share, capped by the requests of its jobs in the
    system. The run is cut into 500 time bins of equal length, and everything is averaged within each. Only
    bins with more requests than GPUs count, because without contention no tenant is treated unfairly. The
    *share error* is the part of the GPUs due that the tenants did not hold (0: all held what was due). *Jain*
    is Jain's index over service received / service due of the tenants (1: all equal). A job is taken to hold
    its GPUs evenly between its first start and its finish, which is exact unless it was preempted.

Cost and energy are those of all nodes from the first arrival to the last event. Each device in use adds the
average `gpu_watts` of the cluster's GPUs.

Fragmentation (after Weng et al., "Beware of fragmentation", ATC 2023) is the share of the free GPUs that a
waiting job cannot use, averaged over the waiting jobs; see `bench/fragmentation.py`. A policy that starts
every job that fits leaves only such GPUs free. Hence *stranded*: the same number as a share of all GPUs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from dovetail.model.cluster import Cluster
from dovetail.model.units import HOUR, SECOND, WHOLE
from dovetail.sim.outcomes import NEVER
from dovetail.sim.run import Run

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Reals = NDArray[np.float64]
    Wholes = NDArray[np.int64]
    Flags = NDArray[np.bool_]

STRETCHES = 500


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean, percentiles and maximum over jobs; all zero if there are none."""

    mean: float
    p50: float
    p90: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True)
class Group:
    """The jobs of one size class or one tenant."""

    name: str
    jobs: int
    finished: int
    jct: Spread
    wait: Spread
    first_start: Spread
    gpu_hours: float  # requested: work x GPUs


@dataclass(frozen=True, slots=True)
class Fairness:
    """Fairness between jobs and between tenants; None where it is undefined."""

    rho: Spread
    jain: float | None
    share_error: float | None


@dataclass(frozen=True, slots=True)
class Metrics:
    """The summary of a run; times in seconds."""

    policy: str
    options: Mapping[str, object]
    seed: int
    jobs: int
    finished: int
    jct: Spread
    wait: Spread
    first_start: Spread
    makespan: float
    utilization: float
    preemptions: int
    lost_gpu_seconds: float
    decisions: int
    cpu_seconds: float
    simulated: float  # from the first arrival to the last event
    by_size: tuple[Group, ...]
    by_tenant: tuple[Group, ...]  # the tenant with most work first
    fairness: Fairness
    deadlines: int
    missed: int
    cost: float | None  # in the currency of the nodes' prices
    energy_kwh: float | None
    fragmentation: float | None
    stranded: float | None
    failed: int  # ended without finishing
    waiting: int  # never ended

    def as_json(self) -> dict[str, Any]:
        """Plain values for a program."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class _Table:
    """The jobs of a run as arrays; times in microseconds, GPUs with their fractions."""

    submit: Wholes
    start: Wholes
    finish: Wholes
    executed: Wholes
    work: Wholes
    gpus: Reals


def metrics(run: Run, fragmentation: float | None = None, stranded: float | None = None) -> Metrics:
    """The summary of a run. A million jobs take two or three seconds."""
    import numpy as np  # noqa: PLC0415  (not needed for --help)

    jobs = run.jobs
    table = _Table(
        submit=np.array(jobs.submit, np.int64),
        start=np.array(jobs.start, np.int64),
        finish=np.array(jobs.finish, np.int64),
        executed=np.array(jobs.executed, np.int64),
        work=np.array(jobs.work, np.int64),
        gpus=np.array([job.shape.load for job in jobs.job]) / WHOLE,
    )
    deadline = np.array(jobs.deadline, np.int64)
    submit, start, finish = table.submit, table.start, table.finish
    done, started = finish != NEVER, start != NEVER
    jct: Reals = (finish - submit) / SECOND
    wait: Reals = jobs.wait(run.until) / SECOND
    first_start: Reals = jobs.first_start / SECOND
    service: Reals = table.work * table.gpus / HOUR

    def group(name: str, here: Flags) -> Group:
        return Group(
            name,
            int(here.sum()),
            int((here & done).sum()),
            spread(jct[here & done]),
            spread(wait[here]),
            spread(first_start[here & started]),
            float(service[here].sum()),
        )

    classes = _size_class(np, np.array(jobs.gpus, np.int64))
    by_size = tuple(group(size_name(int(k)), classes == k) for k in np.unique(classes))
    names, tenants = _codes(np, jobs.tenant)
    by_tenant = tuple(group(name, tenants == code) for code, name in enumerate(names)) if any(names) else ()
    finished = int(done.sum())
    began = int(submit.min()) if len(submit) else 0
    span = max(run.until - began, 0)
    dated = deadline != NEVER
    cost, energy = _bill(run.cluster, span / HOUR, run.busy / WHOLE / HOUR)
    jain, share_error = _shares(np, run, table, names, tenants)
    return Metrics(
        policy=run.policy,
        options=dict(run.options),
        seed=run.seed,
        jobs=len(submit),
        finished=finished,
        jct=spread(jct[done]),
        wait=spread(wait),
        first_start=spread(first_start[started]),
        makespan=float(finish.max() - began) / SECOND if finished else 0.0,
        utilization=utilization(run.busy, span, run.cluster.gpus) or 0.0,
        preemptions=run.preemptions,
        lost_gpu_seconds=run.lost / WHOLE / SECOND,
        decisions=run.decisions,
        cpu_seconds=run.cpu_seconds,
        simulated=span / SECOND,
        by_size=by_size,
        by_tenant=tuple(sorted(by_tenant, key=lambda group: (-group.gpu_hours, group.name))),
        fairness=Fairness(_rho(np, table, run.cluster.gpus), jain, share_error),
        deadlines=int(dated.sum()),
        missed=int((dated & (~done | (finish > deadline))).sum()),
        cost=cost,
        energy_kwh=energy,
        fragmentation=fragmentation,
        stranded=stranded,
        failed=len(jobs.end),
        waiting=len(run.waiting),
    )


def utilization(held: int, span: int, gpus: int) -> float | None:
    """The part of the GPU time that was held: milli-GPUs times a time, of the GPUs times the whole time.

    None if there was no GPU or no time.
    """
    return held / (span * gpus * WHOLE) if span > 0 and gpus else None


def spread(values: Reals) -> Spread:
    """Mean and percentiles."""
    import numpy as np  # noqa: PLC0415

    if not len(values):
        return Spread(0.0, 0.0, 0.0, 0.0, 0.0)
    p50, p90, p99, most = np.percentile(values, (50, 90, 99, 100))
    return Spread(float(values.mean()), float(p50), float(p90), float(p99), float(most))


def size_name(number: int) -> str:
    """The class of jobs with more than half of 2**number GPUs and up to all of them.

    >>> size_name(-1), size_name(0), size_name(1), size_name(3)
    ('no GPU', '1', '2', '5-8')
    """
    if number < 0:
        return "no GPU"
    low, high = (1 << number) // 2 + 1, 1 << number
    return str(high) if low >= high else f"{low}-{high}"


def _size_class(np: Any, gpus: Wholes) -> Wholes:
    found: Wholes = np.where(gpus > 0, np.ceil(np.log2(np.maximum(gpus, 1))), -1).astype(np.int64)
    return found


def _codes(np: Any, names: Sequence[str]) -> tuple[list[str], Wholes]:
    """The distinct names, and for every row the index of its name."""
    known = {name: code for code, name in enumerate(dict.fromkeys(names))}
    return list(known), np.fromiter(map(known.__getitem__, names), np.int64, len(names))


def _bill(cluster: Cluster, hours: float, busy_gpu_hours: float) -> tuple[float | None, float | None]:
    prices = sum(node.price for node in cluster.nodes)
    idle = sum(node.idle_watts for node in cluster.nodes)
    each = sum(node.gpu_watts * node.gpus for node in cluster.nodes) / max(cluster.gpus, 1)
    cost = prices * hours if prices else None
    return cost, (idle * hours + each * busy_gpu_hours) / 1_000 if idle or each else None


def _rho(np: Any, table: _Table, total: int) -> Spread:
    """Finish-time fairness; see the top of this file."""
    submit, done = table.submit, table.finish != NEVER
    if not done.any() or not total:
        return Spread(0.0, 0.0, 0.0, 0.0, 0.0)
    ends = table.finish[done]
    stay = np.maximum(ends - submit[done], 1)
    present = _area(np, np.sort(submit), ends) - _area(np, np.sort(submit), submit[done])
    present -= _area(np, np.sort(ends), ends) - _area(np, np.sort(ends), submit[done])
    contention = np.maximum(present / stay, 1.0)
    alone = table.work[done] * np.maximum(1.0, table.gpus[done] * contention / total)
    return spread(stay / np.maximum(alone, 1.0))


def _area(np: Any, moments: Wholes, at: Wholes, weights: Reals | None = None) -> Reals:
    """Integral up to `at` of the number (or weight) of the sorted moments that have passed."""
    weight = np.ones(len(moments)) if weights is None else weights
    before = np.searchsorted(moments, at)
    # offsets from the first moment keep the sums small enough for doubles
    first = moments[0] if len(moments) else 0
    mass = np.concatenate(([0.0], np.cumsum(weight)))
    lever = np.concatenate(([0.0], np.cumsum(weight * (moments - first))))
    found: Reals = mass[before] * (at - first) - lever[before]
    return found


def _shares(
    np: Any, run: Run, table: _Table, names: list[str], tenants: Wholes
) -> tuple[float | None, float | None]:
    """Jain's index over tenants and the share error; None without contention between tenants."""
    first = int(table.submit.min()) if len(names) > 1 else run.until
    if run.until <= first or not run.cluster.gpus:
        return None, None
    edges = np.linspace(first, run.until, STRETCHES + 1).astype(np.int64)
    width = np.diff(edges)
    end = np.where(table.finish == NEVER, run.until, table.finish)
    began = np.where(table.start == NEVER, end, table.start)
    rate = table.gpus * table.executed / np.maximum(end - began, 1)

    def over(here: Flags, since: Wholes, until: Wholes, weight: Reals) -> Reals:
        """Average in each time bin of the weight present between `since` and `until`."""
        total = np.zeros(len(edges))
        for moments, sign in ((since[here], 1.0), (until[here], -1.0)):
            order = np.argsort(moments, kind="stable")
            total += sign * _area(np, moments[order], edges, weight[here][order])
        averaged: Reals = np.diff(total) / np.maximum(width, 1)
        return averaged

    by_tenant = [tenants == code for code in range(len(names))]
    asked = np.stack([over(here, table.submit, end, table.gpus) for here in by_tenant])
    held = np.stack([over(here, began, end, rate) for here in by_tenant])
    weights = np.array([_weight(run.cluster, name) for name in names])
    crowded = asked.sum(axis=0) > run.cluster.gpus
    if not crowded.any():
        return None, None
    due = water_filled(np, asked[:, crowded], weights, run.cluster.gpus)
    held = held[:, crowded]
    error = float(np.maximum(due - held, 0.0).sum() / due.sum())
    owed = due.sum(axis=1)
    served = held.sum(axis=1)[owed > 0] / owed[owed > 0]
    squares = float((served**2).sum())
    jain = float(served.sum()) ** 2 / (len(served) * squares) if squares else None
    return jain, error


def water_filled(np: Any, asked: Reals, weights: Reals, total: float) -> Reals:
    """The weighted max-min share of each row in each column; no row gets more than it asks for."""
    level = asked / weights[:, None]
    order = np.argsort(level, axis=0, kind="stable")
    sorted_level = np.take_along_axis(level, order, axis=0)
    sorted_asked = np.take_along_axis(asked, order, axis=0)
    sorted_weight = weights[order]
    # if the water stops at the k-th lowest level, rows below get their request, the others that level
    below = np.cumsum(sorted_asked, axis=0) - sorted_asked
    above = np.cumsum(sorted_weight[::-1], axis=0)[::-1]
    dry = below + sorted_level * above > total
    stop = np.where(dry.any(axis=0), dry.argmax(axis=0), len(weights) - 1)
    column = np.arange(asked.shape[1])
    height = (total - below[stop, column]) / above[stop, column]
    height = np.where(dry.any(axis=0), height, np.inf)
    filled: Reals = np.minimum(asked, weights[:, None] * height)
    return filled


def _weight(cluster: Cluster, tenant: str) -> float:
    known = cluster.tenants.get(tenant)
    return known.weight if known and known.weight > 0 else 1.0
