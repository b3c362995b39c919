"""Where our mean differs from theirs by more than 1 %: the one rule that makes the difference, job by job.

Each rule is written here as a switch of a small simulator that shares no code with ours. Switched on, it
gives what the other simulator printed for every job; switched off, it gives what ours gives for every job. So
the rule, and nothing else, is the difference. See docs/concepts/golden.md.
"""

from __future__ import annotations

import csv
import gzip
import math
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from dovetail.testing.build import cluster, job, run

DATA = Path(__file__).parent / "data"
NEVER = math.inf
NEAR = 1e-6


def rows(trace: str) -> list[dict[str, str]]:
    with gzip.open(DATA / f"{trace}.csv.gz", "rt") as file:
        return list(csv.DictReader(file))


@dataclass
class Task:
    """A job as the small simulator keeps it; times in seconds."""

    id: str
    gpus: int
    submit: float
    left: float
    overhead: float = 0.0
    ran: float = 0.0
    runs: bool = False
    queue: int = 0
    printed: dict[str, float] = field(default_factory=dict)


def printed(tasks: Iterable[Task], column: str) -> dict[str, float]:
    return {task.id: task.printed[column] for task in tasks}


def ours(tasks: Iterable[Task], nodes: int, gpus: int, policy: str, **options: Any) -> dict[str, float]:
    jobs = [job(t.id, gpus=t.gpus, seconds=t.left, at=t.submit) for t in tasks]
    result = run(jobs, cluster(nodes=nodes, gpus=gpus), policy, **options)
    return dict(zip(result.jobs.id, result.jct(), strict=True))


def same(a: dict[str, float], b: dict[str, float], within: float = 0.001) -> bool:
    return a.keys() == b.keys() and all(abs(a[name] - b[name]) <= within for name in a)


def mean(times: dict[str, float]) -> float:
    return sum(times.values()) / len(times)


# -- preemptive schedules by count


Choose = Callable[[list[Task], float], list[Task]]  # active jobs in the order in which they are served
Timer = Callable[[Task], float]  # seconds until the schedule wants to look again, for one that runs


def replay(
    tasks: list[Task], gpus: int, choose: Choose, timer: Timer, *, charge: bool = False
) -> dict[str, float]:
    """At every event serve the active jobs in order as far as there are GPUs, and stop the others.

    `charge`: at every event of the cluster each job that runs loses `overhead` seconds of its progress,
    though no more than passed since the last event; the last stretch to its end is free.
    """
    coming, active, now, alarm, done = sorted(tasks, key=lambda t: t.submit), list[Task](), 0.0, NEVER, {}
    while coming or active:
        ends = min((now + t.left for t in active if t.runs), default=NEVER)
        then = min(ends, coming[0].submit if coming else NEVER)
        foreseen = then <= alarm
        last, now = now, min(then, alarm)
        for task in [t for t in active if foreseen and t.runs and last + t.left <= now + 1e-9]:
            active.remove(task)
            done[task.id] = now - task.submit
        while foreseen and coming and coming[0].submit <= now:
            active.append(coming.pop(0))
        for task in active:
            if task.runs:
                task.ran += now - last
                task.left -= max(now - last - (task.overhead if charge else 0.0), 0.0)
        free = gpus
        for task in choose(active, now):
            task.runs = task.gpus <= free
            free -= task.gpus if task.runs else 0
        alarm = now + min((timer(t) for t in active if t.runs), default=NEVER)
    return done


class Queues:
    """Two thresholds of GPU-time; each queue a list in which runners stand first after every decision."""

    thresholds = (3250.0, 7200.0)

    def __init__(self, timer: str) -> None:
        self.lists: list[list[Task]] = [[], [], []]
        self.rule = timer

    def choose(self, active: list[Task], now: float) -> list[Task]:
        here = set(map(id, active))
        for queue in self.lists:
            queue[:] = [t for t in queue if id(t) in here]
            queue.sort(key=lambda t: not t.runs)  # as the last decision left them
        known = {id(t) for queue in self.lists for t in queue}
        self.lists[0] += [t for t in active if id(t) not in known]
        for task in active:
            if task.runs and task.queue < 2 and task.ran * task.gpus >= self.thresholds[task.queue] - NEAR:
                self.lists[task.queue].remove(task)
                task.queue += 1
                self.lists[task.queue].append(task)
        return [t for queue in self.lists for t in queue]

    def timer(self, task: Task) -> float:
        if task.queue == 2:
            return NEVER
        threshold = self.thresholds[task.queue]
        if self.rule == "late":  # Tiresias: as if GPU-time were run time
            return (threshold - task.ran) // task.gpus
        if self.rule == "whole":  # Muri: whole seconds
            return math.ceil(threshold / task.gpus) - task.ran
        return threshold / task.gpus - task.ran


def tiresias(trace: str) -> list[Task]:
    return [
        Task(
            r["job"],
            int(r["gpus"]),
            float(r["submit"]),
            float(r["duration"]),
            printed={name: float(r[name]) for name in r if "/" in name},
        )
        for r in rows(trace)
    ]


def test_tiresias_demotes_jobs_of_several_gpus_late() -> None:
    def queues(timer: str) -> dict[str, float]:
        rule = Queues(timer)
        return replay(tiresias("tiresias_480"), 32, rule.choose, rule.timer)

    tasks = tiresias("tiresias_480")
    assert same(queues("late"), printed(tasks, "n8g4/yarn/dlas-gpu"))
    options: dict[str, Any] = {"thresholds": [3250.0, 7200.0], "quantum": None, "placement": "scattered"}
    assert same(queues("right"), ours(tasks, 8, 4, "tiresias-l", queue_order="sticky", **options))


# Seconds that Muri takes off by model, for 1, 2, 4, 8, 16 and 32 GPUs.
MURI_OVERHEAD = {
    "vgg16": (7, 7, 8, 9, 9, 10),
    "vgg19": (7, 7, 8, 9, 10, 10),
    "resnet18": (4, 5, 5, 7, 7, 7),
    "shufflenet_v2_x1_0": (4, 4, 5, 5, 7, 8),
    "bert": (10,) * 6,
    "gpt2": (10,) * 6,
    "a2c": (38, 39, 39, 46, 46, 46),
    "dqn": (5, 5, 6, 6, 8, 8),
}


def muri() -> list[Task]:
    return [
        Task(
            r["job"],
            int(r["gpus"]),
            float(r["submit"]),
            float(r["iterations"]) * float(r["iteration_ms"]) * 1.015 / 1000,
            overhead=MURI_OVERHEAD[r["model"]][int(r["gpus"]).bit_length() - 1],
            printed={name: float(r[name]) for name in ("shortest", "shortest-gpu", "dlas-gpu")},
        )
        for r in rows("muri_trace3")
    ]


def never(task: Task) -> float:
    return NEVER


@pytest.mark.parametrize(
    ("column", "policy", "by_gpus"), [("shortest", "srtf", 0), ("shortest-gpu", "srsf", 1)]
)
def test_muri_charges_every_running_job_at_every_event(column: str, policy: str, by_gpus: int) -> None:
    def choose(active: list[Task], now: float) -> list[Task]:
        return sorted(active, key=lambda t: t.left * t.gpus**by_gpus)

    tasks = muri()
    assert same(replay(muri(), 64, choose, never, charge=True), printed(tasks, column), 0.01)
    plain = replay(muri(), 64, choose, never)
    assert same(plain, ours(tasks, 8, 8, policy, placement="scattered"), 0.01)


def test_muri_charges_in_its_queues_too() -> None:
    tasks, theirs, plain = muri(), Queues("whole"), Queues("right")
    assert same(
        replay(muri(), 64, theirs.choose, theirs.timer, charge=True), printed(tasks, "dlas-gpu"), 0.01
    )
    options: dict[str, Any] = {"thresholds": [3250.0, 7200.0], "quantum": None, "placement": "scattered"}
    uncharged = replay(muri(), 64, plain.choose, plain.timer)
    assert same(uncharged, ours(tasks, 8, 8, "tiresias-l", queue_order="sticky", **options), 0.01)


# -- Tiresias' gittins: the index upside down


@dataclass
class Index:
    """Their table: the index at one below each sample, looked up at the next sample above."""

    samples: list[int]
    ahead: int = 3250

    def __post_init__(self) -> None:
        self.table = [self._at(sample - 1) for sample in self.samples] + [0.0]

    def _at(self, attained: int) -> float:
        sizes, count = self.samples, len(self.samples)
        first = bisect_right(sizes, attained)
        limit = attained + self.ahead
        past = count - 1 if limit > sizes[-1] - 1 else bisect_right(sizes, limit)
        chance = round((past - first) / (count - first), 5)
        work = (sum(sizes[first:past]) + self.ahead * (count - past)) // (count - first)
        return round(chance * 1e6 / work, 4)

    def of(self, attained: float) -> float:
        return 0.0 if attained > self.samples[-1] else self.table[bisect_right(self.samples, attained)]


class Gittins:
    """Serves jobs by index. Looks again at times that grow fast: each is the last one plus now."""

    def __init__(self, index: Index, *, upside_down: bool) -> None:
        self.index, self.upside_down = index, upside_down
        self.order: list[Task] = []
        self.now, self.next_look = 0.0, 3250.0

    def choose(self, active: list[Task], now: float) -> list[Task]:
        here = set(map(id, active))
        known = set(map(id, self.order))
        self.order = [t for t in self.order if id(t) in here] + [t for t in active if id(t) not in known]
        self.order.sort(key=self._rank)
        self.now = now
        self.next_look += now
        return self.order

    def _rank(self, task: Task) -> float:
        if self.upside_down:  # the least likely to end goes first, and one that waits counts as of one GPU
            return self.index.of(task.ran * (task.gpus if task.runs else 1))
        return -self.index.of(task.ran * task.gpus)

    def timer(self, task: Task) -> float:
        return self.next_look - self.now


def test_tiresias_serves_the_smallest_index_first() -> None:
    samples = [int(r["gpu_seconds"]) for r in rows("tiresias_gput1000")]
    index = Index(sorted(samples))

    def served(trace: str, gpus: int, *, upside_down: bool) -> dict[str, float]:
        rule = Gittins(index, upside_down=upside_down)
        return replay(tiresias(trace), gpus, rule.choose, rule.timer)

    for trace, gpus, column in [
        ("tiresias_60", 16, "n4g4/yarn/gittins"),
        ("tiresias_480", 32, "n8g4/yarn/gittins"),
    ]:
        assert same(served(trace, gpus, upside_down=True), printed(tiresias(trace), column))
    # The right way round it gives our result, except for the times at which an index is computed.
    mended = served("tiresias_480", 32, upside_down=False)
    by_index = ours(
        tiresias("tiresias_480"),
        8,
        4,
        "tiresias-g",
        samples=[float(s) for s in samples],
        horizon=3250.0,
        thresholds=[],
        quantum=None,
        placement="scattered",
    )
    assert mean(by_index) == pytest.approx(mean(mended), rel=0.01)
    assert mean(by_index) < 0.7 * mean(printed(tiresias("tiresias_480"), "n8g4/yarn/gittins"))


# -- Tiresias' lpjf: a list that is shortened while it is walked


def first_come(tasks: list[Task], nodes: int, gpus: int, *, skips_one: bool) -> dict[str, float]:
    """Strict FIFO on nodes, first fit; `skips_one`: after each job that starts, the next is passed over."""
    free = [gpus] * nodes
    coming, waiting, running = sorted(tasks, key=lambda t: t.submit), list[Task](), list[Any]()
    done: dict[str, float] = {}

    def placed(task: Task) -> list[tuple[int, int]] | None:
        if task.gpus <= gpus:
            wants = [task.gpus]
        else:
            wants = [gpus] * (task.gpus // gpus) + [task.gpus % gpus] * bool(task.gpus % gpus)
        taken: list[tuple[int, int]] = []
        for want in wants:
            fits = (n for n in range(nodes) if free[n] >= want and n not in {node for node, _ in taken})
            node = next(fits, None)
            if node is None:
                return None
            taken.append((node, want))
        return taken

    while coming or waiting or running:
        now = min([coming[0].submit if coming else NEVER, *(end for end, _, _ in running)])
        for end, task, spots in [r for r in running if r[0] <= now]:
            running.remove((end, task, spots))
            done[task.id] = now - task.submit
            for node, count in spots:
                free[node] += count
        while coming and coming[0].submit <= now:
            waiting.append(coming.pop(0))
        at = 0
        while at < len(waiting) and (spots := placed(waiting[at])) is not None:
            task = waiting.pop(at)
            for node, count in spots:
                free[node] -= count
            running.append((now + task.left, task, spots))
            at += skips_one
    return done


def test_tiresias_lpjf_passes_over_every_other_job() -> None:
    tasks = tiresias("tiresias_480")
    assert same(first_come(tasks, 8, 4, skips_one=True), printed(tasks, "n8g4/yarn/lpjf"))
    plain = first_come(tasks, 8, 4, skips_one=False)
    assert same(plain, ours(tasks, 8, 4, "fifo", placement="first-fit"))
    assert same(plain, printed(tasks, "n8g4/yarn/fifo"))
