"""What a report draws of one run, thinned out until it is small enough to send and to look at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dovetail.core.core import Core, Step
from dovetail.model.cluster import Cluster
from dovetail.model.job import Job, Shape
from dovetail.model.units import SECOND, WHOLE
from dovetail.sim.outcomes import NEVER
from dovetail.sim.run import Run

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

POINTS = 240  # of a curve
MOST_ROWS = 60  # jobs in a Gantt chart
MOST_BARS = 400
SAMPLES = 400  # of the fragmentation


@dataclass(frozen=True, slots=True)
class Bar:
    """A job held devices from one second to another; `row` is its place in the chart."""

    row: int
    start: float
    end: float
    nodes: str


@dataclass(frozen=True, slots=True)
class Row:
    """A job of the Gantt chart."""

    job: str
    gpus: int
    submit: float
    start: float | None
    finish: float | None


@dataclass(frozen=True, slots=True)
class Figures:
    """Curves and bars of one run; times in seconds from the first arrival."""

    cdf: list[tuple[float, float]]  # (completion time, share of the jobs done within it)
    edges: list[float]  # of the stretches over which the next three are averaged
    in_use: list[float]  # share of the GPUs
    waiting: list[float]  # jobs
    fragmentation: list[tuple[float, float]]
    rows: list[Row]
    bars: list[Bar]
    stretches: int  # of the rows, before bars were left out


@dataclass(slots=True)
class Sampler:
    """Looks at the free GPUs now and then, while a run goes on.

    For a shape that waits, the packed placement is cut into parts of whole nodes and a rest; a node whose
    free GPUs hold no part is of no use to it, and nothing is if all the useful ones together are too few.
    """

    every: int
    due: int = 0
    seen: list[tuple[int, float]] = field(default_factory=list)

    def watch(self, core: Core, step: Step) -> None:
        if step.now < self.due:
            return
        self.due = step.now + self.every
        if len(core.queue) and (free := core.room.free_gpus):
            self.seen.append((step.now, useless_share(core, free)))

    @property
    def mean(self) -> float | None:
        """Over the moments at which jobs waited and GPUs were free."""
        return sum(share for _, share in self.seen) / len(self.seen) if self.seen else None


def useless_share(core: Core, free: int) -> float:
    """Of the free GPUs, those that a waiting job could not use, averaged over the jobs that wait."""
    blocks: Counter[tuple[str, int, int]] = Counter()  # (type, GPUs of the node, free ones) -> nodes
    for number, node in enumerate(core.cluster.nodes):
        if there := core.room.free_on(number).bit_count():
            blocks[node.type.name, node.gpus, there] += 1
    total = jobs = 0.0
    for shape, count in Counter(job.shape for job in core.queue).items():
        total += count * (1.0 - min(useful(shape, blocks) / free, 1.0))
        jobs += count
    return total / jobs


def useful(shape: Shape, blocks: Counter[tuple[str, int, int]]) -> int:
    """Free GPUs on nodes that could hold a part of the gang; none if they are too few for all of it."""
    found = 0
    for (kind, size, there), nodes in blocks.items():
        if shape.types and kind not in shape.types:
            continue
        part = shape.gpus if shape.gpus <= size else (shape.gpus % size or size)
        if there >= max(part, shape.each):
            found += there * nodes
    return found if found >= shape.gpus else 0


def sampler(jobs: Sequence[Job]) -> Sampler:
    """One that looks some hundreds of times while jobs arrive."""
    span = jobs[-1].arrived_at - jobs[0].arrived_at if jobs else 0
    return Sampler(max(span // SAMPLES, 1))


def shown_jobs(jobs: Sequence[Job], cluster: Cluster) -> list[str]:
    """The jobs whose fate is drawn: all of a small trace, else a run of arrivals while the cluster fills.

    They are those around the moment at which the work offered so far, served as a fluid by all GPUs at once,
    first left more behind than an hour of the whole cluster; if it never does, those where most is left.
    The choice looks at the trace alone, so that every policy is shown with the same jobs.
    """
    if len(jobs) <= MOST_ROWS:
        return [job.id for job in jobs]
    speed, backlog, most, peak, last = cluster.gpus * WHOLE, 0, -1, 0, jobs[0].arrived_at
    enough = speed * 3_600 * SECOND
    for place, job in enumerate(jobs):
        backlog = max(0, backlog - speed * (job.arrived_at - last)) + job.work * job.shape.load
        last = job.arrived_at
        if backlog > most:
            most, peak = backlog, place
        if backlog >= enough:
            break
    first = max(0, min(peak - MOST_ROWS // 2, len(jobs) - MOST_ROWS))
    return [job.id for job in jobs[first : first + MOST_ROWS]]


def figures(run: Run, shown: Sequence[str], seen: Sampler | None = None) -> Figures:
    """The curves of a run that kept its series and stretches, and the bars of the jobs to be shown."""
    jobs = run.jobs
    began = jobs.job[0].arrived_at if jobs.job else 0
    place = {job: row for row, job in enumerate(shown)}
    rows: list[Row | None] = [None] * len(shown)
    for number, job in enumerate(jobs.job):
        if job.id in place:
            start, finish = jobs.start[number], jobs.finish[number]
            rows[place[job.id]] = Row(
                job.id,
                job.shape.gpus,
                (job.arrived_at - began) / SECOND,
                None if start == NEVER else (start - began) / SECOND,
                None if finish == NEVER else (finish - began) / SECOND,
            )
    drawn = [held for held in run.stretches if held.job in place]
    drawn.sort(key=lambda held: (held.start, place[held.job]))
    bars = [
        Bar(
            place[held.job],
            (held.start - began) / SECOND,
            (held.end - began) / SECOND,
            ", ".join(dict.fromkeys(run.cluster.nodes[spot[0]].name for spot in held.spots[:8]))
            + (" ..." if len(held.spots) > 8 else ""),
        )
        for held in drawn
        if held.end > held.start
    ]
    edges, in_use, waiting = _series(run, began)
    return Figures(
        cdf=_cdf(run),
        edges=edges,
        in_use=in_use,
        waiting=waiting,
        fragmentation=[((at - began) / SECOND, share) for at, share in seen.seen] if seen else [],
        rows=[row for row in rows if row is not None],
        bars=bars[:MOST_BARS],
        stretches=len(bars),
    )


def _cdf(run: Run) -> list[tuple[float, float]]:
    """Completion times at evenly spaced shares, the first and the last among them."""
    import numpy as np  # noqa: PLC0415

    if not len(run.jobs.finish):
        return []
    finish = np.array(run.jobs.finish, np.int64)
    submit = np.array(run.jobs.submit, np.int64)
    done = finish != NEVER
    times = np.sort((finish - submit)[done]) / SECOND
    if not len(times):
        return []
    picked = np.unique(np.linspace(0, len(times) - 1, min(POINTS, len(times))).round().astype(np.int64))
    return [(float(times[k]), float(k + 1) / len(finish)) for k in picked]


def _series(run: Run, began: int) -> tuple[list[float], list[float], list[float]]:
    """GPUs in use and jobs waiting, each averaged over equal stretches of time."""
    import numpy as np  # noqa: PLC0415

    if not run.series or run.until <= began or not run.cluster.gpus:
        return [], [], []
    table = np.array(run.series, dtype=np.float64)
    table[:, 0] -= began
    edges = np.linspace(0.0, run.until - began, POINTS + 1)
    gaps = np.diff(table[:, 0], append=edges[-1])

    def averaged(values: NDArray[np.float64]) -> NDArray[np.float64]:
        """A level holds from its moment to the next; its integral is linear in between."""
        area = np.concatenate(([0.0], np.cumsum(values * gaps)))
        moments = np.concatenate((table[:, 0], [edges[-1]]))
        found: NDArray[np.float64] = np.diff(np.interp(edges, moments, area)) / np.diff(edges)
        return found

    in_use = averaged(table[:, 1]) / (run.cluster.gpus * WHOLE)
    waiting = averaged(table[:, 2])
    return (edges / SECOND).tolist(), in_use.tolist(), waiting.tolist()
