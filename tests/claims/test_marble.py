"""MARBLE: several jobs on a node, each as wide as it still scales."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from tests.claims.elastic_parts import in_order_of_arrival, sizes_at

from dovetail.mechanisms.order.keys import arrival
from dovetail.mechanisms.place.placement import Placement, scattered
from dovetail.model.grant import devices_of
from dovetail.model.job import Job
from dovetail.model.view import Plan, Policy, View
from dovetail.policies import marble as marble_module
from dovetail.policies.composed import Composed
from dovetail.sim.run import Run
from dovetail.testing.build import SECOND, Checkpoint, Profile, cluster, job, run
from dovetail.testing.claims import claim, tells_apart
from dovetail.testing.mutants import mutant

MARBLE = "dovetail.policies.marble"


def across_nodes(*, knee: float = 0.3) -> Policy:
    return Composed(order=arrival, serve=marble_module.up_to_the_knee(knee), place=scattered)


def past_the_first(*, knee: float = 0.3) -> Policy:
    """Every waiting job that fits starts."""

    def serve(view: View, place: Placement) -> Plan:
        plan = view.draft()
        left = [each for each in view.queue.walk() if not start(view, plan, each, place, knee)]
        if not left:
            marble_module._grow(view, plan)
        return plan

    start = marble_module._start
    return Composed(order=arrival, serve=serve)


MUTANTS = (
    mutant(
        "marble",
        "knee",
        "a job gets every GPU that makes it faster",
        killed_by="test_jobs_that_scale_badly_share_a_node",
        options={"knee": 0.0},
    ),
    mutant(
        "marble",
        "knee",
        "every job starts with its least",
        killed_by="test_a_job_that_scales_well_starts_with_more",
        options={"knee": 1e9},
    ),
    mutant(
        "marble",
        "order of arrival",
        "jobs that do not fit are passed over",
        killed_by="test_a_job_that_scales_well_starts_with_more",
        factory=past_the_first,
    ),
    mutant(
        "marble",
        "growth",
        "running jobs do not grow",
        killed_by="test_idle_gpus_go_where_the_speed_gains_most",
        replace={f"{MARBLE}:_grow": lambda view, plan: None},
    ),
    mutant(
        "marble",
        "growth",
        "idle GPUs go to the job that arrived first",
        killed_by="test_idle_gpus_go_where_the_speed_gains_most",
        replace={f"{MARBLE}:dealt": in_order_of_arrival},
    ),
    mutant(
        "marble",
        "growth",
        "a job keeps what it grew to while others wait",
        killed_by="test_a_job_that_grew_gives_back_what_is_beyond_its_knee",
        replace={f"{MARBLE}:_give_back": lambda *_: False},
    ),
    mutant(
        "marble",
        "one node",
        "a job starts over several nodes",
        killed_by="test_a_job_stays_on_one_node_with_fewer_gpus",
        factory=across_nodes,
    ),
    mutant(
        "marble",
        "smaller start",
        "a job waits until as many GPUs are free as its knee",
        killed_by="test_a_job_stays_on_one_node_with_fewer_gpus",
        replace={
            f"{MARBLE}:_place": lambda plan, job, most, least, place, find=marble_module._place: (
                most == least and find(plan, job, most, least, place)
            )
        },
    ),
)

SIX = cluster(nodes=1, gpus=6)


def scaling(name: str, power: float, *, minutes: float, at: float = 0.0, gpus: int = 6, **more: Any) -> Job:
    """A job whose speed on n GPUs is n to some power; it is restarted to be resized."""
    profile = Profile(curve={n: n**power for n in range(1, 7)}, split=3.0)
    checkpoint = Checkpoint(save=5 * SECOND, restore=10 * SECOND)
    limits = {"least": 1, "most": 6, **more}
    return job(name, gpus=gpus, minutes=minutes, at=at, profile=profile, checkpoint=checkpoint, **limits)


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


@claim(
    "marble", "three jobs of speed n^0.5 run side by side on 6 GPUs, and end 1.73 times earlier than in turn"
)
def test_jobs_that_scale_badly_share_a_node() -> None:
    jobs = [scaling(name, 0.5, minutes=10) for name in "abc"]
    fifo = run(jobs, SIX, "fifo")

    def check(result: Run) -> None:
        assert sizes_at(result, 1) == {"a": 2, "b": 2, "c": 2}
        assert 1.73 < fifo.makespan / result.makespan < 1.74
        assert 0.86 < mean(result.jct()) / mean(fifo.jct()) < 0.87

    tells_apart(check, run(jobs, SIX, "marble"), fifo)


@claim("marble", "a job of speed n^0.9 starts with 3 GPUs where one of speed n^0.5 starts with 2")
def test_a_job_that_scales_well_starts_with_more() -> None:
    """A job that waits for the whole node keeps the others from growing, and the job behind it waits too."""
    jobs = [scaling("well", 0.9, minutes=10), scaling("badly", 0.5, minutes=10)]
    jobs += [job("whole", gpus=6, minutes=60), job("one", minutes=1)]

    def check(result: Run) -> None:
        assert sizes_at(result, 1) == {"well": 3, "badly": 2}

    tells_apart(check, run(jobs, SIX, "marble"), run(jobs, SIX, "fifo"))


@claim(
    "marble",
    "with an empty queue the idle GPU goes to the job that it makes 30 % faster, not to that of 22 %",
)
def test_idle_gpus_go_where_the_speed_gains_most() -> None:
    """Knees of 2 and 3: one GPU of 6 is idle."""
    jobs = [scaling("badly", 0.5, minutes=20), scaling("well", 0.9, minutes=10)]

    def check(result: Run) -> None:
        assert sizes_at(result, 60) == {"badly": 2, "well": 4}
        assert sizes_at(result, result.finish("well") + 60) == {"badly": 6}

    tells_apart(check, run(jobs, SIX, "marble"), run(jobs, SIX, "fifo"))


@claim("marble", "a lone job has all GPUs of a node, and a newcomer starts at once on those beyond its knee")
def test_a_job_that_grew_gives_back_what_is_beyond_its_knee() -> None:
    jobs = [scaling("old", 0.5, minutes=60), scaling("new", 0.5, minutes=10, at=600)]

    def check(result: Run) -> None:
        assert sizes_at(result, 590) == {"old": 6}
        assert result.start("new") < 620
        assert sizes_at(result, 660) == {"old": 4, "new": 2}
        assert result.preemptions == 0

    tells_apart(check, run(jobs, SIX, "marble"), run(jobs, SIX, "fifo"))


@claim("marble", "a job with a knee of 3 starts on the 2 free GPUs of a node rather than on 3 of two nodes")
def test_a_job_stays_on_one_node_with_fewer_gpus() -> None:
    jobs = [job("left", gpus=4, minutes=60), job("right", gpus=4, minutes=60)]
    jobs += [scaling("new", 0.9, minutes=10, at=1)]
    on = cluster(nodes=2, gpus=6)

    def check(result: Run) -> None:
        spots = {s.job: s.spots for s in result.stretches if s.start <= 60 * SECOND < s.end}
        assert "new" in spots
        assert devices_of(spots["new"]) == 2
        assert len(spots["new"]) == 1

    tells_apart(check, run(jobs, on, "marble"), run(jobs, on, "afs"))


def trace(seed: int) -> list[Job]:
    """40 jobs that ask for a whole node, of speed n^0.4 to n^0.95; as asked they load two nodes fully."""
    luck, at, jobs = random.Random(seed), 0.0, list[Job]()
    for number in range(40):
        at += luck.expovariate(1 / 600)
        power, minutes = luck.uniform(0.4, 0.95), 1 + luck.expovariate(1 / 19)
        jobs.append(scaling(f"j{number}", power, minutes=minutes, at=at))
    return jobs


@lru_cache
def means(policy: str) -> list[float]:
    """The mean JCT of each trace, in minutes."""
    return [mean(run(trace(seed), cluster(nodes=2, gpus=6), policy).jct()) / 60 for seed in range(12)]


@claim("marble", "where jobs ask for whole nodes its mean JCT is below that of fifo with exclusive nodes")
def test_mean_jct_is_below_that_of_exclusive_nodes() -> None:
    fifo = means("fifo")

    def check(found: list[float]) -> None:
        assert mean(found) < 0.9 * mean(fifo)
        assert sum(ours < theirs for ours, theirs in zip(found, fifo, strict=True)) >= 10

    tells_apart(check, means("marble"), fifo)
