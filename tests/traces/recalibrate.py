"""Works the generators' tables out of the shipped traces again; run it to print them.

`calibration.py` holds what this prints, and a test holds the two together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import date, timedelta
from pprint import pprint

import numpy as np

from dovetail.model.job import Job
from dovetail.model.units import SECOND
from dovetail.traces import SHIPPED, load_trace
from dovetail.traces.calibration import GRID

DAY = 86_400
PHILLY_SIZES = (1, 2, 4, 8, 12, 32)  # each a class, up to the next
ITP_SIZES = (1, 2, 8, 16, 32)


def quantiles(jobs: Iterable[Job], classes: tuple[int, ...]) -> dict[int, tuple[int, ...]]:
    durations: dict[int, list[float]] = {least: [] for least in classes}
    for job in jobs:
        durations[max(least for least in classes if least <= job.shape.gpus)].append(job.work / SECOND)
    return {
        least: tuple(round(float(q)) for q in np.quantile(np.array(found), GRID))
        for least, found in durations.items()
    }


def mix(named: Mapping[str, Iterable[Job]]) -> dict[str, dict[int, int]]:
    counts: dict[str, dict[int, int]] = {}
    for name, jobs in named.items():
        sizes: dict[int, int] = {}
        for job in jobs:
            sizes[job.shape.gpus] = sizes.get(job.shape.gpus, 0) + 1
        counts[name] = dict(sorted(sizes.items()))
    return dict(sorted(counts.items(), key=lambda item: -sum(item[1].values())))


def rhythm(times: Iterable[float], first: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Median arrivals of each hour of the day (bursts would swamp a mean), mean ones of each weekday.

    `first` is the weekday of second 0.
    """
    hours = np.array([int(time // 3600) for time in times])
    counts = np.bincount(hours, minlength=(int(hours.max()) // 24 + 1) * 24).reshape(-1, 24)
    days = counts.sum(axis=1)
    weekday = (np.arange(len(days)) + first) % 7
    return (
        tuple(round(float(np.median(counts[:, hour]))) for hour in range(24)),
        tuple(round(float(days[weekday == day].mean())) for day in range(7)),
    )


def philly() -> dict[str, object]:
    jobs = load_trace("philly").jobs
    tenants: dict[str, list[Job]] = {}
    for job in jobs:
        tenants.setdefault(job.tenant, []).append(job)
    midnight = timedelta(
        hours=10, minutes=30, seconds=41
    ).total_seconds()  # the trace begins then, on a Monday
    hours, days = rhythm((job.arrived_at / SECOND + midnight for job in jobs), date(2017, 9, 4).weekday())
    return {"mix": mix(tenants), "quantiles": quantiles(jobs, PHILLY_SIZES), "hours": hours, "days": days}


def itp() -> dict[str, object]:
    clusters = {
        name.removeprefix("itp:"): load_trace(name).jobs for name in SHIPPED if name.startswith("itp:")
    }
    jobs = [job for found in clusters.values() for job in found]
    hours, days = rhythm((job.arrived_at / SECOND for job in jobs), date(2021, 3, 4).weekday())
    return {"mix": mix(clusters), "quantiles": quantiles(jobs, ITP_SIZES), "hours": hours, "days": days}


if __name__ == "__main__":
    pprint({"philly": philly(), "itp": itp()}, width=110, compact=True, sort_dicts=False)
