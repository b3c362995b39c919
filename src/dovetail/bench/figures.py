"""What a report draws of one run, thinned out until it is small enough to send and to look at."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import pairwise
from typing import TYPE_CHECKING

from dovetail.core.core import Core, Step
from dovetail.model.cluster import Cluster
from dovetail.model.job import Job, Shape
from dovetail.model.units import HOUR, SECOND, WHOLE
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
    stranded: list[tuple[float, float]]  # share of the GPUs that is free and of no use to who waits
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
    seen: list[tuple[int, int, float]] = field(default_factory=list)  # (time, free GPUs, useless ones)
    crowded: int = 0  # how often jobs waited

    def watch(self, core: Core, step: Step) -> None:
        if step.now < self.due:
            return
        self.due = step.now + self.every
        if not len(core.queue):
            self.seen.append((step.now, 0, 0.0))
            return
        self.crowded += 1
        free = core.room.free_gpus
        self.seen.append((step.now, free, useless(core, free) if free else 0.0))

    @property
    def fragmentation(self) -> float | None:
        """Useless GPUs of the free ones, over the moments at which jobs waited; None if none was free."""
        free = sum(free for _, free, _ in self.seen)
        return sum(useless for _, _, useless in self.seen) / free if free else None

    def stranded(self, gpus: int) -> float | None:
        """Useless GPUs of all there are, over the moments at which jobs waited; None if none did."""
        return sum(useless for _, _, useless in self.seen) / (self.crowded * gpus) if self.crowded else None


def useless(core: Core, free: int) -> float:
    """How many of the free GPUs a waiting job could not use, averaged over the jobs that wait."""
    blocks: Counter[tuple[str, int, int]] = Counter()  # (type, GPUs of the node, free ones) -> nodes
    for number, node in enumerate(core.cluster.nodes):
        if there := core.room.free_on(number).bit_count():
            blocks[node.type.name, node.gpus, there] += 1
    total = jobs = 0.0
    for shape, count in Counter(job.shape for job in core.queue).items():
        total += count * (free - min(useful(shape, blocks), free))
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
    """The jobs whose fate is drawn: all of a small trace, else some that arrive as the queue builds up.

    They are taken evenly over a stretch of time, for a burst of a hundred twins would show one thing only.
    It begins a little before the GPUs would no longer suffice if every job started on arrival (or, if they
    always do, before most are wanted) and is doubled until enough jobs are found. The choice looks at the
    trace alone, so that every policy is shown with the same jobs.
    """
    if len(jobs) <= MOST_ROWS:
        return [job.id for job in jobs]
    times = [job.arrived_at for job in jobs]
    turn = times[_crowded(jobs, cluster)]
    length = HOUR
    while True:
        slots = [turn + (slot - MOST_ROWS // 8) * length // MOST_ROWS for slot in range(MOST_ROWS + 1)]
        places = [bisect_left(times, slot) for slot in slots]
        picked = [first for first, after in pairwise(places) if first < after]
        if len(picked) >= 0.75 * MOST_ROWS or length > times[-1] - times[0]:
            return [jobs[place].id for place in picked]
        length *= 2


def _crowded(jobs: Sequence[Job], cluster: Cluster) -> int:
    """The first arrival that would not fit if all started at once on a boundless cluster; or the busiest."""
    room, wanted, most, peak = cluster.gpus * WHOLE, 0, -1, 0
    ends: list[tuple[int, int]] = []
    for place, job in enumerate(jobs):
        while ends and ends[0][0] <= job.arrived_at:
            wanted -= heappop(ends)[1]
        wanted += job.shape.load
        heappush(ends, (job.arrived_at + job.work, job.shape.load))
        if wanted > most:
            most, peak = wanted, place
        if wanted > room:
            break
    return peak


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
        stranded=[
            ((at - began) / SECOND, useless / run.cluster.gpus)
            for at, _, useless in (seen.seen if seen else ())
        ],
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
