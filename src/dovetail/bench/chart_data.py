"""The data of the charts of one run, thinned out so that a report stays small."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import pairwise
from typing import TYPE_CHECKING

from dovetail.bench.fragmentation import Sampler
from dovetail.model.cluster import Cluster
from dovetail.model.job import Job
from dovetail.model.units import HOUR, SECOND, WHOLE
from dovetail.sim.outcomes import NEVER
from dovetail.sim.run import Run

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

POINTS = 240  # points of a curve
MOST_ROWS = 60  # jobs in a Gantt chart
MOST_BARS = 400


@dataclass(frozen=True, slots=True)
class Bar:
    """A job held devices from `start` to `end` (seconds); `row` is its row in the chart."""

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
    wait: float
    finish: float | None


@dataclass(frozen=True, slots=True)
class ChartData:
    """Curves and bars of one run; times in seconds from the first arrival."""

    cdf: list[tuple[float, float]]  # (completion time, share of the jobs that finished within it)
    edges: list[float]  # of the time bins over which in_use and waiting are averaged
    in_use: list[float]  # share of the GPUs
    waiting: list[float]  # jobs
    stranded: list[tuple[float, float]]  # share of the GPUs that is free, but that no waiting job can use
    rows: list[Row]
    bars: list[Bar]
    stretches: int  # number of bars before some were left out


def shown_jobs(jobs: Sequence[Job], cluster: Cluster) -> list[str]:
    """The jobs of the Gantt chart: all of a small trace, else a sample from when the queue builds up.

    The sample is even over a time window, because a burst of a hundred equal jobs would fill the chart. The
    window begins shortly before the demand exceeds the GPUs if every job started on arrival (or before the
    peak of the demand, if it never does). Its length is doubled until enough jobs are found. The sample
    depends on the trace alone, so that every policy is shown with the same jobs.
    """
    if len(jobs) <= MOST_ROWS:
        return [job.id for job in jobs]
    times = [job.arrived_at for job in jobs]
    busy_at = times[_crowded(jobs, cluster)]
    length = HOUR
    while True:
        slots = [busy_at + (slot - MOST_ROWS // 8) * length // MOST_ROWS for slot in range(MOST_ROWS + 1)]
        places = [bisect_left(times, slot) for slot in slots]
        picked = [first for first, after in pairwise(places) if first < after]
        if len(picked) >= 0.75 * MOST_ROWS or length > times[-1] - times[0]:
            return [jobs[place].id for place in picked]
        length *= 2


def _crowded(jobs: Sequence[Job], cluster: Cluster) -> int:
    """The first arrival at which the demand exceeds the GPUs if every job starts at once; else the peak."""
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


def chart_data(run: Run, shown: Sequence[str], seen: Sampler | None = None) -> ChartData:
    """The chart data of a run with recorded series and stretches; `shown` are the jobs of the Gantt chart."""
    jobs = run.jobs
    began = jobs.job[0].arrived_at if jobs.job else 0
    place = {job: row for row, job in enumerate(shown)}
    rows: list[Row | None] = [None] * len(shown)
    waits = jobs.wait(run.until)
    for number, job in enumerate(jobs.job):
        if job.id in place:
            finish = jobs.finish[number]
            rows[place[job.id]] = Row(
                job.id,
                job.shape.gpus,
                (job.arrived_at - began) / SECOND,
                float(waits[number]) / SECOND,
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
    return ChartData(
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
    """Completion times at evenly spaced shares of the jobs, with the first and the last."""
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
    """GPUs in use and jobs waiting, averaged over time bins of equal length."""
    import numpy as np  # noqa: PLC0415

    if not run.series or run.until <= began or not run.cluster.gpus:
        return [], [], []
    table = np.array(run.series, dtype=np.float64)
    table[:, 0] -= began
    edges = np.linspace(0.0, run.until - began, POINTS + 1)
    gaps = np.diff(table[:, 0], append=edges[-1])

    def averaged(values: NDArray[np.float64]) -> NDArray[np.float64]:
        """A value holds until the next one, so its integral is linear in between."""
        area = np.concatenate(([0.0], np.cumsum(values * gaps)))
        moments = np.concatenate((table[:, 0], [edges[-1]]))
        found: NDArray[np.float64] = np.diff(np.interp(edges, moments, area)) / np.diff(edges)
        return found

    in_use = averaged(table[:, 1]) / (run.cluster.gpus * WHOLE)
    waiting = averaged(table[:, 2])
    return (edges / SECOND).tolist(), in_use.tolist(), waiting.tolist()
