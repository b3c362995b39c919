"""Gavel's FIFO: what its rounds and its rare allocations make of it, job by job.

A small simulator of its rounds, which shares no code with ours, gives what Gavel printed for every job of all
eight runs. A plain FIFO over GPU types, written here in a few lines, is what ours gives for every job. What
lies between the two is told in docs/concepts/golden.md.
"""

from __future__ import annotations

import csv
import gzip
import math
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from dovetail.model.cluster import Cluster, GpuType, Node
from dovetail.model.job import Profile
from dovetail.testing.build import job, run

DATA = Path(__file__).parent / "data"
TYPES = ("k80", "p100", "v100")
ROUND = 360.0
RESET = 1920.0  # seconds before GPUs are dealt out again

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
    """Who is given which type. `fifo_perf` deals afresh, fastest type first; `fifo` keeps what it gave."""

    def __init__(self, variant: str) -> None:
        self.perf = variant == "fifo_perf"
        self.given: dict[int, str] = {}
        self.chance = random.Random(0)

    def deal(self, active: dict[int, Task], spec: Spec) -> dict[int, str]:
        if self.perf:
            self.given = {}
        free, waiting = dict(spec), [i for i in sorted(active) if i not in self.given]
        for i in sorted(self.given):
            kind = self.given[i]
            if i in active:
                free[kind] -= active[i].gpus
                continue
            # A slip of theirs: the place of one that ended goes to the first in line if it fits what has not
            # been counted yet, so a type may be given out twice.
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
                # Another: a type is drawn, but the last in the list is the one that is used.
                at, kind = fits[self.chance.randrange(len(fits))][0], left[-1]
            if task.speed[kind] > 0:
                self.given[task.id] = kind
                free[kind] -= task.gpus
                if free[kind] == 0:
                    left.pop(at)
        return dict(self.given)


def rounds(jobs: list[Task], spec: Spec, variant: str) -> dict[int, float]:
    """Rounds of 360 s; GPUs are dealt anew at most every 1920 s; ends and arrivals wait for both."""
    policy, coming, active = Fifo(variant), list(jobs), dict[int, Task]()
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
            dealt_at, given, stale = now, policy.deal(active, spec), False
        running = []
        for kind in TYPES:
            mine = [task for i, task in active.items() if given.get(i) == kind]
            shares = {t.id: t.had[kind] / total[kind] if total[kind] else 0.0 for t in mine}
            urgent = {i: 1e9 if share <= 0 else 1 / share for i, share in shares.items()}
            mine.sort(key=lambda t: (urgent[t.id], t.owed[kind]), reverse=True)
            free = spec[kind]
            for task in mine:
                if task.speed[kind] > 0 and task.gpus <= free:
                    free -= task.gpus
                    steps = min(int(task.speed[kind] * ROUND), task.steps - task.done)
                    running.append((now + steps / task.speed[kind], task, kind, steps))
    return done


def plain(jobs: list[Task], spec: Spec) -> dict[int, float]:
    """Strict FIFO at every arrival and end, nobody moved: the fastest type that has room."""
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
    printed = {task.id: task.printed[variant] for task in tasks(trace) if variant in task.printed}
    assert len(printed) == finished
    theirs = rounds(tasks(trace), SPECS[trace], variant)
    assert theirs.keys() == printed.keys()
    assert [i for i in printed if abs(theirs[i] - printed[i]) > 0.002] == []


@pytest.mark.parametrize("trace", SPECS)
def test_without_rounds_it_is_ours(trace: str) -> None:
    expected, here = plain(tasks(trace), SPECS[trace]), ours(tasks(trace), SPECS[trace])
    assert here.keys() == expected.keys()
    assert [i for i in expected if abs(here[i] - expected[i]) > 0.001] == []
