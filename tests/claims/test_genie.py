"""GENIE: shortest waiting allowance first, on the fewest GPUs that meet the deadline."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import lru_cache
from math import inf

from dovetail.mechanisms.order.keys import arrival
from dovetail.mechanisms.place.gpu_types import of_type
from dovetail.mechanisms.place.placement import Placement
from dovetail.mechanisms.queue.discipline import skip
from dovetail.model.cluster import Cluster, GpuType, Node
from dovetail.model.grant import Spots, devices_of
from dovetail.model.job import Job
from dovetail.model.view import JobView, Order, Policy, Room, View
from dovetail.policies import genie as genie_module
from dovetail.policies.composed import Composed
from dovetail.sim.run import Run
from dovetail.testing.build import SECOND, Profile, cluster, job, run
from dovetail.testing.claims import claim, tells_apart
from dovetail.testing.mutants import mutant

GENIE = "dovetail.policies.genie"
CHOSEN = genie_module.chosen


def blind_to_nodes(view: View, job: JobView, tasks: int, kind: str | None, spots: Spots) -> float:
    return view.speed(job, tasks=tasks, type=kind).speed


def as_asked(view: View, job: JobView, tasks: int, kind: str | None, spots: Spots) -> float:
    """Every place is taken to be as fast as the one that the task asked for."""
    return 1.0


def fastest(runs: Sequence[tuple[float, genie_module.Way]], left: float) -> genie_module.Way:
    return min(runs, key=lambda run: run[0])[1]


def fewest(runs: Sequence[tuple[float, genie_module.Way]], left: float) -> genie_module.Way:
    return min(runs, key=lambda run: (run[1].gpus, run[0]))[1]


def fewest_if_too_late(runs: Sequence[tuple[float, genie_module.Way]], left: float) -> genie_module.Way:
    in_time = any(time <= left for time, _ in runs)
    return CHOSEN(runs, left) if in_time else fewest(runs, left)


MUTANTS = (
    mutant(
        "genie",
        "waiting allowance",
        "the earliest deadline goes first",
        killed_by="test_the_task_that_can_wait_least_goes_first",
        replace={f"{GENIE}:allowance": lambda left, run: left},
    ),
    mutant(
        "genie",
        "waiting allowance",
        "the shortest task goes first",
        killed_by="test_the_task_that_can_wait_least_goes_first",
        replace={f"{GENIE}:allowance": lambda left, run: run},
    ),
    mutant(
        "genie",
        "predicted rates",
        "the allowance takes every place to be as fast as the one asked for",
        killed_by="test_the_allowance_counts_on_the_fastest_place_that_is_free",
        replace={f"{GENIE}:predicted": as_asked},
    ),
    mutant(
        "genie",
        "predicted rates",
        "a place over several nodes is taken to be as fast as one on a single node",
        killed_by="test_a_place_on_one_node_meets_the_deadline_that_a_faster_type_on_two_does_not",
        replace={f"{GENIE}:predicted": blind_to_nodes},
    ),
    mutant(
        "genie",
        "fewest GPUs that suffice",
        "a task takes the fastest place",
        killed_by="test_a_task_takes_no_more_gpus_than_its_deadline_needs",
        replace={f"{GENIE}:chosen": fastest},
    ),
    mutant(
        "genie",
        "fewest GPUs that suffice",
        "a task takes the fewest GPUs, whatever its deadline",
        killed_by="test_a_task_takes_as_many_gpus_as_its_deadline_needs",
        replace={f"{GENIE}:chosen": fewest},
    ),
    mutant(
        "genie",
        "fewest GPUs that suffice",
        "a task takes the GPUs that it asked for",
        killed_by="test_a_task_takes_as_many_gpus_as_its_deadline_needs",
        replace={f"{GENIE}:sizes": lambda job: (job.shape.tasks,)},
    ),
    mutant(
        "genie",
        "the fastest place if none suffices",
        "the fewest GPUs, if none suffice",
        killed_by="test_a_task_that_is_too_late_takes_the_fastest_place",
        replace={f"{GENIE}:chosen": fewest_if_too_late},
    ),
)

LINEAR = {n: float(n) for n in range(1, 9)}


def _due(job: JobView, now: int) -> tuple[float, int]:
    return (inf if job.deadline is None else job.deadline, job.arrived_at)


def edf() -> Policy:
    """Earliest deadline first, passing over jobs that do not fit, at the size that they ask for."""
    return Composed(order=Order(_due), serve=skip)


def on_the_fastest_type() -> Policy:
    """First come, first served, each on the fastest GPU type that is free."""

    def find(room: Room, job: JobView) -> Spots | None:
        kinds = sorted(room.cluster.types, key=lambda kind: -kind.speed)
        places = (room.anywhere(of_type(job.shape, kind.name)) for kind in kinds)
        return next((spots for spots in places if spots is not None), None)

    return Composed(order=arrival, serve=skip, place=Placement(find))


def missed(result: Run) -> set[str]:
    jobs = result.jobs
    return {id for id, due in zip(jobs.id, jobs.deadline, strict=True) if result.finish(id) * SECOND > due}


def sizes(result: Run, at: float) -> dict[str, int]:
    """GPUs of each job at a time."""
    now = round(at * SECOND)
    return {s.job: devices_of(s.spots) for s in result.stretches if s.start <= now < s.end}


@claim("genie", "2 GPUs: the long task that can wait 1 s starts before one of two with an earlier deadline")
def test_the_task_that_can_wait_least_goes_first() -> None:
    jobs = [
        job("a", seconds=4, deadline=10),
        job("b", seconds=4, deadline=10),
        job("c", seconds=11, deadline=12),
    ]
    on = cluster(nodes=1, gpus=2)

    def check(result: Run) -> None:
        assert [result.finish(name) for name in "abc"] == [4, 8, 11]
        assert missed(result) == set()

    earliest = run(jobs, on, edf())
    assert earliest.finish("c") == 15
    tells_apart(check, run(jobs, on, "genie"), earliest)
    assert missed(run(jobs, on, "fifo")) == {"c"}


@claim("genie", "the allowance counts on the fastest place that is free, not on the duration as asked")
def test_the_allowance_counts_on_the_fastest_place_that_is_free() -> None:
    """On 4 GPUs `wide` needs 10 s and not 40 s: it can wait 35 s, and `rigid` only 12 s."""
    wide = job("wide", seconds=40, deadline=45, least=1, most=4, profile=Profile(curve=LINEAR))
    rigid = job("rigid", gpus=4, seconds=20, deadline=32)
    on = cluster(nodes=1, gpus=4)

    def check(result: Run) -> None:
        assert result.finish("rigid") == 20
        assert missed(result) == set()

    tells_apart(check, run([wide, rigid], on, "genie"), run([wide, rigid], on, "fifo"))


@claim("genie", "a task takes no more GPUs than its deadline needs: the others are there for the next task")
def test_a_task_takes_no_more_gpus_than_its_deadline_needs() -> None:
    first = job("first", gpus=4, seconds=10, deadline=22, least=1, most=4, profile=Profile(curve=LINEAR))
    next = job("next", gpus=2, seconds=10, at=1, deadline=12)
    on = cluster(nodes=1, gpus=4)

    def check(result: Run) -> None:
        assert sizes(result, 2) == {"first": 2, "next": 2}
        assert missed(result) == set()

    tells_apart(check, run([first, next], on, "genie"), run([first, next], on, edf()))


@claim("genie", "a task takes more GPUs than it asked for if its deadline needs them")
def test_a_task_takes_as_many_gpus_as_its_deadline_needs() -> None:
    task = job("task", gpus=1, seconds=40, deadline=14, least=1, most=4, profile=Profile(curve=LINEAR))
    on = cluster(nodes=1, gpus=4)

    def check(result: Run) -> None:
        assert sizes(result, 1) == {"task": 3}
        assert missed(result) == set()

    tells_apart(check, run([task], on, "genie"), run([task], on, edf()))


@claim("genie", "a place on one node meets a deadline that a faster GPU type on two nodes does not")
def test_a_place_on_one_node_meets_the_deadline_that_a_faster_type_on_two_does_not() -> None:
    """One GPU is free on each of two fast nodes, and two on a slow one: split, the task is 3 times slower."""
    fast, slow = GpuType("fast", speed=2.0), GpuType("slow", speed=1.0)
    on = Cluster((Node("n0", 2, fast), Node("n1", 2, fast), Node("n2", 2, slow)))
    before = [job(f"j{i}", seconds=(400, 1)[i % 2], types=("fast",)) for i in range(4)]
    pair = job("pair", gpus=2, seconds=100, at=5, deadline=110, profile=Profile(split=3.0))
    jobs = [*before, pair]

    def check(result: Run) -> None:
        assert result.finish("pair") == 105

    tells_apart(check, run(jobs, on, "genie"), run(jobs, on, on_the_fastest_type()))


@claim("genie", "a task for which no place is fast enough takes the fastest")
def test_a_task_that_is_too_late_takes_the_fastest_place() -> None:
    curve = Profile(curve=LINEAR)
    task = job("task", gpus=1, seconds=80, deadline=5, least=1, most=4, profile=curve)
    on = cluster(nodes=1, gpus=4)

    def check(result: Run) -> None:
        assert result.finish("task") == 20

    tells_apart(check, run([task], on, "genie"), run([task], on, edf()))


@claim("genie", "with late=last a task that is too late makes no other task late")
def test_with_late_last_a_task_that_is_too_late_makes_no_other_late() -> None:
    jobs = [job("hopeless", gpus=4, seconds=20, deadline=5), job("urgent", gpus=4, seconds=10, deadline=12)]
    on = cluster(nodes=1, gpus=4)

    def check(result: Run) -> None:
        assert missed(result) == {"hopeless"}

    tells_apart(check, run(jobs, on, "genie", late="last"), run(jobs, on, "genie", late="first"))


def trace(seed: int, *, count: int = 60, gap: float = 210.0) -> list[Job]:
    """60 jobs on 16 GPUs, at a load of about 1: some scale and some do not, some suffer when split."""
    luck, at, jobs = random.Random(seed), 0.0, list[Job]()
    for number in range(count):
        at += luck.expovariate(1 / gap)
        power, split = luck.uniform(0.5, 0.95), luck.uniform(1.0, 3.0)
        gpus, seconds = luck.choice((1, 2, 4, 8)), 60 + luck.expovariate(1 / 900)
        profile = Profile(curve={n: n**power for n in range(1, 17)}, split=split)
        deadline = at + seconds * luck.uniform(1.2, 4.0)
        made = job(
            f"j{number}",
            gpus=gpus,
            seconds=seconds,
            at=at,
            deadline=deadline,
            least=1,
            most=16,
            profile=profile,
        )
        jobs.append(made)
    return jobs


SEEDS = range(20)


def offered(seed: int) -> float:
    """GPU time asked for, over what there is until the last arrival."""
    jobs = trace(seed)
    return sum(each.shape.gpus * each.work for each in jobs) / (16 * max(each.arrived_at for each in jobs))


@lru_cache
def miss_rates(policy: str) -> list[float]:
    made: str | Policy = edf() if policy == "edf" else policy
    on = cluster(nodes=4, gpus=4)
    return [len(missed(run(trace(seed), on, made))) / 60 for seed in SEEDS]


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


@claim("genie", "where placements differ in speed it misses fewer deadlines than EDF and FIFO, on 20 traces")
def test_it_misses_fewer_deadlines_than_edf_and_fifo() -> None:
    others = [miss_rates(name) for name in ("edf", "fifo")]

    def check(found: list[float]) -> None:
        for theirs in others:
            assert mean(found) < 0.8 * mean(theirs)
            assert sum(a < b for a, b in zip(found, theirs, strict=True)) >= 15

    for theirs in others:
        tells_apart(check, miss_rates("genie"), theirs)
