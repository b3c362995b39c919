"""DRAGON: gangs in order of arrival; running jobs shrink for one that waits too long, and grow when idle."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from dovetail.mechanisms.place.placement import Placement
from dovetail.mechanisms.place.pods import pod_spots
from dovetail.mechanisms.resize.resizing import start
from dovetail.mechanisms.resize.shrinking import spare_tasks
from dovetail.model.grant import Spots, devices_of
from dovetail.model.job import Job
from dovetail.model.units import micros
from dovetail.model.view import JobView, Plan, Policy, Room, View
from dovetail.policies.dragon import Dragon, first_started, scale_up
from dovetail.policies.kubernetes import k8s_default
from dovetail.sim.run import Run
from dovetail.testing.build import SECOND, Checkpoint, Profile, cluster, job, run
from dovetail.testing.claims import claim, tells_apart
from dovetail.testing.mutants import mutant

DRAGON = "dovetail.policies.dragon"


def spread(*, pending_limit: float = 30.0, idle_limit: float = 60.0) -> Policy:
    """Each task goes to the emptiest node."""

    def find(room: Room, waiting: JobView) -> Spots | None:
        return pod_spots(room, waiting.shape, waiting.shape.tasks, emptiest=True) or None

    return Dragon(pending_limit=micros(pending_limit), idle_limit=micros(idle_limit), place=Placement(find))


def last_started(giving: Sequence[JobView], lacks: int) -> tuple[JobView, int]:
    last = max(giving, key=lambda each: (each.started_at, each.seq))
    return last, min(spare_tasks(last), lacks)


def all_it_can(giving: Sequence[JobView], lacks: int) -> tuple[JobView, int]:
    giver, _ = first_started(giving, lacks)
    return giver, spare_tasks(giver)


def start_late_and_go_on(self: Dragon, view: View, plan: Plan) -> bool:
    START_LATE(self, view, plan)
    return True


def start_in_order(self: Dragon, view: View, plan: Plan) -> None:
    while (first := view.queue.head()) is not None and self._start(plan, first):
        pass


def grow_though_jobs_wait(self: Dragon, view: View) -> Plan:
    plan = DECIDE(self, view)
    scale_up(view, plan)
    return plan


START_LATE, DECIDE = Dragon._start_late, Dragon.decide

MUTANTS = (
    mutant(
        "dragon",
        "gangs",
        "pods are bound one by one",
        killed_by="test_gangs_do_not_wait_for_each_other",
        factory=lambda **_: k8s_default(),
    ),
    mutant(
        "dragon",
        "locality",
        "the tasks of a job are spread over nodes",
        killed_by="test_a_gang_is_on_one_node_and_grows_there",
        factory=spread,
    ),
    mutant(
        "dragon",
        "smaller start",
        "a job starts with what it asked for or not at all",
        killed_by="test_a_job_starts_with_the_gpus_that_are_free",
        replace={
            f"{DRAGON}:start_smaller": lambda plan, new, tasks, place: (
                tasks == new.shape.tasks and start(plan, new, tasks, place)
            )
        },
    ),
    mutant(
        "dragon",
        "scale-down",
        "running jobs keep their GPUs",
        killed_by="test_running_jobs_shrink_for_one_that_waited_too_long",
        replace={f"{DRAGON}:start_by_shrinking": lambda *_: False},
    ),
    mutant(
        "dragon",
        "scale-down",
        "running jobs shrink at once",
        killed_by="test_running_jobs_shrink_for_one_that_waited_too_long",
        options={"pending_limit": 0.0},
    ),
    mutant(
        "dragon",
        "scale-down",
        "a job that shrinks gives up all that it can",
        killed_by="test_the_first_to_start_gives_up_what_is_needed",
        replace={f"{DRAGON}:first_started": all_it_can},
    ),
    mutant(
        "dragon",
        "scale-down",
        "the last to start gives up GPUs",
        killed_by="test_the_first_to_start_gives_up_what_is_needed",
        replace={f"{DRAGON}:first_started": last_started},
    ),
    mutant(
        "dragon",
        "order",
        "jobs overtake one that has waited too long",
        killed_by="test_a_wide_job_is_overtaken_for_a_while_only",
        replace={f"{DRAGON}:Dragon._start_late": start_late_and_go_on},
    ),
    mutant(
        "dragon",
        "order",
        "no job overtakes another",
        killed_by="test_a_wide_job_is_overtaken_for_a_while_only",
        replace={f"{DRAGON}:Dragon._start_fitting": start_in_order},
    ),
    mutant(
        "dragon",
        "scale-up",
        "running jobs do not grow",
        killed_by="test_a_lone_job_grows_onto_idle_gpus",
        options={"idle_limit": 1e9},
    ),
    mutant(
        "dragon",
        "scale-up",
        "running jobs grow at once",
        killed_by="test_a_lone_job_grows_onto_idle_gpus",
        options={"idle_limit": 0.0},
    ),
    mutant(
        "dragon",
        "scale-up",
        "running jobs grow while another job waits",
        killed_by="test_no_job_grows_while_another_waits",
        replace={f"{DRAGON}:Dragon.decide": grow_though_jobs_wait},
    ),
)

EIGHT = cluster(nodes=1, gpus=8)
SIXTEEN = cluster(nodes=2, gpus=8)


def elastic(name: str, gpus: int, *, minutes: float, at: float = 0.0, power: float = 0.9, **more: Any) -> Job:
    """A job whose speed on n GPUs is n to some power, half of that if it is split; a resize takes 15 s."""
    profile = Profile(curve={n: n**power for n in range(1, 17)}, split=2.0)
    limits = {"least": 1, "most": 16, "checkpoint": Checkpoint(resize=15 * SECOND), **more}
    return job(name, gpus=gpus, minutes=minutes, at=at, profile=profile, **limits)


def held(result: Run, at: float) -> dict[str, Spots]:
    now = round(at * SECOND)
    return {s.job: s.spots for s in result.stretches if s.start <= now < s.end}


def sizes(result: Run, at: float) -> dict[str, int]:
    """GPUs of each job at a time."""
    return {name: devices_of(spots) for name, spots in held(result, at).items()}


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


@claim("dragon", "two gangs, whose pods wait for each other for ever under default Kubernetes, run in turn")
def test_gangs_do_not_wait_for_each_other() -> None:
    jobs = [job("first", gpus=8, seconds=100), job("second", gpus=8, seconds=100)]

    def check(result: Run) -> None:
        assert result.finished == 2
        assert result.makespan == 200 * SECOND

    tells_apart(check, run(jobs, EIGHT, "dragon"), run(jobs, EIGHT, "k8s-default"))


@claim("dragon", "all tasks of a job are on one node that can hold them, and it grows on that node")
def test_a_gang_is_on_one_node_and_grows_there() -> None:
    jobs = [elastic("old", 4, minutes=60, most=8)]

    def check(result: Run) -> None:
        assert [(devices_of(held(result, at)["old"]), len(held(result, at)["old"])) for at in (1, 61)] == [
            (4, 1),
            (8, 1),
        ]

    tells_apart(check, run(jobs, SIXTEEN, "dragon"), run(jobs, SIXTEEN, "k8s-default"))


@claim("dragon", "a job that asks for 4 GPUs and runs with 2 starts at once on the 3 that are free")
def test_a_job_starts_with_the_gpus_that_are_free() -> None:
    jobs = [job("first", gpus=5, minutes=60), elastic("new", 4, minutes=10, least=2, at=5)]

    def check(result: Run) -> None:
        assert sizes(result, 6) == {"first": 5, "new": 3}

    tells_apart(check, run(jobs, EIGHT, "dragon"), run(jobs, EIGHT, "fifo"))


@claim("dragon", "a lone job has all GPUs once they were idle for a minute")
def test_a_lone_job_grows_onto_idle_gpus() -> None:
    jobs = [elastic("old", 2, minutes=60)]

    def check(result: Run) -> None:
        assert sizes(result, 59) == {"old": 2}
        assert sizes(result, 61) == {"old": 8}

    tells_apart(check, run(jobs, EIGHT, "dragon"), run(jobs, EIGHT, "fifo"))


@claim("dragon", "while a job waits no other job grows")
def test_no_job_grows_while_another_waits() -> None:
    """The gang of 8 waits for the job of 4; `small` could have the 2 idle GPUs."""
    jobs = [job("first", gpus=4, minutes=10), elastic("small", 2, minutes=60, least=2)]
    jobs += [job("wide", gpus=8, minutes=5, at=30)]

    def check(result: Run) -> None:
        assert sizes(result, 590) == {"first": 4, "small": 2}

    tells_apart(check, run(jobs, EIGHT, "dragon"), run(jobs, EIGHT, "wang"))


@claim("dragon", "a job that has waited 30 s gets GPUs of a running job, which goes on with the others")
def test_running_jobs_shrink_for_one_that_waited_too_long() -> None:
    jobs = [elastic("old", 8, minutes=60), job("new", gpus=4, minutes=10, at=600)]

    def check(result: Run) -> None:
        assert result.start("new") == 630
        assert sizes(result, 629) == {"old": 8}
        assert sizes(result, 631) == {"old": 4, "new": 4}
        assert result.preemptions == 0

    for other in ("fifo", "afs"):
        tells_apart(check, run(jobs, EIGHT, "dragon"), run(jobs, EIGHT, other))


@claim("dragon", "running jobs give up no more GPUs than are needed, the first to start before the others")
def test_the_first_to_start_gives_up_what_is_needed() -> None:
    jobs = [elastic("a", 4, minutes=60, most=4, least=2), elastic("b", 4, minutes=60, most=4, at=1)]
    jobs += [job("one", gpus=1, minutes=30, at=100), job("two", gpus=2, minutes=30, at=200)]

    def check(result: Run) -> None:
        assert sizes(result, 131) == {"a": 3, "b": 4, "one": 1}
        assert sizes(result, 231) == {"a": 2, "b": 3, "one": 1, "two": 2}

    tells_apart(check, run(jobs, EIGHT, "dragon"), run(jobs, EIGHT, "afs"))


@claim("dragon", "small jobs overtake a wide one for 30 s, and no longer")
def test_a_wide_job_is_overtaken_for_a_while_only() -> None:
    jobs = [job(f"flow{i}", gpus=4, minutes=10, at=300 * i) for i in range(12)]
    jobs += [job("wide", gpus=8, minutes=10, at=60), job("small", gpus=1, minutes=2, at=70)]

    def check(result: Run) -> None:
        assert result.start("small") == 70
        assert result.start("wide") == 600

    for discipline in ("strict", "skip"):
        tells_apart(check, run(jobs, EIGHT, "dragon"), run(jobs, EIGHT, "fifo", discipline=discipline))


def trace(seed: int) -> list[Job]:
    """40 jobs of speed n^0.4 to n^0.95 that ask for 1 to 8 GPUs; as asked they load 16 GPUs fully."""
    luck, at, jobs = random.Random(seed), 0.0, list[Job]()
    for number in range(40):
        at += luck.expovariate(1 / 436)
        power, gpus = luck.uniform(0.4, 0.95), luck.choice((1, 2, 4, 8))
        minutes = 1 + luck.expovariate(1 / 30)
        jobs.append(elastic(f"j{number}", gpus, power=power, minutes=minutes, at=at))
    return jobs


@lru_cache
def runs(policy: str, first_seed: int) -> list[tuple[float, float]]:
    """The mean JCT in minutes and the part of the GPUs in use, of each trace."""
    options: dict[str, Any] = {"discipline": "skip"} if policy == "fifo" else {}
    found = [run(trace(first_seed + i), SIXTEEN, policy, **options) for i in range(12)]
    return [(mean(result.jct()) / 60, result.utilization) for result in found]


@claim("dragon", "20 % more of the GPUs are in use than with gangs of fixed size, and jobs end earlier")
def test_more_gpus_are_in_use_than_with_fixed_sizes() -> None:
    fixed = runs("fifo", 200)

    def check(found: list[tuple[float, float]]) -> None:
        pairs = list(zip(found, fixed, strict=True))
        assert mean([use for _, use in found]) > 1.2 * mean([use for _, use in fixed])
        assert mean([jct for jct, _ in found]) < 0.9 * mean([jct for jct, _ in fixed])
        assert sum(ours[0] < theirs[0] and ours[1] > theirs[1] for ours, theirs in pairs) >= 10

    tells_apart(check, runs("dragon", 200), fixed)


@claim("dragon", "mean JCT is more than a third below that of default Kubernetes")
def test_mean_jct_is_below_that_of_default_kubernetes() -> None:
    """Pods of other jobs take the GPUs that a gang waits for, and a job that is spread runs at half speed."""
    default = runs("k8s-default", 300)

    def check(found: list[tuple[float, float]]) -> None:
        pairs = list(zip(found, default, strict=True))
        assert mean([jct for jct, _ in found]) < 2 / 3 * mean([jct for jct, _ in default])
        assert sum(ours[0] < theirs[0] for ours, theirs in pairs) >= 10

    tells_apart(check, runs("dragon", 300), default)
