"""Gavel's FIFO and AlloX: what its rounds and its rare allocations make of them, job by job.

A small simulator of its rounds, which shares no code with ours, gives what Gavel printed for every job of all
nine runs. A plain FIFO over GPU types, written here in a few lines, gives what ours gives for every job. The
differences between the two are described in docs/concepts/golden.md.
"""

from __future__ import annotations

import csv
import gzip
import math
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment
from tests.golden.gavel_runs import printed

from dovetail.model.cluster import Cluster, GpuType, Node
from dovetail.model.job import Profile
from dovetail.testing.build import job, run

DATA = Path(__file__).parent / "data"
TYPES = ("k80", "p100", "v100")
ROUND = 360.0
RESET = 1920.0  # seconds before GPUs are allocated again

Spec = dict[str, int]


@dataclass
class Task:
    id: int
    gpus: int
    submit: float
    steps: int
    speed: dict[str, float]
    printed: dict[str, float]
    done: int = 0
    failures: int = 0
    had: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys(TYPES, ROUND / 2)
    )  # since the last reset
    owed: dict[str, float] = field(default_factory=lambda: dict.fromkeys(TYPES, 0.0))


def tasks(trace: str) -> list[Task]:
    with gzip.open(DATA / f"gavel_{trace}.csv.gz", "rt") as file:
        return [
            Task(
                int(r["job"]),
                int(r["gpus"]),
                float(r["submit"]),
                int(r["steps"]),
                {kind: float(r[kind]) for kind in TYPES},
                {name: float(r[name]) for name in ("fifo", "fifo_perf") if r.get(name)},
            )
            for r in csv.DictReader(file)
        ]


class Fifo:
    """The type of each job. `fifo_perf` allocates anew, fastest type first; `fifo` keeps what it gave."""

    lends = False  # no job runs on a type that it was not given

    def __init__(self, variant: str) -> None:
        self.perf = variant == "fifo_perf"
        self.given: dict[int, str] = {}
        self.chance = random.Random(0)

    def deal(self, active: dict[int, Task], spec: Spec, now: float) -> dict[int, str]:
        if self.perf:
            self.given = {}
        free, waiting = dict(spec), [i for i in sorted(active) if i not in self.given]
        for i in sorted(self.given):
            kind = self.given[i]
            if i in active:
                free[kind] -= active[i].gpus
                continue
            # A bug of theirs: the grant of a job that ended goes to the first waiting job if that fits what
            # has not been counted yet, so a type may be given out twice.
            if waiting and active[waiting[0]].gpus <= free[kind] and active[waiting[0]].speed[kind] > 0:
                heir = waiting.pop(0)
                self.given[heir] = kind
                free[kind] -= active[heir].gpus
            del self.given[i]
        left = sorted(kind for kind in free if free[kind] > 0)
        while waiting and left:
            task = active[waiting.pop(0)]
            fits = [(at, kind) for at, kind in enumerate(left) if free[kind] >= task.gpus]
            if not fits:
                break
            if self.perf:
                at, kind = max(fits, key=lambda fit: task.speed[fit[1]])
            else:
                # Another bug: a type is drawn at random, but the last one in the list is used.
                at, kind = fits[self.chance.randrange(len(fits))][0], left[-1]
            if task.speed[kind] > 0:
                self.given[task.id] = kind
                free[kind] -= task.gpus
                if free[kind] == 0:
                    left.pop(at)
        return dict(self.given)


class AlloX:
    """A job that was given a type keeps it. The others queue for the free GPUs. The first of each queue gets
    the GPU, the jobs behind it get nothing until all queues are made anew."""

    lends = True

    def __init__(self) -> None:
        self.given: dict[int, str] = {}

    def deal(self, active: dict[int, Task], spec: Spec, now: float) -> dict[int, str]:
        self.given = {i: kind for i, kind in self.given.items() if i in active}
        waiting = [task for i, task in active.items() if i not in self.given]
        taken = list(self.given.values())
        free = [kind for kind in TYPES for _ in range(spec[kind] - taken.count(kind))]
        if waiting and free:
            once = np.array(
                [[(t.steps - t.done) / (t.speed[kind] or 1e-10) for kind in free] for t in waiting]
            )
            age = np.array([[now - t.submit] for t in waiting])
            cost = np.hstack([place * once for place in range(1, len(waiting) + 1)]) + age
            front: dict[int, tuple[int, int]] = {}
            for row, column in zip(*linear_sum_assignment(cost), strict=True):
                place, gpu = divmod(int(column), len(free))
                front[gpu] = max(front.get(gpu, (-1, -1)), (place, waiting[row].id))
            self.given |= {i: free[gpu] for gpu, (_, i) in front.items()}
        return dict(self.given)


def rounds(jobs: list[Task], spec: Spec, policy: Fifo | AlloX) -> dict[int, float]:
    """Rounds of 360 s; GPUs are allocated anew at most every 1920 s; ends and arrivals wait for both."""
    coming, active, known = list(jobs), dict[int, Task](), set[int]()
    running: list[tuple[float, Task, str, int]] = []
    now, began, ended, dealt_at, stale = coming[0].submit, 0.0, None, 0.0, True
    given: dict[int, str] = {}
    total = dict.fromkeys(TYPES, 0.0)
    done: dict[int, float] = {}
    left = len(jobs)
    while left:
        if not coming and not running:
            dealt_at = 0.0
        if running:
            began = began if ended is None else ended
            now = ended = max(stop for stop, *_ in running)
        elif coming:
            now = coming[0].submit
        for stop, task, kind, steps in sorted(running, key=lambda r: (-r[0], r[1].id)):
            share = steps // task.gpus
            if steps - share * (task.gpus - 1) <= 0 or (task.gpus > 1 and share <= 0) or stop <= began:
                task.failures += 1  # a worker without a step: five such rounds, and the job is dropped
                stale = True
                if task.failures == 5:
                    del active[task.id]
                    left -= 1
                continue
            task.failures = 0
            task.done += steps
            task.had[kind] += stop - began
            total[kind] += stop - began
            if task.done >= task.steps:
                del active[task.id]
                done[task.id] = stop - task.submit
                left -= 1
                stale = True
        while coming and coming[0].submit <= now:
            task = coming.pop(0)
            active[task.id] = task
            stale = True
        if stale and (now - dealt_at >= RESET or dealt_at == 0):
            for kind in TYPES:
                total[kind] = 0.0
                for i, task in active.items():
                    due = now - dealt_at if given.get(i) == kind else 0.0
                    task.owed[kind] += due - (task.had[kind] - ROUND / 2)
                    task.had[kind] = ROUND / 2
                    total[kind] += task.had[kind]
            dealt_at, given, stale, known = now, policy.deal(active, spec, now), False, set(active)
        running = []
        seated: set[int] = set()
        for kind in reversed(TYPES):  # free V100s are lent before any job gets the P100 that it was given
            rank = {}
            for i, task in active.items():
                due, had = float(given.get(i) == kind), task.had[kind] / total[kind] if total[kind] else 0.0
                rank[i] = due * 1e9 if had <= 0 else due / had, task.owed[kind], due
            free = spec[kind]
            for i in sorted(active, key=lambda i: rank[i], reverse=True):
                task = active[i]
                if i in seated or task.speed[kind] <= 0 or task.gpus > free:
                    continue
                if policy.lends or given.get(i) == kind:
                    seated.add(i)
                    free -= task.gpus
                    if i in known:  # a job that arrived since the allocation only occupies the GPU
                        steps = min(int(task.speed[kind] * ROUND), task.steps - task.done)
                        running.append((now + steps / task.speed[kind], task, kind, steps))
    return done


def plain(jobs: list[Task], spec: Spec) -> dict[int, float]:
    """Strict FIFO at every arrival and end, without moves: the fastest type that has room."""
    free, coming, waiting, running, done = (
        dict(spec),
        list(jobs),
        list[Task](),
        list[Any](),
        dict[int, float](),
    )
    while coming or waiting or running:
        now = min([coming[0].submit if coming else math.inf, *(end for end, _, _ in running)])
        for end, task, kind in [r for r in running if r[0] <= now]:
            running.remove((end, task, kind))
            free[kind] += task.gpus
            done[task.id] = now - task.submit
        while coming and coming[0].submit <= now:
            waiting.append(coming.pop(0))
        while waiting:
            task = waiting[0]
            fits = [kind for kind in TYPES if free[kind] >= task.gpus and task.speed[kind] > 0]
            if not fits:
                break
            kind = max(fits, key=lambda k: task.speed[k])
            waiting.pop(0)
            free[kind] -= task.gpus
            running.append((now + task.steps / task.speed[kind], task, kind))
    return done


def ours(jobs: list[Task], spec: Spec) -> dict[int, float]:
    """One GPU a node; a job names the types it can use, the fastest first."""
    nodes = tuple(Node(f"{kind}-{i}", 1, GpuType(kind)) for kind in TYPES for i in range(spec[kind]))
    made = []
    for task in jobs:
        best = max(task.speed.values())
        made.append(
            job(
                str(task.id),
                gpus=task.gpus,
                seconds=task.steps / best,
                at=task.submit,
                types=[k for k in sorted(TYPES, key=lambda k: -task.speed[k]) if task.speed[k] > 0],
                profile=Profile(speeds={kind: task.speed[kind] / best for kind in TYPES}),
            )
        )
    result = run(made, Cluster(nodes), "fifo")
    return {int(i): jct for i, jct in zip(result.jobs.id, result.jct(), strict=True)}


SPECS = {
    "multi_120": {"v100": 12, "p100": 12, "k80": 12},
    "max_min_96": {"v100": 8, "p100": 16, "k80": 24},
    "makespan_100": {"v100": 8, "p100": 16, "k80": 24},
    "small_20": {"v100": 4, "p100": 4, "k80": 4},
    "single_100": {"v100": 8, "p100": 8, "k80": 8},
}
RUNS = [
    ("multi_120", "fifo", 119),  # job 88 is dropped
    ("multi_120", "fifo_perf", 120),
    ("max_min_96", "fifo", 96),
    ("makespan_100", "fifo", 100),
    ("small_20", "fifo", 20),
    ("small_20", "fifo_perf", 20),
    ("single_100", "fifo", 100),
    ("single_100", "fifo_perf", 100),
]


@pytest.mark.parametrize(("trace", "variant", "finished"), RUNS)
def test_gavel_is_its_rounds(trace: str, variant: str, finished: int) -> None:
    expected = {task.id: task.printed[variant] for task in tasks(trace) if variant in task.printed}
    assert len(expected) == finished
    theirs = rounds(tasks(trace), SPECS[trace], Fifo(variant))
    assert theirs.keys() == expected.keys()
    assert [i for i in expected if abs(theirs[i] - expected[i]) > 0.002] == []


def test_gavel_is_its_rounds_for_allox() -> None:
    expected = printed("pub_single_s7_n100__c8-8-8__allox")
    theirs = rounds(tasks("single_100"), SPECS["single_100"], AlloX())
    assert theirs.keys() == expected.keys()
    assert [i for i in expected if abs(theirs[i] - expected[i]) > 0.002] == []


@pytest.mark.parametrize("trace", SPECS)
def test_without_rounds_it_is_ours(trace: str) -> None:
    expected, here = plain(tasks(trace), SPECS[trace]), ours(tasks(trace), SPECS[trace])
    assert here.keys() == expected.keys()
    assert [i for i in expected if abs(here[i] - expected[i]) > 0.001] == []
