"""A queue simulated: the same core, world and policies as `dovetail simulate`."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from dovetail.bench.compare import COLUMNS, MORE_COLUMNS, Column, result_of
from dovetail.bench.metrics import Metrics
from dovetail.bench.policy_choice import PolicyChoice, make_policy
from dovetail.control.lab.json_options import policy_from_json
from dovetail.control.lab.questions import MOST_COMPARED, MOST_GPUS, Compare, LabJob, Simulate
from dovetail.core.fitting import fitting
from dovetail.core.room import Room
from dovetail.model.cluster import Cluster, parse_cluster
from dovetail.model.errors import InputError, NeverFits, UnknownName
from dovetail.model.grant import milli_of
from dovetail.model.job import PLAIN, Checkpoint, Job, Profile, Traits, gang
from dovetail.model.units import SECOND, WHOLE, micros
from dovetail.sim.outcomes import NEVER
from dovetail.sim.run import Run, Stretch, run
from dovetail.traces import load_cluster, load_trace
from dovetail.traces.shipped import SHIPPED, SHIPPED_CLUSTERS, shipped_name
from dovetail.traces.trace import Trace

Json = dict[str, Any]

MOST_STRETCHES = 4_000
MOST_POINTS = 400  # of a series
MOST_STEPS = 100  # of a distribution
KEPT = frozenset({"rho_mean", "rho_max", "jain", "share_error", "lost_gpu_hours"})  # of the further columns
FIGURES: tuple[Column, ...] = (*COLUMNS, *(column for column in MORE_COLUMNS if column.key in KEPT))


def simulated(asked: Simulate) -> Json:
    """Where and when each job ran."""
    entrant = policy_from_json(asked.policy, asked.options)
    cluster = cluster_of(asked.cluster, MOST_GPUS)
    jobs = jobs_of(asked.jobs, asked.restart_cost)
    _refuse_unfit(jobs, cluster, asked.cluster)
    made, metrics = _ran(entrant, jobs, cluster)
    waits = made.jobs.wait(made.until)
    return {
        "jobs": [_job_json(made, row, int(waits[row])) for row in _rows(made, asked.jobs)],
        "stretches": [_stretch_json(one, cluster) for one in made.stretches[:MOST_STRETCHES]],
        "more": max(0, len(made.stretches) - MOST_STRETCHES),
        "metrics": _metrics_json(metrics),
        "series": series(made.series),
        "stalled": made.stalled,
    }


def compared(asked: Compare) -> Json:
    """The figures of a policy on a trace."""
    entrant = policy_from_json(asked.policy, asked.options)
    cluster = cluster_of(asked.cluster, MOST_COMPARED)
    notes: list[str] = []
    if asked.jobs is not None:
        jobs = jobs_of(asked.jobs, asked.restart_cost)
        _refuse_unfit(jobs, cluster, asked.cluster)
    else:
        jobs, notes = _of_trace(asked, cluster)
    made, metrics = _ran(entrant, jobs, cluster)
    return {
        "policy": entrant.policy,
        "label": entrant.label,
        "gpus": cluster.gpus,
        "metrics": _metrics_json(metrics),
        "cdf": distribution(made.jct()),
        "series": series(made.series),
        "notes": notes,
        "stalled": made.stalled[:100],
    }


# --- what is asked ----------------------------------------------------------------------------------


def cluster_of(text: str, most: int) -> Cluster:
    """A cluster as it is written on the command line; never a file, but the shipped one has a name."""
    if text in SHIPPED_CLUSTERS:
        return _within(load_cluster(text), text, most)
    sizes = [part.partition(":")[0].split("x") for part in text.split(",")]
    gpus = sum(int(nodes) * int(each) for nodes, each in sizes)
    nodes = sum(int(nodes) for nodes, _ in sizes)
    if max(gpus, nodes) > most:
        raise InputError(
            f"cluster: {text} has {nodes:,} nodes with {gpus:,} GPUs; the Lab takes at most {most:,} here"
        )
    if not gpus:
        raise InputError(f"cluster: {text} has no GPU; write 2x4 or 1x2:V100,1x2:K80")
    return parse_cluster(text)


def _within(cluster: Cluster, text: str, most: int) -> Cluster:
    if cluster.gpus > most:
        raise InputError(f"cluster: {text} has {cluster.gpus:,} GPUs; the Lab takes at most {most:,} here")
    return cluster


def jobs_of(asked: Sequence[LabJob], restart_cost: float = 0.0) -> list[Job]:
    """In the order in which they arrive; at one instant, as they were listed."""
    names = [job.id for job in asked]
    if len(set(names)) != len(names):
        twin = next(name for name in names if names.count(name) > 1)
        raise InputError(f"{names.count(twin)} jobs have the id {twin!r}; give each job an id of its own")
    checkpoint = Checkpoint(restore=micros(restart_cost))
    made = [
        Job(
            id=job.id,
            arrived_at=micros(job.submit),
            shape=gang(job.gpus),
            work=micros(job.duration),
            estimate=micros(job.duration if job.estimate is None else job.estimate),
            tenant=job.tenant,
            priority=job.priority,
            traits=_traits(job, checkpoint),
        )
        for job in asked
    ]
    return sorted(made, key=lambda job: job.arrived_at)


def _traits(job: LabJob, checkpoint: Checkpoint) -> Traits:
    if not job.speeds:
        return Traits(checkpoint=checkpoint) if checkpoint.restore else PLAIN
    return Traits(checkpoint=checkpoint, profile=Profile(speeds=dict(job.speeds)))


def _refuse_unfit(jobs: Iterable[Job], cluster: Cluster, text: str) -> None:
    room = Room(cluster)
    for job in jobs:
        if fitting(room, job) is None:
            raise NeverFits(
                f"job {job.id!r} asks for {job.shape.gpus} GPU{'s' * (job.shape.gpus != 1)}, which {text} "
                "could never hold; give a larger cluster"
            )


@lru_cache(maxsize=2)
def _trace(name: str, types: tuple[str, ...]) -> Trace:
    return load_trace(name, cluster_types=types)


def _of_trace(asked: Compare, cluster: Cluster) -> tuple[list[Job], list[str]]:
    """The head of a shipped trace, without what the cluster could never hold."""
    name = shipped_name(asked.trace or "")
    if name is None:
        raise UnknownName("trace", asked.trace or "", SHIPPED)
    trace = _trace(name, tuple(dict.fromkeys(kind.name for kind in cluster.types)))
    room = Room(cluster)
    fits = {shape: room.ever(shape) for shape in {job.shape for job in trace.jobs[: asked.head]}}
    jobs = [job for job in trace.jobs[: asked.head] if fits[job.shape]]
    notes = list(trace.notes)
    if left_out := min(asked.head, len(trace.jobs)) - len(jobs):
        notes.append(f"{left_out:,} jobs left out: {asked.cluster} could never hold them")
    if not jobs:
        raise NeverFits(f"{name}: {asked.cluster} could hold none of its jobs; give a larger cluster")
    return jobs, notes


# --- what is answered -------------------------------------------------------------------------------


def _ran(entrant: PolicyChoice, jobs: list[Job], cluster: Cluster) -> tuple[Run, Metrics]:
    made = run(
        jobs,
        cluster,
        make_policy(entrant),
        name=entrant.policy,
        options=entrant.options,
        trace=True,
    )
    return made, result_of(made, entrant.label).metrics


def _metrics_json(metrics: Metrics) -> Json:
    return {
        "jobs": metrics.jobs,
        "finished": metrics.finished,
        **{column.key: column.read(metrics) for column in FIGURES},
    }


def _rows(made: Run, asked: Sequence[LabJob]) -> list[int]:
    """In the order in which they were asked for."""
    place = {job.id: row for row, job in enumerate(made.jobs.job)}
    return [place[job.id] for job in asked]


def _job_json(made: Run, row: int, wait: int) -> Json:
    jobs = made.jobs
    job, start, finish = jobs.job[row], jobs.start[row], jobs.finish[row]
    return {
        "id": job.id,
        "submit": job.arrived_at / SECOND,
        "start": None if start == NEVER else start / SECOND,
        "finish": None if finish == NEVER else finish / SECOND,
        "jct": None if finish == NEVER else (finish - job.arrived_at) / SECOND,
        "wait": wait / SECOND,
        "preemptions": jobs.stops[row],
    }


def _stretch_json(one: Stretch, cluster: Cluster) -> Json:
    devices = [
        [cluster.nodes[node].name, device]
        for node, mask, *_ in one.spots
        for device in range(mask.bit_length())
        if mask >> device & 1
    ]
    milli = min((milli_of(share) for _, mask, share, *_ in one.spots if mask), default=WHOLE)
    return {
        "job": one.job,
        "start": one.start / SECOND,
        "end": one.end / SECOND,
        "devices": devices,
        "milli": milli,
    }


def series(points: Sequence[tuple[int, int, int]], most: int = MOST_POINTS) -> list[list[float]]:
    """Time, GPUs in use and jobs that wait: the last word of each moment, and of so many moments only."""
    last = {time: (used, waiting) for time, used, waiting in points}
    times = list(last)
    if len(times) > most:  # of each stretch of equal length what stood at its end
        first, width = times[0], max(1, (times[-1] - times[0]) / (most - 1))
        times = list({int((time - first) / width): time for time in times}.values())
    return [[time / SECOND, last[time][0] / WHOLE, last[time][1]] for time in times]


def distribution(values: Sequence[float], most: int = MOST_STEPS) -> list[list[float]]:
    """Which share of the values is at most so large.

    >>> distribution([3.0, 1.0, 2.0, 2.0])
    [[1.0, 0.25], [2.0, 0.75], [3.0, 1.0]]
    """
    ranked = sorted(values)
    count = len(ranked)
    steps = min(count, most)
    shown = dict.fromkeys(ranked[round((i + 1) * count / steps) - 1] for i in range(steps))
    return [[value, bisect_right(ranked, value) / count] for value in shown]
