"""AlloX: kind of device and order by one matching, and no user starves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from random import Random
from statistics import mean
from typing import Any

import numpy as np
import pytest

from dovetail.mechanisms.objective.completion_matching import Matrix, Vector, machine_queues
from dovetail.model.cluster import Cluster, GpuType, Node
from dovetail.model.job import Job, Profile
from dovetail.model.units import HOUR, MINUTE, WHOLE
from dovetail.model.view import JobView, Plan, View
from dovetail.policies import allox
from dovetail.sim.run import Run
from dovetail.testing.build import cluster, job, run
from dovetail.testing.claims import claim, tells_apart
from dovetail.testing.mutants import mutant

times_by_kind, ready = allox.AlloX._times, allox._ready


def on_the_fastest_kind_only(self: Any, view: View, jobs: Sequence[JobView], kinds: Sequence[str]) -> Matrix:
    times = times_by_kind(self, view, jobs, kinds)
    return np.where(times <= times.min(axis=1, keepdims=True, initial=np.inf), times, np.inf)


def on_any_kind_alike(self: Any, view: View, jobs: Sequence[JobView], kinds: Sequence[str]) -> Matrix:
    times = times_by_kind(self, view, jobs, kinds)
    return np.where(np.isfinite(times), times.min(axis=1, keepdims=True, initial=np.inf), np.inf)


def free_machines_only(view: View, plan: Plan, kinds: Sequence[str]) -> list[list[float]]:
    return [[when for when in machines if not when] for machines in ready(view, plan, kinds)]


def longest_first(
    times: Matrix, ready: Sequence[Sequence[float]], size: Vector | None = None
) -> list[list[list[int]]]:
    return [[line[::-1] for line in machines] for machines in machine_queues(times, ready, size)]


def one_job_at_a_time(
    times: Matrix, ready: Sequence[Sequence[float]], size: Vector | None = None
) -> list[list[list[int]]]:
    """By arrival, each job where it ends soonest: it does not count how many others a job keeps waiting."""
    free = [list(machines) for machines in ready]
    found: list[list[list[int]]] = [[[] for _ in machines] for machines in ready]
    for row, took in enumerate(times):
        ends = [(when + took[k], k, m) for k, machines in enumerate(free) for m, when in enumerate(machines)]
        end, kind, machine = min(ends)
        found[kind][machine].append(row)
        free[kind][machine] = end
    return found


def gpus_held(self: Any, view: View, kinds: Sequence[str]) -> dict[str, float]:
    held: dict[str, float] = {}
    for each in view.running.values():
        held[self._owner(each)] = held.get(self._owner(each), 0.0) + each.held / WHOLE
    return held


POLICY = "dovetail.policies.allox"
MUTANTS = (
    mutant(
        "allox",
        "kind of device",
        "every job waits for its fastest kind",
        killed_by="test_matching_beats_the_gpu_alone",
        replace={f"{POLICY}:AlloX._times": on_the_fastest_kind_only},
    ),
    mutant(
        "allox",
        "kind of device",
        "all kinds are taken to be as fast as the fastest",
        killed_by="test_a_job_waits_for_a_fast_device",
        replace={f"{POLICY}:AlloX._times": on_any_kind_alike},
    ),
    mutant(
        "allox",
        "matching",
        "job by job, where each ends soonest",
        killed_by="test_matching_is_the_best_schedule",
        replace={f"{POLICY}:machine_queues": one_job_at_a_time},
    ),
    mutant(
        "allox",
        "matching",
        "the last job in the queue of a machine starts first",
        killed_by="test_matching_is_the_best_schedule",
        replace={f"{POLICY}:machine_queues": longest_first},
    ),
    mutant(
        "allox",
        "queues of busy machines",
        "only free machines have queues",
        killed_by="test_a_job_waits_for_a_fast_device",
        replace={f"{POLICY}:_ready": free_machines_only},
    ),
    mutant(
        "allox",
        "fairness between users",
        "all users take part",
        killed_by="test_a_small_fraction_is_fair",
        options={"a": 1.0},
    ),
    mutant(
        "allox",
        "fairness between users",
        "users take part by name",
        killed_by="test_a_small_fraction_is_fair",
        replace={f"{POLICY}:AlloX._progress": lambda self, view, kinds: {}},
    ),
    mutant(
        "allox",
        "progress share",
        "a slow device counts as much as a fast one",
        killed_by="test_a_slow_device_is_less_progress",
        replace={f"{POLICY}:AlloX._progress": gpus_held},
    ),
)


def devices(**counts: int) -> Cluster:
    """One device a node, of several kinds."""
    return Cluster(
        tuple(Node(f"{kind}{i}", 1, GpuType(kind)) for kind, n in counts.items() for i in range(n))
    )


def on(id: str, minutes: Mapping[str, float], **more: Any) -> Job:
    """A job by how long it takes on each kind; the first is its reference."""
    reference = next(iter(minutes.values()))
    speeds = {kind: reference / time for kind, time in minutes.items()}
    return job(id, minutes=reference, profile=Profile(speeds=speeds), **more)


def total(result: Run) -> float:
    """Sum of completion times in minutes."""
    return sum(result.jct()) / 60


@claim(
    "allox",
    "matching puts each job on the kind that costs the others least: 5.5, against 6 and 9 on the GPU alone",
)
def test_matching_beats_the_gpu_alone() -> None:
    both = devices(GPU=1, CPU=1)
    times = {"j2": {"GPU": 4.0, "CPU": 4.5}, "j1": {"GPU": 1.0, "CPU": 10.0}}
    jobs = [on(id, minutes) for id, minutes in times.items()]
    on_gpu = [on(id, minutes, types=["GPU"]) for id, minutes in times.items()]

    def check(result: Run) -> None:
        assert total(result) <= 5.5 + 1e-6
        assert result.finish("j1") == 60

    ours, shortest, fifo = run(jobs, both, "allox"), run(on_gpu, both, "sjf"), run(on_gpu, both, "fifo")
    tells_apart(check, ours, shortest)
    tells_apart(check, ours, fifo)
    assert total(ours) == pytest.approx(5.5, abs=1e-6)
    assert total(shortest) == pytest.approx(6)
    assert total(fifo) == pytest.approx(9)


def least_total(times: Sequence[Mapping[str, float]], machines: list[str]) -> float:
    """Over all ways to deal the jobs to machines, each of which takes the shortest first."""
    best = float("inf")
    for where in product(range(len(machines)), repeat=len(times)):
        added = 0.0
        for machine, kind in enumerate(machines):
            now = 0.0
            for time in sorted(times[i][kind] for i, at in enumerate(where) if at == machine):
                now += time
                added += now
        best = min(best, added)
    return best


@claim("allox", "for up to five jobs the sum of completion times is the least there is")
def test_matching_is_the_best_schedule() -> None:
    def gaps(policy: str, **options: float) -> list[float]:
        found = []
        for seed in range(40):
            luck = Random(seed)
            counts = {"GPU": luck.randint(1, 2), "CPU": luck.randint(1, 2)}
            times = [
                {"GPU": luck.randint(1, 9), "CPU": luck.randint(1, 30)} for _ in range(luck.randint(2, 5))
            ]
            jobs = [on(f"j{i}", minutes) for i, minutes in enumerate(times)]
            result = run(jobs, devices(**counts), policy, **options)
            machines = [kind for kind, n in counts.items() for _ in range(n)]
            found.append(total(result) - least_total(times, machines))
        return found

    def check(gap: list[float]) -> None:
        assert max(gap) < 1e-5

    ours, baseline = gaps("allox", a=1.0), gaps("sjf")
    tells_apart(check, ours, baseline)
    assert min(ours) > -1e-5
    assert mean(baseline) > 5  # minutes


@claim(
    "allox", "with a small `a` no user falls below a floor, though another floods the cluster with short jobs"
)
def test_a_small_fraction_is_fair() -> None:
    flood = [job(f"a{i}", seconds=60, at=10 * i, user="ann") for i in range(180)]
    slow = [job(f"b{i}", minutes=30, at=60, user="bob") for i in range(16)]

    def shares(result: Run, begin: int = 5 * MINUTE, end: int = HOUR // 2) -> dict[str, float]:
        held = {"a": 0, "b": 0}
        for part in result.stretches:
            held[part.job[0]] += max(0, min(part.end, end) - max(part.start, begin))
        return {user: time / (4 * (end - begin)) for user, time in held.items()}

    def check(result: Run) -> None:
        assert min(shares(result).values()) >= 0.4

    fair = run([*flood, *slow], cluster(gpus=4), "allox", a=0.1)
    quick = run([*flood, *slow], cluster(gpus=4), "allox", a=1.0)
    tells_apart(check, fair, quick)
    assert mean(quick.jct()) < mean(fair.jct())  # which is what it costs


@claim("allox", "a job waits a minute for a GPU that runs it in one, though a CPU is free that takes ten")
def test_a_job_waits_for_a_fast_device() -> None:
    both = devices(GPU=1, CPU=1)
    jobs = [on("first", {"GPU": 2.0, "CPU": 20.0}), on("second", {"GPU": 1.0, "CPU": 10.0}, at=60)]

    def check(result: Run) -> None:
        assert result.finish("first") == 120
        assert result.finish("second") == 180

    tells_apart(check, run(jobs, both, "allox"), run(jobs, both, "fifo"))


@claim(
    "allox",
    "a user whose job runs at 80 % of its best speed has less progress, and gets the next free device",
)
def test_a_slow_device_is_less_progress() -> None:
    """One GPU is busy for 10 min, the other with bob's job; so zoe's has the CPU."""
    jobs = [
        on("other", {"GPU": 10.0}, types=["GPU"], user="abe"),
        on("b0", {"GPU": 100.0}, types=["GPU"], user="bob"),
        on("z0", {"GPU": 20.0, "CPU": 25.0}, at=60, user="zoe"),
        on("b1", {"GPU": 40.0}, types=["GPU"], at=120, user="bob"),
        on("z1", {"GPU": 50.0}, types=["GPU"], at=120, user="zoe"),
    ]

    def check(result: Run) -> None:
        assert result.start("z0") == 60
        assert result.start("z1") == 600

    on_three = devices(GPU=2, CPU=1)
    tells_apart(check, run(jobs, on_three, "allox"), run(jobs, on_three, "allox", a=1.0))
